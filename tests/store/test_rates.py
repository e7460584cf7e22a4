"""A server that sends a little for ever is given up, and one that is slow for a
while is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_support import writable_hub
from tests.servers.base import Fault
from tests.servers.http import HttpServer
from tests.servers.hub import HubServer
from tests.sources.remote_support import documents, everything, jsonl, listed
from tokenlake.errors import ConfigError, SourceError
from tokenlake.etl.sources import HubClient
from tokenlake.runtime.store import RateFloor, client, objects, rates
from tokenlake.runtime.store.rates import answered_in_time

DATA = jsonl(documents(200))


class Body:
    """A body that comes in chunks, each after some seconds on a clock of its own."""

    def __init__(self, *chunks: tuple[float, int]) -> None:
        self.now = 0.0
        self._chunks = list(chunks)

    def clock(self) -> float:
        return self.now

    async def read(self, _: int) -> bytes:
        if not self._chunks:
            return b""
        seconds, size = self._chunks.pop(0)
        self.now += seconds
        return bytes(size)


def drained(body: Body, *, meanwhile: float = 0.0) -> int:
    """Read a body to its end; the reader takes some seconds for each chunk."""

    async def work() -> int:
        floor = RateFloor(body.clock)
        total = 0
        while data := await floor.read(body.read, 1 << 20):
            total += len(data)
            body.now += meanwhile
        return total

    return asyncio.run(work())


def test_a_byte_a_second_is_given_up_after_one_window() -> None:
    body = Body(*[(1.0, 1)] * 10_000)
    with pytest.raises(
        ConnectionError,
        match=r"sent 1 bytes a second for 30 seconds, expected at least 1000",
    ):
        drained(body)
    assert body.now == rates.WINDOW


@pytest.mark.parametrize(
    "chunks",
    [
        [(1.0, 1000)] * 100,  # just fast enough
        [(29.0, 1)] * 1,  # short and slow
        [(25.0, 0), (4.0, 30_000)] * 1,
        [(29.0, 1), (1.0, 100_000)] * 20,  # in gusts
    ],
)
def test_what_keeps_the_floor_is_read_to_its_end(
    chunks: list[tuple[float, int]],
) -> None:
    wanted = [(seconds, size) for seconds, size in chunks if size]
    assert drained(Body(*wanted)) == sum(size for _, size in wanted)


def test_the_time_that_the_reader_takes_does_not_count() -> None:
    assert drained(Body(*[(0.1, 200)] * 100), meanwhile=3600.0) == 20_000


def test_the_floor_is_configured_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(rates.VARIABLE, "0")
    assert drained(Body(*[(1.0, 1)] * 100)) == 100
    monkeypatch.setenv(rates.VARIABLE, "0.5")
    assert drained(Body(*[(1.0, 1)] * 100)) == 100
    for text in ("fast", "-1", "nan", "inf"):
        monkeypatch.setenv(rates.VARIABLE, text)
        with pytest.raises(
            ConfigError,
            match=r"TOKENLAKE_MIN_RATE: got .*expected a number of bytes a second",
        ):
            RateFloor()


def test_a_timeout_of_what_was_asked_stays_what_it_is() -> None:
    async def ask(seconds: float) -> None:
        async with answered_in_time(seconds):
            await asyncio.sleep(0)
            if seconds > 1:
                raise TimeoutError("of a socket")
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="of a socket"):
        asyncio.run(ask(60.0))
    with pytest.raises(ConnectionError, match="did not answer within"):
        asyncio.run(ask(0.0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server is too slow, at once."""
    monkeypatch.setattr(rates, "WINDOW", 0.0)
    monkeypatch.setenv(rates.VARIABLE, "1e15")
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer({"a.jsonl": DATA, "a.json": DATA}) as served:
        yield served


RATE = (
    r"it sent .* bytes a second for .*, expected at least 1e\+15 \(TOKENLAKE_MIN_RATE"
)


@pytest.mark.parametrize("ranges", [True, False])
def test_reading_names_url_rate_and_floor(
    server: HttpServer, impatient: None, ranges: bool
) -> None:
    server.ranges = ranges
    with pytest.raises(
        SourceError, match=rf"{server.url}/a\.jsonl: it cannot be read: .*{RATE}"
    ):
        everything(f"{server.url}/a.jsonl")


def test_a_slow_server_is_not_tried_again_for_ever(
    server: HttpServer, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before it was too slow counts as no progress, which would begin the
    patience anew.
    """
    begun: set[int] = set()

    def add(floor: RateFloor, size: int, seconds: float) -> None:
        if id(floor) in begun:
            raise rates.SlowServerError(1.0, 1e15, 30.0)
        begun.add(id(floor))

    monkeypatch.setattr(RateFloor, "add", add)
    monkeypatch.setattr(objects, "CHUNK", 100)
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "1000")
    monkeypatch.setattr(client, "_TRIES", 3)
    monkeypatch.setattr(client, "_FIRST", 0.0)
    server.faults.append(
        Fault(status=404, applies=lambda request: len(server.log) > 20)
    )
    with pytest.raises(SourceError, match=rf"tried 3 times, .*{RATE}"):
        everything(f"{server.url}/a.jsonl")


def test_sizes_are_asked_for_in_bounded_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "ANSWER_SECONDS", 0.05)
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0")
    server.faults.append(
        Fault(wait=0.5, applies=lambda request: request.method == "HEAD")
    )
    with pytest.raises(
        SourceError,
        match=rf"{server.url}/a\.jsonl: .*did not answer within 0\.05 seconds",
    ):
        listed(f"{server.url}/a.jsonl")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    yield from writable_hub(monkeypatch, tmp_path)


def test_the_hub_has_a_floor_too(hub: HubServer, impatient: None) -> None:
    hub.repo("our-org/small", {"a.jsonl": DATA})
    with pytest.raises(SourceError, match=rf"the list: the Hub at .*{RATE}"):
        HubClient(retries=0).get(
            "/api/datasets/our-org/small/revision/main", what="the list"
        )


def test_headers_of_the_hub_come_in_bounded_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rates, "ANSWER_SECONDS", 0.05)
    server.faults.append(Fault(wait=0.5))
    with pytest.raises(
        SourceError, match=r"the list: the Hub at .*did not answer within 0\.05 seconds"
    ):
        HubClient({"endpoint": server.url}, retries=0).get("/a.jsonl", what="the list")


SIZES = {
    "more than any file": (
        10**18,
        r"reports a file size of 1000000000000000000 bytes, which is impossible",
    ),
    "more than it has": (
        1 << 45,
        r"reports a file size of 35184372088832 bytes, and does not send the last",
    ),
}


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_that_cannot_be_are_one_sentence(server: HttpServer, kind: str) -> None:
    """Planning cut such a file into pieces until the memory was full."""
    size, message = SIZES[kind]
    server.sizes["a.jsonl"] = size
    with pytest.raises(
        SourceError, match=rf"{server.url}/a\.jsonl: the server {message}"
    ) as error:
        listed(f"{server.url}/a.jsonl")
    assert "memory" not in str(error.value)
