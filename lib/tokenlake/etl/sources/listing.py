"""The inputs of a source: its files, their order, and the exact content of each.

Folders of this machine are read with ``os.scandir`` and paths stay strings: a listing
may have 100,000 files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self, final

from tokenlake.base.compact import CompactTuple
from tokenlake.base.threads import in_order
from tokenlake.config.formats import TOKEN_TYPES, Format
from tokenlake.errors import ConfigError, SourceError, SourceNotFoundError
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.companions import (
    choosing_with_companions,
    companions_beside,
    with_companions,
)
from tokenlake.etl.sources.file_stat import FileStat, stat_token, state
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.hashing import FoundFile, hash_files
from tokenlake.etl.sources.inputs import InputFile, is_hub_url, is_url, planned
from tokenlake.etl.sources.json_form import as_it_begins
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter
from tokenlake.etl.sources.patterns import expand, local_path, text_of_entry
from tokenlake.etl.sources.split_choice import (
    Choice,
    FilesEntry,
    Select,
    choose,
    notes_of,
)
from tokenlake.runtime.store.allowed import (
    INPUTS,
    AllowedPlaces,
    inputs_are_bounded_here,
)

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

Enough = Callable[[InputFile], bool]
"""Function that is called with each file in order; true ends the listing behind it."""

# Rare enough to cost nothing beside the listing itself.
_REPORT_FILES: Final = 1000
_PARALLEL_LOOKS: Final = 16  # beginnings of objects that are read at a time


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

    ``{0..3}`` and ``{a,b}`` in an entry stand for several names, each of which must
    exist.

    Paths are relative to a root: the deepest common directory of the static prefixes of
    all entries. A file that is matched twice is listed once, also if symbolic links
    lead to it: the path that comes first, folder by folder, is its name. A file of JSON
    that begins with an object on its first line has the format ``jsonl``, whatever its
    name and `type` say.

    Args:
        source: Source whose `data_files` are expanded.
        hash_threads: Number of local files that are hashed at a time.
        cache: Remembered hashes of local files, None to read every file.
        on_progress: Function that receives the progress now and then, from the hashing
            threads.
        hashed: False to leave local files unread. Their tokens then name only size and
            time of change, which is enough to inspect them, and not to build from them.
        enough: Function that is called with each file in order; true ends the listing
            behind it.
        select: Function that chooses the files of an entry: by default those of the
            source's subset and split.

    Raises:
        SourceNotFoundError: An entry matches nothing.
        ConfigError: A file's extension is unknown and no `type` is set, entries are of
            several storages, the subset or split is missing, or storage options are
            given for local files.
        InputChangedError: A file changed while it was being hashed.
        SourceError: A folder cannot be read, or a storage cannot be reached.
    """
    if source.type in TOKEN_TYPES and enough is not None:
        # A file is listed with those that belong to it, of which some come after it.
        files = list_inputs(
            source,
            hash_threads=hash_threads,
            cache=cache,
            on_progress=on_progress,
            hashed=hashed,
            select=select,
        )
        return _first_files(files, enough)
    select = choosing_with_companions(select, source.type)
    if not source.data_files:
        raise SourceNotFoundError(
            f"Source {source.name!r} has no data_files; give at least one file, glob or directory.",
            source=source.name,
        )
    # An id of the Hub is no path and no URL, and is not spelled out.
    if source.type == "hub":
        return _first_files(_list_urls(source, select, is_hub=True), enough)
    source = replace(source, data_files=tuple(spelled_out(source.data_files)))
    urls = _all_urls(source)
    if not urls:
        return _list_local(
            source,
            hash_threads,
            cache,
            on_progress,
            hashed=hashed,
            enough=enough,
            select=select,
        )
    is_hub = all(is_hub_url(url) for url in urls)
    files = _list_urls(source, select, is_hub=is_hub)
    return _first_files(with_companions(files, source.type), enough)


