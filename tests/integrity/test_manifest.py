"""Repair of the two files that no manifest names: the manifest itself, and the claim."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.integrity.support import KINDS, build, damage, tree
from tests.store.support import settings, write_inputs
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.etl.pool import WorkerPool
from tokenlake.integrity.repair import repair
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.sealed import seal


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool) -> Path:
    """``small`` v1, with a tag."""
    root = tmp_path_factory.mktemp("manifests")
    write_inputs(root)
    build(settings(root, tokenizer_dir), pool)
    return root


def manifest_of(lake: Path) -> Path:
    return lake / "small" / "v1" / "manifest.json"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "remove"])
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_manifest_is_made_again(built: Path, lake: Path, kind: str, seed: int) -> None:
    damage(manifest_of(lake), kind, Random(seed))
    report = repair(lake, "small")
    assert [(file.path, file.damage, file.how) for file in report.files] == [
        ("manifest.json", "damaged", "rendered")
    ]
    assert report.ok and tree(lake) == tree(built / "store")


def test_other_damage_is_repaired_with_it(built: Path, lake: Path) -> None:
    damage(manifest_of(lake), "truncate", Random(1))
    for path in ("data/train-00000-00.parquet", "README.md", "config.yaml", "quarantine/00001.parquet"):
        damage(lake / "small" / "v1" / path, "flip", Random(2))
    report = repair(lake, "small", dry_run=True)
    assert {file.how for file in report.files} == {"rendered", "rebuilt"} and len(report.files) == 5
    assert repair(lake, "small").ok
    assert tree(lake) == tree(built / "store")


def test_a_tag_bears_witness(built: Path, lake: Path) -> None:
    Catalog(open_store(lake)).set_tag("small", "prod", 1)
    before = tree(lake)
    damage(manifest_of(lake), "empty", Random(1))
    assert repair(lake, "small@prod").ok
    assert tree(lake) == before


def test_a_tag_of_another_manifest_forbids_it(lake: Path) -> None:
    store = open_store(lake)
    Catalog(store).set_tag("small", "prod", 1)
    tag = lake / "small" / "tags" / "prod.json"
    tag.chmod(0o644)
    tag.write_bytes(seal({**json.loads(tag.read_bytes()), "manifest_sha256": "0" * 64}))
    damage(manifest_of(lake), "flip", Random(1))
    before = tree(lake)
    with pytest.raises(IntegrityError, match=r"cannot be made again.*expected 0000"):
        repair(lake, "small")
    assert tree(lake) == before


def test_changed_inputs_forbid_it(built: Path, lake: Path, tmp_path: Path) -> None:
    damage(manifest_of(lake), "flip", Random(1))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "lake.jsonl").write_text('{"text": "other"}\n')
    before = tree(lake)
    with pytest.raises(IntegrityError, match=r"lake.jsonl of pages is 18 bytes"):
        repair(lake, "small", overrides=[f"datasets.pages.data_files={tmp_path / 'pages'}"])
    assert tree(lake) == before


@pytest.mark.parametrize("path", ["claim.json", "ledger/00001.json"])
def test_without_claim_or_ledger_there_is_no_manifest(lake: Path, path: str) -> None:
    damage(manifest_of(lake), "flip", Random(1))
    damage(lake / "small" / "v1" / path, "remove", Random(1))
    before = tree(lake)
    with pytest.raises(IntegrityError, match=path):
        repair(lake, "small")
    assert tree(lake) == before


def test_a_version_without_a_manifest_is_none(lake: Path) -> None:
    damage(manifest_of(lake), "remove", Random(1))
    with pytest.raises(NotFoundError, match="run its build again"):
        repair(lake, "small@v1")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "remove"])
def test_a_damaged_claim_is_made_again(built: Path, lake: Path, kind: str) -> None:
    damage(lake / "small" / "v1" / "claim.json", kind, Random(3))
    report = repair(lake, "small")
    assert [(file.path, file.how) for file in report.files] == [("claim.json", "rendered")]
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
