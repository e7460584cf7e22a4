"""One shard against its manifest entry: footer, and with ``deep`` every page, row and value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.manifest import ShardEntry
from tokenlake.reading.shardfile import ShardFile
from tokenlake.verify.report import Problem
from tokenlake.verify.rows import Expected, Int64s, RowCheck

# What Arrow raises for damaged Parquet: its own errors, OSError for pages, ValueError for metadata.
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)


@final
@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard gave: rows and tokens decoded, and what is wrong."""

    rows: int
    tokens: int
    problems: tuple[Problem, ...]


def check_shard(
    stream: BinaryIO, entry: ShardEntry, expected: Expected, file_ids: Int64s, *, deep: bool
) -> ShardResult:
    """Check a shard whose bytes are those of the manifest.

    Args:
        stream: the file, seekable.
        entry: what the manifest says of it.
        expected: what the manifest says of all rows.
        file_ids: ascending ids of the manifest's input table.
        deep: decode all pages (checksums verified), count, and compare the logical hash.
    """
    try:
        file = ShardFile(stream)
        wrong = _footer(file, entry, expected)
    except _DAMAGE as error:
        return ShardResult(0, 0, (Problem(entry.path, "footer", "a readable Parquet footer", str(error)),))
    if wrong or not deep:
        return ShardResult(0, 0, tuple(wrong))
    return _decode(file, entry, RowCheck(expected, file_ids))


def _footer(file: pq.ParquetFile, entry: ShardEntry, expected: Expected) -> list[Problem]:
    metadata: pq.FileMetaData = file.metadata
    schema: Any = file.schema_arrow
    wanted: Any = expected.schema
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    found = [
        _differs(entry, "rows", entry.rows, metadata.num_rows),
        _differs(entry, "row groups", list(entry.row_groups), list(accumulate(sizes, initial=0))[:-1]),
        _differs(entry, "row groups", metadata.num_rows, sum(sizes)),
        _differs(entry, "columns", sorted(entry.logical), sorted(schema.names)),
    ]
    for name in wanted.names:
        got = schema.field(name).type if name in schema.names else None
        found.append(_differs(entry, f"type of {name}", wanted.field(name).type, got))
    return [problem for problem in found if problem is not None]


def _decode(file: Any, entry: ShardEntry, check: RowCheck) -> ShardResult:
    damaged: list[Problem] = []
    for index in range(file.metadata.num_row_groups):
        try:
            table = file.read_row_group(index, use_threads=False)
            table.validate(full=True)
            check.add(table)
        except _DAMAGE as error:
            damaged.append(Problem(entry.path, "decode", f"row group {index} decodes", str(error)))
    if damaged:  # counts and hashes of the rest would only repeat it
        return ShardResult(check.rows, check.tokens, tuple(damaged))
    found = [
        _differs(entry, "rows", entry.rows, check.rows),
        _differs(entry, "tokens", entry.tokens, check.tokens),
        _differs(entry, "documents", entry.documents, check.documents),
    ]
    digest = check.hasher.digest()
    for name, want in sorted(entry.logical.items()) if check.rows else ():
        found.append(_differs(entry, f"logical hash of {name}", want, digest.get(name)))
    faults = [Problem(entry.path, *fault) for fault in check.faults.values()]
    return ShardResult(check.rows, check.tokens, tuple(faults + [problem for problem in found if problem]))


def _differs(entry: ShardEntry, problem: str, expected: Any, got: Any) -> Problem | None:
    return None if expected == got else Problem(entry.path, problem, _short(expected), _short(got))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
