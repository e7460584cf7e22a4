"""Chat templates of the usual styles, conversations, and small tokenizers that speak
them.
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

from tests.tokenizers.tokenizer_samples import byte_level, changed, save, template
from tokenlake.etl.tokenizers import TokenizerFiles

Message = dict[str, Any]

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MARKED_CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
TOOLS_CHATML = """\
{%- macro call(one) %}<call>{{ one.function.name }} {{ one.function.arguments | tojson }}</call>{% endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if message.content is defined %}{{- message.content }}{%- endif %}
    {%- for one in message.tool_calls %}{{- call(one) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + \
'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("roles must alternate") }}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + \
'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}\
{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{% for m in turns %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
{% set content = system + m['content'] if loop.index0 == 0 else m['content'] %}{% if m['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}\
{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""
HEADED = """\
{% for message in messages %}{{ '### ' + message.role + ': ' + message.content + '\\n' }}{% endfor %}"""
THINKING = """\
{%- for message in messages %}
{%- if message.role == 'assistant' and not loop.last %}
{{- '<|im_start|>assistant\\n' + message.content.split('</think>')[-1] + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
STYLES = {
    "chatml": CHATML,
    "marked-chatml": MARKED_CHATML,
    "tools": TOOLS_CHATML,
    "llama-2": LLAMA2,
    "llama-3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "zephyr": ZEPHYR,
}
CONTROL = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    *("<start_of_turn>", "<end_of_turn>", "<s>", "</s>"),
)
WORDS = (
    "the sum",
    "of two",
    "numbers",
    "is 4.",
    "Grüße",
    "日本",
    "x = 3\n",
    "so\n\nthen",
    "a <b> tag",
    "{{ no }}",
    "{% x %}",
)


def conversation(seed: int, *, system: bool = False, turns: int = 2) -> list[Message]:
    """Return a conversation of `turns` questions and answers, of awkward but honest
    texts.
    """
    source = random.Random(seed)

    def said() -> str:
        return " ".join(source.choices(WORDS, k=source.randint(1, 6))) + f" ({seed})"

    messages: list[Message] = [{"role": "system", "content": said()}] if system else []
    for _ in range(turns):
        messages += [
            {"role": "user", "content": said()},
            {"role": "assistant", "content": said()},
        ]
    return messages


@functools.cache
def speaking(chat_template: str, *, bos: bool = True) -> TokenizerFiles:
    """Return a small byte-level tokenizer with control tokens and a chat template;
    BOS by its post-processor.
    """

    def add(spec: dict[str, Any]) -> None:
        first = len(spec["model"]["vocab"])
        flags = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        spec["added_tokens"] += [
            {"id": first + at, "content": token, **flags}
            for at, token in enumerate(CONTROL)
        ]
        if bos:
            spec["post_processor"] = template(
                [("<s>", first + CONTROL.index("<s>"))], []
            )

    files = changed(byte_level(), add)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": chat_template,
    }
    return TokenizerFiles(
        name="speaking",
        files={**files.files, "tokenizer_config.json": json.dumps(config).encode()},
    )


write = save


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
