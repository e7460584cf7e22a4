"""Objects of storages that only fsspec reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast, final

from tokenlake.runtime.store import objects, rates
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.failures import Failures
from tokenlake.runtime.store.rates import answered_in_time, least_rate
from tokenlake.runtime.store.url import Url

# Kinds of token, the best first, with the names that file systems use for them.
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
    """Calls of an fsspec file system.

    Tokens are the first of the names above that its `info` has, else ``size:``.
    """

    page_seconds = float("inf")  # such a file system lists all pages at once
    credentials = (
        "Give them in storage_options, under the names in the documentation of the file system: {NAME: {env: "
        "VARIABLE}}"
    )

    def __init__(
        self, filesystem: Any, options: Mapping[str, Any], failures: Failures
    ) -> None:
        super().__init__(filesystem, options, failures)
        # One connection often serves a whole synchronous file system (FTP, SFTP): one
        # call at a time.
        self._turn = asyncio.Lock()

    async def _stat(self, url: Url) -> objects.RemoteObject:
        # A folder is no object, and a file of unknown size cannot be planned.
        info = await self._call("info", self._path(url))
        if info["type"] != "file" or info.get("size") is None:
            raise FileNotFoundError(str(url))
        return _remote_object(url.path, info)

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        # The file system lists folders, and the beginning of a path may end inside a
        # name: the folder is listed, and the rest compared.
        folder = Url(url.scheme, url.root, url.path.rpartition("/")[0])
        top = self._path(folder)
        try:
            infos = await self._call("ls" if flat else "find", top, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], None
        page: list[objects.RemoteObject] = []
        # `find` returns a dictionary by name, and `ls` a list.
        file_infos = infos
        if isinstance(infos, dict):
            file_infos = cast("dict[str, Any]", infos).values()
        for file_info in file_infos:
            # Names of the file system may contain a host or a bucket: only the part
            # below the folder counts.
            relative_name = (
                str(file_info["name"])
                .strip("/")
                .removeprefix(top.strip("/"))
                .lstrip("/")
            )
            path = f"{folder.path}/{relative_name}" if folder.path else relative_name
            if file_info["type"] == "directory":
                path += "/"
            if path.startswith(url.path):
                page.append(_remote_object(path, file_info))
        return page, None

    async def _fetch(
        self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        async with answered_in_time(_seconds_for(buffer.stop - buffer.at)):
            data = await self._call(
                "cat_file", self._path(url), start=buffer.at, end=buffer.stop
            )
        # The answer is one piece, and a buffer reads a body until it ends.
        pieces = iter([data])

        async def read(_: int) -> bytes:
            return next(pieces, b"")

        await buffer.fill(read)

    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        size = None if planned is None else planned.size
        async with answered_in_time(_seconds_for(size)):
            data = await self._call("cat_file", self._path(url))
        objects.require_size(len(data), planned)
        write(data)

    def _path(self, url: Url) -> str:
        """Return the path of a URL as the file system names it."""
        # Fsspec's own extension point, without a public name.
        return type(self._fs)._strip_protocol(str(url))

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the file system, in a thread if it is synchronous."""
        if self._fs.async_impl:
            # The documented asynchronous names.
            answer = await getattr(self._fs, f"_{name}")(*args, **options)
        else:
            async with self._turn:
                answer = await asyncio.to_thread(
                    getattr(self._fs, name), *args, **options
                )
        self.reached = True
        return answer


def _seconds_for(size: int | None) -> float:
    """Return the time limit of an answer that comes in one piece.

    It is infinite if the size of the answer is unknown.

    Args:
        size: Bytes of the answer.
    """
    rate = least_rate()
    if size is None or not rate:
        return float("inf")
    return rates.ANSWER_SECONDS + size / rate


def _remote_object(path: str, info: Mapping[str, Any]) -> objects.RemoteObject:
    """Return an object from the `info` of a file system."""
    size = int(info.get("size") or 0)
    return objects.RemoteObject(
        path=path, size=size, token=_token(info) or f"size:{size}"
    )


def _token(info: Mapping[str, Any]) -> str:
    """Return the best token in the `info` of a file system; "" if there is none."""
    # The kind is a part of the token, so that tokens of different kinds are never
    # equal.
    for token_kind, key_names in _KINDS.items():
        for key_name in key_names:
            raw_value = info.get(key_name)
            if raw_value:
                is_time = token_kind in ("modified", "created")
                token_text = (
                    _moment(raw_value) if is_time else str(raw_value).strip('"')
                )
                return f"{token_kind}:{token_text}"
    return ""


def _moment(value: Any) -> str:
    """Return a time in one spelling.

    A listing may have it as a number, and a single answer as a text.
    """
    # A text that is no time stays as it is: it is compared, not computed with.
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
    seconds = moment
    if isinstance(moment, datetime):
        # Times without a zone are in UTC. The token must not depend on the zone of this
        # machine.
        if not moment.tzinfo:
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp()
    if isinstance(seconds, int | float):
        return str(round(seconds * 1_000_000))
    return str(seconds)
