"""A store in a bucket is a dictionary: any sequence of writes ends as it does there, lost answers or not."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.servers.base import Fault, writes
from tests.store.object_store_support import CLOUDS, Bucket, bucket_on, environment, sha256
from tokenlake.errors import NotFoundError, VersionConflictError
from tokenlake.store.base import Store

KEYS = st.sampled_from(["a", "a/b", "a-b", "v1/manifest.json", "v1/data/x"])
VALUES = st.sampled_from([b"", b"1", b"2", b"\r\n--=\x00", b"x" * 3000])
FAULTS = st.sampled_from(
    [
        Fault(drop=True, applies=writes),
        Fault(drop=True, commits=True, applies=writes),
        Fault(status=500, commits=True, applies=writes),
        Fault(flip=True, applies=writes),
    ]
)


@pytest.fixture(scope="module", params=CLOUDS)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with environment(tmp_path_factory.mktemp("scratch")), bucket_on(request.param) as bucket:
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

        @rule(fault=FAULTS)
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
            self.judge(outcome, "created" if there is None else "replaced", there == value)
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
            self.judge(outcome, "created" if there is None else "replaced", there == value)
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
            wanted = sorted((key, len(data)) for key, data in self.model.items() if key.startswith(below))
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
            assert outcome in (("equal",) if equal else (wanted, "equal") if self.broken else (wanted,))
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
