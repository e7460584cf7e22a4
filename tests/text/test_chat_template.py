"""A chat template gives the text that transformers gives, or an error; never a
mistake, and never without end.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.seeds import promise
from tests.text.chat_samples import MARKED_CHATML, STYLES, TOOLS_CHATML, conversation
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.etl.text import ChatTemplate, Limits

chat_template_utils: Any = lazily("transformers.utils.chat_template_utils")

HELLO = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def theirs(
    text: str, messages: list[dict[str, Any]], **variables: Any
) -> tuple[str, list[tuple[int, int]]]:
    """What transformers makes of it."""
    marks = "endgeneration" in text
    asked = {
        "conversations": [messages],
        "chat_template": text,
        "return_assistant_tokens_mask": marks,
    }
    made, stretches = chat_template_utils.render_jinja_template(
        **asked, **TOKENS, **variables
    )
    return made[0], stretches[0] if marks else []


def reason(
    template: str, messages: list[dict[str, Any]] | None = None, **limits: Any
) -> str:
    """Why a row cannot be rendered."""
    made = ChatTemplate(template, TOKENS, limits=Limits(**limits))
    with pytest.raises(BadRecordError) as caught:
        made.render(HELLO if messages is None else messages)
    return f"{caught.value.details['reason']}: {caught.value}"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("prompt", [False, True])
def test_texts_and_stretches_are_those_of_transformers(style, prompt):
    ours = ChatTemplate(STYLES[style], TOKENS)
    for seed in range(20):
        messages = conversation(
            seed, system=style not in ("gemma",) and seed % 2 == 0, turns=1 + seed % 4
        )
        made = ours.render(messages, add_generation_prompt=prompt)
        text, stretches = theirs(STYLES[style], messages, add_generation_prompt=prompt)
        assert made.text == text
        assert list(made.loss) == stretches
        assert ours.marked == ("endgeneration" in STYLES[style])


def test_marks_hold_what_the_assistant_says():
    messages = conversation(3, system=True, turns=3)
    made = ChatTemplate(MARKED_CHATML, TOKENS).render(messages)
    said = [
        message["content"] + "<|im_end|>"
        for message in messages
        if message["role"] == "assistant"
    ]
    assert [made.text[start:stop] for start, stop in made.loss] == said


@promise(266)
def test_tools_and_calls_are_rendered_as_transformers_does():
    tools = [
        {
            "type": "function",
            "function": {"name": "add", "description": "Größe <&>", "parameters": {}},
        }
    ]
    call = {
        "type": "function",
        "function": {"name": "add", "arguments": {"a": 1, "b": [None, "ü"]}},
    }
    messages = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "3", "name": None},
        {"role": "assistant", "content": "3", "reasoning": "easy"},
    ]
    given_to_theirs = [
        {key: value for key, value in m.items() if value is not None} for m in messages
    ]
    made = ChatTemplate(TOOLS_CHATML, TOKENS).render(messages, tools).text
    assert made == theirs(TOOLS_CHATML, given_to_theirs, tools=tools)[0]
    assert '<call>add {"a": 1, "b": [null, "ü"]}</call>' in made
    assert "Größe <&>" in made


def test_thoughts_are_known_by_all_their_names():
    text = "{% for m in messages %}{{ m.reasoning_content ~ m.thinking }}|{% endfor %}"
    for name in ("reasoning_content", "thinking", "reasoning"):
        messages = [{"role": "assistant", "content": "a", name: "hm"}]
        assert (
            ChatTemplate(text).render(messages).text
            == theirs(text, messages)[0]
            == "hmhm|"
        )


PARTS = st.sampled_from(
    [
        "{{ messages[0].content }}",
        "{{ messages[0]['content'][1:3] }}",
        "{% for m in messages %}{{ loop.index }}{{ m.role | upper }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m.content | trim | length }}{% else %}none{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% macro f(x, y='!') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(messages[0].content) }}{{ f('a', y='b') }}",
        "{{ messages | map(attribute='role') | join(', ') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{{ messages | tojson(indent=2) }}",
        "{{ {'a': messages[0].role, 'b': [1, 2.5, none, true]} | tojson }}",
        "{{ '%s-%05d' % (messages[0].role, 7) }}{{ '{:>8}|{x}'.format('a', x=messages[0].role) }}",
        "{% if messages[0].nothing is not defined %}undefined{% endif %}{{ messages[0].nothing | default('-') }}",
        "{{ 'yes' if messages[0].nothing }}{{ messages[0].nothing or 'or' }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
        "{%- set x = 'set' -%}  {{ x ~ 1 ~ none_such | default(2) }}",
        "{% set block %}{{ messages[0].content }} and{% endset %}{{ block | replace('and', '&') }}",
        "{% filter upper %}{{ messages[0].role }}{% endfilter %}",
        "{{ range(3) | list }}",
        "{{ messages[0].content.split(' ') | first }}{{ messages[0].content.startswith('H') }}",
        "{{ messages[-1].content | indent(2, true) }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 'ab' * 3 }}",
        "{% for k, v in messages[0].items() | sort %}{{ k }}={{ v }};{% endfor %}{{ dict(a=1) }}",
        "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.last }}{{ loop.length }}{% endfor %}",
        "  \n text {# comment #}\n  {% if true %}  \n x\n {% endif %}\n",
        "{{ bos_token }}{% generation %}{{ messages[1].content }}{% set inner = 1 %}{% endgeneration %}{{ eos_token }}",
    ]
)


@given(st.lists(PARTS, min_size=1, max_size=6))
@settings(max_examples=40)
def test_templates_of_any_parts_give_what_transformers_gives(parts):
    text = "\n".join(parts)
    made = ChatTemplate(text, TOKENS).render(HELLO)
    expected, stretches = theirs(text, HELLO)
    assert made.text == expected
    assert list(made.loss) == stretches


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].nothing }}",
        "{{ messages[0]['nothing'] ~ 'x' }}",
        "{{ nothing | trim }}",
        "{{ unk_token }}",
        "{{ [messages[0].nothing] | join }}",
        "{{ none }}",
        "{{ messages[0].content.strip }}",
        "{{ '%s' % messages[0].content.strip }}",
        "{{ '{}'.format(messages[0].content.strip) }}",
        "{{ messages | map(attribute='content') }}",
        "{{ namespace(a=1) }}",
        "{{ messages[0].content + 1 }}",
        "{{ raise_exception('no') }}",
        "{{ lipsum() }}",
    ],
)
def test_what_is_missing_null_or_no_data_never_becomes_text(text):
    assert reason(text).startswith(("template_error", "template_refused"))


def test_a_failure_names_the_line_and_the_cause():
    assert "line 3: 'dict object' has no attribute 'name'" in reason(
        "{{ 1 }}\n\n{{ messages[0].name }}"
    )
    assert reason("{{ raise_exception('only users') }}") == (
        "template_refused: the chat template refuses the conversation: only users"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages[0]['__class__'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ namespace(__init__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ (10).to_bytes(2) }}",
        "{{ self._TemplateReference__context }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages[0].content.encode() }}",
        "{{ messages[0].content ~ raise_exception }}",
        "{{ messages[0].content ~ loop }}",
        "{% macro m() %}{% endmacro %}{{ '%s' % m }}",
        "{{ '%s' % (messages | map(attribute='content')) }}",
        "{{ [messages[0].nothing] }}",
    ],
)
def test_tricks_with_attributes_are_refused(text):
    before = [dict(message) for message in HELLO]
    assert reason(text).startswith("template_error")
    assert before == HELLO


FOREVER = "{{ ([[0] * 9] * 99999) | sum(start=[]) | length }}"
GROWING = [
    "{{ [0-10**15] | map('generation begins') | list }}{{ [[0]] * 10 ** 7 | sum(start=[]) }}",
    "{% set ns = namespace(x={}) %}{% for i in range(99) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}"
    "{{ ns.x | tojson }}",
    "{% for a in range(9999) %}{% set x = range(99999) | list == range(99999) | list %}{% endfor %}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:{}}'.format(1, 10 ** 10) }}",
    "{{ 'abc'.replace('', 'x' * 20000000) }}",
    "{{ ('x' * 10000000).join(['a'] * 10) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ [1] | slice(10 ** 9) | list }}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    + "{{ "
    + "m(" * 40
    + "'a'"
    + ")" * 40
    + " }}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99) %}"
    + "x" * 9999
    + "{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("text", GROWING)
def test_what_grows_or_goes_on_without_end_is_one_error(text):
    assert reason(text, seconds=1, memory=256 << 20).startswith(
        ("template_limit", "template_error")
    )


def test_a_rendering_has_so_much_time_memory_and_text():
    took = "template_limit: the chat template took more than "
    assert reason(FOREVER, seconds=1) == f"{took}1 seconds of a processor"
    assert reason("{{ 'a' * 10 ** 9 }}", memory=256 << 20) == f"{took}256 MiB of memory"
    assert reason("{{ 'a' * 41 }}", text=40) == f"{took}40 characters"


def test_a_row_that_is_too_much_is_one_error_and_the_others_are_rendered():
    text = "{{ messages[0].content }}{{ ('x' * messages[0].times)[:0] }}"
    template = ChatTemplate(text, loss="all", limits=Limits(memory=256 << 20))
    rows = [
        [{"role": "user", "content": str(at), "times": 10**9 * (at == 70)}]
        for at in range(150)
    ]
    made = template.render_all((messages, None) for messages in rows)
    assert [at for at, one in enumerate(made) if isinstance(one, BadRecordError)] == [
        70
    ]
    assert [one.text for one in made if not isinstance(one, TokenlakeError)] == [
        str(at) for at in range(150) if at != 70
    ]
    assert "256 MiB" in str(made[70])


def test_a_template_that_always_ends_its_process_is_given_up():
    template = ChatTemplate(
        "{{ 'a' * 10 ** 9 }}", loss="all", limits=Limits(memory=256 << 20)
    )
    with pytest.raises(
        ConfigError, match="256 MiB of memory, as on the 2 previous conversations"
    ):
        template.render_all((HELLO, None) for _ in range(1000))


@pytest.mark.parametrize(
    "text",
    [
        "{% autoescape 'a' | center(10 ** 10) %}{% endautoescape %}",
        "{{ 'a' | center(10 ** 10) }}",
    ],
)
def test_compiling_computes_nothing_or_is_bounded(text):
    try:
        ChatTemplate(text, limits=Limits(seconds=1, memory=256 << 20))
    except ConfigError as error:
        assert "cannot be compiled: the chat template took more than" in str(error)


def test_ctrl_c_ends_a_template_that_is_in_c_code_at_once(tmp_path):
    script = f"""
