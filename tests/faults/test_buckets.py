"""Buckets that break down: every request of every operation of a store, with every
fault; and any sequence of writes.

After each the operation ends as it does undisturbed, there is what there is
undisturbed, and no upload is left but those that nobody ever learnt of, which gc finds.
An answer that says something wrong without an error counts as silent. A store in a
bucket is a dictionary: any sequence of writes ends as it does there.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.faults.conftest import Cases
from tests.servers.base import Fault, Request, writes
from tests.store.object_store_support import (
    CLOUDS,
    Bucket,
    bucket_on,
    environment,
    sha256,
    small_parts,
    written,
)
from tokenlake.errors import NotFoundError, TokenlakeError, VersionConflictError
from tokenlake.runtime.store import FileEntry, Store

# The second in three parts.
SMALL, LARGE = b"few bytes\r\n" * 40, hashlib.sha256(b"x").digest() * 34_000
HASH: Final = {data: sha256(data) for data in (SMALL, LARGE)}

Operation = Callable[[Store, str], Any]
"""Does something below a prefix, and returns what a caller learns of it."""


def publish(store: Store, prefix: str, data: bytes) -> Any:
    temp, digest = written(store, data, prefix)
    return store.publish(temp, f"{prefix}/new", digest)


def replace(store: Store, prefix: str) -> Any:
    temp, digest = written(store, LARGE, prefix)
    return store.replace(temp, f"{prefix}/small", digest, HASH[SMALL])


def digest(store: Store, prefix: str) -> Any:
    return looking_twice(lambda: store.digest(f"{prefix}/large"))


def download(store: Store, prefix: str) -> Any:
    def once() -> FileEntry:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x"
            found = store.download(f"{prefix}/large", path)
            assert sha256(path.read_bytes()) == found.sha256
            return found

    return looking_twice(once)


def looking_twice(look: Callable[[], FileEntry]) -> FileEntry:
    """Return what an object is to somebody who knows its hash: a large one has no
    other checksum on S3.
    """
    found = look()
    return found if found.sha256 == HASH[LARGE] else look()


OPERATIONS: Final[Mapping[str, Operation]] = {
    "put_new": lambda store, prefix: store.put_new(f"{prefix}/new", SMALL),
    "put_new equal": lambda store, prefix: store.put_new(f"{prefix}/small", SMALL),
    "put_new over an orphan": lambda store, prefix: store.put_new(
        f"{prefix}/small", b"other", replace_orphan=lambda: True
    ),
    "publish": lambda store, prefix: publish(store, prefix, SMALL),
    "publish in parts": lambda store, prefix: publish(store, prefix, LARGE),
    "link": lambda store, prefix: store.link(
        f"{prefix}/small", f"{prefix}/new", HASH[SMALL]
    ),
    "link in parts": lambda store, prefix: store.link(
        f"{prefix}/large", f"{prefix}/new", HASH[LARGE]
    ),
    "swap": lambda store, prefix: store.swap(f"{prefix}/small", b"other", SMALL),
    "swap to create": lambda store, prefix: store.swap(f"{prefix}/new", b"other", None),
    "replace": replace,
    "delete": lambda store, prefix: store.delete(f"{prefix}/small"),
    "read": lambda store, prefix: store.read(f"{prefix}/small"),
    "digest": lambda store, prefix: store.digest(f"{prefix}/small"),
    "digest of parts": digest,
    "download": download,
    "list": lambda store, prefix: [
        (one.key.partition("/")[2], one.size) for one in store.list(prefix)
    ],
    "leftovers": lambda store, prefix: store.leftovers(prefix),
}

FAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "slow down": {"status": 503, "code": "SlowDown"},
    "error": {"status": 500},
    "conflict": {"status": 409, "code": "ConditionalRequestConflict"},
    "drop before": {"drop": True},
    "commit then drop": {"drop": True, "commits": True},
    "commit then 500": {"status": 500, "commits": True},
    "flipped body": {"flip": True},
    "short clean body": {"short": True},
    "truncated answer": {"after": 5},
    "delay": {"wait": 0.05},
}


@dataclass(frozen=True)
class Case:
    """A fault of the so-manieth request of an operation."""

    operation: str
    request: int
    asked: str
    fault: str

    def __str__(self) -> str:
        return f"{self.operation}, request {self.request} ({self.asked}), {self.fault}"


def carries(request: Request) -> bool:
    """Say whether the bytes of an object travel with a request, up or down; only
    those have checksums.
    """
    if request.method == "GET":
        return "alt=media" in request.path or not any(
            mark in request.path
            for mark in ("/storage/v1/", "list-type", "uploads", "/o?")
        )
    return "uploadType" in request.path or (
        request.method == "PUT" and "x-amz-copy-source" not in request.headers
    )


def sensible(request: Request, fault: str) -> bool:
    if fault in ("commit then drop", "commit then 500", "conflict"):
        return request.method not in ("GET", "HEAD")
    if fault in ("flipped body", "short clean body"):
        # Bits of an answer that is no object are TLS's to keep.
        return carries(request)
    if fault == "truncated answer":
        return request.method == "GET"
    return True


def setting(bucket: Bucket, store: Store, prefix: str) -> None:
    """What is there before: put by the store itself, with the checksums that it
    sends.
    """
    for name, data in {"small": SMALL, "large": LARGE}.items():
        temp, digest = written(store, data, prefix)
        store.publish(temp, f"{prefix}/{name}", digest)
    bucket.server.log.clear()


def nth(number: int) -> Callable[[Request], bool]:
    count: Iterator[int] = iter(range(number + 1))

    def applies(_: Request) -> bool:
        return next(count, number + 1) == number

    return applies


@pytest.mark.parametrize("scheme", CLOUDS)
def test_every_request_with_every_fault(
    scheme: str, tmp_path: Path, cases: Cases
) -> None:
    with environment(tmp_path) as patch, bucket_on(scheme) as bucket:
        small_parts(patch)
        store = bucket.ready()
        # The trial of copies, once for a process.
        store.link("ready", "linked", sha256(b""))
        found: list[Case] = []
        undisturbed: dict[str, tuple[Any, dict[str, bytes]]] = {}
        for index, (name, operation) in enumerate(OPERATIONS.items()):
            prefix = f"plain{index}"
            setting(bucket, store, prefix)
            result = operation(store, prefix)
            undisturbed[name] = result, tails(bucket.inside(store, prefix))
            for number, request in enumerate(bucket.server.log):
                asked = (
                    f"{request.method} {request.path.partition('?')[2][:20]}".strip()
                )
                found += (
                    Case(name, number, asked, fault)
                    for fault in FAULTS
                    if sensible(request, fault)
                )
        for index, case in enumerate(cases.choose(found, sample=40)):
            survive(
                bucket, store, f"case{index}", case, undisturbed[case.operation], cases
            )


def tails(inside: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key.partition("/")[2]: data for key, data in inside.items()}


def survive(
    bucket: Bucket,
    store: Store,
    prefix: str,
    case: Case,
    undisturbed: tuple[Any, dict[str, bytes]],
    cases: Cases,
) -> None:
    setting(bucket, store, prefix)
    bucket.server.faults.append(Fault(applies=nth(case.request), **FAULTS[case.fault]))
    wanted, inside = undisturbed
    kind = f"{'s3' if bucket.scheme == 's3' else 'gcs'}: {case.fault}"
    try:
        result = OPERATIONS[case.operation](store, prefix)
    except TokenlakeError as error:
        bucket.server.faults.clear()
        cases.add(kind, survived=False, note=f"{case}: {error}")
        return
    met = not bucket.server.faults
    bucket.server.faults.clear()
    # After a lost answer the second try finds what the first one wrote.
    right = result == wanted or (
        wanted in ("created", "replaced") and result == "equal"
    )
    whole = tails(bucket.inside(store, prefix)) == inside
    left = store.leftovers(prefix)
    unknown = case.fault.startswith("commit") and case.asked.startswith("POST uploads")
    swept = all(store.remove_leftover(one) for one in left) and bucket.uploads() == 0
    fine = met and right and whole and len(left) == unknown and swept
    note = f"{case}: met {met}, got {result!r:.200}, whole {whole}, left {left}"
    cases.add(kind, survived=fine, silent=not (right and whole), note=note)


KEYS = st.sampled_from(["a", "a/b", "a-b", "v1/manifest.json", "v1/data/x"])
VALUES = st.sampled_from([b"", b"1", b"2", b"\r\n--=\x00", b"x" * 3000])
LOST = st.sampled_from(
    [
        Fault(drop=True, applies=writes),
        Fault(drop=True, commits=True, applies=writes),
        Fault(status=500, commits=True, applies=writes),
        Fault(flip=True, applies=writes),
    ]
)


@pytest.fixture(scope="module", params=CLOUDS)
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    with (
        environment(tmp_path_factory.mktemp("scratch")),
        bucket_on(request.param) as bucket,
    ):
        yield bucket


def test_it_is_a_dictionary(bucket: Bucket) -> None:
    class Model(RuleBasedStateMachine):
        store: Store
        model: dict[str, bytes]

        @initialize()
        def begin(self) -> None:
            bucket.server.faults.clear()
            self.store, self.model = bucket.ready(), {"ready": b""}
            self.broken = False

        @rule(fault=LOST)
        def break_down(self, fault: Fault) -> None:
            bucket.server.faults.clear()
            bucket.break_down(fault)
            self.broken = True

        @rule(key=KEYS, value=VALUES, orphan=st.booleans())
        def put(self, key: str, value: bytes, orphan: bool) -> None:
            there = self.model.get(key)
            if there is not None and there != value and not orphan:
                with pytest.raises(VersionConflictError) as caught:
                    self.store.put_new(key, value, replace_orphan=False)
                assert caught.value.details["got"] == sha256(there)
                return
            outcome = self.store.put_new(key, value, replace_orphan=orphan)
            self.judge(
                outcome, "created" if there is None else "replaced", there == value
            )
            self.model[key] = value

        @rule(key=KEYS, value=VALUES, seen=st.booleans(), guess=st.none() | VALUES)
        def swap(self, key: str, value: bytes, seen: bool, guess: bytes | None) -> None:
            there = self.model.get(key)
            expected = there if seen else guess
            if there != value and there != expected:
                with pytest.raises(VersionConflictError):
                    self.store.swap(key, value, expected)
                return
            outcome = self.store.swap(key, value, expected)
            self.judge(
                outcome, "created" if there is None else "replaced", there == value
            )
            self.model[key] = value

        @rule(key=KEYS)
        def delete(self, key: str) -> None:
            if self.model.pop(key, None) is not None:
                self.store.delete(key)
                return
            with pytest.raises(NotFoundError):
                self.store.delete(key)

        @rule(prefix=st.sampled_from(["", "v1", "a", "none"]))
        def look(self, prefix: str) -> None:
            below = f"{prefix}/" if prefix else ""
            wanted = sorted(
                (key, len(data))
                for key, data in self.model.items()
                if key.startswith(below)
            )
            assert [(info.key, info.size) for info in self.store.list(prefix)] == wanted

        @rule(key=KEYS)
        def read(self, key: str) -> None:
            if key in self.model:
                assert self.store.read(key) == self.model[key]
                assert self.store.digest(key).sha256 == sha256(self.model[key])
            else:
                assert not self.store.exists(key)

        def judge(self, outcome: str, wanted: str, equal: bool) -> None:
            """After a lost answer the second try finds what the first one wrote."""
            assert outcome in (
                ("equal",) if equal else (wanted, "equal") if self.broken else (wanted,)
            )
            self.broken = bool(bucket.server.faults)

        def teardown(self) -> None:
            bucket.server.faults.clear()
            assert bucket.inside(self.store) == self.model

    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=6,
            stateful_step_count=15,
            deadline=None,
            phases=[
                Phase.explicit,
                Phase.reuse,
                Phase.generate,
            ],  # each step is requests: shrinking takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
