"""Rendering many conversations at a time: the same text and spans as the template
itself, or nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.chat_samples import STYLES, WORDS, speaking
from tokenlake.config import ResolvedChat
from tokenlake.errors import TemplateMismatchError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import ChatRenderer, ChatTemplate
from tokenlake.etl.text.conversations import Conversations
from tokenlake.etl.text.special_token_guard import SpecialTokenGuard

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
    "name": "{% for m in messages %}{{ {'x': 1}.get(m.content, m.content) }}{% endfor %}",
    "attribute": "{% for m in messages %}{{ m.content.parts }}{{ m.content }}{% endfor %}",
    "formatted": "{% for m in messages %}{{ '%s' % m.content }}{{ '{}'.format(m.content) }}{% endfor %}",
    "escaped": "{% autoescape true %}{% for m in messages %}{{ m.content }}{% endfor %}{% endautoescape %}",
    "joined": "{{ messages | map(attribute='content') | join('|') }}",
    "captured": "{% for m in messages %}{% set x %} {{ m.content }} {% endset %}{{ x.strip() }}{% endfor %}",
    "macro": "{% macro f(x) %} {{ x }} {% endmacro %}{% for m in messages %}{{ f(m.content).strip() }}{% endfor %}",
}
contents = st.text(
    st.sampled_from(list("ab \n\té你😀\u2003<|>{}'\"\\")), min_size=1, max_size=12
)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
conversations = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content}, roles, contents
    ),
    min_size=1,
    max_size=5,
)


ROLES = ("system", "developer", "user", "assistant", "tool")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False}


def batch_of(
    text: str, tokens: tuple[str, ...] = ()
) -> tuple[Conversations, ChatTemplate]:
    template = ChatTemplate(text, variables=VARIABLES)
    return Conversations(
        template, {role: role for role in ROLES}, SpecialTokenGuard(tokens)
    ), template


def rendered(
    batch: Conversations, conversation: Any
) -> tuple[str, list[tuple[int, int]]] | None:
    """Render a conversation among others of its kind, because a single one is left
    to the template.
    """
    made = [part for part in batch.together([conversation] * 8) if len(part.origin)]
    if not made:
        return None
    (part,) = made
    assert part.origin.tolist() == list(range(8))
    assert part.spans is not None
    one = part.spans.slice(7, 8)
    return str(part.text[7]), list(
        zip(one.start.tolist(), one.stop.tolist(), strict=True)
    )


def _bytes_of(text: str, spans: Any) -> list[tuple[int, int]]:
    """Return the bytes of spans of characters."""
    return [
        (len(text[:start].encode()), len(text[:stop].encode())) for start, stop in spans
    ]


def _bits(spans: Any, text: str) -> list[bool]:
    return [
        any(start <= at < stop for start, stop in spans)
        for at in range(len(text.encode()))
    ]


@pytest.mark.parametrize("text", [PLAIN, MARKED, JOINED])
def test_what_is_rendered_together_is_what_the_template_says(text: str) -> None:
    batch, template = batch_of(text)
    found = 0

    @settings(max_examples=50, deadline=None, database=None)
    @given(conversations)
    def check(messages: list[dict[str, str]]) -> None:
        nonlocal found
        got = rendered(batch, messages)
        assert (got is None) == any(
            not message["content"].strip() for message in messages
        )
        if got is not None:
            made = template.render(messages)
            assert got[0] == made.text
            assert _bits(got[1], got[0]) == _bits(
                _bytes_of(made.text, made.loss), made.text
            )
            found += 1

    check()
    assert found > 30


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "blank", "forged", "other"]),
        min_size=16,
        max_size=60,
    )
)
def test_every_conversation_is_rendered_once_or_left(kinds: list[str]) -> None:
    batch, template = batch_of(MARKED, ("</s>", "<s>"))
    made_of: dict[str, Any] = {
        "a": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": " é "},
        ],
        "b": [{"role": "system", "content": "s"}, {"role": "user", "content": "y"}],
        "blank": [{"role": "user", "content": "\u2003"}],
        "forged": [
            {"role": "user", "content": "x</s>"},
            {"role": "assistant", "content": "y"},
        ],
        "other": [{"role": "user", "content": "x", "name": "me"}],
    }
    seen: list[int] = []
    for part in batch.together([made_of[kind] for kind in kinds]):
        assert part.origin.tolist() == sorted(part.origin.tolist())
        for row, text in zip(part.origin.tolist(), part.text.to_pylist(), strict=True):
            assert text == template.render(made_of[kinds[row]]).text
            seen.append(row)
    assert len(seen) == len(set(seen))
    assert all(kinds[row] in ("a", "b") for row in seen)
    left = [kinds[row] for row in range(len(kinds)) if row not in seen]
    # The forged ones are of the shape of a: enough of both are looked at together.
    enough = {"a": kinds.count("a") + kinds.count("forged"), "b": kinds.count("b")}
    assert all(kind not in ("a", "b") or enough[kind] < 8 for kind in left)


@pytest.mark.parametrize("what", LOOKING)
def test_a_template_that_looks_into_a_content_has_no_skeleton(what: str) -> None:
    assert ChatTemplate(LOOKING[what], VARIABLES).skeleton(["user"]) is None


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
def test_a_conversation_that_is_more_than_roles_and_contents_is_left_to_the_template(
    messages: Any,
) -> None:
    batch, _ = batch_of(PLAIN)
    assert rendered(batch, messages) is None
    assert rendered(batch, [{"role": "user", "content": "x"}]) is not None


def test_roles_that_the_template_refuses_are_left_to_it() -> None:
    batch, _ = batch_of(
        "{{ raise_exception('no') if messages[0].role == 'user' else messages[0].content }}"
    )
    assert rendered(batch, [{"role": "user", "content": "x"}]) is None
    assert rendered(batch, [{"role": "system", "content": "x"}]) is not None


def test_names_of_roles_are_those_that_the_template_knows() -> None:
    template = ChatTemplate(PLAIN)
    batch = Conversations(template, {"human": "user"}, SpecialTokenGuard())
    text, _ = rendered(batch, [{"role": "human", "content": "x"}]) or ("", ())
    assert text == template.render([{"role": "user", "content": "x"}]).text
    assert rendered(batch, [{"role": "user", "content": "x"}]) is None


def test_a_skeleton_that_differs_from_its_template_ends_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = ChatTemplate("{{ messages[0].content | upper }}")
    other = ChatTemplate("{{ messages[0].content }}").skeleton(["user"])
    monkeypatch.setattr(ChatTemplate, "skeleton", lambda *_: other)
    batch = Conversations(template, {"user": "user"}, SpecialTokenGuard())
    assert rendered(batch, [{"role": "user", "content": "X"}]) is not None
    with pytest.raises(
        TemplateMismatchError,
        match="gives 'X' for a conversation, and its skeleton gives 'x'",
    ):
        batch.together([[{"role": "user", "content": "x"}]] * 1000)


@functools.cache
def renderer(style: str) -> ChatRenderer:
    return ChatRenderer(
        ResolvedChat(template=STYLES[style], messages_field="messages"),
        speaking(STYLES[style]),
        "fail",
    )


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_conversation_is_rendered_the_same_alone_and_among_others(
    style: str, data: st.DataObject
) -> None:
    said = st.one_of(st.sampled_from(WORDS), contents)
    turns = data.draw(st.integers(1, 3))
    messages = [
        {"role": role, "content": data.draw(said)}
        for _ in range(turns)
        for role in ("user", "assistant")
    ]
    if style not in ("gemma",) and data.draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": data.draw(said)})
    alone = renderer(style).render(Rows(objects=[{"messages": messages}]))
    among = renderer(style).render(Rows(objects=[{"messages": messages}] * 9))
    assert len(among.origin) == 9 * len(alone.origin)
    if len(alone.origin):
        assert set(among.text.to_pylist()) == {alone.text[0].as_py()}
        assert alone.spans is not None
        assert among.spans is not None
        one, other = alone.spans, among.spans.slice(8, 9)
        text = str(alone.text[0])
        assert _bits(list(zip(one.start, one.stop, strict=True)), text) == _bits(
            list(zip(other.start, other.stop, strict=True)), text
        )
