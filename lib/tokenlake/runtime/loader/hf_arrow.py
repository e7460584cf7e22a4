"""All rows of a split as a ``datasets.Dataset``: shards as Arrow files, made once and hashed whenever they are used."""

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
    """Return all rows, memory-mapped; see :meth:`tokenlake.runtime.loader.dataset.Dataset.to_hf`."""
    hf = import_datasets()
    chosen = HfColumns.of(rows, columns, rename)
    folder = Path(hf.config.HF_DATASETS_CACHE) / "tokenlake" if cache_dir is None else Path(cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    groups = groupby(range(len(rows.group_rows)), key=lambda group: rows.shard_of(group)[0])
    files = [_file(rows, chosen, folder, shard, there) for shard, there in groups]
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
        default = usual if rows.manifest.preference else ("input_ids", "attention_mask", "labels")
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
        chosen, others = check_columns(columns, allowed, default), dict(rename or {})
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
        found = dict[str, Any]()
        for name, new in self.names:
            values = batch[self._made_of(name)]
            if name.endswith("attention_mask"):
                values = (values > 0).astype(np.int8)
            found[new] = values.astype(np.int64) if wide_labels and name.endswith(_LOSS) else values
        return found

    def _made_of(self, name: str) -> str:
        """The column of our batches that becomes this one."""
        if self.rows == "padded" and name.endswith("attention_mask"):
            return name
        return _MADE_OF.get(name, name)


def _file(
    rows: StoredRows, columns: HfColumns, folder: Path, shard: ShardEntry, groups: Iterable[int]
) -> Path:
    """Return the file of a shard in Arrow's streaming format, written now or found whole."""
    made_of = [_FORMAT, shard.sha256, rows.manifest.kind, pad_id_of(rows.manifest), columns.names]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:40]
    path, note = folder / f"{key}.arrow", folder / f"{key}.sha256"
    with suppress(FileNotFoundError), path.open("rb") as stream:
        if hashlib.file_digest(cast("Any", stream), "sha256").hexdigest() == note.read_text():
            return path
    # Two processes may make it at once: both make the same bytes, and each puts them there whole.
    temp = folder / f".{key}-{secrets.token_hex(4)}"
    try:
        batches = _batches(rows, columns, groups)
        first = next(batches)
        with HashingFile(temp) as sink, pa.ipc.new_stream(sink, first.schema) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch)
        temp.replace(path)
        temp.write_text(sink.sha256)
        temp.replace(note)
    finally:
        temp.unlink(missing_ok=True)
    return path


def _batches(rows: StoredRows, columns: HfColumns, groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield row groups with the chosen columns."""
    if columns.rows != "packed":
        for batch in map(rows.read, groups):
            yield pa.RecordBatch.from_pydict({new: batch.column(name) for name, new in columns.names})
        return
    assembler = Assembler([rows], columns.ours)
    for group in groups:
        decoded = rows.packed(group, loss_mask=assembler.needs_loss_mask)
        number, row = np.full(decoded.rows, group, np.int64), np.arange(decoded.rows, dtype=np.int64)
        shape = BatchShape(decoded.rows, assembler.length)
        batch = assembler.batch(shape, number, row, {group: decoded}.__getitem__)
        made = columns.of_batch(batch, wide_labels=False)
        lists = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
            for name, values in made.items()
        }
        yield pa.RecordBatch.from_pydict(lists)
