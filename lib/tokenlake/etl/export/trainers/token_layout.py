"""A file format of another trainer, as an export sees it.

Rows come in, and files of one or more parts come out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Int64
from tokenlake.etl.export.file_mode import file_mode
from tokenlake.etl.export.flat_manifest import FlatFile
from tokenlake.etl.export.shard_record import Part, Shard
from tokenlake.etl.export.token_rows import TokenRows
from tokenlake.etl.export.trainers.block_file import BlockFile

MASK_TYPE: Final = np.dtype(np.uint8)
"""Type of masks in columns: 1 for true."""

ID_TYPE: Final = np.dtype("<i4")
"""Type of ids and segment ids in columns."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """Facts about the rows of a version that decide how a format holds them.

    Attributes:
        width: Number of ids of each row, if all rows have the same number; else None.
        columns: Stored columns of :data:`tokenlake.etl.export.token_rows.COLUMNS` that
            are exported.
        vocab_size: One more than the largest id.
        bos_id: Id that begins documents; None if there is none, or sources differ in
            it.
        eos_id: Id that ends documents; None if there is none, or sources differ in it.
        pad_id: Id of padding; None if there is none, or sources differ in it.
        appended_eos: Id that is appended to documents which do not end with it; None:
            none is.
    """

    width: int | None
    columns: frozenset[str]
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    appended_eos: int | None = None

    @property
    def column_types(self) -> dict[str, np.dtype[Any]]:
        """Name -> type of the columns of formats that have columns, in order."""
        # Readers get a segment id for each token, rather than the stored lengths.
        column_types: dict[str, np.dtype[Any]] = {"input_ids": ID_TYPE}
        if "attention_mask" in self.columns:
            column_types["attention_mask"] = MASK_TYPE
        if "segment_lengths" in self.columns:
            column_types["segment_ids"] = ID_TYPE
        if "loss_mask" in self.columns:
            column_types["loss_mask"] = MASK_TYPE
        return column_types

    def column_arrays(self, rows: TokenRows) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of rows, flat: one row after the other.

        They have the types of :attr:`column_types`.
        """
        # All columns of a row have one length, that of its ids.
        arrays: dict[str, npt.NDArray[Any]] = {}
        for column_name, column_type in self.column_types.items():
            match column_name:
                case "input_ids":
                    numbers = rows.input_ids
                case "attention_mask":
                    numbers = rows.attention_mask
                case "segment_ids":
                    numbers = rows.segment_ids()
                case _:
                    numbers = rows.loss_mask
            assert numbers is not None
            arrays[column_name] = numbers.astype(column_type, copy=False)
        return arrays


class OpenTokenFile(Protocol):
    """One shard while it is written.

    Attributes:
        bytes: Size of its ids so far, in bytes.
    """

    @property
    def bytes(self) -> int: ...

    def write(self, rows: TokenRows) -> None:
        """Write rows."""
        ...

    def so_far(self) -> Sequence[Part]:
        """Return the parts that are written; none if they cannot be continued.

        :meth:`TokenLayout.open` continues after them.
        """
        ...

    def close(self) -> Sequence[Part]:
        """Write the ends of the files, and return them; the first one holds the ids."""
        ...

    def discard(self) -> None:
        """Close files that an error left open."""
        ...


class TokenLayout(ABC):
    """A format with its options, for one export.

    Attributes:
        facts: Facts about the rows.
        most_bytes: Largest size that the format allows; None: any.
        has_folders: True if each split has a folder of its own.
    """

    facts: TokenFacts
    most_bytes: int | None = None
    has_folders: bool = False

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns and their types, for the manifest."""

    @abstractmethod
    def row_bytes(self, rows: TokenRows) -> Int64:
        """Return the number of bytes that each row takes in a file, at most."""

    @abstractmethod
    def open(self, path: Path, parts: Sequence[Part] = ()) -> OpenTokenFile:
        """Open a shard.

        Args:
            path: Path of its files without their suffixes.
            parts: Result of :meth:`OpenTokenFile.so_far`, after which rows are added;
                none: the shard is new.
        """

    def shard_name(self, index: int) -> str:
        """Return the name of a shard in the folder of a split, without the suffix."""
        # Formats with a folder for each split override it.
        raise NotImplementedError(
            f"{type(self).__name__} names files by their split; shard {index} has no such name"
        )

    def split_index(self, shards: Sequence[Shard]) -> Mapping[str, bytes]:
        """Return name -> bytes of the files that describe the shards of one split.

        Args:
            shards: All shards, in order.
        """
        return {}

    def export_index(self, files: Sequence[FlatFile]) -> Mapping[str, bytes]:
        """Return name -> bytes of the files that describe the whole export.

        Args:
            files: All files, in order.
        """
        return {}


@final
class NumberSpool:
    """Numbers (int32) that wait for the end of a shard, in a file beside it.

    The file stays until the whole export is in its place: a process may die after the
    end of a shard and before that is recorded.

    Args:
        path: Path of the shard without a suffix.
        parts: Parts so far of a shard that is continued.
        suffix: End of the name.
    """

    def __init__(self, path: Path, suffix: str, parts: Sequence[Part] = ()) -> None:
        self._path = path.with_name(path.name + suffix)
        self._part = PartFile(path, suffix, parts)

    def write(self, numbers: npt.NDArray[np.integer]) -> None:
        """Add numbers."""
        self._part.write_numbers(numbers.astype(np.int32))

    def numbers(self) -> npt.NDArray[np.int32]:
        """Return all numbers, mapped into memory, int32[n]."""
        # The last numbers may wait in a block, and a map shows those of the file.
        self._part.file.flush()
        if not self._part.bytes:  # an empty file cannot be mapped
            return np.zeros(0, np.int32)
        return np.memmap(self._path, np.int32, "r")

    def so_far(self) -> Part:
        """Return size and hash of the bytes so far."""
        return self._part.so_far()

    def discard(self) -> None:
        """Close the file."""
        self._part.discard()


@final
class PartFile:
    """A part of a shard while it is written; a file object for writing.

    Args:
        path: Path of the shard without a suffix.
        suffix: End of the name.
        parts: Parts so far of a shard that is continued.
    """

    def __init__(self, path: Path, suffix: str, parts: Sequence[Part] = ()) -> None:
        self._path = path.with_name(path.name + suffix)
        self._suffix = suffix
        # A part is continued behind its recorded bytes. Those after them are of the
        # interrupted run, and are written again.
        recorded_bytes = 0
        for part in parts:
            if part.suffix == suffix:
                recorded_bytes = part.bytes
        self.file: Any = BlockFile(self._path, begin=recorded_bytes)

    @property
    def bytes(self) -> int:
        """Size so far, in bytes."""
        return self.file.bytes

    def write_numbers(self, numbers: npt.NDArray[Any]) -> None:
        """Write the bytes of numbers."""
        # A view of the bytes: numbers are not copied if they lie one after the other.
        if len(numbers):
            self.file.write(np.ascontiguousarray(numbers).view(np.uint8).data)

    def so_far(self) -> Part:
        """Return size and hash of the bytes so far."""
        # The hash so far can be read at any time: later bytes are added to it.
        return Part(self._suffix, self.file.bytes, self.file.sha256)

    def close(self) -> Part:
        """Close the file, and return its size and hash."""
        # Files are private while they are written, and then as their folder is.
        self.file.close()
        self._path.chmod(file_mode(self._path.parent))
        return self.so_far()

    def discard(self) -> None:
        """Close a file that is given up."""
        self.file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
