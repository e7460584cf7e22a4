"""The types of kept fields, decided once for the whole dataset.

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
    """Return the sources with the types of their kept fields; fields of one name have
    one type in all sources.

    Args:
        sources: Sources of the build.
        ranges: Ranges of each source, in groups.

    Raises:
        ConfigError: None of the first records has a field that is to be kept.
        SourceError: An input cannot be read.
    """
    declared = _declared_types(sources)
    types_of_values: dict[str, ColumnType] = {}
    for source, groups in zip(sources, ranges, strict=True):
        if source.kept:
            _join_types(types_of_values, _types(source, groups, declared))
    types = {
        name: declared.get(name) or settled(kind)
        for name, kind in types_of_values.items()
    }

    def with_types(source: ResolvedSource) -> ResolvedSource:
        return replace(
            source, kept=tuple((name, types[name]) for name, _ in source.kept)
        )

    return tuple(map(with_types, sources))


def _declared_types(sources: Sequence[ResolvedSource]) -> dict[str, ColumnType]:
    """Return the types that the configuration declares; ConfigError where two
    sources declare different ones.
    """
    declared: dict[str, tuple[str, ColumnType]] = {}
    for source in sources:
        for name, kind in source.field_types:
            first_source, first_kind = declared.setdefault(name, (source.name, kind))
            if first_kind != kind:
                raise ConfigError(
                    f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(kind)}, and "
                    f"{arrow_type(first_kind)} in datasets.{first_source}.field_types; a name stands for one column: "
                    "declare the same type, or rename the field in one of them (format_fields)",
                    source=source.name,
                    field=name,
                )
    return {name: kind for name, (_, kind) in declared.items()}


def notes_on_kept(build: ResolvedBuild) -> list[str]:
    """Return a note on every kept field that becomes JSON text."""
    return [
        f"the kept field {name!r} is stored as JSON text, because the first records have values of several types"
        for name, kind in build.kept
        if kind == JSON
    ]


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
    names = [name for name, _ in source.kept]
    types: dict[str, ColumnType] = {}
    seen_names: dict[str, None] = {}
    # The type is that of the values of all records together. So it does not depend on
    # where units and blocks begin.
    values: dict[str, list[Any]] = {name: [] for name in names}
    files = list(islice(by_file(groups), _FILES_LOOKED_AT))
    for rows in _first_rows(source, files):
        seen_names.update(dict.fromkeys(field_names(rows)))
        if rows.has_objects:
            for name in names:
                values[name].extend(row[name] for row in rows.objects if name in row)
        else:
            schema = rows.columns.schema
            stated = {
                name: column_type(schema.field(name).type)
                for name in names
                if name in schema.names
            }
            _check_declared(source, stated, declared)
            _join_types(types, stated)
    _join_types(
        types, {name: type_of(column) for name, column in values.items() if column}
    )

    missing = [name for name in names if name not in types]
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
    """Raise ConfigError where columns of these types cannot become the declared ones.

    Args:
        source: Source of the columns.
        types: Types of its columns, by field.
        declared: Types that the configuration declares for any source, by field.
    """
    fields_declared_here = dict(source.field_types)
    for name, kind in types.items():
        if name not in declared:
            continue
        wanted = declared[name]
        is_possible = joined(kind, wanted) == wanted
        if name in fields_declared_here:
            is_possible = may_become(kind, wanted)
        if is_possible:
            continue
        type_of_files = str(arrow_type(kind))
        if kind == JSON:
            type_of_files = "JSON text"
        raise ConfigError(
            f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(wanted)}, but the files hold "
            f"{type_of_files}, which cannot be converted; declare another type, or {JSON!r} to store each value as "
            "JSON text",
            source=source.name,
            field=name,
        )


def _join_types(types: dict[str, ColumnType], more: Mapping[str, ColumnType]) -> None:
    """Widen types so that they hold further ones too."""
    for name, kind in more.items():
        types[name] = joined(types.get(name, NULL), kind)


def _first_rows(
    source: ResolvedSource, files: Sequence[Sequence[FileRange]]
) -> Iterator[Rows]:
    """Yield the first records of some files, after the source's steps; the same ones
    however files are cut.

    Args:
        source: Source with kept fields.
        files: Ranges of each file.
    """
    # A plan without kept fields does not import all that builds units.
    from tokenlake.etl.unit.kept_fields import rows_of

    chain = open_chain(source.texts)
    source_of_all_records = replace(source, where=None, on_bad_record="quarantine")
    kept_columns = tuple(name for name, _ in source.kept)
    records_left = RECORDS_LOOKED_AT
    for ranges in files:
        file = ranges[0].file
        # A file with a schema states the types of its fields. One record is enough to
        # read them.
        states_types = not chain.steps and (file.facts.schema or file.format == "text")
        for part in ranges:
            columns = None
            limit = records_left
            if states_types:
                columns = kept_columns
                limit = 1
            if part.rows is not None:
                limit = min(limit, part.rows)
            for batch in read_rows(
                replace(part, rows=limit), source_of_all_records, columns
            ):
                yield chain.on_rows(rows_of(batch.table)).rows
                records_left -= batch.rows_read
            if records_left <= 0:
                return
            if states_types:
                break


def type_of(values: list[Any]) -> ColumnType:
    """Return the type of a column of these values, by the rules of
    :mod:`tokenlake.etl.sources.rows`.
    """
    try:
        kind = column_type(column_of(values).type)
    except TypeError:
        # A function of a row may make values that JSON does not know.
        return JSON
    are_all_texts = all(type(value) is str for value in values if value is not None)
    if kind == "large_string" and not are_all_texts:
        return JSON
    return kind
