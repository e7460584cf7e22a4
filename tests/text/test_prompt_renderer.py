"""Columns to prompts and to turns of chats: the same from columns and objects, what
is learned, and bad rows named.
"""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.text.support import learned_texts
from tests.tokenizers.tokenizer_samples import sentencepiece
from tokenlake.errors import ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import open_prompt, resolved_prompt
from tokenlake.etl.tokenizers import TokenizerFiles

ALPACA = "Below.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}"
PLAIN = {"template": "Q: {q}\nA: {a} end", "label_column": "a"}
words = st.text(st.characters(codec="utf-8"), max_size=9)


def renderer(mode: str = "literal", **changes: Any) -> Any:
    return open_prompt(resolved_prompt(changes), sentencepiece(), mode)


def reasons(made: Any) -> dict[int, str]:
    return {index: fault.reason for index, fault in made.bad}


@given(
    st.lists(st.fixed_dictionaries({"q": words, "a": words, "more": words}), max_size=6)
)
def test_texts_and_spans_are_those_of_a_plain_loop(rows: list[dict[str, str]]) -> None:
    full = [row for row in rows if row["a"]]
    for given_rows in (
        Rows(objects=rows),
        Rows(pa.RecordBatch.from_pylist(rows) if rows else _no_rows()),
    ):
        made = renderer(**PLAIN).render(given_rows)
        assert made.text.to_pylist() == [
            f"Q: {row['q']}\nA: {row['a']} end" for row in full
        ]
        assert learned_texts(made) == [[row["a"]] for row in full]
        assert made.origin.tolist() == [
            index for index, row in enumerate(rows) if row["a"]
        ]
        assert reasons(made) == {
            index: "empty_label" for index, row in enumerate(rows) if not row["a"]
        }


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"q": pa.array([], pa.string()), "a": pa.array([], pa.string())}
    )


VALUES = [
    (True, "true"),
    (False, "false"),
    (12, "12"),
    (-(2**63), "-9223372036854775808"),
    (2**63 - 1, "9223372036854775807"),
    (1.0, "1.0"),
    (1.5, "1.5"),
    (1e300, "1e+300"),
    (0.1, "0.1"),
]


@pytest.mark.parametrize(("value", "text"), VALUES)
def test_numbers_and_booleans_stand_as_json_writes_them(value: Any, text: str) -> None:
    rows = [{"q": value, "a": "x"}]
    for form in (Rows(objects=rows), Rows(pa.RecordBatch.from_pylist(rows))):
        made = renderer(**PLAIN).render(form)
        assert made.text.to_pylist() == [f"Q: {text}\nA: x end"]
    if not isinstance(value, str):
        assert json.loads(text) == value


def test_a_value_is_what_it_is_whatever_stands_beside_it() -> None:
    """As one column, 1 and 1.5 would both be doubles, and text beside a number would
    be quoted.
    """
    values = [1, 1.5, "one", True, None, [1], {"x": 1}]
    rows = Rows(objects=[{"q": value, "a": "x"} for value in values])
    made = renderer(**PLAIN).render(rows)
    assert [str(text)[3:-9] for text in made.text.to_pylist()] == [
        "1",
        "1.5",
        "one",
        "true",
    ]
    assert reasons(made) == {4: "null_column", 5: "not_a_string", 6: "not_a_string"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", None, "é"], pa.string()),
        pa.array(["x", None, "é"], pa.large_string()),
        pa.array(["x", None, "é"], pa.string_view()),
        pa.array(["x", None, "é"]).dictionary_encode(),
        pa.array(["-", "x", None, "é"], pa.large_string())[1:],
    ],
)
def test_text_is_taken_from_every_type_that_holds_it(column: Any) -> None:
    batch = pa.RecordBatch.from_arrays([column, pa.array(["1", "2", "3"])], ["q", "a"])
    made = renderer(**PLAIN).render(Rows(batch))
    assert made.text.to_pylist() == ["Q: x\nA: 1 end", "Q: é\nA: 3 end"]
    assert reasons(made) == {1: "null_column"}
    assert learned_texts(made) == [["1"], ["3"]]


@pytest.mark.parametrize(
    "value",
    [[1], {"x": 1}, date(2020, 1, 1), Decimal("1.5"), float("nan"), float("inf"), b"x"],
)
def test_what_is_no_text_is_a_bad_record(value: Any) -> None:
    rows = [{"q": value, "a": "x"}]
    for form in (Rows(objects=rows), Rows(pa.RecordBatch.from_pylist(rows))):
        made = renderer(**PLAIN).render(form)
        assert reasons(made) == {0: "not_a_string"}
        assert "column 'q' holds" in made.bad[0][1].detail


