"""All rows of a split as a ``datasets.Dataset``, over Arrow files.

There is one Arrow file for each shard, written once and hashed at every use. The name
of a file is a hash of everything that decides its contents: the shard's hash, the
columns and their names, the padding id and the format of this module. A second file
holds the hash of its bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.loader.batch import Assembler, Batch, BatchShape, pad_id_of
from tokenlake.runtime.loader.columns import check_columns
from tokenlake.runtime.loader.ragged_batch import all_ragged_columns
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.writes import HashingFile

if TYPE_CHECKING:
    import datasets

_FORMAT: Final = 1
"""Version of the files' contents. A change of it makes new files."""

_OUR_COLUMNS: Final = {
    "input_ids": "input_ids",
    "labels": "labels",
    "position_ids": "positions",
    "attention_mask": "segment_ids",
    "segment_ids": "segment_ids",
    "loss_mask": "loss_mask",
    "targets": "targets",
}
"""Column of a dataset of Hugging Face -> column of our batches from which it is
computed.
"""

_DEFAULT: Final = ("input_ids", "labels", "position_ids")
_DEFAULT_OF_DOCUMENTS: Final = ("input_ids", "attention_mask", "labels")
_LOSS: Final = ("labels", "targets")


def import_datasets() -> Any:
    """Return the package ``datasets``.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(
            "a dataset of Hugging Face needs datasets: pip install datasets"
        ) from error
    return datasets


def to_hf(
    rows: StoredRows,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> datasets.Dataset:
    """Return all rows of a split, memory-mapped.

    :meth:`tokenlake.runtime.loader.dataset.Dataset.to_hf` explains it.
    """
    hf = import_datasets()
    hf_columns = HfColumns.of(rows, columns, rename)
    folder = (
        Path(hf.config.HF_DATASETS_CACHE) / "tokenlake"
        if cache_dir is None
        else Path(cache_dir)
    )
    folder.mkdir(parents=True, exist_ok=True)
    groups_by_shard = groupby(
        range(len(rows.group_rows)), key=lambda group: rows.shard_of(group)[0]
    )
    split = hf.Split(rows.split)
    parts: list[Any] = []
    for shard, groups in groups_by_shard:
        path = _arrow_file(rows, hf_columns, folder, shard, groups)
        parts.append(hf.Dataset.from_file(str(path), split=split))
    if not parts:
        raise ConfigError(f"{rows.name} has no rows")
    if len(parts) == 1:
        return parts[0]
    return hf.concatenate_datasets(parts, split=split)


@final
@dataclass(frozen=True)
class HfColumns:
    """Columns of a dataset of Hugging Face.

    Attributes:
        names: (Hugging Face's name of a column, or its stored name if a dataset is not
            packed; name in the dataset) for each column.
        rows: Kind of rows: "packed", "padded" in batches, or taken as "stored".
    """

    names: tuple[tuple[str, str], ...]
    rows: Literal["packed", "padded", "stored"]

    @classmethod
    def of(
        cls,
        rows: StoredRows,
        columns: Sequence[str] | None,
        rename: Mapping[str, str] | None,
    ) -> Self:
        """Return the columns of rows that are packed, or taken as stored.

        Args:
            rows: Rows of a split.
            columns: Names of the columns; None: the default ones.
            rename: Name of a column -> name in the dataset.

        Raises:
            ConfigError: A column does not exist, or two would have the same name.
        """
        # Columns of packed rows are computed; all other kinds are handed over as they
        # are stored.
        if rows.manifest.kind == "packed":
            return cls._chosen(tuple(_OUR_COLUMNS), _DEFAULT, columns, rename, "packed")
        stored: tuple[str, ...] = ()
        if rows.rows:
            stored = tuple(rows.read(0).schema.names)
        return cls._chosen(stored, stored, columns, rename, "stored")

    @classmethod
    def of_batches(
        cls,
        rows: StoredRows,
        columns: Sequence[str] | None,
        rename: Mapping[str, str] | None,
    ) -> Self:
        """Return the columns of the loader's batches.

        Args:
            rows: Rows of a split.
            columns: Names of the columns; None: the default ones.
            rename: Name of a column -> name in the dataset.

        Raises:
            ConfigError: A column does not exist, or two would have the same name.
        """
        if rows.manifest.kind == "packed":
            return cls.of(rows, columns, rename)
        # Batches of many lengths have an attention mask already; all others have
        # Hugging Face's names.
        hf_names: dict[str, str] = {}
        for name, ours in _OUR_COLUMNS.items():
            if name != "attention_mask":
                hf_names[ours] = name
        all_columns, defaults = all_ragged_columns(rows)
        allowed = tuple(hf_names.get(name, name) for name in all_columns)
        default = _DEFAULT_OF_DOCUMENTS
        if rows.manifest.preference:
            default = tuple(hf_names.get(name, name) for name in defaults)
        return cls._chosen(allowed, default, columns, rename, "padded")

    @classmethod
    def _chosen(
        cls,
        allowed: tuple[str, ...],
        default: tuple[str, ...],
        columns: Sequence[str] | None,
        rename: Mapping[str, str] | None,
        rows: Literal["packed", "padded", "stored"],
    ) -> Self:
        # Names are chosen first and renamed afterwards, so that `rename` need not name
        # every column.
        chosen = check_columns(columns, allowed, default)
        new_names = dict(rename or {})
        unknown = sorted(set(new_names) - set(chosen))
        if unknown:
            raise ConfigError(
                f"rename: got {', '.join(unknown)}, the columns are {', '.join(chosen)}"
            )
        names = [new_names.get(name, name) for name in chosen]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"rename: two columns would have one name: {', '.join(names)}"
            )
        return cls(tuple(zip(chosen, names, strict=True)), rows)

    @property
    def ours(self) -> tuple[str, ...]:
        """Names of our batches' columns from which these are computed, each once."""
        return tuple(dict.fromkeys(self._our_column(name) for name, _ in self.names))

    def of_batch(self, batch: Batch, *, wide_labels: bool) -> dict[str, Any]:
        """Return the columns, by their names in the dataset.

        They are computed from one of our batches.

        Args:
            batch: Batch with the columns :attr:`ours`.
            wide_labels: Whether labels and targets are int64; else int32.
        """
        # Types are those that the losses and models of transformers take.
        columns: dict[str, Any] = {}
        for column_name, new_name in self.names:
            values = batch[self._our_column(column_name)]
            if column_name.endswith("attention_mask"):
                values = (values > 0).astype(np.int8)
            if wide_labels and column_name.endswith(_LOSS):
                values = values.astype(np.int64)
            columns[new_name] = values
        return columns

    def _our_column(self, name: str) -> str:
        """Return the column of our batches from which a column is computed."""
        if self.rows == "padded" and name.endswith("attention_mask"):
            return name
        return _OUR_COLUMNS.get(name, name)


