"""Files of web servers, through the session of fsspec's HTTP file system."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, final

from tokenlake.store.remote.httpanswers import REQUEST, require_success, take_range, timeouts, total_size
from tokenlake.store.remote.objects import Found, Objects, OtherObjectError, Page, Sink, Write, pour
from tokenlake.store.remote.retry import Failures, ShortBodyError
from tokenlake.store.remote.url import Url

_SAMPLE: Final = 64 << 10
_NO_HEAD: Final = frozenset({400, 403, 405, 501})  # a URL signed for GET answers 403


@final
class HttpObjects(Objects):
    """Requests to a web server.

    Tokens: ``etag:`` with the ETag; without one ``modified:`` with the date of the last change; without
    either ``size:`` and a hash of the first and last 64 KiB, so that a change between them that keeps the
    size is not seen.
    """

    credentials = (
        "None were sent unless the storage_options have some: {headers: {Authorization: {env: NAME}}}, "
        "{username: NAME, password: {env: NAME}}, or {query: {env: NAME}} for signed URLs"
    )

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        super().__init__(failures)
        self._fs = filesystem
        self._query: Any = options.get("query")

    async def stat(self, url: Url) -> Found:
        headers = await self._head(url)
        size = total_size(headers)
        if size is None:
            headers = await self._get_first(url)
            size = total_size(headers)
        if size is None:
            raise self.failures.failed(
                f"{url}: the server does not say how large the file is, which reading needs; copy it to a disk.",
                url=str(url),
            )
        token = _token(headers.headers) or await self._sampled(url, size)
        return Found(path=url.path, size=size, token=token, packed=_packed(headers.headers))

    async def page(self, url: Url, *, flat: bool, mark: str | None) -> Page:
        raise NotImplementedError("web servers do not list what they have")

    async def fetch(self, url: Url, sink: Sink, planned: Found) -> None:
        headers = {"Range": f"bytes={sink.at}-{sink.stop - 1}", **_condition(planned.token)}
        async with self._request("get", url, headers) as answer:
            require_success(answer)
            _check(answer, planned)
            await take_range(answer, sink, planned)

    def pins(self, token: str) -> bool:
        return token.startswith(("etag:", "modified:"))

    async def download(self, url: Url, write: Write, planned: Found | None) -> None:
        async with self._request("get", url, {} if planned is None else _condition(planned.token)) as answer:
            require_success(answer)
            if planned is not None:
                _check(answer, planned)
            await pour(answer.content.read, write, total_size(answer), planned)

    @asynccontextmanager
    async def _request(self, method: str, url: Url, headers: Mapping[str, str]) -> AsyncGenerator[Any]:
        session = await self._fs.set_session()
        given = dict(self._fs.kwargs)
        sent = {**given.pop("headers", {}), "Accept-Encoding": "identity", **headers}
        given["timeout"] = timeouts(**({"silence": given["timeout"]} if "timeout" in given else {}))
        arguments = {"allow_redirects": True, **REQUEST, **given, "headers": sent}
        async with session.request(method, self._fs.encode_url(self._signed(url)), **arguments) as answer:
            self.reached = True
            yield answer

    def _signed(self, url: Url) -> str:
        query = self._query
        if isinstance(query, Mapping):
            path = url.path.partition("?")[0]
            query = query.get(path) or query.get(path.rpartition("/")[2])
        if not query:
            return str(url)
        return f"{url}{'&' if '?' in url.path else '?'}{str(query).lstrip('?&')}"

    async def _head(self, url: Url) -> Any:
        async with self._request("head", url, {}) as answer:
            if answer.status not in _NO_HEAD:
                require_success(answer)
                return answer
        return await self._get_first(url)

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
            last = min(start + _SAMPLE, size) - 1
            async with self._request("get", url, {"Range": f"bytes={start}-{last}"}) as answer:
                require_success(answer)
                found.update(await _first_bytes(answer, last + 1 - start))
                answer.close()
                if answer.status != 206:
                    break
        return f"size:{size},ends:{found.hexdigest()[:32]}"


async def _first_bytes(answer: Any, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := await answer.content.read(size - len(data))):
        data += chunk
    if len(data) < size:
        raise ShortBodyError(f"the body ended after {len(data)} bytes, expected were {size}")
    return data


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


def _check(answer: Any, planned: Found) -> None:
    found = _token(answer.headers)
    same_kind = found.partition(":")[0] == planned.token.partition(":")[0]
    if found and same_kind and found != planned.token:
        raise OtherObjectError(f"its version is {found}, planned was {planned.token}")


def _packed(headers: Mapping[str, str]) -> str:
    encoding = headers.get("Content-Encoding", "").lower()
    return "" if encoding == "identity" else encoding
