"""The snippets on mixing run as they are printed, with the import renamed; local files stand in for the Hub's datasets.

What cannot be Python as printed is left out: the trainer (``ed.SFTTrainer(train_dataset=mixed, ...)``), and ``...`` for
arguments, in whose place stands what the text means.
"""

from __future__ import annotations

import contextlib
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
from tokenlake.errors import ConfigError

datasets: Any = pytest.importorskip("datasets")

HUB = ("bigcode/starcoderdata", "HuggingFaceFW/fineweb", "hendrycks/competition_math")
SIZES = (40, 50, 10)


def rows(name: str, size: int) -> list[dict[str, Any]]:
    return [{"text": f"{name} {n}", "id": n} for n in range(size)]


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a folder for each dataset, which `load_dataset` finds before the Hub."""
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
        "ds2": datasets.Dataset.from_list(made["ds2"]).to_iterable_dataset(num_shards=2),
        "ds3": datasets.Dataset.from_list(made["ds3"]),
    }


def code_and_text() -> dict[str, Any]:
    return {f"{name}_dataset": datasets.Dataset.from_list(rows(name, 30)) for name in ("code", "text")}


# --- quick start

QUICK_START = """
    from datasets import load_dataset
    from tokenlake import block_mixture_interleave

    # Load datasets
    code_ds = load_dataset("bigcode/starcoderdata", split="train", streaming=True)
    text_ds = load_dataset("HuggingFaceFW/fineweb", split="train", streaming=True)
    math_ds = load_dataset("hendrycks/competition_math", split="train")

    # Mix with weights using dict (recommended - explicit mapping)
    mixed = block_mixture_interleave(
        datasets={"code": code_ds, "text": text_ds, "math": math_ds},
        weights={"code": 0.4, "text": 0.5, "math": 0.1},
        block_size=1000,
        seed=42,
        stop="restart",
    )
"""

OVERVIEW = """
    from datasets import load_dataset
    from tokenlake import (
        block_mixture_interleave,
        MixedShardedSource,
        HFDatasetShardedSource,
        WeightScheduler,
        WeightSchedulePoint,
    )

    # Load datasets with streaming
    code_ds = load_dataset("bigcode/starcoderdata", split="train", streaming=True)
    text_ds = load_dataset("HuggingFaceFW/fineweb", split="train", streaming=True)

    # Simple mixing
    mixed = block_mixture_interleave(
        [code_ds, text_ds],
        weights={"code": 0.3, "text": 0.7},
        block_size=1000,
        seed=42,
        stop="restart",
    )
    simple = mixed

    # Or with dynamic scheduling
    scheduler = WeightScheduler([
        WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
        WeightSchedulePoint(step=100000, weights={"code": 0.5, "text": 0.5}),
    ], interpolation="cosine")

    mixed = MixedShardedSource(
        sources={
            "code": HFDatasetShardedSource(code_ds),
            "text": HFDatasetShardedSource(text_ds),
        },
        weight_scheduler=scheduler,
    )
"""


def test_simple_mixing_with_hugging_face_datasets() -> None:
    mixed = run(QUICK_START)["mixed"]
    assert sources_of(mixed, 2000) == {"code": 800, "text": 1000, "math": 200}
    row = next(row for row in mixed if row["__source__"] == "math")
    assert row == {"text": "competition_math 0", "id": 0, "__source__": "math"}


def test_the_example_of_the_overview() -> None:
    names = run(OVERVIEW)
    assert sources_of(names["simple"], 1000) == {"code": 300, "text": 700}
    assert sources_of(names["mixed"], 1000) == {"code": 200, "text": 800}


# --- block_mixture_interleave

DICT = """
    from tokenlake import block_mixture_interleave

    # Dict format with explicit name-to-dataset mapping
    mixed = block_mixture_interleave(
        datasets={"code": ds1, "text": ds2, "math": ds3},
        weights={"code": 0.5, "text": 0.3, "math": 0.2},
        block_size=1000,
        seed=42,
        stop="restart",
    )
    weighted = mixed

    # Equal weights
    mixed = block_mixture_interleave(
        datasets={"code": ds1, "text": ds2},
        weights=None,  # Equal 50/50
    )
"""

REPRODUCIBLE = """
    # Same seed = same sequence
    mixed1 = block_mixture_interleave(datasets, seed=42)
    mixed2 = block_mixture_interleave(datasets, seed=42)

    # Different seeds = different sequences
    mixed3 = block_mixture_interleave(datasets, seed=123)
