"""``tokenlake explain``: a thin face of :mod:`tokenlake.runtime.loader.explain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.loader.support import plain
from tests.reading.support import lake_of
from tokenlake.cli.app import main
from tokenlake.runtime.loader import BatchPlan, LoaderOptions, explain_step

Output = pytest.CaptureFixture[str]
BATCH = ("--batch-size", "8")


@pytest.fixture(autouse=True)
def _this_store(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_STORE", lake_of(tmp_path_factory).url)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> tl.Dataset:
    return plain(tmp_path_factory)


@pytest.fixture(scope="module")
def mixture(ds: tl.Dataset, tmp_path_factory: pytest.TempPathFactory) -> tl.Mixture:
    return tl.Mixture(
        {"a": ds, "b": plain(tmp_path_factory, "learned")},
        {"a": 0.5, "b": 0.5},
        block_size=10,
        rows=80,
    )


def asked(capsys: Output, *arguments: str) -> Any:
    assert main(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Output, *arguments: str) -> str:
    assert main(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def saved(loader: tl.DataLoader, steps: int, path: Path) -> str:
    """The state after some steps, in a file."""
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    path.write_text(json.dumps(loader.get_state()))
    loader.close()
    return str(path)


def listed(plan: BatchPlan, step: int) -> Any:
    return json.loads(json.dumps([asdict(row) for row in explain_step(plan, step)]))


@pytest.mark.parametrize(
    ("arguments", "sizes", "options"),
    [
        ([], 8, {}),
        (["--seed", "7", "--epochs", "2", "--lanes", "2"], 8, {"seed": 7, "epochs": 2, "lanes": 2}),
        (["--window", "9"], 8, {"window": 9}),
        (["--epochs", "none", "--drop-last"], 8, {"epochs": None, "drop_last": True}),
        (["--no-shuffle"], {0: 8, 2: 24}, {"shuffle": False}),
        (["--seed", "-1"], {0: 4, 5: 12}, {"seed": -1}),
    ],
    ids=str,
)  # fmt: skip
def test_a_batch_is_that_of_a_loader_with_these_options(
    capsys: Output,
    ds: tl.Dataset,
    arguments: list[str],
    sizes: Any,
    options: dict[str, Any],
):
    given = (
        str(sizes)
        if isinstance(sizes, int)
        else ",".join(f"{a}:{b}" for a, b in sizes.items())
    )
    plan = BatchPlan(ds, LoaderOptions(batch_size=sizes, **options))
    batch = plan.batch(6)
    found = asked(capsys, "plain", "--batch-size", given, "--step", "6", *arguments)
    assert found["rows"] == listed(plan, 6)
    assert (found["step"], found["start"], found["size"]) == (
        6,
        batch.start,
        batch.size,
    )
    (row,) = asked(
        capsys,
        "plain@v1",
        "--batch-size",
        given,
        "--step",
        "6",
        "--row",
        "2",
        *arguments,
    )["rows"]
    assert row == found["rows"][2]


def test_a_batch_is_listed_a_line_for_each_segment(capsys: Output, ds: tl.Dataset):
    plan = BatchPlan(ds, LoaderOptions(batch_size=8))
    assert main(["explain", "plain", *BATCH, "--step", "3"]) == 0
    out = capsys.readouterr().out.splitlines()
    rows = explain_step(plan, 3)
    assert out[0] == "step 3  8 rows, 24 to 31"
    assert len(out) == 1 + len(rows) + sum(len(row.segments) for row in rows)
    row, segment = rows[0], rows[0].segments[0]
    assert (
        out[1]
        == f"row 0  epoch 0, plain@v1/train row {row.stored_row}, {row.shard} row {row.shard_row}"
    )
    assert out[2] == (
        f"   ids 0-{segment.end - 1}  s  notes.jsonl:{segment.position} (byte offset)"
        f"  tokens {segment.start}-{segment.stop - 1} of the document"
    )


def test_a_state_says_all_of_the_order(capsys: Output, ds: tl.Dataset, tmp_path: Path):
    loader = tl.DataLoader(ds, {0: 4, 3: 8}, seed=3, epochs=2, lanes=2, window=7)
    state = saved(loader, 5, tmp_path / "state.json")
    assert asked(capsys, "--state", state)["step"] == 5
    assert asked(capsys, "--state", state)["rows"] == listed(loader.plan, 5)
    assert asked(capsys, "plain", "--state", state, "--step", "11")["rows"] == listed(
        loader.plan, 11
    )
    # The loader may be gone through again: there is always a next step.
    later = len(loader) + 3
    assert asked(capsys, "--state", state, "--step", str(later))["passes"] == 1


def test_a_state_of_a_mixture_names_its_datasets(
    capsys: Output, mixture: tl.Mixture, tmp_path: Path
):
    loader = tl.DataLoader(mixture, 8, seed=3)
    state = saved(loader, 2, tmp_path / "state.json")
    found = asked(capsys, "--state", state)
    assert found["rows"] == listed(loader.plan, 2)
    assert {row["name"] for row in found["rows"]} == {"a", "b"}
    for name in ("learned", "b"):
        assert "have rows of all of them; leave out the name" in refused(
            capsys, name, "--state", state
        )
    assert main(["explain", "--state", state, "--row", "0"]) == 0
    row = explain_step(loader.plan, 2, 0)[0]
    assert (
        f"epoch {row.epoch}, {row.name} = {row.dataset} row {row.stored_row}, "
        in capsys.readouterr().out
    )
    assert "not of 'texts'; leave out the name" in refused(
        capsys, "texts", "--state", state
    )


def test_a_document_is_followed_to_its_batches(capsys: Output, ds: tl.Dataset):
    plan = BatchPlan(ds, LoaderOptions(batch_size=8, epochs=2))
    (row,) = explain_step(plan, 9, 4)
    segment = row.segments[0]
    place = f"{segment.path}:{segment.position}"
    (found,) = asked(capsys, "plain", *BATCH, "--epochs", "2", "--document", place)
    assert found["position"] == segment.position
    assert {each["epoch"] for each in found["rows"]} == {0, 1}
    places = [(each["step"], each["row"]) for each in found["rows"]]
    assert (9, 4) in places and places == sorted(places)
    by_id = f"{found['file_id']}:{segment.position}"
    assert asked(capsys, "plain", *BATCH, "--epochs", "2", "--file-id", by_id) == [
        found
    ]
    (sooner,) = asked(
        capsys, "plain", *BATCH, "--epochs", "2", "--document", place, "--step", "9"
    )
    assert sooner["rows"] == [each for each in found["rows"] if each["step"] < 9]
    # Two passes of one epoch are another order than one pass of two.
    (twice,) = asked(capsys, "plain", *BATCH, "--passes", "2", "--document", place)
    assert {(each["passes"], each["epoch"]) for each in twice["rows"]} == {
        (0, 0),
        (1, 1),
    }
    assert (
        main(
            [
                "explain",
                "plain",
                *BATCH,
                "--document",
                place,
                "--document",
                "notes.jsonl:0",
                "--step",
                "1",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in out if "seen" in line] == [
        place,
        "notes.jsonl:0",
    ]


def test_a_document_of_a_mixture_is_looked_for_in_the_pass_of_the_state(
    capsys: Output, mixture: tl.Mixture, tmp_path: Path
):
    loader = tl.DataLoader(mixture, 8, seed=3)
    state = saved(loader, 1, tmp_path / "state.json")
    (row,) = explain_step(loader.plan, 4, 1)
    segment = row.segments[-1]
    (found,) = asked(
        capsys, "--state", state, "--document", f"{segment.path}:{segment.position}"
    )
    assert (4, 1) in [(each["step"], each["row"]) for each in found["rows"]]
    assert all(each["passes"] == 0 for each in found["rows"])


def test_what_cannot_be_is_one_sentence(capsys: Output, ds: tl.Dataset, tmp_path: Path):
    step = ("--step", "0")
    assert "did you mean plain" in refused(capsys, "plan", *BATCH, *step)
    assert "step 20 is past the end: there are 20 steps (0 to 19)" in refused(
        capsys, "plain", *BATCH, "--step", "20"
    )
    assert (
        asked(capsys, "plain", *BATCH, "--passes", "2", "--step", "20")["passes"] == 1
    )
    assert "step: got -1" in refused(capsys, "plain", *BATCH, "--step=-1")
    assert "row: got 8, but step 0 has rows 0 to 7" in refused(
        capsys, "plain", *BATCH, *step, "--row", "8"
    )
    assert "did you mean 'notes.jsonl'?" in refused(
        capsys, "plain", *BATCH, "--document", "note.jsonl:0"
    )
    assert "documents near it begin at 0, 30" in refused(
        capsys, "plain", *BATCH, "--document", "notes.jsonl:9"
    )
    assert "must end with the document's row index or byte offset" in refused(
        capsys, "plain", *BATCH, "--document", "notes.jsonl"
    )
    assert "has the id 5" in refused(capsys, "plain", *BATCH, "--file-id", "5:0")
    assert "must be ID:POSITION" in refused(capsys, "plain", *BATCH, "--file-id", "x:0")
    assert "--row selects a row of a batch" in refused(
        capsys, "plain", *BATCH, "--row", "0", "--document", "notes.jsonl:0"
    )
    assert "the order is endless" in refused(
        capsys, "plain", *BATCH, "--epochs", "none", "--document", "notes.jsonl:0"
    )
    assert "name a batch (--step)" in refused(capsys, "plain", *BATCH)
    assert "NAME --step 0 --batch-size 8`, or --state" in refused(
        capsys, "plain", *step
    )
    for wrong in ("x", "0:8,9", "5:8", "0:0"):
        assert "batch" in refused(capsys, "plain", "--batch-size", wrong, *step)
    assert "no split 'test'" in refused(
        capsys, "plain", *BATCH, *step, "--split", "test"
    )
    assert "step 999 is past the end" in refused(
        capsys, "texts", *BATCH, "--step", "999"
    )


def test_states_that_do_not_fit_are_refused(
    capsys: Output, ds: tl.Dataset, tmp_path: Path
):
    state = saved(tl.DataLoader(ds, 8), 1, tmp_path / "state.json")
    for option in (
        ["--seed", "0"],
        list(BATCH),
        ["--no-shuffle"],
        ["--split", "train"],
        ["--lanes", "1"],
    ):
        assert f"{option[0]}: the state defines this" in refused(
            capsys, "--state", state, *option
        )
    assert (
        "the state belongs to another run: source train is plain@v1/train there and learned@v1/train here "
        f"(tl.open('{ds.store.url}/plain@v1', split='train') opens that of the state)"
    ) in refused(capsys, "learned", "--state", state)
    changed = json.loads(Path(state).read_text())
    changed["sources"]["train"]["manifest"] = "0" * 64
    Path(state).write_text(json.dumps(changed))
    assert (
        "the state belongs to another run: source train is plain@v1/train there and here, but not the same data"
    ) in refused(capsys, "--state", state)
    Path(state).write_text("{")
    assert "cannot be read" in refused(capsys, "--state", state)
    Path(state).write_text("{}")
    assert "this is not the state of a loader" in refused(capsys, "--state", state)
    assert "cannot be read" in refused(
        capsys, "--state", str(tmp_path / "nowhere.json")
    )


def test_documents_are_explained_with_their_padding(
    capsys: Output, tmp_path_factory: pytest.TempPathFactory
):
    padding = {"buckets": 3, "multiple": 4}
    texts = plain(tmp_path_factory, "texts")
    plan = BatchPlan(texts, LoaderOptions(batch_size=8, padding=padding))
    given = ("texts", *BATCH, "--padding", json.dumps(padding))
    said = asked(capsys, *given, "--step", "2")
    assert said["rows"] == json.loads(
        json.dumps([asdict(row) for row in explain_step(plan, 2)])
    )
    segment = said["rows"][0]["segments"][0]
    (found,) = asked(
        capsys, *given, "--document", f"{segment['path']}:{segment['position']}"
    )
    assert [(row["step"], row["row"]) for row in found["rows"]] == [(2, 0)]
    assert "must be JSON" in refused(
        capsys, "texts", *BATCH, "--padding", "buckets=3", "--step", "2"
    )
