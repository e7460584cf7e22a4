"""The stages of a pipeline: what each makes of the sources, in which order, and that
none reads before its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import (
    Counted,
    llama,
    prefetching_threads,
    require_no_threads,
    texts,
    write_jsonl,
    written,
)
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake import load_config
from tokenlake.easydel import BaseStage, PipelineContext
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.etl.export import FlatManifest
from tokenlake.etl.tokenizers import describe
from tokenlake.rowwise import ShardedDataSource

# Many of these cut documents to a few tokens, which is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*more than were kept:RuntimeWarning")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(sentencepiece(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(byte_level(), tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_jsonl(folder / "a" / "1.jsonl", texts(30))
    write_jsonl(folder / "a" / "2.jsonl", texts(10, "more"))
    write_jsonl(folder / "b" / "1.jsonl", texts(25, "other"))
    return folder


@pytest.fixture
def one(files: Path, tokenizer: str) -> dict[str, Any]:
    return {
        "datasets": [{"name": "a", "data_files": str(files / "a" / "*.jsonl")}],
        "default_tokenizer": tokenizer,
    }


@pytest.fixture
def two(files: Path, one: dict[str, Any]) -> dict[str, Any]:
    return one | {
        "datasets": [*one["datasets"], {"name": "b", "data_files": str(files / "b")}]
    }


def pipeline(config: dict[str, Any], **more: Any) -> tl.Pipeline:
    return tl.Pipeline.from_config(config | more)


def ids_of(rows: Any) -> list[list[int]]:
    return [np.asarray(row["input_ids"]).tolist() for row in rows]


def expected_ids(rows: list[dict[str, Any]]) -> list[list[int]]:
    return tl.TokenizerManager().tokenize_batch(llama(), [row["text"] for row in rows])[
        "input_ids"
    ]


class Wrap(BaseStage):
    """A stage of the user's own: counts the rows that are drawn through it."""

    @property
    def name(self) -> str:
        return "wrap"

    def process(
        self, data: dict[str, ShardedDataSource], context: PipelineContext
    ) -> dict[str, ShardedDataSource]:
        self.seed = context.seed
        self.counted = {name: Counted(source) for name, source in data.items()}
        return dict(self.counted)


# Order of stages


def test_source_comes_first(one: dict[str, Any]):
    for call in ("tokenize", "mix", "pack", "save", "load", "build"):
        with pytest.raises(
            RuntimeError, match=r"^Call source\(\) before other pipeline stages$"
        ):
            getattr(pipeline(one), call)()
    with pytest.raises(RuntimeError, match=r"Call source\(\) before"):
        pipeline(one).stage(Wrap())


@promise(97)
def test_source_comes_once(one: dict[str, Any]):
    with pytest.raises(RuntimeError, match=r"^source\(\) has already been called$"):
        pipeline(one).source().source()


@pytest.mark.parametrize("stage", ["tokenize", "mix", "pack", "save", "load"])
def test_every_stage_comes_once(one: dict[str, Any], stage: str, tmp_path: Path):
    made = pipeline(one, save={"output_dir": str(tmp_path / "out")}).source()
    if stage == "pack":
        made.tokenize()
    getattr(made, stage)()
    with pytest.raises(RuntimeError, match=r"already been called|cannot come after"):
        getattr(made, stage)()


@pytest.mark.parametrize(
    ("before", "stage"),
    [
        (["tokenize", "load"], "pack"),
        (["mix"], "tokenize"),
        (["load"], "save"),
        (["load"], "tokenize"),
    ],
)
def test_stages_go_in_their_order(one: dict[str, Any], before: list[str], stage: str):
    made = pipeline(one).source()
    for name in before:
        getattr(made, name)()
    stages, data = made.get_stages(), made.get_data()
    with pytest.raises(
        RuntimeError, match=rf"{stage}\(\) cannot come after {before[-1]}\(\)"
    ):
        getattr(made, stage)()
    assert (made.get_stages(), made.get_data()) == (stages, data)


def test_every_stage_returns_the_pipeline_and_is_remembered(
    two: dict[str, Any], tmp_path: Path
):
    made = pipeline(
        two, save={"output_dir": str(tmp_path / "out")}, mix={"total_rows": 10}
    )
    assert made.get_stages() == []
    assert made.source().tokenize().stage(Wrap()).mix().pack().save().load() is made
    assert made.get_stages() == [
        "source",
        "tokenize",
        "wrap",
        "mix",
        "pack",
        "save",
        "load",
    ]


# Configuration


