"""A stand-in for a resolved source, and shorthands for reading files in tests."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from tokenlake.etl.sources import (
    FileRange,
    InputFile,
    Parsed,
    Predicate,
    RowBatch,
    Want,
    list_inputs,
    opened,
    read_range,
    read_rows,
    reader_of,
    split_file,
)

TextBatch = Any
"""A batch of :func:`read_range`: a :class:`RowBatch` that has the texts of its
records as `text`, too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The fields of a resolved source that reading needs."""

    name: str = "web"
    data_files: tuple[str, ...] = ()
    type: str | None = None
    content_field: str = "text"
    text_mode: str = "document"
    on_bad_record: str = "quarantine"
    max_bad_fraction: float = 0.001
    max_record_bytes: int = 256 << 20
    max_expansion: float = 1000.0
    num_rows: int | None = None
    where: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    remote_cache_bytes: int | None = None
    subset: str | None = None
    split: str = "train"
    split_from: str = "default"
    sibling_splits: tuple[str, ...] = ()
    delimiter: str | None = None
    tokens: Any = None


def inputs(*paths: Path | str, **options: Any) -> list[InputFile]:
    source = Source(data_files=tuple(map(str, paths)), **options)
    return list_inputs(cast("Any", source))


def one(path: Path, **options: Any) -> InputFile:
    (file,) = inputs(path, **options)
    return file


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstd,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, **COMPRESS}


def written(folder: Path, data: bytes, name: str) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read(path: Path, unit_size: int = 128 << 20, **options: Any) -> list[TextBatch]:
    """Read a file range by range."""
    parts, source = _ranges(path, unit_size, options)
    return [batch for part in parts for batch in read_range(part, source)]


def parsed(
    path: Path, want: Want, predicate: Predicate | None = None, **options: Any
) -> list[Any]:
    """Read a file, or the ranges of it that `cuts` make, with the reader of its format.

    Args:
        options: `cuts`, byte offsets between ranges, and options of the source.
    """
    cuts = options.pop("cuts", ())
    file = one(path, **options)
    edges = [0, *sorted(min(cut, file.size) for cut in cuts), file.size]
    ranges = [
        FileRange(file=file, start=start, stop=stop, weight=stop - start)
        for start, stop in pairwise(edges)
    ]
    if file.has_blocks or not cuts:
        ranges = split_file(file, 1 << 40)
    blocks: list[Parsed] = []
    with opened(file) as data:
        for part in ranges:
            blocks += reader_of(file.format)(part, data, want, predicate)
    return blocks


def rows(
    path: Path,
    columns: tuple[str, ...] | None = None,
    unit_size: int = 128 << 20,
    **options: Any,
) -> list[RowBatch]:
    """Read a file range by range, as rows."""
    parts, source = _ranges(path, unit_size, options)
    return [batch for part in parts for batch in read_rows(part, source, columns)]


def _ranges(
    path: Path, unit_size: int, options: dict[str, Any]
) -> tuple[list[FileRange], Any]:
    file = one(path, **{k: v for k, v in options.items() if k in {"type", "text_mode"}})
    return split_file(file, unit_size), Source(**options)


def dicts(batches: Sequence[RowBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.objects or batch.rows.to_pylist()]


def texts(batches: list[TextBatch]) -> list[str]:
    return [text for batch in batches for text in batch.text.to_pylist()]


def positions(batches: Sequence[RowBatch]) -> list[int]:
    return [position for batch in batches for position in batch.positions.tolist()]


def faults(batches: Sequence[RowBatch]) -> list[tuple[int, int | None, str]]:
    """Return (position, line, reason) of every bad record."""
    return [
        (bad.position, bad.line, bad.reason) for batch in batches for bad in batch.bad
    ]


def normalized(batches: Sequence[RowBatch]) -> dict[str, int]:
    total: dict[str, int] = {}
    for batch in batches:
        for name, count in batch.normalized.items():
            total[name] = total.get(name, 0) + count
    return total


def renamed(file: InputFile, **changes: Any) -> InputFile:
    return replace(file, **changes)
