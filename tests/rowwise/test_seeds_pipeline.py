"""The snippets on the pipeline run as they are printed, with the import renamed.

Only names of places are replaced: ids on the Hub by tokenizers of the tests, buckets by
folders. Where a snippet says ``[...]`` it gets a list, and what it leaves to its reader
(``train_step``, ``my_transform_fn``) is there. What never ends is ended by
``train_step``. Two are changed further: the mixture of code and text has one tokenizer
instead of two, because ids of two tokenizers cannot be one stream, and some lengths and
windows are shorter, to be fast.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import printed, texts, write_jsonl, written
from tests.seeds import promise
from tests.text.chat_samples import MARKED_CHATML, conversation, speaking
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake import easydel
from tokenlake.errors import BadRecordError
from tokenlake.rowwise import save_dataset

PRINTED = printed("pipeline.md")


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
        return (
            {"text": row["text"] + self.config["end"]}
            for row in self.source.open_shard(shard_name)
        )


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the names of places."""
    folder = tmp_path_factory.mktemp("hub")
    llama = written(sentencepiece(), folder / "llama")
    return {
        "meta-llama/Llama-2-7b-chat-hf": written(
            speaking(MARKED_CHATML), folder / "chat"
        ),
        "meta-llama/Llama-2-7b": llama,
        "bigcode/starcoder": llama,
        "gs://bucket": "bucket",
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that snippets read."""
    root = tmp_path_factory.mktemp("files")
    for folder in ("data", "code_data", "text_data"):
        save_dataset(texts(60, folder), root / folder)
        shutil.rmtree(root / folder / "_tokenlake")
    for folder in ("code", "text", "math"):
        rows = [{"text": f"{folder} {n} " * 500} for n in range(30)]
        write_jsonl(root / "long" / f"{folder}.jsonl", rows)
        save_dataset(rows, root / "bucket" / folder)
    save_dataset(
        [{"content": row["text"]} for row in texts(9)], root / "bucket" / "data"
    )
    for folder in ("data", "more_data", "raw_data"):
        write_jsonl(root / folder / "rows.jsonl", texts(40, folder))
    write_jsonl(
        root / "conversations" / "a.jsonl",
        [{"messages": conversation(n)} for n in range(40)],
    )
    return root


@pytest.fixture
def here(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with these files."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(snippet: str, names: dict[str, str], **given: Any) -> dict[str, Any]:
    for name, stand_in in names.items():
        snippet = snippet.replace(name, stand_in)
    space = {
        name: getattr(tl, name)
        for name in (*tl.__all__, *easydel.__all__)
        if name[0].isupper()
    } | given
    exec(textwrap.dedent(snippet), space)
    return space


def started(
    names: dict[str, str], *datasets: dict[str, Any], **more: Any
) -> tl.Pipeline:
    """The pipeline that a snippet on a stage goes on with."""
    given = list(datasets) or [{"name": "dataset1", "data_files": "data/*.parquet"}]
    config = {
        "datasets": given,
        "default_tokenizer": names["meta-llama/Llama-2-7b"],
        **more,
    }
    return tl.Pipeline.from_config(config)


@promise(1, 2, 140)
def test_overview(here: Path, names: dict[str, str]):
    training = Training()
    snippet = PRINTED["overview"].replace(
        '"data/*.parquet")',
        f'"data/*.parquet", tokenizer="{names["bigcode/starcoder"]}")',
    )
    run(snippet, names, train_step=training)
    # 60 short texts make one row of 2,048, which is no batch of 8.
    assert training.batches == []
    write_jsonl(
        here / "long" / "a.jsonl", [{"text": "many words " * 3000} for _ in range(5)]
    )
    run(snippet.replace("data/*.parquet", "long/*.jsonl"), names, train_step=training)
    assert training.batches
    assert {batch["input_ids"].shape for batch in training.batches} == {(8, 2048)}


def test_a_dataset_without_any_tokenizer_is_an_error_that_says_where_to_name_one(
    here: Path, names: dict[str, str]
):
    with pytest.raises(
        tl.TokenlakeError, match=r"datasets\.dataset_0\.tokenizer: missing"
    ):
        run(PRINTED["overview"], names, train_step=Training())


@promise(12)
def test_pipeline_config(here: Path, names: dict[str, str]):
    config = run(PRINTED["pipeline_config"], names)["config"]
    assert config.validate() == [
        "Mix weight references unknown dataset: ds1",
        "Mix weight references unknown dataset: ds2",
    ]
    made = tl.Pipeline.from_config(
        config.model_copy(update={"mix": tl.MixStageConfig()})
    )
    assert next(made.source().tokenize().mix().pack().build())["input_ids"].shape == (
        2048,
    )


@promise(22, 39, 40, 41)
def test_dataset_config(here: Path, names: dict[str, str]):
    def my_transform_fn(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "old_name": row["id"],
            "metadata": {"id": row["id"]},
            "text": row["text"],
        }

    config = run(PRINTED["dataset_config"], names, my_transform_fn=my_transform_fn)[
        "config"
    ]
    made = tl.create_pipeline([config]).source().tokenize().save()
    rows = list(made.build())
    assert len(rows) == 60
    assert rows[3]["metadata"] == {"id": 3}
    assert list((here / "output" / "my_dataset").glob("*.parquet"))


@promise(3, 44)
def test_source_stage(here: Path, names: dict[str, str]):
    config = tl.PipelineConfig.model_validate(
        {
            "datasets": [
                {"name": "dataset1", "data_files": "data/*.parquet"},
                {"name": "dataset2", "data_files": "more_data/*.jsonl"},
            ]
        }
    )
    sources = run(PRINTED["source_stage"], names, config=config)["sources"]
    assert {name: type(source).__name__ for name, source in sources.items()} == {
        "dataset1": "ParquetShardedSource",
        "dataset2": "JsonShardedSource",
    }


@promise(17, 50)
def test_tokenize_stage(
    here: Path, names: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKENLAKE_CACHE", str(here / "cache"))
    pipeline = started(names, default_tokenizer=None).source()
    run(PRINTED["tokenize_stage"], names, pipeline=pipeline)
    rows = list(pipeline.build())
    assert len(rows) == 60
    assert set(rows[0]) == {"id", "input_ids", "attention_mask"}


@promise(18, 52)
def test_mix_stage(here: Path, names: dict[str, str]):
    datasets = [
        {"name": name, "data_files": f"{name}_data/*.parquet"}
        for name in ("code", "text")
    ]
    pipeline = started(names, *datasets).source().tokenize()
    run(PRINTED["mix_stage"], names, pipeline=pipeline)
    rows = pipeline.build()
    first = [next(rows)["__source__"] for _ in range(1000)]
    assert 200 <= first.count("code") <= 216  # the weight moves from 0.2 to 0.23


@promise(19, 58)
@pytest.mark.parametrize("strategy", ["greedy", "pool", "first_fit"])
def test_pack_stage(here: Path, names: dict[str, str], strategy: str):
    pipeline = started(names).source().tokenize()
    run(
        PRINTED["pack_stage"].replace('strategy="greedy"', f'strategy="{strategy}"'),
        names,
        pipeline=pipeline,
    )
    rows = list(pipeline.build())
    assert {len(row["input_ids"]) for row in rows} == {2048}
    assert sum(int((row["input_ids"] == 2).sum()) for row in rows) == 60


@promise(21, 70)
def test_save_stage(here: Path, names: dict[str, str]):
    pipeline = started(names).source().tokenize()
    run(PRINTED["save_stage"], names, pipeline=pipeline)
    pipeline.build()
    assert len(list((here / "processed_data").glob("*.parquet"))) == 100


@promise(8, 20)
def test_load_stage(here: Path, names: dict[str, str]):
    pipeline = started(names).source().tokenize()
    run(PRINTED["load_stage"], names, pipeline=pipeline)
    batches = list(pipeline.build())
    assert len(batches) == 7
    assert {len(batch["input_ids"]) for batch in batches} == {8}
    assert all(
        batch["input_ids"].shape == batch["attention_mask"].shape for batch in batches
    )


@promise(89)
def test_sft_training(here: Path, names: dict[str, str]):
    training = Training()
    snippet = PRINTED["sft"].replace("seq_length=2048", "seq_length=64")
    run(snippet, names, sft_train_step=training)
    assert {batch["input_ids"].shape for batch in training.batches} == {(8, 64)}
    tokenizer = tl.TokenizerManager().get_tokenizer(
        names["meta-llama/Llama-2-7b-chat-hf"]
    )
    text = "".join(
        tokenizer.decode(row)
        for batch in training.batches
        for row in batch["input_ids"]
    )
    assert "assistant" in text


@promise(90)
def test_multi_dataset_pre_training(here: Path, names: dict[str, str]):
    training = Training(most=2)
    with pytest.raises(Enough):
        run(
            PRINTED["multi_dataset"].replace(
                "seq_length=4096", "seq_length=4096, window_tokens=32768"
            ),
            names,
            pretrain_step=training,
        )
    assert [batch["input_ids"].shape for batch in training.batches] == [(32, 4096)] * 2


@promise(91)
def test_pre_tokenization(here: Path, names: dict[str, str]):
    run(PRINTED["pre_tokenization"], names)
    rows = list(tl.ParquetShardedSource("./tokenized_data/*.parquet"))
    expected = tl.TokenizerManager().tokenize_batch(
        names["meta-llama/Llama-2-7b"], [row["text"] for row in texts(40, "raw_data")]
    )
    assert [row["input_ids"] for row in rows] == expected["input_ids"]


@promise(93, 94)
def test_pipeline_state(
    here: Path, names: dict[str, str], capsys: pytest.CaptureFixture[str]
):
    config = tl.PipelineConfig.model_validate(
        {
            "datasets": [{"name": "dataset1", "data_files": "data/*.parquet"}],
            "default_tokenizer": names["meta-llama/Llama-2-7b"],
            "seed": 7,
        }
    )
    space = run(PRINTED["state"], names, config=config)
    assert isinstance(space["data"]["dataset1"], tl.TokenizedShardedSource)
    assert space["stages"] == ["source", "tokenize"]
    assert capsys.readouterr().out.startswith("7\n")


@promise(95, 96)
def test_error_handling(
    here: Path, names: dict[str, str], capsys: pytest.CaptureFixture[str]
):
    datasets = '[{"name": "a", "data_files": "data/*.parquet"}, {"name": "a", "data_files": "x"}]'
    run(PRINTED["errors"].replace("[...]", datasets), names)
    assert capsys.readouterr().out.splitlines() == [
        "Config error: Duplicate dataset names found",
        "Call source() before other pipeline stages",
    ]


@promise(98)
def test_custom_stage(here: Path, names: dict[str, str]):
    stage = run(
        PRINTED["custom_stage"], names, MyTransformedSource=MyTransformedSource
    )["MyCustomStage"]({"end": "!"})
    pipeline = started(names).source().stage(stage)
    assert pipeline.get_stages() == ["source", "my_stage"]
    assert [row["text"] for row in pipeline.build()] == [
        row["text"] + "!" for row in texts(60, "data")
    ]
    assert sum(1 for _ in pipeline.tokenize().build()) == 60


@promise(101)
def test_create_pipeline(here: Path, names: dict[str, str]):
    pipeline = run(PRINTED["create_pipeline"], names)["pipeline"]
    assert sum(1 for _ in pipeline.source().tokenize().build()) == 100


@promise(102)
def test_tokenize_and_save(here: Path, names: dict[str, str]):
    run(PRINTED["tokenize_and_save"], names)
    assert len(list(tl.ParquetShardedSource("./tokenized/*.parquet"))) == 40


@promise(219)
def test_mixing_by_the_pipeline(here: Path, names: dict[str, str]):
    training = Training(most=250)
    with pytest.raises(Enough):
        run(PRINTED["mixing_by_pipeline"], names, train_step=training)
    sources = [name for batch in training.batches for name in batch["__source__"]]
    assert (sources[:1000].count("code"), sources[1000:].count("code")) == (300, 300)
    assert all(
        batch["input_ids"].shape == batch["attention_mask"].shape
        for batch in training.batches
    )


@promise(186)
def test_packing_and_saving(here: Path, names: dict[str, str]):
    run(PRINTED["pack_and_save"], names)
    (row,) = tl.ParquetShardedSource("./packed_data/*.parquet")
    assert len(row["input_ids"]) == len(row["segment_ids"]) == 2048
    assert max(row["segment_ids"]) == 40


@promise(164)
def test_saving_to_a_path_for_each_dataset(here: Path, names: dict[str, str]):
    run(PRINTED["two_paths"], names)
    assert len(list(tl.ParquetShardedSource("./tokenized/dataset1/*.parquet"))) == 40
    assert len(list(tl.ParquetShardedSource("./tokenized/dataset2/*.parquet"))) == 9


def test_loading_what_was_tokenized(here: Path, names: dict[str, str]):
    training = Training()
    rows = [{"input_ids": np.arange(n, n + 6, dtype=np.int32)} for n in range(20)]
    save_dataset(rows, here / "tokenized")
    run(PRINTED["loader"], names, train_step=training)
    assert [batch["input_ids"].shape for batch in training.batches] == [(8, 6)] * 2
    assert training.batches[0]["input_ids"].dtype == np.int32
    assert (
        json.dumps(training.batches[0]["input_ids"][0].tolist()) == "[0, 1, 2, 3, 4, 5]"
    )


@promise(15)
@pytest.mark.parametrize("streaming", [True, False])
def test_rows_are_the_same_streamed_or_not(
    here: Path, names: dict[str, str], streaming: bool
):
    rows = started(names, streaming=streaming).source().build()
    assert [row["id"] for row in rows] == list(range(60))


@promise(262)
def test_raw_rows_are_loaded(here: Path, names: dict[str, str]):
    batches = list(started(names, load={"batch_size": 20}).source().load().build())
    assert [batch["text"] for batch in batches] == [
        [row["text"] for row in texts(60, "data")[start : start + 20]]
        for start in (0, 20, 40)
    ]


@promise(29, 30, 38, 46, 168, 169)
@pytest.mark.parametrize("whole", [False, True])
def test_a_field_and_a_tokenizer_are_chosen(
    here: Path, names: dict[str, str], whole: bool
):
    chosen: Any = names["meta-llama/Llama-2-7b"]
    dataset = {"data_files": "bucket/data/*.parquet", "content_field": "content"}
    made = started(
        names, dataset | {"tokenizer": {"name_or_path": chosen} if whole else chosen}
    )
    rows = made.source().tokenize({"max_length": 9}).build()
    reference = tl.TokenizerManager().tokenize_batch(
        chosen, [row["text"] for row in texts(9)]
    )["input_ids"]
    assert [row["input_ids"].tolist() for row in rows] == [ids[:9] for ids in reference]
    assert max(map(len, reference)) > 9
    with pytest.raises(BadRecordError, match="row 0"):
        list(
            started(names, {"data_files": "bucket/data/*.parquet"})
            .source()
            .tokenize()
            .build()
        )


@promise(174)
def test_code_of_a_tokenizer_never_runs(here: Path, names: dict[str, str]):
    (here / "planted.py").write_text("raise SystemExit('it ran')\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        data = (Path(names["meta-llama/Llama-2-7b"]) / name).read_bytes()
        if name == "tokenizer_config.json":
            asked = {"auto_map": {"AutoTokenizer": [None, "planted.Planted"]}}
            data = json.dumps(json.loads(data) | asked).encode()
        (here / name).write_bytes(data)
    rows = [
        [
            row["input_ids"].tolist()
            for row in started(names, dataset).source().tokenize().build()
        ]
        for more in ({}, {"trust_remote_code": True})
        for dataset in [
            {
                "data_files": "data/*.parquet",
                "tokenizer": {"name_or_path": str(here), **more},
            }
        ]
    ]
    assert rows[0] == rows[1]