@promise(103, 167)
def test_a_configuration_is_a_model_a_mapping_or_a_file(
    one: dict[str, Any], tmp_path: Path
):
    path = tmp_path / "pipe.yaml"
    dataset = one["datasets"][0]
    path.write_text(
        f"default_tokenizer: {one['default_tokenizer']}\nseed: 3\n"
        f"datasets:\n- name: a\n  data_files: {dataset['data_files']}\ntokenize: {{max_length: 5}}\n"
    )
    more = {"seed": 3, "tokenize": {"max_length": 5}}
    configs = [
        tl.PipelineConfig.model_validate(one | more),
        one | more,
        path,
        str(path),
    ]
    results = [
        ids_of(tl.Pipeline.from_config(config).source().tokenize().build())
        for config in configs
    ]
    assert results[0] == results[1] == results[2] == results[3]
    assert max(map(len, results[0])) == 5
    assert {
        tl.Pipeline.from_config(config).get_context().seed for config in configs
    } == {3}


@promise(51)
@pytest.mark.parametrize("as_mapping", [True, False])
def test_a_stages_configuration_goes_in_the_place_of_the_pipelines_own(
    one: dict[str, Any], as_mapping: bool
):
    given = {"max_length": 4} if as_mapping else tl.TokenizeStageConfig(max_length=4)
    made = pipeline(one, tokenize={"max_length": 9}).source().tokenize(given)
    assert max(map(len, ids_of(made.build()))) == 4
    assert made.get_context().config.tokenize.max_length == 4


def test_a_wrong_stage_configuration_changes_nothing(one: dict[str, Any]):
    made = pipeline(one).source()
    before = made.get_context().config
    with pytest.raises(ConfigError, match="tokenize: max_lenght"):
        made.tokenize({"max_lenght": 4})
    with pytest.raises(
        ConfigError, match="tokenize: got a int, must be a TokenizeStageConfig"
    ):
        made.tokenize(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="unknown dataset: q"):
        made.mix({"weights": {"q": 1.0}})
    assert made.get_stages() == ["source"]
    assert made.get_context().config is before


@pytest.mark.parametrize(
    ("key", "options", "call"),
    [
        ("ray.enabled", {"ray": {"enabled": True}}, "source"),
        (
            "source.splits",
            {"source": {"splits": {"train": 0.5, "test": 0.5}}},
            "source",
        ),
        ("mix.lanes", {"mix": {"lanes": 8}}, "mix"),
        ("mix.epochs", {"mix": {"epochs": 1.0}}, "mix"),
    ],
)
def test_an_option_that_does_not_act_is_an_error_that_says_so(
    one: dict[str, Any], key: str, options: dict[str, Any], call: str
):
    made = pipeline(one, **options)
    with pytest.raises(
        NotAvailableError,
        match=rf"{key}: .* is not available in the row-by-row API; instead: ",
    ):
        getattr(made if call == "source" else made.source(), call)()


# source


def test_the_policy_of_the_section_source_acts(one: dict[str, Any], tmp_path: Path):
    path = write_jsonl(tmp_path / "bad.jsonl", texts(3))
    path.write_text(path.read_text() + "{no json\n" + '{"text": "' + "x" * 500 + '"}\n')
    dataset = {"data_files": str(path)}
    with pytest.raises(tl.TokenlakeError):
        list(pipeline(one, datasets=[dataset]).source().build())
    made = pipeline(one, datasets=[dataset]).source(
        {"on_bad_record": "quarantine", "max_record_bytes": 400}
    )
    assert len(list(made.build())) == 3


@promise(28)
def test_callback_renames_and_limits_act_before_tokens(one: dict[str, Any]):
    dataset = one["datasets"][0] | {
        "num_rows": 4,
        "format_callback": lambda row: {
            "body": row["text"].upper(),
            "number": row["id"],
        },
        "format_fields": {"body": "text"},
        "additional_fields": ["number"],
    }
    rows = list(pipeline(one, datasets=[dataset]).source().tokenize().build())
    assert ids_of(rows) == expected_ids(
        [{"text": row["text"].upper()} for row in texts(4)]
    )
    assert [row["number"] for row in rows] == [0, 1, 2, 3]


# tokenize


@promise(4, 92)
def test_rows_are_those_of_the_tokenized_source(one: dict[str, Any]):
    made = pipeline(one).source().tokenize()
    assert isinstance(made.get_data()["a"], tl.TokenizedShardedSource)
    rows = list(made.build())
    assert ids_of(rows) == expected_ids(texts(30) + texts(10, "more"))
    assert rows[0]["input_ids"].dtype == np.int32
    assert set(rows[0]) == {"input_ids", "attention_mask"}


