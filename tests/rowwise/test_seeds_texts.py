"""The promises on transforms and text, one after the other, by the names that the
seed documents use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenlake as tl
from tests.seeds import promise
from tests.text.chat_samples import MARKED_CHATML, conversation, speaking, write
from tokenlake.errors import BadRecordError

CHAT = [
    {"role": "user", "content": "Hello there"},
    {"role": "assistant", "content": "Good day"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write(speaking(MARKED_CHATML), tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def source(tmp_path: Path) -> tl.ShardedDataSource:
    rows = [
        {"text": f"text number {n}", "id": n, "meta": {"tags": [{"name": f"t{n}"}]}}
        for n in range(5)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tl.JsonShardedSource(str(path))


@promise(273)
def test_a_transform_is_called_on_a_row_and_none_leaves_it_out() -> None:
    keep = tl.FilterByField("lang", lambda lang: lang == "en")
    assert keep({"lang": "en", "text": "a"}) == {"lang": "en", "text": "a"}
    assert keep({"lang": "de", "text": "a"}) is None


@promise(273)
def test_transforms_are_chained() -> None:
    chain = (
        tl.RenameFields({"body": "text"})
        >> tl.FilterNonEmpty(["text"])
        >> tl.SelectFields(["text"])
    )
    assert isinstance(chain, tl.ChainedTransform)
    assert chain({"body": "a", "id": 1}) == {"text": "a"}
    assert chain({"body": "", "id": 1}) is None


@promise(270)
def test_fields_are_selected_dropped_renamed_and_added() -> None:
    row = {"a": 1, "b": 2, "c": 3}
    assert tl.SelectFields(["c", "a"])(row) == {"c": 3, "a": 1}
    assert tl.DropFields(["a", "x"])(row) == {"b": 2, "c": 3}
    assert tl.RenameFields({"a": "z"})(row) == {"z": 1, "b": 2, "c": 3}
    assert tl.AddField("d", 4)(row)["d"] == 4
    assert tl.AddField("d", lambda given: given["a"] + given["b"])(row)["d"] == 3
    with pytest.raises(BadRecordError, match="b"):
        tl.RenameFields({"a": "b"})(row)
    assert row == {"a": 1, "b": 2, "c": 3}


@promise(270, 271)
def test_values_are_mapped_extracted_and_combined() -> None:
    row = {"title": "T", "text": "x", "a": {"b": [{"c": 7}]}}
    assert tl.MapField("title", str.lower)(row)["title"] == "t"
    assert tl.MapField("title", str.lower, output_field="low")(row)["low"] == "t"
    assert tl.ExtractField("a.b[0].c", "c")(row)["c"] == 7
    assert tl.ExtractField("a.b[3].c", "c", default=-1)(row)["c"] == -1
    assert (
        tl.CombineFields(fields=["title", "text"], output_field="all", separator=": ")(
            row
        )["all"]
        == "T: x"
    )
    combined = tl.CombineFields(
        source_fields=["title", "text"], target_field="all", drop_sources=True
    )(row)
    assert combined == {"a": {"b": [{"c": 7}]}, "all": "T x"}
    counted = tl.CombineFields(["title", "text"], "count", combiner=len)(row)
    assert counted["count"] == 2


@promise(272)
def test_rows_are_filtered() -> None:
    assert tl.FilterNonEmpty(["a"])({"a": []}) is None
    assert tl.FilterTransform(lambda row: row["a"] > 1)({"a": 2}) == {"a": 2}


@promise(152, 181, 257, 266, 267)
def test_a_chat_template_makes_the_text(
    tokenizer: str, source: tl.ShardedDataSource
) -> None:
    transform = tl.ChatTemplateTransform(
        tokenizer, messages_field="messages", output_field="text", drop_messages=True
    )
    row = transform({"messages": CHAT, "id": 1})
    assert row.keys() == {"text", "id"}
    assert row["text"].count("Good day") == 1
    shared = transform(
        {
            "conversations": [
                {"from": "human", "value": "Hello there"},
                {"from": "gpt", "value": "Good day"},
            ]
        }
    )
    assert shared["text"] == row["text"]
    maybe = tl.MaybeApplyChatTemplate(tokenizer)
    assert maybe({"text": "plain"}) == {"text": "plain"}
    assert maybe({"messages": CHAT})["text"] == row["text"]
    with pytest.raises(BadRecordError):
        transform({"messages": [{"role": "user"}]})


@promise(268)
def test_conversations_become_chatml() -> None:
    given = {
        "conversations": [
            {"from": "human", "value": "a"},
            {"from": "bot", "value": "b"},
            {"from": "function", "value": "c"},
        ]
    }
    roles = [message["role"] for message in tl.ConvertToChatML()(given)["messages"]]
    assert roles == ["user", "assistant", "tool"]
    mapped = tl.ConvertToChatML(role_mapping={"prof": "assistant"})(
        {"messages": [{"role": "prof", "content": "x"}]}
    )
    assert mapped["messages"] == [{"role": "assistant", "content": "x"}]
    with pytest.raises(BadRecordError, match="human"):
        tl.ConvertToChatML(use_default_mapping=False)(given)
    pair = tl.ConvertInputOutputToChatML()({"input": "a", "output": "b"})
    assert pair["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


@promise(269)
def test_the_manager_of_tokenizers(tokenizer: str) -> None:
    manager = tl.TokenizerManager()
    assert manager.get_tokenizer(tokenizer) is manager.get_tokenizer(tokenizer)
    one = manager.tokenize_text(tokenizer, "Hello there")
    padded = tl.TokenizerConfig(name_or_path=tokenizer, padding="longest")
    batch = manager.tokenize_batch(
        tokenizer, ["Hello there", "a rather longer text than that"], padded
    )
    sizes = {len(ids) for ids in batch["input_ids"]}
    assert len(sizes) == 1
    short = np.asarray(batch["input_ids"][0])[
        np.asarray(batch["attention_mask"][0], bool)
    ]
    assert short.tolist() == list(one["input_ids"])


@promise(275)
def test_rows_of_any_kind_are_tokenized_in_batches(tokenizer: str) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"text": f"text {n}"} for n in range(7))

    found = list(tl.batched_tokenize_iterator(rows(), tokenizer, batch_size=3))
    assert len(found) == 7
    assert all(row["input_ids"] for row in found)


@promise(276)
def test_preferences_are_prepared_for_trainers(tokenizer: str) -> None:
    (row,) = tl.PreferenceRows("dpo", tokenizer).expand(
        {"prompt": "Say", "chosen": " yes", "rejected": " no"}
    )
    assert {"prompt_input_ids", "chosen_input_ids", "rejected_input_ids"} <= row.keys()
    pair = tl.PreferenceRows("kto", tokenizer).expand(
        {"prompt": "Say", "chosen": " yes", "rejected": " no"}
    )
    assert [row["label"] for row in pair] == [True, False]


def test_supervised_rows_are_those_of_a_build(tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    rows = [
        {"messages": conversation(seed, system=seed % 2 == 0)} for seed in range(12)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = {"data_files": str(path), "tokenizer": tokenizer}
    built = tl.build_dataset(
        {
            "name": "c",
            "datasets": [dataset],
            "save": {"output_dir": str(tmp_path / "s")},
        },
        workers=1,
    )
    (shard,) = sorted(Path(built.path, "data").glob("*.parquet"))
    table = pq.read_table(shard)
    supervised = tl.SupervisedRows(tokenizer)
    for row, ids, bits in zip(
        rows,
        table["input_ids"].to_pylist(),
        table["loss_mask"].to_pylist(),
        strict=True,
    ):
        made = supervised(row)
        assert made["input_ids"] == ids
        assert made["labels"] == [
            token if bit else -100 for token, bit in zip(ids, bits, strict=True)
        ]
        assert made["attention_mask"] == [1] * len(ids)
    unmasked = tl.SupervisedRows(tokenizer, mask_prompt=False)(rows[0])
    assert sum(label != -100 for label in unmasked["labels"]) > sum(
        bits for bits in table["loss_mask"][0].as_py()
    )
    short = tl.SupervisedRows(tokenizer, max_length=20)
    with pytest.raises(BadRecordError, match="no token that counts toward the loss"):
        short({"messages": [{"role": "user", "content": "so " * 50}, CHAT[1]]})


def test_prompt_and_completion_are_supervised_too(tokenizer: str) -> None:
    made = tl.SupervisedRows(tokenizer)({"prompt": "Say yes:", "completion": " yes"})
    learned = [
        token
        for token, label in zip(made["input_ids"], made["labels"], strict=True)
        if label != -100
    ]
    assert 0 < len(learned) < len(made["input_ids"])
    with pytest.raises(BadRecordError, match="neither a conversation"):
        tl.SupervisedRows(tokenizer)({"body": "x"})
