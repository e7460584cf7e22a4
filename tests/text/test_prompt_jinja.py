"""Prompts by programs of Jinja: which templates are some, what they render, what is
learned, what is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builds import config_of
from tests.seeds import promise
from tests.text.support import documents, learned_texts
from tests.tokenizers.tokenizer_samples import byte_level, save, sentencepiece
from tokenlake import PromptEngine
from tokenlake.config import PromptConfig
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import PromptRenderer, open_prompt, resolved_prompt

CASES = "{% if hint %}Hint: {{ hint | trim }}\n{% endif %}Q: {{ q }}\nA: {{ a }}\nend"
SECTION = {
    "template": CASES,
    "input_columns": ["q", "hint"],
    "label_column": "a",
    "optional_columns": ["hint"],
}
# A brace would be Jinja's, and a blank at the end of a template's line is its own
# affair.
texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]),
    min_size=1,
    max_size=12,
)


def renderer(mode: str = "literal", files: Any = None, **section: Any) -> Any:
    return open_prompt(
        resolved_prompt({**SECTION, **section}), files or sentencepiece(), mode
    )


def one(made: Any, row: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the text of a row and the parts that are learned."""
    found = made.render(Rows(objects=[row]))
    assert not found.bad, found.bad
    return found.text[0].as_py(), learned_texts(found)[0]


def fault(made: Any, row: dict[str, Any]) -> tuple[str, str]:
    (bad,) = made.render(Rows(objects=[row])).bad
    return bad[1].reason, bad[1].detail


@pytest.mark.parametrize(
    ("template", "program"),
    [
        ("{q} {a}", False),
        ("{{ q }} {{ a.b }}", False),
        ("{{ '{' }} {{ q }}", False),
        ('{{"q": {q}}}', False),
        ("{{ q | upper }}", True),
        ("{{ q[0] }}", True),
        ("{% if q %}{{ q }}{% endif %}", True),
        ("{# a comment #}{{ q }}", True),
    ],
)
def test_a_template_is_a_program_where_it_is_more_than_columns(
    template: str, program: bool
) -> None:
    made = open_prompt(
        resolved_prompt({"template": template}), sentencepiece(), "literal"
    )
    assert isinstance(made, PromptRenderer) is not program


@promise(116)
def test_conditions_loops_and_filters_make_the_text_and_the_label_alone_is_learned() -> (
    None
):
    made = renderer()
    assert one(made, {"q": "why?", "a": "so"}) == ("Q: why?\nA: so\nend", ["so"])
    assert one(made, {"q": "1", "a": "2", "hint": " x "}) == (
        "Hint: x\nQ: 1\nA: 2\nend",
        ["2"],
    )
    loop = "{% for each in tags %}{{ loop.index }}. {{ each.name }}\n{% endfor %}{{ a | upper }}"
    made = renderer(template=loop, input_columns=["tags"], optional_columns=[])
    assert one(made, {"tags": [{"name": "x"}, {"name": "y"}], "a": "é"}) == (
        "1. x\n2. y\nÉ",
        ["É"],
    )
    assert one(renderer(mask_input=False), {"q": "1", "a": "2"})[1] == [
        "Q: 1\nA: 2\nend"
    ]
    marked = "{{ q }}{% generation %} A: {{ a }}{% endgeneration %}"
    assert one(
        renderer(template=marked, optional_columns=[], input_columns=["q"]),
        {"q": "1", "a": "2"},
    )[1] == [" A: 2"]


@promise(116)
@settings(max_examples=25)
@given(texts, texts)
def test_a_program_without_conditions_is_the_template_of_its_columns(
    q: str, a: str
) -> None:
    plain = {"template": "Q: {{ q }}\nA: {{ a }} .", "label_column": "a"}
    program = {**plain, "template": "{# a program #}" + plain["template"]}
    rows, found = [{"q": q, "a": a}], []
    for section in (plain, program):
        made = PromptEngine(section, byte_level(), padding=False).process_batch(rows)
        found.append(
            made.map(
                lambda batch: [each[0].tolist() for each in batch.values()]
            ).unwrap_or("bad")
        )
    assert found[0] == found[1]


@promise(114, 116)
def test_system_message_and_examples_stand_before_and_are_not_learned() -> None:
    made = renderer(
        system_message="Be kind.",
        examples=[{"q": "0", "a": "z"}],
        example_separator="\n--\n",
    )
    text, learned = one(made, {"q": "1", "a": "2"})
    assert text == "Be kind.\n--\nQ: 0\nA: z\nend\n--\nQ: 1\nA: 2\nend"
    assert learned == ["2"]