@promise(14, 45)
def test_the_datasets_tokenizer_goes_before_the_stages_and_that_before_the_pipelines(
    two: dict[str, Any], tokenizer: str, another: str
):
    datasets = [two["datasets"][0] | {"tokenizer": another}, two["datasets"][1]]

    def chosen(**more: Any) -> list[str]:
        made = pipeline(two, **more).source().tokenize()
        return [
            chosen.config.name_or_path
            for chosen in made.get_context().tokenizers.values()
        ]

    assert chosen() == [tokenizer, tokenizer]
    assert chosen(datasets=datasets) == [another, tokenizer]
    assert chosen(tokenize={"default_tokenizer": another}) == [another, another]
    assert chosen(datasets=datasets, tokenize={"default_tokenizer": tokenizer}) == [
        another,
        tokenizer,
    ]


def test_the_stages_max_length_applies_unless_the_dataset_sets_its_own(
    two: dict[str, Any], tokenizer: str
):
    own = {"name_or_path": tokenizer, "max_length": 3}
    datasets = [
        two["datasets"][0] | {"tokenizer": own},
        two["datasets"][1] | {"tokenizer": tokenizer},
    ]
    made = (
        pipeline(two, datasets=datasets, tokenize={"max_length": 5})
        .source()
        .tokenize()
        .get_data()
    )
    assert {name: max(map(len, ids_of(source))) for name, source in made.items()} == {
        "a": 3,
        "b": 5,
    }


# truncation and packing


def lengths_of(rows: Any) -> set[int]:
    return {len(row["input_ids"]) for row in rows}


def test_nothing_is_cut_where_packing_follows_also_if_that_is_said_later(
    one: dict[str, Any],
):
    short = {"max_length": 4}
    made = pipeline(one, tokenize=short).source().tokenize()
    tokenized = made.get_data()["a"]
    assert lengths_of(tokenized) == {4}
    rows = list(made.pack({"seq_length": 16}).build())
    assert max(lengths_of(tokenized)) > 4
    content = sum(int((row["segment_ids"] > 0).sum()) for row in rows)
    whole = expected_ids(texts(30) + texts(10, "more"))
    assert content == sum(len(ids) + 1 for ids in whole)
    announced = (
        pipeline(one, tokenize=short, pack={"enabled": True}).source().tokenize()
    )
    assert max(lengths_of(announced.build())) > 4


def test_an_explicit_truncation_cuts_before_packing(
    one: dict[str, Any], tokenizer: str
):
    cut = {"name_or_path": tokenizer, "truncation": True, "max_length": 4}
    rows = (
        pipeline(one, default_tokenizer=cut)
        .source()
        .tokenize()
        .pack({"seq_length": 5})
        .build()
    )
    # Four tokens and EOS, forty times.
    assert all(set(row["segment_ids"]) == {1} for row in rows)


@promise(59)
def test_a_pack_section_that_says_no_leaves_rows_as_they_are(one: dict[str, Any]):
    made = (
        pipeline(one, tokenize={"max_length": 4})
        .source()
        .tokenize()
        .pack({"enabled": False})
    )
    assert lengths_of(made.build()) == {4}


def test_kept_fields_cannot_be_packed(one: dict[str, Any]):
    dataset = one["datasets"][0] | {"additional_fields": ["id"]}
    with pytest.raises(ConfigError, match="'id' cannot be kept beside packed rows"):
        pipeline(one, datasets=[dataset]).source().tokenize().pack()


# mix


def test_a_schedule_moves_the_weights(two: dict[str, Any]):
    schedule = [
        {"step": 0, "weights": {"a": 1.0, "b": 0.0}},
        {"step": 100, "weights": {"a": 0.0, "b": 1.0}},
    ]

    def names(**more: Any) -> list[str]:
        made = (
            pipeline(two)
            .source()
            .mix({"weight_schedule": schedule, "block_size": 10, **more})
        )
        return [row["__source__"] for row in islice(made.build(), 400)]

    assert names(step_rows=1) == ["a"] * 100 + ["b"] * 300
    assert names(step_rows=2) == ["a"] * 200 + ["b"] * 200
    assert (
        names(batch_size=3, lanes=None) == ["a"] * 300 + ["b"] * 100
    )  # a step is a batch, where nobody says more


