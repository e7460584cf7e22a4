"""The inputs of a source, wherever they are: which files, in which order, and what exactly they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources.hashcache import HashCache
from tokenlake.sources.hub import list_hub
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.local import list_local
from tokenlake.sources.patterns import is_url
from tokenlake.sources.remotelisting import list_remote

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Progress = Callable[[int, int], None]  # (bytes known so far, bytes in all)


def list_inputs(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: Progress | None = None,
    hashed: bool = True,
) -> list[InputFile]:
    """List the files of a source, sorted by path, each with a token of its version.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many local files are hashed at a time.
        cache: remembered hashes of local files, or None to read every file.
        on_progress: called with (bytes known so far, bytes in all), from the hashing threads.
        hashed: read local files for their sha256; else their token is the state the file system shows,
            which is enough to read them, but is no identity.

    Raises:
        SourceNotFoundError: an entry matches nothing.
        ConfigError: a file's extension says nothing and no `type` is set, or entries of several storages.
        InputChangedError: a file changed while it was being hashed.
    """
    if not source.data_files:
        raise SourceNotFoundError(
            f"Source {source.name!r} names no data_files; give at least one file, glob or directory.",
            source=source.name,
        )
    if source.type == "hub":
        return list_hub(source)
    urls = [entry for entry in source.data_files if is_url(entry)]
    if not urls:
        return list_local(
            source, hash_threads=hash_threads, cache=cache, on_progress=on_progress, hashed=hashed
        )
    if len(urls) < len(source.data_files):
        local = next(entry for entry in source.data_files if not is_url(entry))
        raise ConfigError(
            f"source {source.name!r}: data_files mix URLs ({urls[0]!r}) and local files ({local!r}); "
            "make them two sources",
            source=source.name,
        )
    return list_remote(source)
