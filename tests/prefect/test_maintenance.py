"""The flows `verify` and `push`: what they look at, find and use; and what Prefect
is told of a version.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.observability.test_build import _record
from tests.store.support import build_store
from tokenlake import Catalog, VerifyReport, verify
from tokenlake.base import scrub
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    SourceError,
    StoreError,
    VersionConflictError,
)
from tokenlake.etl import BuildPlanned, BuildStep, UnitFinished, UnitStarted
from tokenlake.etl.integrity.findings import Problem
from tokenlake.etl.observability.tally import RunTallies
from tokenlake.runtime.store import open_store

policy: Any = lazily("tokenlake.runs.policy")

verifying: Any = lazily("tokenlake_tasks.verify")
pushing: Any = lazily("tokenlake_tasks.push")
retries: Any = lazily("tokenlake_tasks.retries")
bounds: Any = lazily("tokenlake_tasks.bounds")
events: Any = lazily("tokenlake_tasks.events")
prefect_assets: Any = lazily("prefect.assets")
assets: Any = lazily("tokenlake_tasks.assets")
progress: Any = lazily("tokenlake_flows.progress")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Catalog:
    found = Catalog(
        open_store(build_store(tmp_path_factory.mktemp("lake"), tokenizer_dir))
    )
    found.claim("other", "0" * 64, {})
    return found


def report(*problems: Problem, version: int = 1) -> VerifyReport:
    counts = {"files": 3, "bytes": 2048, "rows": 7, "tokens": 700}
    return VerifyReport(
        dataset="small", version=version, deep=True, problems=problems, **counts
    )


def test_names_stand_for_all_their_committed_versions_or_for_one(
    catalog: Catalog,
) -> None:
    assert verifying.committed_versions(catalog, ()) == [("small", 1), ("small", 2)]
    assert verifying.committed_versions(catalog, ["small"]) == [
        ("small", 1),
        ("small", 2),
    ]
    assert verifying.committed_versions(catalog, ["small@v2", "small@v2"]) == [
        ("small", 2)
    ]
    with pytest.raises(NotFoundError, match="smal"):
        verifying.committed_versions(catalog, ["smal"])


def test_the_page_lists_every_version_and_what_is_wrong(catalog: Catalog) -> None:
    bad = report(Problem("data/x.parquet", "sha256", "aa", "bb"), version=2)
    page = verifying.findings([report(), bad])
    assert "| small v1 | intact | 3 |" in page
    assert "| small v2 | 1 problem | 3 |" in page
    assert "| small v2 | data/x.parquet | sha256 | aa | bb |" in page
    assert "Damage" not in verifying.findings([verify(catalog.store, "small", 1)])


def test_damage_fails_with_the_command_that_repairs_it() -> None:
    verifying.require_undamaged([report()])
    with pytest.raises(
        IntegrityError,
        match=r"1 of 2 versions damaged: small@v2.*tokenlake repair small@v2",
    ):
        verifying.require_undamaged(
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
    monkeypatch.setenv(
        "PREFECT__RUNTIME__DEPLOYMENT__ID", "7b7c1f6e-0a52-4b5e-9d0c-1d2f3a4b5c6d"
    )
    if allowed is not None:
        monkeypatch.setenv("TOKENLAKE_ALLOWED_OUTPUTS", allowed)
    with (
        nullcontext()
        if fine
        else pytest.raises(ConfigError, match=r"the repository: .*ALLOWED_OUTPUTS")
    ):
        bounds.bounds_of_run().require(policy.check_repository, repo)


def test_a_token_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pushing.token_of(pushing.check_reference(None)) is None
    monkeypatch.setenv("LAKE_HUB_TOKEN", "hf_only_for_this_test")
    assert (
        pushing.token_of(pushing.check_reference({"env": "LAKE_HUB_TOKEN"}))
        == "hf_only_for_this_test"
    )
    assert "only_for" not in scrub("it was hf_only_for_this_test")
    for literal in ({"token": "hf_secret"}, {"env": ""}, {"env": "A", "block": "b"}):
        with pytest.raises(
            ConfigError, match="names where the token is stored"
        ) as refused:
            pushing.check_reference(literal)
        assert "hf_secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="is not set"):
        pushing.token_of({"env": "LAKE_NOT_SET"})


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
    assert retries.is_worth_another_push(nothing, nothing, state) is again


_SCHEMES = st.sampled_from(
    ["", "s3://", "file://", "HTTPS://", "hf://datasets/", "gs://"]
)


@given(scheme=_SCHEMES, rest=st.text(max_size=700))
def test_every_address_gives_a_key_that_prefect_takes(scheme: str, rest: str) -> None:
    assert prefect_assets.Asset(key=assets.asset_key(scheme + rest)).key


def test_a_key_shows_no_password_and_no_signature() -> None:
    assert (
        assets.asset_key("https://me:hunter22@host/a b.csv?sig=hunter22#x")
        == "https://host/a_b.csv"
    )
    assert assets.asset_key(
        "raw/a.jsonl"
    ) == f"file://{Path('raw/a.jsonl').absolute()}".replace(" ", "_")
    long = [assets.asset_key(f"s3://lake/{'x' * 600}{end}") for end in "ab"]
    assert len(set(long)) == 2


def test_inputs_are_where_they_lie_and_never_thousands() -> None:
    assert assets.input_roots(["/raw/*.jsonl", "/raw/2024/**/a.csv", "/b.csv"]) == [
        "/raw",
        "/raw/2024",
        "/b.csv",
    ]
    assert assets.input_roots(["org/name"], "hub") == ["hf://datasets/org/name"]
    assert assets.input_roots(
        [f"s3://lake/raw/{number}.csv" for number in range(9000)]
    ) == ["s3://lake/raw"]


def test_a_version_says_where_it_is_and_what_it_holds(catalog: Catalog) -> None:
    store, manifest = catalog.store, catalog.manifest("small", 2)
    facts = events.facts_of(store.url, manifest)
    assert (facts["name"], facts["store"], facts["manifest_sha256"]) == (
        "small@v2",
        store.url,
        manifest.sha256,
    )
    assert (facts["tokens"], facts["rows"]) == (
        manifest.totals.tokens,
        manifest.totals.rows,
    )
    assert assets.dataset_asset(store.url, "small").key == f"file://{store.url}/small"


def test_the_progress_of_a_run_is_that_of_all_its_builds() -> None:
    tallies = RunTallies()
    assert progress.progress_line(tallies) == "0%, planning"
    tallies.add(BuildStep(2, 4, "tokens of web"))
    tallies.add(
        BuildPlanned("books", 3, 2, 2_000_000, 2, {"code": 1_000_000, "web": 1_000_000})
    )
    tallies.add(UnitStarted(0, "web", 1_000_000))
    tallies.add(
        UnitFinished(
            0,
            "web",
            1_000_000,
            _record(0),
            "built",
            2.0,
            step_seconds={"tokenize": 1.5, "save": 0.5},
        )
    )
    assert tallies.share == (1 + 0.5) / 4
    line = progress.progress_line(tallies, "stopped at ")
    assert line.startswith(
        "books v3: stopped at 38%, step 2 of 4: tokens of web, 1 of 2 units, "
    )
    assert line.endswith("; tokenize takes 75% of the workers' time")
    tallies.add(
        UnitFinished(
            1,
            "code",
            1_000_000,
            _record(1),
            "built",
            4.0,
            step_seconds={"tokenize": 4.0},
        )
    )
    assert tallies.share == 0.5
    assert progress.progress_line(tallies).endswith(
        "; code is slowest, 0.25 MB/s per worker"
    )
