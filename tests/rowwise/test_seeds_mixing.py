"""The snippets on mixing run as they are printed, with the import renamed; local files
stand in for the Hub's datasets.

What cannot be Python as printed is left out: the trainer
(``ed.SFTTrainer(train_dataset=mixed, ...)``), and ``...`` for arguments, in whose place
stands what the text means.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import textwrap
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.lazily import lazily
from tests.rowwise.pipeline_support import printed
from tests.seeds import promise

datasets: Any = lazily("datasets")


HUB = ("bigcode/starcoderdata", "HuggingFaceFW/fineweb", "hendrycks/competition_math")
SIZES = (40, 50, 10)


def rows(name: str, size: int) -> list[dict[str, Any]]:
    return [{"text": f"{name} {n}", "id": n} for n in range(size)]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a folder for each dataset, which `load_dataset` finds
    before the Hub.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    for name, size in zip(HUB, SIZES, strict=True):
        write(tmp_path / name / "train.jsonl", rows(name.split("/")[1], size))
    return tmp_path


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(lines), path)
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run a snippet; return the names that it leaves."""
    exec(compile(textwrap.dedent(code), "snippet", "exec"), names)
    return names


def sources_of(mixed: Any, most: int) -> Counter[str]:
    return Counter(row["__source__"] for row in islice(mixed, most))


def parts() -> dict[str, Any]:
    """Return datasets as a user has them: in memory, and as a stream."""
    made = {f"ds{place}": rows(f"ds{place}", 10 * place) for place in (1, 2, 3)}
    return {
        "ds1": datasets.Dataset.from_list(made["ds1"]),
        "ds2": datasets.Dataset.from_list(made["ds2"]).to_iterable_dataset(
            num_shards=2
        ),
        "ds3": datasets.Dataset.from_list(made["ds3"]),
    }


def code_and_text() -> dict[str, Any]:
    return {
        f"{name}_dataset": datasets.Dataset.from_list(rows(name, 30))
        for name in ("code", "text")
    }


# --- quick start

PRINTED = printed("mixing.md")


@promise(138, 197)
def test_simple_mixing_with_hugging_face_datasets() -> None:
    mixed = run(PRINTED["quick_start"])["mixed"]
    assert sources_of(mixed, 2000) == {"code": 800, "text": 1000, "math": 200}
    row = next(row for row in mixed if row["__source__"] == "math")
    assert row == {"text": "competition_math 0", "id": 0, "__source__": "math"}


@promise(160, 161)
def test_the_example_of_the_overview() -> None:
    names = run(PRINTED["overview"])
    assert sources_of(names["simple"], 1000) == {"code": 300, "text": 700}
    assert sources_of(names["mixed"], 1000) == {"code": 200, "text": 800}


# --- block_mixture_interleave


@promise(199, 200, 201)
def test_a_mapping_with_weights_and_without() -> None:
    names = run(PRINTED["dict"], **parts())
    assert sources_of(names["weighted"], 1000) == {
        "code": 500,
        "text": 300,
        "math": 200,
    }
    assert sources_of(names["mixed"], 1000) == {"code": 500, "text": 500}


@promise(203, 227)
def test_one_seed_is_one_sequence() -> None:
    names = run(
        PRINTED["reproducible"],
        datasets=parts(),
        block_mixture_interleave=tl.block_mixture_interleave,
    )
    first, second, other = (list(islice(names[f"mixed{n}"], 300)) for n in (1, 2, 3))
    assert first == second != other


