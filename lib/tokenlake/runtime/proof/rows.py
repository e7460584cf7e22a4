"""The contents of stored rows: takedown lists are looked for in the columns that say where ids come from.

These columns are read once; they are less than a hundredth of the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.loader.dataset import Dataset
from tokenlake.runtime.loader.explain import Provenance
from tokenlake.runtime.mixing.random import UInt64, splitmix64
from tokenlake.runtime.store.ledger import InputFileEntry

_PIECES: Final = ["segment_lengths", "documents"]
_PLACE: Final = ["file", "position"]


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowContents:
    """Of the rows of a dataset.

    Attributes:
        sums: source -> ids of it in the rows before each row, and in all, int64[rows + 1].
        marked: rows with a piece of the documents asked for, ascending, int64[m].
        stored: which of these documents have a piece in any row.
    """

    sums: Mapping[str, Int64]
    marked: Int64
    stored: frozenset[tuple[int, ...]]

    @classmethod
    def of(cls, dataset: Dataset, takedown: Takedown | None) -> RowContents:
        """Read a dataset; IntegrityError where a file is damaged."""
        entries = sorted(dataset.manifest.inputs, key=lambda entry: entry.file_id)
        files = np.array([entry.file_id for entry in entries], np.int64)
        names = sorted({entry.source for entry in entries})
        source_of = np.array([names.index(entry.source) for entry in entries], np.int64)
        ids = np.zeros((len(names), len(dataset)), np.int64)
        wanted = _WantedDocuments(np.zeros((0, 2), np.int64) if takedown is None else takedown.among(entries))
        marked = list[Int64]()
        lengths = None
        if dataset.kind != "packed":  # ids of each row, of all its columns of ids
            ragged = dataset.rows.ragged
            each = (ragged.lengths(name).astype(np.int64) for name in ragged.columns)
            lengths = sum(each, np.zeros(len(dataset), np.int64))
        for group in range(len(dataset.rows.group_rows)):
            first = dataset.rows.row_of(group)
            if lengths is None:
                pieces = Provenance.of(dataset.rows.read(group, _PIECES))
            else:
                some = lengths[first : first + int(dataset.rows.group_rows[group])]
                pieces = Provenance.of_documents(dataset.rows.read(group, _PLACE), some)
            row = first + np.repeat(np.arange(len(pieces.offsets) - 1), np.diff(pieces.offsets))
            file = np.minimum(np.searchsorted(files, pieces.file), len(files) - 1)
            if (files[file] != pieces.file).any():
                raise IntegrityError(f"{dataset.name}: row group {group} is of a file that no input is")
            np.add.at(ids, (source_of[file], row), pieces.length)
            marked.append(row[wanted.held(pieces.file, pieces.position)])
        sums = {name: offsets_of(each) for name, each in zip(names, ids, strict=True)}
        return cls(sums, np.unique(np.concatenate([np.zeros(0, np.int64), *marked])), frozenset(wanted.found))


@final
@dataclass(frozen=True, slots=True)
class Takedown:
    """A list of documents: a Parquet file with the columns `file` and `position`.

    Attributes:
        sha256: of the file.
        documents: (identity of an input file or its path, position) of each, every one once.
    """

    sha256: str
    documents: frozenset[tuple[int | str, int]]

    @classmethod
    def read(cls, path: Path) -> Takedown:
        """Read a list; ConfigError where it is none."""
        try:
            data = path.read_bytes()
            table = pq.read_table(pa.BufferReader(data), columns=_PLACE)
            if not pa.types.is_integer(table["position"].type):
                raise ValueError(f"position is of type {table['position'].type}")
            rows: Any = zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True)
            found = frozenset((_file(file), int(position)) for file, position in rows)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"takedown {path}: {error}; expected a Parquet file with the columns `file` (the identity that "
                "`documents` has, or the path of an input) and `position` (a whole number)"
            ) from error
        if not found:
            raise ConfigError(f"takedown {path} lists no documents")
        return cls(hashlib.sha256(data).hexdigest(), found)

    def among(self, entries: Iterable[InputFileEntry]) -> Int64:
        """Return the documents of these input files, int64[n, 2]; a path is that of an input, or how its path ends."""
        found = list[tuple[int, int]]()
        names: dict[int | str, list[int]] = {}
        for entry in entries:
            parts = entry.path.split("/")
            for name in (entry.file_id, *("/".join(parts[index:]) for index in range(len(parts)))):
                names.setdefault(name, []).append(entry.file_id)
        for file, position in self.documents:
            found += [(each, position) for each in dict.fromkeys(names.get(file, ()))]
        return np.array(sorted(set(found)), np.int64).reshape(-1, 2)


@final
class _WantedDocuments:
    """Documents that are looked for, int64[n, 2], and which of them were found."""

    def __init__(self, wanted: Int64) -> None:
        self._keys = np.sort(_keys(wanted[:, 0], wanted[:, 1]))
        self._wanted = set(map(tuple, wanted.tolist()))
        self.found = set[tuple[int, ...]]()

    def held(self, file: Int64, position: Int64) -> Int64:
        """Return which pieces are of the documents, int64[m]."""
        if not len(self._keys):
            return np.zeros(0, np.int64)
        keys = _keys(file, position)
        maybe = np.flatnonzero(
            self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)] == keys
        )
        pairs = list(zip(file[maybe].tolist(), position[maybe].tolist(), strict=True))
        self.found |= self._wanted.intersection(pairs)
        return maybe[[pair in self._wanted for pair in pairs]]


def _keys(file: Int64, position: Int64) -> UInt64:
    return splitmix64(file.astype(np.uint64)) ^ position.astype(np.uint64)


def _file(value: Any) -> int | str:
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        return value.removeprefix("file://").removeprefix("./")
    number = int(value)
    return number - (1 << 64) if number >= 1 << 63 else number
