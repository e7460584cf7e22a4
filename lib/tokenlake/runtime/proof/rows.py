"""Contents of stored rows: their ids by source, and listed documents among them.

The documents are those of a takedown list.

Both come from the columns that record the origin of ids. These columns are read once;
they are less than a hundredth of the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
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

# Columns that record the origin of ids: of packed rows, and of rows that are documents.
_PIECES: Final = ["segment_lengths", "documents"]
_PLACE: Final = ["file", "position"]


@final
@dataclass(frozen=True, eq=False, slots=True)
class RowContents:
    """Contents of the rows of a dataset.

    Attributes:
        sums: For each source its ids in the rows before each row, and in all rows,
            int64[rows + 1].
        marked: Rows with a piece of a listed document, ascending, int64[m].
        stored: Listed documents that have a piece in any row, as (identity of the input
            file, position).
    """

    sums: Mapping[str, Int64]
    marked: Int64
    stored: frozenset[tuple[int, ...]]

    @classmethod
    def of(cls, dataset: Dataset, takedown: Takedown | None) -> RowContents:
        """Read the origin of the rows of a dataset.

        Args:
            dataset: Split of a version.
            takedown: Documents to look for; None: none.

        Raises:
            IntegrityError: A file is damaged, or names an input that the manifest does
                not list.
        """
        # Input files in the order of their identities, and the number of the source of
        # each, so that pieces can be looked up in arrays.
        entries = sorted(dataset.manifest.inputs, key=lambda entry: entry.file_id)
        file_ids = np.array([entry.file_id for entry in entries], np.int64)
        source_names = sorted({entry.source for entry in entries})
        source_of_file = np.array(
            [source_names.index(entry.source) for entry in entries], np.int64
        )
        documents = np.zeros((0, 2), np.int64)
        if takedown is not None:
            documents = takedown.among(entries)
        wanted_documents = _WantedDocuments(documents)

        # Ids of each source in each row, int64[sources, rows], and the rows with a
        # listed document.
        row_ids = np.zeros((len(source_names), len(dataset)), np.int64)
        marked_rows = [np.zeros(0, np.int64)]
        for row_group, pieces in enumerate(_pieces_by_group(dataset)):
            first_row = dataset.rows.row_of(row_group)
            row = first_row + np.repeat(
                np.arange(len(pieces.offsets) - 1), np.diff(pieces.offsets)
            )
            # A piece of an unknown file would be counted for a neighbour of it.
            file_index = np.searchsorted(file_ids, pieces.file)
            file_index = np.minimum(file_index, len(file_ids) - 1)
            if (file_ids[file_index] != pieces.file).any():
                raise IntegrityError(
                    f"{dataset.name}: row group {row_group} has ids of a file that is not an input of the manifest; "
                    "verify the version in its store"
                )
            np.add.at(row_ids, (source_of_file[file_index], row), pieces.length)
            marked_pieces = wanted_documents.find(pieces.file, pieces.position)
            marked_rows.append(row[marked_pieces])

        sums: dict[str, Int64] = {}
        for source_name, ids in zip(source_names, row_ids, strict=True):
            sums[source_name] = offsets_of(ids)
        return cls(
            sums,
            np.unique(np.concatenate(marked_rows)),
            frozenset(wanted_documents.found),
        )


def _pieces_by_group(dataset: Dataset) -> Iterator[Provenance]:
    """Yield the pieces of documents in the rows of each row group."""
    if dataset.kind == "packed":
        for row_group in range(len(dataset.rows.group_rows)):
            yield Provenance.of(dataset.rows.read(row_group, _PIECES))
        return
    # A row is one document. Its length is that of all its columns of ids together.
    lengths = np.zeros(len(dataset), np.int64)
    for column_name in dataset.rows.ragged.columns:
        lengths += dataset.rows.ragged.lengths(column_name).astype(np.int64)
    # The place of a document is stored, and its length follows from its ids.
    for row_group, row_count in enumerate(dataset.rows.group_rows.tolist()):
        first_row = dataset.rows.row_of(row_group)
        yield Provenance.of_documents(
            dataset.rows.read(row_group, _PLACE),
            lengths[first_row : first_row + row_count],
        )


@final
@dataclass(frozen=True, slots=True)
class Takedown:
    """List of documents: a Parquet file with the columns `file` and `position`.

    Attributes:
        sha256: Hash of the file.
        documents: Each document once, as (identity of an input file or its path,
            position).
    """

    sha256: str
    documents: frozenset[tuple[int | str, int]]

    @classmethod
    def read(cls, path: Path) -> Takedown:
        """Read a list.

        Raises:
            ConfigError: The file cannot be read, has other columns, or lists no
                document.
        """
        # Everything that is wrong with the file is one error, which states the right
        # form.
        documents: set[tuple[int | str, int]] = set()
        try:
            data = path.read_bytes()
            table = pq.read_table(pa.BufferReader(data), columns=_PLACE)
            if not pa.types.is_integer(table["position"].type):
                raise ValueError(f"position is of type {table['position'].type}")
            rows: Any = zip(
                table["file"].to_pylist(), table["position"].to_pylist(), strict=True
            )
            for file, position in rows:
                documents.add((_file_name(file), int(position)))
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise ConfigError(
                f"takedown {path}: {error}; expected a Parquet file with the columns `file` (the identity that "
                "`documents` has, or the path of an input) and `position` (a whole number)"
            ) from error
        if not documents:
            raise ConfigError(f"takedown {path} lists no documents")
        return cls(hashlib.sha256(data).hexdigest(), frozenset(documents))

    def among(self, entries: Iterable[InputFileEntry]) -> Int64:
        """Return the listed documents that are of some input files.

        A listed path matches an input whose path is equal or ends with it, at a ``/``.

        Args:
            entries: The input files.

        Returns:
            Identity of the input file and position of each document, ascending,
            int64[n, 2].
        """
        # Each input has its identity and the ends of its path, one for each folder, as
        # names.
        files_by_name: dict[int | str, set[int]] = {}
        for entry in entries:
            files_by_name.setdefault(entry.file_id, set()).add(entry.file_id)
            path_parts = entry.path.split("/")
            for index in range(len(path_parts)):
                path_end = "/".join(path_parts[index:])
                files_by_name.setdefault(path_end, set()).add(entry.file_id)
        # A name may be that of several inputs; all of them are meant.
        documents: set[tuple[int, int]] = set()
        for file_name, position in self.documents:
            for file_id in files_by_name.get(file_name, ()):
                documents.add((file_id, position))
        return np.array(sorted(documents), np.int64).reshape(-1, 2)


@final
class _WantedDocuments:
    """Documents to look for, and those that were found.

    Attributes:
        found: Documents found so far, as (identity of the input file, position).
    """

    def __init__(self, documents: Int64) -> None:
        """
        Args:
            documents: Identity of the input file and position of each document,
                int64[n, 2].
        """
        self._keys = np.sort(_document_keys(documents[:, 0], documents[:, 1]))
        self._documents = set(map(tuple, documents.tolist()))
        self.found = set[tuple[int, ...]]()

    def find(self, file: Int64, position: Int64) -> Int64:
        """Return the indices of the pieces that are of a wanted document, int64[m]."""
        if not len(self._keys):
            return np.zeros(0, np.int64)
        # Keys may collide: they select candidates, whose places are then compared.
        document_keys = _document_keys(file, position)
        nearest = np.minimum(
            np.searchsorted(self._keys, document_keys), len(self._keys) - 1
        )
        candidates = np.flatnonzero(self._keys[nearest] == document_keys)
        places = list(
            zip(file[candidates].tolist(), position[candidates].tolist(), strict=True)
        )
        self.found |= self._documents.intersection(places)
        return candidates[[place in self._documents for place in places]]


def _document_keys(file: Int64, position: Int64) -> UInt64:
    """Return 64 bits for each document, from which its file and position are spread."""
    return splitmix64(file.astype(np.uint64)) ^ position.astype(np.uint64)


def _file_name(value: Any) -> int | str:
    """Return a path without its scheme, or a number as a signed 64-bit identity.

    Lists may have identities as unsigned numbers, or as text.
    """
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        return value.removeprefix("file://").removeprefix("./")
    number = int(value)
    if number >= 1 << 63:
        return number - (1 << 64)
    return number
