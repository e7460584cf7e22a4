"""From URLs and URL globs to the objects that a storage lists for them."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, final

from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.fingerprint import file_id
from tokenlake.sources.formats import Compression, belongs, compression_of, format_for
from tokenlake.sources.globs import compile_glob, has_wildcard, is_flat, static_folder, static_prefix
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.local.patterns import nearby, nothing_known
from tokenlake.sources.remote.reader import OF_INPUTS
from tokenlake.store.remote.connection import client_at
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import ObjectClient, RemoteObject
from tokenlake.store.remote.url import Url, parse_url

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_AT_ONCE: Final = 16  # requests for single objects under way at a time
_PACKED: Final[dict[str, Compression]] = {"gzip": "gzip", "x-gzip": "gzip", "zstd": "zstd"}


def list_remote(source: ResolvedSource) -> list[InputFile]:
    """List the objects that the URLs of a source stand for, sorted by path.

    An entry is an object, a glob, or a folder, which is searched for known extensions below it; names
    that begin with a dot or an underscore are left out there. Paths are relative to the deepest common
    folder of all entries. Each folder or glob costs one listing, never a request per object.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        SourceError: the storage cannot be reached, or refuses access.
        ConfigError: a URL holds credentials, entries are of several storages, a glob on a web server, or
            an extension says nothing and no `type` is set.
        MissingExtraError: the package for a scheme is missing.
    """
    urls = [parse_url(entry) for entry in source.data_files]
    _require_one_root(source, urls)
    finder = _Finder(client_at(urls[0], source.storage_options, OF_INPUTS), source.type)
    found = on_loop(finder.find_all(urls))
    root = _common_folder(folder for folder, _ in found)
    objects = {one.path: one for _, matches in found for one in matches}
    named = sorted((one.path[len(root) :], one) for one in objects.values())
    return [
        _input_file(source, name, Url(urls[0].scheme, urls[0].root, one.path), one) for name, one in named
    ]


def _require_one_root(source: ResolvedSource, urls: list[Url]) -> None:
    other = next((url for url in urls if url.root != urls[0].root), None)
    if other is not None:
        raise ConfigError(
            f"source {source.name!r}: data_files are of two storages, {urls[0].root} and {other.root}; make them "
            "two sources",
            source=source.name,
        )


def _common_folder(folders: Iterable[str]) -> str:
    """Return the deepest folder that all are in, with a slash at its end; "" for the top."""
    split = [folder.split("/") if folder else [] for folder in folders]
    common = takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    return "".join(f"{parts[0]}/" for parts in common)


def _input_file(source: ResolvedSource, name: str, url: Url, found: RemoteObject) -> InputFile:
    return InputFile(
        source=source.name,
        path=name,
        url=str(url),
        size=found.size,
        token=found.token,
        stat=(),
        format=format_for(name, str(url), source.type),
        compression=compression_of(name) or _PACKED.get(found.packed),
        file_id=file_id(source.name, name),
        text_mode=source.text_mode,
    )


@final
class _Finder:
    """Looks for entries on one storage."""

    def __init__(self, client: ObjectClient, wanted: str | None) -> None:
        self._client, self._wanted = client, wanted

    async def find_all(self, urls: list[Url]) -> list[tuple[str, list[RemoteObject]]]:
        """Return (static folder, objects found) of each entry."""
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(url: Url) -> tuple[str, list[RemoteObject]]:
            async with turn:
                return await self._find(url)

        return await asyncio.gather(*map(one, urls))

    async def _find(self, url: Url) -> tuple[str, list[RemoteObject]]:
        if url.is_http:
            return await self._find_page(url)
        if has_wildcard(url.path):
            return await self._find_glob(url)
        if url.path and not url.path.endswith("/"):
            try:
                found = await self._client.stat(url)
                return url.path.rpartition("/")[0], [found]
            except SourceNotFoundError:
                pass
        return await self._find_folder(url)

    async def _find_page(self, url: Url) -> tuple[str, list[RemoteObject]]:
        path = url.path.partition("?")[0]
        if re.search(r"[*\[]", path) or not path or path.endswith("/"):
            raise ConfigError(
                f"data_files: {url} is a {'folder' if path.endswith('/') or not path else 'glob'}, and web servers do "
                "not list what they have; name every file",
                got=str(url),
            )
        found = await self._client.stat(url)
        return path.rpartition("/")[0], [found]

    async def _find_glob(self, url: Url) -> tuple[str, list[RemoteObject]]:
        try:
            matches = compile_glob(url.path)
        except ValueError as error:
            raise ConfigError(f"data_files: {url} is not a valid glob ({error})", got=str(url)) from None
        listed = await self._list(url, static_prefix(url.path), flat=is_flat(url.path))
        found = [one for one in listed if matches(one.path) or one.path == url.path]
        if not found:
            raise await self._nothing(url)
        return static_folder(url.path), found

    async def _find_folder(self, url: Url) -> tuple[str, list[RemoteObject]]:
        folder = url.path.rstrip("/")
        listed = await self._list(url, f"{folder}/" if folder else "", flat=False)
        found = [one for one in listed if self._is_input(one.path[len(folder) :].lstrip("/"))]
        if listed and not found:
            raise nothing_known(f"{str(url)!r}", (one.path for one in listed), self._wanted, str(url))
        if not found:
            raise await self._nothing(url)
        return folder, found

    def _is_input(self, name: str) -> bool:
        parts = PurePosixPath(name).parts
        return not any(part.startswith((".", "_")) for part in parts) and belongs(name, self._wanted)

    async def _list(self, url: Url, prefix: str, *, flat: bool) -> list[RemoteObject]:
        """Return the objects whose path begins with `prefix`, without the markers of folders."""
        listed = await self._client.list(Url(url.scheme, url.root, prefix), flat=flat)
        return [one for one in listed if not one.path.endswith("/")]

    async def _nothing(self, url: Url) -> SourceNotFoundError:
        """Return the error for an entry that nothing matches, with what is near it."""
        folder = static_folder(url.path.rstrip("/"))
        place = Url(url.scheme, url.root, f"{folder}/" if folder else "")
        around = await self._client.list(place, flat=True, limit=1000)
        names = sorted(one.path.rstrip("/") for one in around if one.path.rstrip("/") != folder)
        near = [f"{url.root}/{name}" for name in difflib.get_close_matches(url.path.rstrip("/"), names, 3)]
        hint = nearby(near, f"{url.root}/{folder}", (PurePosixPath(name).name for name in names))
        return SourceNotFoundError(f"data_files: nothing matches '{url}'. {hint}", got=str(url), near=near)
