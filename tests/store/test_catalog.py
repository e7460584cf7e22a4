"""Names to versions, and claims: equal builds share a version, numbers are never
given twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.store.support import a_manifest, a_record, claimed, closing_note
from tokenlake import Catalog, Manifest
from tokenlake.cli.app import main
from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store import Claim, Layout, Store, VersionInfo, open_store, seal

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def manifest(dataset: str, version: int, fingerprint: str = A) -> Manifest:
    return a_manifest(dataset=dataset, version=version, fingerprint=fingerprint)


def commit(store: Store, dataset: str, version: int, fingerprint: str = A) -> None:
    store.put_new(
        Layout(dataset, version).manifest,
        manifest(dataset, version, fingerprint).to_bytes(),
    )


def overwrite(store: Store, key: str, data: bytes) -> None:
    path = store.local_path(key)
    path.unlink()
    path.write_bytes(data)


# Names


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert Catalog(store).datasets() == []
    with pytest.raises(NotFoundError, match=r"no dataset 'code'.*none"):
        Catalog(store).latest("code")


def test_datasets_and_versions(store: Store, tmp_path: Path) -> None:
    catalog = Catalog(store)
    for dataset, version in (("code", 1), ("code", 10), ("code", 2), ("prose", 3)):
        commit(store, dataset, version)
    catalog.claim("code", B, {})
    for strange in ("Upper", "empty", ".hidden", "code/v12", "only/v1/data"):
        (tmp_path / strange).mkdir(parents=True)
    for strange in ("v0", "v01", "vx", "v", "v1 ", "1"):
        store.put_new(f"code/{strange}/claim.json", b"{")
    (tmp_path / "file").touch()
    assert catalog.datasets() == ["code", "prose"]
    assert catalog.versions("code") == [
        VersionInfo(1, True),
        VersionInfo(2, True),
        VersionInfo(10, True),
        VersionInfo(11, False),
    ]
    assert catalog.latest("code") == 10


def test_references(store: Store) -> None:
    catalog = Catalog(store)
    commit(store, "code", 1)
    commit(store, "code", 3)
    catalog.claim("code", B, {})
    assert catalog.resolve("code") == ("code", 3)
    assert catalog.resolve("code@v1") == catalog.resolve("code@1") == ("code", 1)
    with pytest.raises(
        NotFoundError,
        match=r"code@v2 .* does not exist. Existing: v1, v3, v4 \(unfinished\)",
    ):
        catalog.resolve("code@v2")
    with pytest.raises(
        NotFoundError, match=r"code@v4 .* is not committed\. Run its build again"
    ):
        catalog.resolve("code@v4")
    with pytest.raises(NotFoundError, match="did you mean code") as caught:
        catalog.resolve("cod")
    assert caught.value.details["near"] == ["code"]


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "@v1",
        "code@",
        "code@v0",
        "code@latest",
        "code@v1@v2",
        "../x",
        "A",
        "code@v-1",
    ],
)
def test_what_is_no_reference_is_refused(store: Store, reference: str) -> None:
    with pytest.raises(StoreError):
        Catalog(store).resolve(reference)


def test_a_dataset_with_unfinished_builds_alone_has_no_latest(store: Store) -> None:
    catalog = Catalog(store)
    catalog.claim("code", A, {})
    with pytest.raises(
        NotFoundError, match=r"no committed version.*v1 \(unfinished\).*to resume it"
    ):
        catalog.resolve("code")


def test_the_newest_of_many_versions_is_found_without_looking_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(store)
    for version in range(1, 31):
        commit(store, "code", version)
    catalog.claim("code", B, {})
    asked: list[str] = []
    real = type(store).size

    def size(self: Store, key: str) -> int | None:
        asked.append(key)
        return real(self, key)

    monkeypatch.setattr(type(store), "size", size)
    assert catalog.resolve("code") == ("code", 30)
    assert catalog.resolve("code@v7") == ("code", 7)
    assert catalog.datasets() == ["code"]
    assert asked == [
        *("code/v31/manifest.json", "code/v30/manifest.json"),
        *("code/v7/manifest.json", "code/v1/manifest.json"),
    ]
    with pytest.raises(
        NotFoundError,
        match=r"Existing: 11 older ones, v12, .*, v30, v31 \(unfinished\)\.$",
    ):
        catalog.resolve("code@v99")


# Manifests and ledgers


def test_manifests_are_read_and_checked_against_their_place(store: Store) -> None:
    commit(store, "code", 1)
    assert Catalog(store).manifest("code", 1) == manifest("code", 1)
    for dataset, version in (("prose", 1), ("code", 2)):
        store.put_new(Layout(dataset, version).manifest, manifest("code", 1).to_bytes())
        with pytest.raises(
            IntegrityError,
            match=f"{dataset}/v{version}/manifest.json: it is of code@v1",
        ):
            Catalog(store).manifest(dataset, version)
    with pytest.raises(NotFoundError, match="code@v7"):
        Catalog(store).manifest("code", 7)


def test_the_ledger_by_unit(store: Store) -> None:
    catalog, layout = Catalog(store), Layout("code", 1)
    assert catalog.ledger("code", 1) == {}
    for unit in (2, 0, 100_000, 11):
        store.put_new(layout.ledger(unit), a_record(unit=unit).to_bytes())
    assert list(catalog.ledger("code", 1)) == [0, 2, 11, 100_000]
    assert catalog.ledger("code", 1)[11] == a_record(unit=11)


def test_swapped_and_foreign_ledger_records_are_refused(store: Store) -> None:
    layout = Layout("code", 1)
    store.put_new(layout.ledger(0), a_record(unit=1).to_bytes())
    with pytest.raises(
        IntegrityError, match=r"ledger/00000.json: unit is 1; expected 0"
    ):
        Catalog(store).ledger("code", 1)
    store.delete(layout.ledger(0))
    for strange in ("notes.txt", "000001.json"):
        store.put_new(layout.key(f"ledger/{strange}"), b"x")
        with pytest.raises(IntegrityError, match=strange):
            Catalog(store).ledger("code", 1)
        store.delete(layout.key(f"ledger/{strange}"))


# Claims


def test_claims_are_new_then_resumed_then_committed(store: Store) -> None:
    catalog = Catalog(store)
    assert claimed(catalog, A, by="x") == (1, "new")
    assert claimed(catalog, A, by="y") == (1, "resumed")
    assert claimed(catalog, B) == (2, "new")
    assert claimed(catalog, A) == (1, "resumed")
    commit(store, "code", 2, B)
    assert claimed(catalog, B) == (2, "committed")
    assert claimed(catalog, A) == (1, "resumed")
    commit(store, "code", 1, A)
    assert claimed(catalog, A) == (1, "committed")
    assert claimed(catalog, C) == (3, "new")
    claim = catalog.read_claim("code", 1)
    assert claim == Claim(dataset="code", version=1, fingerprint=A, meta={"by": "x"})


def test_a_committed_version_wins_over_a_claim_of_an_equal_fingerprint(
    store: Store,
) -> None:
    for version in (1, 2):
        claim = Claim(dataset="code", version=version, fingerprint=A, meta={})
        store.put_new(Layout("code", version).claim, claim.to_bytes())
    commit(store, "code", 1)
    assert claimed(Catalog(store), A) == (1, "committed")


def test_a_version_without_its_claim_is_known_by_its_manifest(store: Store) -> None:
    commit(store, "code", 4, B)
    assert claimed(Catalog(store), B) == (4, "committed")
    assert claimed(Catalog(store), A) == (5, "new")


def test_a_version_folder_without_claim_and_manifest_is_free(store: Store) -> None:
    store.temp("code/v1")  # as a crash before the claim leaves it
    assert claimed(Catalog(store), A) == (1, "new")


def test_whoever_loses_the_race_looks_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(store)
    real, lost = type(store).put_new, [B, C, A]

    def put_new(self: Store, key: str, data: bytes) -> str:
        if lost:
            rival = Claim(
                dataset="code",
                version=4 - len(lost),
                fingerprint=lost.pop(0),
                meta={"rival": True},
            )
            real(self, key, rival.to_bytes())
        return real(self, key, data)

    monkeypatch.setattr(type(store), "put_new", put_new)
    assert claimed(catalog, A) == (3, "resumed")


def test_losing_for_ever_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_new(*_: object) -> str:
        raise VersionConflictError("lost")

    monkeypatch.setattr(type(store), "put_new", put_new)
    with pytest.raises(VersionConflictError, match="lost 1000 races"):
        Catalog(store).claim("code", A, {})


def test_damaged_and_misplaced_claims_are_refused(store: Store) -> None:
    catalog, key = Catalog(store), Layout("code", 1).claim
    catalog.claim("code", A, {})
    good = store.read(key)
    for bad, message in (
        (good[:-1], "not valid JSON"),
        (good.replace(b"a" * 64, b"b" * 64), "sha256 is"),
        (seal({**json.loads(good), "version": 2}), "it is of code@v2"),
        (seal({**json.loads(good), "more": 1}), "more is no known key"),
        (seal({**json.loads(good), "fingerprint": "x"}), "fingerprint is"),
    ):
        overwrite(store, key, bad)
        with pytest.raises(IntegrityError, match=f"code/v1/claim.json: {message}"):
            catalog.claim("code", A, {})


@pytest.mark.parametrize("name", ["", "A", "../x", "a/b"])
def test_only_dataset_names_are_claimed(
    store: Store, tmp_path: Path, name: str
) -> None:
    with pytest.raises(StoreError, match="dataset name"):
        Catalog(store).claim(name, A, {})
    assert list(tmp_path.iterdir()) == []


# ---- what becomes of claims
# ------------------------------------------------------------------------------


def claim(state: Any = "building") -> Claim:
    return Claim(dataset="code", version=1, fingerprint=A, meta={}, state=state)


def turn(store: Store, state: Any, version: int = 1) -> None:
    found = Catalog(store).stored_claim("code", version)
    assert found is not None
    store.swap(
        Layout("code", version).claim, found[0].turned(state).to_bytes(), found[1]
    )


def test_a_fresh_claim_says_nothing_of_its_state() -> None:
    written = json.loads(claim().to_bytes())
    assert set(written) == {
        "dataset",
        "version",
        "fingerprint",
        "meta",
        "format_version",
        "sha256",
    }
    assert claim("building").to_bytes() == claim().to_bytes()


@pytest.mark.parametrize("state", ["building", "committing", "swept"])
def test_states_survive_writing(state: Any) -> None:
    assert Claim.from_bytes(claim(state).to_bytes()) == claim(state)
    assert claim().turned(state) == claim(state)


@pytest.mark.parametrize("state", ["building", "", "done", None, 1])
def test_no_other_state_is_read(state: object) -> None:
    with pytest.raises(IntegrityError, match="state is"):
        Claim.from_bytes(seal({**json.loads(claim().to_bytes()), "state": state}))


def test_who_resumes_and_who_begins_anew(store: Store) -> None:
    catalog = Catalog(store)
    assert claimed(catalog, A) == (1, "new")
    turn(store, "committing")
    assert claimed(catalog, A) == (1, "resumed")
    turn(store, "swept")
    assert claimed(catalog, A) == (2, "new")
    assert claimed(catalog, B) == (3, "new")
    turn(store, "swept", 3)
    assert claimed(catalog, B) == (4, "new")
    commit(store, "code", 2, A)
    assert claimed(catalog, A) == (2, "committed")
    assert catalog.versions("code") == [VersionInfo(2, True), VersionInfo(4, False)]
    assert [str(info) for info in catalog.versions("code", swept=True)] == [
        *("v1 (swept)", "v2", "v3 (swept)", "v4 (unfinished)")
    ]


def test_a_closing_note_is_one_of_its_own_number_alone(store: Store) -> None:
    catalog, key = Catalog(store), Layout("code", 1).manifest
    note = closing_note("code", 1)
    store.put_new(key, note)
    assert catalog.versions("code", swept=True) == [VersionInfo(1, False, swept=True)]
    with pytest.raises(NotFoundError, match=r"code@v1 .* was removed"):
        catalog.manifest("code", 1)
    with pytest.raises(NotFoundError):
        catalog.latest("code")
    others = (
        closing_note("code", 2),
        closing_note("prose", 1),
        claim("swept").to_bytes(),
    )
    for bad in (*others, b"", note[:-1], note + b" ", note.replace(b"true", b"1")):
        overwrite(store, key, bad)
        assert catalog.versions("code", swept=True) == [VersionInfo(1, True)]
        with pytest.raises(IntegrityError, match=key):
            catalog.manifest("code", 1)


def test_the_longest_closing_note_is_short_enough(store: Store) -> None:
    store.put_new(
        Layout("x" * 64, 999_999_999).manifest, closing_note("x" * 64, 999_999_999)
    )
    assert [info.swept for info in Catalog(store).versions("x" * 64, swept=True)] == [
        True
    ]


def test_ls_shows_what_was_swept_when_asked(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Catalog(store).claim("code", A, {})
    turn(store, "swept")
    assert main(["ls", "--store", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["ls", "--store", str(tmp_path), "--swept"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1] == [
        "code",
        "v1",
        "swept",
    ]
    assert main(["ls", "code", "--store", str(tmp_path)]) == 2
