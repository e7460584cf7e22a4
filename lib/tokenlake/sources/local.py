"""Inputs that are files of this machine: which, in which order, and what exactly they hold."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tokenlake.errors import InputChangedError
from tokenlake.fingerprint import file_id, sha256_file
from tokenlake.sources.formats import Format, compression_of, format_for
from tokenlake.sources.hashcache import HashCache
from tokenlake.sources.inputbytes import state
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.patterns import expand

if TYPE_CHECKING:
    from tokenlake.config.resolve import ResolvedSource

Progress = Callable[[int, int], None]  # (bytes known so far, bytes in all)


def list_local(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: Progress | None = None,
    hashed: bool = True,
) -> list[InputFile]:
    """List and hash the files of a source, sorted by path.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many files are hashed at a time.
        cache: remembered hashes, or None to read every file.
        on_progress: called with (bytes known so far, bytes in all), from the hashing threads.
        hashed: read the files for their sha256; else the token is (inode, mtime, ctime).

    Raises:
        SourceNotFoundError: an entry matches nothing.
        ConfigError: a file's extension says nothing and no `type` is set.
        InputChangedError: a file changed while it was being hashed.
    """
    root, paths = _find(source)
    named = [(path.relative_to(root).as_posix(), path) for path in paths]
    formats: dict[str, Format] = {name: format_for(name, str(path), source.type) for name, path in named}
    meter = _Meter(sum(path.stat().st_size for path in paths), on_progress)

    def seal(item: tuple[str, Path]) -> InputFile:
        name, path = item
        stat, token = _hash(path, cache) if hashed else _looked_at(path)
        meter.add(stat.st_size)
        return _input_file(source, name, path, stat, token, formats[name])

    with ThreadPoolExecutor(max(1, hash_threads)) as pool:
        return list(pool.map(seal, sorted(named)))


def _find(source: ResolvedSource) -> tuple[Path, list[Path]]:
    prefixes: list[str] = []
    paths: dict[Path, None] = {}
    for entry in source.data_files:
        prefix, found = expand(entry, source.type)
        prefixes.append(str(prefix))
        paths.update(dict.fromkeys(found))
    return Path(os.path.commonpath(prefixes)), list(paths)


def _hash(path: Path, cache: HashCache | None) -> tuple[os.stat_result, str]:
    before = path.stat()
    known = cache.get(before) if cache else None
    if known:
        return before, f"sha256:{known}"
    sha256 = sha256_file(path)
    after = path.stat()
    if state(after) != state(before) or after.st_size != before.st_size:
        raise InputChangedError(
            f"{path}: the file changed while it was being hashed. Inputs must stay as they are during "
            "a build; run again when it is complete.",
            file=str(path),
        )
    if cache:
        cache.put(after, sha256)
    return after, f"sha256:{sha256}"


def _looked_at(path: Path) -> tuple[os.stat_result, str]:
    stat = path.stat()
    return stat, "stat:" + "-".join(map(str, state(stat)))


def _input_file(
    source: ResolvedSource, name: str, path: Path, stat: os.stat_result, token: str, format_: Format
) -> InputFile:
    return InputFile(
        source=source.name,
        path=name,
        url=str(path),
        size=stat.st_size,
        token=token,
        stat=state(stat),
        format=format_,
        compression=compression_of(name),
        file_id=file_id(source.name, name),
        text_mode=source.text_mode,
    )


class _Meter:
    """Adds up progress from several threads."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self._total, self._done, self._report = total, 0, on_progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._report:
                self._report(self._done, self._total)