@pytest.mark.parametrize(
    ("row", "reason", "words"),
    [
        ({"a": "x"}, "null_column", "there is no column 'q'"),
        ({"q": None, "a": "x"}, "null_column", "the column 'q' is missing or null"),
        ({"q": "x", "a": ""}, "empty_label", "so there is no answer"),
        ({"q": "x", "a": ["y"]}, "not_a_string", "'a' holds list"),
    ],
)
def test_a_row_that_lacks_something_is_bad(
    row: dict[str, Any], reason: str, words: str
) -> None:
    found = fault(renderer(), row)
    assert found[0] == reason and words in found[1]


def test_a_row_on_which_the_template_fails_or_of_which_nothing_is_learned_is_bad() -> (
    None
):
    section = {"input_columns": ["q"], "optional_columns": []}
    reason, told = fault(
        renderer(template="{{ q + 1 }}{{ a }}", **section), {"q": "x", "a": "y"}
    )
    assert (reason, told.startswith("the template fails in line 1")) == (
        "template_error",
        True,
    )
    shy = renderer(template="{% if q == '1' %}{{ a }}{% endif %}", **section)
    assert fault(shy, {"q": "2", "a": "y"})[0] == "nothing_to_learn"


def test_what_a_template_itself_says_of_a_row_is_not_changed() -> None:
    template = "{% if q == 'no' %}{{ raise_exception('see the chat template') }}{% endif %}{{ q }}{{ a }}"
    reason, told = fault(
        renderer(template=template, input_columns=[], optional_columns=[]),
        {"q": "no", "a": "y"},
    )
    assert reason == "template_refused"
    assert told == "the template refuses the conversation: see the chat template"


@pytest.mark.parametrize(
    "row", [{"q": "x</s>", "a": "y"}, {"q": "x", "a": "y<"}, {"q": "x", "a": ["</s>"]}]
)
@promise(116)
def test_no_value_becomes_a_control_token_beside_those_of_the_template(
    row: dict[str, Any],
) -> None:
    template = "{# #}{{ q }} {{ a }}/s></s>"
    made = renderer(template=template, input_columns=["q"], optional_columns=[])
    assert made.control_tokens
    assert fault(made, row)[0] in ("special_token_in_text", "not_a_string")
    text, learned = one(made, {"q": "<s", "a": "y >"})
    assert (text, learned) == ("<s y >/s></s>", ["y >", "</s>"])
    assert one(
        renderer("encode", template=template, input_columns=[], optional_columns=[]),
        {"q": "</s>", "a": "y"},
    )
    assert isinstance(
        open_prompt(resolved_prompt({"template": "{q} {a}"}), sentencepiece(), "fail"),
        PromptRenderer,
    )


def test_what_a_template_takes_out_of_a_value_puts_no_control_token_together() -> None:
    template = "{# #}{{ q | replace('<image>', '') }} {{ a }}</s>"
    made = renderer(template=template, input_columns=["q"], optional_columns=[])
    for forged in ("</<image>s>", "<<image>/s>", "</s<image>>"):
        assert fault(made, {"q": forged, "a": "y"})[0] == "special_token_in_text"
    assert one(made, {"q": "a<image>b", "a": "y"})[0] == "ab y</s>"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"template": "{% if q %}"},
            "prompt.template: the template, line 1: Unexpected end",
        ),
        (
            {
                "template": "{# #}x",
                "input_columns": [],
                "label_column": None,
                "optional_columns": [],
            },
            "uses no column",
        ),
        ({"template": "{# #}{{ q }} {{ a }}"}, "'hint' is not used in the template"),
        (
            {"template": CASES + "{{ hnt }}"},
            "uses 'hnt', which is neither .*did you mean 'hint'",
        ),
        (
            {"template": CASES.replace("{{ a }}", "{% if a %}{% endif %}")},
            "outputs 'a' nowhere",
        ),
        ({"template": "{% include 'x' %}"}, "includes another file"),
        ({"examples": [{"q": "1", "a": ""}]}, "examples.0"),
    ],
)
def test_a_template_that_cannot_work_is_an_error_before_the_first_row(
    section: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        renderer(**section)


@promise(116)
def test_a_build_makes_what_the_engine_makes(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"q": "why", "a": "so"}\n{"q": "who", "a": "me", "hint": "h"}\n'
    )
    folder = save(sentencepiece(), tmp_path / "tokenizer")
    config = config_of(tmp_path, tmp_path / "rows.jsonl", folder, prompt=SECTION)
    result = build_dataset(config, workers=1)
    engine = PromptEngine(PromptConfig.model_validate(SECTION), folder, padding=False)
    rows = [{"q": "why", "a": "so"}, {"q": "who", "a": "me", "hint": "h"}]
    examples = [engine.process(row).unwrap() for row in rows]
    assert documents(result) == [
        (e.input_ids.tolist(), (e.labels != -100).tolist()) for e in examples
    ]
