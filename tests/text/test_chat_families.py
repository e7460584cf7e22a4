"""Chats of today's model families: which kinds of conversations are learned, and
that masks are right without marks.
"""

from __future__ import annotations

import functools
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.text.chat_families import (
    CONTROL,
    FAMILIES,
    KINDS,
    TOOL,
    TOOLS,
    Message,
    assistant,
    unmarked,
    user,
)
from tokenlake.errors import BadRecordError, TokenlakeError
from tokenlake.etl.text import ChatTemplate

chat_template_utils: Any = lazily("transformers.utils.chat_template_utils")

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "strftime_now": "2025-01-31"}
PAGE = Path(__file__).parents[2] / "docs" / "texts.md"


@functools.cache
def opened(template: str, prompted: bool = False, **options: Any) -> ChatTemplate:
    """A template whose loss is asked for; `prompted`: renderings end with a prompt."""
    variables = {**VARIABLES, "add_generation_prompt": prompted}
    return ChatTemplate(
        template,
        variables,
        loss="assistant",
        special_tokens=CONTROL,
        guarded=True,
        **options,
    )


def learned(
    template: ChatTemplate, messages: list[Message], tools: Any = None
) -> list[str] | BadRecordError:
    """What is learned of a conversation, stretch by stretch, or why it is a bad
    record.
    """
    (made,) = template.render_all([(messages, tools)])
    if not isinstance(made, TokenlakeError):
        return [made.text[start:stop] for start, stop in made.loss]
    assert isinstance(made, BadRecordError), made
    return made


def tools_of(kind: str) -> Any:
    return TOOLS if kind == "tools" else None


# ---- the table of the docs
# --------------------------------------------------------------------------------

LEARNED, DROPPED, REFUSED = "learned", "answer alone", "refused"


def outcome(template: ChatTemplate, kind: str) -> str:
    """What becomes of a conversation of a kind, as the table says it."""
    made = learned(template, KINDS[kind], tools_of(kind))
    if isinstance(made, BadRecordError):
        assert made.details["reason"] in ("not_rendered", "template_refused")
        return REFUSED
    turns = [message for message in KINDS[kind] if message["role"] == "assistant"]
    assert len(made) == len(turns)
    is_whole = True
    for text, turn in zip(made, turns, strict=True):
        words = turn["content"] if isinstance(turn["content"], str) else "hello"
        assert words.split("\n")[-1] in text
        thoughts = [turn.get("reasoning_content", ""), *re.findall("greet back", words)]
        is_whole = is_whole and all(thought in text for thought in thoughts)
        if turn.get("tool_calls"):
            assert re.search("add.*a.*1.*b.*two", text, re.DOTALL)
    return LEARNED if is_whole else DROPPED


def table_of_the_docs() -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("family", *FAMILIES):
            rows[cells[0]] = cells[1:]
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_the_docs_say_which_kinds_of_conversations_a_family_has(family):
    rows = table_of_the_docs()
    assert rows["family"] == list(KINDS)
    assert rows[family] == [
        outcome(opened(unmarked(FAMILIES[family])), kind) for kind in KINDS
    ]


TRL = find_spec("trl")
FOLDER = Path(TRL.origin or "").parent / "chat_templates" if TRL else Path("nowhere")
REAL = {
    "Llama 3.1": "llama3_1",
    "Qwen 3": "qwen3",
    "Gemma 3": "gemma3",
    "DeepSeek R1": "deepseekv3",
    "gpt-oss": "gptoss",
    "GLM 4.5": "glm4moe",
}
"""Real templates of the families, which TRL brings with it."""


def real(name: str) -> str:
    path = FOLDER / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"TRL with {path.name} is not installed")
    return path.read_text("utf-8")


@pytest.mark.parametrize("family", REAL)
def test_real_templates_of_a_family_do_as_the_table_says(family):
    template = opened(real(REAL[family]))
    found = {kind: outcome(template, kind) for kind in KINDS}
    expected = dict(zip(KINDS, table_of_the_docs()[family], strict=True))
    assert found == expected


SHARED = {"Qwen 3": "qwen3", "Gemma 3": "gemma3", "DeepSeek V3": "deepseek_v3"}
"""Real tokenizers with their templates."""


