"""Files of web servers; and answers to requests for ranges, of GCS as well, checked
before they are believed.

Which redirects are followed is said in :mod:`tokenlake.runtime.store.redirects`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, final

from tokenlake.runtime.store import objects
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.rates import answered_in_time
from tokenlake.runtime.store.redirects import MOST_REDIRECTS, PUBLIC_ONLY
from tokenlake.runtime.store.url import Url

REQUEST: Final[Mapping[str, Any]] = {
    "auto_decompress": False,
    "read_bufsize": objects.CHUNK,
}
"""Arguments of each request: bodies come as they are stored, and are read in large
pieces.
"""

_CONTENT_RANGE: Final = re.compile(
    r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE
)
_SAMPLE: Final = 64 << 10
_LARGEST: Final = 1 << 50  # bytes of a file
_DOUBTFUL: Final = 1 << 40  # bytes from which on the last one is asked for
_NO_HEAD: Final = frozenset({400, 403, 405, 501})  # a URL signed for GET answers 403


@final
class HttpClient(ObjectClient):
    """Requests to a web server.

    Tokens: ``etag:`` with the ETag; without one ``modified:`` with the date of the last
    change; without either ``size:`` and a hash of the first and last 64 KiB, so that a
    change between them that keeps the size is not seen.
    """

    pinned = ("etag:", "modified:")
    credentials = (
        "None were sent unless they are in storage_options: {headers: {Authorization: {env: NAME}}}, {username: "
        "NAME, password: {env: NAME}}, or {query: {env: NAME}} for signed URLs"
    )

    @classmethod
    def arguments(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Take out what aiohttp would not know: a user, a password, and queries, which
        go on each request.

        Redirects are looked at before they are followed.
        """
        arguments = {
            key: value
            for key, value in options.items()
            if key not in ("username", "password", "query")
        }
        if "username" in options or "password" in options:
            import aiohttp  # an optional extra

            auth = aiohttp.BasicAuth(
                str(options.get("username", "")), str(options.get("password", ""))
            )
            arguments["client_kwargs"] = {
                **options.get("client_kwargs", {}),
                "auth": auth,
            }
        from tokenlake.runtime.store.http_session import open_session  # imports aiohttp

        return {**arguments, "get_client": open_session}

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
                f"{url}: the server does not report the size of the file, which reading needs; copy the file to a "
                "disk.",
                url=str(url),
            )
        await self._require_plausible(url, size)
        token = _token(answer.headers) or await self._sampled(url, size)
        encoding = answer.headers.get("Content-Encoding", "").lower()
        packed = "" if encoding == "identity" else encoding
        return objects.RemoteObject(
            path=url.path, size=size, token=token, packed=packed
        )

    async def _require_plausible(self, url: Url, size: int) -> None:
        """Refuse a size that the server cannot mean: planning would cut the file
        into as many pieces as that takes.
        """
        if size <= _DOUBTFUL:
            return
        reason = f"which is impossible; expected at most {_LARGEST}"
        if size <= _LARGEST:
            async with self._request(
                "get", url, {"Range": f"bytes={size - 1}-{size - 1}"}
            ) as answer:
                has_end = answer.status == 206 and total_size(answer) == size
                data = await answer.content.read(1) if has_end else b""
                answer.close()
            if data:
                return
            reason = "and does not send the last of them"
        raise self.failures.failed(
            f"{url}: the server reports a file size of {size} bytes, {reason}. Its Content-Length is wrong: check the "
            "URL, or copy the file to a disk.",
            url=str(url),
            got=size,
        )

    async def _page(self, url: Url, flat: bool, mark: str | None) -> objects.ListPage:
        raise NotImplementedError("web servers do not list their files")

    async def _fetch(
        self, url: Url, buffer: objects.RangeBuffer, planned: objects.RemoteObject
    ) -> None:
        headers = {"Range": buffer.header, **_condition(planned.token)}
        async with self._request("get", url, headers) as answer:
            require_success(answer)
            _require_version(answer, planned)
            await take_range(answer, buffer, planned)

    async def _download(
        self, url: Url, write: objects.Write, planned: objects.RemoteObject | None
    ) -> None:
        async with self._request(
            "get", url, _condition(planned.token) if planned else {}
        ) as answer:
            require_success(answer)
            if planned is not None:
                _require_version(answer, planned)
            await objects.pour(answer.content.read, write, total_size(answer), planned)

    @asynccontextmanager
    async def _request(
        self, method: str, url: Url, headers: Mapping[str, str]
    ) -> AsyncGenerator[Any]:
        """Send a request, and yield its answer with the body unread."""
        PUBLIC_ONLY.set(False)  # until a redirect leads to another host
        session = await self.session()
        options = dict(self._fs.kwargs)
        sent_headers = {
            **options.pop("headers", {}),
            "Accept-Encoding": "identity",
            **headers,
        }
        options["timeout"] = (
            timeouts(options["timeout"]) if "timeout" in options else timeouts()
        )
        arguments = {
            "allow_redirects": True,
            "max_redirects": MOST_REDIRECTS,
            **REQUEST,
            **options,
            "headers": sent_headers,
        }
        target = self._fs.encode_url(self._with_query(url))
        async with answered_in_time():  # the headers, redirects included
            answer = await session.request(method, target, **arguments)
        async with answer:
            self.reached = True
            yield answer

    def _with_query(self, url: Url) -> str:
        """Return a URL with the query of the options, which may be one for all files
        or one for each.
        """
        query = self._options.get("query")
        if isinstance(query, Mapping):
            path = url.path.partition("?")[0]
            query = query.get(path) or query.get(path.rpartition("/")[2])
        if not query:
            return str(url)
        separator = "&" if "?" in url.path else "?"
        return f"{url}{separator}{str(query).lstrip('?&')}"

    async def _get_first(self, url: Url) -> Any:
        """Ask for one byte; the connection is closed without reading more of what
        may be a large body.
        """
        async with self._request("get", url, {"Range": "bytes=0-0"}) as answer:
            if answer.status != 416:  # of an empty file
                require_success(answer)
            if answer.status != 206:
                answer.close()
            return answer

    async def _sampled(self, url: Url, size: int) -> str:
        """Return a token from the size and the first and last bytes of a file."""
        sample_hash = hashlib.sha256()
        starts = sorted({0, max(size - _SAMPLE, 0)}) if size else []
        for start in starts:
            buffer = objects.RangeBuffer(start, min(_SAMPLE, size - start))
            async with self._request("get", url, {"Range": buffer.header}) as answer:
                require_success(answer)
                await buffer.fill(answer.content.read)
                sample_hash.update(buffer.data)
                answer.close()
                if answer.status != 206:
                    break
        return f"size:{size},ends:{sample_hash.hexdigest()[:32]}"


