"""Datasets of Hugging Face over stored versions: all rows by number, or rows in the loader's order.

Columns have the names that models of transformers take. ``datasets`` itself is imported when one is asked for.

Our columns by the names of Hugging Face, and what a user wants to call them.

Shards as Arrow files with the columns that Hugging Face wants: made once, hashed whenever they are used again.

Rows of one batch at a time, asked for by its step: a generator that datasets of Hugging Face call for each shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.loader.batch import Assembler, Batch
from tokenlake.loader.dataset import Dataset
from tokenlake.loader.host_batches import ALL, HostBatch, HostBatches, Turn
from tokenlake.loader.mixture import Mixture
from tokenlake.loader.run import PerProcess, Run
from tokenlake.store.entries import ShardEntry
from tokenlake.store.local_files import HashingFile

if TYPE_CHECKING:
    import datasets

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
_LOSS: Final = frozenset({"labels", "targets"})


@final
@dataclass(frozen=True)
class HfColumns:
    """Which columns a dataset of Hugging Face has.

    Attributes:
        names: name of Hugging Face (of what is stored, where a dataset is not packed) -> name in the dataset.
        packed: whether rows are made of our columns; else they are taken as stored.
    """

    names: tuple[tuple[str, str], ...]
    packed: bool

    @classmethod
    def of(cls, data: Dataset, columns: Sequence[str] | None, rename: Mapping[str, str] | None) -> Self:
        """Choose columns; ConfigError where there are no such."""
        packed = data.kind == "packed"
        allowed = tuple(_MADE_OF) if packed else tuple(data.schema.names)
        chosen = (_DEFAULT if packed else allowed) if columns is None else tuple(columns)
        wrong = [name for name in chosen if name not in allowed]
        if isinstance(columns, str) or wrong or not chosen or len(set(chosen)) != len(chosen):
            raise ConfigError(f"columns: got {columns!r}, must be some of {', '.join(allowed)}, each once")
        others = dict(rename or {})
        if unknown := sorted(set(others) - set(chosen)):
            raise ConfigError(f"rename: got {', '.join(unknown)}, the columns are {', '.join(chosen)}")
        names = [others.get(name, name) for name in chosen]
        if len(set(names)) != len(names):
            raise ConfigError(f"rename: two columns would have one name: {', '.join(names)}")
        return cls(tuple(zip(chosen, names, strict=True)), packed)

    @property
    def ours(self) -> tuple[str, ...]:
        """The columns of our batches that are needed."""
        return tuple(dict.fromkeys(_MADE_OF[name] for name, _ in self.names))

    def of_batch(self, batch: Batch, *, wide_labels: bool) -> dict[str, Any]:
        """Return the columns of one of our batches by their new names; `wide_labels`: those of losses int64."""
        return {new: _column(name, batch[_MADE_OF[name]], wide_labels) for name, new in self.names}


def _column(name: str, values: Any, wide_labels: bool) -> Any:
    if name == "attention_mask":
        return (values > 0).astype(np.int8)
    return values.astype(np.int64) if wide_labels and name in _LOSS else values


_FORMAT: Final = 1  # of what is written: another one makes other files


def arrow_files(data: Dataset, columns: HfColumns, folder: Path) -> list[Path]:
    """Return a file in Arrow's streaming format for each shard, written now or found whole.

    Raises:
        IntegrityError: a shard is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[int]] = {}
    shards: dict[str, ShardEntry] = {}
    for group in range(len(data.rows.group_rows)):
        shard, _ = data.rows.shard_of(group)
        groups.setdefault(shard.path, []).append(group)
        shards[shard.path] = shard
    return [_file(data, columns, folder, shards[path], there) for path, there in groups.items()]


def _file(data: Dataset, columns: HfColumns, folder: Path, shard: ShardEntry, groups: list[int]) -> Path:
    path = folder / f"{_key(data, columns, shard)}.arrow"
    note = path.with_suffix(".sha256")
    if not _is_whole(path, note):
        # Two processes may make it at once: both make the same bytes, and each puts them there whole.
        temp = folder / f".{path.stem}-{secrets.token_hex(4)}"
        try:
            digest = _write(data, columns, groups, temp)
            temp.replace(path)
            temp.write_text(digest)
            temp.replace(note)
        finally:
            temp.unlink(missing_ok=True)
    return path


