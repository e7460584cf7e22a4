"""Shards as Arrow files with the columns that Hugging Face wants: made once, hashed whenever they are used again."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from tokenlake.adapters.hf.columns import HfColumns
from tokenlake.loader.assemble import Assembler
from tokenlake.loader.dataset import Dataset
from tokenlake.manifest import ShardEntry
from tokenlake.storage.writing import HashingFile

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
