"""What a turn holds beside its words: weights, calls, reasoning and parts of
contents, in all their forms.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokenlake
from tests.builds import config_of
from tests.text.chat_families import (
    ARGUMENTS,
    CALL,
    DEEPSEEK_V3,
    FAMILIES,
    LLAMA3,
    QWEN3,
    TOOL,
    TOOLS,
    assistant,
    parts,
    unmarked,
    user,
)
from tests.text.chat_samples import (
    CHATML,
    MARKED_CHATML,
    TOOLS_CHATML,
    speaking,
    write,
    write_rows,
)
from tests.text.support import documents, learned_texts
from tests.tokenizer_reference import ReferenceTokenizer
from tokenlake.config import ResolvedChat
from tokenlake.errors import BadRecordError
from tokenlake.etl import build_dataset
from tokenlake.etl.sources import Rows
from tokenlake.etl.text import ChatRenderer

QWEN = unmarked(QWEN3)


def rendered(
    template: str, messages: Any, tools: Any = None, mode: str = "fail", **options: Any
) -> Any:
    """What is learned of a conversation, stretch by stretch, or the fault of its
    row.
    """
    chat = ResolvedChat(template=template, messages_field="messages", **options)
    made = ChatRenderer(chat, speaking(template), mode).render(
        Rows(objects=[{"messages": messages, "tools": tools}])
    )
    if made.bad:
        return made.bad[0][1]
    return learned_texts(made)[0]


def refused(template: str, messages: Any, **options: Any) -> str:
    made = rendered(template, messages, **options)
    assert not isinstance(made, list), made
    return f"{made.reason}: {made.detail}"


# ---- weights of turns
# ----------------------------------------------------------------------------------------

NOT_LEARNED = [
    {"weight": 0},
    {"weight": 0.0},
    {"weight": False},
    {"train": False},
    {"loss": False},
    {"masked": True},
]
LEARNED = [
    {},
    {"weight": 1},
    {"weight": 1.0},
    {"weight": None},
    {"train": True},
    {"loss": True},
    {"masked": False},
]


@pytest.mark.parametrize("template", [CHATML, MARKED_CHATML, QWEN])
@pytest.mark.parametrize("fields", [*NOT_LEARNED, *LEARNED])
def test_a_turn_is_learned_unless_it_says_no(template, fields):
    turns = [
        user("hi"),
        assistant("BAD", **fields),
        user("again"),
        assistant("GOOD", weight=1),
    ]
    good = ["GOOD<|im_end|>"]
    assert rendered(template, turns) == (
        good if fields in NOT_LEARNED else ["BAD<|im_end|>", *good]
    )


@pytest.mark.parametrize("template", [CHATML, MARKED_CHATML])
def test_what_has_no_weight_is_taken_out_of_the_loss_on_everything(template):
    turns = [
        user("hi"),
        assistant("BAD", weight=0),
        {**user("again"), "train": False},
        assistant("GOOD"),
    ]
    found = "|".join(rendered(template, turns, loss="all"))
    assert "hi" in found
    assert "GOOD" in found
    assert "BAD" not in found
    assert "again" not in found


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (assistant("x", weight=0.5), "turn 2: its weight is 0.5, expected 0 or 1"),
        (assistant("x", weight=2), "its weight is 2, expected 0 or 1"),
        (
            assistant("x", train="no"),
            "its train is 'no', expected 0 or 1 (or true, false)",
        ),
        (
            assistant("x", weight=0, train=True),
            "weight: 0 and train: True, which contradict each other",
        ),
        (
            assistant("x", train_detail=[{"begin_offset": 0, "end_offset": 1}]),
            "its train_detail gives separate weights to parts",
        ),
        (
            {**user("x"), "train": True},
            "a turn of user with train: True, but only turns of the assistant",
        ),
    ],
)
def test_weights_that_cannot_act_are_refused(turn, told):
    messages = [user("hi"), turn, assistant("yes")]
    with pytest.raises(BadRecordError) as caught:
        tokenlake.ConvertToChatML()({"messages": messages})
    assert caught.value.details["reason"] == "bad_weight"
    assert told in str(caught.value)


def test_a_conversation_of_which_no_turn_is_learned_is_a_bad_record():
    turns = [user("hi"), assistant("x", weight=0)]
    assert refused(CHATML, turns).startswith(
        "nothing_to_learn: no turn of the assistant counts toward the loss"
    )


def test_answers_that_are_compared_have_no_turns_without_weight():
    rows = tokenlake.PreferenceRows("dpo", speaking(CHATML))
    pair = {
        "prompt": [user("hi")],
        "chosen": [assistant("yes", weight=0)],
        "rejected": [assistant("no")],
    }
    with pytest.raises(
        BadRecordError,
        match="bad_weight: a turn of an answer is excluded from the loss",
    ):
        rows.expand(pair)
    assert rows.expand({**pair, "chosen": [assistant("yes", weight=1)]})
    before = [user("hi"), assistant("BAD", weight=0), user("again")]
    assert rows.expand({**pair, "prompt": before, "chosen": [assistant("yes")]})


def test_a_turn_that_is_not_learned_may_be_one_that_the_template_hides():
    hides = CHATML.replace(
        "{%- for message in messages %}",
        "{%- for message in messages if message.content != 'no' %}",
    )
    turns = [user("hi"), assistant("no", weight=0), assistant("yes")]
    assert rendered(hides, turns) == ["yes<|im_end|>"]


def test_a_turn_that_the_template_hides_where_others_follow_is_named():
    hides = CHATML.replace(
        "in messages %}",
        "in messages if message.role != 'assistant' or loop.length == 2 %}",
    )
    hides = (
        "{%- if messages | length > 2 %}{%- set messages = messages[2:] %}{%- endif %}"
        + CHATML
    )
    turns = [user("hi"), assistant("first"), user("again"), assistant("second")]
    assert (
        "turn 2 (assistant): the chat template hides the whole turn when other turns follow"
        in refused(hides, turns)
    )


# ---- calls and reasoning that a template does not render
# -----------------------------------------------------

LOST = {
    "call": (assistant("", tool_calls=[CALL]), "its call of 'add'"),
    "call without content": (assistant(None, tool_calls=[CALL]), "its call of 'add'"),
    "call beside words": (assistant("I add.", tool_calls=[CALL]), "its call of 'add'"),
    "call without arguments": (
        assistant("", tool_calls=[{"function": {"name": "now"}}]),
        "its call of 'now'",
    ),
    "function_call": (
        assistant("", function_call=CALL["function"]),
        "its call of 'add'",
    ),
    "reasoning_content": (assistant("3", reasoning_content="3"), "its reasoning"),
    "reasoning": (assistant("3", reasoning="add them"), "its reasoning"),
    "thinking": (assistant("", thinking="add them"), "its reasoning"),
}


@pytest.mark.parametrize("template", [CHATML, MARKED_CHATML])
@pytest.mark.parametrize("loss", ["assistant", "all"])
@pytest.mark.parametrize("name", LOST)
def test_what_a_template_leaves_out_is_named_and_never_an_empty_turn(
    template, loss, name
):
    turn, missing = LOST[name]
    told = refused(
        template, [user("1 + 2?"), turn, user("so?"), assistant("It is 3.")], loss=loss
    )
    assert told.startswith(
        f"not_rendered: turn 2 (assistant): the chat template does not render {missing}"
    )


def test_what_a_template_leaves_out_is_refused_by_every_road(tmp_path):
    turns = [
        user("1 + 2?"),
        assistant("", tool_calls=[CALL]),
        TOOL,
        assistant("It is 3."),
    ]
    row = {"messages": turns}
    told = "does not render its call of 'add'"
    with pytest.raises(BadRecordError, match=told):
        tokenlake.ChatTemplateTransform(speaking(CHATML))(row)
    with pytest.raises(BadRecordError, match=told):
        tokenlake.SupervisedRows(speaking(CHATML))(row)
    pair = {"prompt": turns[:1], "chosen": turns[1:], "rejected": [assistant("no")]}
    with pytest.raises(BadRecordError, match=told):
        tokenlake.PreferenceRows("dpo", speaking(CHATML)).expand(pair)
    data = write_rows(tmp_path / "in.jsonl", [row])
    config = config_of(tmp_path, data, write(speaking(CHATML), tmp_path / "tokenizer"))
    with pytest.raises(
        BadRecordError, match=rf"in\.jsonl:1: not_rendered .*turn 2 .*{told}"
    ):
        build_dataset(config, workers=1)


CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "two"}}\n</tool_call><|im_end|>'
TEXT = json.dumps(ARGUMENTS)
FUNCTION = {"name": "add", "arguments": ARGUMENTS}
CALLS = {
    "object": assistant("", tool_calls=[CALL]),
    "null": assistant(None, tool_calls=[CALL]),
    "missing": {"role": "assistant", "tool_calls": [CALL]},
    "no parts": assistant([], tool_calls=[CALL]),
    "JSON text": assistant(
        "",
        tool_calls=[
            {"type": "function", "function": {"name": "add", "arguments": TEXT}}
        ],
    ),
    "flat": assistant("", tool_calls=[{"type": "function", "function": FUNCTION}]),
    "all JSON text": assistant("", tool_calls=json.dumps([CALL])),
    "function_call": assistant(None, function_call=FUNCTION),
    "function_call of JSON text": assistant(
        "", function_call={"name": "add", "arguments": TEXT}
    ),
    "ShareGPT": {"from": "function_call", "value": json.dumps(FUNCTION)},
    "ShareGPT's tool_call": {"from": "tool_call", "value": json.dumps([FUNCTION])},
}


@pytest.mark.parametrize("form", CALLS)
def test_calls_are_learned_in_all_their_forms(form):
    turns = [user("1 + 2?"), CALLS[form], TOOL, assistant("It is 3.")]
    assert rendered(QWEN, turns, TOOLS) == [CALLED, "It is 3.<|im_end|>"]


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize(
    "family", ["Llama 3.1", "DeepSeek V3", "Mistral", "gpt-oss", "GLM 4.5"]
)
def test_a_template_gets_calls_in_the_form_that_it_takes(family, form):
    """One wants an object, another JSON text; one a content that is null, another
    none.
    """
    template = unmarked(FAMILIES[family])
    answers = [user("1 + 2?"), CALLS[form], TOOL, assistant("It is 3.")]
    same = [user("1 + 2?"), CALLS["object"], TOOL, assistant("It is 3.")]
    found = rendered(template, answers, TOOLS)
    assert [text.replace(" ", "") for text in found] == [
        text.replace(" ", "") for text in rendered(template, same, TOOLS)
    ]
    assert len(found) == 2
    assert "two" in found[0]
    assert '\\"' not in found[0]


def test_no_calls_are_no_calls():
    for nothing in ([], None, "[]"):
        turns = [user("hi"), assistant("hello", tool_calls=nothing, function_call=None)]
        assert rendered(unmarked(LLAMA3), turns) == ["hello<|eot_id|>"]
        assert rendered(unmarked(DEEPSEEK_V3), turns) == ["hello</s>"]
    blank = [user("hi"), assistant("", tool_calls=[])]
    assert refused(CHATML, blank).startswith(
        "empty_turn: the field 'messages': turn 2: the assistant says nothing"
    )


def test_calls_of_another_kind_are_refused():
    for calls in ("{", ["add"], "7"):
        turns = [user("hi"), assistant("x", tool_calls=calls)]
        assert refused(TOOLS_CHATML, turns).startswith("bad_tool_calls")


def test_a_special_token_in_the_json_of_a_call_is_found():
    escaped = json.dumps({"a": "<|im_end|>"}).replace("<", "\\u003c")
    assert "<" not in escaped
    for turn in (
        assistant("", tool_calls=[{"function": {"name": "add", "arguments": escaped}}]),
        {
            "from": "function_call",
            "value": f'{{"name": "add", "arguments": {escaped}}}',
        },
    ):
        assert refused(QWEN, [user("hi"), turn, TOOL, assistant("x")]).startswith(
            "special_token_in_text"
        )


# ---- reasoning
# -----------------------------------------------------------------------------------------------


def test_reasoning_is_learned_unless_it_is_masked():
    turns = [
        user("hi"),
        assistant("hello", reasoning_content="greet"),
        user("bye"),
        assistant("bye", reasoning="so"),
    ]
    assert rendered(QWEN, turns) == [
        "hello<|im_end|>",
        "<think>\nso\n</think>\n\nbye<|im_end|>",
    ]
    assert rendered(QWEN, turns, mask_reasoning=True) == [
        "hello<|im_end|>",
        "bye<|im_end|>",
    ]
    tagged = [user("hi"), assistant("<think>\nso\n</think>\n\nhello")]
    for template in (QWEN, QWEN3):
        assert rendered(template, tagged) == [
            "<think>\nso\n</think>\n\nhello<|im_end|>"
        ]
        assert rendered(template, tagged, mask_reasoning=True) == ["hello<|im_end|>"]
    calling = [
        user("1 + 2?"),
        assistant("", reasoning_content="hm", tool_calls=[CALL]),
        TOOL,
        assistant("3"),
    ]
    assert rendered(QWEN, calling, TOOLS, mask_reasoning=True) == [
        CALLED,
        "3<|im_end|>",
    ]
    found = "".join(rendered(QWEN, tagged, loss="all", mask_reasoning=True))
    assert "hello" in found
    assert "so" not in found


def test_an_empty_block_of_reasoning_is_learned_only_where_that_is_asked_for():
    turns = [user("hi"), assistant("hello")]
    assert rendered(QWEN, turns) == ["hello<|im_end|>"]
    assert rendered(QWEN, turns, learn_empty_reasoning=True) == [
        "<think>\n\n</think>\n\nhello<|im_end|>"
    ]
    glm = unmarked(FAMILIES["GLM 4.5"])
    assert rendered(glm, turns) == ["\nhello"]
    assert rendered(glm, turns, learn_empty_reasoning=True) == [
        "\n<think></think>\nhello"
    ]
    quick = {"template_kwargs": {"enable_thinking": False}}
    assert rendered(QWEN, turns, **quick) == ["hello<|im_end|>"]
    assert rendered(glm, turns, **quick) == ["\nhello"]


# ---- parts of contents
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_text_parts_are_the_text_that_they_make(family):
    """Whether the template takes lists, fails on them, makes a text of them as they
    are, or leaves them out.
    """
    template = unmarked(FAMILIES[family])
    turns = [user(parts("how ", "many?")), assistant(parts("It is ", "3."))]
    same = [user("how many?"), assistant("It is 3.")]
    if family == "Gemma 3":  # trims each part
        same = [user("howmany?"), assistant("It is3.")]
    assert rendered(template, turns) == rendered(template, same)


LISTS = (
    "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{% for p in m.content %}{{ p.text }}{% endfor %}{{ '\n' }}"
    "{% endfor %}"
)
STRINGS = "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ (m.content if m.content is string else '') }}\n{% endfor %}"
PRINTS = "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content }}\n{% endfor %}"


@pytest.mark.parametrize("template", [LISTS, STRINGS, PRINTS])
@pytest.mark.parametrize(
    "content",
    [
        "yo",
        parts("yo"),
        ["yo"],
        [{"text": "yo", "type": "output_text"}],
        [{"text": "yo"}],
    ],
)
def test_a_content_has_the_form_that_the_template_takes(template, content):
    assert rendered(template, [user(content), assistant(content)]) == ["yo\n"]


def test_parts_without_text_are_refused():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    told = refused(CHATML, [user([*parts("hi"), image]), assistant("x")])
    assert (
        "content_not_text: the field 'messages': turn 1: part 2 of its content is of type 'image_url'"
        in told
    )
    assert refused(CHATML, [user("hi"), assistant(parts(" ", ""))]).startswith(
        "empty_turn"
    )


# ---- names of roles
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("user", ["human", "prompter"]),
        (
            "assistant",
            ["gpt", "chatgpt", "bing", "bard", "bot", "chatbot", "ai", "model"],
        ),
        (
            "tool",
            [
                "function",
                "observation",
                "tool_response",
                "tool_result",
                "function_response",
                "ipython",
            ],
        ),
    ],
)
def test_roles_have_other_names(role, names):
    for name in names:
        for turn in (
            {"from": name, "value": "x"},
            {"role": name, "content": "x"},
            {"role": name, "value": "x"},
        ):
            made = tokenlake.ConvertToChatML()({"messages": [turn]})
            assert made == {"messages": [{"role": role, "content": "x"}]}


def test_a_written_call_that_a_template_has_no_form_for_is_its_text():
    """ShareGPT's calls are texts, and stay texts where a template knows no calls."""
    call = json.dumps(FUNCTION)
    turns = [
        {"from": "human", "value": "1 + 2?"},
        {"from": "function_call", "value": call},
        {"from": "observation", "value": "3"},
        {"from": "chatgpt", "value": "It is 3."},
    ]
    assert rendered(CHATML, turns) == [f"{call}<|im_end|>", "It is 3.<|im_end|>"]
    told = {**turns[1], "value": "add(1, 2)"}
    assert rendered(QWEN, [turns[0], told]) == ["add(1, 2)<|im_end|>"]
    with pytest.raises(BadRecordError, match="unknown, expected one of"):
        tokenlake.ConvertToChatML(use_default_mapping=False)({"messages": turns})


