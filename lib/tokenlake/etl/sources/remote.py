"""Inputs at URLs (S3, GCS, HTTP(S), and what else fsspec has installed): what is listed, and their bytes.

Requests are those of :mod:`tokenlake.runtime.store.remote`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.config.formats import SourceType
from tokenlake.errors import ConfigError, SourceError, SourceNotFoundError
from tokenlake.etl.sources import formats
from tokenlake.etl.sources.descriptions import without_descriptions
from tokenlake.etl.sources.input_errors import changed
from tokenlake.etl.sources.inputs import InputFile, planned
from tokenlake.etl.sources.layout import describes
from tokenlake.etl.sources.ranged_bytes import ReadAheadBytes
from tokenlake.etl.sources.split_choice import Choice, FilesEntry, Select, choose, notes_of
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.downloads import spooled
from tokenlake.runtime.store.failures import Failures
from tokenlake.runtime.store.objects import NoRangesError, OtherObjectError, RemoteObject
from tokenlake.runtime.store.sessions import client_at, on_loop
from tokenlake.runtime.store.url import Url, parse_url

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


_AT_ONCE: Final = 16  # requests for single objects under way at a time
_DESCRIPTION_BYTES: Final = 16 << 20  # of a file that describes a folder
_PACKED: Final[dict[str, formats.Compression]] = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


def list_remote(source: ResolvedSource, select: Select = choose) -> list[InputFile]:
    """List the objects that the URLs of a source stand for, sorted by path.

    An entry is an object, a glob, or a folder, which is searched for known extensions below it; names
    that begin with a dot or an underscore are left out there. Paths are relative to the deepest common
    folder of all entries. Each folder or glob costs one listing, never a request per object.

    Args:
        source: whose `data_files` to list.
        select: says which files of an entry are listed.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        SourceError: the storage cannot be reached, or refuses access.
        ConfigError: a URL holds credentials, entries are of several storages, a glob on a web server, or
            an extension says nothing and no `type` is set.
        MissingExtraError: the package for a scheme is missing.
    """
    urls = [parse_url(entry) for entry in source.data_files]
    other = next((url for url in urls if url.root != urls[0].root), None)
    if other is not None:
        raise ConfigError(
            f"source {source.name!r}: data_files are of two storages, {urls[0].root} and {other.root}; make them "
            "two sources",
            source=source.name,
        )
    finder = _Finder(client_at(urls[0], source.storage_options, OF_INPUTS), source.type)
    found = on_loop(finder.find_all(urls))
    # The deepest folder that all are in, with a slash at its end; "" for the top.
    split = [each.folder.split("/") if each.folder else [] for each in found]
    common = takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    root = "".join(f"{parts[0]}/" for parts in common)

    # Of each entry the files of one split; a file that several entries name once.
    objects: dict[str, RemoteObject] = {}
    choices: list[Choice] = []
    for url, each in zip(urls, found, strict=True):
        choice, chosen = _chosen(url, each, source, select)
        choices.append(choice)
        objects.update({one.path: one for one in chosen})
    note = notes_of(choices)

    def as_input(one: RemoteObject) -> InputFile:
        url, packed = str(Url(urls[0].scheme, urls[0].root, one.path)), _PACKED.get(one.packed)
        path = one.path[len(root) :]
        return planned(source, path, url, size=one.size, token=one.token, compression=packed, origin=note)

    return [as_input(objects[path]) for path in sorted(objects)]


def _chosen(
    url: Url, found: _Found, source: ResolvedSource, select: Select
) -> tuple[Choice, list[RemoteObject]]:
    """Return which objects of an entry are read: those that are data, of one subset and split."""
    below = f"{found.folder}/" if found.folder else ""
    inside = {one.path.removeprefix(below): one for one in found.every}

    def read(name: str) -> str:
        return _text_of(url, inside[name], source)

    paths = [one.path.removeprefix(below) for one in found.objects]
    if found.is_folder:
        paths = without_descriptions(paths, inside, read)
        if not paths:
            names = (one.path for one in found.every)
            raise formats.nothing_known(f"{str(url)!r}", names, source.type, str(url))
    entry = FilesEntry(
        written=str(url),
        base=str(Url(url.scheme, url.root, below)),
        folder_name=found.folder.rpartition("/")[2],
        paths=paths,
        is_folder=found.is_folder,
        names=frozenset(inside) if found.is_folder else frozenset(),
        read=read,
    )
    choice = select(entry, source)
    objects = {one.path.removeprefix(below): one for one in found.objects}
    return choice, [objects[path] for path in choice.paths]


def _text_of(url: Url, one: RemoteObject, source: ResolvedSource) -> str:
    """Return the text of a small object that describes a folder."""
    file = InputFile(
        source=source.name,
        path=one.path,
        url=str(Url(url.scheme, url.root, one.path)),
        size=one.size,
        token=one.token,
        stat=(),
        format="text",
        compression=_PACKED.get(one.packed),
        file_id=0,
    )
    data = RemoteBytes(file, source.storage_options)
    try:
        text = data.pread(min(one.size, _DESCRIPTION_BYTES), 0)
    finally:
        data.close()
    return text.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What an entry stands for.

    Attributes:
        folder: the folder that all objects are in, without a slash at its end; "" for the top.
        objects: the objects whose names say that they are data.
        is_folder: whether the entry is that folder.
        every: all objects of the folder; empty unless the entry is a folder.
    """

    folder: str
    objects: list[RemoteObject]
    is_folder: bool = False
    every: list[RemoteObject] = field(default_factory=list["RemoteObject"])