"""

BLOCK_SIZES = """
    # Smaller blocks = more interleaving but more overhead
    mixed = block_mixture_interleave(datasets, block_size=100)
    small = mixed

    # Larger blocks = less overhead but more bursty
    mixed = block_mixture_interleave(datasets, block_size=10000)
    large = mixed

    # Recommended: 1000-2000 for good balance
    mixed = block_mixture_interleave(datasets, block_size=1000)
"""


def test_a_mapping_with_weights_and_without() -> None:
    names = run(DICT, **parts())
    assert sources_of(names["weighted"], 1000) == {"code": 500, "text": 300, "math": 200}
    assert sources_of(names["mixed"], 1000) == {"code": 500, "text": 500}


def test_one_seed_is_one_sequence() -> None:
    names = run(REPRODUCIBLE, datasets=parts(), block_mixture_interleave=tl.block_mixture_interleave)
    first, second, other = (list(islice(names[f"mixed{n}"], 300)) for n in (1, 2, 3))
    assert first == second != other


def test_any_size_of_block_follows_the_weights() -> None:
    given = {name: dataset for name, dataset in parts().items() if name != "ds3"}
    names = run(BLOCK_SIZES, datasets=given, block_mixture_interleave=tl.block_mixture_interleave)
    for name, size in (("small", 100), ("mixed", 1000), ("large", 10000)):
        assert sources_of(names[name], size) == {"ds1": size // 2, "ds2": size // 2}


# --- MixedShardedSource

STATIC = """
    from tokenlake import MixedShardedSource, HFDatasetShardedSource

    # Wrap datasets as ShardedDataSource
    source1 = HFDatasetShardedSource(dataset1)
    source2 = HFDatasetShardedSource(dataset2)

    # Mix with static weights
    mixed = MixedShardedSource(
        sources={"code": source1, "text": source2},
        weights={"code": 0.3, "text": 0.7},
        block_size=1000,
        seed=42,
        stop_strategy="restart",
    )

    # Iterate
    for example in mixed.open_shard(mixed.shard_names[0]):
        print(example["__source__"])  # Shows which dataset
        if enough():
            break
"""

SCHEDULED = """
    from tokenlake import (
        MixedShardedSource,
        HFDatasetShardedSource,
        WeightScheduler,
        WeightSchedulePoint,
    )

    # Define schedule
    scheduler = WeightScheduler(
        schedule=[
            WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
            WeightSchedulePoint(step=10000, weights={"code": 0.5, "text": 0.5}),
            WeightSchedulePoint(step=50000, weights={"code": 0.8, "text": 0.2}),
        ],
        interpolation="linear",  # "step", "linear", or "cosine"
    )

    # Create sources
    code_source = HFDatasetShardedSource(code_dataset)
    text_source = HFDatasetShardedSource(text_dataset)

    # Mix with scheduler
    mixed = MixedShardedSource(
        sources={"code": code_source, "text": text_source},
        weight_scheduler=scheduler,
        block_size=1000,
    )
"""

VISUALIZED = """
    scheduler = WeightScheduler(
        schedule=[
            WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
            WeightSchedulePoint(step=10000, weights={"code": 0.5, "text": 0.5}),
            WeightSchedulePoint(step=50000, weights={"code": 0.8, "text": 0.2}),
        ],
        interpolation="linear",
    )

    # Check weights at any step
    print(scheduler.get_weights(0))      # {"code": 0.2, "text": 0.8}
    print(scheduler.get_weights(5000))   # {"code": 0.35, "text": 0.65}
    print(scheduler.get_weights(10000))  # {"code": 0.5, "text": 0.5}
    print(scheduler.get_weights(30000))  # {"code": 0.65, "text": 0.35}
"""

STOPPING = """
    # Infinite training - datasets loop
    mixed = MixedShardedSource(sources, stop_strategy="restart")
    endless = mixed

    # Stop at smallest dataset
    mixed = MixedShardedSource(sources, stop_strategy="first_exhausted")
    first = mixed

    # Train until all data seen at least once
    mixed = MixedShardedSource(sources, stop_strategy="all_exhausted")
"""

TRACKED = """
    mixed = MixedShardedSource(sources, stop_strategy="all_exhausted")

    for example in mixed.open_shard(mixed.shard_names[0]):
        source_name = example.get("__source__")  # Added automatically
        if source_name == "code":
            # Apply code-specific processing
            processed.append(example)
            pass
"""

WORKERS = """
    # All workers use same seed for consistent global ordering
    mixed = MixedShardedSource(
        sources=sources,
        seed=42,  # Same across all workers
    )
