"""Files of web servers; and answers to requests for ranges, of GCS as well, checked before they are believed.

Which redirects are followed is said in :mod:`tokenlake.store.redirects`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, final

from tokenlake.store import objects, rates
from tokenlake.store.client import Failures, ObjectClient
from tokenlake.store.rates import answered_in_time, least_rate
from tokenlake.store.redirects import MOST_REDIRECTS, PUBLIC_ONLY
from tokenlake.store.url import Url

REQUEST: Final[Mapping[str, Any]] = {"auto_decompress": False, "read_bufsize": objects.CHUNK}
"""Arguments of each request: bodies come as they are stored, and are read in large pieces."""

_CONTENT_RANGE: Final = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)
_SAMPLE: Final = 64 << 10
_LARGEST: Final = 1 << 50  # bytes of a file
_DOUBTFUL: Final = 1 << 40  # bytes from which on the last one is asked for
_NO_HEAD: Final = frozenset({400, 403, 405, 501})  # a URL signed for GET answers 403


@final
class HttpClient(ObjectClient):
    """Requests to a web server.

    Tokens: ``etag:`` with the ETag; without one ``modified:`` with the date of the last change; without
    either ``size:`` and a hash of the first and last 64 KiB, so that a change between them that keeps the
    size is not seen.
    """

    pinned = ("etag:", "modified:")
    credentials = (
        "None were sent unless the storage_options have some: {headers: {Authorization: {env: NAME}}}, "
        "{username: NAME, password: {env: NAME}}, or {query: {env: NAME}} for signed URLs"
    )

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Take out what aiohttp would not know: a user, a password, and queries, which go on each request.

        Redirects are looked at before they are followed.
        """
        given = {key: value for key, value in options.items() if key not in ("username", "password", "query")}
        if "username" in options or "password" in options:
            import aiohttp  # an optional extra

            auth = aiohttp.BasicAuth(str(options.get("username", "")), str(options.get("password", "")))
            given["client_kwargs"] = {**options.get("client_kwargs", {}), "auth": auth}
        from tokenlake.store.http_session import open_session  # imports aiohttp

        return {**given, "get_client": open_session}

    async def _stat(self, url: Url) -> objects.RemoteObject:
        size = None
        async with self._request("head", url, {}) as answer:
            if answer.status not in _NO_HEAD:
                require_success(answer)
                size = total_size(answer)
        if size is None:
            answer = await self._get_first(url)
            size = total_size(answer)
        if size is None:
            raise self.failures.failed(
                f"{url}: the server does not say how large the file is, which reading needs; copy it to a disk.",
                url=str(url),
            )
        await self._require_plausible(url, size)
        token = _token(answer.headers) or await self._sampled(url, size)
        encoding = answer.headers.get("Content-Encoding", "").lower()
        packed = "" if encoding == "identity" else encoding
        return objects.RemoteObject(path=url.path, size=size, token=token, packed=packed)

    async def _require_plausible(self, url: Url, size: int) -> None:
        """Refuse a size that the server cannot mean: planning would cut the file into as many pieces as that takes."""
        if size <= _DOUBTFUL:
            return
        why = f"more than any file has; expected at most {_LARGEST}"
        if size <= _LARGEST:
            async with self._request("get", url, {"Range": f"bytes={size - 1}-{size - 1}"}) as answer:
                has_end = answer.status == 206 and total_size(answer) == size
                data = await answer.content.read(1) if has_end else b""
                answer.close()
            if data:
                return
            why = "and does not send the last of them"
        raise self.failures.failed(
            f"{url}: the server says that the file has {size} bytes, {why}. Its Content-Length is wrong: check the "
            "URL, or copy the file to a disk.",
            url=str(url),
            got=size,
        )

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        raise NotImplementedError("web servers do not list what they have")

    async def _fetch(self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject) -> None:
        headers = {"Range": buffer.header, **_condition(planned.token)}
        async with self._request("get", url, headers) as answer:
            require_success(answer)
            _require_version(answer, planned)
            await take_range(answer, buffer, planned)

    async def _download(self, url: Url, write: objects.Write, planned: objects.RemoteObject | None) -> None:
        async with self._request("get", url, _condition(planned.token) if planned else {}) as answer:
            require_success(answer)
            if planned is not None:
                _require_version(answer, planned)
            await objects.pour(answer.content.read, write, total_size(answer), planned)

    @asynccontextmanager
    async def _request(self, method: str, url: Url, headers: Mapping[str, str]) -> AsyncGenerator[Any]:
        PUBLIC_ONLY.set(False)  # until a redirect leads to another host
        session, target, query = await self.session(), str(url), self._options.get("query")
        if isinstance(query, Mapping):
            path = url.path.partition("?")[0]
            query = query.get(path) or query.get(path.rpartition("/")[2])
        if query:
            target += f"{'&' if '?' in url.path else '?'}{str(query).lstrip('?&')}"
        given = dict(self._fs.kwargs)
        sent = {**given.pop("headers", {}), "Accept-Encoding": "identity", **headers}
        given["timeout"] = timeouts(**({"silence": given["timeout"]} if "timeout" in given else {}))
        redirects = {"allow_redirects": True, "max_redirects": MOST_REDIRECTS}
        arguments = {**redirects, **REQUEST, **given, "headers": sent}
        async with answered_in_time():  # the headers, redirects included
            answer = await session.request(method, self._fs.encode_url(target), **arguments)
        async with answer:
            self.reached = True
            yield answer

    async def _get_first(self, url: Url) -> Any:
        """Ask for one byte; the connection is closed without reading more of what may be a large body."""
        async with self._request("get", url, {"Range": "bytes=0-0"}) as answer:
            if answer.status != 416:  # of an empty file
                require_success(answer)
            if answer.status != 206:
                answer.close()
            return answer

    async def _sampled(self, url: Url, size: int) -> str:
        found = hashlib.sha256()
        for start in sorted({0, max(size - _SAMPLE, 0)}) if size else ():
            buffer = objects.RangeBuffer(start, min(_SAMPLE, size - start))
            async with self._request("get", url, {"Range": buffer.header}) as answer:
                require_success(answer)
                await buffer.fill(answer.content.read)
                found.update(buffer.data)
                answer.close()
                if answer.status != 206:
                    break
        return f"size:{size},ends:{found.hexdigest()[:32]}"