def _all_urls(source: ResolvedSource) -> list[str]:
    """Return the entries of a source if they are URLs, [] if they are local.

    Raises:
        ConfigError: Some entries are URLs and others are local.
    """
    urls = [entry for entry in source.data_files if is_url(entry)]
    if urls and len(urls) < len(source.data_files):
        local_entry = next(entry for entry in source.data_files if not is_url(entry))
        # Only the scheme is repeated: the rest of a URL may hold credentials.
        scheme = urls[0].partition("://")[0]
        raise ConfigError(
            f"source {source.name!r}: data_files mix URLs ({scheme}://...) and local files "
            f"({local_entry!r}); make them two sources",
            source=source.name,
        )
    return urls


def spelled_out(entries: Sequence[str]) -> Iterator[str]:
    """Yield entries of `data_files` with ``{0..3}`` and ``{a,b}`` spelled out.

    The name of an existing file stays as it is.
    """
    # Braces are characters of a file name, too.
    for entry in entries:
        is_plain = "{" not in entry
        if is_plain or _is_existing_file(entry):
            yield entry
        else:
            yield from formats.expand_braces(entry)


def _is_existing_file(entry: str) -> bool:
    """Say whether an entry with braces is the name of a file of this machine."""
    if is_url(entry):
        return False
    return os.path.exists(os.path.expanduser(entry))  # noqa: PTH110, PTH111


def _first_files(files: Iterable[InputFile], enough: Enough | None) -> list[InputFile]:
    """Return the files up to the one that is enough."""
    listed: list[InputFile] = []
    for file in files:
        listed.append(file)
        if enough is not None and enough(file):
            break
    return listed


def _list_urls(
    source: ResolvedSource, select: Select, *, is_hub: bool
) -> list[InputFile]:
    """List the files of a source on the Hub, or at URLs."""
    # The modules that list URLs take time to import, and a worker, which lists nothing,
    # needs none of them.
    if is_hub:
        from tokenlake.etl.sources.hub import list_hub as list_files
    else:
        from tokenlake.etl.sources.remote import list_remote as list_files
    files = list_files(source, select)

    # Of files of JSON the beginning is read; of other formats nothing.
    def with_format(file: InputFile) -> InputFile:
        return as_it_begins(file, source.storage_options)

    return list(in_order(with_format, files, _PARALLEL_LOOKS))


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
    """List files of this machine; see :func:`list_inputs`."""
    if source.storage_options:
        # Only names: the values may be secrets.
        options = ", ".join(map(repr, source.storage_options))
        raise ConfigError(
            f"source {source.name!r}: storage_options: {options} given, but local files have no such options; leave "
            "them out",
            source=source.name,
        )
    listing = _find_files(source, select, on_progress)
    files = _stat_files(source, listing)

    def as_input(file: FoundFile, token: str) -> InputFile:
        file_size = file.stat.st_size
        stat = state(file.stat)
        note = listing.note
        planned_file = planned(
            source,
            file.name,
            file.path,
            size=file_size,
            token=token,
            stat=stat,
            origin=note,
        )
        return as_it_begins(planned_file, {})

    def with_hashes(
        found_files: Iterable[FoundFile], threads: int
    ) -> Iterator[InputFile]:
        for file, sha256 in hash_files(found_files, threads, cache, on_progress):
            yield as_input(file, f"sha256:{sha256}")

    if enough:
        # One after the other: files behind the last one are not read, whatever their
        # size.
        def hash_one_by_one() -> Iterator[InputFile]:
            for found_file in list(files):
                yield from with_hashes([found_file], 1)

        return _first_files(hash_one_by_one(), enough)
    if hashed:
        # There may be a million files: compact ones take a tenth of the memory.
        return CompactTuple(
            InputFile, with_companions(with_hashes(files, hash_threads), source.type)
        )
    # To inspect a source, the state of a file is enough.
    unhashed_files = [as_input(file, stat_token(file.stat)) for file in files]
    return list(with_companions(unhashed_files, source.type))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalListing:
    """Local files that a source's subset and split choose.

    Attributes:
        root: Deepest common directory of the entries.
        names: Paths below it, sorted.
        prefixes: Static prefix of each entry.
        note: Note on the choice, "" if there is nothing to say.
    """

    root: str
    names: list[str]
    prefixes: list[str]
    note: str


