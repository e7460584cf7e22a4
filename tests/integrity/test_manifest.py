"""Repair of the two files that no manifest names: the manifest itself, and the
claim.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tokenlake as tl
from tests.integrity.support import KINDS, build, damage, tree
from tests.store.support import settings, write_inputs
from tokenlake import Catalog, repair, verify
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.etl import WorkerPool
from tokenlake.runtime.store import Claim, Layout, LocalStore, open_store, seal


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """``small`` v1, with a tag."""
    root = tmp_path_factory.mktemp("manifests")
    write_inputs(root)
    build(settings(root, tokenizer_dir), pool)
    return root


COPY = "runs/manifest-copy.json"


@pytest.fixture
def small(lake: Path) -> Path:
    """The folder of ``small`` v1 in a store of a test's own."""
    return lake / "small" / "v1"


def write(path: Path, data: bytes) -> None:
    """Write over a published file, which is read-only."""
    path.chmod(0o644)
    path.write_bytes(data)


def whole(lake: Path) -> dict[str, str]:
    """Path -> sha256 of all files of a store, those in ``runs/`` included."""
    return tree(lake, runs=True)


def test_a_commit_writes_a_second_copy_of_the_manifest(small: Path) -> None:
    assert (small / COPY).read_bytes() == (small / "manifest.json").read_bytes()
    assert (small / COPY).stat().st_ino != (small / "manifest.json").stat().st_ino
    assert [
        path.suffix for path in (small / "data").iterdir() if path.suffix != ".parquet"
    ] == []


Commit = Callable[[], Any]


@pytest.fixture
def commit_again(
    built: Path, lake: Path, tokenizer_dir: Path, pool: WorkerPool
) -> Commit:
    """Resume the build of the test's own store; its units are there, and only the
    commit is left.
    """
    config = settings(built, tokenizer_dir) | {"save": {"output_dir": str(lake)}}
    return lambda: build(config, pool)


def test_the_copy_is_there_before_the_manifest(
    commit_again: Commit, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout("small", 1)
    for name in ("manifest.json", COPY):
        (small / name).unlink()
    written: list[str] = []
    put_new = LocalStore.put_new

    def recorded(self: LocalStore, key: str, *arguments: Any, **options: Any) -> Any:
        if key in (layout.manifest, layout.manifest_copy):
            written.append(key)
        return put_new(self, key, *arguments, **options)

    monkeypatch.setattr(LocalStore, "put_new", recorded)
    commit_again()
    assert written == [layout.manifest_copy, layout.manifest]


def test_the_copy_of_a_build_that_lost_the_race_is_replaced(
    commit_again: Commit, small: Path
) -> None:
    committed = (small / "manifest.json").read_bytes()
    (small / "manifest.json").unlink()
    write(small / COPY, b"the manifest of another release")
    commit_again()
    assert (
        (small / COPY).read_bytes()
        == (small / "manifest.json").read_bytes()
        == committed
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "remove"])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_manifest_is_restored_from_its_copy(
    lake: Path, small: Path, kind: str, seed: int
) -> None:
    before = whole(lake)
    damage(small / "manifest.json", kind, Random(seed))
    (note,) = verify(lake, "small@v1").notes
    assert f"{COPY}, the second copy of the manifest, is intact" in note
    report = repair(lake, "small")
    assert [(file.path, file.damage, file.how) for file in report.files] == [
        ("manifest.json", "damaged", "copied")
    ]
    assert report.ok and whole(lake) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_copy_is_found_and_written_again(
    lake: Path, small: Path, kind: str
) -> None:
    before = whole(lake)
    damage(small / COPY, kind, Random(5))
    found = verify(lake, "small")
    # So it is with versions of older releases, which are no worse than they were.
    if kind == "remove":
        assert found.ok
        assert [note.partition(",")[0] for note in found.notes] == [COPY]
    else:
        assert [(problem.path, problem.problem) for problem in found.problems] == [
            (COPY, "damaged")
        ]
    assert repair(lake, "small", dry_run=True).ok
    assert whole(lake) != before
    report = repair(lake, "small")
    assert [(file.path, file.how, file.note) for file in report.files] == [
        (COPY, "copied", "from manifest.json")
    ]
    assert report.ok and whole(lake) == before
    assert verify(lake, "small").notes == ()
    assert repair(lake, "small").files == ()


def test_a_copy_that_is_another_sealed_manifest_is_a_problem_that_repair_leaves(
    lake: Path, small: Path
) -> None:
    manifest = Catalog(open_store(lake)).manifest("small", 1)
    write(small / COPY, replace(manifest, produced_by={"pyarrow": "1"}).to_bytes())
    before = whole(lake)
    for problems in (verify(lake, "small").problems, repair(lake, "small").problems):
        assert [(problem.path, problem.problem) for problem in problems] == [
            (COPY, "copy")
        ]
    assert whole(lake) == before


def test_where_both_are_damaged_nothing_is_changed(lake: Path, small: Path) -> None:
    for name in ("manifest.json", COPY):
        damage(small / name, "flip", Random(1))
    before = whole(lake)
    with pytest.raises(
        IntegrityError,
        match=r"second copy cannot be used.*from a backup.*under another name",
    ):
        repair(lake, "small")
    assert "cannot be restored" in verify(lake, "small@v1").notes[0]
    assert whole(lake) == before


