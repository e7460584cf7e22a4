"""Stores in buckets: what a store promises, on both clouds, and what the servers saw of it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers.s3 import KEY, SECRET
from tests.store.object_store_support import (
    CLOUDS,
    Bucket,
    bucket_on,
    environment,
    sha256,
    small_parts,
    written,
)
from tokenlake.errors import IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.store.address import StoreAddress, open_read_store, open_store
from tokenlake.store.base import Leftover, Link
from tokenlake.store.remote.filesystems import close_filesystems

LIB = Path(__file__).resolve().parents[2] / "lib"


@pytest.fixture(scope="module", params=CLOUDS)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with environment(tmp_path_factory.mktemp("scratch")) as patch, bucket_on(request.param) as bucket:
        small_parts(patch)
        yield bucket


@pytest.fixture(autouse=True)
def whole(bucket: Bucket) -> Iterator[None]:
    yield
    bucket.server.faults.clear()
    bucket.server.careless = False
    assert bucket.uploads() == 0


class TestPutNew:
    def test_creates_once_with_one_request(self, bucket: Bucket) -> None:
        store = bucket.ready()
        assert store.put_new("a/b.json", b"ours") == "created"
        assert bucket.methods() == ["PUT" if bucket.scheme == "s3" else "POST"]
        assert store.put_new("a/b.json", b"ours") == "equal"
        assert bucket.inside(store) == {"a/b.json": b"ours", "ready": b""}

    def test_an_unequal_object_is_a_conflict_that_names_both(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.put_new("a", b"theirs")
        with pytest.raises(VersionConflictError) as caught:
            store.put_new("a", b"ours")
        assert sha256(b"ours") in str(caught.value)
        assert caught.value.details["got"] == sha256(b"theirs")
        assert store.read("a") == b"theirs"

    @pytest.mark.parametrize("orphan", [True, False])
    def test_an_orphan_is_replaced_if_it_still_is_one(self, bucket: Bucket, orphan: bool) -> None:
        store = bucket.ready()
        store.put_new("a", b"theirs")
        if orphan:
            assert store.put_new("a", b"ours", replace_orphan=lambda: True) == "replaced"
        else:
            with pytest.raises(VersionConflictError):
                store.put_new("a", b"ours", replace_orphan=lambda: False)
        assert store.read("a") == (b"ours" if orphan else b"theirs")

    def test_an_orphan_that_changes_at_the_last_moment_is_asked_about_again(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.put_new("a", b"theirs")
        answers = iter([True, False])

        def still_one() -> bool:
            bucket.put(store, "a", b"another one")  # between our look and our swap
            return next(answers, False)

        with pytest.raises(VersionConflictError):
            store.put_new("a", b"ours", replace_orphan=still_one)
        assert store.read("a") == b"another one"

    @pytest.mark.parametrize("key", ["../x", "/x", "a//b", ".tmp-x", ""])
    def test_unsafe_keys_are_refused(self, bucket: Bucket, key: str) -> None:
        with pytest.raises(StoreError, match="refused"):
            bucket.open().put_new(key, b"")


class TestPublish:
    def test_a_file_becomes_an_object_and_its_temporary_name_is_gone(self, bucket: Bucket) -> None:
        store, data = bucket.ready(), os.urandom(700_000)
        temp, digest = written(store, data)
        assert store.publish(temp, "corpus/v1/data/x.parquet", digest) == "created"
        assert not temp.exists()
        assert bucket.inside(store)["corpus/v1/data/x.parquet"] == data
        temp, digest = written(store, data)
        assert store.publish(temp, "corpus/v1/data/x.parquet", digest) == "equal"
        temp, digest = written(store, b"")
        assert store.publish(temp, "corpus/v1/empty", digest) == "created"
        assert store.digest("corpus/v1/empty").bytes == 0

    def test_what_is_not_what_was_written_is_not_published(self, bucket: Bucket) -> None:
        store = bucket.ready()
        temp, digest = written(store, b"some bytes")
        temp.write_bytes(b"same bytes")
        with pytest.raises(StoreError, match="read back is not what was written"):
            store.publish(temp, "x", digest)
        assert not temp.exists()
        assert bucket.methods() == []

    def test_other_files_are_refused(self, bucket: Bucket, tmp_path: Path) -> None:
        (tmp_path / ".tmp-x").write_bytes(b"")
        with pytest.raises(StoreError, match="not a temporary file of this store"):
            bucket.open().publish(tmp_path / ".tmp-x", "x", sha256(b""))
        assert (tmp_path / ".tmp-x").exists()
        temp, digest = written(bucket.open(), b"")
        with pytest.raises(StoreError, match="not a temporary file of this store"):
            bucket.open().publish(temp, "x", digest)

    def test_a_conflict_leaves_nothing(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.put_new("x", b"theirs")
        temp, digest = written(store, b"ours")
        with pytest.raises(VersionConflictError):
            store.publish(temp, "x", digest)
        assert not temp.exists()


class TestReading:
    def test_digest_and_download(self, bucket: Bucket, tmp_path: Path) -> None:
        store, data = bucket.ready(), os.urandom(9_000_000)  # more than one piece
        temp, digest = written(store, data)
        store.publish(temp, "x", digest)
        readers = (store, open_read_store(store.url, storage_options=bucket.server.options()))
        for number, reader in enumerate(readers):
            found = reader.digest("x")
            assert (found.bytes, found.sha256) == (len(data), digest)
            assert reader.download("x", tmp_path / str(number)) == found
            assert (tmp_path / str(number)).read_bytes() == data
            with pytest.raises(NotFoundError):
                reader.digest("y")
            with pytest.raises(NotFoundError):
                reader.download("y", tmp_path / "y")
            with pytest.raises(StoreError, match="cannot write"):
                reader.download("x", tmp_path / str(number))

    def test_listings_say_when(self, bucket: Bucket) -> None:
        store, before = bucket.ready(), time.time()
        store.put_new("b/c", b"12")
        store.put_new("b-c", b"1")
        found = list(store.list(""))
        assert [(info.key, info.size) for info in found] == [("b-c", 1), ("b/c", 2), ("ready", 0)]
        for info in found:
            assert info.modified is not None
            assert before - 2 <= info.modified <= time.time() + 2
        assert store.list_dirs("") == ["b"]
        assert store.exists("b-c")
        assert not store.exists("b")


class TestLink:
    @pytest.mark.parametrize("size", [0, 10, 600_000])
    def test_a_copy_is_made_by_the_storage(self, bucket: Bucket, size: int) -> None:
        store, data = bucket.ready(), os.urandom(size)
        temp, digest = written(store, data)
        store.publish(temp, "corpus/v1/x", digest)
        bucket.server.log.clear()
        assert store.link("corpus/v1/x", "corpus/v2/x", digest) == "created"
        sent = sum(int(one.headers.get("content-length", 0)) for one in bucket.server.log)
        assert sent < 10_000  # what is large does not come back to us to be sent again
        assert store.link("corpus/v1/x", "corpus/v2/x", digest) == "equal"
        assert bucket.inside(store)["corpus/v2/x"] == data

    def test_a_version_that_was_seen_is_copied_unread_and_no_other(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.put_new("corpus/v1/x", b"whole")
        (seen,) = store.list("corpus/v1")
        link = Link(source="corpus/v1/x", target="corpus/v2/x", size=5, sha256=sha256(b"whole"), seen=seen)
        bucket.server.log.clear()
        assert store.link_all([link], lambda _: False) == [None]
        assert [one for one in bucket.server.log if one.method == "GET" and "corpus" in one.path] == []
        bucket.put(store, "corpus/v1/x", b"other")
        (error,) = store.link_all([replace(link, target="corpus/v3/x")], lambda _: False)
        assert isinstance(error, IntegrityError)
        assert set(bucket.inside(store, "corpus")) == {"corpus/v1/x", "corpus/v2/x"}

    def test_a_damaged_source_is_not_copied(self, bucket: Bucket) -> None:
        store = bucket.ready()
        for size in (10, 600_000):
            bucket.put(store, "damaged", b"x" * size)
            with pytest.raises(IntegrityError, match="expected " + sha256(b"whole")):
                store.link("damaged", "copy", sha256(b"whole"))
        with pytest.raises(NotFoundError):
            store.link("missing", "copy", sha256(b""))
        assert set(bucket.inside(store)) == {"damaged", "ready"}

    def test_a_target_that_is_there(self, bucket: Bucket) -> None:
        store, data = bucket.ready(), b"x" * 600_000
        for source in (data, b"few"):
            bucket.put(store, "source", source)
            bucket.put(store, "target", b"theirs")
            with pytest.raises(VersionConflictError):
                store.link("source", "target", sha256(source))
            assert store.link("source", "target", sha256(source), replace_orphan=True) == "replaced"
            assert bucket.inside(store)["target"] == source


class TestSwapping:
    def test_only_what_was_seen_is_swapped(self, bucket: Bucket) -> None:
        store = bucket.ready()
        assert store.swap("tag", b"1", None) == "created"
        assert store.swap("tag", b"2", b"1") == "replaced"
        assert store.swap("tag", b"2", b"1") == "equal"
        for expected in (b"1", None):
            with pytest.raises(VersionConflictError) as caught:
                store.swap("tag", b"3", expected)
            assert caught.value.details["got"] == "2"
        with pytest.raises(VersionConflictError, match="holds nothing"):
            store.swap("none", b"3", b"2")
        assert bucket.inside(store) == {"tag": b"2", "ready": b""}

    def test_of_several_one_swaps(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.swap("n", b"0", None)

        def count(_: int) -> int:
            done = 0
            while done < 3:
                seen = store.read("n")
                try:
                    done += store.swap("n", str(int(seen) + 1).encode(), seen) == "replaced"
                except VersionConflictError:
                    continue
            return done

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(count, range(4))) == 12
        # "equal" tells a swap of ours from one of another that wrote the same, and neither is counted.
        assert int(store.read("n")) >= 12

    def test_replace_is_for_the_bytes_that_were_seen(self, bucket: Bucket) -> None:
        store = bucket.ready()
        bucket.put(store, "x", b"damaged")
        temp, digest = written(store, b"whole")
        with pytest.raises(VersionConflictError, match="to be replaced"):
            store.replace(temp, "x", digest, sha256(b"otherwise damaged"))
        assert not temp.exists()
        assert store.replace(written(store, b"whole")[0], "x", digest, sha256(b"damaged")) == "replaced"
        assert store.replace(written(store, b"whole")[0], "x", digest, sha256(b"damaged")) == "equal"
        assert store.replace(written(store, b"whole")[0], "y", digest, None) == "created"
        with pytest.raises(VersionConflictError):
            store.replace(written(store, b"whole")[0], "z", digest, sha256(b"damaged"))
        assert bucket.inside(store) == {"x": b"whole", "y": b"whole", "ready": b""}

    def test_delete(self, bucket: Bucket) -> None:
        store = bucket.ready()
        store.put_new("x", b"")
        store.delete("x")
        with pytest.raises(NotFoundError):
            store.delete("x")
        assert bucket.inside(store) == {"ready": b""}


class TestPreflight:
    def test_it_is_done_once_before_the_first_write(self, bucket: Bucket) -> None:
        store = bucket.open()
        bucket.server.log.clear()
        assert not store.exists("x")
        assert len(bucket.methods()) == 1
        store.put_new("x", b"")
        assert len(bucket.methods()) > 5
        open_store(store.url, storage_options=bucket.server.options()).put_new("y", b"")
        assert len(bucket.methods()) == 1
        assert set(bucket.inside(store)) == {"x", "y"}

    def test_a_storage_that_ignores_conditions_is_refused(self, bucket: Bucket) -> None:
        bucket.server.careless = True
        store = bucket.open()
        for write in (
            store.preflight,
            lambda: store.put_new("x", b""),
            lambda: store.swap("x", b"", None),
            lambda: store.publish(*written(store, b"")[:1], "x", sha256(b"")),
        ):
            with pytest.raises(
                StoreError, match=r"does not keep the conditions .* was accepted.*expected a ref"
            ):
                write()
        assert bucket.inside(store) == {}
        bucket.server.careless = False
        store.preflight()

    def test_a_bucket_that_is_not_there(self, bucket: Bucket) -> None:
        if bucket.scheme == "gs":
            pytest.skip("the stand-in has every bucket")
        store = open_store("s3://nowhere/store", storage_options=bucket.server.options())
        with pytest.raises(StoreError, match=r"cannot be written to.*NoSuchBucket"):
            store.preflight()


class TestLeftovers:
    def test_temporary_files(self, bucket: Bucket) -> None:
        store = bucket.ready()
        ours = store.temp("corpus/v1")
        theirs = subprocess.run(
            [sys.executable, "-c", _LEAVE, store.url],
            env=_environment(bucket),
            capture_output=True,
            text=True,
        )
        assert theirs.returncode == 0, theirs.stderr
        found = store.leftovers("corpus")
        assert {(Path(one.name).name, one.bytes, one.dead) for one in found} == {
            (ours.name, 0, False),
            (Path(theirs.stdout.strip()).name, 5, True),
        }
        assert all(abs(one.modified - time.time()) < 60 for one in found)
        assert store.leftovers("other") == []
        assert bucket.open().leftovers("") == []
        assert store.sweep_temp("corpus") == 0
        assert store.sweep_temp("corpus/v1") == 1
        [left] = store.leftovers("")
        assert store.remove_leftover(left)
        assert not store.remove_leftover(left)
        assert not ours.exists()

    def test_a_trial_whose_process_died(self, bucket: Bucket) -> None:
        store = bucket.ready()
        bucket.put(store, "_probe-0123", b"first")
        assert [info.key for info in store.list("")] == ["ready"]
        [left] = store.leftovers("")
        assert store.remove_leftover(left)
        assert not store.remove_leftover(left)
        assert set(bucket.inside(store)) == {"ready"}

    @pytest.mark.parametrize(
        "name", ["ready", "trial:ready", "scratch:ready", "scratch:../../.tmp-x", "upload:x:../y"]
    )
    def test_nothing_else_is_removed(self, bucket: Bucket, name: str) -> None:
        store = bucket.ready()
        with pytest.raises(StoreError):
            store.remove_leftover(Leftover(name, 0, 0.0, dead=True))
        assert set(bucket.inside(store)) == {"ready"}


class TestScratch:
    def test_the_folder_is_private(self, bucket: Bucket) -> None:
        temp = bucket.open().temp("corpus/v1")
        assert temp.stat().st_mode & 0o777 == 0o600
        private = next(folder for folder in temp.parents if folder.name.startswith("tokenlake-"))
        assert private.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("what", ["symlink", "file", "open"])
    def test_a_folder_of_others_is_refused(
        self, bucket: Bucket, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
        private = tmp_path / "scratch" / f"tokenlake-{os.geteuid()}"
        private.parent.mkdir()
        if what == "symlink":
            private.symlink_to(tmp_path)
        elif what == "file":
            private.write_bytes(b"")
        else:
            private.mkdir()
            private.chmod(0o777)
        with pytest.raises(StoreError, match="Remove it, or set TOKENLAKE_SCRATCH"):
            bucket.open().temp("corpus/v1")


class TestProcesses:
    def test_it_can_be_pickled(self, bucket: Bucket) -> None:
        store = bucket.ready()
        again = pickle.loads(pickle.dumps(store))
        assert again.put_new("x", b"1") == "created"
        assert store.read("x") == b"1"

    def test_both_sides_of_a_fork_write(self, bucket: Bucket) -> None:
        if bucket.scheme == "s3":
            pytest.skip("one cloud is enough: sessions are kept in one place, by process")
        store = bucket.ready()
        done = subprocess.run(
            [sys.executable, "-c", _FORK, store.url], env=_environment(bucket), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert set(bucket.inside(store)) == {"before", "parent", "child", "ready"}

    def test_no_secret_shows(self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        store = bucket.ready()
        monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.1")
        texts = [repr(store), store.url, str(vars(store))]
        if bucket.scheme == "s3":
            bucket.server.refuse = True
            monkeypatch.setenv("LAKE_KEY", "AKIAWRONGWRONGWRONG0")
            close_filesystems()
            try:
                with pytest.raises(StoreError, match="access is denied") as caught:
                    bucket.open().put_new("x", b"")
            finally:
                bucket.server.refuse = False
            texts.append(str(caught.value))
        assert not [text for text in texts for secret in (KEY, SECRET, "AKIAWRONG") if secret in text]

    def test_the_clouds_own_variables_lead_there(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = bucket.ready().url
        close_filesystems()
        if bucket.scheme == "s3":
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.server.url)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            address = StoreAddress(root.replace("s3://", "s3a://"))
        else:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.server.url)
            address = StoreAddress(root.replace("gs://", "gcs://"), {"token": "anon"})
        store = open_store(address)
        assert store.url == root
        assert store.put_new("x", b"") == "created"
        assert set(bucket.inside(store)) == {"x", "ready"}
        close_filesystems()


_LEAVE = """
import sys
from tokenlake.store.remote.scratch import scratch_of
path = scratch_of(sys.argv[1]).temp("corpus/v1")
path.write_bytes(b"12345")
print(path)
"""

_FORK = """
import json, os, sys
from tokenlake.store.address import open_store
store = open_store(sys.argv[1], storage_options=json.loads(os.environ["OPTIONS"]))
store.put_new("before", b"")
child = os.fork()
if not child:
    store.put_new("child", b"")
    os._exit(0)
store.put_new("parent", b"")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def _environment(bucket: Bucket) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(LIB),
        "OPTIONS": json.dumps(bucket.server.options()),
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
