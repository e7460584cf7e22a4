"""Every order of the steps of builds, commits and collections: a visible version is
whole, and nobody wins twice.

The collections here have no grace period and find everything old, as if each process
had slept for longer than any, at every one of its steps; and a process that is not
given its turn any more has died.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import pytest

from tests.store.memory_store import MemoryStore, Stops, Walk, explore
from tests.store.support import a_record, a_shard, closing_note, sha256
from tokenlake import Catalog, DatasetConfig, Manifest, PipelineConfig
from tokenlake.config.resolve import resolve
from tokenlake.errors import VersionConflictError
from tokenlake.etl.commit import commit_version, publish_preamble
from tokenlake.etl.plan import Plan
from tokenlake.runtime.store import (
    Account,
    Claim,
    GcReport,
    Layout,
    Store,
    UnitRecord,
    collect,
    shard_path,
)

A = "a" * 64
DATA = b"one token"
#: What is worth a stop where three processes would take too many: the steps that decide, and the first that deletes.
#: All steps of three are in ``tests/faults/test_races.py``.
DECISIONS: Final = frozenset[str | tuple[str, str]](
    {
        "swap",
        ("put_new", "manifest.json"),
        ("put_new", "claim.json"),
        ("read", "claim.json"),
        ("delete", "00000.json"),
    }
)


def record(path: str = shard_path("train", 0, 0)) -> UnitRecord:
    shard = a_shard(path=path, bytes=len(DATA), sha256=sha256(DATA))
    account = Account(
        rows_read=1, kept=1, documents=1, tokens=1, content_packed=1, text_bytes=1
    )
    return a_record(fingerprint=A, source="s", parts=(shard,), account=account)


def plan() -> Plan:
    """A build of one unit and one small file."""
    found = resolve(
        PipelineConfig(
            name="d", datasets=(DatasetConfig(name="s", data_files="x", tokenizer="t"),)
        )
    )
    return Plan(
        build=found,
        inputs=(),
        units=(),
        tokenizers={},
        fingerprint=A,
        notes=(),
        config={"name": "d"},
    )


PLAN = plan()


def build(store: Store) -> str:
    """A whole build; as :class:`tokenlake.etl.session.BuildSession` goes about it."""
    claim = Catalog(store).claim("d", A, {})
    if claim.status == "committed":
        return f"v{claim.version}"
    layout = Layout("d", claim.version)
    publish_preamble(store, PLAN, layout)
    made = record()
    store.put_new(layout.key(made.parts[0].path), DATA, replace_orphan=True)
    store.put_new(layout.ledger(made.unit), made.to_bytes())
    return commit(store, claim.version)


def commit(store: Store, version: int = 1) -> str:
    commit_version(store, PLAN, Layout("d", version), [record()])
    return f"v{version}"


def gc(store: Store) -> GcReport:
    return collect(store, grace=0, now=1.0, workers=1)


def built() -> dict[str, bytes]:
    """A version of which all is there but the commit."""
    store = MemoryStore({})
    layout = Layout("d", Catalog(store).claim("d", A, {}).version)
    publish_preamble(store, PLAN, layout)
    store.put_new(layout.key(record().parts[0].path), DATA)
    store.put_new(layout.ledger(record().unit), record().to_bytes())
    return store.objects


def visible(objects: Mapping[str, bytes]) -> dict[int, Manifest]:
    """The versions that a reader sees."""
    found: dict[int, Manifest] = {}
    for key, data in objects.items():
        if key.endswith("/manifest.json"):
            layout = Layout("d", int(key.split("/")[1][1:]))
            if data != closing_note(layout.dataset, layout.version):
                found[layout.version] = Manifest.from_bytes(data, key)
    return found


def whole(objects: dict[str, bytes]) -> None:
    """Every visible version has all its files, and no number is both swept and
    visible.
    """
    for version, manifest in visible(objects).items():
        layout = Layout("d", version)
        named = {shard.path: shard.sha256 for shard in manifest.files}
        named |= {path: entry.sha256 for path, entry in manifest.other_files.items()}
        for path, digest in named.items():
            data = objects.get(layout.key(path))
            assert data is not None, f"v{version} lacks {path}"
            assert sha256(data) == digest, f"v{version} has another {path}"
        claim = Claim.from_bytes(objects[layout.claim])
        assert claim.state != "swept", f"v{version} is visible and swept"


def ended(objects: dict[str, bytes], outcomes: list[Any]) -> tuple[str, ...]:
    """Who says that it committed did, who says that it swept did, who failed says
    why; and a rerun commits.
    """
    there = visible(objects)
    for outcome in outcomes:
        if isinstance(outcome, GcReport):
            assert not {swept.version for swept in outcome.swept} & set(there)
        elif isinstance(outcome, str):
            assert int(outcome[1:]) in there, (
                f"{outcome} was committed and is not there"
            )
        else:
            assert isinstance(outcome, VersionConflictError), repr(outcome)
            assert "gc removed it" in str(outcome)
    after = dict(objects)
    again = MemoryStore(after)
    version = build(again)
    assert {f"v{each}" for each in there} <= {version}, (
        f"{sorted(there)} and {version}: two of one build"
    )
    whole(after)
    gc(again)
    assert gc(again).removed == ()
    whole(after)
    return tuple(
        "gc" if isinstance(each, GcReport) else str(each)[:2] for each in outcomes
    )


def walk(begin: dict[str, bytes], works: list[Any], stops: Stops = None) -> Walk:
    return explore(begin, works, whole, ended, stops)


def test_a_build_and_a_collection() -> None:
    found = walk({}, [build, gc])
    # Both ways there are: the build was faster, or the collection.
    assert {outcome[0] for outcome in found.outcomes} == {"v1", "d/"}
    assert len(found.states) > 200


def test_a_commit_a_collection_and_another_one() -> None:
    found = walk(built(), [commit, gc, gc], DECISIONS)
    assert {outcome[0] for outcome in found.outcomes} == {"v1", "d/"}


def test_a_commit_its_rerun_and_a_collection() -> None:
    found = walk(
        built(),
        [commit, build, gc],
        DECISIONS - {("read", "claim.json")} | {("list_dirs", "d")},
    )
    # The rerun resumes what is there, or begins the second version where the first was
    # swept.
    assert {outcome[1] for outcome in found.outcomes} == {"v1", "v2", "d/"}


def asleep() -> dict[str, bytes]:
    """What the claim alone cannot stop any more: it was swapped long ago, and only
    the manifest is to be made.
    """
    objects = built()
    store = MemoryStore(objects)
    claim, data = cast("tuple[Claim, bytes]", Catalog(store).stored_claim("d", 1))
    store.swap("d/v1/claim.json", claim.turned("committing").to_bytes(), data)
    return objects


def test_a_process_that_slept_between_its_swap_and_its_manifest() -> None:
    found = walk(asleep(), [commit, gc], None)
    assert {outcome[0] for outcome in found.outcomes} == {"v1", "d/"}


def test_two_equal_builds_have_one_winner() -> None:
    found = walk({}, [build, build], DECISIONS)
    assert found.outcomes == {("v1", "v1")}


def test_the_walk_finds_what_a_claim_alone_would_let_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the closing note a process that slept makes a version visible whose
    files are gone.
    """
    monkeypatch.setattr(
        "tokenlake.runtime.store.remove.closing_note", lambda layout: b""
    )
    real = MemoryStore.put_new

    def put_new(self: MemoryStore, key: str, data: bytes, **more: Any) -> Any:
        return "created" if data == b"" else real(self, key, data, **more)

    monkeypatch.setattr(MemoryStore, "put_new", put_new)
    with pytest.raises(AssertionError, match=r"lacks|swept"):
        walk(built(), [commit, gc], DECISIONS)