@pytest.mark.corpora
@pytest.mark.parametrize("family", SHARED)
def test_templates_of_real_tokenizers_do_as_the_table_says(family, shared_data):
    config = json.loads(
        (
            shared_data / "tokenizers" / SHARED[family] / "tokenizer_config.json"
        ).read_text()
    )
    template = opened(config["chat_template"])
    found = {kind: outcome(template, kind) for kind in KINDS}
    assert found == dict(zip(KINDS, table_of_the_docs()[family], strict=True))


# ---- the law: what marks would say is found without them
# ---------------------------------------------------

# Words that are a part of headers, of other turns, of tags, or almost a blank.
WORDS = st.one_of(
    st.sampled_from(
        [
            "a",
            "assistant",
            "assistant\n",
            "user",
            "hi",
            " hi ",
            "A: ",
            "\n",
            "model",
            "final",
            "It is 3.",
            "3",
            "|>",
            "\u2003x",
        ]
    ),
    st.text(st.sampled_from("ab \n:#[]{}'\"\\é日"), min_size=1, max_size=8),
)
SPOKEN = WORDS.filter(str.strip)
TAGGED = st.sampled_from(
    [
        "<think>\nso\n</think>\n\nyes",
        "<think>so</think>yes",
        "so</think>yes",
        "a <think>\n\n</think>\n\nb",
    ]
)
CALLS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["add", "a", "assistant"]),
        "arguments": st.dictionaries(
            st.sampled_from(["a", "b"]), st.one_of(st.integers(0, 9), WORDS), max_size=2
        ),
    }
)


@st.composite
def conversations(
    draw: st.DrawFn, *, thoughts: bool, calls: bool, tags: bool
) -> list[Message]:
    """A conversation that a family can render: questions, answers, and calls with
    their results.
    """
    messages: list[Message] = (
        [{"role": "system", "content": draw(SPOKEN)}] if draw(st.booleans()) else []
    )
    for _ in range(draw(st.integers(1, 3))):
        messages.append(user(draw(WORDS)))
        for _ in range(draw(st.integers(0, 2)) if calls else 0):
            call = {"id": "call00001", "type": "function", "function": draw(CALLS)}
            thought = (
                {"reasoning_content": draw(SPOKEN)}
                if thoughts and draw(st.booleans())
                else {}
            )
            messages.append(
                assistant(
                    draw(st.sampled_from(["", None])), tool_calls=[call], **thought
                )
            )
            messages.append({**TOOL, "content": draw(WORDS)})
        thought = (
            {"reasoning_content": draw(SPOKEN)}
            if thoughts and draw(st.booleans())
            else {}
        )
        is_tagged = tags and not thought and draw(st.booleans())
        messages.append(assistant(draw(TAGGED if is_tagged else SPOKEN), **thought))
    return messages


HAS_REASONING = ("Qwen 3", "gpt-oss", "GLM 4.5")
HAS_CALLS = (*HAS_REASONING, "Llama 3.1", "DeepSeek V3", "DeepSeek R1", "Mistral")