import signal
from tokenlake.etl.text import ChatTemplate, Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have begun the tests without it
template = ChatTemplate({FOREVER!r}, limits=Limits(seconds=30))
print("begins", flush=True)
template.render([])
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert told.endswith("KeyboardInterrupt\n")
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert len(children) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*")  # JAX warns of every fork
def test_a_process_that_is_killed_or_forked_away_is_replaced():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(HELLO).text == "Hello"
    # The process of the renderer has no environment; no other child of this process is
    # without one.
    children = {
        pid
        for tasks in Path("/proc/self/task").glob("*/children")
        for pid in tasks.read_text().split()
    }
    (pid,) = (
        child for child in children if not Path(f"/proc/{child}/environ").read_bytes()
    )
    os.kill(int(pid), signal.SIGKILL)
    os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
    assert template.render(HELLO).text == "Hello"
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, template.render(HELLO).text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"Hello"
    assert template.render(HELLO).text == "Hello"
    os.close(read)
    os.close(write)


def test_values_that_are_no_json_may_be_asked_about_and_never_printed():
    messages = [{"role": "user", "content": "x", "at": datetime.date(2025, 1, 31)}]
    assert (
        ChatTemplate("{{ 'dated' if messages[0].at }}").render(messages).text == "dated"
    )
    assert reason("{{ messages[0].at }}", messages).startswith(
        "template_error: the chat template converts a date to text, which is not data"
    )


