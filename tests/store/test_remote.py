"""Stores at URLs: opened, listed and read as those on the disk, and asked for no
more than is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.reading.support import rows_of
from tests.servers.s3 import KEY, SECRET
from tests.store.remote_store_support import (
    PROTOCOLS,
    Served,
    files_of,
    require_same_rows,
    rows_at,
    serving,
    shard_keys,
)
from tokenlake import Catalog
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    MissingExtraError,
    NotFoundError,
    StoreError,
)
from tokenlake.runtime.store import (
    LocalStore,
    Store,
    close_filesystems,
    open_read_store,
)

LISTING = [protocol for protocol in PROTOCOLS if protocol != "http"]


@pytest.fixture(scope="module")
def running(lake: Store) -> Iterator[Callable[[str], Served]]:
    """Starts a server of a protocol for all tests that want it."""
    files = {
        key: data
        for key, data in files_of(lake).items()
        if key.startswith(("plain/", "answers/"))
    }
    found: dict[str, Served] = {}
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKE_KEY", KEY)
        patch.setenv("LAKE_SECRET", SECRET)

        def start(protocol: str) -> Served:
            if protocol not in found:
                found[protocol] = stack.enter_context(serving(protocol, files))
            return found[protocol]

        yield start


@pytest.fixture
def served(
    request: pytest.FixtureRequest, running: Callable[[str], Served]
) -> Iterator[Served]:
    served = running(request.param)
    if served.server is None:
        yield served
        return
    served.server.log.clear()
    before = dict(vars(served.server))
    files = dict(getattr(served.server, "files", {}))
    yield served
    assert not served.server.faults
    vars(served.server).update(before)
    if files:
        served.server.files = files


def over(*protocols: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", protocols, indirect=True)


@over(*PROTOCOLS)
class TestReading:
    def test_rows_are_those_of_the_disk(self, served: Served, lake: Store) -> None:
        store = served.open()
        assert store.url == served.url.rstrip("/")
        for name in ("plain", "answers"):
            with rows_at(store, name) as remote, rows_of(lake, name) as local:
                require_same_rows(remote, local)

    def test_objects_and_what_is_missing(self, served: Served, lake: Store) -> None:
        store, key = served.open(), shard_keys(lake)[0]
        data = lake.read(key)
        assert store.read(key) == data
        assert (store.size(key), store.size(key + "x")) == (len(data), None)
        assert (store.exists(key), store.exists("plain/v2/manifest.json")) == (
            True,
            False,
        )
        with store.open(key) as stream:
            assert stream.read() == data
        for missing in (
            lambda: store.read("plain/none"),
            lambda: store.open("plain/none"),
        ):
            with pytest.raises(
                NotFoundError, match="plain/none: there is no such object"
            ):
                missing()
        with store.open("plain/none", size=5) as stream, pytest.raises(NotFoundError):
            stream.read(1)
        with pytest.raises(StoreError, match="is refused"):
            store.read("../plain")

    def test_it_goes_to_other_processes(self, served: Served, lake: Store) -> None:
        store = pickle.loads(pickle.dumps(served.open()))
        with rows_at(store) as remote, rows_of(lake, "plain") as local:
            assert remote.read(3).equals(local.read(3))


@over(*LISTING)
def test_listings_are_those_of_the_disk(served: Served, lake: Store) -> None:
    store = served.open()
    for prefix in ("plain", "plain/v1", "plain/v1/data", "plain/v1/dat", "none"):
        ours, theirs = (
            [(info.key, info.size) for info in one.list(prefix)]
            for one in (store, lake)
        )
        assert ours == theirs
        assert store.list_dirs(prefix) == lake.list_dirs(prefix)
    assert store.list_dirs("") == ["answers", "plain"]
    catalog = Catalog(store)
    assert catalog.datasets() == ["answers", "plain"]
    assert catalog.resolve("plain") == ("plain", 1)
    with pytest.raises(
        NotFoundError, match=r"plain@v2 in .* does not exist. Existing: v1"
    ):
        catalog.manifest("plain", 2)
    with pytest.raises(NotFoundError, match="did you mean plain"):
        catalog.resolve("plaint")
    with pytest.raises(StoreError, match="open for reading only"):
        catalog.claim("plain", "0" * 64, {})


@over("s3", "gs", "http")
class TestRequests:
    def test_opening_a_named_version_reads_its_manifest_and_nothing_else(
        self, served: Served
    ) -> None:
        store = served.open()
        assert served.asked() == []
        manifest = Catalog(store).manifest_of("plain@v1")
        rows = rows_at(store)
        assert rows.rows == manifest.splits["train"].rows
        assert served.asked() == [("GET", "manifest.json")] * 2

    def test_a_shard_is_opened_without_a_request_and_read_in_few(
        self, served: Served, lake: Store
    ) -> None:
        key = shard_keys(lake)[0]
        data = lake.read(key)
        with served.open().open(key, size=len(data), sha256="0" * 64) as stream:
            assert stream.seek(0, io.SEEK_END) == len(data)
            assert served.asked() == []
            stream.seek(100)
            assert stream.read(50) == data[100:150]
            assert stream.read_at(7, 9) == data[7:16]  # type: ignore[attr-defined]
            assert [method for method, _ in served.asked()] == ["GET", "GET"]
        with rows_at(served.open()) as rows:
            served.asked()
            rows.packed(0, loss_mask=False)
            first = len(served.asked())
            rows.packed(1, loss_mask=False)
            assert (first <= 3, len(served.asked())) == (True, 1)

    def test_an_object_of_unknown_size_is_pinned_to_its_version(
        self, served: Served, lake: Store
    ) -> None:
        key = shard_keys(lake)[0]
        data = lake.read(key)
        store = served.open()
        with store.open(key) as pinned, store.open(key, size=len(data)) as known:
            assert (pinned.read(10), known.read(10)) == (data[:10], data[:10])
            replace(served, key, b"PAR2" + data[4:])
            with pytest.raises(IntegrityError, match="it changed after it was opened"):
                pinned.read(10)
            # A repaired shard is another object of the same bytes.
            assert known.read(10) == data[10:20]
            replace(served, key, data)


def replace(served: Served, key: str, data: bytes) -> None:
    if served.url.startswith("s3"):
        served.server.client().put_object(Bucket="lake", Key=f"store/{key}", Body=data)
    elif served.url.startswith("gs"):
        served.server.put("lake", f"store/{key}", data)
    elif served.url.startswith("memory"):
        fsspec.filesystem("memory").pipe_file(f"/store/{key}", data)
    else:
        served.server.files[f"store/{key}"] = data


@over("http")
class TestWebServers:
    def test_they_do_not_list(self, served: Served) -> None:
        store = served.open()
        for ask in (lambda: store.list_dirs(""), lambda: list(store.list("plain"))):
            with pytest.raises(StoreError, match=r"do not list .*NAME@v3.*NAME@TAG"):
                ask()
        with pytest.raises(StoreError, match=r"NAME@v3"):
            Catalog(store).resolve("plain")
        with pytest.raises(StoreError, match=r"Name an existing version"):
            Catalog(store).manifest_of("plain@v2")

    def test_a_version_and_a_tag_by_name(
        self, served: Served, lake: Store, tmp_path: Path
    ) -> None:
        shutil.copytree(lake.url, tmp_path / "store")
        mine = open_read_store(tmp_path / "store")
        Catalog(mine).set_tag("plain", "prod", 1)
        key = "plain/tags/prod.json"
        served.server.files[f"store/{key}"] = mine.read(key)
        catalog = Catalog(served.open())
        assert catalog.resolve("plain@v1") == ("plain", 1)
        served.asked()
        assert catalog.manifest_of("plain@prod") == Catalog(lake).manifest("plain", 1)
        assert served.asked() == [("GET", "prod.json"), ("GET", "manifest.json")]

    def test_one_without_ranges_sends_each_file_once(
        self, served: Served, lake: Store
    ) -> None:
        served.server.ranges = False
        with rows_at(served.open()) as remote, rows_of(lake, "plain") as local:
            served.asked()
            require_same_rows(remote, local)
            sent = [name for _, name in served.asked()]
        # The request that shows that there are no ranges, and the download; for each
        # way of reading once.
        assert len(sent) <= 4 * len(set(sent))

    def test_names_are_quoted(self, served: Served) -> None:
        served.server.files["store/a b/50%25?#ü.json"] = b"{}"
        assert served.open().read("a b/50%25?#ü.json") == b"{}"

    def test_a_query_by_reference(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served.server.secret = "sig=not-a-real-signature"
        monkeypatch.setenv("LAKE_QUERY", served.server.secret)
        store = open_read_store(
            served.url, storage_options={"query": {"env": "LAKE_QUERY"}}
        )
        assert rows_at(store).rows > 0
        monkeypatch.setenv("LAKE_QUERY", "sig=another-signature")
        with pytest.raises(StoreError, match="access is denied") as caught:
            store.read("plain/v1/manifest.json")
        assert "another" not in str(caught.value) + repr(caught.value.details) + repr(
            store
        )


@over("s3")
def test_credentials_are_shown_nowhere(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.server.refuse = True
    store = served.open()
    assert store.exists("plain/v1/manifest.json")
    plain = open_read_store(
        served.url,
        storage_options={**served.options, "key": "AKIAOTHER", "secret": SECRET},
    )
    with pytest.raises(
        StoreError, match=r"access is denied .*AWS_ACCESS_KEY_ID"
    ) as caught:
        plain.read("plain/v1/manifest.json")
    monkeypatch.delenv("LAKE_KEY")
    with pytest.raises(ConfigError, match="LAKE_KEY"):
        served.open()
    shown = (
        str(caught.value) + repr(caught.value.details) + repr(plain) + repr(vars(plain))
    )
    assert "AKIAOTHER" not in shown
    assert SECRET not in shown


class TestOpening:
    def test_paths_are_local_and_urls_are_remote(self, tmp_path: Path) -> None:
        for address in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
            assert isinstance(
                open_read_store(address, cache=tmp_path / "unused"), LocalStore
            )
        assert not (tmp_path / "unused").exists()
        remote = open_read_store("memory://a/b/")
        assert (remote.url, repr(remote)) == (
            "memory://a/b",
            "RemoteStore('memory://a/b')",
        )
        close_filesystems()

    def test_schemes_that_cannot_be_read(self) -> None:
        with pytest.raises(
            ConfigError, match=r"store: sftpp:// is not a known scheme; expected s3"
        ):
            open_read_store("sftpp://host/lake")
        with pytest.raises(MissingExtraError, match="pip install dropbox"):
            open_read_store("dropbox://lake")
        with pytest.raises(ConfigError, match=r"store: .*storage_options"):
            open_read_store("https://me:hunter2hunter2@host/lake")
        with pytest.raises(StoreError, match="empty"):
            open_read_store("")

    def test_a_missing_package_names_the_extra(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = importlib.import_module("fsspec.registry")._registry
        for module, scheme, extra in (("s3fs", "s3", "s3"), ("gcsfs", "gs", "gcs")):
            monkeypatch.setitem(sys.modules, module, None)
            monkeypatch.delitem(known, scheme, raising=False)
            with pytest.raises(
                MissingExtraError, match=rf"pip install 'tokenlake\[{extra}\]'"
            ):
                open_read_store(f"{scheme}://not-asked/yet")

    def test_options_without_a_use(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cache_bytes='1GB' without a cache"):
            open_read_store("memory://a", cache_bytes="1GB")
        with pytest.raises(
            ConfigError, match=r"storage_options \(key\) for .* which is local"
        ):
            open_read_store(tmp_path, storage_options={"key": "hunter2"})
        with pytest.raises(ConfigError, match="has a query"):
            open_read_store("https://host/lake?page=1")
        with pytest.raises(ConfigError, match="a size must be"):
            open_read_store("memory://a", cache=tmp_path, cache_bytes="many")
        close_filesystems()

    def test_sql_copies_what_it_asks_about_and_hashes_it(self, lake: Store) -> None:
        files = {
            key: data
            for key, data in files_of(lake).items()
            if key.startswith("plain/")
        }
        query = "select sum(len(input_ids)) as ids from plain where split = 'train'"
        with serving("memory", files) as served:
            assert tl.sql(served.open(), query).equals(tl.sql(lake, query))
            shard = next(key for key in files if "/data/train" in key)
            damaged = (
                files[shard][:-9] + bytes([files[shard][-9] ^ 1]) + files[shard][-8:]
            )
            replace(served, shard, damaged)
            with pytest.raises(IntegrityError, match="changed after it was committed"):
                tl.sql(served.open(), query)

    def test_a_trainer_imports_nothing_of_the_build_side(self) -> None:
        code = """
