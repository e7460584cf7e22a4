"""Floor on the rate at which a server sends.

A server that sends a byte a second would hold a build for ever.

The time without any byte is bounded by timeouts of sockets. A server that always sends
a little runs into none of them. So the bytes of each body are counted against the time
that was waited for them, in windows of :data:`WINDOW` seconds. Where a window had less
than the floor, the request fails. The time that the caller takes for the bytes does not
count. Answers without a body worth counting (the size of a file, a page of a listing,
headers) have a time limit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, final

from tokenlake.errors import ConfigError

VARIABLE: Final = "TOKENLAKE_MIN_RATE"
"""Environment variable: bytes a second that a server has to send at least.

The default is 1000; 0 means no floor.
"""

WINDOW: float = 30.0
"""Seconds of waiting after which the bytes that came meanwhile are judged."""

ANSWER_SECONDS: float = 300.0
"""Seconds for a whole answer to a small request, redirects included."""

_USUAL: Final = 1000.0  # bytes a second


class SlowServerError(ConnectionError):
    """A server sends less than the floor.

    The request is retried, because the network may only be congested for a while. Slow
    bytes do not count as progress.

    Attributes:
        rate: Bytes a second that came.
        floor: Bytes a second that were expected.
    """

    def __init__(self, rate: float, floor: float, seconds: float) -> None:
        super().__init__(
            f"it sent {rate:.3g} bytes a second for {seconds:.3g} seconds, expected at least {floor:.12g} "
            f"({VARIABLE} sets the minimum)"
        )
        self.rate = rate
        self.floor = floor


class NoAnswerError(ConnectionError):
    """A server has not answered a small request within :data:`ANSWER_SECONDS`.

    It may have sent something.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"it did not answer within {seconds:.3g} seconds, although it sends data"
        )


def least_rate() -> float:
    """Return the bytes a second that the environment requires.

    Raises:
        ConfigError: The variable holds no number of 0 or more.
    """
    rate_text = os.environ.get(VARIABLE, "")
    if not rate_text:
        return _USUAL
    try:
        rate = float(rate_text)
    except ValueError:
        rate = -1.0
    # `nan` fails both comparisons.
    if not 0 <= rate < float("inf"):
        raise ConfigError(
            f"{VARIABLE}: got {rate_text!r}, expected a number of bytes a second, 0 or more"
        )
    return rate


@final
class RateFloor:
    """Counts the bytes of one body, and the time that was waited for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: Function that returns seconds.
        """
        self._floor = least_rate()
        self._clock = clock
        self._waited = 0.0
        self._bytes = 0

    async def read(self, read: Callable[[int], Awaitable[bytes]], size: int) -> bytes:
        """Return the next bytes of a body.

        Raises:
            SlowServerError: Too few bytes came in the last window.
        """
        begin = self._clock()
        data = await read(size)
        self.add(len(data), self._clock() - begin)
        return data

    def add(self, size: int, seconds: float) -> None:
        """Count bytes that were waited for.

        Raises:
            SlowServerError: Too few came in the last window.
        """
        # Windows are judged when bytes come, so that one may be longer than its length.
        self._bytes += size
        self._waited += seconds
        if self._waited < WINDOW:
            return
        rate = self._bytes / max(self._waited, 1e-9)
        if size and rate < self._floor:  # a body that has ended was not too slow to end
            raise SlowServerError(rate, self._floor, self._waited)
        self._waited = 0.0
        self._bytes = 0


@asynccontextmanager
async def answered_in_time(seconds: float | None = None) -> AsyncGenerator[None]:
    """Bound the time of a small request.

    Args:
        seconds: Longest time; None: :data:`ANSWER_SECONDS`. Infinity: no limit.

    Raises:
        NoAnswerError: The request took longer.
    """
    limit_seconds = ANSWER_SECONDS if seconds is None else seconds
    timer = asyncio.timeout(None if limit_seconds == float("inf") else limit_seconds)
    try:
        async with timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise  # of a socket, or of the request itself
        raise NoAnswerError(limit_seconds) from None
