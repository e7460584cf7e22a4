"""What a trainer learns of a conversation: the assistant's words and the token that
ends them, and nothing else.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text import chat_families
from tests.text.chat_samples import (
    CHATML,
    CONTROL,
    HEADED,
    LLAMA2,
    LLAMA3,
    MARKED_CHATML,
    STYLES,
    THINKING,
    TOOLS_CHATML,
    conversation,
    speaking,
)
from tests.text.support import learned_texts
from tokenlake.config import ResolvedChat
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import ChatRenderer, ChatTemplate, Limits, chat_server

Message = dict[str, Any]


@functools.cache
def renderer(template: str, **options: Any) -> ChatRenderer:
    chat = ResolvedChat(template=template, messages_field="messages", **options)
    return ChatRenderer(chat, speaking(template), "fail")


def rendered(
    template: str,
    messages: list[Message],
    tools: Any = None,
    copies: int = 1,
    **options: Any,
) -> Any:
    """What is learned of a conversation, stretch by stretch; of several copies,
    which must all be alike.
    """
    row = {"messages": messages, "tools": tools}
    made = renderer(template, **options).render(Rows(objects=[row] * copies))
    if made.bad:
        assert [index for index, _ in made.bad] == [*range(copies)]
        return made.bad[0][1]
    assert made.origin.tolist() == [*range(copies)]
    found = learned_texts(made)
    assert found == [found[0]] * copies
    return found[0]


def learned(
    template: str, messages: list[Message], tools: Any = None, **options: Any
) -> list[str]:
    found = rendered(template, messages, tools, **options)
    assert isinstance(found, list), found
    return found


def reason(template: str, messages: list[Message], **options: Any) -> str:
    made = rendered(template, messages, **options)
    assert not isinstance(made, list), made
    return f"{made.reason}: {made.detail}"


def unmarked(template: str) -> str:
    """The same template without its marks."""
    return template.replace(" generation %}", " if true %}").replace(
        "endgeneration", "endif"
    )


ENDS = dict.fromkeys(("chatml", "marked-chatml", "tools"), "<|im_end|>")
ENDS |= {
    "llama-2": " </s>",
    "llama-3": "<|eot_id|>",
    "mistral": "</s>",
    "zephyr": "</s>",
}
ENDS["gemma"] = "<end_of_turn>"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prompt", [False, True])
def test_each_answer_with_its_end_is_learned_and_nothing_of_the_prompt(style, prompt):
    for seed in range(12):
        messages = conversation(
            seed, system=style != "gemma" and seed % 2 == 1, turns=1 + seed % 3
        )
        said = [
            message["content"] for message in messages if message["role"] == "assistant"
        ]
        found = learned(STYLES[style], messages, copies=9, add_generation_prompt=prompt)
        assert [text.strip() for text in found] == [
            (words.strip() + ENDS[style]).strip() for words in said
        ]


@pytest.mark.parametrize("template", [MARKED_CHATML, LLAMA2])
def test_marks_and_prefixes_find_the_same(template):
    for seed in range(12):
        messages = conversation(seed, system=seed % 2 == 1, turns=1 + seed % 3)
        assert learned(template, messages) == learned(unmarked(template), messages)


def test_without_a_prompt_the_header_of_a_turn_is_told_by_other_words():
    """The answer "a" is also the first letter of its header, and "assistant" a word
    of it.
    """
    counted = "{{ messages | length }}{% for m in messages %}{{ '|' ~ m.content }}{% endfor %}"
    messages = [
        {"role": "user", "content": "A or B?"},
        {"role": "assistant", "content": "assistant"},
    ]
    assert learned(HEADED, messages) == ["assistant\n"]
    assert learned(counted, messages) == ["assistant"]
    messages = [
        {"role": "user", "content": "A or B?"},
        {"role": "assistant", "content": "a"},
    ]
    assert learned(HEADED, messages) == ["a\n"]
    longer = [*messages, messages[0], {"role": "assistant", "content": "B a"}]
    assert learned(HEADED, longer) == ["a\n", "B a\n"]


def test_calls_of_tools_and_several_answers_in_a_row_are_learned():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2."},
        {"role": "assistant", "content": "Really."},
    ]
    assert learned(TOOLS_CHATML, messages, [{"name": "add"}]) == [
        'Let me see.<call>add {"a": 1}</call><|im_end|>',
        "2.<|im_end|>",
        "Really.<|im_end|>",
    ]


def test_a_prompt_that_goes_on_where_the_turn_does_not_ends_where_both_are_alike():
    thinks = CHATML.replace(
        "assistant\\n' }}", "assistant\\n<think>\\n\\n</think>\\n' }}"
    )
    messages = conversation(1, turns=2)
    said = [
        message["content"] + "<|im_end|>"
        for message in messages
        if message["role"] == "assistant"
    ]
    assert learned(thinks, messages) == said


def test_what_a_template_keeps_of_an_earlier_turn_is_learned():
    plain, thoughtful = conversation(1, turns=2), conversation(2, turns=2)
    thoughtful[1]["content"] = "<think>hm</think>so"
    assert len(learned(THINKING, plain)) == 2
    assert learned(THINKING, thoughtful)[0] == "so<|im_end|>"
    assert learned(THINKING, thoughtful[:2]) == ["<think>hm</think>so<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            "{% for m in messages %}{{ '|' ~ m.role ~ '|' ~ (m.content | upper) }}{% endfor %}",
            "turn 2 (assistant): the chat template does not render its content",
        ),
        (
            "{% for m in messages %}{{ m.role + '\\n' }}{% endfor %}",
            "turn 2 (assistant): the chat template does not render its content",
        ),
        (
            "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ (m.content | upper) }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}",
            "turn 2 (assistant): the chat template does not render its content",
        ),
    ],
)
def test_turns_that_cannot_be_told_are_refused(template, told):
    messages = [
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "that"},
    ]
    assert told in reason(template, messages)


def test_an_assistant_that_begins_is_learned_where_the_template_can_begin_with_nothing():
    messages = [{"role": "assistant", "content": "Welcome"}, *conversation(1)]
    assert learned(CHATML, messages)[0] == "Welcome<|im_end|>"
    looks = "{{ messages[0].role }}{% for m in messages %}{{ ': ' ~ m.content }}{% endfor %}"
    assert learned(looks, messages) == [
        m["content"] for m in messages if m["role"] == "assistant"
    ]


def test_nothing_and_everything_are_not_learned():
    question = conversation(1)[:1]
    for template in (CHATML, MARKED_CHATML, LLAMA3):
        assert reason(template, question).startswith(
            "nothing_to_learn: the conversation has no turn of an assistant"
        )
    nothing = "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}"
    assert reason(nothing, conversation(1)).startswith(
        "nothing_to_learn: the chat template marks no text"
    )
    everything = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    assert reason(everything, conversation(1)).startswith("everything_to_learn")
    assert reason(
        "{% if messages[1].x %}{% endif %}", conversation(1), loss="all"
    ).startswith("nothing_to_learn")


def test_all_of_a_conversation_is_learned_if_that_is_asked_for():
    for messages in (conversation(1), conversation(1)[:1]):
        text = ChatTemplate(CHATML).render(messages).text
        assert learned(CHATML, messages, copies=9, loss="all") == [text]


TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="<>"),
    min_size=1,
    max_size=30,
)


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4),
    st.sampled_from(sorted(set(STYLES) - {"tools"})),
)
@settings(max_examples=40)
def test_whatever_is_said_the_answers_are_found_in_order(turns, style):
    messages: list[Message] = []
    for question, answer in turns:
        messages += [
            {"role": "user", "content": question},
            {
                "role": "assistant",
                "content": answer if answer.strip() else "x" + answer,
            },
        ]
    found = learned(STYLES[style], messages)
    said = [message["content"] for message in messages[1::2]]
    assert [
        text.strip().removesuffix(ENDS[style].strip()).strip() for text in found
    ] == [words.strip() for words in said]


def test_the_renderer_needs_a_template_and_a_way_with_special_tokens():
    with pytest.raises(
        ConfigError, match=r"has no chat template .* set chat\.template"
    ):
        ChatRenderer(ResolvedChat(), speaking(CHATML), "fail")
    with pytest.raises(
        ConfigError, match="'literal' is not possible for conversations"
    ):
        ChatRenderer(ResolvedChat(template=CHATML), speaking(CHATML), "literal")


CALL = {"function": {"name": "add", "arguments": {"a": 1}}}
ASKED = [{"role": "user", "content": "1 + 1?"}]
RESULT = {"role": "tool", "content": "two"}


def test_a_result_inside_the_turn_that_called_is_never_learned():
    """Some templates put what a tool answers between a call and the words beside it."""
    inside = (
        "{%- for m in messages %}{%- if m.role == 'assistant' %}<a>{{ m.tool_calls[0].function | tojson }}"
        "{{ '<t>' + messages[loop.index].content if not loop.last }}{{ m.content }}<end>{% elif m.role == 'user' %}"
        "<u>{{ m.content }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}<a>{%- endif %}"
    )
    turns = [
        *ASKED,
        {"role": "assistant", "content": "so", "tool_calls": [CALL]},
        RESULT,
    ]
    assert "renders turn 3 (tool) inside turn 2" in reason(inside, turns)
    assert learned(inside, turns[:2]) == [
        '{"name": "add", "arguments": {"a": 1}}so<end>'
    ]


def test_a_call_begins_behind_a_prompt_that_ends_in_reasoning():
    """The prompt of a model that thinks opens its reasoning; earlier turns are
    rendered without it.
    """
    thinks = (
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
        "{%- if m.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
        "{%- for call in m.tool_calls or [] %}{{- '<tool>' + call.function | tojson }}{%- endfor %}"
        "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
    )
    turns = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT]
    called = '<tool>{"name": "add", "arguments": {"a": 1}}<|im_end|>'
    assert learned(thinks, [*turns, {"role": "assistant", "content": "It is 2."}]) == [
        called,
        "\n</think>\n\nIt is 2.<|im_end|>",
    ]


def test_a_turn_without_a_header_begins_where_the_turn_before_ends():
    bare = (
        "{%- for m in messages %}{%- if m.role == 'assistant' %}"
        "{{- '<s>' if loop.index0 < 2 }}{{- m.tool_calls[0].function | tojson }}</s>"
        "{%- else %}{{- m.role + ': ' + m.content + ';' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}<s>{%- endif %}"
    )
    turns = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT]
    called = '{"name": "add", "arguments": {"a": 1}}</s>'
    assert learned(bare, [*turns, *turns]) == [called, called]


def test_words_that_a_template_looks_into_are_looked_at_by_themselves():
    """A user's turn that is a tool's answer does not count as a question, so the
    first answer is a last one, too.
    """
    answered = {"role": "user", "content": "<tool_response>3</tool_response>"}
    for question, first in (
        ({"role": "user", "content": "so?"}, "hello"),
        (answered, "<think>\nhm\n</think>\n\nhello"),
    ):
        turns = [
            *ASKED,
            {"role": "assistant", "content": "hello", "reasoning_content": "hm"},
            question,
        ]
        found = learned(
            chat_families.unmarked(chat_families.QWEN3),
            [*turns, {"role": "assistant", "content": "bye"}],
        )
        assert found == [f"{first}<|im_end|>", "bye<|im_end|>"]


def test_the_search_for_turns_has_an_end(monkeypatch):
    """A conversation is rendered again for each turn, which takes long where there
    are thousands.
    """
    settings_of_template: dict[str, Any] = {
        "text": THINKING,
        "variables": {},
        "limits": asdict(Limits()),
        "loss": "assistant",
        "special_tokens": CONTROL,
        "guarded": False,
        "learned": None,
        "learn_empty_reasoning": False,
        "mask_reasoning": False,
    }
    monkeypatch.setattr(chat_server, "_SEARCH_SECONDS", -1)
    monkeypatch.setattr(chat_server.resource, "setrlimit", lambda *_: None)
    opened = chat_server.ServedTemplate(settings_of_template)
    with pytest.raises(
        BadRecordError, match="seconds of a processor to find the turns"
    ) as caught:
        opened.answer("render_with_loss", conversation(1), None)
    assert caught.value.details["reason"] == "template_limit"
