"""Rows that are wanted of several datasets, row group by row group.

n wanted rows, in any order, are given by three arrays: ``source`` (index of the
dataset), ``group`` (row group of that dataset) and ``row`` (row in that row group).
Their place in the result is their index in these arrays. Each row group is decoded once
for a call, and released unless the caller keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import pyarrow as pa

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.manifest import Kind

ReadGroup = Callable[[tuple[StoredRows, int]], pa.RecordBatch]
"""Function of a dataset and the number of a row group that returns the decoded row
group, all columns.
"""


@final
@dataclass(frozen=True, slots=True)
class WantedGroup:
    """Row group with the rows that are wanted of it.

    Attributes:
        source: Dataset of the row group.
        batch: Decoded row group, all columns.
        rows: Wanted rows of the row group, int64[m], in any order; a row may occur
            several times.
        places: Place of each wanted row in the result, int64[m].
    """

    source: StoredRows
    batch: pa.RecordBatch
    rows: Int64
    places: Int64


def wanted_groups(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    read: ReadGroup,
) -> Iterator[WantedGroup]:
    """Yield each row group that contains wanted rows once, in stored order.

    Args:
        sources: Datasets.
        source: Index of each row's dataset, int64[n].
        group: Row group of each row in its dataset, int64[n].
        row: Row in the row group, int64[n].
        read: Function that decodes a row group.

    Raises:
        ConfigError: A source or a row does not exist.
        IntegrityError: A row group is damaged.
    """
    if len(source) and not (source.min() >= 0 and source.max() < len(sources)):
        raise ConfigError(
            f"sources {source.min()} to {source.max()} are asked for; expected those of 0 to {len(sources) - 1}"
        )
    # Row groups are numbered over all sources.
    first_groups = offsets_of([len(rows.group_rows) for rows in sources])
    group_rows = np.concatenate(
        [np.zeros(0, np.int64), *(rows.group_rows for rows in sources)]
    )
    number = first_groups[source] + group

    # A row group must be one of its source, and a row one of its row group.
    is_outside = (group < 0) | (number >= first_groups[source + 1])
    is_inside = ~is_outside
    existing_rows = group_rows[number[is_inside]]
    is_outside[is_inside] = (row[is_inside] < 0) | (row[is_inside] >= existing_rows)
    if is_outside.any():
        first = int(np.argmax(is_outside))
        raise ConfigError(
            f"{sources[int(source[first])].name}: there is no row {row[first]} in row group {group[first]}"
        )

    # Rows sorted by row group; a row group's rows keep the order of the request.
    places = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[places], prepend=-1))
    for begin, end in pairwise([*begins.tolist(), len(places)]):
        group_places = places[begin:end]
        first = group_places[0]
        dataset = sources[int(source[first])]
        batch = read((dataset, int(group[first])))
        yield WantedGroup(dataset, batch, row[group_places], group_places)


def check_kind(sources: Sequence[StoredRows], kind: Kind) -> None:
    """Raise ConfigError unless all datasets are of a kind and have rows of one length.

    At least one dataset is needed.
    """
    kinds = {rows.manifest.kind for rows in sources}
    widths = {rows.manifest.width for rows in sources}
    if kinds != {kind}:
        raise ConfigError(
            f"expected datasets of kind {kind}, got {_listed(sources) or 'none'}"
        )
    if len(widths) > 1:
        raise ConfigError(
            f"sequences of different lengths cannot be mixed row by row: {_listed(sources)}. "
            "Pack all of them to one length, or mix their documents and pack the mixture"
        )


def _listed(sources: Sequence[StoredRows]) -> str:
    """Return names, kinds and row lengths of datasets for a message."""
    shown: list[str] = []
    for rows in sources:
        length = ""
        if rows.manifest.width:
            length = f", {rows.manifest.width} ids a row"
        line = f"{rows.name} ({rows.manifest.kind}{length})"
        if line not in shown:
            shown.append(line)
    return ", ".join(shown)
