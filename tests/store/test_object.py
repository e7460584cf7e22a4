"""Stores in buckets: what a store promises on both clouds, of small objects and
large, and what the servers saw.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.servers.base import Fault, Request
from tests.servers.s3 import KEY, SECRET
from tests.store.object_store_support import (
    CLOUDS,
    Bucket,
    bucket_on,
    environment,
    on,
    sha256,
    small_parts,
    written,
)
from tokenlake.errors import IntegrityError, StoreError, VersionConflictError
from tokenlake.runtime.store import (
    Leftover,
    Link,
    Store,
    StoreAddress,
    close_filesystems,
    collect,
    open_store,
)

LIB = Path(__file__).resolve().parents[2] / "lib"


@pytest.fixture(scope="module", params=CLOUDS)
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    with (
        environment(tmp_path_factory.mktemp("scratch")) as patch,
        bucket_on(request.param) as bucket,
    ):
        small_parts(patch)
        yield bucket


@pytest.fixture(autouse=True)
def whole(bucket: Bucket) -> Iterator[None]:
    yield
    bucket.server.faults.clear()
    bucket.server.careless = False
    assert bucket.uploads() == 0


class TestRequests:
    def test_an_orphan_that_changes_at_the_last_moment_is_asked_about_again(
        self, bucket: Bucket
    ) -> None:
        store = bucket.ready()
        store.put_new("a", b"theirs")
        answers = iter([True, False])

        def still_one() -> bool:
            bucket.put(store, "a", b"another one")  # between our look and our swap
            return next(answers, False)

        with pytest.raises(VersionConflictError):
            store.put_new("a", b"ours", replace_orphan=still_one)
        assert store.read("a") == b"another one"

    def test_creates_once_with_one_request(self, bucket: Bucket) -> None:
        store = bucket.ready()
        assert store.put_new("a/b.json", b"ours") == "created"
        assert bucket.methods() == ["PUT" if bucket.scheme == "s3" else "POST"]
        assert store.put_new("a/b.json", b"ours") == "equal"
        assert bucket.inside(store) == {"a/b.json": b"ours", "ready": b""}

    @pytest.mark.parametrize("size", [0, 10, 600_000])
    def test_a_copy_is_made_by_the_storage(self, bucket: Bucket, size: int) -> None:
        store, data = bucket.ready(), os.urandom(size)
        temp, digest = written(store, data)
        store.publish(temp, "corpus/v1/x", digest)
        bucket.server.log.clear()
        assert store.link("corpus/v1/x", "corpus/v2/x", digest) == "created"
        sent = sum(
            int(one.headers.get("content-length", 0)) for one in bucket.server.log
        )
        assert sent < 10_000  # what is large does not come back to us to be sent again
        assert store.link("corpus/v1/x", "corpus/v2/x", digest) == "equal"
        assert bucket.inside(store)["corpus/v2/x"] == data

    def test_a_version_that_was_seen_is_copied_unread_and_no_other(
        self, bucket: Bucket
    ) -> None:
        store = bucket.ready()
        store.put_new("corpus/v1/x", b"whole")
        (seen,) = store.list("corpus/v1")
        link = Link(
            source="corpus/v1/x",
            target="corpus/v2/x",
            size=5,
            sha256=sha256(b"whole"),
            seen=seen,
        )
        bucket.server.log.clear()
        assert store.link_all([link]) == ["created"]
        assert [
            one
            for one in bucket.server.log
            if one.method == "GET" and "corpus" in one.path
        ] == []
        bucket.put(store, "corpus/v1/x", b"other")
        (error,) = store.link_all([replace(link, target="corpus/v3/x")])
        assert isinstance(error, IntegrityError)
        assert set(bucket.inside(store, "corpus")) == {"corpus/v1/x", "corpus/v2/x"}


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
                StoreError,
                match=r"ignores conditional writes: it accepted .*expected a ref",
            ):
                write()
        assert bucket.inside(store) == {}
        bucket.server.careless = False
        store.preflight()

    def test_a_bucket_that_is_not_there(self, bucket: Bucket) -> None:
        if bucket.scheme == "gs":
            pytest.skip("the stand-in has every bucket")
        store = open_store(
            "s3://nowhere/store", storage_options=bucket.server.options()
        )
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
        assert all(abs(one.modified - time.time()) < 600 for one in found)
        assert store.leftovers("other") == []
        assert bucket.open().leftovers("") == []
        assert store.sweep_temp("corpus/v1") == 1
        [left] = store.leftovers("")
        assert store.remove_leftover(left)
        assert not store.remove_leftover(left)
        assert not ours.exists()

    def test_gc_removes_old_uploads_of_versions_and_none_of_others(
        self, bucket: Bucket
    ) -> None:
        if bucket.scheme != "s3":
            pytest.skip("an upload to Google Cloud Storage is one request")
        store = bucket.ready()
        client = bucket.server.client()
        ours = "corpus/v1/data/train-00000-00.parquet"
        theirs = "theirs/notes.bin"
        for key in (ours, theirs):
            root = store.url.partition("lake/")[2]
            client.create_multipart_upload(Bucket="lake", Key=f"{root}/{key}")
        assert sorted(leftover.key for leftover in store.leftovers("")) == [
            ours,
            theirs,
        ]
        report = collect(store, grace=3600.0)
        assert [file.name.rpartition(":")[2] for file in report.removed] == [ours]
        [other] = store.leftovers("")
        assert other.key == theirs
        assert store.remove_leftover(other)

    def test_a_trial_whose_process_died(self, bucket: Bucket) -> None:
        store = bucket.ready()
        bucket.put(store, "_probe-0123", b"first")
        assert [info.key for info in store.list("")] == ["ready"]
        [left] = store.leftovers("")
        assert store.remove_leftover(left)
        assert not store.remove_leftover(left)
        assert set(bucket.inside(store)) == {"ready"}

    @pytest.mark.parametrize(
        "name",
        [
            "ready",
            "trial:ready",
            "scratch:ready",
            "scratch:../../.tmp-x",
            "upload:x:../y",
        ],
    )
    def test_nothing_else_is_removed(self, bucket: Bucket, name: str) -> None:
        store = bucket.ready()
        with pytest.raises(StoreError):
            store.remove_leftover(Leftover(name, 0, 0.0, dead=True, key=name))
        assert set(bucket.inside(store)) == {"ready"}


class TestScratch:
    def test_the_folder_is_private(self, bucket: Bucket) -> None:
        temp = bucket.open().temp("corpus/v1")
        assert temp.stat().st_mode & 0o777 == 0o600
        private = next(
            folder for folder in temp.parents if folder.name.startswith("tokenlake-")
        )
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
    def test_both_sides_of_a_fork_write(self, bucket: Bucket) -> None:
        if bucket.scheme == "s3":
            pytest.skip(
                "one cloud is enough: sessions are kept in one place, by process"
            )
        store = bucket.ready()
        done = subprocess.run(
            [sys.executable, "-c", _FORK, store.url],
            env=_environment(bucket),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert set(bucket.inside(store)) == {"before", "parent", "child", "ready"}

    def test_no_secret_shows(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        assert not [
            text
            for text in texts
            for secret in (KEY, SECRET, "AKIAWRONG")
            if secret in text
        ]

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
from tokenlake.runtime.store.scratch import scratch_of
path = scratch_of(sys.argv[1]).temp("corpus/v1")
path.write_bytes(b"12345")
print(path)
"""

