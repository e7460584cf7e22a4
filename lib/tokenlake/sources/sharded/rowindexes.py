"""Row indexes that were made before, in memory and beside the remembered hashes.

What is stored is a convenience: an index that is missing, cut, corrupt or of another state of the file is
made again, and one that cannot be stored is no error.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import numpy as np
import xxhash

from tokenlake.fingerprint import canonical_json
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.local.hashcache import default_path
from tokenlake.sources.sharded.rowindex import RowIndex, no_index

_RACY_NS: Final = 2_000_000_000  # a file this fresh may change again within one clock tick
_VERSION: Final = 1
_LEAST: Final = 16 << 20  # bytes; what is scanned faster than a file is opened need not be stored
_HEAD: Final = 3  # count, end, complete
_DIGEST: Final = 16  # bytes of an xxh3_128


@final
class RowIndexes:
    """Indexes of the rows of line files, by the state that a file is in."""

    def __init__(self, directory: str | os.PathLike[str] | None = None, least: int = _LEAST) -> None:
        """Keep indexes of files of at least `least` scanned bytes in `directory` (default: the cache's)."""
        self._directory, self._least = directory, least
        self._known: dict[InputFile, RowIndex] = {}

    def get(self, file: InputFile) -> RowIndex:
        """Return what is known of `file`, perhaps nothing."""
        found = self._known.get(file)
        if found is None:
            found = no_index()
            with suppress(OSError, RuntimeError):
                found = _unpacked(self._path(file).read_bytes(), _key(file)) or found
            self._known[file] = found
        return found

    def put(self, file: InputFile, index: RowIndex) -> None:
        """Remember `index`; a file that changed within the last two seconds may still change unseen."""
        self._known[file] = index
        fresh = file.is_local and time.time_ns() - max(file.stat[1:]) < _RACY_NS
        if index.end < self._least or fresh:
            return
        with suppress(OSError, RuntimeError):
            _replace(self._path(file), _packed(index, _key(file)))

    def _path(self, file: InputFile) -> Path:
        folder = default_path().parent / "rows" if self._directory is None else Path(self._directory)
        return folder / f"{xxhash.xxh3_128_hexdigest(_key(file))}.rows"


def _key(file: InputFile) -> bytes:
    """Return what tells this state of the file, and what counts as a row in it, from any other."""
    state = [*file.stat] if file.is_local else file.token
    return canonical_json([_VERSION, file.url, file.size, state, file.format])


def _packed(index: RowIndex, key: bytes) -> bytes:
    head = np.array([index.count, index.end, int(index.complete)], np.int64)
    body = np.concatenate([head, index.rows, index.offsets]).astype("<i8").tobytes()
    return xxhash.xxh3_128_digest(key + body) + body


def _unpacked(data: bytes, key: bytes) -> RowIndex | None:
    digest, body = data[:_DIGEST], data[_DIGEST:]
    if xxhash.xxh3_128_digest(key + body) != digest or len(body) < 8 * _HEAD:
        return None
    numbers = np.frombuffer(body, "<i8").astype(np.int64)
    rows, offsets = np.split(numbers[_HEAD:], 2)
    count, end, complete = numbers[:_HEAD].tolist()
    return RowIndex(rows=rows, offsets=offsets, count=count, end=end, complete=bool(complete))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
