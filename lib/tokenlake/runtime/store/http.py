"""Files of web servers, and checks of answers to requests for ranges.

Answers of GCS are checked by the same functions. Redirects are judged by
:mod:`tokenlake.runtime.store.redirects`.
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
"""Arguments of each request.

Bodies come as they are stored, and are read in large pieces.
"""

_CONTENT_RANGE: Final = re.compile(
    r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE
)
_SILENCE_SECONDS: Final = 30.0  # default of the seconds without a byte
_SAMPLE: Final = 64 << 10  # bytes at each end of a file that has no version
_LARGEST: Final = 1 << 50  # bytes of a file
_DOUBTFUL: Final = 1 << 40  # bytes from which on the last one is asked for
_OWN_OPTIONS: Final = ("username", "password", "query")  # unknown to aiohttp
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
        """Return the arguments of the file system for the options of a user.

        aiohttp does not know `username`, `password` and `query`: the first two become
        an authentication, and the query goes on each request. Redirects are judged
        before they are followed.
        """
        arguments = {
            option: value
            for option, value in options.items()
            if option not in _OWN_OPTIONS
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
        # HEAD is the cheapest request. Some servers refuse it, or answer without a
        # size: then the first byte is requested.
        size: int | None = None
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
        # The size decides how a file is cut into units, and the token whether it has
        # changed.
        await self._require_plausible(url, size)
        token = _token(answer.headers) or await self._sampled(url, size)
        encoding = answer.headers.get("Content-Encoding", "").lower()
        packed = "" if encoding == "identity" else encoding
        return objects.RemoteObject(
            path=url.path, size=size, token=token, packed=packed
        )

    async def _require_plausible(self, url: Url, size: int) -> None:
        """Refuse a size that the server cannot mean.

        Planning would cut the file into as many pieces as that takes.
        """
        if size <= _DOUBTFUL:
            return
        reason = f"which is impossible; expected at most {_LARGEST}"
        # The server may be right: it then sends the last byte.
        if size <= _LARGEST:
            async with self._request(
                "get", url, {"Range": f"bytes={size - 1}-{size - 1}"}
            ) as answer:
                has_end = answer.status == 206 and total_size(answer) == size
                last_byte = await answer.content.read(1) if has_end else b""
                answer.close()
            if last_byte:
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
        condition: dict[str, str] = {}
        if planned is not None:
            condition = _condition(planned.token)
        async with self._request("get", url, condition) as answer:
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
        # Headers of the options may be replaced by those of the request, which are its
        # conditions.
        session = await self.session()
        options = dict(self._fs.kwargs)
        sent_headers = {
            **options.pop("headers", {}),
            "Accept-Encoding": "identity",
            **headers,
        }
        options["timeout"] = timeouts(options.get("timeout", _SILENCE_SECONDS))
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
        """Return a URL with the query of the options.

        The query is one for all files, or a mapping from path or file name to that of
        each file.
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
        """Request one byte.

        The connection is closed without reading more of a body that may be large.
        """
        async with self._request("get", url, {"Range": "bytes=0-0"}) as answer:
            if answer.status != 416:  # of an empty file
                require_success(answer)
            if answer.status != 206:
                answer.close()
            return answer

    async def _sampled(self, url: Url, size: int) -> str:
        """Return a token from the size and the first and last bytes of a file."""
        # Up to two samples; a small file is one sample, and an empty file none.
        sample_hash = hashlib.sha256()
        sample_starts = sorted({0, max(size - _SAMPLE, 0)}) if size else []
        for sample_start in sample_starts:
            buffer = objects.RangeBuffer(
                sample_start, min(_SAMPLE, size - sample_start)
            )
            async with self._request("get", url, {"Range": buffer.header}) as answer:
                require_success(answer)
                # A server without ranges sends the file from its beginning, so that
                # there is no second sample.
                await buffer.fill(answer.content.read)
                sample_hash.update(buffer.data)
                answer.close()
                if answer.status != 206:
                    break
        return f"size:{size},ends:{sample_hash.hexdigest()[:32]}"