def timeouts(silence: float = 30.0) -> Any:
    """Return aiohttp's timeouts: no limit on the whole, so many seconds without a byte."""
    import aiohttp  # an optional extra

    return aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=silence)


def require_success(answer: Any) -> None:
    """Raise HttpStatusError for a status of 400 or more."""
    if answer.status >= 400:
        text = answer.headers.get("Retry-After", "")
        raise objects.HttpStatusError(
            answer.status, answer.reason or "", float(text) if text.isdigit() else None
        )


async def take_range(answer: Any, buffer: objects.RangeBuffer, planned: objects.RemoteObject) -> None:
    """Put the body of an answer into `buffer`; it must be the range that is missing, of the planned size."""
    match = _content_range(answer)
    if match is None or match[1] is None:
        if answer.status == 206:
            raise objects.ShortBodyError("a partial answer that does not say which part it is")
        length = answer.headers.get("Content-Length", "")
        objects.require_size(int(length) if length.isdigit() else None, planned)
        if buffer.at or buffer.stop < planned.size:
            raise objects.NoRangesError
        await buffer.fill(answer.content.read)
        if await answer.content.read(1):
            raise objects.OtherObjectError(f"it has more than the {planned.size} bytes that were planned")
        return
    first, last, total = match.groups()
    objects.require_size(None if total == "*" else int(total), planned)
    if int(first) != buffer.at or int(last) >= buffer.stop:
        raise objects.ShortBodyError(f"asked for {buffer.header}, got bytes {first}-{last}")
    await buffer.fill(answer.content.read, int(last) + 1)


def total_size(answer: Any) -> int | None:
    """Return the size of the whole object that an answer speaks of, None if it does not."""
    match = _content_range(answer)
    text = answer.headers.get("Content-Length", "") if match is None else match[3]
    return int(text) if text.isdigit() else None


