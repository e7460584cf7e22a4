"""The sha256 of local files, several at a time, through a cache."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import InputChangedError
from tokenlake.sources.inputbytes import state
from tokenlake.sources.local.hashcache import HashCache
from tokenlake.sources.meter import Meter, OnProgress
from tokenlake.threads import in_order

_PIECE: Final = 1 << 20
# Files that one thread takes at a time: handing over a file costs as much as hashing a tiny one.
_TAKE_FILES, _TAKE_BYTES = 256, 64 << 20


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A local file before it is hashed: its name below the listing's root, its path, and its state."""

    name: str
    path: str
    stat: os.stat_result


def hash_files(
    files: Sequence[FoundFile], threads: int, cache: HashCache | None, on_progress: OnProgress | None
) -> list[str]:
    """Return the sha256 (hex) of every file.

    Raises:
        InputChangedError: a file changed since it was found.
    """
    nothing: list[str | None] = [None] * len(files)
    known = cache.get_many([file.stat for file in files]) if cache else nothing
    meter = Meter("hashing", len(files), sum(file.stat.st_size for file in files), on_progress)
    unknown = [index for index, sha256 in enumerate(known) if sha256 is None]
    told = [file.stat.st_size for file, sha256 in zip(files, known, strict=True) if sha256 is not None]
    meter.add(len(told), sum(told))
    hasher = Hasher(cache, meter)

    def take(indices: list[int]) -> list[str]:
        return [hasher.hash(files[index]) for index in indices]

    taken = list(_takes(unknown, files))
    try:
        for indices, found in zip(taken, in_order(take, taken, threads), strict=True):
            for index, sha256 in zip(indices, found, strict=True):
                known[index] = sha256
    finally:
        hasher.stop()
    return [sha256 or "" for sha256 in known]


def _takes(indices: list[int], files: Sequence[FoundFile]) -> Iterator[list[int]]:
    take: list[int] = []
    size = 0
    for index in indices:
        take.append(index)
        size += files[index].stat.st_size
        if len(take) == _TAKE_FILES or size >= _TAKE_BYTES:
            yield take
            take, size = [], 0
    if take:
        yield take


@final
class Hasher:
    """Hashes files one by one; usable from several threads, and stopped from another one."""

    def __init__(self, cache: HashCache | None, meter: Meter) -> None:
        self._cache, self._meter = cache, meter
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let files being hashed end early; their hashes are then worth nothing."""
        self._stopped.set()

    def hash(self, file: FoundFile) -> str:
        """Return the sha256 of a file that stays as it was found, and remember it."""
        try:
            sha256 = self._read(file)
            after = os.stat(file.path)  # noqa: PTH116
        except FileNotFoundError as error:
            raise _changed(file) from error
        if (*state(after), after.st_size) != (*state(file.stat), file.stat.st_size):
            raise _changed(file)
        if self._cache and not self._stopped.is_set():
            self._cache.put(after, sha256)
        return sha256

    def _read(self, file: FoundFile) -> str:
        digest = hashlib.sha256()
        with open(file.path, "rb", buffering=0) as stream:  # noqa: PTH123 - no Path per file
            size = min(file.stat.st_size + 1, _PIECE)
            while (data := stream.read(size)) and not self._stopped.is_set():
                digest.update(data)
                self._meter.add(0, len(data))
        self._meter.add(1, 0)
        return digest.hexdigest()


def _changed(file: FoundFile) -> InputChangedError:
    return InputChangedError(
        f"{file.path}: the file changed while it was being hashed. Inputs must stay as they are during "
        "a build; run again when it is complete.",
        file=file.path,
    )