# ---- builds
# --------------------------------------------------------------------------------------------------


def test_a_build_learns_what_each_turn_asks_for(tmp_path: Path):
    """Weights, parts, calls and several turns of a template that renders earlier
    turns in another way.
    """
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                user("hi"),
                assistant("BAD", weight=0),
                user("again"),
                assistant("GOOD", weight=1),
            ]
        },
        {"messages": [user(parts("hi")), assistant(parts("yo"))]},
        {
            "messages": [
                user("1 + 2?"),
                CALLS["JSON text"],
                TOOL,
                assistant("It is 3."),
            ],
            "tools": TOOLS,
        },
        {
            "messages": [
                user("hi"),
                assistant("hello"),
                user("bye"),
                assistant("bye bye"),
            ]
        },
    ]
    data = write_rows(tmp_path / "in.jsonl", rows)
    tokenizer = write(speaking(QWEN), tmp_path / "tokenizer")
    made = documents(build_dataset(config_of(tmp_path, data, tokenizer), workers=1))
    backend = ReferenceTokenizer.of_folder(tokenizer)
    found: list[str] = []
    for ids, mask in made:
        kept = [i for i, is_learned in zip(ids, mask, strict=True) if is_learned]
        found.append(backend.decode(kept, skip_special_tokens=False))
    expected = [
        "GOOD<|im_end|>",
        "yo<|im_end|>",
        CALLED + "It is 3.<|im_end|>",
        "hello<|im_end|>bye bye<|im_end|>",
    ]
    assert found == expected