def test_the_walk_finds_what_no_swap_would_let_happen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the swap of the claim a collection deletes what a commit is about to
    name.
    """

    def publish(store: Store, layout: Layout, manifest: Manifest) -> None:
        store.put_new(layout.manifest, manifest.to_bytes())

    monkeypatch.setattr("tokenlake.etl.commit.commit_point.publish_manifest", publish)
    with pytest.raises(AssertionError, match=r"lacks|swept"):
        walk(built(), [commit, gc], DECISIONS)


def test_a_collection_that_dies_anywhere_is_ended_by_the_next_one() -> None:
    """Killed before each of its steps: nothing that counts is hurt, and in the end
    all is as if it had not been.
    """
    begin = lake()
    undisturbed = dict(begin)
    first = gc(MemoryStore(undisturbed))
    assert len(first.removed) == 5
    for last in range(10_000):
        objects, taken = dict(begin), 0

        def step(*_: object, last: int = last) -> None:
            nonlocal taken
            taken += 1
            if taken > last:
                raise KeyboardInterrupt

        try:
            gc(MemoryStore(objects, step))
        except KeyboardInterrupt:
            whole(objects)
            gc(MemoryStore(objects))
            whole(objects)
            assert objects == undisturbed
        else:
            assert last > 20
            return
    raise AssertionError("it never ended")


def lake() -> dict[str, bytes]:
    """A committed version with a stray, one abandoned, one that began to commit, and
    a damaged claim.
    """
    objects: dict[str, bytes] = {}
    store = MemoryStore(objects)
    build(store)
    objects["d/v1/data/stray"] = b"x"
    for version, state in ((2, "building"), (3, "committing")):
        claim = Claim(
            dataset="d",
            version=version,
            fingerprint="b" * 64,
            meta={},
            state=cast("Any", state),
        )
        objects[f"d/v{version}/claim.json"] = claim.to_bytes()
        objects[f"d/v{version}/ledger/00000.json"] = b"{}"
        objects[f"d/v{version}/data/x"] = b"x"
    objects["d/v4/claim.json"] = b"{"
    return objects