def _find_files(
    source: ResolvedSource, select: Select, on_progress: OnProgress | None
) -> _LocalListing:
    """Find the files of a source that its subset and split choose."""
    meter = ProgressMeter("listing", 0, 0, on_progress)
    prefixes: list[str] = []
    paths: set[str] = set()
    choices: list[Choice] = []
    path_count = 0
    for entry in source.data_files:
        # 1. The files that the entry stands for, without repetitions.
        prefix, matches = expand(entry, source.type)
        prefixes.append(prefix)
        paths_of_entry: dict[str, None] = {}  # without repetitions, in order
        for path in matches:
            paths_of_entry[path] = None
            path_count += 1
            if path_count % _REPORT_FILES == 0:
                meter.add(_REPORT_FILES, 0)
        # 2. Those of them that the source's subset and split choose, and their
        #    companions.
        bounds = _Bounds.of_here([prefix])
        choice = select(
            _files_entry(entry, prefix, list(paths_of_entry), bounds), source
        )
        choices.append(choice)
        path_prefix = _with_separator(prefix)
        paths_of_choice = [path_prefix + name for name in choice.paths]
        paths.update(paths_of_choice)
        paths.update(companions_beside(paths_of_choice, source.type))
    # 3. The root: the same files have the same names, wherever the root lies.
    root = os.path.commonpath(prefixes)
    root_size = len(_with_separator(root))
    names = sorted(path[root_size:] for path in each_once(paths))
    return _LocalListing(
        root=root, names=names, prefixes=prefixes, note=notes_of(choices)
    )


def _stat_files(source: ResolvedSource, listing: _LocalListing) -> Iterator[FoundFile]:
    """Yield the files of a listing with their present state.

    Raises:
        SourceNotFoundError: A file cannot be read.
        SourceError: A link leads out of the allowed folders.
        ConfigError: The extension of a file is unknown and no `type` is set.
    """
    folder = _with_separator(listing.root)
    bounds = _Bounds.of_here(listing.prefixes)
    for name in listing.names:
        path = folder + name
        formats.format_for(name, path, source.type)
        try:
            stat = FileStat.of(path)
            if bounds is not None:
                bounds.require(path, stat)
            yield FoundFile(name, path, stat)
        except OSError as error:
            raise SourceNotFoundError(
                f"{path}: cannot be read ({error.strerror}). Repair or remove the link: files are never skipped "
                "silently.",
                got=path,
            ) from error


def _with_separator(folder: str) -> str:
    """Return a folder with one separator at its end."""
    return folder.rstrip(os.sep) + os.sep


def require_use_of_options(
    name: str,
    files: Iterable[InputFile],
    *,
    delimiter: str | None,
    text_mode: str | None,
) -> None:
    """Refuse an option of one format if no file of a source has that format.

    An option without effect is a mistake, which the user would otherwise not notice.

    Args:
        name: Name of the source, for messages.
        files: All files of the source.
        delimiter: Delimiter of CSV that is configured, None for none.
        text_mode: Mode of text files that is configured, None for none.
    """
    formats_of_option: dict[str, tuple[str, frozenset[Format]]] = {}
    if delimiter is not None:
        formats_of_option["delimiter"] = (delimiter, frozenset({"csv", "tsv"}))
    if text_mode is not None:
        formats_of_option["text_mode"] = (text_mode, frozenset({"text"}))
    if not formats_of_option:
        return
    formats_of_files = {file.format for file in files}
    for option, (value, option_formats) in formats_of_option.items():
        if not formats_of_files & option_formats:
            raise ConfigError(
                f"source {name!r}: {option}: {value!r} is for files of {' and '.join(sorted(option_formats))}, but its "
                f"files are of {', '.join(sorted(formats_of_files))}; leave it out",
                source=name,
            )


