"""The inputs of a source, wherever they are: which files, in which order, and what exactly they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.sources.globs import expand_braces
from tokenlake.sources.hash_cache import HashCache
from tokenlake.sources.inputs import InputFile, OnProgress, is_hub_url, is_url
from tokenlake.sources.local import Enough, list_local
from tokenlake.sources.opening import as_it_begins
from tokenlake.threads import in_order

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_AT_ONCE: Final = 16  # beginnings of objects


def list_inputs(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: OnProgress | None = None,
    hashed: bool = True,
    enough: Enough | None = None,
) -> list[InputFile]:
    """List the files of a source, sorted by path, each with a token of its version.

    ``{0..3}`` and ``{a,b}`` in an entry stand for several, each of which must be there.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once. A file of JSON that begins with an object on its first line
    has the format ``jsonl``, whatever its name and `type` say.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many local files are hashed at a time.
        cache: remembered hashes of local files, or None to read every file.
        on_progress: told now and then how far it is, from the hashing threads.
        hashed: False leaves local files unread; their tokens then name only size and time of change,
            which is enough to look at them and not to build from them.
        enough: called with each file in order; true ends the listing behind it.

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
        return _first(_at_urls(source, hub=True), enough)
    source = replace(source, data_files=tuple(spelled_out(source.data_files)))
    urls = [entry for entry in source.data_files if is_url(entry)]
    if not urls:
        return list_local(
            source,
            hash_threads=hash_threads,
            cache=cache,
            on_progress=on_progress,
            hashed=hashed,
            enough=enough,
        )
    if len(urls) < len(source.data_files):
        local = next(entry for entry in source.data_files if not is_url(entry))
        raise ConfigError(
            # Only the scheme is repeated: the rest of a URL may hold credentials.
            f"source {source.name!r}: data_files mix URLs ({urls[0].partition('://')[0]}://...) and local files "
            f"({local!r}); make them two sources",
            source=source.name,
        )
    return _first(_at_urls(source, hub=all(map(is_hub_url, urls))), enough)


def spelled_out(entries: Sequence[str]) -> Iterator[str]:
    """Yield entries of `data_files` with ``{0..3}`` and ``{a,b}`` spelled out; a name that is there stays."""
    for entry in entries:
        there = "{" not in entry or (not is_url(entry) and os.path.exists(os.path.expanduser(entry)))  # noqa: PTH110, PTH111
        yield from [entry] if there else expand_braces(entry)


def _first(files: list[InputFile], enough: Enough | None) -> list[InputFile]:
    """Return the files up to the one that is enough."""
    if enough is None:
        return files
    end = next((index for index, file in enumerate(files, 1) if enough(file)), len(files))
    return files[:end]


def _at_urls(source: ResolvedSource, *, hub: bool) -> list[InputFile]:
    # What lists URLs takes time to import, and a worker, which lists nothing, needs none of it.
    if hub:
        from tokenlake.sources.hub import list_hub as listed
    else:
        from tokenlake.sources.remote import list_remote as listed
    # Of JSON a look at the beginning; of other formats nothing.
    return list(in_order(lambda file: as_it_begins(file, source.storage_options), listed(source), _AT_ONCE))