def spans_of(
    template: ChatTemplate, messages: list[Message], tools: Any
) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and what is learned of it without the blanks
    behind a turn's end.
    """
    (made,) = template.render_all([(messages, tools)])
    if isinstance(made, TokenlakeError):
        raise made
    return made.text, [
        (start, start + len(made.text[start:stop].rstrip()))
        for start, stop in made.loss
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompted", [False, True])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_turns_are_found_where_marks_would_be(family, prompted, data):
    """Neither a header nor the words of another role are learned, whatever is said."""
    chats = conversations(
        thoughts=family in HAS_REASONING,
        calls=family in HAS_CALLS,
        tags=family != "DeepSeek R1",
    )
    messages = data.draw(chats)
    # Its prompt takes the reasoning of the last turn away.
    if family == "gpt-oss" and prompted:
        messages[-1] = assistant(messages[-1]["content"])
    marked, plain = (
        opened(FAMILIES[family], prompted),
        opened(unmarked(FAMILIES[family]), prompted),
    )
    assert spans_of(plain, messages, TOOLS) == spans_of(marked, messages, TOOLS)


def headed(header: str, end: str) -> str:
    """A template without a prompt; `header` is an expression, `end` what ends a
    turn.
    """
    said = f"{{{{- message.content + {end} }}}}"
    return (
        f"{{%- for message in messages %}}{{{{- {header} }}}}{{%- if message.role == 'assistant' %}}"
        f"{{%- generation %}}{said}{{%- endgeneration %}}{{%- else %}}{said}{{%- endif %}}{{%- endfor %}}"
    )


HEADED = {
    "roles": headed("'### ' + message.role + ': '", "'\n'"),
    "letters": headed("'Q: ' if message.role == 'user' else 'A: '", "'\n'"),
    "chatml": headed("'<|im_start|>' + message.role + '\n'", "'<|im_end|>\n'"),
    "twice": headed("message.role + ' '", "' ' + message.role + '\n'"),
}


def trimmed(
    found: tuple[str, list[tuple[int, int]]],
) -> tuple[str, list[tuple[int, int]]]:
    """The same with the blanks before what is learned left out."""
    text, spans = found
    return text, [
        (stop - len(text[start:stop].lstrip()), stop) for start, stop in spans
    ]


@pytest.mark.parametrize("name", HEADED)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_header_bears_no_loss_where_no_prompt_tells_it(name, data):
    messages = data.draw(conversations(thoughts=False, calls=False, tags=True))
    marked, plain = opened(HEADED[name]), opened(unmarked(HEADED[name]))
    assert trimmed(spans_of(plain, messages, None)) == trimmed(
        spans_of(marked, messages, None)
    )


# ---- the masks of TRL
# ---------------------------------------------------------------------------------------

TRAINING = sorted(path.stem for path in FOLDER.glob("*_training.jinja"))
# Of the rows of tools, transformers loses the call: the template of R1 takes calls only
# beside a content that is null.
LOST_BY_TRANSFORMERS = {("deepseek_r1_distill_training", "tools")}
TAKES_LISTS_ALONE = ("idefics3_training", "llava_next_training", "smolvlm_training")
PLAIN_KINDS = [
    kind for kind in KINDS if kind != "text parts"
]  # lists become other texts, or nothing, in many of them


@pytest.mark.parametrize("name", TRAINING or ["none"])
def test_masks_of_marked_templates_are_those_of_trl(name):
    """`assistant_only_loss` of TRL takes what transformers says is marked."""
    text = re.sub(r"strftime_now\([^)]*\)", "'2025-01-31'", real(name))
    template = opened(text)
    rendered = 0
    for kind in PLAIN_KINDS:
        (made,) = template.render_all([(KINDS[kind], tools_of(kind))])
        if isinstance(made, BadRecordError) or (name, kind) in LOST_BY_TRANSFORMERS:
            continue
        rendered += 1
        assert not isinstance(made, TokenlakeError)
        if name in TAKES_LISTS_ALONE:
            continue
        theirs, spans = chat_template_utils.render_jinja_template(
            conversations=[KINDS[kind]],
            chat_template=text,
            tools=tools_of(kind),
            return_assistant_tokens_mask=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        full = [(start, stop) for start, stop in spans[0] if start < stop]
        assert (made.text, list(made.loss)) == (theirs[0], full), kind
    assert rendered


# What TRL learns beyond our turns: prompts, and blanks behind the end.
HEADERS = (
    "",
    "\n",
    "<|start|>assistant",
    "<\uff5cAssistant\uff5c>",
    "<\uff5ctool\u2581outputs\u2581end\uff5c>",
)
ALIKE = ["llama3", "qwen2_5", "gemma3", "deepseekv3", "gptoss", "cohere2", "lfm2_v2"]
"""Templates that TRL marks without changing their texts."""


@pytest.mark.parametrize("name", ALIKE)
def test_turns_of_real_templates_are_those_that_trl_marks(name):
    """The model's own template, without marks, against TRL's copy with them."""
    plain, marked = opened(real(name)), opened(real(f"{name}_training"))
    compared = 0
    for kind in PLAIN_KINDS:
        row = KINDS[kind], tools_of(kind)
        (ours,), (theirs,) = plain.render_all([row]), marked.render_all([row])
        if isinstance(ours, BadRecordError):
            continue
        assert not isinstance(ours, TokenlakeError)
        assert not isinstance(theirs, TokenlakeError)
        assert ours.text == theirs.text
        for (start, stop), (first, last) in zip(ours.loss, theirs.loss, strict=True):
            assert ours.text[first:start] in HEADERS
            assert not ours.text[stop:last].strip()
        compared += 1
    assert compared >= 3
