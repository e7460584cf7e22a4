"""A pipeline makes what a build of the same configuration writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.etl.outputs_support import build_here
from tests.rowwise.pipeline_support import texts, write_jsonl, written
from tests.seeds import promise
from tests.text.chat_samples import MARKED_CHATML, conversation, speaking
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake.errors import BadRecordError, ConfigError


@pytest.fixture(scope="module", params=["llama", "gpt"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    files = sentencepiece() if request.param == "llama" else byte_level()
    return written(files, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [*texts(60), {"text": ""}, {"text": "long " * 400}, *texts(20, "últimas palabras 漢字")]
    return str(write_jsonl(tmp_path_factory.mktemp("data") / "rows.jsonl", rows))


def built(config: dict[str, Any], store: Path) -> dict[str, list[Any]]:
    table = build_here(config | {"name": "d", "save": {"output_dir": str(store)}}).table()
    return {name: table[name].to_pylist() for name in table.column_names}


def made(config: dict[str, Any], *stages: str) -> dict[str, list[Any]]:
    pipeline = tl.Pipeline.from_config(config).source()
    for stage in stages:
        getattr(pipeline, stage)()
    rows = list(pipeline.build())
    return {name: [np.asarray(row[name]).tolist() for row in rows] for name in rows[0]}


@pytest.mark.parametrize("seq_length", [16, 256])
def test_packed_rows_are_those_of_a_build(data: str, tokenizer: str, tmp_path: Path, seq_length: int):
    config = {
        "datasets": [{"data_files": data, "tokenizer": tokenizer}],
        "pack": {"enabled": True, "seq_length": seq_length, "store_segment_ids": True},
    }
    ours, theirs = made(config, "tokenize", "pack"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["segment_ids"] == theirs["segment_ids"]


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "pool", "num_packers": 3},
        {"strategy": "first_fit"},
        {"strategy": "best_fit"},
        {"strategy": "best_fit", "window_tokens": 600, "max_segments": 4},
    ],
)
def test_every_strategy_packs_as_a_build_does(data: str, tmp_path: Path, options: dict[str, Any]):
    tokenizer = written(byte_level(), tmp_path / "gpt")
    pack = {"enabled": True, "seq_length": 48, "store_segment_ids": True, "shuffle_packed": False, **options}
    config = {"datasets": [{"data_files": data, "tokenizer": tokenizer}], "pack": pack}
    ours, theirs = made(config, "tokenize", "pack"), built(config, tmp_path / "store")
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["segment_ids"] == theirs["segment_ids"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 7},
        {"max_length": 12, "long_documents": "drop"},
        {"max_length": 12, "long_documents": "split"},
        {"max_length": 12, "truncation_strategy": "word"},
        {"max_length": 12, "truncation_side": "left"},
    ],
)
@pytest.mark.parametrize("tokenizer", ["llama"], indirect=True)
def test_unpacked_rows_are_those_of_a_build(
    data: str, tokenizer: str, tmp_path: Path, options: dict[str, Any]
):
    config = {"datasets": [{"data_files": data, "tokenizer": tokenizer}], "tokenize": options}
    ours, theirs = made(config, "tokenize"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]


@pytest.mark.parametrize("padding", ["max_length", "longest"])
@pytest.mark.parametrize("tokenizer", ["gpt"], indirect=True)
def test_padded_rows_are_those_of_a_build(data: str, tokenizer: str, tmp_path: Path, padding: str):
    options = {"name_or_path": tokenizer, "padding": padding, "max_length": 30, "padding_side": "left"}
    config = {"datasets": [{"data_files": data, "tokenizer": options}]}
    ours, theirs = made(config, "tokenize"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["attention_mask"] == theirs["attention_mask"]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    rows = [{"messages": conversation(seed, system=seed % 3 == 0, turns=1 + seed % 3)} for seed in range(25)]
    folder = tmp_path_factory.mktemp("chat")
    return {
        "data_files": str(write_jsonl(folder / "chat.jsonl", rows)),
        "tokenizer": written(speaking(MARKED_CHATML), folder / "tokenizer"),
    }


@promise(180)
@pytest.mark.parametrize(
    ("more", "pack"),
    [
        ({}, {}),
        ({"content_field": "messages"}, {"enabled": True, "seq_length": 64}),
        ({"chat": {"loss": "all"}}, {"enabled": True, "seq_length": 64}),
    ],
)
def test_conversations_are_those_of_a_build_and_so_is_what_is_learned_of_them(
    chat: dict[str, str], tmp_path: Path, more: dict[str, Any], pack: dict[str, Any]
):
    config = {"datasets": [chat | more], "pack": pack}
    ours = made(config, "tokenize", *(["pack"] if pack else []))
    theirs = built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["loss_mask"] == theirs["loss_mask"]
    assert any(map(any, ours["loss_mask"]))


def test_long_conversations_are_cut_as_a_build_cuts_them(chat: dict[str, str], tmp_path: Path):
    config = {"datasets": [chat], "tokenize": {"max_length": 40}}
    ours, theirs = made(config, "tokenize"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["loss_mask"] == theirs["loss_mask"]
    assert max(map(len, ours["input_ids"])) <= 40


@pytest.mark.parametrize("pack", [{}, {"enabled": True, "seq_length": 32}])
def test_prompts_are_those_of_a_build(tokenizer: str, tmp_path: Path, pack: dict[str, Any]):
    rows = [{"question": f"what is {n} and {n}", "answer": f"it is {2 * n}"} for n in range(20)]
    prompt = {"template": "Q: {question}\nA: {answer}", "label_column": "answer"}
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = {"datasets": [{"data_files": str(path), "tokenizer": tokenizer, "prompt": prompt}], "pack": pack}
    ours = made(config, "tokenize", *(["pack"] if pack else []))
    theirs = built(config, tmp_path / "store")
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["loss_mask"] == theirs["loss_mask"]


def test_texts_beside_conversations_are_learned_whole(chat: dict[str, str], data: str, tmp_path: Path):
    datasets = [chat | {"content_field": "messages"}, {"data_files": data, "tokenizer": chat["tokenizer"]}]
    config = {"datasets": datasets, "tokenize": {"max_length": 60}}
    ours, theirs = made(config, "tokenize"), built(config, tmp_path)
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["loss_mask"] == theirs["loss_mask"]
    mixture = config | {
        "pack": {"enabled": True, "seq_length": 64},
        "mix": {"stop_strategy": "all_exhausted"},
    }
    mixed = made(mixture, "tokenize", "mix", "pack")
    assert len(mixed["loss_mask"]) == len(mixed["input_ids"])


@pytest.mark.parametrize("mode", ["literal", "encode"])
def test_special_tokens_in_texts_are_what_they_are_in_a_build(tokenizer: str, tmp_path: Path, mode: str):
    rows = [{"text": "an </s> and an <|endoftext|> inside"}, {"text": "none"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = {
        "datasets": [{"data_files": str(path), "tokenizer": tokenizer}],
        "tokenize": {"special_tokens_in_text": mode},
    }
    assert made(config, "tokenize")["input_ids"] == built(config, tmp_path / "store")["input_ids"]


@pytest.mark.parametrize("tokenizer", ["llama"], indirect=True)
def test_bad_rows_are_an_error_or_left_out(tokenizer: str, tmp_path: Path):
    rows = [{"text": "one"}, {"text": "a </s><|endoftext|> b"}, {"text": None}, {"text": "two"}, {"text": 3}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    dataset = {"data_files": str(path), "tokenizer": tokenizer, "special_tokens_in_text": "fail"}
    drawn = tl.Pipeline.from_config({"datasets": [dataset]}).source().tokenize().build()
    assert len(next(drawn)["input_ids"])
    with pytest.raises(
        BadRecordError, match=r"shard 'rows\.jsonl', row 1: the text spells out a special token"
    ):
        next(drawn)
    lenient = {"datasets": [dataset | {"on_bad_record": "quarantine"}]}
    assert len(made(lenient, "tokenize")["input_ids"]) == 2


@pytest.mark.parametrize("tokenizer", ["llama"], indirect=True)
def test_contradictions_are_those_of_a_build(data: str, tokenizer: str):
    options = {"name_or_path": tokenizer, "truncation": False}
    config = {
        "datasets": [{"data_files": data, "tokenizer": options}],
        "tokenize": {"long_documents": "truncate"},
    }
    with pytest.raises(ConfigError, match="has truncation: false; leave one of them out"):
        tl.Pipeline.from_config(config).source().tokenize()
    left = {
        "datasets": [{"data_files": data, "tokenizer": tokenizer}],
        "tokenize": {"truncation_side": "left"},
    }
    with pytest.raises(ConfigError, match="no dataset's documents are truncated"):
        tl.Pipeline.from_config(left).source().tokenize().pack()


@pytest.mark.corpora
def test_real_texts_and_conversations_are_those_of_a_build(shared_data: Path, tmp_path: Path):
    hub = shared_data / "hf" / "hub" / "models--meta-llama--Llama-2-7b-chat-hf" / "snapshots"
    (tokenizer,) = hub.iterdir()
    pack = {"enabled": True, "seq_length": 2048}
    for name, rows in (("math-chat.jsonl.gz", 60), ("text-00000-of-00004.parquet", 8)):
        files = str(shared_data / "corpora" / name)
        config = {
            "datasets": [{"data_files": files, "tokenizer": str(tokenizer), "num_rows": rows}],
            "pack": pack,
        }
        ours, theirs = made(config, "tokenize", "pack"), built(config, tmp_path / name)
        assert ours["input_ids"] == theirs["input_ids"]
        assert ours.get("loss_mask") == theirs.get("loss_mask")