def timeouts(silence: float = 30.0) -> Any:
    """Return aiohttp's timeouts: no limit on the whole, so many seconds without a
    byte.
    """
    import aiohttp  # an optional extra

    return aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=silence)


def require_success(answer: Any) -> None:
    """Raise HttpStatusError for a status of 400 or more."""
    if answer.status >= 400:
        text = answer.headers.get("Retry-After", "")
        raise objects.HttpStatusError(
            answer.status, answer.reason or "", float(text) if text.isdigit() else None
        )


async def take_range(
    answer: Any, buffer: objects.RangeBuffer, planned: objects.RemoteObject
) -> None:
    """Put the body of an answer into `buffer`; it must be the range that is missing,
    of the planned size.
    """
    match = _content_range(answer)
    if match is None or match[1] is None:
        if answer.status == 206:
            raise objects.ShortBodyError("a partial response without its range")
        length = answer.headers.get("Content-Length", "")
        objects.require_size(int(length) if length.isdigit() else None, planned)
        if buffer.at or buffer.stop < planned.size:
            raise objects.NoRangesError
        await buffer.fill(answer.content.read)
        if await answer.content.read(1):
            raise objects.OtherObjectError(
                f"it has more than the {planned.size} bytes that were planned"
            )
        return
    first, last, total = match.groups()
    objects.require_size(None if total == "*" else int(total), planned)
    if int(first) != buffer.at or int(last) >= buffer.stop:
        raise objects.ShortBodyError(
            f"asked for {buffer.header}, got bytes {first}-{last}"
        )
    await buffer.fill(answer.content.read, int(last) + 1)


def total_size(answer: Any) -> int | None:
    """Return the size of the whole object that an answer speaks of, None if it does
    not.
    """
    match = _content_range(answer)
    text = answer.headers.get("Content-Length", "") if match is None else match[3]
    return int(text) if text.isdigit() else None


def _content_range(answer: Any) -> re.Match[str] | None:
    return _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())


def _token(headers: Mapping[str, str]) -> str:
    """Return the best token in the headers of an answer: a strong ETag, the date of
    change, or a weak ETag.
    """
    etag = headers.get("ETag", "")
    modified = headers.get("Last-Modified", "")
    if etag and not etag.startswith("W/"):
        return "etag:" + etag.strip('"')
    if modified:
        return f"modified:{modified}"
    return f"etag:{etag}" if etag else ""


def _condition(token: str) -> dict[str, str]:
    """Return the headers that make a request fail for another version than that of a
    token.
    """
    kind, _, value = token.partition(":")
    if kind == "etag" and not value.startswith("W/"):
        return {"If-Match": f'"{value}"'}
    if kind == "modified":
        return {"If-Unmodified-Since": value}
    return {}


def _require_version(answer: Any, planned: objects.RemoteObject) -> None:
    """Raise OtherObjectError if an answer states another version than planned."""
    token = _token(answer.headers)
    has_same_kind = token.partition(":")[0] == planned.token.partition(":")[0]
    if token and has_same_kind and token != planned.token:
        raise objects.OtherObjectError(
            f"its version is {token}, expected {planned.token}"
        )