@promise(202)
def test_any_size_of_block_follows_the_weights() -> None:
    given = {name: dataset for name, dataset in parts().items() if name != "ds3"}
    names = run(
        PRINTED["block_sizes"],
        datasets=given,
        block_mixture_interleave=tl.block_mixture_interleave,
    )
    for name, size in (("small", 100), ("mixed", 1000), ("large", 10000)):
        assert sources_of(names[name], size) == {"ds1": size // 2, "ds2": size // 2}


# --- MixedShardedSource


def ten_and_twenty() -> dict[str, tl.ShardedDataSource]:
    return {
        name: tl.wrap_hf_dataset(datasets.Dataset.from_list(rows(name, size)))
        for name, size in (("code", 10), ("text", 20))
    }


@promise(207)
def test_static_weights() -> None:
    left = iter([False] * 999 + [True])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(
            PRINTED["static"],
            enough=lambda: next(left),
            **{f"dataset{n}": parts()[f"ds{n}"] for n in (1, 2)},
        )
    assert Counter(out.getvalue().split()) == {"code": 300, "text": 700}


@promise(210)
def test_a_schedule_of_weights() -> None:
    mixed = run(PRINTED["scheduled"], **code_and_text())["mixed"]
    names = [row["__source__"] for row in islice(mixed, 20_000)]
    # From 0.2 to 0.5 over the first 10,000 rows: 3,500; then up to 0.575 at 20,000:
    # 5,375.
    assert (names[:10_000].count("code"), names[10_000:].count("code")) == (3500, 5375)
    late = islice(mixed.open_shard_at_row("mixed", 100_000), 1000)
    assert Counter(row["__source__"] for row in late) == {"code": 800, "text": 200}


@promise(216)
def test_the_weights_of_a_schedule() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(
            PRINTED["visualized"],
            WeightScheduler=tl.WeightScheduler,
            WeightSchedulePoint=tl.WeightSchedulePoint,
        )
    shown = [eval(line) for line in out.getvalue().splitlines()]
    expected = [(0.2, 0.8), (0.35, 0.65), (0.5, 0.5), (0.65, 0.35)]
    assert shown == [
        {"code": pytest.approx(code), "text": pytest.approx(text)}
        for code, text in expected
    ]


@promise(204, 218)
def test_stop_strategies() -> None:
    names = run(
        PRINTED["stopping"],
        sources=ten_and_twenty(),
        MixedShardedSource=tl.MixedShardedSource,
    )
    assert sum(1 for _ in islice(names["endless"], 5000)) == 5000
    assert sources_of(names["first"], 100)["code"] == 10
    assert len(names["mixed"]) == sum(1 for _ in names["mixed"]) == 30


@promise(208, 226)
def test_the_source_of_every_row_is_tracked() -> None:
    processed: list[Any] = []
    run(
        PRINTED["tracked"],
        sources=ten_and_twenty(),
        MixedShardedSource=tl.MixedShardedSource,
        processed=processed,
    )
    assert [row["text"] for row in processed] == [f"code {n}" for n in range(10)]


@promise(228)
def test_workers_with_one_seed_have_one_order() -> None:
    workers = [
        run(
            PRINTED["workers"],
            sources=ten_and_twenty(),
            MixedShardedSource=tl.MixedShardedSource,
        )["mixed"]
        for _ in range(2)
    ]
    assert [list(islice(worker, 100)) for worker in workers[:1]] == [
        list(islice(workers[1], 100))
    ]


# --- schedules for a purpose


@promise(139, 224)
@pytest.mark.parametrize(
    ("code", "names", "counts"),
    [
        (PRINTED["curriculum"], ("easy", "hard"), (900, 100)),
        (PRINTED["imbalanced"], ("small_important", "large"), (500, 500)),
    ],
)
def test_schedules_for_a_purpose_mix(
    code: str, names: tuple[str, str], counts: tuple[int, int]
) -> None:
    made = run(
        code,
        WeightScheduler=tl.WeightScheduler,
        WeightSchedulePoint=tl.WeightSchedulePoint,
    )["scheduler"]
    sources = {
        name: tl.wrap_hf_dataset(datasets.Dataset.from_list(rows(name, 9)))
        for name in names
    }
    mixed = tl.MixedShardedSource(sources, weight_scheduler=made)
    assert sources_of(mixed, 1000) == dict(zip(names, counts, strict=True))
    last = islice(mixed.open_shard_at_row("mixed", 200_000), 1000)
    assert Counter(row["__source__"] for row in last) == dict(
        zip(names, (100, 900), strict=True)
    )


# --- other ways to put datasets together


@promise(221)
def test_simple_concatenation() -> None:
    for folder in ("data1", "data2"):
        for part in range(2):
            write(Path(folder, f"{part}.parquet"), rows(f"{folder}.{part}", 3))
    seen: list[Any] = []
    combined = run(PRINTED["composite"], process=seen.append)["combined"]
    # Both folders have files of the same names: each shard is its own.
    assert [row["text"] for row in seen] == [
        f"{folder}.{part} {n}"
        for folder in ("data1", "data2")
        for part in range(2)
        for n in range(3)
    ]
    assert (len(combined), list(combined)) == (12, seen)
    assert list(combined.open_shard_at_row(combined.shard_names[3], 1)) == seen[10:]


@promise(222)
def test_the_older_interface() -> None:
    write(Path("data1/0.parquet"), rows("one", 30))
    write(Path("data2/0.json"), [{"content": f"two {n}"} for n in range(20)])
    dataset = run(PRINTED["legacy"])["dataset"]
    found = Counter(
        (row["__source__"], row["text"].split()[0]) for row in islice(dataset, 2048)
    )
    assert found == {("ds1", "one"): 1434, ("ds2", "two"): 614}
    assert set(next(iter(dataset))) == {"text", "__source__"}


@promise(220)
def test_the_section_mix() -> None:
    config = run(PRINTED["config"])["config"]
    scheduler = tl.WeightScheduler(config.weight_schedule, config.weight_schedule_type)
    assert scheduler.get_weights(5000) == pytest.approx({"code": 0.35, "text": 0.65})
    assert (config.block_size, config.stop_strategy, config.seed) == (
        1000,
        "restart",
        42,
    )


# --- golden values


@promise(206)
def test_a_block_of_one_seed_is_no_block_of_the_next() -> None:
    def names(seed: int, row: int) -> list[str]:
        mixed = tl.block_mixture_interleave(
            {"a": rows("a", 9), "b": rows("b", 9)}, block_size=100, seed=seed
        )
        return [
            row["__source__"]
            for row in islice(mixed.open_shard_at_row("mixed", row), 100)
        ]

    assert names(0, 100) != names(1, 0)
    assert names(0, 0) != names(42, 0)


@promise(209)
def test_defaults_are_those_of_the_table() -> None:
    for function in (tl.block_mixture_interleave, tl.MixedShardedSource):
        given = {
            name: each.default
            for name, each in inspect.signature(function).parameters.items()
        }
        assert (given["block_size"], given["seed"], given["weights"]) == (
            1000,
            None,
            None,
        )
        assert given.get("stop", given.get("stop_strategy")) == "restart"