def test_half_a_surrogate_pair_is_a_bad_record() -> None:
    made = renderer(**PLAIN).render(
        Rows(objects=[{"q": "\ud800", "a": "x"}, {"q": "y", "a": "x"}])
    )
    assert reasons(made) == {0: "invalid_utf8"}
    assert made.origin.tolist() == [1]


def test_a_missing_column_is_named_with_those_that_exist_and_the_nearest() -> None:
    rows = [{"question": "?", "a": "x"}]
    for form in (Rows(objects=rows), Rows(pa.RecordBatch.from_pylist(rows))):
        made = renderer(template="{qestion} {a}", label_column="a").render(form)
        assert reasons(made) == {0: "null_column"}
        assert made.bad[0][1].detail == (
            "there is no column 'qestion'; there are 'question', 'a'; did you mean 'question'?"
        )


def test_an_optional_column_may_be_null_or_missing_and_leaves_its_place_empty() -> None:
    rows = [{"q": None, "a": "x"}, {"a": "y"}, {"q": "z", "a": "w"}]
    for form in (
        Rows(objects=rows),
        Rows(pa.RecordBatch.from_pylist(rows)),
        Rows(objects=rows[:2]),
    ):
        made = renderer(**PLAIN, optional_columns=["q"]).render(form)
        assert made.text.to_pylist()[:2] == ["Q: \nA: x end", "Q: \nA: y end"]
        assert made.bad == ()


def test_a_field_inside_a_column_can_be_used() -> None:
    rows = [
        {"m": {"q": "deep"}, "a": "x"},
        {"m": {"q": None}, "a": "x"},
        {"m.q": "flat", "a": "x"},
    ]
    found = [
        renderer(template="{m.q} {a}", label_column="a").render(Rows(objects=[row]))
        for row in rows
    ]
    assert [made.text.to_pylist() for made in found] == [["deep x"], [], ["flat x"]]
    batch = Rows(pa.RecordBatch.from_pylist(rows[:2]))
    assert renderer(template="{m.q} {a}", label_column="a").render(
        batch
    ).text.to_pylist() == ["deep x"]
    assert renderer(template="{m.q} {a}", label_column="a").columns is None
    assert renderer(**PLAIN).columns == ("q", "a")


def test_where_the_template_spells_no_control_token_a_rows_own_are_text() -> None:
    rows = Rows(objects=[{"q": "a </s> b", "a": "<s>"}])
    made = renderer(**PLAIN)
    assert not made.control_tokens
    assert made.render(rows).text.to_pylist() == ["Q: a </s> b\nA: <s> end"]
    assert reasons(renderer("fail", **PLAIN).render(rows)) == {
        0: "special_token_in_text"
    }


def test_where_it_does_a_row_that_spells_one_is_bad_unless_they_are_to_be_encoded() -> (
    None
):
    template = {"template": "<s>[INST] {q} [/INST] {a}</s>", "label_column": "a"}
    rows = Rows(
        objects=[
            {"q": "fine", "a": "x"},
            {"q": "no </s>", "a": "x"},
            {"q": "y", "a": "<unk>"},
        ]
    )
    for mode in ("literal", "fail"):
        made = renderer(mode, **template)
        assert made.control_tokens
        assert reasons(made.render(rows)) == {
            1: "special_token_in_text",
            2: "special_token_in_text",
        }
        assert "'q'" in made.render(rows).bad[0][1].detail
    assert reasons(renderer("encode", **template).render(rows)) == {}


def test_a_value_cannot_make_a_special_token_with_the_template_beside_it() -> None:
    template = {"template": "<s>{q}> {a}</s>", "label_column": "a"}
    made = renderer(**template).render(
        Rows(objects=[{"q": "a </s", "a": "x"}, {"q": "fine", "a": "x"}])
    )
    assert reasons(made) == {0: "special_token_in_text"}
    assert made.text.to_pylist() == ["<s>fine> x</s>"]


def test_the_first_fault_of_a_row_is_told() -> None:
    made = renderer(**PLAIN).render(
        Rows(objects=[{"q": None, "a": None}, {"q": [1], "a": ""}])
    )
    assert [fault.detail[:12] for _, fault in made.bad] == ["the column '"] * 2
    assert reasons(made) == {0: "null_column", 1: "not_a_string"}


