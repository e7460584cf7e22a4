"""The flows `verify` and `push`: what they look at, what they find, and whose token they use."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lazily import lazily
from tests.store.support import build_store
from tokenlake.config.references import scrub
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    SourceError,
    StoreError,
    VersionConflictError,
)
from tokenlake.integrity.findings import Problem, VerifyReport
from tokenlake.integrity.verify import verify
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog

policy: Any = lazily("tokenlake.prefect.policy")

maintenance: Any = lazily("tokenlake.prefect.maintenance")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Catalog:
    found = Catalog(open_store(build_store(tmp_path_factory.mktemp("lake"), tokenizer_dir)))
    found.claim("other", "0" * 64, {})
    return found


def report(*problems: Problem, version: int = 1) -> VerifyReport:
    counts = {"files": 3, "bytes": 2048, "rows": 7, "tokens": 700}
    return VerifyReport(dataset="small", version=version, deep=True, problems=problems, **counts)


def test_names_stand_for_all_their_committed_versions_or_for_one(catalog: Catalog) -> None:
    assert maintenance.committed_versions(catalog, ()) == [("small", 1), ("small", 2)]
    assert maintenance.committed_versions(catalog, ["small"]) == [("small", 1), ("small", 2)]
    assert maintenance.committed_versions(catalog, ["small@v2", "small@v2"]) == [("small", 2)]
    with pytest.raises(NotFoundError, match="smal"):
        maintenance.committed_versions(catalog, ["smal"])


def test_the_page_lists_every_version_and_what_is_wrong(catalog: Catalog) -> None:
    bad = report(Problem("data/x.parquet", "sha256", "aa", "bb"), version=2)
    page = maintenance.findings([report(), bad])
    assert "| small v1 | intact | 3 |" in page
    assert "| small v2 | 1 problem | 3 |" in page
    assert "| small v2 | data/x.parquet | sha256 | aa | bb |" in page
    assert "Damage" not in maintenance.findings([verify(catalog.store, "small", 1)])


def test_damage_fails_with_the_command_that_repairs_it() -> None:
    maintenance.require_undamaged([report()])
    with pytest.raises(IntegrityError, match=r"1 of 2 versions damaged: small@v2.*tokenlake repair small@v2"):
        maintenance.require_undamaged(
            [report(), report(Problem("x", "missing", "a file", "no file"), version=2)]
        )


@pytest.mark.parametrize(
    ("allowed", "repo", "fine"),
    [
        (None, "anybody/x", True),
        ("/data/tokens:hf://datasets/our-org", "our-org/x", True),
        ("hf://datasets/our-org/x", "our-org/x", True),
        ("hf://datasets/our-org/x", "our-org/xy", False),
        ("hf://datasets/our-org", "our-organization/x", False),
        ("hf://datasets/our-org", "their-org/our-org", False),
        ("hf://datasets/our-org", "our-org/../their-org", False),
        ("/data/tokens", "our-org/x", False),
        ("", "our-org/x", False),
    ],
)
def test_a_deployment_pushes_only_where_its_worker_allows(
    allowed: str | None, repo: str, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "7b7c1f6e-0a52-4b5e-9d0c-1d2f3a4b5c6d")
    if allowed is not None:
        monkeypatch.setenv("TOKENLAKE_ALLOWED_OUTPUTS", allowed)
    with nullcontext() if fine else pytest.raises(ConfigError, match=r"the repository: .*ALLOWED_OUTPUTS"):
        policy.bounded(policy.check_repository, repo)


def test_a_token_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert maintenance.token_of(maintenance.check_reference(None)) is None
    monkeypatch.setenv("LAKE_HUB_TOKEN", "hf_only_for_this_test")
    assert (
        maintenance.token_of(maintenance.check_reference({"env": "LAKE_HUB_TOKEN"}))
        == "hf_only_for_this_test"
    )
    assert "only_for" not in scrub("it was hf_only_for_this_test")
    for literal in ({"token": "hf_secret"}, {"env": ""}, {"env": "A", "block": "b"}):
        with pytest.raises(ConfigError, match="name where the token is kept") as refused:
            maintenance.check_reference(literal)
        assert "hf_secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="is not set"):
        maintenance.token_of({"env": "LAKE_NOT_SET"})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StoreError("the Hub failed"), True),
        (SourceError("the Hub could not be reached"), True),
        (NotFoundError("no such version"), False),
        (VersionConflictError("another one's"), False),
        (ConfigError("a secret"), False),
        (IntegrityError("damage"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_passing_failures_are_tried_again(error: Exception, again: bool) -> None:
    state: Any = SimpleNamespace(result=lambda raise_on_failure: error)
    nothing: Any = None
    assert maintenance.may_pass(nothing, nothing, state) is again
