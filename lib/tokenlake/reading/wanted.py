"""Which rows of which row groups are wanted, and where each of them goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import ConfigError
from tokenlake.manifest.manifest import Kind
from tokenlake.ragged import offsets_of
from tokenlake.reading.cache import GroupCache
from tokenlake.reading.version import StoredRows

Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of one row group.

    Attributes:
        source: whose it is.
        batch: the row group, all columns.
        rows: of it, int64[m]; any order, one may come several times.
        places: where each goes in the result, int64[m].
    """

    source: StoredRows
    batch: pa.RecordBatch
    rows: Int64
    places: Int64


def wanted_parts(
    sources: Sequence[StoredRows], source: Int64, group: Int64, row: Int64, cache: GroupCache[pa.RecordBatch]
) -> Iterator[Part]:
    """Yield each row group that n wanted rows lie in, once, in the order they are stored.

    Args:
        source: index of a source, int64[n].
        group, row: the row group in that source and the row in it, int64[n] both.

    Raises:
        ConfigError: there is no such source or row.
        IntegrityError: a row group is damaged.
    """
    _check_sources(sources, source)
    first_groups = offsets_of([len(rows.group_rows) for rows in sources])
    group_rows = np.concatenate([np.zeros(0, np.int64), *(rows.group_rows for rows in sources)])
    number = first_groups[source] + group
    outside = (group < 0) | (number >= first_groups[source + 1])
    outside[~outside] = (row[~outside] < 0) | (row[~outside] >= group_rows[number[~outside]])
    if outside.any():
        bad = int(np.argmax(outside))
        raise ConfigError(
            f"{sources[int(source[bad])].name}: there is no row {row[bad]} in row group {group[bad]}"
        )
    places = np.argsort(number, kind="stable")
    ascending = number[places]
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))
    for begin, end in pairwise([*begins.tolist(), len(places)]):
        there = places[begin:end]
        rows = sources[int(source[there[0]])]
        yield Part(rows, cache.read(rows, int(group[there[0]])), row[there], there)


def check_kind(sources: Sequence[StoredRows], kind: Kind) -> None:
    """Raise ConfigError unless there are sources, all of a kind, and of one length where they are packed."""
    found = {rows.name: (rows.manifest.kind, rows.manifest.seq_length) for rows in sources}
    if not found or any(each != kind for each, _ in found.values()):
        raise ConfigError(f"expected datasets of kind {kind}, got {_listed(found) or 'none'}")
    if len({length for _, length in found.values()}) > 1:
        raise ConfigError(
            f"sequences of different lengths cannot be mixed row by row: {_listed(found)}. "
            "Pack all of them to one length, or mix their documents and pack the mixture"
        )


def _listed(found: dict[str, tuple[str, int | None]]) -> str:
    return ", ".join(
        f"{name} ({kind}{'' if length is None else f', {length} ids a row'})"
        for name, (kind, length) in found.items()
    )


def _check_sources(sources: Sequence[StoredRows], source: Int64) -> None:
    if len(source) and not (source.min() >= 0 and source.max() < len(sources)):
        raise ConfigError(
            f"sources {source.min()} to {source.max()} are asked for; expected those of 0 to {len(sources) - 1}"
        )
