"""Inputs at URLs: their listing and their bytes.

Schemes are S3, GCS, HTTP(S), and others for which fsspec has a package.

Requests are those of :mod:`tokenlake.runtime.store.remote`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.config.formats import SourceType
from tokenlake.errors import ConfigError, SourceError, SourceNotFoundError
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.companions import has_companions, possible_companions
from tokenlake.etl.sources.descriptions import without_descriptions
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import InputFile, planned
from tokenlake.etl.sources.layout import describes
from tokenlake.etl.sources.ranged_bytes import ReadAheadBytes
from tokenlake.etl.sources.split_choice import (
    Choice,
    FilesEntry,
    Select,
    choose,
    notes_of,
)
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.downloads import spooled
from tokenlake.runtime.store.failures import Failures
from tokenlake.runtime.store.objects import (
    NoRangesError,
    OtherObjectError,
    RemoteObject,
)
from tokenlake.runtime.store.sessions import client_at, on_loop
from tokenlake.runtime.store.url import Url, parse_url

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


_PARALLEL_REQUESTS: Final = 16  # for single objects
_NEAR_NAMES: Final = 1000  # of a folder that are compared with a name that is missing
_DESCRIPTION_BYTES: Final = 16 << 20  # of a file that describes a folder
_COMPRESSION_OF_ENCODING: Final[dict[str, formats.Compression]] = {
    "gzip": "gzip",
    "x-gzip": "gzip",
    "zstd": "zstd",
}

OF_INPUTS: Final = Failures(
    option="data_files",
    failed=SourceError,
    missing=SourceNotFoundError,
    advice="run again: finished units are kept",
)
"""Errors of a build whose storage fails: those of inputs."""


def list_remote(source: ResolvedSource, select: Select = choose) -> list[InputFile]:
    """List the objects that the URLs of a source stand for, sorted by path.

    An entry is an object, a glob, or a folder, which is searched for known extensions
    below it; names that begin with a dot or an underscore are left out there. Files
    that belong to an object or to matches of a glob, such as ``metadata.json``, are
    listed with them. Paths are relative to the deepest common folder of all entries.
    Each folder or glob costs one listing, never a request per object.

    Args:
        source: Source whose `data_files` are listed.
        select: Function that chooses the files of an entry.

    Raises:
        SourceNotFoundError: An entry matches nothing; the message names near matches.
        SourceError: The storage cannot be reached, or refuses access.
        ConfigError: A URL holds credentials, entries are of several storages, a glob is
            on a web server, or an extension is unknown and no `type` is set.
        MissingExtraError: The package for a scheme is missing.
    """
    urls = _urls_of_one_storage(source)
    first_url = urls[0]
    client = client_at(first_url, source.storage_options, OF_INPUTS)
    entries = on_loop(_Finder(client, source.type).find_all(urls))

    # Of each entry the files of one split; a file that several entries name once.
    objects: dict[str, RemoteObject] = {}
    choices: list[Choice] = []
    for url, entry in zip(urls, entries, strict=True):
        choice, chosen_objects = _choose_objects(url, entry, source, select)
        choices.append(choice)
        for remote_object in chosen_objects:
            objects[remote_object.path] = remote_object
    note = notes_of(choices)

    # Their paths are relative to the deepest folder that all entries are in.
    root = _common_folder([entry.folder for entry in entries])
    files: list[InputFile] = []
    for path in sorted(objects):
        remote_object = objects[path]
        files.append(
            planned(
                source,
                path[len(root) :],
                str(Url(first_url.scheme, first_url.root, path)),
                size=remote_object.size,
                token=remote_object.token,
                compression=_COMPRESSION_OF_ENCODING.get(remote_object.packed),
                origin=note,
            )
        )
    return files


def _urls_of_one_storage(source: ResolvedSource) -> list[Url]:
    """Return the entries of a source as URLs.

    Raises:
        ConfigError: They are of several storages, in which paths could be the same.
    """
    urls = [parse_url(entry) for entry in source.data_files]
    first_root = urls[0].root
    for url in urls:
        if url.root != first_root:
            raise ConfigError(
                f"source {source.name!r}: data_files are of two storages, {first_root} and {url.root}; make them "
                "two sources",
                source=source.name,
            )
    return urls


def _common_folder(folders: Sequence[str]) -> str:
    """Return the deepest folder that all folders are in; "" for the top.

    It has a slash at its end.
    """
    parts_of_folders = [folder.split("/") if folder else [] for folder in folders]
    common_folder = ""
    for parts_at_depth in zip(*parts_of_folders, strict=False):
        if len(set(parts_at_depth)) > 1:
            break
        common_folder += f"{parts_at_depth[0]}/"
    return common_folder


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Objects that an entry of `data_files` stands for.

    Attributes:
        folder: Folder that all objects are in, without a slash at its end; "" for the
            top.
        objects: Objects whose names say that they are data.
        is_folder: Whether the entry is that folder.
        every: All objects of the folder; empty unless the entry is a folder.
    """

    folder: str
    objects: list[RemoteObject]
    is_folder: bool = False
    every: list[RemoteObject] = field(default_factory=list["RemoteObject"])


