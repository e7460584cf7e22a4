"""Of which type the columns of kept fields are: decided once, when a build is planned, for the whole dataset.

Files with a schema say it (the first ones of each source are asked), other records are looked at: the first ones of
each source, after the steps of the configuration. Where several types were found the column has the narrowest that
holds them all, and JSON text where none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from tokenlake.build.kept import rows_of
from tokenlake.columns import column_of
from tokenlake.columntypes import JSON, NULL, ColumnType, column_type, joined, settled
from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.rows import Rows
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.records import read_rows
from tokenlake.transforms.base import ChainedTransform
from tokenlake.transforms.configured import open_chain

_RECORDS: Final = 1000  # of a source that are looked at
_FILES: Final = 16  # in which they may lie
_SHOWN: Final = 12  # names in a message


def kept_sources(
    sources: Sequence[ResolvedSource], ranges: Sequence[Sequence[Sequence[FileRange]]]
) -> tuple[ResolvedSource, ...]:
    """Return the sources with the types of their kept fields; of one name there is one type in all of them.

    Args:
        ranges: of each file of each source.

    Raises:
        ConfigError: no record looked at has a field that is to be kept.
        SourceError: an input cannot be read.
    """
    types: dict[str, ColumnType] = {}
    for source, parts in zip(sources, ranges, strict=True):
        for name, kind in (_types(source, parts) if source.kept else {}).items():
            types[name] = joined(types.get(name, NULL), kind)
    types = {name: settled(kind) for name, kind in types.items()}
    return tuple(
        replace(source, kept=tuple((name, types[name]) for name, _ in source.kept)) for source in sources
    )


def notes_on_kept(build: ResolvedBuild) -> list[str]:
    """Return a note on every kept field that becomes JSON text."""
    return [
        f"the kept field {name!r} is stored as JSON text: the first records have no one type for it"
        for name, kind in build.kept
        if kind == JSON
    ]


def _types(source: ResolvedSource, parts: Sequence[Sequence[FileRange]]) -> dict[str, ColumnType]:
    """Return the types of the kept fields in the first records of a source."""
    types: dict[str, ColumnType] = {}
    seen: dict[str, None] = {}
    for rows in _first_rows(source, [whole[0] for whole in parts if whole][:_FILES]):
        for name, kind in _types_of(rows, [name for name, _ in source.kept], seen).items():
            types[name] = joined(types.get(name, NULL), kind)
    missing = [name for name, _ in source.kept if name not in types]
    if missing:
        there = ", ".join(islice(seen, _SHOWN)) or "no fields"
        raise ConfigError(
            f"datasets.{source.name}.additional_fields: none of the first records has a field {missing[0]!r}; "
            f"they have {there}. Correct the name, or leave it out",
            source=source.name,
            field=missing[0],
        )
    return types


def _first_rows(source: ResolvedSource, parts: Sequence[FileRange]) -> Iterator[Rows]:
    """Yield the first records of some files, after the source's steps."""
    chain = open_chain(source.texts)
    every = replace(source, where=None, on_bad_record="quarantine")
    left = _RECORDS
    for part in parts:
        count = 1 if _has_schema(part, chain) else left
        limited = replace(part, rows=count if part.rows is None else min(count, part.rows))
        columns = tuple(name for name, _ in source.kept) if _has_schema(part, chain) else None
        for batch in read_rows(limited, every, columns):
            yield chain.on_rows(rows_of(batch.table)).rows
            left -= batch.rows_read
        if left <= 0:
            return


def _has_schema(part: FileRange, chain: ChainedTransform) -> bool:
    """Whether the file itself says what its fields hold."""
    return not chain.steps and part.file.format not in ("jsonl", "json")


def _types_of(rows: Rows, names: Sequence[str], seen: dict[str, None]) -> dict[str, ColumnType]:
    """Return the types of the fields that are there; note in `seen` what others there are."""
    if not rows.has_objects:
        schema = rows.columns.schema
        seen.update(dict.fromkeys(schema.names))
        return {name: column_type(schema.field(name).type) for name in names if name in schema.names}
    found: dict[str, list[Any]] = {}
    for row in rows.objects:
        seen.update(dict.fromkeys(row))
        for name in names:
            if name in row:
                found.setdefault(name, []).append(row[name])
    return {name: type_of(values) for name, values in found.items()}


def type_of(values: list[Any]) -> ColumnType:
    """Return the type of some values by the rules of :mod:`tokenlake.columns`."""
    try:
        kind = column_type(column_of(values).type)
    except TypeError:  # a function of a row may make values that JSON does not know
        return JSON
    texts = {type(value) for value in values if value is not None} <= {str}
    return JSON if kind == "large_string" and not texts else kind
