"""The inputs of a source, wherever they are: which files, in which order, and what exactly they hold.

Folders of this machine are read with ``os.scandir`` and paths stay strings: a listing may have 100,000 files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self, final

from tokenlake.base.compact import CompactTuple
from tokenlake.base.threads import in_order
from tokenlake.config.formats import Format
from tokenlake.errors import ConfigError, SourceError, SourceNotFoundError
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.file_stat import FileStat, stat_token, state
from tokenlake.etl.sources.hash_cache import FoundFile, HashCache, hash_files
from tokenlake.etl.sources.inputs import InputFile, is_hub_url, is_url, planned
from tokenlake.etl.sources.json_form import as_it_begins
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter
from tokenlake.etl.sources.patterns import expand, local_path, text_of_entry
from tokenlake.etl.sources.split_choice import Choice, FilesEntry, Select, choose, notes_of
from tokenlake.runtime.store.allowed import INPUTS, AllowedPlaces, inputs_are_bounded_here

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Enough = Callable[[InputFile], bool]
"""Called with each file in order; true ends the listing behind it."""

_REPORT_FILES: Final = 1000
_AT_ONCE: Final = 16  # beginnings of objects


def list_inputs(
    source: ResolvedSource,
    *,
    hash_threads: int = 2,
    cache: HashCache | None = None,
    on_progress: OnProgress | None = None,
    hashed: bool = True,
    enough: Enough | None = None,
    select: Select = choose,
) -> Sequence[InputFile]:
    """List the files of a source, sorted by path, each with a token of its version.

    ``{0..3}`` and ``{a,b}`` in an entry stand for several, each of which must be there.

    The root that paths are relative to is the deepest common directory of the static prefixes of
    all entries. A file matched twice is listed once, also where symbolic links lead to it: the path that comes first,
    folder by folder, is its name. A file of JSON that begins with an object on its first line
    has the format ``jsonl``, whatever its name and `type` say.

    Args:
        source: whose `data_files` to expand.
        hash_threads: how many local files are hashed at a time.
        cache: remembered hashes of local files, or None to read every file.
        on_progress: told now and then how far it is, from the hashing threads.
        hashed: False leaves local files unread; their tokens then name only size and time of change,
            which is enough to look at them and not to build from them.
        enough: called with each file in order; true ends the listing behind it.
        select: says which files of an entry are listed: by default those of the source's subset and split.

    Raises:
        SourceNotFoundError: an entry matches nothing.
        ConfigError: a file's extension says nothing and no `type` is set, entries of several storages, no such
            subset or split, or storage options for local files.
        InputChangedError: a file changed while it was being hashed.
        SourceError: a folder cannot be read, or a storage not be reached.
    """
    if not source.data_files:
        raise SourceNotFoundError(
            f"Source {source.name!r} names no data_files; give at least one file, glob or directory.",
            source=source.name,
        )
    if source.type == "hub":
        return _first(_at_urls(source, select, hub=True), enough)
    source = replace(source, data_files=tuple(spelled_out(source.data_files)))
    urls = [entry for entry in source.data_files if is_url(entry)]
    if not urls:
        return _list_local(
            source, hash_threads, cache, on_progress, hashed=hashed, enough=enough, select=select
        )
    if len(urls) < len(source.data_files):
        local = next(entry for entry in source.data_files if not is_url(entry))
        raise ConfigError(
            # Only the scheme is repeated: the rest of a URL may hold credentials.
            f"source {source.name!r}: data_files mix URLs ({urls[0].partition('://')[0]}://...) and local files "
            f"({local!r}); make them two sources",
            source=source.name,
        )
    return _first(_at_urls(source, select, hub=all(map(is_hub_url, urls))), enough)


def spelled_out(entries: Sequence[str]) -> Iterator[str]:
    """Yield entries of `data_files` with ``{0..3}`` and ``{a,b}`` spelled out; a name that is there stays."""
    for entry in entries:
        there = "{" not in entry or (not is_url(entry) and os.path.exists(os.path.expanduser(entry)))  # noqa: PTH110, PTH111
        yield from [entry] if there else formats.expand_braces(entry)


def _first(files: Iterable[InputFile], enough: Enough | None) -> list[InputFile]:
    """Return the files up to the one that is enough."""
    found: list[InputFile] = []
    for file in files:
        found.append(file)
        if enough is not None and enough(file):
            break
    return found


def _at_urls(source: ResolvedSource, select: Select, *, hub: bool) -> list[InputFile]:
    # What lists URLs takes time to import, and a worker, which lists nothing, needs none of it.
    if hub:
        from tokenlake.etl.sources.hub import list_hub as listed
    else:
        from tokenlake.etl.sources.remote import list_remote as listed
    # Of JSON a look at the beginning; of other formats nothing.
    files = listed(source, select)
    return list(in_order(lambda file: as_it_begins(file, source.storage_options), files, _AT_ONCE))


def _list_local(
    source: ResolvedSource,
    hash_threads: int,
    cache: HashCache | None,
    on_progress: OnProgress | None,
    *,
    hashed: bool,
    enough: Enough | None,
    select: Select,
) -> Sequence[InputFile]:
    if source.storage_options:
        options = ", ".join(map(repr, source.storage_options))  # what they hold may be a secret
        raise ConfigError(
            f"source {source.name!r}: storage_options: {options} given, but the files are local and take none; leave "
            "them out",
            source=source.name,
        )
    root, names, prefixes, note = _find(source, select, on_progress)
    above = root.rstrip(os.sep) + os.sep
    bounds = _Bounds.of_here(prefixes)

    def files() -> Iterator[FoundFile]:
        for name in names:
            path = above + name
            formats.format_for(name, path, source.type)
            try:
                stat = FileStat.of(path)
                if bounds is not None:
                    bounds.require(path, stat)
                yield FoundFile(name, path, stat)
            except OSError as error:
                raise SourceNotFoundError(
                    f"{path}: cannot be read ({error.strerror}). Repair or remove the link: no file is left out "
                    "silently.",
                    got=path,
                ) from error

    def as_input(file: FoundFile, token: str) -> InputFile:
        size, stat = file.stat.st_size, state(file.stat)
        return as_it_begins(
            planned(source, file.name, file.path, size=size, token=token, stat=stat, origin=note), {}
        )

    def with_hashes(found: Iterable[FoundFile], threads: int) -> Iterator[InputFile]:
        hashes = hash_files(found, threads, cache, on_progress)
        return (as_input(file, f"sha256:{sha256}") for file, sha256 in hashes)

    if enough:  # files behind the last one are not read, whatever their size
        return _first((file for one in list(files()) for file in with_hashes([one], 1)), enough)
    if hashed:
        return CompactTuple(InputFile, with_hashes(files(), hash_threads))
    return [as_input(file, stat_token(file.stat)) for file in files()]


def require_use_of_options(
    name: str, files: Iterable[InputFile], *, delimiter: str | None, text_mode: str | None
) -> None:
    """Raise ConfigError for an option of one format, if no file of a source has that format.

    Args:
        name: of the source, for messages.
        files: all files of the source.
        delimiter, text_mode: as they are configured; None where they are not.
    """
    wanted: dict[str, tuple[str, frozenset[Format]]] = {}
    if delimiter is not None:
        wanted["delimiter"] = (delimiter, frozenset({"csv", "tsv"}))
    if text_mode is not None:
        wanted["text_mode"] = (text_mode, frozenset({"text"}))
    if not wanted:
        return
    found = {file.format for file in files}
    for option, (value, formats_of_option) in wanted.items():
        if not found & formats_of_option:
            kinds = " and ".join(sorted(formats_of_option))
            raise ConfigError(
                f"source {name!r}: {option}: {value!r} is for files of {kinds}, but its files are of "
                f"{', '.join(sorted(found))}; leave it out",
                source=name,
            )


def _find(
    source: ResolvedSource, select: Select, on_progress: OnProgress | None
) -> tuple[str, list[str], list[str], str]:
    """Find the files of a source that its subset and split choose.

    Returns:
        The root, the paths below it, sorted, the static prefixes of the entries, and a note on what was chosen.
    """
    meter = ProgressMeter("listing", 0, 0, on_progress)
    prefixes: list[str] = []
    paths: set[str] = set()
    choices: list[Choice] = []
    listed = 0
    for entry in source.data_files:
        prefix, found = expand(entry, source.type)
        prefixes.append(prefix)
        below: dict[str, None] = {}
        for path in found:
            below[path] = None
            listed += 1
            if listed % _REPORT_FILES == 0:
                meter.add(_REPORT_FILES, 0)
        choice = select(_entry_of(entry, prefix, list(below), _Bounds.of_here([prefix])), source)
        choices.append(choice)
        above = prefix.rstrip(os.sep) + os.sep
        paths.update(above + name for name in choice.paths)
    root = os.path.commonpath(prefixes)
    skip = len(root.rstrip(os.sep)) + 1
    names = sorted(path[skip:] for path in each_once(paths))
    return root, names, prefixes, notes_of(choices)


def _entry_of(entry: str, prefix: str, paths: Sequence[str], bounds: _Bounds | None) -> FilesEntry:
    """Return what an entry of `data_files` stands for.

    Args:
        paths: absolute, all below `prefix`.
        bounds: Folders that a description of it must be in; None for anywhere.
    """
    base = prefix.rstrip(os.sep) + os.sep
    is_folder = os.path.isdir(local_path(entry))  # noqa: PTH112

    def read(name: str) -> str:
        path = os.path.join(prefix, name)
        if bounds is not None:
            bounds.require(path, FileStat.of(path))
        return text_of_entry(path)

    return FilesEntry(
        written=entry,
        base=base,
        folder_name=os.path.basename(prefix),  # noqa: PTH119
        paths=[path[len(base) :] for path in paths],
        is_folder=is_folder,
        names=frozenset(os.listdir(prefix)) if is_folder else frozenset(),  # noqa: PTH208
        read=read,
    )


def each_once(paths: Iterable[str]) -> list[str]:
    """Return paths without those that symbolic links lead to a file that another path names already.

    The path that comes first wins, folder by folder, as in a search of a folder: of ``latest/a.jsonl`` and
    ``v3/a.jsonl``, where ``latest`` is a link to ``v3``, that is ``latest/a.jsonl``.
    """
    real_folders: dict[str, str] = {}
    first_of: dict[str, str] = {}
    # A separator sorts before every character of a name, so that the order is that of folders.
    for path in sorted(paths, key=lambda path: path.replace(os.sep, "\0")):
        folder, _, name = path.rpartition(os.sep)
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder or os.sep)
        is_link = os.path.islink(path)  # noqa: PTH114
        real = os.path.realpath(path) if is_link else f"{real_folders[folder]}{os.sep}{name}"
        first_of.setdefault(real, path)
    return list(first_of.values())


@final
@dataclass(frozen=True, slots=True)
class _Bounds:
    """Folders that files must lie in, links followed: a worker's owner bounds where inputs may be.

    Attributes:
        folders: With a separator at the end.
    """

    folders: tuple[str, ...]

    @classmethod
    def of_here(cls, prefixes: Iterable[str]) -> Self | None:
        """Return the bounds of this process's environment; None where there are none.

        Args:
            prefixes: Folders that the user of a command has named, which are allowed to a command.
        """
        places = AllowedPlaces.of(os.environ, INPUTS)
        if not places.is_bounded:
            return None
        folders = [str(folder) for folder in places.folders]
        if not inputs_are_bounded_here():
            folders += [os.path.realpath(prefix) for prefix in prefixes]
        return cls(tuple(folder.rstrip(os.sep) + os.sep for folder in folders))

    def require(self, path: str, stat: FileStat) -> None:
        """Raise SourceError if a link leads a file out of all folders.

        Args:
            stat: Of the file that will be read: it must be the very file that was found inside.
        """
        real = os.path.realpath(path)
        is_inside = any(f"{real}{os.sep}".startswith(folder) for folder in self.folders)
        if is_inside and FileStat.of(real)[:2] == stat[:2]:
            return
        raise SourceError(
            f"{path}: a link leads it to {real!r}, outside what this environment allows ({INPUTS}); remove the "
            "link, or allow that folder",
            got=path,
        )
