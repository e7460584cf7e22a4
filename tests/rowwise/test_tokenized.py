"""TokenizedShardedSource: another source's rows as tokens, from any row on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Plain, numbered
from tests.seeds import promise
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake.config import TokenizerConfig
from tokenlake.easydel import batched_tokenize_iterator
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.tokenizers import TokenizerManager
from tokenlake.rowwise import JsonShardedSource, TokenizedShardedSource

MANAGER = TokenizerManager()
LLAMA = MANAGER.get_tokenizer(sentencepiece())


def words(count: int) -> list[dict[str, Any]]:
    return [{"text": f"row {i} " + "word " * (i % 7), "id": i} for i in range(count)]


def config(**options: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"name_or_path": "-"} | options)


def ids_of(texts: list[str]) -> list[list[int]]:
    return MANAGER.tokenize_batch(LLAMA, texts)["input_ids"]


@promise(153)
def test_rows_hold_ids_and_mask_and_nothing_else():
    rows = words(40)
    made = list(TokenizedShardedSource(Plain({"a": rows[:25], "b": rows[25:]}), LLAMA))
    assert [row["input_ids"] for row in made] == ids_of([row["text"] for row in rows])
    assert {tuple(row) for row in made} == {("input_ids", "attention_mask")}
    assert all(row["attention_mask"] == [1] * len(row["input_ids"]) for row in made)


def test_callback_then_renames_then_tokens_then_kept_fields():
    def callback(row: dict[str, Any]) -> dict[str, Any]:
        return {"body": row["text"].upper(), "number": row["id"], "rest": 0}

    source = TokenizedShardedSource(
        Plain({"a": words(3)}),
        LLAMA,
        None,
        "text",
        ["n"],
        format_callback=callback,
        format_fields={"body": "text", "number": "n"},
    )
    made = list(source)
    assert [row["n"] for row in made] == [0, 1, 2]
    assert made[1]["input_ids"] == ids_of(["ROW 1 WORD "])[0]
    assert set(made[0]) == {"n", "input_ids", "attention_mask"}


def test_a_callback_may_leave_rows_out_and_the_others_keep_their_numbers():
    source = TokenizedShardedSource(
        Plain({"a": words(10)}),
        LLAMA,
        format_callback=lambda row: row if row["id"] % 3 == 0 else None,
    )
    assert [number for number, _ in numbered(source, "a")] == [0, 3, 6, 9]
    assert [number for number, _ in numbered(source, "a", 4)] == [6, 9]
    with pytest.raises(TypeError, match="length"):
        len(source)


@settings(max_examples=12)
@given(
    st.integers(0, 30),
    st.integers(0, 31),
    st.integers(1, 9),
    st.sampled_from([False, "longest", "max_length"]),
)
def test_seeking_gives_the_rows_that_reading_gives(
    rows: int, first: int, batch_size: int, padding: object
):
    options = {
        "batch_size": batch_size,
        "tokenizer_config": config(padding=padding, max_length=9),
    }
    source = TokenizedShardedSource(Plain({"a": words(rows)}), LLAMA, **options)
    whole = numbered(source, "a")
    assert [number for number, _ in whole] == list(range(rows))
    if first > rows:
        with pytest.raises(ConfigError, match="beyond its end"):
            numbered(source, "a", first)
    else:
        assert numbered(source, "a", first) == whole[first:]


def test_rows_before_a_bad_one_come_first_and_it_is_named():
    rows = [*words(5), {"text": None}, *words(3)]
    stream = TokenizedShardedSource(Plain({"shard": rows}), LLAMA).open_shard("shard")
    seen = []
    with pytest.raises(
        BadRecordError,
        match=r"shard 'shard', row 5: the field 'text' is missing or null",
    ) as caught:
        seen.extend(stream)
    assert caught.value.details["row"] == 5
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": "a"}, "missing or null; it has 'body'"),
        ({"text": 3}, "holds int, expected text"),
        ({"text": "\ud83d"}, "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_tokenized_is_a_bad_record(row: dict[str, Any], message: str):
    with pytest.raises(BadRecordError, match=message):
        list(TokenizedShardedSource(Plain({"a": [row]}), LLAMA))


def test_errors_of_the_callback_say_where():
    source = TokenizedShardedSource(
        Plain({"s": words(2)}), LLAMA, format_callback=lambda row: row["no"]
    )
    with pytest.raises(KeyError) as caught:
        list(source)
    assert "shard 's', row 0" in caught.value.__notes__[0]
    source = TokenizedShardedSource(
        Plain({"s": words(2)}), LLAMA, format_callback=lambda row: 3
    )
    with pytest.raises(ConfigError, match="format_callback returned int"):
        list(source)


def test_the_iterator_takes_any_rows(tmp_path: Path):
    rows = words(20)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = ids_of([row["text"] for row in rows])
    for source in (rows, iter(rows), JsonShardedSource(str(path))):
        made = list(
            batched_tokenize_iterator(
                source, LLAMA, additional_fields=["id"], batch_size=6
            )
        )
        assert [row["input_ids"] for row in made] == expected
        assert [row["id"] for row in made] == list(range(20))


def test_one_of_tokenizer_and_configuration_is_needed(tmp_path: Path):
    with pytest.raises(ConfigError, match="tokenizer: missing"):
        TokenizedShardedSource(Plain({}))
    for name, data in byte_level().files.items():
        (tmp_path / name).write_bytes(data)
    named = TokenizerConfig(name_or_path=str(tmp_path), max_length=2)
    (made,) = TokenizedShardedSource(
        Plain({"a": [{"text": "a b c d"}]}), tokenizer_config=named
    )
    assert len(made["input_ids"]) == 2


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"additional_fields": "text"}, {"format_callback": 3}],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(options))):
        TokenizedShardedSource(Plain({}), LLAMA, **options)


def test_a_kept_field_that_is_missing_is_a_bad_record():
    with pytest.raises(
        BadRecordError, match="additional_fields: the row has no field 'lang'"
    ):
        list(
            TokenizedShardedSource(
                Plain({"a": [{"text": "a"}]}), LLAMA, additional_fields=["lang"]
            )
        )
