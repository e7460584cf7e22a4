"""Epochs and shares of the data module: another order in each epoch, equal numbers
in each process, long prompts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake.data_pipeline as dp
from tests.lazily import lazily
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import save, sentencepiece
from tokenlake.data_pipeline import DataPipeline
from tokenlake.errors import BadRecordError, ConfigError

torch: Any = lazily("torch")

# Workers are forked from a process where other tests have left threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]

QA = {"template": "Q: {q}\nA: {a}", "input_columns": ["q"], "label_column": "a"}
ROWS = [{"q": f"say {n}", "a": f"{n}"} for n in range(12)]
LONG = {"q": "word " * 60, "a": "two"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save(sentencepiece(), folder)
    return folder


def opened(
    tokenizer: Path, rows: Any = ROWS, *, streaming: bool = True, **loader: Any
) -> DataPipeline:
    config = {
        "type": "data_module",
        "dataset": {"name": "unused", "streaming": streaming},
        "tokenizer": {"name_or_path": str(tokenizer), "max_length": 32},
        "prompt_template": QA,
        "dataloader": {"batch_size": 4, **loader},
    }
    return DataPipeline(config, datasets={"train": rows})


def order(loader: Any) -> list[tuple[int, ...]]:
    return [tuple(row.tolist()) for batch in loader for row in batch["input_ids"]]


def engine(max_length: int = 32) -> dp.PromptEngine:
    return dp.PromptEngine(QA, sentencepiece(), max_length=max_length, padding=False)


@promise(126, 306)
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
)
def test_a_shuffled_stream_has_another_order_in_each_epoch_and_always_the_same_ones(
    tokenizer: Path, workers: dict[str, Any]
) -> None:
    loaders = [
        opened(tokenizer, **workers).get_dataloader(shuffle=True).unwrap()
        for _ in range(2)
    ]
    first, second, third = (order(loaders[0]) for _ in range(3))
    assert first != second != third != first
    assert sorted(first) == sorted(second) == sorted(third)
    # A run that resumes at an epoch says which one; the next epochs follow.
    loaders[1].dataset.set_epoch(1)
    assert [order(loaders[1]), order(loaders[1])] == [second, third]
    loaders[1].dataset.set_epoch(0)
    assert order(loaders[1]) == first


@promise(306)
def test_a_stream_that_is_not_shuffled_has_one_order(tokenizer: Path) -> None:
    loader = opened(tokenizer).get_dataloader().unwrap()
    assert order(loader) == order(loader)


@promise(297, 304)
def test_a_process_of_several_has_another_order_in_each_epoch_too() -> None:
    builder = (
        dp.DataLoaderBuilder()
        .with_dataset(dp.PreprocessedDataset(ROWS, engine()))
        .with_shuffle(seed=1)
        .with_distributed(0, 2)
    )
    loaders = [builder.with_padding(0).build().unwrap() for _ in range(2)]
    first, second, third = (order(loaders[0]) for _ in range(3))
    assert first != second != third
    for epoch, expected in ((1, second), (0, first)):
        loaders[1].sampler.set_epoch(epoch)
        assert order(loaders[1]) == expected
    assert order(loaders[1]) == second


@promise(306, 297)
@given(
    st.integers(0, 40),
    st.integers(1, 5),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([0, 5]),
)
def test_processes_have_equal_numbers_of_batches(
    count: int, world: int, size: int, drops_last: bool, buffer: int
) -> None:
    rows = [{"q": f"say {n}", "a": f"{n}"} for n in range(count)]
    shares: list[list[list[tuple[int, ...]]]] = []
    for rank in range(world):
        options: dict[str, Any] = {
            "rank": rank,
            "world_size": world,
            "drop_last": drops_last,
        }
        dataset = dp.StreamingPreprocessedDataset(
            rows, SHORT, shuffle_buffer=buffer, **options
        )
        builder = dp.DataLoaderBuilder().with_dataset(dataset).with_padding(0)
        loader = builder.with_batch_size(size, drop_last=drops_last).build().unwrap()
        shares.append(
            [[tuple(row.tolist()) for row in batch["labels"]] for batch in loader]
        )
    assert len({len(share) for share in shares}) == 1
    sizes = [[len(batch) for batch in share] for share in shares]
    assert all(each == sizes[0] for each in sizes)
    delivered = [
        tuple(value for value in row if value != -100)
        for share in shares
        for batch in share
        for row in batch
    ]
    if drops_last:
        assert (
            len(set(delivered))
            == len(delivered)
            == count // world // size * size * world
        )
    else:
        assert (
            len(set(delivered)) == count
            and len(delivered) == -(-count // world) * world
        )


SHORT = engine()


@promise(306)
def test_a_row_that_is_skipped_takes_no_batch_from_one_of_several_processes() -> None:
    rows = [LONG, *ROWS[:4], LONG, *ROWS[4:9], LONG]
    for world in (1, 2, 3):
        shares: list[int] = []
        for rank in range(world):
            dataset = dp.StreamingPreprocessedDataset(
                rows, engine(), skip_errors=True, rank=rank, world_size=world
            )
            shares.append(len(list(dataset)))
        assert shares == ([9] if world == 1 else [-(-len(rows) // world)] * world)
    nothing = dp.StreamingPreprocessedDataset(
        [LONG] * 4, engine(), skip_errors=True, world_size=2
    )
    with pytest.raises(
        BadRecordError, match="process 0 of 2: none of its 2 rows can be used"
    ):
        list(nothing)


def learned(pipeline: DataPipeline, loader: Any) -> list[str]:
    rows = [row[row != -100].tolist() for batch in loader for row in batch["labels"]]
    return [
        pipeline.tokenizer.decode(ids).unwrap().replace("</s>", "").strip()
        for ids in rows
    ]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_prompt_that_is_too_long_is_an_error_a_row_less_or_a_shorter_prompt(
    tokenizer: Path, streaming: bool
) -> None:
    rows = [ROWS[0], LONG, ROWS[1]]
    failing = opened(tokenizer, rows, streaming=streaming).get_dataloader().unwrap()
    remedy = (
        r"row 1: no token .*\. dataloader\.long_prompts: skip leaves these rows out"
    )
    with pytest.raises(BadRecordError, match=remedy):
        list(failing)

    told = r"1 (rows of this process )?were left out, because their prompts are longer than"
    with pytest.warns(RuntimeWarning, match=told):
        pipeline = opened(tokenizer, rows, streaming=streaming, long_prompts="skip")
        assert learned(pipeline, pipeline.get_dataloader().unwrap()) == ["0", "1"]

    told = r"1 (rows of this process )?were shortened, because their prompts are longer than"
    with pytest.warns(RuntimeWarning, match=told):
        pipeline = opened(tokenizer, rows, streaming=streaming, long_prompts="shorten")
        assert learned(pipeline, pipeline.get_dataloader().unwrap()) == [
            "0",
            "two",
            "1",
        ]


def test_workers_count_what_they_skip_and_shorten(tokenizer: Path) -> None:
    rows = [*ROWS, LONG, LONG]
    for policy, words, left in (("skip", "left out", 12), ("shorten", "shortened", 14)):
        loader = (
            opened(tokenizer, rows, num_workers=2, long_prompts=policy)
            .get_dataloader()
            .unwrap()
        )
        for total in (2, 4):
            with pytest.warns(
                RuntimeWarning, match=f"2 rows of this process were {words}"
            ):
                assert len(order(loader)) == left
            counts = loader.dataset.skipped, loader.dataset.shortened
            assert counts == ((total, 0) if policy == "skip" else (0, total))


def test_prompts_that_are_cut_by_more_than_is_kept_are_told(tokenizer: Path) -> None:
    rows = [ROWS[0], {"q": "short", "a": "word " * 200}]
    for streaming in (True, False):
        loader = opened(tokenizer, rows, streaming=streaming).get_dataloader().unwrap()
        with pytest.warns(
            RuntimeWarning,
            match=r"prompts: .* 1 of 2 documents are longer than max_length \(32\)",
        ):
            list(loader)


@promise(303)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12))
def test_packed_rows_hold_all_that_is_in_the_rows(words: list[int]) -> None:
    """Laid end to end, packed rows are the examples in their order, with the same
    labels; nothing is cut.
    """
    rows = [{"q": "word " * count, "a": f"answer {count} " * count} for count in words]
    config = {
        "type": "data_module",
        "dataset": {"name": "unused", "stages": ["sft", "packing"]},
        "tokenizer": {"name_or_path": "unused", "max_length": 32},
        "prompt_template": QA,
        "output_schema": dict.fromkeys(
            ("input_ids", "attention_mask", "labels", "position_ids", "segment_ids"),
            "int64",
        ),
    }
    loader = (
        DataPipeline(config, tokenizer=FILES, datasets={"train": rows})
        .get_dataloader()
        .unwrap()
    )
    packed = {
        name: torch.cat([batch[name] for batch in loader])
        for name in config["output_schema"]
    }
    assert packed["input_ids"].shape == (len(loader), 32)
    expected = [engine(1 << 20).process(row).unwrap() for row in rows]
    own = packed["attention_mask"] == 1
    for name in ("input_ids", "labels"):
        assert packed[name][own].tolist() == [
            value for example in expected for value in example[name].tolist()
        ]
    assert (packed["labels"][~own] == -100).all() and (
        packed["segment_ids"][~own] == 0
    ).all()
    # Positions begin again with each segment.
    for segments, positions in zip(
        packed["segment_ids"], packed["position_ids"], strict=True
    ):
        for segment in segments[segments > 0].unique():
            of_segment = positions[segments == segment]
            assert of_segment.tolist() == list(range(len(of_segment)))


FILES = sentencepiece()


def test_packing_that_cannot_be_is_refused(tokenizer: Path) -> None:
    config = opened(tokenizer).config.model_dump(exclude_unset=True)
    for changes, words in (
        (
            {"dataset": {"stages": ["packing"], "streaming": True}},
            "dataset.stages: packing, but streamed rows",
        ),
        (
            {
                "dataset": {"stages": ["packing"], "streaming": False},
                "dataloader": {"long_prompts": "skip"},
            },
            "dataloader.long_prompts: skip, but packing keeps long prompts whole",
        ),
        (
            {"output_schema": {"position_ids": "int64"}},
            "output_schema.position_ids: only packed rows have it",
        ),
    ):
        own = {
            name: {**config.get(name, {}), **values} for name, values in changes.items()
        }
        pipeline = DataPipeline({**config, **own}, datasets={"train": ROWS})
        for result in (pipeline.get_dataset(), pipeline.get_dataloader()):
            error = result.unwrap_err()
            assert isinstance(error, ConfigError) and words in str(error)


def test_processes_share_packed_rows_and_epochs_shuffle_them(tokenizer: Path) -> None:
    config = opened(tokenizer, streaming=False).config.model_dump(exclude_unset=True)
    config["dataset"]["stages"] = ["packing"]
    pipeline = DataPipeline(config, datasets={"train": ROWS})
    whole = order(pipeline.get_dataloader().unwrap())
    assert len(whole) < len(ROWS)
    shuffled = pipeline.get_dataloader(shuffle=True).unwrap()
    first, second = order(shuffled), order(shuffled)
    assert sorted(first) == sorted(second) == sorted(whole) and first != second