import json, sys
from tokenlake.runtime.store.address import open_read_store
before = "fsspec" in sys.modules
open_read_store("memory://lake")
names = ("pydantic", "yaml", "prefect", "polars", "duckdb", "tokenizers", "tokenlake.etl.sources")
print(json.dumps([before, [name for name in names if name in sys.modules]]))
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True
        )
        assert json.loads(done.stdout) == [False, []]


class TestFile:
    """A remote file behaves as one in memory."""

    DATA = bytes(range(256)) * 11

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("read"), st.integers(-1, 4000)),
                st.tuples(st.just("readinto"), st.integers(0, 400)),
                st.tuples(st.just("set"), st.integers(0, 4000)),
                st.tuples(st.just("current"), st.integers(0, 50)),
                st.tuples(st.just("end"), st.integers(-2816, 50)),
            ),
            max_size=12,
        )
    )
    def test_reads_and_seeks(self, steps: list[tuple[str, int]]) -> None:
        fsspec.filesystem("memory").pipe_file("/file/a.bin", self.DATA)
        expected = io.BytesIO(self.DATA)
        with open_read_store("memory://file").open("a.bin", size=len(self.DATA)) as got:
            for kind, value in steps:
                if kind == "read":
                    assert got.read(value) == expected.read(value)
                elif kind == "readinto":
                    ours, theirs = bytearray(value), bytearray(value)
                    assert got.readinto(ours) == expected.readinto(theirs)  # type: ignore[attr-defined]
                    assert ours == theirs
                else:
                    whence = {"set": 0, "current": 1, "end": 2}[kind]
                    assert got.seek(value, whence) == expected.seek(value, whence)
                assert got.tell() == expected.tell()

    def test_positional_reads_by_threads(self) -> None:
        fsspec.filesystem("memory").pipe_file("/file/a.bin", self.DATA)
        with (
            open_read_store("memory://file").open(
                "a.bin", size=len(self.DATA)
            ) as stream,
            ThreadPoolExecutor(8) as pool,
        ):
            starts = [7 * i for i in range(400)]
            found = list(pool.map(lambda at: stream.read_at(at, 100), starts))  # type: ignore[attr-defined]
            assert found == [self.DATA[at : at + 100] for at in starts]
            assert stream.tell() == 0
        with pytest.raises(ValueError, match="closed"):
            stream.read_at(0, 1)  # type: ignore[attr-defined]
        close_filesystems()
