"""How long the documents of a version are, and how full its rows: from some of its row groups, however large it is.

Of packed rows only the columns that say where ids come from are read, less than a hundredth of a file. Row groups are
taken at even distances, always the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, final

import numpy as np

from tokenlake.arrays import values
from tokenlake.loader.provenance import Provenance
from tokenlake.preference_columns import id_weights
from tokenlake.query.sequences import Place
from tokenlake.ragged import Int64, offsets_of
from tokenlake.reading.version import StoredRows
from tokenlake.store.base import ReadStore
from tokenlake.store.manifest import Manifest

MOST_GROUPS: Final = 64
"""Row groups that are read."""

_NAMED: Final = 5  # of the longest documents, and of the shortest ones


class DocumentLength(NamedTuple):
    """A document by its place, and how many ids of it there are."""

    source: str
    path: str
    position: int
    ids: int


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowSample:
    """What some row groups hold.

    Attributes:
        groups, of: how many were read, and how many there are.
        rows: of these row groups.
        filled: ids of each row that are no padding, int64[rows].
        segments: pieces of documents in each row, int64[rows].
        lengths: source -> ids of each of its documents, as far as they were seen, int64[n].
        longest, shortest: documents by their lengths.
    """

    groups: int
    of: int
    rows: int
    filled: Int64
    segments: Int64
    lengths: Mapping[str, Int64]
    longest: tuple[DocumentLength, ...]
    shortest: tuple[DocumentLength, ...]

    @property
    def whole(self) -> bool:
        """Whether it is all there is."""
        return self.groups == self.of


def spread(number: int, most: int) -> list[int]:
    """Return at most so many of the numbers 0 to ``number - 1``, at even distances.

    >>> spread(3, 5), spread(100, 3)
    ([0, 1, 2], [0, 50, 99])
    """
    return np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)).tolist()


def sample_rows(
    store: ReadStore, manifest: Manifest, names: Mapping[Place, str], *, most_groups: int = MOST_GROUPS
) -> RowSample:
    """Read some row groups of every split.

    Args:
        names: what a mixture calls the sources of input files.
        most_groups: at least one of each split is read all the same.

    Raises:
        IntegrityError: a file is missing or damaged.
    """
    read, of, found = 0, 0, list[Provenance]()
    for split in manifest.splits:
        with StoredRows(store, manifest, split) as rows:
            of += len(rows.group_rows)
            for group in spread(len(rows.group_rows), max(1, most_groups // len(manifest.splits))):
                found.append(_pieces(rows, group))
                read += 1
    pieces = Provenance(
        offsets_of(np.concatenate([_NONE, *(np.diff(each.offsets) for each in found)])),
        *(np.concatenate([_NONE, *(getattr(each, name) for each in found)]) for name in _FIELDS),
    )
    documents = _Documents.of(pieces, manifest, names)
    return RowSample(
        groups=read,
        of=of,
        rows=len(pieces.offsets) - 1,
        filled=np.diff(offsets_of(pieces.length)[pieces.offsets]),
        segments=np.diff(pieces.offsets),
        lengths=documents.by_source(),
        longest=documents.named(np.argsort(-documents.ids, kind="stable")[:_NAMED]),
        shortest=documents.named(np.argsort(documents.ids, kind="stable")[:_NAMED]),
    )


_NONE: Final = np.zeros(0, np.int64)
_FIELDS: Final = ("length", "file", "position", "start")


@final
@dataclass(frozen=True, eq=False, slots=True)
class _Documents:
    """Documents of a sample, in the order of their places.

    Attributes:
        file, position, ids: of each, int64[n]. Of one that goes on beyond the sample, the ids up to where it was seen.
        places: file -> source and path, the source as the mixture calls it.
    """

    file: Int64
    position: Int64
    ids: Int64
    places: Mapping[int, Place]

    @classmethod
    def of(cls, pieces: Provenance, manifest: Manifest, names: Mapping[Place, str]) -> Self:
        order = np.lexsort((pieces.position, pieces.file))
        file, position = pieces.file[order], pieces.position[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(file) != 0) | (np.diff(position) != 0)
        begin = np.flatnonzero(new)
        # A mixture may hold a document more than once: it is as long as where its last piece ends.
        ends = (pieces.start + pieces.length)[order]
        ids = np.maximum.reduceat(ends, begin) if len(begin) else _NONE
        there = set(np.unique(file).tolist())
        places = {
            entry.file_id: (names.get((entry.source, entry.path), entry.source), entry.path)
            for entry in manifest.inputs
            if entry.file_id in there
        }
        return cls(file[begin], position[begin], ids, places)

    def by_source(self) -> dict[str, Int64]:
        """Return the lengths of the documents of each source."""
        files: dict[str, list[int]] = {}
        for file, (source, _) in self.places.items():
            files.setdefault(source, []).append(file)
        return {source: self.ids[np.isin(self.file, files[source])] for source in sorted(files)}

    def named(self, which: Int64) -> tuple[DocumentLength, ...]:
        """Return some of the documents by their places."""
        return tuple(
            DocumentLength(*self.places[int(self.file[i])], int(self.position[i]), int(self.ids[i]))
            for i in which.tolist()
        )


def _pieces(rows: StoredRows, group: int) -> Provenance:
    """Read the pieces of a row group; a row that is one document is one piece."""
    manifest = rows.manifest
    if manifest.kind == "packed":
        return Provenance.of(rows.read(group, ["segment_lengths", "documents"]))
    weights = {"input_ids": 1} if manifest.preference is None else id_weights(*manifest.preference)
    masked = bool(manifest.config.get("build", {}).get("attention_mask"))
    columns = ["attention_mask"] if masked else list(weights)
    batch: Any = rows.read(group, ["file", "position", *columns])
    if masked:
        lists = batch.column("attention_mask")
        offsets = values(lists.offsets)
        length = np.diff(offsets_of(values(lists.values))[offsets])
    else:
        length = sum(weights[name] * values(batch.column(name).value_lengths()) for name in columns)
    number = batch.num_rows
    places = (values(batch.column(name)).astype(np.int64) for name in ("file", "position"))
    return Provenance(
        np.arange(number + 1), np.asarray(length, np.int64), *places, start=np.zeros(number, np.int64)
    )