def test_a_version_of_an_older_release_is_read_and_has_no_copy_to_restore_from(
    lake: Path, small: Path
) -> None:
    (small / COPY).unlink()
    assert len(tl.open(lake / "small")) > 0
    damage(small / "manifest.json", "flip", Random(1))
    before = whole(lake)
    with pytest.raises(
        IntegrityError, match=r"no second copy \(small/v1/runs/manifest-copy.json\)"
    ):
        repair(lake, "small")
    assert whole(lake) == before


def test_other_damage_is_repaired_with_it(built: Path, lake: Path, small: Path) -> None:
    damage(small / "manifest.json", "truncate", Random(1))
    for path in (
        "data/train-00000-00.parquet",
        "README.md",
        "config.yaml",
        "quarantine/00001.parquet",
    ):
        damage(small / path, "flip", Random(2))
    report = repair(lake, "small", dry_run=True)
    assert {file.how for file in report.files} == {
        "copied",
        "rendered",
        "rebuilt",
    } and len(report.files) == 5
    assert repair(lake, "small").ok
    assert tree(lake) == tree(built / "store")


@pytest.mark.parametrize("path", ["claim.json", "ledger/00001.json"])
def test_the_claim_and_the_ledger_are_not_needed(
    built: Path, lake: Path, small: Path, path: str
) -> None:
    damage(small / "manifest.json", "flip", Random(1))
    damage(small / path, "flip", Random(1))
    assert repair(lake, "small").ok
    assert tree(lake) == tree(built / "store")


def test_a_tag_bears_witness(lake: Path, small: Path) -> None:
    Catalog(open_store(lake)).set_tag("small", "prod", 1)
    before = tree(lake)
    damage(small / "manifest.json", "empty", Random(1))
    assert repair(lake, "small@prod").ok
    assert tree(lake) == before


def other_tag(lake: Path) -> None:
    Catalog(open_store(lake)).set_tag("small", "prod", 1)
    tag = lake / "small" / "tags" / "prod.json"
    write(tag, seal({**json.loads(tag.read_bytes()), "manifest_sha256": "0" * 64}))


def other_claim(lake: Path) -> None:
    claim = Claim(dataset="small", version=1, fingerprint="0" * 64, meta={})
    write(lake / "small" / "v1" / "claim.json", claim.to_bytes())


def swept(lake: Path) -> None:
    found = Catalog(open_store(lake)).read_claim("small", 1)
    assert found is not None
    write(lake / "small" / "v1" / "claim.json", found.turned("swept").to_bytes())


def other_version(lake: Path) -> None:
    manifest = Catalog(open_store(lake)).manifest("small", 1)
    write(lake / "small" / "v1" / COPY, replace(manifest, version=2).to_bytes())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_tag, "expected 0000"),
        (other_claim, "expected 0000"),
        (swept, "was removed"),
        (other_version, "the manifest of small@v2"),
    ],
)
def test_a_copy_that_is_contradicted_restores_nothing(
    lake: Path, small: Path, change: Callable[[Path], None], why: str
) -> None:
    change(lake)
    damage(small / "manifest.json", "flip", Random(1))
    before = whole(lake)
    with pytest.raises(IntegrityError, match=f"cannot be restored: .*{why}"):
        repair(lake, "small")
    assert whole(lake) == before


def test_a_copied_version_needs_no_copy_of_its_manifest(
    lake: Path, small: Path
) -> None:
    (small / "claim.json").unlink()  # neither is published
    (small / COPY).unlink()
    assert verify(lake, "small").notes == ()
    assert repair(lake, "small").files == ()


def test_removing_a_version_removes_the_copy(lake: Path, small: Path) -> None:
    tl.remove_version(lake, "small@v1")
    assert not (small / COPY).exists()


def test_a_version_without_a_manifest_is_none(lake: Path) -> None:
    damage(lake / "small" / "v1" / "manifest.json", "remove", Random(1))
    with pytest.raises(NotFoundError, match="Run its build again"):
        repair(lake, "small@v1")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "remove"])
def test_a_damaged_claim_is_made_again(built: Path, lake: Path, kind: str) -> None:
    damage(lake / "small" / "v1" / "claim.json", kind, Random(3))
    report = repair(lake, "small")
    assert [(file.path, file.how) for file in report.files] == [
        ("claim.json", "rendered")
    ]
    assert report.ok and tree(lake) == tree(built / "store")


def test_a_claim_of_an_older_release_keeps_its_form(built: Path, lake: Path) -> None:
    claim = lake / "small" / "v1" / "claim.json"
    found = Catalog(open_store(lake)).read_claim("small", 1)
    assert found is not None and found.state == "committing"
    claim.chmod(0o644)
    claim.write_bytes(found.turned("building").to_bytes())
    before = tree(lake)
    damage(claim, "flip", Random(7))
    assert repair(lake, "small").ok
    assert tree(lake) == before
