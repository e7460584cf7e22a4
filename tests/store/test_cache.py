"""The cache of shards in one process: what it keeps, what it gives up, and that it
never gives what is wrong.
"""

from __future__ import annotations

import fcntl
import os
import resource
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.reading.support import rows_of
from tests.servers.base import Fault
from tests.store.remote_store_support import (
    Served,
    files_of,
    require_same_rows,
    rows_at,
    serving,
)
from tests.store.support import sha256 as sha
from tests.store.support import wait_for
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store import ReadStore, ShardCache, Store

MIB = 1 << 20


def shard(number: int, size: int = 100) -> bytes:
    return bytes([number]) * size


class Origin:
    """Where shards come from: counts and serves."""

    def __init__(self) -> None:
        self.fetched: list[bytes] = []

    def of(self, data: bytes, sent: bytes | None = None) -> Callable[[Any], None]:
        def fetch(target: Any) -> None:
            self.fetched.append(data)
            target.restart()
            target.write(data if sent is None else sent)

        return fetch


@pytest.fixture
def origin() -> Origin:
    return Origin()


@pytest.fixture
def served(lake: Store) -> Iterator[Served]:
    files = {
        key: data for key, data in files_of(lake).items() if key.startswith("plain/")
    }
    with serving("http", files) as served:
        yield served


