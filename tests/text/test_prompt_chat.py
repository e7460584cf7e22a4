"""Prompts of the format chat: turns of the tokenizer's chat template, of which the last answer is learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import tokenlake as tl
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.errors import ConfigError
from tokenlake.sources.rows import Rows
from tokenlake.text.prompt.engine import resolved_prompt
from tokenlake.text.prompt.renderer import ChatPromptRenderer
from tokenlake.text.rendering import Rendered
from tokenlake.tokenizers.files import TokenizerFiles

MARKED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content.strip() }}{{ eos_token }}{% endgeneration %}"
    "{% else %}[{{ m.role }}] {{ m.content.strip() }} [/]{% endif %}{% endfor %}"
)
UNMARKED = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = {"format_type": "chat", "input_columns": ["q", "c"], "label_column": "a", "optional_columns": ["c"]}
ROWS = [{"q": "été?", "c": "ctx", "a": "oui – 1"}, {"q": "two", "a": "zwei"}, {"q": "three", "c": "", "a": 3}]


def with_template(template: str | None) -> TokenizerFiles:
    files = sentencepiece()
    config = {**files.config, **({} if template is None else {"chat_template": template})}
    return TokenizerFiles(
        name="chatty", files={**files.files, "tokenizer_config.json": json.dumps(config).encode()}
    )


def render(template: str, rows: list[dict[str, Any]], mode: str = "literal", **changes: Any) -> Rendered:
    prompt = resolved_prompt({**CHAT, **changes})
    return ChatPromptRenderer(prompt, with_template(template), mode).render(Rows(objects=rows))


def learned(made: Rendered) -> Iterator[str]:
    assert made.spans is not None
    for row, text in enumerate(made.text.to_pylist()):
        (at,) = range(int(made.spans.offsets[row]), int(made.spans.offsets[row + 1]))
        yield str(text).encode()[made.spans.start[at] : made.spans.stop[at]].decode()


def test_input_and_label_become_turns_and_the_answer_is_learned() -> None:
    made = render(MARKED, ROWS)
    assert made.text.to_pylist() == [
        "<s>[user] été?\nctx [/]oui – 1</s>",
        "<s>[user] two [/]zwei</s>",
        "<s>[user] three [/]3</s>",
    ]
    assert list(learned(made)) == ["oui – 1</s>", "zwei</s>", "3</s>"]
    made = render(UNMARKED, ROWS)
    assert made.text[1].as_py() == "<s><user>two\n<assistant>zwei</s>\n"
    assert list(learned(made)) == ["oui – 1</s>", "zwei</s>", "3</s>"]


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_system_message_and_examples_are_turns_before_and_not_learned(template: str) -> None:
    shots = {
        "system_message": "Be brief.",
        "examples": [{"q": "one", "a": "eins"}, {"q": "six", "c": "7", "a": "s"}],
    }
    made = render(template, ROWS, **shots)
    assert list(learned(made)) == ["oui – 1</s>", "zwei</s>", "3</s>"]
    text = str(made.text[1].as_py())
    assert [text.index(word) for word in ("Be brief.", "one", "eins", "six\n7", "two", "zwei")] == sorted(
        text.index(word) for word in ("Be brief.", "one", "eins", "six\n7", "two", "zwei")
    )
    everything = render(template, ROWS, mask_input=False, **shots)
    for found, answer in zip(learned(everything), ("oui – 1", "zwei", "3"), strict=True):
        assert "eins" not in found
        assert answer in found
        assert found.count("user") == 1
    assert list(learned(render(template, ROWS, mask_input=False))) == render(template, ROWS).text.to_pylist()


def test_columns_and_objects_give_the_same() -> None:
    prompt = resolved_prompt({**CHAT, "examples": [{"q": "one", "a": "eins"}]})
    renderer = ChatPromptRenderer(prompt, with_template(MARKED), "literal")
    rows = [{**row, "a": str(row["a"])} for row in ROWS]
    objects, columns = (
        renderer.render(Rows(objects=rows)),
        renderer.render(Rows(pa.RecordBatch.from_pylist(rows))),
    )
    assert objects.text.equals(columns.text)
    assert list(learned(objects)) == list(learned(columns))
    assert (renderer.columns, renderer.needed, renderer.control_tokens) == (("q", "c", "a"), ("q", "a"), True)


def test_a_row_that_cannot_be_a_conversation_is_bad() -> None:
    rows = [
        {"q": "a </s>", "a": "x"},
        {"a": "x"},
        {"q": "x", "a": ""},
        {"q": "x", "a": ["y"]},
        {"q": "x", "a": "ok"},
    ]
    made = render(MARKED, rows)
    assert {index: fault.reason for index, fault in made.bad} == {
        0: "special_token_in_text",
        1: "null_column",
        2: "empty_label",
        3: "not_a_string",
    }
    assert made.origin.tolist() == [4]
    assert render(MARKED, rows[:1], "encode").bad == ()
    refusing = "{{ raise_exception('no system') if messages[0].role == 'system' }}" + MARKED
    ((_, fault),) = render(refusing, ROWS[:1], system_message="x").bad
    assert "no system" in fault.detail


def test_what_a_chat_cannot_be_made_of_is_said() -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        ChatPromptRenderer(resolved_prompt(CHAT), with_template(None), "literal")
    with pytest.raises(ConfigError, match=r"prompt\.examples\.0: the column 'q' spells out a special token"):
        render(MARKED, ROWS, examples=[{"q": "<s>", "a": "x"}])


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_the_engine_learns_the_answer_and_its_end(template: str) -> None:
    engine = tl.PromptEngine(CHAT, with_template(template), padding=False)
    for row, answer in zip(ROWS, ("oui – 1", "zwei", "3"), strict=True):
        found = engine.process(row).unwrap()
        ids, labels = found["input_ids"], found["labels"]
        own = labels[labels != -100]
        assert own[-1] == 2
        assert (ids.tolist().count(1), ids.tolist().count(2), ids[0]) == (1, 1, 1)
        text = engine._labeller.encoder.decode(own[:-1])
        assert text.strip() == answer
