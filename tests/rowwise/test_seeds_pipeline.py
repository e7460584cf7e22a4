"""The snippets on the pipeline run as they are printed, with the import renamed.

Only names of places are replaced: ids on the Hub by tokenizers of the tests, buckets by folders. Where a snippet says
``[...]`` it gets a list, and what it leaves to its reader (``train_step``, ``my_transform_fn``) is there. What never
ends is ended by ``train_step``. Two are changed further: the mixture of code and text has one tokenizer instead of two,
because ids of two tokenizers cannot be one stream, and some lengths and windows are shorter, to be fast.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import texts, write_jsonl, written
from tests.text.chat_samples import MARKED_CHATML, conversation, speaking
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.rowwise.save import save_dataset

OVERVIEW = """
    from tokenlake import Pipeline, PipelineConfig, DatasetConfig

    # Create pipeline
    config = PipelineConfig(datasets=[DatasetConfig(data_files="data/*.parquet")])
    pipeline = Pipeline.from_config(config)

    # Chain stages
    result = (
        pipeline
        .source()      # Load data sources
        .tokenize()    # Apply tokenization
        .mix()         # Mix multiple datasets
        .pack()        # Pack sequences
        .load()        # Create data loader
        .build()       # Get final iterator
    )

    # Use in training
    for batch in result:
        train_step(batch)
"""

PIPELINE_CONFIG = """
    from tokenlake import (
        PipelineConfig,
        DatasetConfig,
        TokenizeStageConfig,
        MixStageConfig,
        PackStageConfig,
        LoadStageConfig,
        SaveStageConfig,
    )

    config = PipelineConfig(
        # Required: at least one dataset
        datasets=[
            DatasetConfig(
                name="dataset1",
                data_files="data/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
            ),
        ],

        # Global settings
        default_tokenizer="meta-llama/Llama-2-7b",  # Fallback tokenizer
        streaming=True,  # Enable streaming mode
        seed=42,  # Random seed

        # Stage configurations
        tokenize=TokenizeStageConfig(max_length=2048),
        mix=MixStageConfig(weights={"ds1": 0.5, "ds2": 0.5}),
        pack=PackStageConfig(enabled=True, seq_length=2048),
        load=LoadStageConfig(batch_size=8),
        save=SaveStageConfig(enabled=True, output_dir="./output"),
    )
"""

DATASET_CONFIG = """
    from tokenlake import DatasetConfig, TokenizerConfig

    config = DatasetConfig(
        # Source (required)
        data_files="data/*.parquet",  # Path, glob, or list

        # Identity
        name="my_dataset",  # Auto-generated if not provided

        # Source options
        type="parquet",  # json, parquet, csv, arrow, huggingface, txt
        split="train",   # For HuggingFace datasets
        num_rows=10000,  # Limit rows (optional)

        # Per-dataset tokenization
        tokenizer="meta-llama/Llama-2-7b",  # Or TokenizerConfig
        tokenizer_kwargs={"use_fast": True},

        # Per-dataset caching
        cache_path="./cache/my_dataset",
        cache_enabled=True,

        # Per-dataset saving
        save_path="./output/my_dataset",
        save_format="parquet",

        # Content mapping
        content_field="text",  # Field to tokenize
        additional_fields=["metadata"],  # Fields to preserve
        format_callback=my_transform_fn,  # Custom transform
        format_fields={"old_name": "new_name"},  # Rename fields
    )
"""

SOURCE_STAGE = """
    pipeline = Pipeline.from_config(config)
    pipeline.source()

    # Access loaded sources
    sources = pipeline.get_data()
    # {"dataset1": ParquetShardedSource, "dataset2": JsonShardedSource}
"""

TOKENIZE_STAGE = """
    from tokenlake import TokenizeStageConfig

    config = TokenizeStageConfig(
        default_tokenizer="meta-llama/Llama-2-7b",
        max_length=2048,
        batch_size=1000,  # Batch tokenization
        num_workers=4,    # Parallel workers
        cache_tokenized=True,
        remove_columns=["text"],  # Remove after tokenizing
    )

    pipeline.tokenize(config)  # Or use from PipelineConfig
