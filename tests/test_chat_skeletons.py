"""Rendering by skeletons: the same text and stretches as the template itself, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.errors import IntegrityError
from tokenlake.transforms.chat import ChatTemplate
from tokenlake.transforms.chat.skeletons import CHECKED, Skeletons
from tokenlake.transforms.chat.symbols import LEFT, RIGHT, Looked, Symbol, mark, parts_of, untrimmed

PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}{{ '\n' }}"
    "{% endfor %}"
)
MARKED = (
    "{%- if messages[0].role == 'system' -%}{{ '<|sys|>' ~ messages[0].content | trim ~ '\n' }}"
    "{%- set rest = messages[1:] -%}{%- else -%}{{ 'Be good.\n' }}{%- set rest = messages -%}{%- endif -%}"
    "{%- for m in rest -%}{%- if m.role == 'user' -%}{{ 'U: ' + m.content.strip() + ' \n' }}"
    "{%- else -%}{{ m.role + ': ' }}{% generation %}{{ m.content.rstrip() ~ eos_token }}{% endgeneration %}"
    "{%- endif -%}{%- endfor -%}"
)
JOINED = (
    "{% for m in messages %}{% if loop.first and m['role'] == 'system' %}{% set ns = namespace(s=m['content']) %}"
    "{% elif loop.index0 % 2 == 1 %}{% set all = ' <<' + (m['content'] + '>> \n').strip() %}{{ all.strip() }}"
    "{% else %}{{ (' ' + m['content'] + ' ').lstrip() }}{% endif %}{% endfor %}"
)
LOOKING = {
    "length": "{% for m in messages %}{{ m.content | length }}{{ m.content }}{% endfor %}",
    "truth": "{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %}",
    "search": "{% for m in messages %}{% if '<t>' in m.content %}t{% endif %}{{ m.content }}{% endfor %}",
    "search in a word": "{% for m in messages %}{% if m.content in 'yes or no' %}!{% endif %}x{% endfor %}",
    "equality": "{% for m in messages %}{% if m.content == 'x' %}!{% endif %}{{ m.content }}{% endfor %}",
    "membership": "{% for m in messages %}{% if m.content in ['x', 'y'] %}!{% endif %}{{ m.content }}{% endfor %}",
    "split": "{% for m in messages %}{{ m.content.split('a')[-1] }}{% endfor %}",
    "upper": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "json": "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
    "slice": "{% for m in messages %}{{ m.content[1:] }}{% endfor %}",
    "repeat": "{% for m in messages %}{{ m.content * 2 }}{% endfor %}",
    "number": "{% for m in messages %}{{ m.content | int }}{% endfor %}",
    "captured": "{% for m in messages %}{% set x %} {{ m.content }} {% endset %}{{ x.strip() }}{% endfor %}",
    "macro": "{% macro f(x) %} {{ x }} {% endmacro %}{% for m in messages %}{{ f(m.content).strip() }}{% endfor %}",
}
contents = st.text(st.sampled_from(list("ab \n\té你😀\u2003<|>{}'\"\\")), min_size=1, max_size=12)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
conversations = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, roles, contents),
    min_size=1,
    max_size=5,
)


def skeletons(text: str) -> tuple[Skeletons, ChatTemplate]:
    template = ChatTemplate(text, bos_token="<s>", eos_token="</s>")

    def render(messages: Any) -> tuple[str, Any]:
        made = template.render(messages)
        return made.text, made.learned

    return Skeletons(
        text, render, {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False}
    ), template


@pytest.mark.parametrize("text", [PLAIN, MARKED, JOINED])
def test_what_is_filled_is_what_the_template_says(text: str) -> None:
    shapes, template = skeletons(text)
    filled = 0

    @settings(max_examples=200, deadline=None, database=None)
    @given(conversations)
    def check(messages: list[dict[str, str]]) -> None:
        nonlocal filled
        found = shapes.fill(messages)
        blank = any(not message["content"].strip() for message in messages)
        assert (found is None) == blank
        if found is not None:
            made = template.render(messages)
            assert found.text == made.text
            assert _bits(found.learned, found.text) == _bits(made.learned, made.text)
            filled += 1

    check()
    assert filled > 50


def _bits(learned: Any, text: str) -> list[bool]:
    return [any(start <= at < stop for start, stop in learned) for at in range(len(text))]


@pytest.mark.parametrize("what", LOOKING)
def test_a_template_that_looks_into_a_content_has_no_skeleton(what: str) -> None:
    shapes, _ = skeletons(LOOKING[what])
    assert shapes.fill([{"role": "user", "content": "alpha"}]) is None


@pytest.mark.parametrize(
    "messages",
    [
        "text",
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": " \n"}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user", "content": "x", "name": "y"}],
        [{"role": "user", "content": "x"}] * 65,
    ],
)
def test_a_conversation_that_is_more_than_roles_and_contents_is_left_to_the_template(messages: Any) -> None:
    shapes, _ = skeletons(PLAIN)
    assert shapes.fill(messages) is None
    assert shapes.fill([{"role": "user", "content": "x"}]) is not None


def test_a_shape_that_the_template_refuses_is_left_to_it() -> None:
    shapes, _ = skeletons(
        "{{ raise_exception('no') if messages[0].role == 'user' else messages[0].content }}"
    )
    assert shapes.fill([{"role": "user", "content": "x"}]) is None
    assert shapes.fill([{"role": "system", "content": "x"}]) is not None


def test_a_skeleton_that_differs_from_its_template_ends_the_build() -> None:
    honest = True

    def render(messages: Any) -> tuple[str, Any]:
        text = "".join(message["content"] for message in messages)
        return (text, ()) if honest else (text.upper(), ())

    shapes = Skeletons("{% for m in messages %}{{ m.content }}{% endfor %}", render, {})
    assert shapes.fill([{"role": "user", "content": "x"}]) is not None
    honest = False
    with pytest.raises(IntegrityError, match="differ"):
        for _ in range(CHECKED):
            shapes.fill([{"role": "user", "content": "x"}])


def test_a_symbol_passes_on_and_tells_nothing() -> None:
    text = (" \n<" + Symbol(mark(3)) + "> \n").strip() + (" " + Symbol(mark(4)) + "\n").strip()
    assert parts_of("".join([text])) == ["<", (3, 0), ">", (4, LEFT | RIGHT)]
    assert untrimmed("".join([text])) == "<" + mark(3) + ">" + mark(4)
    asked = [
        "__len__",
        "__contains__",
        "__iter__",
        "__hash__",
        "__eq__",
        "__bool__",
        "split",
        "upper",
        "__format__",
    ]
    for name in asked:
        with pytest.raises(Looked):
            getattr(text, name)()