def _arrow_file(
    rows: StoredRows,
    columns: HfColumns,
    folder: Path,
    shard: ShardEntry,
    groups: Iterable[int],
) -> Path:
    """Return the path of a shard's file in Arrow's streaming format.

    The file is written if it is missing or damaged.

    Args:
        rows: Rows of the split.
        columns: Columns of the file.
        folder: Folder of the files.
        shard: Shard of the split.
        groups: Row groups of the shard.
    """
    # Everything that decides the bytes of the file is in its name, which makes the
    # cache safe to share.
    contents = [
        _FORMAT,
        shard.sha256,
        rows.manifest.kind,
        pad_id_of(rows.manifest),
        columns.names,
    ]
    file_key = hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:40]
    path = folder / f"{file_key}.arrow"
    hash_path = folder / f"{file_key}.sha256"
    with suppress(FileNotFoundError), path.open("rb") as stream:
        file_hash = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
        if file_hash == hash_path.read_text():
            return path
    # Two processes may write it at once: both write the same bytes, and each renames a
    # complete file.
    unfinished_path = folder / f".{file_key}-{secrets.token_hex(4)}"
    try:
        batches = _batches(rows, columns, groups)
        first_batch = next(batches)
        with (
            HashingFile(unfinished_path) as sink,
            pa.ipc.new_stream(sink, first_batch.schema) as writer,
        ):
            for batch in chain([first_batch], batches):
                writer.write_batch(batch)
        unfinished_path.replace(path)
        unfinished_path.write_text(sink.sha256)
        unfinished_path.replace(hash_path)
    finally:
        unfinished_path.unlink(missing_ok=True)
    return path


def _batches(
    rows: StoredRows, columns: HfColumns, groups: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Yield row groups with the columns of a dataset of Hugging Face."""
    # Stored columns are renamed without a copy.
    if columns.rows != "packed":
        for batch in map(rows.read, groups):
            yield pa.RecordBatch.from_pydict(
                {new_name: batch.column(name) for name, new_name in columns.names}
            )
        return
    assembler = Assembler([rows], columns.ours)
    for group in groups:
        decoded = rows.packed(group, loss_mask=assembler.needs_loss_mask)
        shape = BatchShape(decoded.rows, assembler.length)
        group_of_row = np.full(decoded.rows, group, np.int64)
        row = np.arange(decoded.rows, dtype=np.int64)
        batch = assembler.batch(shape, group_of_row, row, {group: decoded}.__getitem__)
        lists: dict[str, Any] = {}
        new_columns = columns.of_batch(batch, wide_labels=False)
        for column_name, values in new_columns.items():
            flat = pa.array(values.reshape(-1))
            lists[column_name] = pa.FixedSizeListArray.from_arrays(
                flat, values.shape[1]
            )
        yield pa.RecordBatch.from_pydict(lists)