def _key(data: Dataset, columns: HfColumns, shard: ShardEntry) -> str:
    made_of = [_FORMAT, shard.sha256, data.kind, data.pad_id, columns.names]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:40]


def _is_whole(path: Path, note: Path) -> bool:
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
        return found == note.read_text()
    except FileNotFoundError:
        return False


def _write(data: Dataset, columns: HfColumns, groups: list[int], path: Path) -> str:
    """Write row groups; return the sha256 of the file."""
    batches = _packed(data, columns, groups) if columns.packed else _stored(data, columns, groups)
    first = next(batches)
    with HashingFile(path) as sink, pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    return sink.sha256


def _packed(data: Dataset, columns: HfColumns, groups: list[int]) -> Iterator[pa.RecordBatch]:
    assembler = Assembler([data.rows], columns.ours)
    for group in groups:
        decoded = data.rows.packed(group, loss_mask=assembler.loss_mask)
        size = decoded.rows
        number, row = np.full(size, group, np.int64), np.arange(size, dtype=np.int64)
        batch = assembler.batch(size, number, row, {group: decoded}.__getitem__)
        made = columns.of_batch(batch, wide_labels=False)
        yield pa.RecordBatch.from_pydict({name: _lists(values) for name, values in made.items()})


def _stored(data: Dataset, columns: HfColumns, groups: list[int]) -> Iterator[pa.RecordBatch]:
    for group in groups:
        batch = data.rows.read(group)
        yield pa.RecordBatch.from_pydict({new: batch.column(name) for name, new in columns.names})


def _lists(values: Any) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