_FORK = """
import json, os, sys
from tokenlake.runtime.store.address import open_store
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


# ---- large objects: parts on S3, one streamed request on GCS; nothing torn, nothing
# left -----------------

KB = 1 << 10
DATA = os.urandom(1100 * KB)  # three parts
SHARD = "corpus/v1/data/x.parquet"


@pytest.fixture
def store(bucket: Bucket) -> Store:
    return bucket.ready()


def publish(store: Store, data: bytes = DATA) -> str:
    temp, digest = written(store, data)
    try:
        return store.publish(temp, SHARD, digest)
    finally:
        assert not temp.exists()


def test_parts_or_one_stream(bucket: Bucket, store: Store) -> None:
    assert publish(store) == "created"
    assert bucket.inside(store)[SHARD] == DATA
    sent = [one for one in bucket.server.log if one.method in ("PUT", "POST")]
    if bucket.scheme == "gs":
        assert len(sent) == 1
    else:
        parts = [one for one in sent if "partNumber" in one.path]
        assert sorted(int(one.headers["content-length"]) for one in parts) == [
            100 * KB,
            500 * KB,
            500 * KB,
        ]
        assert all("content-md5" in one.headers for one in parts)
        assert [one.headers.get("if-none-match") for one in sent].count("*") == 1
    bucket.server.log.clear()
    assert publish(store) == "equal"  # after a look, without sending it again
    assert not {"PUT", "POST"} & set(bucket.methods())


def test_what_appears_while_it_is_sent_is_not_overwritten(
    bucket: Bucket, store: Store
) -> None:
    bucket.break_down(
        Fault(
            meanwhile=lambda: bucket.put(store, SHARD, b"theirs"), applies=last(bucket)
        )
    )
    with pytest.raises(VersionConflictError, match=sha256(b"theirs")):
        publish(store)
    assert bucket.inside(store)[SHARD] == b"theirs"


def last(bucket: Bucket) -> Callable[[Request], bool]:
    """The request that makes a large object visible."""
    return (
        on("POST", "uploadId=") if bucket.scheme == "s3" else on("POST", "uploadType")
    )


S3_ONLY = [on("PUT", "partNumber=2"), on("POST", "uploads"), on("POST", "uploadId=")]


def test_a_part_that_is_damaged_on_its_way_is_sent_again(
    bucket: Bucket, store: Store
) -> None:
    part = (
        on("PUT", "partNumber=2") if bucket.scheme == "s3" else on("POST", "uploadType")
    )
    bucket.break_down(Fault(flip=True, applies=part), Fault(short=True, applies=part))
    assert publish(store) == "created"
    assert not bucket.server.faults
    assert bucket.inside(store)[SHARD] == DATA


def test_a_lost_answer_looks_like_success(bucket: Bucket, store: Store) -> None:
    bucket.break_down(Fault(drop=True, commits=True, applies=last(bucket)))
    assert publish(store) in ("created", "equal")
    assert not bucket.server.faults
    assert bucket.inside(store)[SHARD] == DATA


def test_an_upload_that_nobody_knows_is_swept(bucket: Bucket, store: Store) -> None:
    if bucket.scheme == "gs":
        pytest.skip("there are none")
    bucket.break_down(Fault(drop=True, commits=True, applies=on("POST", "uploads")))
    assert publish(store) == "created"
    [left] = store.leftovers("corpus/v1")
    assert left.name.endswith(f":{SHARD}")
    assert abs(left.modified - time.time()) < 600
    assert store.leftovers("corpus/v2") == []
    assert store.remove_leftover(left)
    assert not store.remove_leftover(left)


@pytest.mark.parametrize("which", range(3), ids=["part", "begin", "complete"])
def test_a_failure_for_good_leaves_nothing(
    bucket: Bucket, store: Store, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bucket.scheme == "gs" and which:
        pytest.skip("there is one request")
    applies = S3_ONLY[which] if bucket.scheme == "s3" else on("POST", "uploadType")
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.3")
    store = bucket.open()
    store.preflight()
    bucket.break_down(*[Fault(status=503, applies=applies)] * 400)
    with pytest.raises(
        StoreError,
        match=r"cannot be written: tried .*run again: finished units are kept",
    ):
        publish(store)
    assert SHARD not in bucket.inside(store)


def test_denied_at_the_end_leaves_nothing(bucket: Bucket, store: Store) -> None:
    bucket.break_down(Fault(status=403, code="AccessDenied", applies=last(bucket)))
    with pytest.raises(StoreError, match="access is denied"):
        publish(store)
    assert SHARD not in bucket.inside(store)


def test_an_interrupt_leaves_nothing(bucket: Bucket, store: Store) -> None:
    applies = (
        on("PUT", "partNumber=3") if bucket.scheme == "s3" else on("POST", "uploadType")
    )
    # The request stays without an answer for longer than any machine stands still.
    alarm = partial(os.kill, os.getpid(), signal.SIGALRM)
    bucket.break_down(Fault(meanwhile=alarm, wait=60.0, drop=True, applies=applies))
    temp, digest = written(store, DATA)
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.publish(temp, SHARD, digest)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not temp.exists()
    assert SHARD not in bucket.inside(store)


def test_an_interrupt_before_the_wait_for_an_upload_ends_it_too(
    bucket: Bucket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    applies = (
        on("PUT", "partNumber=3") if bucket.scheme == "s3" else on("POST", "uploadType")
    )
    sent = threading.Event()
    bucket.break_down(Fault(meanwhile=sent.set, wait=60.0, drop=True, applies=applies))
    temp, digest = written(store, DATA)
    submit = asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: Any) -> Any:
        future = submit(work, loop)
        if work.__name__ == "run_to_its_end":  # the upload
            assert sent.wait(120)
            raise KeyboardInterrupt
        return future

    monkeypatch.setattr("asyncio.run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.publish(temp, SHARD, digest)
    monkeypatch.undo()
    assert not temp.exists()
    assert SHARD not in bucket.inside(store)
    assert store.leftovers("corpus/v1") == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_changes_after_it_was_checked_is_never_published(
    bucket: Bucket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.3")
    store = bucket.open()
    store.preflight()
    temp, digest = written(store, DATA)

    def change() -> None:
        with temp.open("r+b") as file:
            file.seek(len(DATA) - 1)
            file.write(bytes([DATA[-1] ^ 1]))

    # The look before a large object is sent comes after the file was read back.
    look = Fault(
        meanwhile=change, applies=lambda request: request.method in ("GET", "HEAD")
    )
    bucket.break_down(look)
    with pytest.raises(StoreError, match="cannot be written"):
        store.publish(temp, SHARD, digest)
    assert SHARD not in bucket.inside(store)


def test_a_larger_copy_takes_several_requests(bucket: Bucket, store: Store) -> None:
    publish(store)
    if bucket.scheme == "gs":
        bucket.server.rewritten_at_once = KB
    assert store.link(SHARD, "corpus/v2/x", sha256(DATA)) == "created"
    assert bucket.inside(store)["corpus/v2/x"] == DATA


def test_a_source_that_changes_before_it_is_copied(
    bucket: Bucket, store: Store
) -> None:
    publish(store)
    copy = (
        on("PUT", "corpus/v2/x") if bucket.scheme == "s3" else on("POST", "rewriteTo")
    )
    bucket.break_down(
        Fault(meanwhile=lambda: bucket.put(store, SHARD, b"theirs"), applies=copy)
    )
    with pytest.raises(IntegrityError, match="replaced while it was copied"):
        store.link(SHARD, "corpus/v2/x", sha256(DATA))
    assert "corpus/v2/x" not in bucket.inside(store)
