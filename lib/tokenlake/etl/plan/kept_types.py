"""The types of kept fields, decided once for the whole dataset.

Files with a schema have them. Of other files the first records are looked at, after the steps of the configuration.
Where several types were found, the column has the narrowest type that holds them all, and JSON text where none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from tokenlake.base.columns import JSON, NULL, ColumnType
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.source import FIELDS_SHOWN, RECORDS_LOOKED_AT, field_names
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.records import read_rows
from tokenlake.etl.sources.rows import Rows, column_of
from tokenlake.etl.sources.splits import by_file
from tokenlake.etl.text.steps import open_chain
from tokenlake.runtime.column_types import arrow_type, column_type, joined, may_become, settled

_KEPT_FILES: Final = 16  # in which records with kept fields may lie


def kept_sources(
    sources: Sequence[ResolvedSource], ranges: Sequence[Iterable[Iterable[FileRange]]]
) -> tuple[ResolvedSource, ...]:
    """Return the sources with the types of their kept fields; of one name there is one type in all of them.

    Args:
        ranges: of each source, in groups.

    Raises:
        ConfigError: no record looked at has a field that is to be kept.
        SourceError: an input cannot be read.
    """
    declared = _declared_types(sources)
    types: dict[str, ColumnType] = {}
    for source, groups in zip(sources, ranges, strict=True):
        if source.kept:
            _join_types(types, _types(source, groups, declared))
    types = {name: declared.get(name) or settled(kind) for name, kind in types.items()}
    return tuple(
        replace(source, kept=tuple((name, types[name]) for name, _ in source.kept)) for source in sources
    )


def _declared_types(sources: Sequence[ResolvedSource]) -> dict[str, ColumnType]:
    """Return the types that the configuration declares; ConfigError where two sources declare different ones."""
    declared: dict[str, tuple[str, ColumnType]] = {}
    for source in sources:
        for name, kind in source.field_types:
            other, first = declared.setdefault(name, (source.name, kind))
            if first != kind:
                raise ConfigError(
                    f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(kind)}, and "
                    f"{arrow_type(first)} in datasets.{other}.field_types; of one name there is one column: declare "
                    "the same type, or rename the field in one of them (format_fields)",
                    source=source.name,
                    field=name,
                )
    return {name: kind for name, (_, kind) in declared.items()}


def notes_on_kept(build: ResolvedBuild) -> list[str]:
    """Return a note on every kept field that becomes JSON text."""
    return [
        f"the kept field {name!r} is stored as JSON text: the first records have no one type for it"
        for name, kind in build.kept
        if kind == JSON
    ]


def _types(
    source: ResolvedSource, groups: Iterable[Iterable[FileRange]], declared: Mapping[str, ColumnType]
) -> dict[str, ColumnType]:
    """Return the types of the kept fields in the first records of a source.

    Raises:
        ConfigError: no record has a field, or columns of a file cannot become the type that is declared for them.
    """
    names = [name for name, _ in source.kept]
    types: dict[str, ColumnType] = {}
    seen: dict[str, None] = {}
    # The values of all records together have a type that does not depend on where units and blocks begin.
    values: dict[str, list[Any]] = {}
    for rows in _first_rows(source, list(islice(by_file(groups), _KEPT_FILES))):
        seen.update(dict.fromkeys(field_names(rows)))
        if rows.has_objects:
            for name in names:
                values.setdefault(name, []).extend(row[name] for row in rows.objects if name in row)
            continue
        schema = rows.columns.schema
        stated = {name: column_type(schema.field(name).type) for name in names if name in schema.names}
        _check_declared(source, stated, declared)
        _join_types(types, stated)
    _join_types(types, {name: type_of(some) for name, some in values.items() if some})
    missing = [name for name, _ in source.kept if name not in types]
    if missing:
        there = ", ".join(islice(seen, FIELDS_SHOWN)) or "no fields"
        raise ConfigError(
            f"datasets.{source.name}.additional_fields: none of the first records has a field {missing[0]!r}; "
            f"they have {there}. Correct the name, or leave it out",
            source=source.name,
            field=missing[0],
        )
    return types


def _check_declared(
    source: ResolvedSource, types: Mapping[str, ColumnType], declared: Mapping[str, ColumnType]
) -> None:
    """Raise ConfigError where columns of these types cannot become those that are declared."""
    own = dict(source.field_types)
    for name, kind in types.items():
        if name not in declared:
            continue
        wanted = declared[name]
        if may_become(kind, wanted) if name in own else joined(kind, wanted) == wanted:
            continue
        held = "JSON text" if kind == JSON else str(arrow_type(kind))
        raise ConfigError(
            f"datasets.{source.name}.field_types: {name!r} is declared {arrow_type(wanted)}, but the files hold "
            f"{held}, which cannot become that; declare another type, or {JSON!r} to store each value as JSON text",
            source=source.name,
            field=name,
        )


def _join_types(types: dict[str, ColumnType], more: Mapping[str, ColumnType]) -> None:
    types.update({name: joined(types.get(name, NULL), kind) for name, kind in more.items()})


def _first_rows(source: ResolvedSource, files: Sequence[Sequence[FileRange]]) -> Iterator[Rows]:
    """Yield the first records of some files, after the source's steps; the same ones however files are cut.

    Args:
        files: the ranges of each file.
    """
    from tokenlake.etl.unit.kept_fields import rows_of

    chain = open_chain(source.texts)
    every = replace(source, where=None, on_bad_record="quarantine")
    left = RECORDS_LOOKED_AT
    for ranges in files:
        file = ranges[0].file
        # Whether the file itself says what its fields hold.
        stated = not chain.steps and (file.facts.schema or file.format == "text")
        columns = tuple(name for name, _ in source.kept) if stated else None
        for part in ranges[:1] if stated else ranges:
            count = 1 if stated else left
            limited = replace(part, rows=count if part.rows is None else min(count, part.rows))
            for batch in read_rows(limited, every, columns):
                yield chain.on_rows(rows_of(batch.table)).rows
                left -= batch.rows_read
            if left <= 0:
                return


def type_of(values: list[Any]) -> ColumnType:
    """Return the type of some values by the rules of :mod:`tokenlake.etl.sources.rows`."""
    try:
        kind = column_type(column_of(values).type)
    except TypeError:  # a function of a row may make values that JSON does not know
        return JSON
    texts = {type(value) for value in values if value is not None} <= {str}
    return JSON if kind == "large_string" and not texts else kind