"""


def ten_and_twenty() -> dict[str, tl.ShardedDataSource]:
    return {
        name: tl.wrap_hf_dataset(datasets.Dataset.from_list(rows(name, size)))
        for name, size in (("code", 10), ("text", 20))
    }


def test_static_weights() -> None:
    left = iter([False] * 999 + [True])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(STATIC, enough=lambda: next(left), **{f"dataset{n}": parts()[f"ds{n}"] for n in (1, 2)})
    assert Counter(out.getvalue().split()) == {"code": 300, "text": 700}


def test_a_schedule_of_weights() -> None:
    mixed = run(SCHEDULED, **code_and_text())["mixed"]
    names = [row["__source__"] for row in islice(mixed, 20_000)]
    # From 0.2 to 0.5 over the first 10,000 rows: 3,500; then up to 0.575 at 20,000: 5,375.
    assert (names[:10_000].count("code"), names[10_000:].count("code")) == (3500, 5375)
    late = islice(mixed.open_shard_at_row("mixed", 100_000), 1000)
    assert Counter(row["__source__"] for row in late) == {"code": 800, "text": 200}


def test_the_weights_of_a_schedule() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(VISUALIZED, WeightScheduler=tl.WeightScheduler, WeightSchedulePoint=tl.WeightSchedulePoint)
    shown = [eval(line) for line in out.getvalue().splitlines()]
    expected = [(0.2, 0.8), (0.35, 0.65), (0.5, 0.5), (0.65, 0.35)]
    assert shown == [{"code": pytest.approx(code), "text": pytest.approx(text)} for code, text in expected]


def test_stop_strategies() -> None:
    names = run(STOPPING, sources=ten_and_twenty(), MixedShardedSource=tl.MixedShardedSource)
    assert sum(1 for _ in islice(names["endless"], 5000)) == 5000
    assert sources_of(names["first"], 100)["code"] == 10
    assert len(names["mixed"]) == sum(1 for _ in names["mixed"]) == 30


def test_the_source_of_every_row_is_tracked() -> None:
    processed: list[Any] = []
    run(TRACKED, sources=ten_and_twenty(), MixedShardedSource=tl.MixedShardedSource, processed=processed)
    assert [row["text"] for row in processed] == [f"code {n}" for n in range(10)]


def test_workers_with_one_seed_have_one_order() -> None:
    workers = [
        run(WORKERS, sources=ten_and_twenty(), MixedShardedSource=tl.MixedShardedSource)["mixed"]
        for _ in range(2)
    ]
    assert [list(islice(worker, 100)) for worker in workers[:1]] == [list(islice(workers[1], 100))]


# --- schedules for a purpose

CURRICULUM = """
    # Start with easier data, gradually increase difficulty
    scheduler = WeightScheduler(
        schedule=[
            WeightSchedulePoint(step=0, weights={"easy": 0.9, "hard": 0.1}),
            WeightSchedulePoint(step=50000, weights={"easy": 0.5, "hard": 0.5}),
            WeightSchedulePoint(step=100000, weights={"easy": 0.1, "hard": 0.9}),
        ],
        interpolation="cosine",  # Smooth transition
    )
"""

IMBALANCED = """
    # Small dataset with important data
    scheduler = WeightScheduler(
        schedule=[
            # High weight initially to ensure exposure
            WeightSchedulePoint(step=0, weights={"small_important": 0.5, "large": 0.5}),
            # Reduce after sufficient exposure
            WeightSchedulePoint(step=10000, weights={"small_important": 0.1, "large": 0.9}),
        ],
    )
"""


@pytest.mark.parametrize(
    ("code", "names", "counts"),
    [(CURRICULUM, ("easy", "hard"), (900, 100)), (IMBALANCED, ("small_important", "large"), (500, 500))],
)
def test_schedules_for_a_purpose_mix(code: str, names: tuple[str, str], counts: tuple[int, int]) -> None:
    made = run(code, WeightScheduler=tl.WeightScheduler, WeightSchedulePoint=tl.WeightSchedulePoint)[
        "scheduler"
    ]
    sources = {name: tl.wrap_hf_dataset(datasets.Dataset.from_list(rows(name, 9))) for name in names}
    mixed = tl.MixedShardedSource(sources, weight_scheduler=made)
    assert sources_of(mixed, 1000) == dict(zip(names, counts, strict=True))
    last = islice(mixed.open_shard_at_row("mixed", 200_000), 1000)
    assert Counter(row["__source__"] for row in last) == dict(zip(names, (100, 900), strict=True))


# --- other ways to put datasets together

COMPOSITE = """
    from tokenlake import CompositeShardedSource, ParquetShardedSource

    source1 = ParquetShardedSource("data1/*.parquet")
    source2 = ParquetShardedSource("data2/*.parquet")

    # Simple concatenation (no mixing)
    combined = CompositeShardedSource([source1, source2])

    # All shards from both sources
    for shard in combined.shard_names:
        for example in combined.open_shard(shard):
            process(example)