"""

MIX_STAGE = """
    from tokenlake import MixStageConfig, WeightSchedulePoint

    config = MixStageConfig(
        # Static weights
        weights={"code": 0.3, "text": 0.7},

        # Or dynamic schedule
        weight_schedule=[
            WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
            WeightSchedulePoint(step=10000, weights={"code": 0.5, "text": 0.5}),
        ],
        weight_schedule_type="linear",  # step, linear, cosine

        block_size=1000,
        stop_strategy="restart",  # restart, first_exhausted, all_exhausted
        seed=42,
    )

    pipeline.mix(config)
"""

PACK_STAGE = """
    from tokenlake import PackStageConfig

    config = PackStageConfig(
        enabled=True,
        seq_length=2048,
        eos_token_id=2,
        pad_token_id=0,
        strategy="greedy",  # greedy, pool, first_fit
        num_packers=4,      # For pool strategy
        include_segment_ids=True,
        shuffle_packed=True,
        shuffle_buffer_factor=10,
    )

    pipeline.pack(config)
"""

SAVE_STAGE = """
    from tokenlake import SaveStageConfig

    config = SaveStageConfig(
        enabled=True,
        output_dir="./processed_data",
        format="parquet",  # parquet, arrow, jsonl
        num_shards=100,
        compression="zstd",  # none, gzip, lz4, zstd
        max_shard_size="500MB",
        overwrite=False,

        # Push to HuggingFace Hub
        push_to_hub=False,
        hub_repo_id="username/dataset",
        hub_private=True,
        hub_token="hf_xxx",
    )

    pipeline.save(config)
"""

LOAD_STAGE = """
    from tokenlake import LoadStageConfig

    config = LoadStageConfig(
        batch_size=8,
        prefetch_enabled=True,
        prefetch_workers=2,
        prefetch_buffer_size=4,
        shuffle_buffer_size=10000,
        drop_last=True,
        prefetch_to_device=False,  # JAX pre-sharding
    )

    pipeline.load(config)
"""

SFT = """
    from tokenlake import (
        Pipeline,
        PipelineConfig,
        DatasetConfig,
        PackStageConfig,
        LoadStageConfig,
    )

    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files="conversations/*.jsonl",
                tokenizer="meta-llama/Llama-2-7b-chat-hf",
                content_field="messages",  # Chat data
            ),
        ],
        pack=PackStageConfig(
            enabled=True,
            seq_length=2048,
            eos_token_id=2,
        ),
        load=LoadStageConfig(
            batch_size=8,
            shuffle_buffer_size=10000,
        ),
    )

    pipeline = Pipeline.from_config(config)
    for batch in pipeline.source().tokenize().pack().load().build():
        sft_train_step(batch)
"""

MULTI_DATASET = """
    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                name="code",
                data_files="gs://bucket/code/*.parquet",
                tokenizer="bigcode/starcoder",
            ),
            DatasetConfig(
                name="text",
                data_files="gs://bucket/text/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
            ),
            DatasetConfig(
                name="math",
                data_files="gs://bucket/math/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
            ),
        ],
        mix=MixStageConfig(
            weights={"code": 0.4, "text": 0.5, "math": 0.1},
            block_size=2000,
        ),
        pack=PackStageConfig(
            enabled=True,
            seq_length=4096,
            strategy="pool",
        ),
        load=LoadStageConfig(batch_size=32),
    )

    pipeline = Pipeline.from_config(config)
    for batch in pipeline.source().tokenize().mix().pack().load().build():
        pretrain_step(batch)
"""

PRE_TOKENIZATION = """
    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files="raw_data/*.jsonl",
                tokenizer="meta-llama/Llama-2-7b",
                save_path="./tokenized_data",
            ),
        ],
        tokenize=TokenizeStageConfig(max_length=2048),
        save=SaveStageConfig(
            enabled=True,
            format="parquet",
            compression="zstd",
        ),
    )

    # Just tokenize and save
    Pipeline.from_config(config).source().tokenize().save().build()
"""

STATE = """
    pipeline = Pipeline.from_config(config)
    pipeline.source().tokenize()

    # Get current data
    data = pipeline.get_data()
    # {"dataset1": TokenizedShardedSource, ...}

    # Get context
    context = pipeline.get_context()
    print(context.seed)
    print(context.config)

    # Get applied stages
    stages = pipeline.get_stages()
    # ["source", "tokenize"]
