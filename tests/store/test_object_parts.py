"""Large objects: parts on S3, one streamed request on GCS; nothing torn, and nothing left, whatever happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.base import Fault
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
from tokenlake.store.base import Store

KB = 1 << 10
DATA = os.urandom(1100 * KB)  # three parts
KEY = "corpus/v1/data/x.parquet"


@pytest.fixture(scope="module", params=CLOUDS)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with environment(tmp_path_factory.mktemp("scratch")) as patch, bucket_on(request.param) as bucket:
        small_parts(patch)
        yield bucket


@pytest.fixture
def store(bucket: Bucket) -> Iterator[Store]:
    yield bucket.ready()
    bucket.server.faults.clear()
    assert bucket.uploads() == 0


def publish(store: Store, data: bytes = DATA) -> str:
    temp, digest = written(store, data)
    try:
        return store.publish(temp, KEY, digest)
    finally:
        assert not temp.exists()


def test_parts_or_one_stream(bucket: Bucket, store: Store) -> None:
    assert publish(store) == "created"
    assert bucket.inside(store)[KEY] == DATA
    sent = [one for one in bucket.server.log if one.method in ("PUT", "POST")]
    if bucket.scheme == "gs":
        assert len(sent) == 1
    else:
        parts = [one for one in sent if "partNumber" in one.path]
        assert sorted(int(one.headers["content-length"]) for one in parts) == [100 * KB, 500 * KB, 500 * KB]
        assert all("content-md5" in one.headers for one in parts)
        assert [one.headers.get("if-none-match") for one in sent].count("*") == 1
    bucket.server.log.clear()
    assert publish(store) == "equal"  # after a look, without sending it again
    assert not {"PUT", "POST"} & set(bucket.methods())


def test_what_appears_while_it_is_sent_is_not_overwritten(bucket: Bucket, store: Store) -> None:
    last = on("POST", "uploadId=") if bucket.scheme == "s3" else on("POST", "uploadType")
    bucket.break_down(Fault(wait=0.4, applies=last))
    timer = threading.Timer(0.0, lambda: _put_when_last(bucket, store))
    timer.start()
    with pytest.raises(VersionConflictError, match=sha256(b"theirs")):
        publish(store)
    timer.join()
    assert bucket.inside(store)[KEY] == b"theirs"


def _put_when_last(bucket: Bucket, store: Store) -> None:
    while bucket.server.faults:
        time.sleep(0.005)
    bucket.put(store, KEY, b"theirs")


S3_ONLY = [on("PUT", "partNumber=2"), on("POST", "uploads"), on("POST", "uploadId=")]


def test_a_part_that_is_damaged_on_its_way_is_sent_again(bucket: Bucket, store: Store) -> None:
    part = on("PUT", "partNumber=2") if bucket.scheme == "s3" else on("POST", "uploadType")
    bucket.break_down(Fault(flip=True, applies=part), Fault(short=True, applies=part))
    assert publish(store) == "created"
    assert not bucket.server.faults
    assert bucket.inside(store)[KEY] == DATA


def test_a_lost_answer_looks_like_success(bucket: Bucket, store: Store) -> None:
    last = on("POST", "uploadId=") if bucket.scheme == "s3" else on("POST", "uploadType")
    bucket.break_down(Fault(drop=True, commits=True, applies=last))
    assert publish(store) in ("created", "equal")
    assert not bucket.server.faults
    assert bucket.inside(store)[KEY] == DATA


def test_an_upload_that_nobody_knows_is_swept(bucket: Bucket, store: Store) -> None:
    if bucket.scheme == "gs":
        pytest.skip("there are none")
    bucket.break_down(Fault(drop=True, commits=True, applies=on("POST", "uploads")))
    assert publish(store) == "created"
    [left] = store.leftovers("corpus/v1")
    assert left.name.endswith(f":{KEY}")
    assert abs(left.modified - time.time()) < 60
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
    with pytest.raises(StoreError, match=r"cannot be written: tried .*run again: what is finished is kept"):
        publish(store)
    assert KEY not in bucket.inside(store)


def test_denied_at_the_end_leaves_nothing(bucket: Bucket, store: Store) -> None:
    last = on("POST", "uploadId=") if bucket.scheme == "s3" else on("POST", "uploadType")
    bucket.break_down(Fault(status=403, code="AccessDenied", applies=last))
    with pytest.raises(StoreError, match="access is denied"):
        publish(store)
    assert KEY not in bucket.inside(store)


def test_an_interrupt_leaves_nothing(bucket: Bucket, store: Store) -> None:
    applies = on("PUT", "partNumber=3") if bucket.scheme == "s3" else on("POST", "uploadType")
    bucket.break_down(Fault(wait=2.0, drop=True, applies=applies))  # longer than any thread waits to run
    temp, digest = written(store, DATA)
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            _when_it_came(bucket)
            store.publish(temp, KEY, digest)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not temp.exists()
    assert KEY not in bucket.inside(store)


def _when_it_came(bucket: Bucket) -> None:
    def watch() -> None:
        while bucket.server.faults:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGALRM)

    threading.Thread(target=watch, daemon=True).start()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_changes_after_it_was_checked_is_never_published(
    bucket: Bucket, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.3")
    store = bucket.open()
    store.preflight()
    temp, digest = written(store, DATA)
    # The look before a large object is sent comes after the file was read back.
    bucket.break_down(Fault(wait=0.5, applies=lambda request: request.method in ("GET", "HEAD")))

    def change() -> None:
        while bucket.server.faults:
            time.sleep(0.005)
        with temp.open("r+b") as file:
            file.seek(len(DATA) - 1)
            file.write(bytes([DATA[-1] ^ 1]))

    thread = threading.Thread(target=change)
    thread.start()
    with pytest.raises(StoreError, match="cannot be written"):
        store.publish(temp, KEY, digest)
    thread.join()
    assert KEY not in bucket.inside(store)


def test_a_larger_copy_takes_several_requests(bucket: Bucket, store: Store) -> None:
    publish(store)
    if bucket.scheme == "gs":
        bucket.server.rewritten_at_once = KB
    assert store.link(KEY, "corpus/v2/x", sha256(DATA)) == "created"
    assert bucket.inside(store)["corpus/v2/x"] == DATA


def test_a_source_that_changes_before_it_is_copied(bucket: Bucket, store: Store) -> None:
    publish(store)
    copy = on("PUT", "corpus/v2/x") if bucket.scheme == "s3" else on("POST", "rewriteTo")
    bucket.break_down(Fault(wait=0.4, applies=copy))
    thread = threading.Thread(target=_put_when_last, args=(bucket, store))
    thread.start()
    with pytest.raises(IntegrityError, match="replaced while it was copied"):
        store.link(KEY, "corpus/v2/x", sha256(DATA))
    thread.join()
    assert "corpus/v2/x" not in bucket.inside(store)
