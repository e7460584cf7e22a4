"""Row-wise chat: the same texts as transformers, from a name, a path or an object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import tokenlake
from tests.text.chat_samples import CHATML, MARKED_CHATML, TOOLS_CHATML, conversation, speaking, write
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.sources.rows import Rows
from tokenlake.text.chat.template import ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ROW = {"id": 7, "messages": conversation(1)}
TEXT = ChatTemplate(CHATML, TOKENS).render(conversation(1)).text
VALUES = [
    {"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in conversation(1)
]


class Lists(tokenlake.ShardedDataSource):
    """Rows in memory."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @property
    def shard_names(self) -> Sequence[str]:
        return ["a"]

    def open_shard(self, shard_name: str) -> Iterator[dict[str, Any]]:
        return iter(self._rows)


def transform(*args: Any, template: str = CHATML, **options: Any) -> tokenlake.ChatTemplateTransform:
    return tokenlake.ChatTemplateTransform(speaking(template), *args, **options)


def refused(changed: Any, row: dict[str, Any]) -> str:
    with pytest.raises(BadRecordError) as caught:
        changed(row)
    return f"{caught.value.details['reason']}: {caught.value}"


def test_a_row_gets_its_text_and_loses_its_messages():
    row = dict(ROW)
    assert transform()(row) == {"id": 7, "text": TEXT}
    assert row == ROW
    assert transform(output_field="prompt", drop_messages=False)(row) == {**ROW, "prompt": TEXT}
    assert transform("chat")({"chat": ROW["messages"]}) == {"text": TEXT}
    assert transform(add_generation_prompt=True)(row)["text"] == TEXT + "<|im_start|>assistant\n"


@pytest.mark.parametrize("field", ["messages", "conversations", "conversation"])
def test_other_fields_and_values_are_understood(field):
    assert transform()({field: VALUES}) == {"text": TEXT}
    assert transform(output_field=field)({field: VALUES}) == {field: TEXT}
    told = refused(transform(convert_from_value_format=False), {field: VALUES})
    assert told.startswith(f"no_role: the field '{field}': turn 1: it has no role")


def test_names_paths_files_and_objects_of_transformers_are_tokenizers(tmp_path):
    from transformers import AutoTokenizer

    folder = write(speaking(TOOLS_CHATML), tmp_path / "tokenizer")
    theirs = AutoTokenizer.from_pretrained(folder)
    tools = [{"type": "function", "function": {"name": "add"}}]
    expected = theirs.apply_chat_template(conversation(1), tools=tools, tokenize=False)
    for tokenizer in (folder, str(folder), str(folder / "tokenizer.json"), theirs, speaking(TOOLS_CHATML)):
        made = tokenlake.ChatTemplateTransform(tokenizer, tools=tools)
        assert made(ROW)["text"] == expected
        assert "'<|im_end|>'" in refused(made, {"messages": [{"role": "user", "content": "<|im_end|>"}]})
    with pytest.raises(ConfigError, match="got a SimpleNamespace, must be a Hub id"):
        tokenlake.ChatTemplateTransform(SimpleNamespace())
    assert transform(template=MARKED_CHATML)(ROW)["text"] == TEXT


def test_a_rows_own_tools_are_rendered_unless_others_are_given():
    row = {**ROW, "tools": [{"name": "mine", "nothing": None}]}
    assert transform(template=TOOLS_CHATML)(row)["text"].startswith(
        '<|im_start|>system\nTools:\n{"name": "mine"}'
    )
    given = transform(template=TOOLS_CHATML, tools=[{"name": "given"}])(row)
    assert given["text"].startswith('<|im_start|>system\nTools:\n{"name": "given"}')
    assert given["tools"] == row["tools"]
    exact = transform(template=TOOLS_CHATML, drop_nulls=False)(row)
    assert '{"name": "mine", "nothing": null}' in exact["text"]


def test_rows_that_cannot_be_rendered_are_errors_never_other_texts():
    forged = [{"role": "user", "content": "<|im_end|>"}]
    assert refused(transform(), {"text": "x"}).startswith(
        "no_messages: the row has no conversation: none of messages"
    )
    assert refused(transform(), {**ROW, "text": "x"}).startswith(
        "field_exists: the row has a field 'text' already"
    )
    assert refused(transform(), {"messages": []}).startswith("no_messages: the field 'messages': it is empty")
    assert refused(transform(), {"messages": forged}).startswith("special_token_in_text")
    assert "<|im_end|><|im_end|>" in transform(special_tokens_in_text="encode")({"messages": forged})["text"]
    failing = tokenlake.ChatTemplateTransform(speaking(CHATML), template="{{ messages[0].tone }}")
    assert refused(failing, ROW).startswith("template_error: the chat template fails in line 1")
    with pytest.raises(ConfigError, match="'literal' is not possible"):
        transform(special_tokens_in_text="literal")


def test_rows_without_a_conversation_pass_where_that_may_be():
    maybe = tokenlake.MaybeApplyChatTemplate(speaking(CHATML), output_field="said")
    assert maybe({"text": "plain"}) == {"text": "plain"}
    assert maybe({"text": "plain", "messages": None}) == {"text": "plain", "messages": None}
    assert maybe(ROW) == {"id": 7, "said": TEXT}
    assert refused(maybe, {"messages": [{"role": "user"}]}).startswith("no_content")


def test_many_rows_and_chains():
    chain = tokenlake.ConvertToChatML() >> transform()
    outcome = chain.on_rows(Rows(objects=[{"conversations": VALUES}, {"messages": 7}, ROW]))
    assert [row["text"] for row in outcome.rows.objects] == [TEXT, TEXT]
    assert [(index, fault.reason) for index, fault in outcome.bad] == [(1, "not_messages")]


def test_a_source_applies_a_template_and_names_the_row_that_fails():
    source = Lists([ROW, {"conversations": VALUES}]).apply_chat_template(speaking(CHATML))
    assert list(source) == [{"id": 7, "text": TEXT}, {"text": TEXT}]
    assert list(source.open_shard_at_row("a", 1)) == [{"text": TEXT}]
    asked = Lists([ROW]).apply_chat_template(
        speaking(CHATML), "messages", "prompt", add_generation_prompt=True
    )
    assert list(asked) == [{"id": 7, "prompt": TEXT + "<|im_start|>assistant\n"}]
    with pytest.raises(BadRecordError, match="shard 'a', row 1: the row has no conversation"):
        list(Lists([ROW, {"x": 1}]).apply_chat_template(speaking(CHATML)))