@promise(53)
def test_a_step_of_a_schedule_is_a_training_step_where_loading_follows(
    two: dict[str, Any],
):
    schedule = [
        {"step": 0, "weights": {"a": 1.0, "b": 0.0}},
        {"step": 10, "weights": {"a": 0.0, "b": 1.0}},
    ]

    def names(load: dict[str, Any], **mix: Any) -> list[set[str]]:
        made = pipeline(two, load={"batch_size": 4})
        made = (
            made.source()
            .mix({"weight_schedule": schedule, "block_size": 2, **mix})
            .load(load or None)
        )
        return [set(batch["__source__"]) for batch in islice(made.build(), 20)]

    assert names({"batch_size": 8}) == [{"a"}] * 10 + [{"b"}] * 10
    assert names({}) == [{"a"}] * 10 + [{"b"}] * 10
    assert names({"batch_size": 8}, step_rows=4) == [{"a"}] * 5 + [{"b"}] * 15
    packed = (
        pipeline(two)
        .source()
        .tokenize()
        .mix({"weight_schedule": schedule})
        .pack({"seq_length": 16})
    )
    with pytest.raises(
        ConfigError,
        match=r"mix.step_rows: missing. Documents are packed after .* call pack\(\) before mix\(\)",
    ):
        packed.load({"batch_size": 8})
    mix = {"weight_schedule": schedule, "block_size": 2}
    packed = (
        pipeline(two)
        .source()
        .tokenize()
        .pack({"seq_length": 16})
        .mix(mix)
        .load({"batch_size": 8})
    )
    names_of = [set(batch["__source__"]) for batch in islice(packed.build(), 20)]
    assert names_of == [{"a"}] * 10 + [{"b"}] * 10


@promise(10)
def test_packed_rows_of_each_dataset_are_mixed(two: dict[str, Any]):
    made = pipeline(two).source().tokenize().pack({"seq_length": 16})
    own = {name: ids_of(source) for name, source in made.get_data().items()}
    rows = list(made.mix({"stop_strategy": "all_exhausted", "block_size": 4}).build())
    assert made.get_stages() == ["source", "tokenize", "pack", "mix"]
    for name, expected in own.items():
        assert ids_of(row for row in rows if row["__source__"] == name) == expected


@promise(11)
def test_rows_that_hold_ids_are_mixed_packed_and_loaded_without_a_tokenizer(
    tmp_path: Path,
):
    for name, first in (("a", 10), ("b", 50)):
        write_jsonl(
            tmp_path / f"{name}.jsonl",
            [{"input_ids": [first + n] * 3} for n in range(8)],
        )
    datasets = [
        {"name": name, "data_files": str(tmp_path / f"{name}.jsonl")} for name in "ab"
    ]
    config = {
        "datasets": datasets,
        "mix": {"stop_strategy": "all_exhausted"},
        "load": {"batch_size": 2},
    }
    pack = {"seq_length": 8, "eos_token_id": 1, "pad_token_id": 0}
    for stages in (("pack",), ("mix", "pack"), ("pack", "mix")):
        made = pipeline(config, pack=pack).source()
        for stage in stages:
            getattr(made, stage)()
        batches = list(made.load().build())
        assert {batch["input_ids"].shape for batch in batches} == {(2, 8)}
        found = sorted(
            int(one)
            for batch in batches
            for one in batch["input_ids"].flatten()
            if one > 1
        )
        assert found == sorted(
            [10 + n for n in range(8)] * 3 + [50 + n for n in range(8)] * 3
        )
    with pytest.raises(
        ConfigError, match=r"pack\.eos_token_id: missing.*or name the tokenizer"
    ):
        pipeline(config, pack={"seq_length": 8}).source().pack()


@promise(11)
def test_rows_that_hold_ids_end_with_the_eos_of_the_tokenizer_that_is_named(
    tmp_path: Path, tokenizer: str
):
    write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [5, 6]}])
    config = {
        "datasets": [{"data_files": str(tmp_path / "a.jsonl")}],
        "default_tokenizer": tokenizer,
    }
    (row,) = pipeline(config).source().pack({"seq_length": 3}).build()
    assert row["input_ids"].tolist() == [
        5,
        6,
        tl.TokenizerManager().get_tokenizer(tokenizer).files.eos_id,
    ]


@promise(66)
def test_packed_rows_say_what_is_padding(one: dict[str, Any]):
    rows = list(pipeline(one).source().tokenize().pack({"seq_length": 64}).build())
    for row in rows:
        assert (
            row["attention_mask"].tolist()
            == (row["segment_ids"] > 0).astype(int).tolist()
        )
    assert rows[-1]["attention_mask"][-1] == 0  # the last row is not full
    (batch, *_) = (
        pipeline(one, load={"batch_size": 1})
        .source()
        .tokenize()
        .pack({"seq_length": 64})
        .load()
        .build()
    )
    assert batch["attention_mask"].shape == (1, 64)