def timeouts(silence: float = _SILENCE_SECONDS) -> Any:
    """Return aiohttp's timeouts: only the seconds without a byte are limited."""
    import aiohttp  # an optional extra

    return aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=silence)


def require_success(answer: Any) -> None:
    """Raise HttpStatusError for a status of 400 or more."""
    if answer.status >= 400:
        # The server may state when it wants to be asked again; the date form of this
        # header is not used.
        retry_after = answer.headers.get("Retry-After", "")
        wait_seconds: float | None = None
        if retry_after.isdigit():
            wait_seconds = float(retry_after)
        raise objects.HttpStatusError(answer.status, answer.reason or "", wait_seconds)


async def take_range(
    answer: Any, buffer: objects.RangeBuffer, planned: objects.RemoteObject
) -> None:
    """Put the body of an answer into `buffer`.

    It must be the missing range, of an object of the planned size.
    """
    match = _content_range(answer)
    # The whole object came: a server without ranges. It is taken if all of it is
    # missing.
    if match is None or match[1] is None:
        if answer.status == 206:
            raise objects.ShortBodyError("a partial response without its range")
        stated_length = answer.headers.get("Content-Length", "")
        objects.require_size(_parsed_bytes(stated_length), planned)
        if buffer.at or buffer.stop < planned.size:
            raise objects.NoRangesError
        await buffer.fill(answer.content.read)
        # Another byte means that the object has grown.
        if await answer.content.read(1):
            raise objects.OtherObjectError(
                f"it has more than the {planned.size} bytes that were planned"
            )
        return
    # A range came: it may end early, but must begin where the buffer does.
    first_byte, last_byte, stated_size = match.groups()
    objects.require_size(_parsed_bytes(stated_size), planned)
    if int(first_byte) != buffer.at or int(last_byte) >= buffer.stop:
        raise objects.ShortBodyError(
            f"asked for {buffer.header}, got bytes {first_byte}-{last_byte}"
        )
    await buffer.fill(answer.content.read, int(last_byte) + 1)


def total_size(answer: Any) -> int | None:
    """Return the size of the whole object that an answer states; None without one."""
    # In an answer with a range, Content-Length is that of the range.
    match = _content_range(answer)
    if match is not None:
        return _parsed_bytes(match[3])
    return _parsed_bytes(answer.headers.get("Content-Length", ""))


def _parsed_bytes(header_text: str) -> int | None:
    """Return the number in a header; None for ``*`` or another text."""
    if header_text.isdigit():
        return int(header_text)
    return None


def _content_range(answer: Any) -> re.Match[str] | None:
    """Return the match of the header ``Content-Range``; None without a valid one."""
    return _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())


def _token(headers: Mapping[str, str]) -> str:
    """Return the best token in the headers of an answer.

    The order is a strong ETag, the date of change, a weak ETag.
    """
    # A weak ETag may stay the same while bytes change.
    etag = headers.get("ETag", "")
    modified = headers.get("Last-Modified", "")
    if etag and not etag.startswith("W/"):
        return "etag:" + etag.strip('"')
    if modified:
        return f"modified:{modified}"
    if etag:
        return f"etag:{etag}"
    return ""


def _condition(token: str) -> dict[str, str]:
    """Return the headers that let a request succeed for one version only."""
    # A condition on a weak ETag never holds.
    token_kind, _, token_value = token.partition(":")
    if token_kind == "etag" and not token_value.startswith("W/"):
        return {"If-Match": f'"{token_value}"'}
    if token_kind == "modified":
        return {"If-Unmodified-Since": token_value}
    return {}


def _require_version(answer: Any, planned: objects.RemoteObject) -> None:
    """Raise OtherObjectError if an answer states another version than planned."""
    # Servers behind one address may send different kinds of tokens; only equal kinds
    # can be compared.
    token = _token(answer.headers)
    has_same_kind = token.partition(":")[0] == planned.token.partition(":")[0]
    if token and has_same_kind and token != planned.token:
        raise objects.OtherObjectError(
            f"its version is {token}, expected {planned.token}"
        )
