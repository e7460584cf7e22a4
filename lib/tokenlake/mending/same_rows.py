"""Whether a unit that was built again holds the rows it held, where its bytes are others.

Another release of a writer may cut the rows of a unit into other files. So the rows are read in order and hashed anew
in the pieces that the manifest knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.manifest import ShardEntry
from tokenlake.schema import LogicalHasher
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout


def other_rows(
    store: ReadStore, layout: Layout, wanted: Sequence[ShardEntry], built: Sequence[ShardEntry]
) -> list[str]:
    """Return a clause for each file of a unit whose rows came out otherwise; none if all rows are the same.

    Args:
        store: where `built` lies.
        wanted: the parts of the unit, as the manifest has them.
    """
    found: list[str] = []
    for split in dict.fromkeys(part.split for part in [*wanted, *built]):
        ours = sorted((part for part in built if part.split == split), key=lambda part: part.part)
        theirs = sorted((part for part in wanted if part.split == split), key=lambda part: part.part)
        got, expected = sum(part.rows for part in ours), sum(part.rows for part in theirs)
        if got != expected:
            found.append(f"split {split} came out with {got} rows; expected {expected}")
            continue
        pieces = _hashed(_tables(store, layout, ours), [part.rows for part in theirs])
        for part, logical in zip(theirs, pieces, strict=True):
            found += _differences(part, logical)
    return found


def _differences(part: ShardEntry, logical: dict[str, str]) -> list[str]:
    if not part.rows:
        return []
    return [
        f"the rows of {part.path} came out with the logical hash {logical.get(name)} of {name}; expected {expected}"
        for name, expected in sorted(part.logical.items())
        if logical.get(name) != expected
    ]


def _tables(store: ReadStore, layout: Layout, parts: Sequence[ShardEntry]) -> Iterator[pa.Table]:
    for part in parts:
        with store.open(layout.key(part.path)) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for index in range(file.metadata.num_row_groups):
                yield file.read_row_group(index, use_threads=False)


def _hashed(tables: Iterator[pa.Table], sizes: Sequence[int]) -> Iterator[dict[str, str]]:
    """Yield the logical hash of each piece of so many rows."""
    rest: pa.Table | None = None
    for size in sizes:
        hasher, left = LogicalHasher(), size
        while left:
            table = rest if rest is not None and rest.num_rows else next(tables)
            taken = table.slice(0, left)
            hasher.update(taken.combine_chunks())
            rest = table.slice(taken.num_rows)
            left -= taken.num_rows
        yield hasher.digest()