"""

ERRORS = """
    from tokenlake import Pipeline, PipelineConfig

    config = PipelineConfig(datasets=[...])
    pipeline = Pipeline.from_config(config)

    # Validate config before running
    errors = config.validate()
    if errors:
        for error in errors:
            print(f"Config error: {error}")

    # source() must be called first
    try:
        pipeline.tokenize()  # Error!
    except RuntimeError as e:
        print(e)  # "Call source() before other pipeline stages"
"""

CUSTOM_STAGE = """
    from tokenlake.core.protocols import BaseStage, PipelineContext, ShardedDataSource

    class MyCustomStage(BaseStage):
        def __init__(self, config):
            super().__init__(config)
            self._config = config

        @property
        def name(self) -> str:
            return "my_stage"

        def process(
            self,
            data: dict[str, ShardedDataSource],
            context: PipelineContext,
        ) -> dict[str, ShardedDataSource]:
            # Transform data
            result = {}
            for name, source in data.items():
                # Apply your transformation
                result[name] = MyTransformedSource(source, self._config)
            return result
"""

CREATE_PIPELINE = """
    from tokenlake import create_pipeline, DatasetConfig

    pipeline = create_pipeline(
        datasets=[
            DatasetConfig(data_files="data/*.parquet"),
            {"data_files": "more_data/*.jsonl"},  # Dict also works
        ],
        default_tokenizer="meta-llama/Llama-2-7b",
        streaming=True,
    )
"""

TOKENIZE_AND_SAVE = """
    from tokenlake import tokenize_and_save

    tokenize_and_save(
        data_files="data/*.jsonl",
        tokenizer="meta-llama/Llama-2-7b",
        output_path="./tokenized",
        output_format="parquet",
        max_length=2048,
    )
"""

MIXING_BY_PIPELINE = """
    from tokenlake import (
        Pipeline,
        PipelineConfig,
        DatasetConfig,
        MixStageConfig,
    )

    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                name="code",
                data_files="code_data/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
            ),
            DatasetConfig(
                name="text",
                data_files="text_data/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
            ),
        ],
        mix=MixStageConfig(
            weights={"code": 0.3, "text": 0.7},
            block_size=1000,
            stop_strategy="restart",
        ),
    )

    pipeline = Pipeline.from_config(config)
    for batch in pipeline.source().tokenize().mix().load().build():
        train_step(batch)
"""

PACK_AND_SAVE = """
    from tokenlake import (
        PipelineConfig,
        DatasetConfig,
        PackStageConfig,
        SaveStageConfig,
    )

    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files="data/*.jsonl",
                tokenizer="meta-llama/Llama-2-7b",
            ),
        ],
        pack=PackStageConfig(
            enabled=True,
            seq_length=2048,
            eos_token_id=2,
            pad_token_id=0,
            strategy="greedy",  # or "pool", "first_fit"
            include_segment_ids=True,
        ),
        save=SaveStageConfig(
            enabled=True,
            output_dir="./packed_data",
            format="parquet",
        ),
    )

    Pipeline.from_config(config).source().tokenize().pack().save().build()
"""

TWO_PATHS = """
    from tokenlake import (
        Pipeline,
        PipelineConfig,
        DatasetConfig,
        TokenizeStageConfig,
        SaveStageConfig,
    )

    config = PipelineConfig(
        datasets=[
            DatasetConfig(
                data_files="data/*.jsonl",
                tokenizer="meta-llama/Llama-2-7b",
                content_field="text",
                save_path="./tokenized/dataset1",
            ),
            DatasetConfig(
                data_files="gs://bucket/data/*.parquet",
                tokenizer="meta-llama/Llama-2-7b",
                content_field="content",
                save_path="./tokenized/dataset2",
            ),
        ],
        tokenize=TokenizeStageConfig(
            max_length=2048,
            batch_size=1000,  # Batch tokenization for speed
        ),
        save=SaveStageConfig(
            enabled=True,
            format="parquet",
            compression="zstd",  # Optional compression
        ),
    )

    # Run tokenization pipeline
    Pipeline.from_config(config).source().tokenize().save().build()
"""

LOADER = """
    from tokenlake import ParquetShardedSource, AsyncDataLoader

    source = ParquetShardedSource("./tokenized/*.parquet")

    loader = AsyncDataLoader(
        source=source,
        batch_size=8,
        prefetch_enabled=True,
        prefetch_buffer_size=4,
    )

    for batch in loader:
        # batch["input_ids"] is numpy array with shape (batch_size, seq_len)
        train_step(batch)