@promise(99, 100)
def test_every_stage_says_how_much_came_out_of_it(one: dict[str, Any]):
    made = pipeline(one, load={"batch_size": 3, "drop_last": False})
    made.source().tokenize().stage(Wrap()).load()
    batches = list(made.build())
    rows = list(pipeline(one).source().tokenize().build())
    figures = made.get_context().get_metrics()
    assert list(figures) == ["source", "tokenize", "wrap", "load"]
    assert [figures[name]["rows"] for name in ("source", "tokenize", "load")] == [
        len(rows)
    ] * 3
    assert figures["tokenize"]["tokens"] == sum(len(row["input_ids"]) for row in rows)
    assert figures["load"]["tokens"] == sum(
        batch["input_ids"].size for batch in batches
    )
    assert 0 < figures["source"]["seconds"] <= figures["tokenize"]["seconds"]


@promise(99)
def test_a_stage_of_ones_own_checks_its_configuration_and_has_figures(
    one: dict[str, Any],
):
    class Own(BaseStage):
        name = "own"  # pyright: ignore[reportAssignmentType]

        def process(self, data: Any, context: Any) -> Any:
            self._update_metric("sources", len(data))
            return data

        def validate_config(self, config: Any) -> bool:
            return config != "wrong"

    with pytest.raises(
        ConfigError,
        match="stage 'own': validate_config refused its configuration, 'wrong'",
    ):
        pipeline(one).source().stage(Own("wrong"))
    stage = Own("right")
    made = pipeline(one).source().stage(stage)
    assert (
        stage.get_metrics()["sources"]
        == 1
        == made.get_context().get_metrics()["own"]["sources"]
    )


@promise(100)
def test_a_context_keeps_tokenizers_steps_and_figures(
    one: dict[str, Any], tokenizer: str
):
    context = pipeline(one).source().get_context()
    assert context.get_tokenizer(tokenizer) is context.get_tokenizer(tokenizer)
    context.update_step(7)
    context.update_epoch(2)
    assert (context.step, context.epoch) == (7, 2)
    context.record_metric("train", "loss", 1.5)
    context.record_metric("source", "files", 1)
    assert context.get_metrics()["train"] == {"loss": 1.5}
    assert context.get_metrics()["source"]["files"] == 1


@promise(16, 57)
def test_the_seed_of_a_mixture_is_its_own_or_the_pipelines(two: dict[str, Any]):
    def order(of_all: int, **mix: Any) -> list[str]:
        made = pipeline(two, seed=of_all).source().mix({"block_size": 50, **mix})
        return [row["__source__"] for row in islice(made.build(), 50)]

    assert order(1) == order(1) != order(2)
    assert order(1, seed=0) == order(2, seed=0)


@promise(56)
def test_a_mixture_ends_as_its_strategy_says(two: dict[str, Any]):
    rows = list(pipeline(two).source().mix({"stop_strategy": "all_exhausted"}).build())
    assert len(rows) == 65
    assert len(list(pipeline(two).source().mix({"total_rows": 100}).build())) == 100


def test_a_mixture_can_end_after_so_many_tokens(two: dict[str, Any]):
    rows = list(pipeline(two).source().tokenize().mix({"total_tokens": 1000}).build())
    total = sum(len(row["input_ids"]) for row in rows)
    assert total >= 1000 > total - len(rows[-1]["input_ids"])
    with pytest.raises(tl.TokenlakeError, match="has no input_ids"):
        list(pipeline(two).source().mix({"total_tokens": 1000}).build())


@promise(5)
def test_a_single_dataset_is_mixed_only_where_something_is_asked(one: dict[str, Any]):
    assert list(pipeline(one).source().mix().get_data()) == ["a"]
    assert list(pipeline(one).source().mix({"block_size": 7}).get_data()) == ["mixed"]


def test_different_tokenizers_cannot_be_mixed(two: dict[str, Any], another: str):
    datasets = [two["datasets"][0] | {"tokenizer": another}, two["datasets"][1]]
    made = pipeline(two, datasets=datasets).source().tokenize()
    with pytest.raises(
        ConfigError, match=r"mix: 'a' and 'b' are tokenized by two tokenizers"
    ):
        made.mix()
    assert made.get_stages() == ["source", "tokenize"]


# save


