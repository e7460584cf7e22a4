"""Writers by the name of their format, the tokens of a dataset by its configuration,
and places in a source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokenlake as tl
from tests.rowwise.pipeline_support import gpt, texts, written
from tests.rowwise.sharded_support import Plain
from tests.seeds import promise
from tokenlake.errors import ConfigError

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": 2}]
READERS = {
    "parquet": (tl.ParquetWriter, tl.ParquetShardedSource),
    "arrow": (tl.ArrowWriter, tl.ArrowShardedSource),
    "jsonl": (tl.JsonlWriter, tl.JsonShardedSource),
}


@promise(280)
@pytest.mark.parametrize("format", READERS)
def test_a_writer_of_a_format_writes_it(format: str, tmp_path: Path):
    writer, reader = READERS[format]
    stats = writer(str(tmp_path / "out"), "1MB", 2).write(Plain({"a": ROWS}))
    assert stats.num_shards == 2
    assert list(reader(stats.output_paths)) == ROWS
    with pytest.raises(ConfigError, match="not empty"):
        writer(tmp_path / "out")
    writer(tmp_path / "out", overwrite=True).write(iter(ROWS[:1]))
    with writer(tmp_path / "other", compression="none") as some:
        some.add(ROWS[0])
    assert list(reader(some.stats.output_paths)) == ROWS[:1]


@promise(280, 285)
@pytest.mark.filterwarnings("ignore:.*more than were kept:RuntimeWarning")
def test_a_dataset_is_tokenized_as_its_configuration_says(tmp_path: Path):
    path = written(gpt().files, tmp_path)
    rows = Plain({"a": [{**row, "id": n} for n, row in enumerate(texts(3))]})
    named = tl.DatasetConfig(
        data_files="any.jsonl",
        tokenizer={"name_or_path": path, "max_length": 2},
        additional_fields=["id"],
    )
    wanted = tl.TokenizedShardedSource(
        rows,
        tl.TokenizerConfig(name_or_path=path, max_length=2),
        additional_fields=["id"],
    )
    assert list(tl.tokenize_dataset_config(rows, named, "nowhere")) == list(wanted)
    plain = tl.DatasetConfig(
        data_files="any.jsonl", content_field="body", format_fields={"text": "body"}
    )
    made = list(tl.tokenize_dataset_config(rows, plain, path))
    assert made == list(tl.TokenizedShardedSource(rows, path))
    with pytest.raises(
        ConfigError, match="tokenizer: missing, and there is no global_tokenizer"
    ):
        tl.tokenize_dataset_config(rows, plain)
    changed = tl.DatasetConfig(data_files="any.jsonl", transforms=[{"drop": ["n"]}])
    with pytest.raises(ConfigError, match=r"transforms: .*create_source"):
        tl.tokenize_dataset_config(rows, changed, path)


@promise(285)
def test_a_tokenizers_options_are_a_mapping():
    config = tl.TokenizerConfig(name_or_path="gpt2", max_length=7)
    assert config.to_dict()["max_length"] == 7
    assert tl.TokenizerConfig(**json.loads(json.dumps(config.to_dict()))) == config
    dataset: Any = tl.DatasetConfig(data_files="x.jsonl", tokenizer="gpt2")
    assert dataset.get_tokenizer_config() == tl.TokenizerConfig(name_or_path="gpt2")
    assert (
        tl.DatasetConfig(data_files="x.jsonl", tokenizer=config).get_tokenizer_config()
        is config
    )
    assert tl.DatasetConfig(data_files="x.jsonl").get_tokenizer_config() is None


@promise(284)
def test_a_loop_goes_on_where_its_state_says():
    source = Plain({"a": ROWS, "b": [{"text": "c", "n": 3}, {"text": "d", "n": 4}]})
    state = tl.ResumeState(
        shard_index=1, row_index=1, epoch=2, step=9, dataset_states={"a": {"seen": 3}}
    )
    again = tl.ResumeState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again == state
    assert list(again.rows(source)) == [{"text": "d", "n": 4}]
    assert list(tl.ResumeState().rows(source)) == list(source)
    with pytest.raises(ConfigError, match="row_index: got -1"):
        tl.ResumeState(row_index=-1)
    with pytest.raises(ConfigError, match="it has no field shard"):
        tl.ResumeState.from_dict({"shard": 1})