def _content_range(answer: Any) -> re.Match[str] | None:
    return _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())


def _token(headers: Mapping[str, str]) -> str:
    etag, modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
    if etag and not etag.startswith("W/"):
        return "etag:" + etag.strip('"')
    return f"modified:{modified}" if modified else f"etag:{etag}" if etag else ""


def _condition(token: str) -> dict[str, str]:
    kind, _, value = token.partition(":")
    if kind == "etag" and not value.startswith("W/"):
        return {"If-Match": f'"{value}"'}
    return {"If-Unmodified-Since": value} if kind == "modified" else {}


def _require_version(answer: Any, planned: objects.RemoteObject) -> None:
    found = _token(answer.headers)
    same_kind = found.partition(":")[0] == planned.token.partition(":")[0]
    if found and same_kind and found != planned.token:
        raise objects.OtherObjectError(f"its version is {found}, expected {planned.token}")


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

    page_seconds = float("inf")  # such a file system lists all pages at once
    credentials = (
        "They are given by storage_options, under the names that the file system's documentation has: "
        "{NAME: {env: VARIABLE}}"
    )

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        super().__init__(filesystem, options, failures)
        # One connection often serves a whole synchronous file system (FTP, SFTP): one call at a time.
        self._turn = asyncio.Lock()

    async def _stat(self, url: Url) -> objects.RemoteObject:
        info = await self._call("info", self._path(url))
        if info["type"] != "file" or info.get("size") is None:
            raise FileNotFoundError(str(url))
        return _found(url.path, info)

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        folder = Url(url.scheme, url.root, url.path.rpartition("/")[0])
        top = self._path(folder)
        try:
            infos = await self._call("ls" if flat else "find", top, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], None
        found: list[objects.RemoteObject] = []
        for info in infos.values() if isinstance(infos, dict) else infos:
            rest = str(info["name"]).strip("/").removeprefix(top.strip("/")).lstrip("/")
            path = f"{folder.path}/{rest}" if folder.path else rest
            found.append(_found(path + "/" * (info["type"] == "directory"), info))
        return [one for one in found if one.path.startswith(url.path)], None

    async def _fetch(self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject) -> None:
        async with answered_in_time(_seconds_for(buffer.stop - buffer.at)):
            data = await self._call("cat_file", self._path(url), start=buffer.at, end=buffer.stop)
        pieces = iter([data])

        async def read(_: int) -> bytes:
            return next(pieces, b"")

        await buffer.fill(read)

    async def _download(self, url: Url, write: objects.Write, planned: objects.RemoteObject | None) -> None:
        async with answered_in_time(_seconds_for(None if planned is None else planned.size)):
            data = await self._call("cat_file", self._path(url))
        objects.require_size(len(data), planned)
        write(data)

    def _path(self, url: Url) -> str:
        return type(self._fs)._strip_protocol(str(url))  # fsspec's own extension point, without a public name

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self._fs.async_impl:
            # The documented asynchronous names.
            answer = await getattr(self._fs, f"_{name}")(*args, **options)
        else:
            async with self._turn:
                answer = await asyncio.to_thread(getattr(self._fs, name), *args, **options)
        self.reached = True
        return answer


def _seconds_for(size: int | None) -> float:
    """Return how long so many bytes may take, where they come in one piece; None: nobody knows how many."""
    rate = least_rate()
    if size is None or not rate:
        return float("inf")
    return rates.ANSWER_SECONDS + size / rate


def _found(path: str, info: Mapping[str, Any]) -> objects.RemoteObject:
    size = int(info.get("size") or 0)
    for kind, names in _KINDS.items():
        if value := next((info[name] for name in names if info.get(name)), None):
            token = _moment(value) if kind in ("modified", "created") else str(value).strip('"')
            return objects.RemoteObject(path=path, size=size, token=f"{kind}:{token}")
    return objects.RemoteObject(path=path, size=size, token=f"size:{size}")


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
