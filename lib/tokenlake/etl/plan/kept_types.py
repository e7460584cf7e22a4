"""Types of kept fields, decided once for the whole dataset.

Files with a schema have them. Of other files the first records are looked at, after the
steps of the configuration. Where several types were found, the column has the narrowest
type that holds them all, and JSON text where none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from tokenlake.base.columns import JSON, NULL, ColumnType
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.first_records import (
    FIELDS_SHOWN,
    RECORDS_LOOKED_AT,
    field_names,
)
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.records import read_rows
from tokenlake.etl.sources.rows import Rows, column_of
from tokenlake.etl.sources.splits import by_file
from tokenlake.etl.text.steps import open_chain
from tokenlake.runtime.column_types import (
    arrow_type,
    column_type,
    joined,
    may_become,
    settled,
)

_FILES_LOOKED_AT: Final = 16
"""Number of files whose first records are read."""


def kept_sources(
    sources: Sequence[ResolvedSource], ranges: Sequence[Iterable[Iterable[FileRange]]]
) -> tuple[ResolvedSource, ...]:
    """Return the sources with the types of their kept fields.

    Fields of one name have one type in all sources.

    Args:
        sources: Sources of the build.
        ranges: Ranges of each source, in groups.

    Raises:
        ConfigError: None of the first records has a field that is to be kept.
        SourceError: An input cannot be read.
    """
    # 1. The types of the values in the first records of all sources.
    declared = _declared_types(sources)
    types_of_values: dict[str, ColumnType] = {}
    for source, groups in zip(sources, ranges, strict=True):
        if source.kept:
            _join_types(types_of_values, _types(source, groups, declared))

    # 2. A type that the configuration declares comes before them.
    types: dict[str, ColumnType] = {}
    for field, type_of_field in types_of_values.items():
        types[field] = declared.get(field) or settled(type_of_field)

    # 3. The sources with these types.
    typed_sources: list[ResolvedSource] = []
    for source in sources:
        kept_fields = tuple((field, types[field]) for field, _ in source.kept)
        typed_sources.append(replace(source, kept=kept_fields))
    return tuple(typed_sources)


def _declared_types(sources: Sequence[ResolvedSource]) -> dict[str, ColumnType]:
    """Return the types that the configuration declares.

    Raises:
        ConfigError: Two sources declare different types.
    """
    declared: dict[str, tuple[str, ColumnType]] = {}
    for source in sources:
        for field, field_type in source.field_types:
            first_source, first_type = declared.setdefault(
                field, (source.name, field_type)
            )
            if first_type != field_type:
                raise ConfigError(
                    f"datasets.{source.name}.field_types: {field!r} is declared {arrow_type(field_type)}, and "
                    f"{arrow_type(first_type)} in datasets.{first_source}.field_types; a name stands for one column: "
                    "declare the same type, or rename the field in one of them (format_fields)",
                    source=source.name,
                    field=field,
                )
    return {field: declaration[1] for field, declaration in declared.items()}


def notes_on_kept(build: ResolvedBuild) -> list[str]:
    """Return a note on every kept field that becomes JSON text."""
    notes: list[str] = []
    for field, field_type in build.kept:
        if field_type == JSON:
            notes.append(
                f"the kept field {field!r} is stored as JSON text, because the first records have values of several "
                "types"
            )
    return notes


def _types(
    source: ResolvedSource,
    groups: Iterable[Iterable[FileRange]],
    declared: Mapping[str, ColumnType],
) -> dict[str, ColumnType]:
    """Return the types of the kept fields in the first records of a source.

    Args:
        source: Source with kept fields.
        groups: Ranges of the source, in groups.
        declared: Types that the configuration declares, by field.

    Raises:
        ConfigError: No record has a field, or columns of a file cannot become the type
            that is declared for them.
    """
    # 1. The types that schemas state, and the values of records without a schema.
    names = [field for field, _ in source.kept]
    types: dict[str, ColumnType] = {}
    seen_names: dict[str, None] = {}
    # The type is that of the values of all records together. So it does not depend on
    # where units and blocks begin.
    values: dict[str, list[Any]] = {field: [] for field in names}
    files = list(islice(by_file(groups), _FILES_LOOKED_AT))
    for rows in _first_rows(source, files):
        seen_names.update(dict.fromkeys(field_names(rows)))
        if rows.has_objects:
            for row in rows.objects:
                for field in names:
                    if field in row:
                        values[field].append(row[field])
        else:
            schema = rows.columns.schema
            stated: dict[str, ColumnType] = {}
            for field in names:
                if field in schema.names:
                    stated[field] = column_type(schema.field(field).type)
            _check_declared(source, stated, declared)
            _join_types(types, stated)

    # 2. The types of these values.
    value_types: dict[str, ColumnType] = {}
    for field, column in values.items():
        if column:
            value_types[field] = type_of(column)
    _join_types(types, value_types)

    # 3. Each field must be there.
    missing = [field for field in names if field not in types]
    if missing:
        shown_names = ", ".join(islice(seen_names, FIELDS_SHOWN)) or "no fields"
        raise ConfigError(
            f"datasets.{source.name}.additional_fields: none of the first records has a field {missing[0]!r}; they "
            f"have {shown_names}. Correct the name, or leave it out",
            source=source.name,
            field=missing[0],
        )
    return types


def _check_declared(
    source: ResolvedSource,
    types: Mapping[str, ColumnType],
    declared: Mapping[str, ColumnType],
) -> None:
    """Check that columns of some types can become the declared ones.

    Args:
        source: Source of the columns.
        types: Types of its columns, by field.
        declared: Types that the configuration declares for any source, by field.

    Raises:
        ConfigError: A column cannot.
    """
    own_declarations = dict(source.field_types)
    for field, field_type in types.items():
        if field not in declared:
            continue
        # A declaration of this source may narrow the type of its files. That of another
        # source must hold it.
        declared_type = declared[field]
        is_possible = joined(field_type, declared_type) == declared_type
        if field in own_declarations:
            is_possible = may_become(field_type, declared_type)
        if is_possible:
            continue
        type_of_files = str(arrow_type(field_type))
        if field_type == JSON:
            type_of_files = "JSON text"
        raise ConfigError(
            f"datasets.{source.name}.field_types: {field!r} is declared {arrow_type(declared_type)}, but the files "
            f"hold {type_of_files}, which cannot be converted; declare another type, or {JSON!r} to store each value "
            "as JSON text",
            source=source.name,
            field=field,
        )


def _join_types(types: dict[str, ColumnType], more: Mapping[str, ColumnType]) -> None:
    """Widen types so that they also hold further ones."""
    for field, field_type in more.items():
        types[field] = joined(types.get(field, NULL), field_type)


def _first_rows(
    source: ResolvedSource, files: Sequence[Sequence[FileRange]]
) -> Iterator[Rows]:
    """Yield the first records of some files, after the source's steps.

    They are the same ones however files are cut into ranges.

    Args:
        source: Source with kept fields.
        files: Ranges of each file.
    """
    # A plan without kept fields does not import all that builds units.
    from tokenlake.etl.unit.kept_fields import rows_of

    chain = open_chain(source.texts)
    source_of_all_records = replace(source, where=None, on_bad_record="quarantine")
    kept_columns = tuple(field for field, _ in source.kept)
    records_left = RECORDS_LOOKED_AT
    for ranges in files:
        file = ranges[0].file
        # A file with a schema states the types of its fields. One record is enough to
        # read them.
        has_schema = file.facts.schema or file.format == "text"
        states_types = not chain.steps and has_schema
        for file_range in ranges:
            columns = None
            limit = records_left
            if states_types:
                columns = kept_columns
                limit = 1
            if file_range.rows is not None:
                limit = min(limit, file_range.rows)
            limited_range = replace(file_range, rows=limit)
            for batch in read_rows(limited_range, source_of_all_records, columns):
                yield chain.on_rows(rows_of(batch.table)).rows
                records_left -= batch.rows_read
            if records_left <= 0:
                return
            if states_types:
                break


def type_of(values: list[Any]) -> ColumnType:
    """Return the type of a column of some values.

    The rules are those of :mod:`tokenlake.etl.sources.rows`.
    """
    try:
        type_of_values = column_type(column_of(values).type)
    except TypeError:
        # A function of a row may make values that JSON does not know.
        return JSON
    are_all_texts = all(type(value) is str for value in values if value is not None)
    if type_of_values == "large_string" and not are_all_texts:
        return JSON
    return type_of_values