def test_threads_render_side_by_side():
    template = ChatTemplate(MARKED_CHATML, TOKENS)
    inputs = [conversation(seed, turns=3) for seed in range(60)]
    expected = [template.render(messages) for messages in inputs]
    found: dict[int, Any] = {}

    def work(first: int) -> None:
        for index in range(first, len(inputs), 3):
            found[index] = template.render(inputs[index])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(inputs))] == expected


def test_todays_date_is_not_to_be_had():
    text = "{{ strftime_now('%d %b %Y') }}"
    with pytest.raises(
        ConfigError, match=r"today's date .* give the date in chat.template_kwargs"
    ):
        ChatTemplate(text).render(HELLO)
    assert (
        ChatTemplate(text, variables={"strftime_now": "2025-01-31"}).render(HELLO).text
        == "31 Jan 2025"
    )
    with pytest.raises(
        ConfigError, match="got 'soon', must be a date such as 2025-01-31"
    ):
        ChatTemplate(text, variables={"strftime_now": "soon"})
    asked = "{% if not day is defined %}{% set day = strftime_now('%d') %}{% endif %}{{ day }}"
    assert ChatTemplate(asked, variables={"day": "1"}).render(HELLO).text == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ ", "line 1: unexpected 'end of template'"),
        ("\n{% include 'x' %}", "line 2: it includes another file"),
        ("{% extends 'x' %}", "it includes another file"),
        ("{{ messages | random }}", "No filter named 'random'"),
        ("{{ messages | pprint }}", "No filter named 'pprint'"),
        (
            "x\n{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}",
            "line 2: a generation block inside",
        ),
        (
            "{% set x %}{% generation %}a{% endgeneration %}{% endset %}",
            "a generation block inside",
        ),
        ("x" * (1 << 20) + "y", "has 1,048,577 characters"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
    ],
)
def test_templates_that_cannot_work_are_refused_before_any_row(text, message):
    with pytest.raises(ConfigError) as caught:
        ChatTemplate(text)
    assert message in str(caught.value)


def test_a_generation_block_that_is_left_is_an_error():
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% break %}{% endgeneration %}{% endfor %}"
    assert "leaves a generation block" in reason(text)
