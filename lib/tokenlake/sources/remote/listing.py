"""From URLs and URL globs to the objects there.

Globs over the names of objects: what `glob` does for files, done to a listing.
"""

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
from tokenlake.sources.formats import KNOWN_EXTENSIONS, Compression, belongs, compression_of, format_for
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.remote.failures import OF_INPUTS
from tokenlake.store.remote.connection import client_at
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import ObjectClient, RemoteObject
from tokenlake.store.remote.url import Url, parse_url

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource

_MAGIC: Final = re.compile(r"[*?\[]")


def has_wildcard(path: str) -> bool:
    """Say whether a path has one of ``*``, ``?`` and ``[``."""
    return _MAGIC.search(path) is not None


def static_folder(pattern: str) -> str:
    """Return the folder that all matches are in, without a slash at its end; "" for the top."""
    folders = pattern.split("/")[:-1]
    for index, part in enumerate(folders):
        if has_wildcard(part):
            return "/".join(folders[:index])
    return "/".join(folders)


def static_prefix(pattern: str) -> str:
    """Return what all matches begin with, which need not be a whole folder."""
    return _MAGIC.split(pattern, maxsplit=1)[0]


def is_flat(pattern: str) -> bool:
    """Say whether matches lie in the one folder that the pattern names."""
    folder, _, name = pattern.rpartition("/")
    return not has_wildcard(folder) and name != "**"


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return what matches whole paths.

    ``*`` and ``?`` stop at slashes, ``**`` as a whole component stands for any number of folders, also
    none, and no wildcard stands for a dot at the beginning of a name.
    """
    parts = pattern.split("/")
    regex = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            regex += r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else "")
        else:
            regex += _component(part) + ("" if last else "/")
    return re.compile(regex, re.DOTALL)


def _component(part: str) -> str:
    regex = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    at = 0
    while at < len(part):
        char = part[at]
        stop = part.find("]", at + 2) if char == "[" else -1
        if stop > 0:
            regex += _choice(part[at + 1 : stop])
            at = stop
        elif char == "*":
            regex += "[^/]*"
        else:
            regex += "[^/]" if char == "?" else re.escape(char)
        at += 1
    return regex


def _choice(inside: str) -> str:
    negated = inside.startswith("!")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside.removeprefix("!"))
    return f"(?!/)[{'^' if negated else ''}{body}]"


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
            pattern = compile_glob(url.path)
        except re.error as error:
            raise ConfigError(f"data_files: {url} is no glob ({error})", got=str(url)) from None
        listed = await self._list(url, static_prefix(url.path), flat=is_flat(url.path))
        found = [one for one in listed if pattern.fullmatch(one.path) or one.path == url.path]
        if not found:
            raise await self._nothing(url)
        return static_folder(url.path), found

    async def _find_folder(self, url: Url) -> tuple[str, list[RemoteObject]]:
        folder = url.path.rstrip("/")
        listed = await self._list(url, f"{folder}/" if folder else "", flat=False)
        found = [one for one in listed if self._is_input(one.path[len(folder) :].lstrip("/"))]
        if listed and not found:
            raise _nothing_known(url, listed, self._wanted)
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
        if near:
            hint = f"Did you mean {' or '.join(map(repr, near))}?"
        else:
            listed = ", ".join(PurePosixPath(name).name for name in names[:8]) + (
                ", ..." if len(names) > 8 else ""
            )
            hint = f"'{url.root}/{folder}' holds: {listed or 'nothing'}."
        return SourceNotFoundError(f"data_files: nothing matches '{url}'. {hint}", got=str(url), near=near)


def _nothing_known(url: Url, listed: list[RemoteObject], wanted: str | None) -> SourceNotFoundError:
    others = sorted({PurePosixPath(one.path).suffix or PurePosixPath(one.path).name for one in listed})[:8]
    kind = f"of type {wanted}" if wanted else "with a known extension"
    return SourceNotFoundError(
        f"data_files: no object {kind} in '{url}'. It holds {', '.join(others)}; known extensions are "
        f"{', '.join(KNOWN_EXTENSIONS)}. Other names can be given one by one, or by a glob, with `type` set.",
        got=str(url),
    )