def test_no_rows_and_no_good_rows_make_no_texts() -> None:
    for rows in (Rows(_no_rows()), Rows(objects=[]), Rows(objects=[{}])):
        made = renderer(**PLAIN).render(rows)
        assert len(made.text) == len(made.origin) == 0
        assert made.spans is not None
        assert made.spans.offsets.tolist() == [0]


# ---- prompts of the format chat, of which the last answer is learned
# -------------------------------------

MARKED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content.strip() }}{{ eos_token }}{% endgeneration %}"
    "{% else %}[{{ m.role }}] {{ m.content.strip() }} [/]{% endif %}{% endfor %}"
)
UNMARKED = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = {
    "format_type": "chat",
    "input_columns": ["q", "c"],
    "label_column": "a",
    "optional_columns": ["c"],
}
ROWS = [
    {"q": "été?", "c": "ctx", "a": "oui – 1"},
    {"q": "two", "a": "zwei"},
    {"q": "three", "c": "", "a": 3},
]


def with_template(template: str | None) -> TokenizerFiles:
    files = sentencepiece()
    config = {
        **files.config,
        **({} if template is None else {"chat_template": template}),
    }
    return TokenizerFiles(
        name="chatty",
        files={**files.files, "tokenizer_config.json": json.dumps(config).encode()},
    )


def render(
    template: str, rows: list[dict[str, Any]], mode: str = "literal", **changes: Any
) -> Any:
    prompt = resolved_prompt({**CHAT, **changes})
    return open_prompt(prompt, with_template(template), mode).render(Rows(objects=rows))


def learned(made: Any) -> list[str]:
    """Return the one stretch of each text that is learned."""
    found = learned_texts(made)
    assert {len(each) for each in found} <= {1}
    return [text for each in found for text in each]


def test_input_and_label_become_turns_and_the_answer_is_learned() -> None:
    made = render(MARKED, ROWS)
    assert made.text.to_pylist() == [
        "<s>[user] été?\nctx [/]oui – 1</s>",
        "<s>[user] two [/]zwei</s>",
        "<s>[user] three [/]3</s>",
    ]
    assert learned(made) == ["oui – 1</s>", "zwei</s>", "3</s>"]
    made = render(UNMARKED, ROWS)
    assert made.text[1].as_py() == "<s><user>two\n<assistant>zwei</s>\n"
    assert learned(made) == ["oui – 1</s>", "zwei</s>", "3</s>"]


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_system_message_and_examples_are_turns_before_and_not_learned(
    template: str,
) -> None:
    shots = {
        "system_message": "Be brief.",
        "examples": [{"q": "one", "a": "eins"}, {"q": "six", "c": "7", "a": "s"}],
    }
    made = render(template, ROWS, **shots)
    assert learned(made) == ["oui – 1</s>", "zwei</s>", "3</s>"]
    text = str(made.text[1].as_py())
    assert [
        text.index(word)
        for word in ("Be brief.", "one", "eins", "six\n7", "two", "zwei")
    ] == sorted(
        text.index(word)
        for word in ("Be brief.", "one", "eins", "six\n7", "two", "zwei")
    )
    everything = render(template, ROWS, mask_input=False, **shots)
    for found, answer in zip(
        learned(everything), ("oui – 1", "zwei", "3"), strict=True
    ):
        assert "eins" not in found
        assert answer in found
        assert found.count("user") == 1
    assert (
        learned(render(template, ROWS, mask_input=False))
        == render(template, ROWS).text.to_pylist()
    )


def test_columns_and_objects_give_the_same() -> None:
    prompt = resolved_prompt({**CHAT, "examples": [{"q": "one", "a": "eins"}]})
    renderer: Any = open_prompt(prompt, with_template(MARKED), "literal")
    rows = [{**row, "a": str(row["a"])} for row in ROWS]
    objects, columns = (
        renderer.render(Rows(objects=rows)),
        renderer.render(Rows(pa.RecordBatch.from_pylist(rows))),
    )
    assert objects.text.equals(columns.text)
    assert learned(objects) == learned(columns)
    assert (renderer.columns, renderer.needed, renderer.control_tokens) == (
        ("q", "c", "a"),
        ("q", "a"),
        True,
    )


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
    refusing = (
        "{{ raise_exception('no system') if messages[0].role == 'system' }}" + MARKED
    )
    ((_, fault),) = render(refusing, ROWS[:1], system_message="x").bad
    assert "no system" in fault.detail


def test_what_a_chat_cannot_be_made_of_is_said() -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        open_prompt(resolved_prompt(CHAT), with_template(None), "literal")
    with pytest.raises(
        ConfigError,
        match=r"prompt\.examples\.0: the column 'q' contains a special token",
    ):
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
