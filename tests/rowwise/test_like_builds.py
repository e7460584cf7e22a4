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

# Many of these cut documents to a few tokens, which is warned of.
pytestmark = pytest.mark.filterwarnings("ignore:.*more than were kept:RuntimeWarning")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kinds = {"llama": sentencepiece(), "gpt": byte_level()}
    return {
        kind: written(files, tmp_path_factory.mktemp(kind))
        for kind, files in kinds.items()
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [
        *texts(60),
        {"text": ""},
        {"text": "long " * 400},
        *texts(20, "últimas palabras 漢字"),
    ]
    return str(write_jsonl(tmp_path_factory.mktemp("data") / "rows.jsonl", rows))


def made(config: dict[str, Any], *stages: str) -> dict[str, list[Any]]:
    pipeline = tl.Pipeline.from_config(config).source()
    for stage in stages:
        getattr(pipeline, stage)()
    rows = list(pipeline.build())
    return {name: [np.asarray(row[name]).tolist() for row in rows] for name in rows[0]}


def same(config: dict[str, Any], store: Path) -> dict[str, list[Any]]:
    """Return the rows of a pipeline, which must be those of a build."""
    packs = config.get("pack", {}).get("enabled")
    ours = made(config, "tokenize", *(["pack"] if packs else []))
    table = build_here(
        config | {"name": "d", "save": {"output_dir": str(store)}}
    ).table()
    stored = [
        name
        for name in ("input_ids", "segment_ids", "loss_mask")
        if name in table.column_names
    ]
    stored += (
        ["attention_mask"]
        if "attention_mask" in table.column_names and not packs
        else []
    )
    for name in stored:
        assert ours[name] == table[name].to_pylist(), name
    assert "input_ids" in stored and ("loss_mask" in ours) == ("loss_mask" in stored)
    return ours


def packing(seq_length: int, **options: Any) -> dict[str, Any]:
    return {
        "pack": {
            "enabled": True,
            "seq_length": seq_length,
            "store_segment_ids": True,
            **options,
        }
    }


def cut(**options: Any) -> dict[str, Any]:
    return {"tokenize": {"max_length": 12, **options}}


PADDED = {"max_length": 30, "padding_side": "left"}


@pytest.mark.parametrize(
    ("kind", "options", "sections"),
    [
        ("llama", {}, packing(16)),
        ("gpt", {}, packing(48, shuffle_packed=False, strategy="pool", num_packers=3)),
        ("gpt", {}, packing(48, shuffle_packed=False, strategy="first_fit")),
        (
            "gpt",
            {},
            packing(
                48,
                shuffle_packed=False,
                strategy="best_fit",
                window_tokens=600,
                max_segments=4,
            ),
        ),
        ("llama", {}, {}),
        ("llama", {}, cut(long_documents="split")),
        ("llama", {}, cut(truncation_strategy="word")),
        ("llama", {}, cut(truncation_side="left")),
        ("gpt", {"padding": "max_length", **PADDED}, {}),
        ("gpt", {"padding": "longest", **PADDED}, {}),
    ],
)
def test_rows_are_those_of_a_build(
    data: str,
    tokenizers: dict[str, str],
    tmp_path: Path,
    kind: str,
    options: dict[str, Any],
    sections: dict[str, Any],
):
    tokenizer = {"name_or_path": tokenizers[kind], **options}
    ours = same(
        {"datasets": [{"data_files": data, "tokenizer": tokenizer}], **sections},
        tmp_path,
    )
    assert "attention_mask" in ours and ("segment_ids" in ours) == ("pack" in sections)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    rows = [
        {"messages": conversation(seed, system=seed % 3 == 0, turns=1 + seed % 3)}
        for seed in range(25)
    ]
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
    assert any(
        map(any, same({"datasets": [chat | more], "pack": pack}, tmp_path)["loss_mask"])
    )


@pytest.mark.parametrize(
    ("kind", "pack"), [("llama", {}), ("gpt", {"enabled": True, "seq_length": 32})]
)
def test_prompts_are_those_of_a_build(
    tokenizers: dict[str, str], tmp_path: Path, kind: str, pack: dict[str, Any]
):
    rows = [
        {"question": f"what is {n} and {n}", "answer": f"it is {2 * n}"}
        for n in range(20)
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    prompt = {"template": "Q: {question}\nA: {answer}", "label_column": "answer"}
    dataset = {"data_files": str(path), "tokenizer": tokenizers[kind], "prompt": prompt}
    assert "loss_mask" in same(
        {"datasets": [dataset], "pack": pack}, tmp_path / "store"
    )


def test_texts_beside_conversations_are_learned_whole(
    chat: dict[str, str], data: str, tmp_path: Path
):
    datasets = [
        chat | {"content_field": "messages"},
        {"data_files": data, "tokenizer": chat["tokenizer"]},
    ]
    config = {"datasets": datasets, "tokenize": {"max_length": 60}}
    assert "loss_mask" in same(config, tmp_path)
    mixture = config | packing(64) | {"mix": {"stop_strategy": "all_exhausted"}}
    mixed = made(mixture, "tokenize", "mix", "pack")
    assert len(mixed["loss_mask"]) == len(mixed["input_ids"])


@pytest.mark.parametrize(
    ("kind", "mode"), [("llama", "literal"), ("gpt", "literal"), ("llama", "encode")]
)
def test_special_tokens_in_texts_are_what_they_are_in_a_build(
    tokenizers: dict[str, str], tmp_path: Path, kind: str, mode: str
):
    rows = [{"text": "an </s> and an <|endoftext|> inside"}, {"text": "none"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    dataset = {"data_files": str(path), "tokenizer": tokenizers[kind]}
    same(
        {"datasets": [dataset], "tokenize": {"special_tokens_in_text": mode}},
        tmp_path / "store",
    )


def test_bad_rows_are_an_error_or_left_out(tokenizers: dict[str, str], tmp_path: Path):
    rows = [
        {"text": "one"},
        {"text": "a </s><|endoftext|> b"},
        {"text": None},
        {"text": "two"},
        {"text": 3},
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    dataset = {
        "data_files": str(path),
        "tokenizer": tokenizers["llama"],
        "special_tokens_in_text": "fail",
    }
    drawn = tl.Pipeline.from_config({"datasets": [dataset]}).source().tokenize().build()
    assert len(next(drawn)["input_ids"])
    told = r"shard 'rows\.jsonl', row 1: the text spells out a special token"
    with pytest.raises(BadRecordError, match=told):
        next(drawn)
    lenient = {"datasets": [dataset | {"on_bad_record": "quarantine"}]}
    assert len(made(lenient, "tokenize")["input_ids"]) == 2


@pytest.mark.corpora
def test_real_texts_and_conversations_are_those_of_a_build(
    shared_data: Path, tmp_path: Path
):
    hub = (
        shared_data
        / "hf"
        / "hub"
        / "models--meta-llama--Llama-2-7b-chat-hf"
        / "snapshots"
    )
    (tokenizer,) = hub.iterdir()
    for name, rows in (("math-chat.jsonl.gz", 60), ("text-00000-of-00004.parquet", 8)):
        files = str(shared_data / "corpora" / name)
        dataset = {"data_files": files, "tokenizer": str(tokenizer), "num_rows": rows}
        same(
            {"datasets": [dataset], "pack": {"enabled": True, "seq_length": 2048}},
            tmp_path / name,
        )


def test_contradictions_are_those_of_a_build(data: str, tokenizers: dict[str, str]):
    def pipeline(tokenizer: object, **options: str) -> tl.Pipeline:
        datasets = [{"data_files": data, "tokenizer": tokenizer}]
        return (
            tl.Pipeline.from_config({"datasets": datasets, "tokenize": options})
            .source()
            .tokenize()
        )

    whole = {"name_or_path": tokenizers["llama"], "truncation": False}
    with pytest.raises(
        ConfigError, match="has truncation: false; leave one of them out"
    ):
        pipeline(whole, long_documents="truncate")
    with pytest.raises(ConfigError, match="no dataset's documents are truncated"):
        pipeline(tokenizers["llama"], truncation_side="left").pack()