"""

LEGACY = """
    from tokenlake import DatasetMixture, TextDatasetInform, build_dataset

    mixture = DatasetMixture(
        informs=[
            TextDatasetInform(
                type="parquet",
                data_files="data1/*.parquet",
                content_field="text",
            ),
            TextDatasetInform(
                type="json",
                data_files="data2/*.json",
                content_field="content",
            ),
        ],
        mixture_weights={"ds1": 0.7, "ds2": 0.3},
        block_mixture=True,
        mixture_block_size=2048,
        streaming=True,
        seed=42,
    )

    dataset = build_dataset(mixture)
"""

CONFIG = """
    from tokenlake import MixStageConfig, WeightSchedulePoint

    config = MixStageConfig(
        weights={"code": 0.3, "text": 0.7},  # Static weights
        weight_schedule=[  # Or dynamic schedule
            WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
            WeightSchedulePoint(step=10000, weights={"code": 0.5, "text": 0.5}),
        ],
        weight_schedule_type="linear",  # "step", "linear", "cosine"
        block_size=1000,
        stop_strategy="restart",
        seed=42,
    )
"""


def test_simple_concatenation() -> None:
    for folder in ("data1", "data2"):
        for part in range(2):
            write(Path(folder, f"{part}.parquet"), rows(f"{folder}.{part}", 3))
    seen: list[Any] = []
    combined = run(COMPOSITE, process=seen.append)["combined"]
    # Both folders have files of the same names: each shard is its own.
    assert [row["text"] for row in seen] == [
        f"{folder}.{part} {n}" for folder in ("data1", "data2") for part in range(2) for n in range(3)
    ]
    assert (len(combined), list(combined)) == (12, seen)
    assert list(combined.open_shard_at_row(combined.shard_names[3], 1)) == seen[10:]


def test_the_older_interface() -> None:
    write(Path("data1/0.parquet"), rows("one", 30))
    write(Path("data2/0.json"), [{"content": f"two {n}"} for n in range(20)])
    dataset = run(LEGACY)["dataset"]
    found = Counter((row["__source__"], row["text"].split()[0]) for row in islice(dataset, 2048))
    assert found == {("ds1", "one"): 1434, ("ds2", "two"): 614}
    assert set(next(iter(dataset))) == {"text", "__source__"}


def test_the_section_mix() -> None:
    config = run(CONFIG)["config"]
    scheduler = tl.WeightScheduler(config.weight_schedule, config.weight_schedule_type)
    assert scheduler.get_weights(5000) == pytest.approx({"code": 0.35, "text": 0.65})
    assert (config.block_size, config.stop_strategy, config.seed) == (1000, "restart", 42)


# --- golden values


def test_the_golden_weights() -> None:
    points = [(0, 0.2), (10000, 0.5), (50000, 0.8)]
    schedule = [{"step": step, "weights": {"code": code, "text": 1 - code}} for step, code in points]
    linear = tl.WeightScheduler(schedule, "linear")
    assert [linear.get_weights(step)["code"] for step in (0, 5000, 10000, 30000)] == pytest.approx(
        [0.2, 0.35, 0.5, 0.65]
    )
    cosine = tl.WeightScheduler(schedule, "cosine")
    assert cosine.get_weights(2500)["code"] == pytest.approx(0.243934, abs=5e-7)
    assert cosine.get_weights(50000)["code"] == cosine.get_weights(10**9)["code"] == 0.8


@pytest.mark.parametrize(("sizes", "total"), [((10, 20), 30), ((1, 1000), 1001)])
def test_all_exhausted_is_every_row_once(sizes: tuple[int, int], total: int) -> None:
    given = {name: rows(name, size) for name, size in zip("ab", sizes, strict=True)}
    mixed = tl.block_mixture_interleave(given, stop="all_exhausted")
    assert len(mixed) == sum(1 for _ in mixed) == len({row["text"] for row in mixed}) == total


def test_a_block_of_one_seed_is_no_block_of_the_next() -> None:
    def names(seed: int, row: int) -> list[str]:
        mixed = tl.block_mixture_interleave({"a": rows("a", 9), "b": rows("b", 9)}, block_size=100, seed=seed)
        return [row["__source__"] for row in islice(mixed.open_shard_at_row("mixed", row), 100)]

    assert names(0, 100) != names(1, 0)
    assert names(0, 0) != names(42, 0)


def test_weights_that_do_not_sum_to_1_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Weights must sum to 1\.0, got 1\.1"):
        tl.block_mixture_interleave({"a": [], "b": []}, {"a": 0.5, "b": 0.6})