@final
class HfSteps:
    """Steps -> rows; picklable. Steps asked for in order, or every n-th of them, are read ahead."""

    def __init__(self, run: Run, columns: HfColumns) -> None:
        self._run, self._columns = run, columns
        self._reader = PerProcess(_Reader)

    def __call__(self, step: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of steps: column -> array of shape (L,)."""
        reader = self._reader.get()
        for number in step:
            batch = reader.read(self._run, number)
            columns = self._columns.of_batch(batch.columns, wide_labels=True)
            try:
                for place in range(len(batch.columns[self._run.columns[0]])):
                    yield {name: values[place] for name, values in columns.items()}
            except GeneratorExit:  # a loop was left: its threads end
                reader.close()
                raise


@final
class _Reader:
    """Goes on reading where it stands, if that is what is wanted."""

    def __init__(self) -> None:
        self._batches: HostBatches | None = None
        self._turn, self._last, self._next = ALL, -1, 0

    def read(self, run: Run, step: int) -> HostBatch:
        if self._batches is None or step != self._next:
            self._begin(run, step)
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except BaseException:
            self.close()
            raise
        self._last, self._next = step, step + self._turn.of
        if (end := run.batches_in(0)) is not None and self._next >= end:
            self.close()
        return batch

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _begin(self, run: Run, step: int) -> None:
        """Read from a step on, in the strides that the last two steps tell: those of one of several workers."""
        stride = step - self._last if 0 <= self._last < step else 1
        self.close()
        self._turn = Turn(step % stride, stride)
        self._batches = run.batches(run.plan.steps.place(step), self._turn)


_CACHE_BYTES: Final = 256 << 20


def to_hf(
    data: Dataset,
    *,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> datasets.Dataset:
    """Return all rows as a ``datasets.Dataset``, memory-mapped, in the order in which they are stored.

    ::

        Trainer(model, args, train_dataset=ds.to_hf())

    The columns are made once, into one Arrow file for each shard, as ``datasets`` itself keeps what it prepares; the
    files are found again by what is in them. No verification is lost: shards are read page by page against their
    checksums, which ``datasets`` would not do, and an Arrow file that is found is hashed before it is used (about 1 s
    per GB). Later reads through the memory map are checked by nobody, as with every ``datasets.Dataset``.

    Args:
        data: a dataset of any kind.
        columns: of a packed dataset any of

            - ``input_ids``: int32, L of them, as all others;
            - ``labels``: int32, aligned with ``input_ids`` (the model shifts them), -100 where there is no loss:
              padding, the first id of each segment, what a stored loss mask leaves out;
            - ``position_ids``: int32, from 0 in each segment. By them transformers keeps segments apart, if there is no
              ``attention_mask`` and the model has ``use_cache=False``, which its Trainer sets;
            - ``attention_mask``: int8, 0 in padding. With it a segment sees those before it in its row;
            - ``segment_ids`` (int32), ``loss_mask`` (bool), ``targets`` (int32): see :mod:`tokenlake.loader.batch`.

            None: ``input_ids``, ``labels`` and ``position_ids``. Of other kinds: any that are stored; None: all.
        rename: {name here: name in the dataset}.
        cache_dir: folder of the Arrow files, 4 bytes per id and column; None: ``tokenlake`` in the cache of
            ``datasets``.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: there is no such column, or a name would be there twice.
        IntegrityError: a shard is damaged.
    """
    hf = _datasets()
    chosen = HfColumns.of(data, columns, rename)
    folder = Path(hf.config.HF_DATASETS_CACHE) / "tokenlake" if cache_dir is None else Path(cache_dir)
    files = arrow_files(data, chosen, folder)
    if not files:
        raise ConfigError(f"{data.name} has no rows")
    split = hf.Split(data.split)
    parts = [hf.Dataset.from_file(str(path), split=split) for path in files]
    return parts[0] if len(parts) == 1 else hf.concatenate_datasets(parts, split=split)


def hf_dataset(
    data: Dataset | Mixture,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int = 1,
    drop_last: bool = False,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    host: tuple[int, int] = (0, 1),
    lanes: int | None = None,
    window: int = 1,
    prefetch: int = 2,
    workers: int | None = None,
    cache_bytes: int = _CACHE_BYTES,
) -> datasets.IterableDataset:
    """Return rows in the order of :class:`tokenlake.DataLoader` as a ``datasets.IterableDataset``.

    ::

        dataset = tl.hf_dataset(ds, batch_size=16, epochs=3)
        Trainer(model, TrainingArguments(..., per_device_train_batch_size=16, max_steps=...), train_dataset=dataset)

    Items are rows: dicts of numpy arrays (L,). Each batch of `batch_size` rows is a shard in the sense of ``datasets``.
    So its own ``state_dict`` and ``load_state_dict`` resume exactly and at any step alike: what is made again is the
    rows of one batch at most, not the stream up to there. And with N workers of a PyTorch loader that makes batches
    of `batch_size`, batches come in the same order for every N.

    Frameworks that divide the items of an iterable dataset among processes go on doing so; where none does, `host`
    gives each process its part of every batch.

    Args:
        data, seed, shuffle, epochs, drop_last, lanes, window, prefetch, workers, cache_bytes: as of
            :class:`tokenlake.DataLoader`; epochs are laid end to end.
        batch_size: rows of the global batch.
        columns, rename: as of :func:`to_hf`; ``labels`` and ``targets`` are int64, which losses of PyTorch insist on.
        host: (index, number of hosts): the index-th of equal parts of every batch.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        ConfigError: an argument is not what is allowed; or the run has no end.
    """
    hf = _datasets()
    first = data if isinstance(data, Dataset) else next(iter(data.datasets.values()))
    chosen = HfColumns.of(first, columns, rename)
    run = Run(
        data,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        epochs=epochs,
        drop_last=drop_last,
        columns=chosen.ours,
        host=host,
        lanes=lanes,
        window=window,
        prefetch=prefetch,
        workers=workers,
        cache_bytes=cache_bytes,
    )
    batches = run.batches_in(0)
    if batches is None:
        raise ConfigError(
            "a dataset of Hugging Face must end: give epochs, or the mixture rows or another `stop`"
        )
    steps = list(range(batches))
    return hf.IterableDataset.from_generator(HfSteps(run, chosen), gen_kwargs={"step": steps})


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("a dataset of Hugging Face needs datasets: pip install datasets") from error
    return datasets