def _choose_objects(
    url: Url, entry: _Entry, source: ResolvedSource, select: Select
) -> tuple[Choice, list[RemoteObject]]:
    """Return the objects of an entry that are read.

    They are data, of one subset and split.

    Args:
        url: The entry.
        entry: Its objects.
        source: The source.
        select: Function that chooses the files of an entry.
    """
    # Paths are relative to the folder of the entry.
    prefix = f"{entry.folder}/" if entry.folder else ""
    object_of_path: dict[str, RemoteObject] = {}
    for remote_object in entry.objects:
        object_of_path[remote_object.path.removeprefix(prefix)] = remote_object
    object_of_name: dict[str, RemoteObject] = {}
    for remote_object in entry.every:
        object_of_name[remote_object.path.removeprefix(prefix)] = remote_object

    def read(name: str) -> str:
        return _text_of(url, object_of_name[name], source)

    paths = list(object_of_path)
    names: frozenset[str] = frozenset()
    if entry.is_folder:
        names = frozenset(object_of_name)
        paths = without_descriptions(paths, object_of_name, read)
        if not paths:
            every_path = (remote_object.path for remote_object in entry.every)
            raise formats.nothing_known(
                f"{str(url)!r}", every_path, source.type, str(url)
            )
    files_entry = FilesEntry(
        written=str(url),
        base=str(Url(url.scheme, url.root, prefix)),
        folder_name=entry.folder.rpartition("/")[2],
        paths=paths,
        is_folder=entry.is_folder,
        names=names,
        read=read,
    )
    choice = select(files_entry, source)
    return choice, [object_of_path[path] for path in choice.paths]


def _text_of(url: Url, remote: RemoteObject, source: ResolvedSource) -> str:
    """Return the text of a small object that describes a folder."""
    # A description is read like any input, so that it has the same retries and errors.
    file = InputFile(
        source=source.name,
        path=remote.path,
        url=str(Url(url.scheme, url.root, remote.path)),
        size=remote.size,
        token=remote.token,
        stat=(),
        format="text",
        compression=_COMPRESSION_OF_ENCODING.get(remote.packed),
        file_id=0,
    )
    remote_bytes = RemoteBytes(file, source.storage_options)
    try:
        text_bytes = remote_bytes.pread(min(remote.size, _DESCRIPTION_BYTES), 0)
    finally:
        remote_bytes.close()
    return text_bytes.decode("utf-8", errors="replace")


