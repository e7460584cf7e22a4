"""Inputs that are files of this machine: which, in which order, and what exactly they hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from tokenlake.errors import SourceError, SourceNotFoundError
from tokenlake.fingerprint import file_id
from tokenlake.sources.formats import Compression, Format, compression_of, format_for
from tokenlake.sources.inputs import InputFile, OnProgress, ProgressMeter, state
from tokenlake.sources.local.hash_cache import FoundFile, HashCache, hash_files
from tokenlake.sources.local.patterns import expand
from tokenlake.sources.stream import as_it_begins
from tokenlake.store.remote.url import INPUTS, entries_of

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource, SourceType

Enough = Callable[[InputFile], bool]
"""Called with each file in order; true ends the listing behind it."""

_REPORT_FILES: Final = 1000


def list_local(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: OnProgress | None = None,
    hashed: bool = True,
    enough: Enough | None = None,
) -> list[InputFile]:
    """List and hash the files of a source, sorted by path.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many files are hashed at a time.
        cache: remembered hashes, or None to read every file.
        on_progress: told now and then how far it is, from the hashing threads.
        hashed: False leaves the files unread; their tokens are then ``stat:<inode>-<mtime>-<ctime>``.
        enough: ends the listing early; files behind the last one are not read, whatever their size.

    Raises:
        SourceNotFoundError: an entry matches nothing, or a link leads nowhere.
        ConfigError: a file's extension says nothing and no `type` is set.
        InputChangedError: a file changed while it was being hashed.
        SourceError: a folder cannot be read.
    """
    root, names = _find(source, on_progress)
    kinds = _Kinds(source.type)
    for name in names:
        kinds.of(name, root)
    found = [_found(name, os.path.join(root, name)) for name in names]
    if enough:
        files: list[InputFile] = []
        for file in found:
            [sha256] = hash_files([file], 1, cache, on_progress)
            files.append(_input_file(source, file, f"sha256:{sha256}", kinds))
            if enough(files[-1]):
                break
        return files
    if hashed:
        tokens = [f"sha256:{sha256}" for sha256 in hash_files(found, hash_threads, cache, on_progress)]
    else:
        tokens = ["stat:" + "-".join(map(str, state(file.stat))) for file in found]
    return [_input_file(source, file, token, kinds) for file, token in zip(found, tokens, strict=True)]


def _find(source: ResolvedSource, on_progress: OnProgress | None) -> tuple[str, list[str]]:
    """Return the root and the paths below it, sorted."""
    meter = ProgressMeter("listing", 0, 0, on_progress)
    inside = _Inside(entries_of(os.environ.get(INPUTS)))
    prefixes: list[str] = []
    paths: set[str] = set()
    for entry in source.data_files:
        prefix, found = expand(entry, source.type)
        prefixes.append(prefix)
        real = os.path.realpath(prefix)
        for path in found:
            inside.require(path, real)
            paths.add(path)
            if len(paths) % _REPORT_FILES == 0:
                meter.add(_REPORT_FILES, 0)
    root = os.path.commonpath(prefixes)
    skip = len(root.rstrip(os.sep)) + 1
    return root, sorted(path[skip:] for path in paths)


@final
class _Inside:
    """Where a worker's owner bounds the inputs, links in their folders must not lead out of them."""

    def __init__(self, allowed: list[str] | None) -> None:
        self._bounded = allowed is not None
        folders = [entry for entry in allowed or () if "://" not in entry]
        self._folders = [os.path.realpath(os.path.expanduser(folder)) for folder in folders]  # noqa: PTH111

    def require(self, path: str, prefix: str) -> None:
        """Raise SourceError if a link below `prefix` leads a file that was found to where no input may be."""
        if not self._bounded:
            return
        real = os.path.realpath(path)
        if not any(_is_in(real, folder) for folder in (prefix, *self._folders)):
            raise SourceError(
                f"{path}: a link leads it to {real!r}, outside what this environment allows ({INPUTS}); remove the "
                "link, or allow that folder",
                got=path,
            )


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _found(name: str, path: str) -> FoundFile:
    try:
        return FoundFile(name, path, os.stat(path))  # noqa: PTH116 - no Path per file
    except OSError as error:
        raise SourceNotFoundError(
            f"{path}: cannot be read ({error.strerror}). Repair or remove the link: no file is left out "
            "silently.",
            got=path,
        ) from error


def _input_file(source: ResolvedSource, found: FoundFile, token: str, kinds: _Kinds) -> InputFile:
    format_, compression = kinds.of(found.name, "")
    file = InputFile(
        source=source.name,
        path=found.name,
        url=found.path,
        size=found.stat.st_size,
        token=token,
        stat=state(found.stat),
        format=format_,
        compression=compression,
        file_id=file_id(source.name, found.name),
        text_mode=source.text_mode,
    )
    return as_it_begins(file, {})


@final
class _Kinds:
    """Format and compression of names, worked out once for each ending."""

    def __init__(self, wanted: SourceType | None) -> None:
        self._wanted: SourceType | None = wanted
        self._known: dict[str, tuple[Format, Compression | None]] = {}

    def of(self, name: str, root: str) -> tuple[Format, Compression | None]:
        """Return what a name stands for; ConfigError if it stands for nothing and no type is set."""
        base = name[name.rfind("/") + 1 :]
        ending = base[base.find(".", 1) :] if "." in base[1:] else ""
        if ending not in self._known:
            shown = os.path.join(root, name)
            self._known[ending] = (format_for(base, shown, self._wanted), compression_of(base))
        return self._known[ending]