@final
class _Finder:
    """Looks for entries on one storage."""

    def __init__(self, client: ObjectClient, wanted: SourceType | None) -> None:
        self._client = client
        self._wanted: SourceType | None = wanted

    async def find_all(self, urls: list[Url]) -> list[_Found]:
        """Return what each entry stands for."""
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(url: Url) -> _Found:
            async with turn:
                return await self._find(url)

        return await asyncio.gather(*map(one, urls))

    async def _find(self, url: Url) -> _Found:
        if url.is_http:
            path = url.path.partition("?")[0]
            folder = not path or path.endswith("/")
            if folder or re.search(r"[*\[]", path):
                raise ConfigError(
                    f"data_files: {url} is a {'folder' if folder else 'glob'}, and web servers do "
                    "not list what they have; name every file, or a range of them, as data-{0..31}.parquet",
                    got=str(url),
                )
            return _Found(folder=path.rpartition("/")[0], objects=[await self._client.stat(url)])
        if formats.has_wildcard(url.path):
            return await self._find_glob(url)
        if url.path and not url.path.endswith("/"):
            with suppress(SourceNotFoundError):
                found = await self._client.stat(url)
                return _Found(folder=url.path.rpartition("/")[0], objects=[found])
        return await self._find_folder(url)

    async def _find_glob(self, url: Url) -> _Found:
        try:
            matches = formats.compile_glob(url.path)
        except ValueError as error:
            raise ConfigError(f"data_files: {url} is not a valid glob ({error})", got=str(url)) from None
        listed = await self._list(url, formats.static_prefix(url.path), flat=formats.is_flat(url.path))
        last = url.path.rpartition("/")[2]
        found: list[RemoteObject] = []
        for one in listed:
            is_match = matches(one.path) and not describes(one.path.rpartition("/")[2], last)
            if is_match or one.path == url.path:
                found.append(one)
        if not found:
            raise await self._nothing(url)
        return _Found(folder=formats.static_folder(url.path), objects=found)

    async def _find_folder(self, url: Url) -> _Found:
        folder = url.path.rstrip("/")

        def is_input(path: str) -> bool:
            name = path[len(folder) :].lstrip("/")
            hidden = any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
            return not hidden and formats.belongs(name, self._wanted)

        listed = await self._list(url, f"{folder}/" if folder else "", flat=False)
        found = [one for one in listed if is_input(one.path)]
        if listed and not found:
            raise formats.nothing_known(f"{str(url)!r}", (one.path for one in listed), self._wanted, str(url))
        if not found:
            raise await self._nothing(url)
        return _Found(folder=folder, objects=found, is_folder=True, every=listed)

    async def _list(self, url: Url, prefix: str, *, flat: bool) -> list[RemoteObject]:
        """Return the objects whose path begins with `prefix`, without the markers of folders."""
        listed = await self._client.list(Url(url.scheme, url.root, prefix), flat=flat)
        return [one for one in listed if not one.path.endswith("/")]

    async def _nothing(self, url: Url) -> SourceNotFoundError:
        """Return the error for an entry that nothing matches, with what is near it."""
        folder = formats.static_folder(url.path.rstrip("/"))
        place = Url(url.scheme, url.root, f"{folder}/" if folder else "")
        around = await self._client.list(place, flat=True, limit=1000)
        paths = (one.path.rstrip("/") for one in around)
        names = [PurePosixPath(path).name for path in paths if path != folder]
        name = PurePosixPath(url.path).name
        return formats.not_found(str(url), f"{url.root}/{folder}", name, names)


OF_INPUTS: Final = Failures(
    option="data_files",
    failed=SourceError,
    missing=SourceNotFoundError,
    advice="run again: finished units are kept",
)
"""What a failing storage is to a build: the errors of inputs."""


@final
class RemoteBytes(ReadAheadBytes):
    """An object at a URL, read by ranges; usable from threads, one read at a time.

    Every answer must be of the planned version: by a condition on each request where the protocol has
    one, else by a look before the first read; and by a look after the last one.
    """

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        """Open `file`; see :func:`tokenlake.etl.sources.opening.opened` for what it raises."""
        self._url = parse_url(file.url)
        self._planned = RemoteObject(path=self._url.path, size=file.size, token=file.token)
        self._client = client_at(self._url, storage_options, OF_INPUTS)
        self._spool: BinaryIO | None = None
        super().__init__(file, self._fetch)
        if not self._client.pins(file.token):
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""
        try:
            found = on_loop(self._client.stat(self._url))
        except SourceNotFoundError:
            raise changed(self.file, "the object is gone") from None
        if found.size != self.file.size:
            raise changed(self.file, f"it has {found.size} bytes, expected {self.file.size}")
        # A commit of the Hub is in the URL. Tokens of different kinds cannot be compared.
        expected = self.file.token
        alike = self._url.scheme != "hf" and found.token.partition(":")[0] == expected.partition(":")[0]
        if alike and found.token != expected:
            raise changed(self.file, f"its version is {found.token}, expected {expected}")

    def close(self) -> None:
        """Release what is open."""
        super().close()
        if self._spool is not None:
            self._spool.close()

    def _fetch(self, start: int, size: int) -> Future[bytearray]:
        work = self._client.fetch(self._url, self._planned, start, size)
        return asyncio.run_coroutine_threadsafe(work, get_loop())

    def spans(self, start: int, size: int) -> list[memoryview]:
        try:
            if self._spool is None:
                try:
                    return super().spans(start, size)
                except NoRangesError:
                    # The server knows no ranges: the whole object goes to a nameless file on the local disk.
                    with self._lock:
                        self._spool = self._spool or spooled(self._client, self._url, self._planned)
        except OtherObjectError as error:
            raise changed(self.file, str(error)) from None
        except SourceNotFoundError:
            raise changed(self.file, "the object is gone") from None
        data = os.pread(self._spool.fileno(), size, start)
        return [memoryview(data)] if data else []
