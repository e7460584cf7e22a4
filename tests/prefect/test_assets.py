"""What Prefect is told of a version: keys that it takes, where inputs lie, how far a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.observability.test_build import _record
from tests.store.support import build_store
from tokenlake.etl.events import BuildPlanned, BuildStep, UnitFinished, UnitStarted
from tokenlake.observability.tally import RunTallies
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog

prefect_assets: Any = lazily("prefect.assets")
assets: Any = lazily("tokenlake.prefect.tasks")
progress: Any = lazily("tokenlake.prefect.runs")

_SCHEMES = st.sampled_from(["", "s3://", "file://", "HTTPS://", "hf://datasets/", "gs://"])


@given(scheme=_SCHEMES, rest=st.text(max_size=700))
def test_every_address_gives_a_key_that_prefect_takes(scheme: str, rest: str) -> None:
    assert prefect_assets.Asset(key=assets.asset_key(scheme + rest)).key


def test_a_key_shows_no_password_and_no_signature() -> None:
    assert assets.asset_key("https://me:hunter22@host/a b.csv?sig=hunter22#x") == "https://host/a_b.csv"
    assert assets.asset_key("raw/a.jsonl") == f"file://{Path('raw/a.jsonl').absolute()}".replace(" ", "_")
    long = [assets.asset_key(f"s3://lake/{'x' * 600}{end}") for end in "ab"]
    assert len(set(long)) == 2


def test_inputs_are_where_they_lie_and_never_thousands() -> None:
    assert assets.input_roots(["/raw/*.jsonl", "/raw/2024/**/a.csv", "/b.csv"]) == [
        "/raw",
        "/raw/2024",
        "/b.csv",
    ]
    assert assets.input_roots(["org/name"], "hub") == ["hf://datasets/org/name"]
    assert assets.input_roots([f"s3://lake/raw/{number}.csv" for number in range(9000)]) == ["s3://lake/raw"]


def test_a_version_says_where_it_is_and_what_it_holds(tmp_path: Path, tokenizer_dir: Path) -> None:
    store = open_store(build_store(tmp_path, tokenizer_dir))
    manifest = Catalog(store).manifest("small", 2)
    facts = assets.facts_of(store.url, manifest)
    assert (facts["name"], facts["store"], facts["manifest_sha256"]) == (
        "small@v2",
        store.url,
        manifest.sha256,
    )
    assert (facts["tokens"], facts["rows"]) == (manifest.totals.tokens, manifest.totals.rows)
    assert assets.dataset_asset(store.url, "small").key == f"file://{store.url}/small"


def test_the_progress_of_a_run_is_that_of_all_its_builds() -> None:
    tallies = RunTallies()
    assert progress.progress_line(tallies) == "0%, planning"
    tallies.add(BuildStep(2, 4, "tokens of web"))
    tallies.add(BuildPlanned("books", 3, 2, 2_000_000, 2, {"code": 1_000_000, "web": 1_000_000}))
    tallies.add(UnitStarted(0, "web", 1_000_000))
    tallies.add(
        UnitFinished(0, "web", 1_000_000, _record(0), "built", 2.0, stages={"tokenize": 1.5, "save": 0.5})
    )
    assert tallies.share == (1 + 0.5) / 4
    line = progress.progress_line(tallies, "stopped at ")
    assert line.startswith("books v3: stopped at 38%, step 2 of 4: tokens of web, 1 of 2 units, ")
    assert line.endswith("; tokenize takes 75% of the workers' time")
    tallies.add(UnitFinished(1, "code", 1_000_000, _record(1), "built", 4.0, stages={"tokenize": 4.0}))
    assert tallies.share == 0.5
    assert progress.progress_line(tallies).endswith("; code is slowest, 0.25 MB/s per worker")
