"""Verification as a flow: what it looks at, what its page says, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.support import build_store
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.integrity.findings import Problem, VerifyReport
from tokenlake.integrity.verify import verify
from tokenlake.prefect.maintenance_tasks import committed_versions, findings, require_well
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Catalog:
    found = Catalog(open_store(build_store(tmp_path_factory.mktemp("lake"), tokenizer_dir)))
    found.claim("other", "0" * 64, {})
    return found


def report(*problems: Problem, version: int = 1) -> VerifyReport:
    return VerifyReport(
        dataset="small",
        version=version,
        deep=True,
        files=3,
        bytes=2048,
        rows=7,
        tokens=700,
        problems=problems,
    )


def test_unfinished_versions_are_not_looked_at(catalog: Catalog) -> None:
    assert committed_versions(catalog, ()) == [("small", 1), ("small", 2)]


def test_names_stand_for_all_their_versions_or_for_one(catalog: Catalog) -> None:
    assert committed_versions(catalog, ["small"]) == [("small", 1), ("small", 2)]
    assert committed_versions(catalog, ["small@v2", "small@v2"]) == [("small", 2)]
    with pytest.raises(NotFoundError, match="smal"):
        committed_versions(catalog, ["smal"])


def test_the_page_lists_every_version_and_what_is_wrong(catalog: Catalog) -> None:
    bad = report(Problem("data/x.parquet", "sha256", "aa", "bb"), version=2)
    page = findings([report(), bad])
    assert "| small v1 | intact | 3 |" in page
    assert "| small v2 | 1 problem | 3 |" in page
    assert "| small v2 | data/x.parquet | sha256 | aa | bb |" in page
    assert "Damage" not in findings([verify(catalog.store, "small", 1)])


def test_damage_fails_with_the_command_that_repairs_it() -> None:
    require_well([report()])
    with pytest.raises(IntegrityError, match=r"1 of 2 versions damaged: small@v2.*tokenlake repair small@v2"):
        require_well([report(), report(Problem("x", "missing", "a file", "no file"), version=2)])