@final
class _Finder:
    """Looks for entries on one storage."""

    def __init__(self, client: ObjectClient, wanted: SourceType | None) -> None:
        """Begin.

        Args:
            client: Client of the storage.
            wanted: Type that the source sets, None for none.
        """
        self._client = client
        self._wanted: SourceType | None = wanted
        # Requests for objects that may belong to others, by path.
        self._companions: dict[str, asyncio.Future[RemoteObject]] = {}

    async def find_all(self, urls: list[Url]) -> list[_Entry]:
        """Return the objects of each entry."""
        semaphore = asyncio.Semaphore(_PARALLEL_REQUESTS)

        async def find(url: Url) -> _Entry:
            async with semaphore:
                return await self._find(url)

        return await asyncio.gather(*map(find, urls))

    async def _find(self, url: Url) -> _Entry:
        """Return the objects of an entry: an object, a glob or a folder."""
        if url.is_http:
            return await self._find_on_web_server(url)
        if formats.has_wildcard(url.path):
            return await self._find_glob(url)
        # A name without wildcards is an object first, and a folder if there is no such
        # object.
        if url.path and not url.path.endswith("/"):
            with suppress(SourceNotFoundError):
                remote_object = await self._client.stat(url)
                folder = url.path.rpartition("/")[0]
                companions = await self._companions_of(url)
                return _Entry(folder=folder, objects=[remote_object, *companions])
        return await self._find_folder(url)

    async def _find_on_web_server(self, url: Url) -> _Entry:
        """Return the object at a URL.

        Raises:
            ConfigError: The URL is a folder or glob, which web servers do not list.
        """
        path = url.path.partition("?")[0]
        is_folder = not path or path.endswith("/")
        if is_folder or re.search(r"[*\[]", path):
            entry_noun = "folder" if is_folder else "glob"
            raise ConfigError(
                f"data_files: {url} is a {entry_noun}, and web servers do "
                "not list their files; list every file, or a range of them, as data-{0..31}.parquet",
                got=str(url),
            )
        remote_object = await self._client.stat(url)
        return _Entry(folder=path.rpartition("/")[0], objects=[remote_object])

    async def _companions_of(self, url: Url) -> list[RemoteObject]:
        """Return the objects that belong to an object, such as its index."""
        # Many objects of a folder share a companion, which is asked for once.
        companions: list[RemoteObject] = []
        for path in sorted(possible_companions([url.path], self._wanted)):
            if path not in self._companions:
                request = self._client.stat(Url(url.scheme, url.root, path))
                self._companions[path] = asyncio.ensure_future(request)
            with suppress(SourceNotFoundError):
                companions.append(await self._companions[path])
        return companions

    async def _find_glob(self, url: Url) -> _Entry:
        """Return the objects that match a glob, and the objects that belong to them."""
        try:
            is_match = formats.compile_glob(url.path)
        except ValueError as error:
            raise ConfigError(
                f"data_files: {url} is not a valid glob ({error})", got=str(url)
            ) from None
        # The matches of `ids/train-*.bin` begin with `ids/train-`, but not the files
        # that belong to them: these are in the listing of the folder. Below a folder
        # with wildcards whole folders are listed anyway.
        folder = formats.static_folder(url.path)
        prefix = formats.static_prefix(url.path)
        is_flat = formats.is_flat(url.path)
        if is_flat and has_companions(self._wanted):
            prefix = f"{folder}/" if folder else ""
        listing = await self._list(url, prefix, flat=is_flat)
        # A file that describes data is listed only if the glob spells its name.
        last_part = url.path.rpartition("/")[2]
        objects: list[RemoteObject] = []
        for remote_object in listing:
            object_name = remote_object.path.rpartition("/")[2]
            is_matching = is_match(remote_object.path)
            is_data = is_matching and not describes(object_name, last_part)
            if is_data or remote_object.path == url.path:
                objects.append(remote_object)
        if not objects:
            raise await self._not_found(url)
        # The files that belong to the matches, unless they match, too.
        paths = {remote_object.path for remote_object in objects}
        companion_paths = possible_companions(paths, self._wanted) - paths
        for remote_object in listing:
            if remote_object.path in companion_paths:
                objects.append(remote_object)
        return _Entry(folder=folder, objects=objects)

    async def _find_folder(self, url: Url) -> _Entry:
        """Return the objects of a folder and of all folders below it."""
        folder = url.path.rstrip("/")
        prefix = f"{folder}/" if folder else ""
        listing = await self._list(url, prefix, flat=False)
        objects: list[RemoteObject] = []
        for remote_object in listing:
            if self._is_input(remote_object.path.removeprefix(prefix)):
                objects.append(remote_object)
        if listing and not objects:
            paths = (remote_object.path for remote_object in listing)
            raise formats.nothing_known(f"{str(url)!r}", paths, self._wanted, str(url))
        if not objects:
            raise await self._not_found(url)
        return _Entry(folder=folder, objects=objects, is_folder=True, every=listing)

    def _is_input(self, object_path: str) -> bool:
        """Say whether a search of a folder takes a file.

        Hidden files and folders are left out.
        """
        for path_part in PurePosixPath(object_path).parts:
            if path_part.startswith((".", "_")):
                return False
        return formats.belongs(object_path, self._wanted)

    async def _list(self, url: Url, prefix: str, *, flat: bool) -> list[RemoteObject]:
        """Return the objects whose path begins with `prefix`.

        Markers of folders are left out.
        """
        listing = await self._client.list(Url(url.scheme, url.root, prefix), flat=flat)
        objects: list[RemoteObject] = []
        for remote_object in listing:
            if not remote_object.path.endswith("/"):
                objects.append(remote_object)
        return objects

    async def _not_found(self, url: Url) -> SourceNotFoundError:
        """Return the error for an entry that nothing matches, with similar names."""
        # Names beside the missing one are compared with it: only one page of them is
        # listed.
        folder = formats.static_folder(url.path.rstrip("/"))
        prefix = f"{folder}/" if folder else ""
        listing = await self._client.list(
            Url(url.scheme, url.root, prefix), flat=True, limit=_NEAR_NAMES
        )
        names: list[str] = []
        for remote_object in listing:
            object_path = remote_object.path.rstrip("/")
            if object_path != folder:
                names.append(PurePosixPath(object_path).name)
        missing_name = PurePosixPath(url.path).name
        return formats.not_found(str(url), f"{url.root}/{folder}", missing_name, names)


