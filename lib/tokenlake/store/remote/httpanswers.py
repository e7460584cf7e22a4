"""Answers of HTTP servers to requests for ranges, checked before they are believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tokenlake.store.remote.objects import CHUNK, Found, NoRangesError, OtherObjectError, Sink
from tokenlake.store.remote.retry import HttpStatusError, ShortBodyError

_CONTENT_RANGE: Final = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)", re.IGNORECASE)

REQUEST: Final[Mapping[str, Any]] = {"auto_decompress": False, "read_bufsize": CHUNK}
"""Arguments of each request: bodies come as they are stored, and are read in large pieces."""


def timeouts(silence: float = 30.0) -> Any:
    """Return aiohttp's timeouts: no limit on the whole, so many seconds without a byte."""
    import aiohttp  # an optional extra

    return aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=silence)


def require_success(answer: Any) -> None:
    """Raise HttpStatusError for a status of 400 or more."""
    if answer.status >= 400:
        text = answer.headers.get("Retry-After", "")
        raise HttpStatusError(answer.status, answer.reason or "", float(text) if text.isdigit() else None)


async def take_range(answer: Any, sink: Sink, planned: Found) -> None:
    """Put the body of an answer into `sink`; it must be the range that is missing, of an object of `planned.size`."""
    require_success(answer)
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if answer.status == 206 and (match is None or match[1] is None):
        raise ShortBodyError("a partial answer that does not say which part it is")
    if match is None:
        await _take_whole(answer, sink, planned)
        return
    first, last, total = match.groups()
    if total != "*" and int(total) != planned.size:
        raise OtherObjectError(f"it has {total} bytes, planned were {planned.size}")
    if int(first) != sink.at or int(last) >= sink.stop:
        raise ShortBodyError(f"asked for bytes {sink.at}-{sink.stop - 1}, got bytes {first}-{last}")
    await _take(answer, sink, int(last) + 1)


async def _take_whole(answer: Any, sink: Sink, planned: Found) -> None:
    length = answer.headers.get("Content-Length", "")
    if length.isdigit() and int(length) != planned.size:
        raise OtherObjectError(f"it has {length} bytes, planned were {planned.size}")
    if sink.at or sink.stop < planned.size:
        raise NoRangesError
    await _take(answer, sink, sink.stop)
    if await answer.content.read(1):
        raise OtherObjectError(f"it has more than the {planned.size} bytes that were planned")


async def _take(answer: Any, sink: Sink, stop: int) -> None:
    while sink.at < stop and (chunk := await answer.content.read(CHUNK)):
        sink.put(chunk)
    if sink.at < stop:
        raise ShortBodyError(f"the body ended at byte {sink.at}, {stop - sink.at} before its end")


def total_size(answer: Any) -> int | None:
    """Return the size of the whole object that an answer speaks of, None if it does not."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if match:
        return None if match[3] == "*" else int(match[3])
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None
