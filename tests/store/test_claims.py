"""Claims and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.store.test_catalog import commit
from tokenlake.cli.app import main
from tokenlake.errors import IntegrityError, VersionConflictError
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import (
    MOST_BYTES,
    Claim,
    ClaimResult,
    State,
    VersionInfo,
    closing_note,
    is_closing_note,
)
from tokenlake.store.layout import Layout
from tokenlake.store.local import LocalStore
from tokenlake.store.sealed import seal

A, B = "a" * 64, "b" * 64


def claim(state: State = "building") -> Claim:
    return Claim(dataset="code", version=1, fingerprint=A, meta={}, state=state)


def turn(store: LocalStore, state: State, version: int = 1) -> None:
    found = Catalog(store).stored_claim("code", version)
    assert found is not None
    store.swap(Layout("code", version).claim, found[0].turned(state).to_bytes(), found[1])


def test_a_fresh_claim_says_nothing_of_its_state() -> None:
    written = json.loads(claim().to_bytes())
    assert set(written) == {"dataset", "version", "fingerprint", "meta", "format_version", "sha256"}
    assert claim("building").to_bytes() == claim().to_bytes()


@pytest.mark.parametrize("state", ["building", "committing", "swept"])
def test_states_survive_writing(state: State) -> None:
    assert Claim.from_bytes(claim(state).to_bytes()) == claim(state)
    assert claim().turned(state) == claim(state)


@pytest.mark.parametrize("state", ["building", "", "done", None, 1])
def test_no_other_state_is_read(state: object) -> None:
    with pytest.raises(IntegrityError, match="state is"):
        Claim.from_bytes(seal({**json.loads(claim().to_bytes()), "state": state}))


def test_who_resumes_and_who_begins_anew(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    catalog = Catalog(store)
    assert catalog.claim("code", A, {}) == ClaimResult(1, "new")
    turn(store, "committing")
    assert catalog.claim("code", A, {}) == ClaimResult(1, "resumed")
    turn(store, "swept")
    assert catalog.claim("code", A, {}) == ClaimResult(2, "new")
    assert catalog.claim("code", B, {}) == ClaimResult(3, "new")
    turn(store, "swept", 3)
    assert catalog.claim("code", B, {}) == ClaimResult(4, "new")
    commit(store, "code", 2, A)
    assert catalog.claim("code", A, {}) == ClaimResult(2, "committed")
    assert catalog.versions("code") == [VersionInfo(2, True), VersionInfo(4, False)]
    assert [str(info) for info in catalog.versions("code", swept=True)] == [
        *("v1 (swept)", "v2", "v3 (swept)", "v4 (unfinished)")
    ]


def test_of_two_turns_one_fails(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Catalog(store).claim("code", A, {})
    found = Catalog(store).stored_claim("code", 1)
    assert found is not None
    ours, seen = found
    assert store.swap("code/v1/claim.json", ours.turned("swept").to_bytes(), seen) == "replaced"
    with pytest.raises(VersionConflictError):
        store.swap("code/v1/claim.json", ours.turned("committing").to_bytes(), seen)


def test_a_closing_note_is_one_of_its_own_number_alone() -> None:
    layout = Layout("code", 1)
    note = closing_note(layout)
    assert is_closing_note(note, layout)
    assert not is_closing_note(note, Layout("code", 2))
    assert not is_closing_note(note, Layout("prose", 1))
    assert len(closing_note(Layout("x" * 64, 999_999_999))) <= MOST_BYTES
    for bad in (b"", note[:-1], note + b" ", note.replace(b"true", b"1"), claim("swept").to_bytes()):
        assert not is_closing_note(bad, layout)


def test_ls_shows_what_was_swept_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = LocalStore(tmp_path)
    Catalog(store).claim("code", A, {})
    turn(store, "swept")
    assert main(["ls", "--store", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["ls", "--store", str(tmp_path), "--swept"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1] == ["code", "v1", "swept"]
    assert main(["ls", "code", "--store", str(tmp_path)]) == 2