@final
class RemoteBytes(ReadAheadBytes):
    """An object at a URL, read by ranges; usable from threads, one read at a time.

    Every answer must be of the planned version: by a condition on each request if the
    protocol has one, otherwise by a request before the first read; and by a request
    after the last one.
    """

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        """Open a file.

        Errors are those of :func:`tokenlake.etl.sources.opening.opened`.
        """
        self._url = parse_url(file.url)
        self._planned = RemoteObject(
            path=self._url.path, size=file.size, token=file.token
        )
        self._client = client_at(self._url, storage_options, OF_INPUTS)
        self._spool: BinaryIO | None = None  # the whole object on the local disk
        super().__init__(file, self._fetch)
        # Where no condition on a request pins the version, the object is compared
        # before the first read.
        if not self._client.pins(file.token):
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""
        try:
            remote_object = on_loop(self._client.stat(self._url))
        except SourceNotFoundError:
            raise changed(self.file, "the object no longer exists") from None
        if remote_object.size != self.file.size:
            raise changed(
                self.file,
                f"it has {remote_object.size} bytes, expected {self.file.size}",
            )
        # A commit of the Hub is in the URL. Tokens of different kinds cannot be
        # compared.
        planned_token = self.file.token
        token = remote_object.token
        is_same_kind = token.partition(":")[0] == planned_token.partition(":")[0]
        if self._url.scheme != "hf" and is_same_kind and token != planned_token:
            raise changed(
                self.file, f"its version is {token}, expected {planned_token}"
            )

    def close(self) -> None:
        """Release the connections and the file on disk."""
        super().close()
        if self._spool is not None:
            self._spool.close()

    def _fetch(self, start: int, size: int) -> Future[bytearray]:
        request = self._client.fetch(self._url, self._planned, start, size)
        return asyncio.run_coroutine_threadsafe(request, get_loop())

    def spans(self, start: int, size: int) -> list[memoryview]:
        try:
            if self._spool is None:
                try:
                    return super().spans(start, size)
                except NoRangesError:
                    # The server knows no ranges: the whole object is downloaded to a
                    # nameless file on the local disk.
                    with self._lock:
                        if self._spool is None:
                            self._spool = spooled(
                                self._client, self._url, self._planned
                            )
        except OtherObjectError as error:
            raise changed(self.file, str(error)) from None
        except SourceNotFoundError:
            raise changed(self.file, "the object no longer exists") from None
        spooled_bytes = os.pread(self._spool.fileno(), size, start)
        return [memoryview(spooled_bytes)] if spooled_bytes else []