def _files_entry(
    entry: str, prefix: str, paths: Sequence[str], bounds: _Bounds | None
) -> FilesEntry:
    """Return an entry of `data_files` with the files that it stands for.

    Args:
        entry: The entry as it was written.
        prefix: Its static prefix, a directory.
        paths: Absolute paths of its files, all below `prefix`.
        bounds: Folders that a description of it must be in; None for anywhere.
    """
    base = _with_separator(prefix)
    is_folder = os.path.isdir(local_path(entry))  # noqa: PTH112
    # The names of the whole folder, not only of data, show how it was written.
    names: frozenset[str] = frozenset()
    if is_folder:
        names = frozenset(os.listdir(prefix))  # noqa: PTH208

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
        names=names,
        read=read,
    )


def each_once(paths: Iterable[str]) -> list[str]:
    """Return paths without those that lead to a file that another path names.

    The path that comes first wins, folder by folder, as in a search of a folder: of
    ``latest/a.jsonl`` and ``v3/a.jsonl``, if ``latest`` is a link to ``v3``, that is
    ``latest/a.jsonl``.
    """
    real_folders: dict[str, str] = {}
    path_of_file: dict[str, str] = {}  # real path to the first path that leads to it
    # A separator sorts before every character of a name, so that the order is that of
    # Folders have few links: the real path of each is found once, not once per file.
    # folders.
    for path in sorted(paths, key=lambda path: path.replace(os.sep, "\0")):
        if os.path.islink(path):  # noqa: PTH114
            real_path = os.path.realpath(path)
        else:
            folder, _, name = path.rpartition(os.sep)
            if folder not in real_folders:
                real_folders[folder] = os.path.realpath(folder or os.sep)
            real_path = f"{real_folders[folder]}{os.sep}{name}"
        path_of_file.setdefault(real_path, path)
    return list(path_of_file.values())


@final
@dataclass(frozen=True, slots=True)
class _Bounds:
    """Folders that files must lie in, links followed.

    A worker's owner bounds the places of inputs.

    Attributes:
        folders: Folders, each with a separator at its end.
    """

    folders: tuple[str, ...]

    @classmethod
    def of_here(cls, prefixes: Iterable[str]) -> Self | None:
        """Return the bounds of this process's environment, None if it sets none.

        Args:
            prefixes: Folders that the user of a command has named, which are allowed to
                a command.
        """
        places = AllowedPlaces.of(os.environ, INPUTS)
        if not places.is_bounded:
            return None
        # A person who runs a command may read what the person names. A worker obeys its
        # owner alone.
        folders = [str(folder) for folder in places.folders]
        if not inputs_are_bounded_here():
            folders += [os.path.realpath(prefix) for prefix in prefixes]
        return cls(tuple(_with_separator(folder) for folder in folders))

    def require(self, path: str, stat: FileStat) -> None:
        """Raise SourceError if a link leads a file out of all folders.

        Args:
            path: Path of the file.
            stat: State of the file that will be read: it must be the very file that was
                found inside.
        """
        real_path = os.path.realpath(path)
        is_inside = any(
            f"{real_path}{os.sep}".startswith(folder) for folder in self.folders
        )
        # Compared with the file that was found, in case a link is changed between the
        # check and the read.
        if is_inside and FileStat.of(real_path)[:2] == stat[:2]:
            return
        raise SourceError(
            f"{path}: a link points to {real_path!r}, outside the folders that this environment allows ({INPUTS}); "
            "remove the link, or allow that folder",
            got=path,
        )