def opened(
    cache: ShardCache, origin: Origin | Callable[[Any], None], data: bytes
) -> bytes:
    fetch = origin.of(data) if isinstance(origin, Origin) else origin
    stream = cache.open(sha(data), len(data), fetch, "shard")
    assert stream is not None
    with stream:
        return stream.read()


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class TestKeeping:
    def test_a_shard_is_fetched_once(self, tmp_path: Path, origin: Origin) -> None:
        cache = ShardCache(tmp_path / "made" / "here")
        for _ in range(3):
            assert opened(cache, origin, shard(1)) == shard(1)
        assert opened(
            ShardCache(tmp_path / "made" / "here"), origin, shard(1)
        ) == shard(1)
        assert len(origin.fetched) == 1
        (copy,) = (tmp_path / "made" / "here").iterdir()
        assert (copy.name, copy.stat().st_mode & 0o777) == (sha(shard(1)), 0o444)

    def test_the_least_recently_opened_go_first(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache = ShardCache(tmp_path, 300)
        for number in (1, 2, 3, 1, 4, 5):
            opened(cache, origin, shard(number))
            time.sleep(0.01)  # of the clock of the file system
        assert kept(tmp_path) == {sha(shard(number)) for number in (1, 4, 5)}
        opened(cache, origin, shard(6, 300))
        assert kept(tmp_path) == {sha(shard(6, 300))}

    def test_what_is_open_stays_and_the_bound_holds(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache, data = ShardCache(tmp_path, 200), [shard(number) for number in range(3)]
        first = cache.open(sha(data[0]), 100, origin.of(data[0]), "a")
        second = cache.open(sha(data[1]), 100, origin.of(data[1]), "b")
        assert first is not None
        assert second is not None
        with pytest.warns(
            RuntimeWarning, match="c: the cache .* are used by open shards"
        ):
            assert cache.open(sha(data[2]), 100, origin.of(data[2]), "c") is None
        # And no second warning.
        assert cache.open(sha(data[2]), 100, origin.of(data[2]), "c") is None
        assert kept(tmp_path) == {sha(data[0]), sha(data[1])}
        first.close()
        assert opened(cache, origin, data[2]) == data[2]
        assert kept(tmp_path) == {sha(data[1]), sha(data[2])}
        assert second.read() == data[1]
        second.close()

    def test_an_open_copy_outlives_its_name(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache = ShardCache(tmp_path)
        stream = cache.open(sha(shard(1)), 100, origin.of(shard(1)), "a")
        assert stream is not None
        with stream:
            assert cache.discard(sha(shard(1)))
            assert not cache.discard(sha(shard(1)))
            assert stream.read() == shard(1)
        assert opened(cache, origin, shard(1)) == shard(1)
        assert len(origin.fetched) == 2

    def test_a_shard_larger_than_the_bound(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache = ShardCache(tmp_path, 99)
        opened(cache, origin, shard(2, 50))
        with pytest.warns(
            RuntimeWarning, match="it has 100 bytes, and cache_bytes is 99"
        ):
            assert cache.open(sha(shard(1)), 100, origin.of(shard(1)), "a") is None
        assert kept(tmp_path) == {sha(shard(2, 50))}  # nothing was removed for it

    def test_an_empty_shard(self, tmp_path: Path, origin: Origin) -> None:
        assert opened(ShardCache(tmp_path, 1), origin, b"") == b""

    def test_a_disk_that_is_full_before_the_end(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def fetch(target: Any) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
            try:
                origin.of(shard(1))(target)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        cache = ShardCache(tmp_path)
        with pytest.warns(
            RuntimeWarning, match="stores no copy: .* File too large after 50 bytes"
        ):
            assert cache.open(sha(shard(1)), 100, fetch, "a") is None
        assert kept(tmp_path) == set()
        assert opened(cache, origin, shard(1)) == shard(1)

    def test_files_of_others_are_left_alone(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        (tmp_path / "notes.txt").write_bytes(b"x" * 500)
        cache = ShardCache(tmp_path, 100)
        opened(cache, origin, shard(1))
        opened(cache, origin, shard(2))
        assert kept(tmp_path) == {"notes.txt", sha(shard(2))}


class TestDamage:
    def test_what_is_sent_wrong_once_is_asked_for_again(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        sent = [shard(9), shard(1)]

        def fetch(target: Any) -> None:
            origin.of(shard(1), sent.pop(0))(target)

        assert opened(ShardCache(tmp_path), fetch, shard(1)) == shard(1)

    @pytest.mark.parametrize("sent", [shard(9), shard(1)[:-1], b"", shard(1) + b"x"])
    def test_what_is_sent_wrong_twice_is_an_error_and_kept_nowhere(
        self, tmp_path: Path, origin: Origin, sent: bytes
    ) -> None:
        with pytest.raises(
            IntegrityError, match=f"a: fetched 2 times, .* expected {sha(shard(1))}"
        ):
            ShardCache(tmp_path).open(
                sha(shard(1)), 100, origin.of(shard(1), sent), "a"
            )
        assert kept(tmp_path) == set()
        assert len(origin.fetched) == 2

    def test_a_failing_fetch_leaves_nothing(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        def fetch(target: Any) -> None:
            target.write(b"half")
            raise NotFoundError("gone")

        cache = ShardCache(tmp_path)
        for _ in range(2):
            with pytest.raises(NotFoundError, match="gone"):
                cache.open(sha(shard(1)), 100, fetch, "a")
            assert kept(tmp_path) == set()
        assert opened(cache, origin, shard(1)) == shard(1)

    @pytest.mark.parametrize("left", [b"", shard(1)[:50], shard(1) + b"x"])
    def test_a_copy_of_a_wrong_size_is_fetched_again(
        self, tmp_path: Path, origin: Origin, left: bytes
    ) -> None:
        (tmp_path / sha(shard(1))).write_bytes(left)
        cache = ShardCache(tmp_path, 100)
        assert opened(cache, origin, shard(1)) == shard(1)
        assert opened(cache, origin, shard(1)) == shard(1)
        assert len(origin.fetched) == 1

    def test_what_a_dead_process_left_is_swept_and_never_served(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        for number in (1, 2):
            (tmp_path / f".part-{sha(shard(number))}").write_bytes(
                shard(number)[:70] + bytes(30)
            )
        assert opened(ShardCache(tmp_path, 100), origin, shard(1)) == shard(1)
        assert kept(tmp_path) == {sha(shard(1))}
        assert origin.fetched == [shard(1)]

    def test_links_are_not_followed(self, tmp_path: Path, origin: Origin) -> None:
        (tmp_path / "elsewhere").write_bytes(shard(1))
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / sha(shard(1))).symlink_to(tmp_path / "elsewhere")
        with pytest.warns(
            RuntimeWarning, match="stores no copy: Too many levels of symbolic links"
        ):
            assert (
                ShardCache(tmp_path / "cache").open(
                    sha(shard(1)), 100, origin.of(shard(1)), "a"
                )
                is None
            )

    def test_a_folder_that_cannot_be_one(self, tmp_path: Path, origin: Origin) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreError, match="cannot be created"):
            ShardCache(tmp_path / "file")
        with pytest.raises(StoreError, match="not a sha256"):
            ShardCache(tmp_path).open("../../etc", 1, origin.of(b""), "a")


class TestThreads:
    def test_one_fetches_and_the_others_wait(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache, go = ShardCache(tmp_path), threading.Event()

        def fetch(target: Any) -> None:
            origin.of(shard(1))(target)
            go.wait(120)

        with ThreadPoolExecutor(6) as pool:
            found = [pool.submit(opened, cache, fetch, shard(1)) for _ in range(6)]
            wait_for(lambda: bool(origin.fetched))
            time.sleep(0.05)
            go.set()
            assert [one.result() for one in found] == [shard(1)] * 6
        assert len(origin.fetched) == 1

    def test_who_waits_goes_on_after_a_failure(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache, go, failed = ShardCache(tmp_path), threading.Event(), threading.Event()

        def fail(target: Any) -> None:
            failed.set()
            go.wait(120)
            raise NotFoundError("gone")

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(cache.open, sha(shard(1)), 100, fail, "a")
            failed.wait(120)
            second = pool.submit(opened, cache, origin, shard(1))
            go.set()
            with pytest.raises(NotFoundError):
                first.result()
            assert second.result() == shard(1)

    def test_different_shards_are_fetched_at_once(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        cache, together = ShardCache(tmp_path, 400), threading.Barrier(4)

        def read(number: int) -> bytes:
            def fetch(target: Any) -> None:
                together.wait(120)  # nobody gets past it alone
                origin.of(shard(number))(target)

            return opened(cache, fetch, shard(number))

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [
                shard(number) for number in range(4)
            ]

    def test_what_is_being_fetched_counts(self, tmp_path: Path, origin: Origin) -> None:
        cache = ShardCache(tmp_path, 150)
        inner: list[object] = []

        def fetch(target: Any) -> None:
            with pytest.warns(
                RuntimeWarning, match="150 bytes of cache_bytes are used"
            ):
                inner.append(cache.open(sha(shard(2)), 100, origin.of(shard(2)), "b"))
            origin.of(shard(1))(target)

        assert opened(cache, fetch, shard(1)) == shard(1)
        assert inner == [None]

    def test_a_process_that_does_not_go_on_is_not_waited_for(
        self, tmp_path: Path, origin: Origin
    ) -> None:
        part = os.open(tmp_path / f".part-{sha(shard(1))}", os.O_RDWR | os.O_CREAT)
        fcntl.flock(part, fcntl.LOCK_EX)
        cache = ShardCache(tmp_path, stall_seconds=0.1)
        with pytest.warns(RuntimeWarning, match=r"has made no progress for 0\.1 s"):
            assert cache.open(sha(shard(1)), 100, origin.of(shard(1)), "a") is None
        os.close(part)
        assert opened(cache, origin, shard(1)) == shard(1)


class TestStore:
    """A store at a URL with a cache."""

    @pytest.mark.parametrize("ranges", [True, False])
    def test_each_shard_is_asked_for_once(
        self, served: Served, lake: Store, tmp_path: Path, ranges: bool
    ) -> None:
        served.server.ranges = ranges
        for _ in range(2):
            with (
                rows_at(served.open(cache=tmp_path, cache_bytes="1MB")) as remote,
                rows_of(lake, "plain") as local,
            ):
                require_same_rows(remote, local)
        asked = [name for _, name in served.asked() if name.endswith(".parquet")]
        assert len(asked) == len(set(asked)) == 3
        assert len(kept(tmp_path)) == 3

    def test_a_damaged_copy_is_fetched_again(
        self, served: Served, lake: Store, tmp_path: Path
    ) -> None:
        with (
            rows_at(served.open(cache=tmp_path)) as rows,
            rows_of(lake, "plain") as local,
        ):
            for read in ("packed", "read"):
                require_same_rows(rows, local)
                rows.close()
                for copy in tmp_path.iterdir():
                    data = bytearray(copy.read_bytes())
                    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
                    copy.chmod(0o644)
                    copy.write_bytes(data)
                served.asked()
                if read == "packed":
                    ours, theirs = (
                        one.packed(0, loss_mask=False).ids.tolist()
                        for one in (rows, local)
                    )
                    assert ours == theirs
                else:
                    assert rows.read(0).equals(local.read(0))
                assert len(served.asked()) == 1
                for copy in tmp_path.iterdir():
                    copy.unlink()

    def test_damage_that_is_at_the_origin_too_is_an_error(
        self, served: Served, tmp_path: Path
    ) -> None:
        rows = rows_at(served.open(cache=tmp_path))
        entry, _ = rows.shard_of(0)
        key = f"store/plain/v1/{entry.path}"
        data = bytearray(served.server.files[key])
        data[40] ^= 1
        served.server.files[key] = bytes(data)
        with pytest.raises(
            IntegrityError, match=f"fetched 2 times, .*expected {entry.sha256}"
        ):
            rows.packed(0, loss_mask=False)
        served.server.files[key] = bytes(data[:-1])
        with pytest.raises(
            IntegrityError, match="it differs from the manifest: it has"
        ):
            rows.packed(0, loss_mask=False)
        assert kept(tmp_path) == set()

    def test_a_bound_below_one_shard_reads_remotely(
        self, served: Served, lake: Store, tmp_path: Path
    ) -> None:
        with (
            rows_at(served.open(cache=tmp_path, cache_bytes=100)) as rows,
            rows_of(lake, "plain") as local,
        ):
            with pytest.warns(
                RuntimeWarning,
                match=r"train-0000.*it has \d+ bytes, and cache_bytes is 100",
            ):
                rows.packed(0, loss_mask=False)
            require_same_rows(rows, local)  # any warning would be an error
        assert kept(tmp_path) == set()

    def test_a_large_shard_comes_in_pieces_and_in_order(self, tmp_path: Path) -> None:
        # Three pieces.
        data = b"".join(number.to_bytes(4, "little") for number in range(17 * MIB // 4))
        with serving("http", {"big": data}) as served:
            served.break_down(Fault(after=100_000), Fault(status=503), Fault(after=0))
            store: ReadStore = served.open(cache=tmp_path)
            with store.open("big", size=len(data), sha256=sha(data)) as stream:
                assert stream.read() == data
            assert not served.server.faults
            assert len(served.server.requests("GET", "big")) == 6

    def test_without_size_or_hash_nothing_is_kept(
        self, served: Served, tmp_path: Path
    ) -> None:
        store = served.open(cache=tmp_path)
        with store.open("plain/v1/manifest.json") as stream:
            assert stream.read() == store.read("plain/v1/manifest.json")
        assert kept(tmp_path) == set()
        assert not store.discard("plain/v1/manifest.json")


def test_sizes_of_bounds(tmp_path: Path) -> None:
    with serving("memory", {"a": shard(1)}) as served:
        with warnings.catch_warnings():
            for size in (100, "100B", "1KB", "2 GiB"):
                served.open(cache=tmp_path, cache_bytes=size).open(
                    "a", size=100, sha256=sha(shard(1))
                ).close()
        with pytest.raises(ConfigError, match="got '-1'"):
            served.open(cache=tmp_path, cache_bytes="-1")
