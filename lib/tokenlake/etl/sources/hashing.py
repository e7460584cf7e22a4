"""The sha256 of local files, by several threads, with hashes from a cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tokenlake.base.compact import CompactTuple
from tokenlake.base.threads import Stop, in_order
from tokenlake.errors import InputChangedError
from tokenlake.etl.sources.file_stat import FileStat
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter

# Small enough that an interrupt and the progress are seen while a large file is hashed.
_READ_BYTES: Final = 1 << 20
# Files of one batch, which a thread hashes: handing over a file costs as much as
# hashing a tiny one.
_BATCH_FILES: Final = 256
_BATCH_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A local file before it is hashed.

    Attributes:
        name: Path below the listing's root.
        path: Absolute path.
        stat: State in which the file was found.
    """

    name: str
    path: str
    stat: FileStat


def hash_files(
    files: Iterable[FoundFile],
    threads: int,
    cache: HashCache | None,
    on_progress: OnProgress | None,
) -> Iterator[tuple[FoundFile, str]]:
    """Yield every file with its sha256 in hexadecimal digits, in order.

    Nothing is yielded before all files were found.

    Args:
        files: The files.
        threads: Number of threads that hash.
        cache: Remembered hashes, None to read every file.
        on_progress: Function that receives the progress, from the threads.

    Raises:
        InputChangedError: A file changed since it was found.
    """
    # All files are found first, so that the progress has a total.
    batches: list[CompactTuple[FoundFile]] = []
    file_count = 0
    total_bytes = 0
    for batch in _batches(files):
        batches.append(CompactTuple(FoundFile, batch))
        file_count += len(batch)
        total_bytes += sum(file.stat.st_size for file in batch)
    meter = ProgressMeter("hashing", file_count, total_bytes, on_progress)
    stop = Stop()

    def hash_batch(batch: CompactTuple[FoundFile]) -> list[tuple[FoundFile, str]]:
        return _hash_batch(tuple(batch), cache, meter, stop)

    for hashes in in_order(hash_batch, batches, threads, stop=stop):
        yield from hashes


def _batches(files: Iterable[FoundFile]) -> Iterator[list[FoundFile]]:
    """Yield files in batches of bounded number and size."""
    batch: list[FoundFile] = []
    batch_bytes = 0
    for file in files:
        batch.append(file)
        batch_bytes += file.stat.st_size
        if len(batch) == _BATCH_FILES or batch_bytes >= _BATCH_BYTES:
            yield batch
            batch = []
            batch_bytes = 0
    if batch:
        yield batch


def _hash_batch(
    files: tuple[FoundFile, ...],
    cache: HashCache | None,
    meter: ProgressMeter,
    stop: Stop,
) -> list[tuple[FoundFile, str]]:
    """Return the files of a batch with their hashes; new hashes are remembered."""
    # Hashes of a whole batch are looked up in one query.
    remembered: list[str | None] = [None] * len(files)
    if cache is not None:
        remembered = cache.get_many([file.stat for file in files])

    hashes: list[tuple[FoundFile, str]] = []
    new_hashes: list[tuple[FileStat, str]] = []
    remembered_files = 0
    remembered_bytes = 0
    for file, remembered_hash in zip(files, remembered, strict=True):
        sha256 = remembered_hash
        if sha256 is None:
            sha256 = _hash_file(file, meter, stop)
            new_hashes.append((file.stat, sha256))
        else:
            remembered_files += 1
            remembered_bytes += file.stat.st_size
        hashes.append((file, sha256))
    meter.add(remembered_files, remembered_bytes)
    if cache is not None:
        cache.put_many(new_hashes)
    return hashes


def _hash_file(file: FoundFile, meter: ProgressMeter, stop: Stop) -> str:
    """Return the sha256 of a file.

    Raises:
        InputChangedError: The file is not in the state in which it was found.
    """
    digest = hashlib.sha256()
    stat_after: FileStat | None = None
    missing_error: FileNotFoundError | None = None
    # One more byte than it had: whether it grew by more is seen from its state
    # afterwards.
    bytes_left = file.stat.st_size + 1
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while bytes_left > 1 and (
                chunk := os.read(descriptor, min(bytes_left, _READ_BYTES))
            ):
                stop.check()
                digest.update(chunk)
                meter.add(0, len(chunk))
                bytes_left -= len(chunk)
        finally:
            os.close(descriptor)
        meter.add(1, 0)
        stat_after = FileStat.of(file.path)
    except FileNotFoundError as error:
        missing_error = error
    # Compared after reading: a file that was written meanwhile has another time or
    # size.
    if stat_after != file.stat:
        raise InputChangedError(
            f"{file.path}: the file changed while it was being hashed. Inputs must not change during a build; run "
            "again when the file is complete.",
            file=file.path,
        ) from missing_error
    return digest.hexdigest()
