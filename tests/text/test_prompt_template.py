"""Templates: two styles of braces, never both, and nothing but columns in them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.text.support import learned_texts
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake.config import PromptConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import PromptRenderer, resolved_prompt

ROW = {"q": "what?", "a": "that"}
QA = {"template": "{q} {a}", "label_column": "a"}
texts = st.text(st.characters(codec="utf-8"), max_size=12)


def rendered(
    template: str, row: dict[str, Any] = ROW, columns: tuple[str, ...] = ()
) -> str:
    """Render a row by a template that may use some columns; none given: any."""
    return text_and_learned(row, template=template, input_columns=columns)[0]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Q: {q}\nA: {a}", "Q: what?\nA: that"),
        ("{q}{a}", "what?that"),
        ('{{"q": "{q}"}} {a}', '{"q": "what?"} that'),
        ("{{{q}}}", "{what?}"),
        ("{{}} {q}", "{} what?"),
        ("{{ 12 }} {q}", "{ 12 } what?"),
        ("Q: {{ q }}\nA: {{ a }}", "Q: what?\nA: that"),
        ("{{q}}{{a}}", "what?that"),
        ('{"q": {{ q }}}', '{"q": what?}'),
        ("{{ '{{' }} {{ q }} {{ '}}' }}", "{{ what? }}"),
        ('{{ "{" }}q} {{ a }}', "{q} that"),
        ("{} { x: {{ q }} }", "{} { x: what? }"),
        ("{q}\n", "what?"),
        ("{q}\r\n", "what?"),
        ("{q}\n\n", "what?\n"),
        ("{{ q }}\n", "what?"),
    ],
)
def test_columns_are_put_in_and_braces_kept(template: str, text: str) -> None:
    assert rendered(template) == text


@given(
    st.lists(
        st.one_of(texts, st.sampled_from(["q", "a"]).map(lambda name: (name,))),
        max_size=8,
    ),
    texts,
    texts,
)
def test_a_template_of_python_gives_what_format_gives(
    parts: list[Any], q: str, a: str
) -> None:
    template = "".join(
        f"{{{part[0]}}}"
        if isinstance(part, tuple)
        else part.replace("{", "{{").replace("}", "}}")
        for part in parts
    )
    template += "{q}"
    # What looks like a column in doubled braces is for the other style.
    if re.search(r"\{\{\s*[^\W\d]|\{[%#]|\{\{\s*['\"]", template):
        assume(False)
    assert rendered(template, {"q": q, "a": a}) == template.format(q=q, a=a)


@given(
    st.lists(
        st.sampled_from(["{{ q }}", "{{a}}", "x", " ", "\n", "{", "é", "}"]),
        min_size=1,
        max_size=8,
    )
)
def test_a_template_of_jinja_gives_what_jinja_gives(parts: list[str]) -> None:
    jinja2 = pytest.importorskip("jinja2")
    # Braces beside braces make others of them: two are put apart.
    template = " ".join([*parts, "{{ q }}"])
    assert rendered(template) == jinja2.Template(template).render(**ROW)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{q} {{a}}", "mixes two styles, '{{a}}' and '{q}'"),
        ("{{ q }} {a}", "mixes two styles"),
        ("{{ q | upper }} {{ a }}", "'{{ q | upper }}', but only the name of a column"),
        ("{q} {{ a | upper }}", "'{{ a | upper }}', but only the name of a column"),
        ("{{ q.upper() }} {{ a }}", "but only the name of a column"),
        ("{q!r} {a}", "'{q!r}'"),
        ("{q:>10} {a}", "'{q:>10}'"),
        ("{q} {a} {}", "'{}'"),
        ("{ q } {a}", "'{ q }'"),
        ("{q", "'{', but only the name of a column"),
        ("{q} }", "'}', but only the name of a column"),
        ("{{ q }} {{", "'{{', but only the name"),
        ("no columns", "uses no column"),
        ("{{q: 1}} {a}", "'{{q: 1}}'"),
        (
            "{qq} {a}",
            "'qq', which is neither in input_columns nor the label_column ('q', 'a'); did you mean 'q'",
        ),
        ("{{ Q }} {{ a }}", "did you mean 'q'?"),
    ],
)
def test_anything_else_in_braces_is_an_error_that_says_so(
    template: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        opened(template=template, input_columns=["q", "a"])
    assert caught.value.field_path == "prompt.template"
    assert caught.value.expected and caught.value.got


def test_columns_may_have_any_name_that_the_configuration_names() -> None:
    columns = ("my question", "a.b")
    assert (
        rendered("{my question} {a.b}", {"my question": "x", "a.b": "y"}, columns)
        == "x y"
    )
    with pytest.raises(ConfigError, match=re.escape("'{my question}'")):
        opened(template="{my question}")


def opened(**changes: Any) -> PromptRenderer:
    return PromptRenderer(resolved_prompt(changes), sentencepiece(), "literal")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "format_type: 'custom' requires a template"),
        (
            {"format_type": "completion", "template": "{q}"},
            "template: is for format_type 'custom'",
        ),
        (
            {"format_type": "completion", "input_columns": ["q"]},
            "label_column: missing",
        ),
        ({"format_type": "chat", "label_column": "a"}, "input_columns: missing"),
        ({"template": "{q}", "input_columns": ["q", "q"]}, "named twice"),
        (
            {"template": "{a}", "input_columns": ["a"], "label_column": "a"},
            "is one of input_columns",
        ),
        (
            {"template": "{a}", "label_column": "a", "optional_columns": ["a"]},
            "is the label_column",
        ),
        (
            {
                "template": "{q}",
                "input_columns": ["query"],
                "optional_columns": ["qury"],
            },
            "did you mean 'query'?",
        ),
        (
            {**QA, "input_columns": ["q"], "examples": [{"q": "x", "aa": "y"}]},
            "examples.0: has no column 'a'; it has 'q', 'aa'; did you mean 'aa'?",
        ),
    ],
)
def test_a_section_that_contradicts_itself_is_refused_when_it_is_read(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        PromptConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**QA, "input_columns": ["q", "b"]}, "'b' is not used in the template"),
        (
            {"template": "{q}", "input_columns": ["q"], "label_column": "a"},
            "'a' stands 0 times",
        ),
        (
            {"template": "{a}{q}{a}", "input_columns": ["q"], "label_column": "a"},
            "'a' stands 2 times",
        ),
        ({**QA, "optional_columns": ["c"]}, "'c' is not used"),
        ({**QA, "examples": [{"q": None, "a": "x"}]}, "examples.0: the column 'q'"),
        ({**QA, "examples": [{"q": "x", "a": ""}]}, "is empty, so there is no answer"),
        (
            {**QA, "template": "<s>{q}{a}", "examples": [{"q": "x", "a": "</s>"}]},
            "contains a special token",
        ),
    ],
)
def test_a_template_that_does_not_fit_its_columns_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        opened(**changes)


def text_and_learned(row: dict[str, Any], **changes: Any) -> tuple[str, list[str]]:
    made = opened(**changes).render(Rows(objects=[row]))
    assert made.bad == ()
    return str(made.text[0].as_py()), learned_texts(made)[0]


def test_the_label_alone_is_learned_wherever_it_stands() -> None:
    assert text_and_learned(ROW, template="{q} é {a} end", label_column="a") == (
        "what? é that end",
        ["that"],
    )
    assert text_and_learned(ROW, template="{a} {q}", label_column="a") == (
        "that what?",
        ["that"],
    )


def test_without_a_mask_or_a_label_all_is_learned() -> None:
    for changes in ({"mask_input": False, "label_column": "a"}, {}):
        text, learned = text_and_learned(ROW, template="{q} {a} end", **changes)
        assert learned == [text]


def test_the_eos_that_a_template_spells_after_the_label_is_learned_with_it() -> None:
    spelled = {"template": "<s>[Q] {q} [A] {a} </s> and {q}</s>", "label_column": "a"}
    assert text_and_learned(ROW, **spelled)[1] == ["that </s>"]
    later = {"template": "<s>{q} {a}\n## End</s>", "label_column": "a"}
    assert text_and_learned(ROW, **later)[1] == ["that", "</s>"]
    before = {"template": "{q}</s>{a}", "label_column": "a"}
    assert text_and_learned(ROW, **before)[1] == ["that"]


def test_system_message_and_examples_come_first_and_are_not_learned() -> None:
    shots = [{"q": "one", "a": "eins"}, {"q": "two", "a": 2, "more": None}]
    text, learned = text_and_learned(
        ROW,
        template="Q: {q}\nA: {a}",
        label_column="a",
        system_message="Answer.",
        examples=shots,
        example_separator="\n--\n",
    )
    assert (
        text == "Answer.\n--\nQ: one\nA: eins\n--\nQ: two\nA: 2\n--\nQ: what?\nA: that"
    )
    assert learned == ["that"]
    text, learned = text_and_learned(
        ROW,
        template="{q} {a}",
        label_column="a",
        system_message="S",
        examples=shots[:1],
        mask_input=False,
    )
    assert (text, learned) == ("S\n\none eins\n\nwhat? that", ["S\n\n", "what? that"])


def test_a_completion_is_its_inputs_and_the_label() -> None:
    completion = {
        "format_type": "completion",
        "input_columns": ["i", "c"],
        "label_column": "a",
        "optional_columns": ["c"],
        "examples": [{"i": "X", "a": "Y"}],
    }
    assert text_and_learned({"i": "do", "c": "it", "a": "done"}, **completion) == (
        "X\nY\n\ndo\nit\ndone",
        ["done"],
    )
    for empty in ({"c": ""}, {"c": None}, {}):
        assert (
            text_and_learned({"i": "do", "a": "done", **empty}, **completion)[0]
            == "X\nY\n\ndo\ndone"
        )
    text, _ = text_and_learned(
        {"i": "do", "c": "it", "a": "done"}, **completion | {"separator": " | "}
    )
    assert text.endswith("do | it | done")


def test_a_special_token_of_the_templates_own_makes_it_one_of_control_tokens() -> None:
    for template, control in (
        ("<s>{q}{a}", True),
        ("{q}{a}", False),
        ("{q}<|endoftext|>{a}", False),
    ):
        made = opened(template=template, label_column="a")
        assert made.control_tokens is control
    spelled = resolved_prompt({"template": "{q}<|endoftext|>{a}", "label_column": "a"})
    assert PromptRenderer(spelled, byte_level(), "literal").control_tokens
    with pytest.raises(ConfigError, match=r"separator: contains a special token"):
        opened(
            format_type="completion",
            input_columns=["q"],
            label_column="a",
            separator="</s>",
        )


def test_letters_and_digits_of_names_are_any_scripts() -> None:
    assert rendered("{frage_1} {ответ}", {"frage_1": "x", "ответ": "y"}) == "x y"
    with pytest.raises(ConfigError, match=re.escape("'{1}'")):
        opened(template="{1}")
