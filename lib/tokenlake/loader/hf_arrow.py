"""All rows of a split as a ``datasets.Dataset``: shards as Arrow files, made once and hashed whenever they are used."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.batch import Assembler, Batch, BatchShape, pad_id_of
from tokenlake.loader.ragged_batch import all_ragged_columns
from tokenlake.reading.version import StoredRows
from tokenlake.store.entries import ShardEntry
from tokenlake.store.local_files import HashingFile

if TYPE_CHECKING:
    import datasets

_FORMAT: Final = 1  # of what is written: another one makes other files
_MADE_OF: Final = {
    "input_ids": "input_ids",
    "labels": "labels",
    "position_ids": "positions",
    "attention_mask": "segment_ids",
    "segment_ids": "segment_ids",
    "loss_mask": "loss_mask",
    "targets": "targets",
}
_DEFAULT: Final = ("input_ids", "labels", "position_ids")
_LOSS: Final = ("labels", "targets")
_DOCUMENT: Final = ("input_ids", "attention_mask", "labels")


def import_datasets() -> Any:
    """Import ``datasets``; MissingExtraError where it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("a dataset of Hugging Face needs datasets: pip install datasets") from error
    return datasets


def to_hf(
    rows: StoredRows,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> datasets.Dataset:
    """Return all rows, memory-mapped; see :meth:`tokenlake.loader.dataset.Dataset.to_hf`."""
    hf = import_datasets()
    chosen = HfColumns.of(rows, columns, rename)
    folder = Path(hf.config.HF_DATASETS_CACHE) / "tokenlake" if cache_dir is None else Path(cache_dir)
    files = arrow_files(rows, chosen, folder)
    if not files:
        raise ConfigError(f"{rows.name} has no rows")
    split = hf.Split(rows.split)
    parts = [hf.Dataset.from_file(str(path), split=split) for path in files]
    return parts[0] if len(parts) == 1 else hf.concatenate_datasets(parts, split=split)


@final
@dataclass(frozen=True)
class HfColumns:
    """Which columns a dataset of Hugging Face has.

    Attributes:
        names: name of Hugging Face (of what is stored, where a dataset is not packed) -> name in the dataset.
        rows: whether rows are packed, padded in batches, or taken as stored.
    """

    names: tuple[tuple[str, str], ...]
    rows: Literal["packed", "padded", "stored"]

    @classmethod
    def of(cls, rows: StoredRows, columns: Sequence[str] | None, rename: Mapping[str, str] | None) -> Self:
        """Choose columns of rows that are packed or stored; ConfigError where there are no such."""
        if rows.manifest.kind == "packed":
            return cls._chosen(tuple(_MADE_OF), _DEFAULT, columns, rename, "packed")
        stored = tuple(rows.read(0).schema.names if rows.rows else ())
        return cls._chosen(stored, stored, columns, rename, "stored")

    @classmethod
    def of_batches(
        cls, rows: StoredRows, columns: Sequence[str] | None, rename: Mapping[str, str] | None
    ) -> Self:
        """Choose columns of the loader's batches; ConfigError where there are no such."""
        if rows.manifest.kind == "packed":
            return cls.of(rows, columns, rename)
        theirs = {ours: name for name, ours in _MADE_OF.items() if name != "attention_mask"}
        there, usual = (tuple(theirs.get(name, name) for name in names) for names in all_ragged_columns(rows))
        default = usual if rows.manifest.preference else _DOCUMENT
        return cls._chosen(there, default, columns, rename, "padded")

    @classmethod
    def _chosen(
        cls,
        allowed: tuple[str, ...],
        default: tuple[str, ...],
        columns: Sequence[str] | None,
        rename: Mapping[str, str] | None,
        rows: Literal["packed", "padded", "stored"],
    ) -> Self:
        chosen = default if columns is None else tuple(columns)
        wrong = [name for name in chosen if name not in allowed]
        if isinstance(columns, str) or wrong or not chosen or len(set(chosen)) != len(chosen):
            raise ConfigError(f"columns: got {columns!r}, must be some of {', '.join(allowed)}, each once")
        others = dict(rename or {})
        if unknown := sorted(set(others) - set(chosen)):
            raise ConfigError(f"rename: got {', '.join(unknown)}, the columns are {', '.join(chosen)}")
        names = [others.get(name, name) for name in chosen]
        if len(set(names)) != len(names):
            raise ConfigError(f"rename: two columns would have one name: {', '.join(names)}")
        return cls(tuple(zip(chosen, names, strict=True)), rows)

    @property
    def ours(self) -> tuple[str, ...]:
        """The columns of our batches that are needed."""
        return tuple(dict.fromkeys(self._made_of(name) for name, _ in self.names))

    def of_batch(self, batch: Batch, *, wide_labels: bool) -> dict[str, Any]:
        """Return the columns of one of our batches by their new names; `wide_labels`: those of losses int64."""
        return {new: _column(name, batch[self._made_of(name)], wide_labels) for name, new in self.names}

    def _made_of(self, name: str) -> str:
        """The column of our batches that becomes this one."""
        if self.rows == "padded" and name.endswith("attention_mask"):
            return name
        return _MADE_OF.get(name, name)


def arrow_files(rows: StoredRows, columns: HfColumns, folder: Path) -> list[Path]:
    """Return a file in Arrow's streaming format for each shard, written now or found whole.

    Raises:
        IntegrityError: a shard is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = groupby(range(len(rows.group_rows)), key=lambda group: rows.shard_of(group)[0])
    return [_file(rows, columns, folder, shard, list(there)) for shard, there in groups]


def _file(rows: StoredRows, columns: HfColumns, folder: Path, shard: ShardEntry, groups: list[int]) -> Path:
    path = folder / f"{_key(rows, columns, shard)}.arrow"
    note = path.with_suffix(".sha256")
    if not _is_whole(path, note):
        # Two processes may make it at once: both make the same bytes, and each puts them there whole.
        temp = folder / f".{path.stem}-{secrets.token_hex(4)}"
        try:
            digest = _write(rows, columns, groups, temp)
            temp.replace(path)
            temp.write_text(digest)
            temp.replace(note)
        finally:
            temp.unlink(missing_ok=True)
    return path


def _key(rows: StoredRows, columns: HfColumns, shard: ShardEntry) -> str:
    made_of = [_FORMAT, shard.sha256, rows.manifest.kind, pad_id_of(rows.manifest), columns.names]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:40]


def _is_whole(path: Path, note: Path) -> bool:
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
        return found == note.read_text()
    except FileNotFoundError:
        return False


def _write(rows: StoredRows, columns: HfColumns, groups: list[int], path: Path) -> str:
    """Write row groups; return the sha256 of the file."""
    batches = _packed(rows, columns, groups) if columns.rows == "packed" else _stored(rows, columns, groups)
    first = next(batches)
    with HashingFile(path) as sink, pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    return sink.sha256


def _packed(rows: StoredRows, columns: HfColumns, groups: list[int]) -> Iterator[pa.RecordBatch]:
    assembler = Assembler([rows], columns.ours)
    for group in groups:
        decoded = rows.packed(group, loss_mask=assembler.loss_mask)
        size = decoded.rows
        number, row = np.full(size, group, np.int64), np.arange(size, dtype=np.int64)
        shape = BatchShape(size, assembler.length)
        batch = assembler.batch(shape, number, row, {group: decoded}.__getitem__)
        made = columns.of_batch(batch, wide_labels=False)
        yield pa.RecordBatch.from_pydict({name: _lists(values) for name, values in made.items()})


def _stored(rows: StoredRows, columns: HfColumns, groups: list[int]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        batch = rows.read(group)
        yield pa.RecordBatch.from_pydict({new: batch.column(name) for name, new in columns.names})


def _lists(values: Any) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _column(name: str, values: Any, wide_labels: bool) -> Any:
    if name.endswith("attention_mask"):
        return (values > 0).astype(np.int8)
    return values.astype(np.int64) if wide_labels and name.endswith(_LOSS) else values