@promise(7)
def test_rows_are_saved_once_and_read_back(one: dict[str, Any], tmp_path: Path):
    counting = Wrap()
    made = (
        pipeline(one, save={"output_dir": str(tmp_path / "out")})
        .source()
        .stage(counting)
        .tokenize()
        .save()
    )
    assert not (tmp_path / "out").exists()
    batches = made.load({"batch_size": 4}).build()
    assert counting.counted["a"].drawn == 40
    assert (tmp_path / "out" / "_tokenlake" / "manifest.json").is_file()
    first = [batch["input_ids"].shape for batch in batches]
    assert len(first) == 10
    assert sum(1 for _ in made.build()) == 10
    assert counting.counted["a"].drawn == 40


@promise(35)
def test_every_dataset_has_a_directory_of_its_own(two: dict[str, Any], tmp_path: Path):
    datasets = [
        two["datasets"][0],
        two["datasets"][1]
        | {"save_path": str(tmp_path / "own"), "save_format": "jsonl"},
    ]
    save = {"output_dir": str(tmp_path / "out"), "compression": "lz4"}
    pipeline(two, datasets=datasets, save=save).source().tokenize().save().build()
    assert [path.name for path in (tmp_path / "out" / "a").glob("*.parquet")] == [
        "train-00000-of-00001.parquet"
    ]
    assert [path.name for path in (tmp_path / "own").glob("*.jsonl")] == [
        "train-00000-of-00001.jsonl"
    ]


def test_a_target_that_is_not_empty_is_refused_and_stays(
    one: dict[str, Any], tmp_path: Path
):
    target = tmp_path / "out"
    made = pipeline(one, save={"output_dir": str(target)}).source().save()
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        made.build()  # it was filled meanwhile
    with pytest.raises(ConfigError, match="is not empty"):
        pipeline(one, save={"output_dir": str(target)}).source().save()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in target.iterdir()] == ["mine.txt"]
    pipeline(
        one, save={"output_dir": str(target), "overwrite": True}
    ).source().save().build()
    assert (target / "mine.txt").read_text() == "mine"
    assert list(target.glob("*.parquet"))