"""


class Enough(Exception):
    """A training is long enough."""


class Training:
    """Keeps the batches of a training, and ends it after some."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.batches: list[dict[str, Any]] = []
        self._most = most

    def __call__(self, batch: dict[str, Any]) -> None:
        self.batches.append(batch)
        if len(self.batches) == self._most:
            raise Enough


class MyTransformedSource(tl.ShardedDataSource):
    """What a reader may put there."""

    def __init__(self, source: tl.ShardedDataSource, config: dict[str, Any]) -> None:
        self.source, self.config = source, config

    @property
    def shard_names(self) -> Any:
        return self.source.shard_names

    def open_shard(self, shard_name: str) -> Iterator[dict[str, Any]]:
        return ({"text": row["text"] + self.config["end"]} for row in self.source.open_shard(shard_name))


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the names of places."""
    folder = tmp_path_factory.mktemp("hub")
    llama = written(sentencepiece(), folder / "llama")
    return {
        "meta-llama/Llama-2-7b-chat-hf": written(speaking(MARKED_CHATML), folder / "chat"),
        "meta-llama/Llama-2-7b": llama,
        "bigcode/starcoder": llama,
        "gs://bucket": "bucket",
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that snippets read."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "code_data", "text_data"):
        save_dataset(texts(60, folder), tmp_path / folder)
        for other in (tmp_path / folder / "_tokenlake").iterdir():
            other.unlink()
        (tmp_path / folder / "_tokenlake").rmdir()
    for folder in ("code", "text", "math"):
        write_jsonl(
            tmp_path / "long" / f"{folder}.jsonl", [{"text": f"{folder} {n} " * 500} for n in range(30)]
        )
        save_dataset(tl.JsonShardedSource(f"long/{folder}.jsonl"), tmp_path / "bucket" / folder)
    rows = [{"content": row["text"]} for row in texts(9)]
    save_dataset(rows, tmp_path / "bucket" / "data")
    for folder in ("data", "more_data", "raw_data"):
        write_jsonl(tmp_path / folder / "rows.jsonl", texts(40, folder))
    write_jsonl(tmp_path / "conversations" / "a.jsonl", [{"messages": conversation(n)} for n in range(40)])
    return tmp_path


def run(snippet: str, names: dict[str, str], **given: Any) -> dict[str, Any]:
    for name, stand_in in names.items():
        snippet = snippet.replace(name, stand_in)
    space = {name: getattr(tl, name) for name in tl.__all__ if name[0].isupper()} | given
    exec(textwrap.dedent(snippet), space)
    return space


def started(names: dict[str, str], *datasets: dict[str, Any], **more: Any) -> tl.Pipeline:
    """The pipeline that a snippet on a stage goes on with."""
    given = list(datasets) or [{"name": "dataset1", "data_files": "data/*.parquet"}]
    config = {"datasets": given, "default_tokenizer": names["meta-llama/Llama-2-7b"], **more}
    return tl.Pipeline.from_config(config)


def test_overview(here: Path, names: dict[str, str]):
    training = Training()
    snippet = OVERVIEW.replace(
        '"data/*.parquet")', f'"data/*.parquet", tokenizer="{names["bigcode/starcoder"]}")'
    )
    run(snippet, names, train_step=training)
    assert training.batches == []  # 60 short texts make one row of 2,048, which is no batch of 8
    write_jsonl(here / "long" / "a.jsonl", [{"text": "many words " * 3000} for _ in range(5)])
    run(snippet.replace("data/*.parquet", "long/*.jsonl"), names, train_step=training)
    assert training.batches
    assert {batch["input_ids"].shape for batch in training.batches} == {(8, 2048)}


def test_a_dataset_without_any_tokenizer_is_an_error_that_says_where_to_name_one(
    here: Path, names: dict[str, str]
):
    with pytest.raises(tl.TokenlakeError, match=r"datasets\.dataset_0\.tokenizer: missing"):
        run(OVERVIEW, names, train_step=Training())


def test_pipeline_config(here: Path, names: dict[str, str]):
    config = run(PIPELINE_CONFIG, names)["config"]
    assert config.validate() == [
        "Mix weight references unknown dataset: ds1",
        "Mix weight references unknown dataset: ds2",
    ]
    made = tl.Pipeline.from_config(config.model_copy(update={"mix": tl.MixStageConfig()}))
    assert next(made.source().tokenize().mix().pack().build())["input_ids"].shape == (2048,)


def test_dataset_config(here: Path, names: dict[str, str]):
    def my_transform_fn(row: dict[str, Any]) -> dict[str, Any]:
        return {"old_name": row["id"], "metadata": {"id": row["id"]}, "text": row["text"]}

    config = run(DATASET_CONFIG, names, my_transform_fn=my_transform_fn)["config"]
    made = tl.create_pipeline([config]).source().tokenize().save()
    rows = list(made.build())
    assert len(rows) == 60
    assert rows[3]["metadata"] == {"id": 3}
    assert list((here / "output" / "my_dataset").glob("*.parquet"))


def test_source_stage(here: Path, names: dict[str, str]):
    config = tl.PipelineConfig.model_validate(
        {
            "datasets": [
                {"name": "dataset1", "data_files": "data/*.parquet"},
                {"name": "dataset2", "data_files": "more_data/*.jsonl"},
            ]
        }
    )
    sources = run(SOURCE_STAGE, names, config=config)["sources"]
    assert {name: type(source).__name__ for name, source in sources.items()} == {
        "dataset1": "ParquetShardedSource",
        "dataset2": "JsonShardedSource",
    }


def test_tokenize_stage(here: Path, names: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENLAKE_CACHE", str(here / "cache"))
    pipeline = started(names, default_tokenizer=None).source()
    run(TOKENIZE_STAGE, names, pipeline=pipeline)
    rows = list(pipeline.build())
    assert len(rows) == 60
    assert set(rows[0]) == {"id", "input_ids", "attention_mask"}


def test_mix_stage(here: Path, names: dict[str, str]):
    datasets = [{"name": name, "data_files": f"{name}_data/*.parquet"} for name in ("code", "text")]
    pipeline = started(names, *datasets).source().tokenize()
    run(MIX_STAGE, names, pipeline=pipeline)
    rows = pipeline.build()
    first = [next(rows)["__source__"] for _ in range(1000)]
    assert 200 <= first.count("code") <= 216  # the weight moves from 0.2 to 0.23


@pytest.mark.parametrize("strategy", ["greedy", "pool", "first_fit"])
def test_pack_stage(here: Path, names: dict[str, str], strategy: str):
    pipeline = started(names).source().tokenize()
    run(PACK_STAGE.replace('strategy="greedy"', f'strategy="{strategy}"'), names, pipeline=pipeline)
    rows = list(pipeline.build())
    assert {len(row["input_ids"]) for row in rows} == {2048}
    assert sum(int((row["input_ids"] == 2).sum()) for row in rows) == 60


def test_save_stage(here: Path, names: dict[str, str]):
    pipeline = started(names).source().tokenize()
    run(SAVE_STAGE, names, pipeline=pipeline)
    pipeline.build()
    assert len(list((here / "processed_data").glob("*.parquet"))) == 100


def test_load_stage(here: Path, names: dict[str, str]):
    pipeline = started(names).source().tokenize()
    run(LOAD_STAGE, names, pipeline=pipeline)
    batches = list(pipeline.build())
    assert len(batches) == 7
    assert {len(batch["input_ids"]) for batch in batches} == {8}
    assert all(batch["input_ids"].shape == batch["attention_mask"].shape for batch in batches)


def test_sft_training(here: Path, names: dict[str, str]):
    training = Training()
    snippet = SFT.replace("seq_length=2048", "seq_length=64")
    run(snippet, names, sft_train_step=training)
    assert {batch["input_ids"].shape for batch in training.batches} == {(8, 64)}
    tokenizer = tl.TokenizerManager().get_tokenizer(names["meta-llama/Llama-2-7b-chat-hf"])
    text = "".join(tokenizer.decode(row) for batch in training.batches for row in batch["input_ids"])
    assert "assistant" in text


def test_multi_dataset_pre_training(here: Path, names: dict[str, str]):
    training = Training(most=2)
    with pytest.raises(Enough):
        run(
            MULTI_DATASET.replace("seq_length=4096", "seq_length=4096, window_tokens=32768"),
            names,
            pretrain_step=training,
        )
    assert [batch["input_ids"].shape for batch in training.batches] == [(32, 4096)] * 2


def test_pre_tokenization(here: Path, names: dict[str, str]):
    run(PRE_TOKENIZATION, names)
    rows = list(tl.ParquetShardedSource("./tokenized_data/*.parquet"))
    expected = tl.TokenizerManager().tokenize_batch(
        names["meta-llama/Llama-2-7b"], [row["text"] for row in texts(40, "raw_data")]
    )
    assert [row["input_ids"] for row in rows] == expected["input_ids"]


def test_pipeline_state(here: Path, names: dict[str, str], capsys: pytest.CaptureFixture[str]):
    config = tl.PipelineConfig.model_validate(
        {
            "datasets": [{"name": "dataset1", "data_files": "data/*.parquet"}],
            "default_tokenizer": names["meta-llama/Llama-2-7b"],
            "seed": 7,
        }
    )
    space = run(STATE, names, config=config)
    assert isinstance(space["data"]["dataset1"], tl.TokenizedShardedSource)
    assert space["stages"] == ["source", "tokenize"]
    assert capsys.readouterr().out.startswith("7\n")


def test_error_handling(here: Path, names: dict[str, str], capsys: pytest.CaptureFixture[str]):
    datasets = '[{"name": "a", "data_files": "data/*.parquet"}, {"name": "a", "data_files": "x"}]'
    run(ERRORS.replace("[...]", datasets), names)
    assert capsys.readouterr().out.splitlines() == [
        "Config error: Duplicate dataset names found",
        "Call source() before other pipeline stages",
    ]


def test_custom_stage(here: Path, names: dict[str, str]):
    stage = run(CUSTOM_STAGE, names, MyTransformedSource=MyTransformedSource)["MyCustomStage"]({"end": "!"})
    pipeline = started(names).source().stage(stage)
    assert pipeline.get_stages() == ["source", "my_stage"]
    assert [row["text"] for row in pipeline.build()] == [row["text"] + "!" for row in texts(60, "data")]
    assert sum(1 for _ in pipeline.tokenize().build()) == 60


def test_create_pipeline(here: Path, names: dict[str, str]):
    pipeline = run(CREATE_PIPELINE, names)["pipeline"]
    assert sum(1 for _ in pipeline.source().tokenize().build()) == 100


def test_tokenize_and_save(here: Path, names: dict[str, str]):
    run(TOKENIZE_AND_SAVE, names)
    assert len(list(tl.ParquetShardedSource("./tokenized/*.parquet"))) == 40


def test_mixing_by_the_pipeline(here: Path, names: dict[str, str]):
    training = Training(most=250)
    with pytest.raises(Enough):
        run(MIXING_BY_PIPELINE, names, train_step=training)
    sources = [name for batch in training.batches for name in batch["__source__"]]
    assert (sources[:1000].count("code"), sources[1000:].count("code")) == (300, 300)
    assert all(batch["input_ids"].shape == batch["attention_mask"].shape for batch in training.batches)


def test_packing_and_saving(here: Path, names: dict[str, str]):
    run(PACK_AND_SAVE, names)
    (row,) = tl.ParquetShardedSource("./packed_data/*.parquet")
    assert len(row["input_ids"]) == len(row["segment_ids"]) == 2048
    assert max(row["segment_ids"]) == 40


def test_saving_to_a_path_for_each_dataset(here: Path, names: dict[str, str]):
    run(TWO_PATHS, names)
    assert len(list(tl.ParquetShardedSource("./tokenized/dataset1/*.parquet"))) == 40
    assert len(list(tl.ParquetShardedSource("./tokenized/dataset2/*.parquet"))) == 9


def test_loading_what_was_tokenized(here: Path, names: dict[str, str]):
    training = Training()
    rows = [{"input_ids": np.arange(n, n + 6, dtype=np.int32)} for n in range(20)]
    save_dataset(rows, here / "tokenized")
    run(LOADER, names, train_step=training)
    assert [batch["input_ids"].shape for batch in training.batches] == [(8, 6)] * 2
    assert training.batches[0]["input_ids"].dtype == np.int32
    assert json.dumps(training.batches[0]["input_ids"][0].tolist()) == "[0, 1, 2, 3, 4, 5]"
