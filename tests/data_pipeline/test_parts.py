"""What a data pipeline is put together of: collate functions, datasets, the builder,
the tokenizer, names.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake.data_pipeline as dp
from tests.lazily import lazily
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import save, sentencepiece
from tokenlake import errors
from tokenlake.errors import BadRecordError, ConfigError

torch: Any = lazily("torch")


QA = {"template": "Q: {q}\nA: {a}", "label_column": "a"}
ROWS = [{"q": f"what {n}", "a": f"answer {n}"} for n in range(7)]
examples = st.lists(
    st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=5
)


def engine() -> dp.PromptEngine:
    return dp.PromptEngine(QA, sentencepiece(), max_length=32, padding=False)


def width(rows: Sequence[Sequence[int]], multiple: int) -> int:
    return -(-max(map(len, rows)) // multiple) * multiple


@promise(122, 307)
@given(examples, st.sampled_from(["left", "right"]), st.integers(1, 8))
def test_a_batch_is_its_examples_between_padding(
    rows: list[list[int]], side: Any, multiple: int
) -> None:
    collate = dp.create_causal_lm_collate(
        7, padding_side=side, pad_to_multiple_of=multiple
    )
    batch = collate([{"input_ids": row} for row in rows])
    size = width(rows, multiple)
    for at, row in enumerate(rows):
        gap = size - len(row)
        before, after = (gap, 0) if side == "left" else (0, gap)
        assert batch["input_ids"][at].tolist() == [7] * before + row + [7] * after
        assert batch["labels"][at].tolist() == [-100] * before + row + [-100] * after
        assert (
            batch["attention_mask"][at].tolist()
            == [0] * before + [1] * len(row) + [0] * after
        )
    assert {values.dtype for values in batch.values()} == {torch.int64}


@promise(307)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 3)
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["left", "right"]),
    st.booleans(),
)
def test_padding_bears_no_loss_also_where_it_came_with_the_examples(
    rows: list[tuple[list[int], int]], side: Any, has_labels: bool
) -> None:
    """The id that pads also ends texts: only the mask tells one from the other."""
    eos = 7
    examples: list[dict[str, Any]] = []
    for ids, padding in rows:
        own = [*ids, eos]
        example = {
            "input_ids": own + [eos] * padding,
            "attention_mask": [1] * len(own) + [0] * padding,
        }
        if has_labels:
            example["labels"] = list(example["input_ids"])
        examples.append(example)
    batch = dp.create_causal_lm_collate(eos, padding_side=side)(examples)
    for at, (ids, _) in enumerate(rows):
        labels = batch["labels"][at]
        assert labels[labels != -100].tolist() == [*ids, eos]
        assert ((labels != -100) == batch["attention_mask"][at].bool()).all()
    arrays = [
        {name: torch.tensor(values) for name, values in example.items()}
        for example in examples
    ]
    again = dp.create_causal_lm_collate(eos, padding_side=side)(arrays)
    assert all(torch.equal(batch[name], again[name]) for name in batch)


@promise(307)
def test_labels_that_are_there_are_kept_and_those_of_a_decoder_have_their_own_length() -> (
    None
):
    rows = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [4], "labels": [-100]},
    ]
    assert dp.create_causal_lm_collate(0)(rows)["labels"].tolist() == [
        [-100, 2, 3],
        [-100, -100, -100],
    ]
    pairs = [
        {"input_ids": [1, 2, 3], "labels": [9]},
        {"input_ids": [4], "labels": [8, 7]},
    ]
    made = dp.create_seq2seq_collate(0)(pairs)
    assert made["labels"].tolist() == [[9, -100], [8, 7]]
    assert made["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0]]
    fixed = dp.create_seq2seq_collate(
        0, padding="max_length", max_length=4, max_target_length=3
    )(pairs)
    assert (fixed["input_ids"].shape, fixed["labels"].shape) == ((2, 4), (2, 3))


@promise(307)
def test_a_collate_function_fills_to_a_length_by_the_tokenizers_padding_and_refuses_what_is_longer() -> (
    None
):
    collate = pickle.loads(
        pickle.dumps(
            dp.create_collate_fn(sentencepiece(), padding="max_length", max_length=4)
        )
    )
    assert collate([{"input_ids": [1, 5]}])["input_ids"].tolist() == [[1, 5, 2, 2]]
    with pytest.raises(
        BadRecordError,
        match="example 1 of the batch: 'input_ids' has 5 values, at most 4",
    ):
        collate([{"input_ids": [1]}, {"input_ids": [1] * 5}])
    with pytest.raises(ConfigError, match="max_length: missing"):
        dp.create_collate_fn(0, padding="max_length")


@promise(124, 306)
def test_a_map_style_dataset_is_its_rows_by_number_and_says_which_is_bad() -> None:
    made = dp.PreprocessedDataset([*ROWS, {"q": "x"}], engine())
    assert len(made) == 8
    again = pickle.loads(pickle.dumps(made))
    assert (
        again[3].labels.tolist() == engine().process(ROWS[3]).unwrap().labels.tolist()
    )
    with pytest.raises(BadRecordError, match="row 7: there is no column 'a'") as caught:
        made[7]
    assert caught.value.details["row"] == 7


@promise(124, 306)
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("buffer", [0, 3])
def test_processes_share_a_stream_and_bad_rows_may_be_skipped(
    world: int, buffer: int
) -> None:
    rows = [*ROWS[:3], {"q": "bad"}, *ROWS[3:]]
    parts = [
        dp.StreamingPreprocessedDataset(
            rows,
            engine(),
            skip_errors=True,
            shuffle_buffer=buffer,
            rank=rank,
            world_size=world,
        )
        for rank in range(world)
    ]
    shares = [[tuple(each.input_ids.tolist()) for each in part] for part in parts]
    found = [row for share in shares for row in share]
    assert set(found) == {
        tuple(engine().process(row).unwrap().input_ids.tolist()) for row in ROWS
    }
    # Alone each row comes once; several have as many, by repeating some.
    assert {len(share) for share in shares} == {
        7 if world == 1 else -(-len(rows) // world)
    }
    assert sum(part.skipped for part in parts) == 1
    with pytest.raises(BadRecordError, match="row 3: there is no column 'a'"):
        list(dp.StreamingPreprocessedDataset(rows, engine()))


def test_a_stream_has_another_order_in_each_epoch() -> None:
    made = dp.StreamingPreprocessedDataset(ROWS, engine(), shuffle_buffer=4)
    first, again = ([each.input_ids.tolist() for each in made] for _ in range(2))
    made.set_epoch(1)
    assert first == again != [each.input_ids.tolist() for each in made]
    with pytest.raises(ConfigError, match="rank: got 2 of 2"):
        dp.StreamingPreprocessedDataset(ROWS, engine(), rank=2, world_size=2)


@promise(123, 304)
def test_a_builder_makes_a_loader_option_by_option() -> None:
    start = dp.DataLoaderBuilder()
    builder = (
        start.with_dataset(dp.PreprocessedDataset(ROWS, engine()))
        .with_batch_size(3, drop_last=True)
        .with_padding(sentencepiece(), padding="max_length", max_length=32)
        .with_shuffle(seed=5)
    )
    first, again = (
        [each["input_ids"].tolist() for each in builder.build().unwrap()]
        for _ in range(2)
    )
    assert first == again
    assert [len(batch) for batch in first] == [3, 3]
    parts = [
        builder.with_distributed(rank, 2).with_batch_size(2).build().unwrap()
        for rank in range(2)
    ]
    shares = [
        {tuple(row.tolist()) for each in part for row in each["input_ids"]}
        for part in parts
    ]
    assert len(shares[0] | shares[1]) == 7
    assert "with_dataset" in str(start.build().unwrap_err())


@promise(304)
def test_what_pytorch_would_refuse_is_an_error_as_a_result() -> None:
    builder = dp.DataLoaderBuilder().with_dataset(
        dp.PreprocessedDataset(ROWS, engine())
    )
    assert isinstance(
        builder.with_workers(0, persistent=True).build().unwrap_err(), ConfigError
    )
    stream = dp.DataLoaderBuilder().with_dataset(
        dp.StreamingPreprocessedDataset(ROWS, engine())
    )
    assert "shuffle_buffer" in str(stream.with_shuffle().build().unwrap_err())


@promise(313)
def test_a_tokenizer_has_an_id_to_pad_with_and_answers_with_results(
    tmp_path: Path,
) -> None:
    folder = save(sentencepiece(), tmp_path)
    made = dp.TokenizerWrapper.from_pretrained(folder).unwrap()
    assert (made.pad_token_id, made.bos_token_id, made.eos_token_id) == (2, 1, 2)
    assert len(made) == made.vocab_size == sentencepiece().vocab_size
    ids = made.encode("def one").unwrap()
    assert ids[0] == 1 and "def one" in made.decode(ids).unwrap()
    other = dp.TokenizerWrapper.from_pretrained(
        folder, special_tokens={"pad_token": "<unk>"}, padding="longest"
    )
    assert other.unwrap().pad_token_id == 0
    assert {
        len(row) for row in other.unwrap().encode_batch(["a", "a longer text"]).unwrap()
    } == {len(other.unwrap().encode("a longer text").unwrap())}
    assert isinstance(
        dp.TokenizerWrapper.from_pretrained("/no/where").unwrap_err(),
        errors.TokenlakeError,
    )
    assert dp.TokenizerWrapper.from_pretrained(folder, nonsense=1).is_err()


@promise(110)
def test_every_error_of_the_second_system_is_one_of_the_tree() -> None:
    names = {
        "PipelineError": errors.TokenlakeError,
        "ConfigurationError": errors.ConfigError,
        "IntrospectionError": errors.SourceError,
        "DataLoadingError": errors.SourceError,
        "TokenizationError": errors.TokenizerError,
    }
    assert {name: getattr(dp, name) for name in names} == names
    failed = dp.DataPipeline.from_config({"dataset": {}, "tokenizer": "t"}).unwrap_err()
    assert isinstance(failed, dp.PipelineError) and isinstance(
        failed, dp.ConfigurationError
    )


@promise(105)
def test_every_name_of_the_package_is_there() -> None:
    assert all(callable(getattr(dp, name)) for name in dp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dp.nonsense  # noqa: B018
