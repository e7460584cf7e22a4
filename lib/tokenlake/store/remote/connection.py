"""From a URL and options to the storage there; and objects of whatever else fsspec has installed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, final

from tokenlake.store.remote.filesystems import OpenFileSystem, open_filesystem
from tokenlake.store.remote.gcs import GcsClient
from tokenlake.store.remote.http import HttpClient
from tokenlake.store.remote.objects import (
    ListPage,
    ObjectClient,
    RangeBuffer,
    RemoteObject,
    Write,
    require_size,
)
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.s3 import S3Client
from tokenlake.store.remote.url import Url

# Kinds of token, the best first, with what file systems call them.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "generation": ("generation",),
    "version": ("version_id", "versionId", "VersionId", "version"),
    "etag": ("etag", "ETag", "e_tag"),
    "checksum": ("checksum", "md5", "content_md5", "sha256", "blob_id"),
    "modified": (
        "mtime",
        "last_modified",
        "LastModified",
        "modified",
        "updated",
        "ModifiedAt",
        "modificationTime",
    ),
    "created": ("created", "creation_time"),
}


@final
class FsspecClient(ObjectClient):
    """Calls of an fsspec file system; tokens are what its `info` has of the names above, else ``size:``."""

    credentials = (
        "They are given by storage_options, under the names that the file system's documentation has: "
        "{NAME: {env: VARIABLE}}"
    )

    def __init__(self, opened: OpenFileSystem, failures: Failures) -> None:
        super().__init__(opened, failures)
        # One connection often serves a whole synchronous file system (FTP, SFTP): one call at a time.
        self._turn = asyncio.Lock()

    async def _stat(self, url: Url) -> RemoteObject:
        info = await self._call("info", self._path(url))
        if info["type"] != "file" or info.get("size") is None:
            raise FileNotFoundError(str(url))
        return _found(url.path, info)

    async def _page(self, url: Url, flat: bool, mark: str | None) -> ListPage:
        folder = Url(url.scheme, url.root, url.path.rpartition("/")[0])
        top = self._path(folder)
        try:
            infos = await self._call("ls" if flat else "find", top, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], None
        entries: list[dict[str, Any]] = list(infos.values()) if isinstance(infos, dict) else infos
        found = [_found(self._below(folder, top, info), info) for info in entries]
        return [one for one in found if one.path.startswith(url.path)], None

    async def _fetch(self, url: Url, buffer: RangeBuffer, planned: RemoteObject) -> None:
        data = await self._call("cat_file", self._path(url), start=buffer.at, end=buffer.stop)
        pieces = iter([data])

        async def read(_: int) -> bytes:
            return next(pieces, b"")

        await buffer.fill(read)

    async def _download(self, url: Url, write: Write, planned: RemoteObject | None) -> None:
        data = await self._call("cat_file", self._path(url))
        require_size(len(data), planned)
        write(data)

    def _path(self, url: Url) -> str:
        return type(self._fs)._strip_protocol(str(url))  # fsspec's own extension point, without a public name

    def _below(self, folder: Url, top: str, info: Mapping[str, Any]) -> str:
        name = str(info["name"]).strip("/")
        rest = name.removeprefix(top.strip("/")).lstrip("/")
        path = f"{folder.path}/{rest}" if folder.path else rest
        return path + "/" if info["type"] == "directory" else path

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self._fs.async_impl:
            answer = await getattr(self._fs, f"_{name}")(
                *args, **options
            )  # the documented asynchronous names
        else:
            async with self._turn:
                answer = await asyncio.to_thread(getattr(self._fs, name), *args, **options)
        self.reached = True
        return answer


def _found(path: str, info: Mapping[str, Any]) -> RemoteObject:
    size = int(info.get("size") or 0)
    return RemoteObject(path=path, size=size, token=_token(info) or f"size:{size}")


def _token(info: Mapping[str, Any]) -> str:
    for kind, names in _KINDS.items():
        if value := next((info[name] for name in names if info.get(name)), None):
            return (
                f"{kind}:{_moment(value) if kind in ('modified', 'created') else str(value).strip(chr(34))}"
            )
    return ""


def _moment(value: Any) -> str:
    """Return a time in one spelling: a listing may have it as a number and a single answer as a text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return str(round(value * 1_000_000)) if isinstance(value, int | float) else str(value)


_CLIENTS: Final[Mapping[str, type[ObjectClient]]] = {
    "s3": S3Client,
    "gs": GcsClient,
    "http": HttpClient,
    "https": HttpClient,
}


def client_at(url: Url, options: Mapping[str, Any], failures: Failures) -> ObjectClient:
    """Return the storage that `url` is on, through sessions of this process; the same one each time.

    Raises:
        see :func:`tokenlake.store.remote.filesystems.open_filesystem`
    """
    kind = _CLIENTS.get(url.scheme, FsspecClient)
    opened = open_filesystem(url, options, failures, kind.arguments, kind.web)
    if failures.option not in opened.clients:
        opened.clients[failures.option] = kind(opened, failures)
    return opened.clients[failures.option]