def test_an_error_while_saving_leaves_nothing_and_can_be_mended(
    one: dict[str, Any], tmp_path: Path
):
    calls = 0

    def callback(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise OSError("gone")
        return row

    dataset = one["datasets"][0] | {"format_callback": callback}
    made = (
        pipeline(one, datasets=[dataset], save={"output_dir": str(tmp_path / "out")})
        .source()
        .save()
    )
    with pytest.raises(OSError, match="gone"):
        made.build()
    assert list(tmp_path.iterdir()) == []
    assert len(list(made.build())) == 40


def test_an_input_is_not_replaced(one: dict[str, Any], tmp_path: Path):
    path = write_jsonl(tmp_path / "data" / "rows.jsonl", texts(3))
    save = {"output_dir": str(tmp_path / "data"), "overwrite": True}
    with pytest.raises(ConfigError, match="holds the input"):
        pipeline(one, datasets=[{"data_files": str(path)}], save=save).source().save()
    assert path.exists()


def test_what_never_ends_cannot_be_saved(two: dict[str, Any], tmp_path: Path):
    save = {"output_dir": str(tmp_path / "out")}
    made = pipeline(two, save=save).source().tokenize().mix()
    with pytest.raises(ConfigError, match="'mixed' never ends"):
        made.save()
    made.pack({"seq_length": 8})
    with pytest.raises(ConfigError, match="'mixed' never ends"):
        made.save()
    pipeline(two, save=save).source().tokenize().mix({"total_rows": 30}).save().build()
    assert list((tmp_path / "out").glob("*.parquet"))


def test_a_dataset_that_was_mixed_cannot_be_saved_in_its_own_way(
    two: dict[str, Any], tmp_path: Path
):
    datasets = [
        two["datasets"][0] | {"save_path": str(tmp_path / "x")},
        two["datasets"][1],
    ]
    made = pipeline(two, datasets=datasets, mix={"total_rows": 9}).source().mix()
    with pytest.raises(
        ConfigError,
        match=r"datasets\.a\.save_path: set, but the saved rows are 'mixed'",
    ):
        made.save()


def test_rows_can_be_saved_before_they_are_mixed(two: dict[str, Any], tmp_path: Path):
    made = (
        pipeline(two, save={"output_dir": str(tmp_path / "out")})
        .source()
        .tokenize()
        .save()
    )
    rows = list(islice(made.mix({"block_size": 10}).build(), 200))
    assert {row["__source__"] for row in rows} == {"a", "b"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a", "b"}


# load and build


@promise(84, 86, 87)
def test_the_options_of_load_act(one: dict[str, Any]):
    def batches(**load: Any) -> list[list[int]]:
        made = pipeline(one, seed=3, load={"batch_size": 16, **load}).source().load()
        return [batch["id"].tolist() for batch in made.build()]

    in_order = batches()
    assert [len(batch) for batch in in_order] == [16, 16]
    assert (
        batches(prefetch_enabled=False)
        == batches(prefetch_workers=1, prefetch_buffer_size=1)
        == in_order
    )
    assert [len(batch) for batch in batches(drop_last=False)] == [16, 16, 8]
    shuffled = batches(shuffle_buffer_size=20)
    assert shuffled == batches(shuffle_buffer_size=20) != in_order


@promise(9)
def test_without_a_mix_all_datasets_come_one_after_the_other(two: dict[str, Any]):
    rows = pipeline(two).source().build()
    assert isinstance(rows, Iterator)
    assert [row["text"] for row in rows] == [
        row["text"] for row in texts(30) + texts(10, "more") + texts(25, "other")
    ]
    made = pipeline(two, load={"batch_size": 10}).source().load()
    assert list(made.get_data()) == ["a", "b"]
    assert all(
        isinstance(loader, tl.AsyncDataLoader) for loader in made.get_data().values()
    )
    assert sum(1 for _ in made.build()) == 4 + 2


def test_no_stage_reads_a_row(two: dict[str, Any], tmp_path: Path):
    counting = Wrap()
    made = pipeline(
        two, save={"output_dir": str(tmp_path / "out")}, mix={"total_rows": 20}
    ).source()
    made.stage(counting).tokenize().mix().pack().save().load()
    repr(made.get_data())
    assert [source.drawn for source in counting.counted.values()] == [0, 0]
    again = (
        pipeline(two, mix={"total_rows": 60}, pack={"seq_length": 16})
        .source()
        .stage(counting)
    )
    batches = again.tokenize().mix().pack().load().build()
    assert [source.drawn for source in counting.counted.values()] == [0, 0]
    next(batches)
    assert all(source.drawn for source in counting.counted.values())


# stages of one's own


def test_a_stage_of_ones_own_may_make_tokens_and_names(one: dict[str, Any]):
    class Letters(BaseStage):
        @property
        def name(self) -> str:
            return "letters"

        def process(self, data: Any, context: PipelineContext) -> Any:
            return {
                "x": data["a"].map(
                    lambda row: {
                        "input_ids": [len(word) for word in row["text"].split()]
                    }
                )
            }

    made = (
        pipeline(one)
        .source()
        .stage(Letters())
        .pack({"seq_length": 8, "eos_token_id": 0})
        .build()
    )
    assert next(made)["input_ids"].tolist() == [4, 6, 1, 0, 4, 6, 1, 3]


@pytest.mark.parametrize("made", [None, {}, {"a": 3}, []])
def test_what_a_stage_returns_is_checked(one: dict[str, Any], made: Any):
    class Odd(BaseStage):
        @property
        def name(self) -> str:
            return "odd"

        def process(self, data: Any, context: PipelineContext) -> Any:
            return made

    with pytest.raises(ConfigError, match="stage 'odd': process returned"):
        pipeline(one).source().stage(Odd())


@promise(193, 194)
def test_a_saved_directory_says_of_what_it_was_made(
    two: dict[str, Any], tmp_path: Path
):
    config = two | {"seed": 7, "save": {"output_dir": str(tmp_path / "out")}}
    made = (
        pipeline(config)
        .source()
        .tokenize({"max_length": 100, "remove_columns": ["text"]})
        .save()
    )
    list(made.build())
    manifest = FlatManifest.of(tmp_path / "out" / "a")
    assert manifest.kind == "tokens"
    settings = {"name": "a"}, {"max_length": 100, "remove_columns": ["text"]}, 7
    found = manifest.made_of["config"]
    assert (found["datasets"][0], found["tokenize"], found["seed"]) == settings
    assert [entry["path"] for entry in manifest.made_of["inputs"]] == [
        "1.jsonl",
        "2.jsonl",
    ]
    assert (
        manifest.made_of["tokenizer"]["a"]["probe"] == describe(llama().files)["probe"]
    )
    assert str(tmp_path) not in str(found)
    beside = tmp_path / "out" / "a" / "_tokenlake"
    assert load_config(str(beside / "config.yaml")).seed == 7
    assert (
        beside / "tokenizer" / "tokenizer.json"
    ).read_bytes() == llama().files.json_bytes

    mixed = (
        pipeline(two)
        .source()
        .tokenize()
        .mix({"total_rows": 20})
        .pack({"seq_length": 16})
    )
    list(mixed.save({"output_dir": str(tmp_path / "mixed")}).build())
    manifest = FlatManifest.of(tmp_path / "mixed")
    assert manifest.kind == "packed" and manifest.made_of["config"]["mix"] == {
        "total_rows": 20
    }
    assert [entry["source"] for entry in manifest.made_of["inputs"]] == ["a", "a", "b"]
    assert set(manifest.made_of["tokenizer"]) == {"a", "b"}


@promise(48, 182)
def test_workers_tokenize_ahead_and_change_no_row(two: dict[str, Any]):
    def rows(workers: int) -> tuple[list[list[int]], bool]:
        made = (
            pipeline(two)
            .source()
            .tokenize({"num_workers": workers, "batch_size": 2})
            .build()
        )
        begun = [next(made) for _ in range(3)]
        prepared = bool(prefetching_threads())
        return ids_of([*begun, *made]), prepared

    alone, without = rows(1)
    assert (rows(3), without) == ((alone, True), False)
    require_no_threads()


@promise(47)
def test_so_many_rows_are_tokenized_together(one: dict[str, Any]):
    for size in (1, 4):
        wrap = Wrap()
        made = (
            pipeline(one, tokenize={"batch_size": size, "num_workers": 1})
            .source()
            .stage(wrap)
            .tokenize()
        )
        next(made.build())
        assert wrap.counted["a"].drawn <= size + 1


@promise(31)
def test_arguments_of_transformers_act_where_they_have_a_meaning(
    one: dict[str, Any], another: str
):
    def rows(**options: Any) -> list[list[int]]:
        dataset = one["datasets"][0] | {
            "tokenizer": another,
            "tokenizer_kwargs": options,
        }
        return ids_of(pipeline(one, datasets=[dataset]).source().tokenize().build())

    plain = rows(use_fast=True)
    assert plain == rows()
    assert rows(model_max_length=5) == [ids[:5] for ids in plain]
    left = rows(padding="max_length", model_max_length=40, padding_side="left")
    assert [ids[-len(row) :] for ids, row in zip(left, plain, strict=True)] == plain
    assert {len(ids) for ids in left} == {40}
    for name, value in {
        "use_fast": False,
        "add_bos_token": True,
        "sp_model_kwargs": {},
    }.items():
        with pytest.raises(
            NotAvailableError,
            match=rf"tokenizer_kwargs: a mapping with '{name}' is not.*model_max_length",
        ):
            rows(**{name: value})
    with pytest.raises(tl.TokenlakeError, match="max_length"):
        rows(model_max_length=0)


def test_nothing_but_build_comes_after_load(one: dict[str, Any]):
    with pytest.raises(RuntimeError, match=r"wrap\(\) cannot come after load\(\)"):
        pipeline(one).source().load().stage(Wrap())


def test_an_option_of_a_dataset_that_does_not_act_is_an_error_too(one: dict[str, Any]):
    dataset = one["datasets"][0] | {"exclude": "gone.parquet", "shard_column": "lang"}
    with pytest.raises(
        NotAvailableError, match=r"(?s)datasets\.a\.shard_column.*datasets\.a\.exclude"
    ):
        pipeline(one, datasets=[dataset]).source()


def test_padding_acts_where_nothing_is_packed(one: dict[str, Any], tokenizer: str):
    padded = {"name_or_path": tokenizer, "padding": "max_length", "max_length": 40}
    rows = list(pipeline(one, default_tokenizer=padded).source().tokenize().build())
    assert {len(row["input_ids"]) for row in rows} == {40}
    with pytest.raises(ConfigError, match="packed rows are full"):
        pipeline(one, default_tokenizer=padded).source().tokenize().pack()


def test_two_datasets_cannot_have_one_directory(two: dict[str, Any], tmp_path: Path):
    datasets = [
        dataset | {"save_path": str(tmp_path / "x")} for dataset in two["datasets"]
    ]
    with pytest.raises(ConfigError, match="one inside the other"):
        pipeline(two, datasets=datasets).source().save()


def test_a_stage_is_a_stage(one: dict[str, Any]):
    with pytest.raises(ConfigError, match="must be a BaseStage instance"):
        pipeline(one).source().stage(Wrap)  # pyright: ignore[reportArgumentType]
