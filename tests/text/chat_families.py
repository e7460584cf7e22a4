"""Chat templates with the logic of model families, written for these tests, and
conversations of the usual kinds.

``{% generation %}`` stands around what a model of the family says: what it is to learn.
Without these marks (:func:`unmarked`) a template is as such models have it, and the
same places have to be found without them.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
LLAMA2 = """\
{%- if messages[0].role == 'system' %}
    {%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('users and assistants must take turns') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set before = system if loop.first and system is defined else '' %}
        {{- bos_token + '[INST] ' + before + message.content.strip() + ' [/INST]' }}
    {%- else %}
        {%- generation %}{{- ' ' + message.content.strip() + ' ' + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""
LLAMA3 = """\
{%- macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{% endmacro %}
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- head('system') + 'Today Date: 26 Jul 2024\\n\\n' }}
{%- if tools %}{% for tool in tools %}{{- tool | tojson + '\\n\\n' }}{% endfor %}{% endif %}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- head('ipython') + message.content | tojson + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- head('assistant') }}
        {%- generation %}
            {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
        {%- endgeneration %}
    {%- elif message.role == 'assistant' %}
        {{- head('assistant') }}
        {%- generation %}{{- message.content | trim + '<|eot_id|>' }}{%- endgeneration %}
    {%- else %}
        {{- head(message.role) + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- head('assistant') }}{%- endif %}
"""
QWEN3 = """\
{%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- for tool in tools or [] %}{{- "\\n" + tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {%- set answer = message.content %}
        {%- if not thought and '</think>' in answer %}
            {%- set thought = answer.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set answer = answer.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set thinks = loop.index0 > last.question and (loop.last or thought) %}
        {%- if thinks and not thought %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
        {%- generation %}
            {%- if thinks and thought %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
            {{- answer }}
            {%- for call in message.tool_calls %}
                {{- '\\n' if answer or not loop.first }}
                {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
                {%- set arguments = call.function.arguments %}
                {{- arguments if arguments is string else arguments | tojson }}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
GEMMA3 = """\
{%- macro said(content) %}
    {%- if content is string %}{{- content | trim }}{%- else %}
    {%- for part in content %}{{- part.text | trim }}{%- endfor %}{%- endif %}
{%- endmacro %}
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = said(messages[0].content) + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('users and models must take turns') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {{- '<start_of_turn>model\\n' }}
        {%- generation %}{{- said(message.content) + '<end_of_turn>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<start_of_turn>user\\n' + (system if loop.first and system is defined else '') }}
        {{- said(message.content) + '<end_of_turn>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""
DEEPSEEK_V3 = """\
{{- bos_token }}
{%- for message in messages if message.role == 'system' %}{{- message.content }}{%- endfor %}
{%- set tool = namespace(before=false, first=true) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set tool.before = false %}
        {{- '<|User|>' + message.content }}
    {%- elif message.role == 'assistant' and message.content is none %}
        {%- set tool.before = false %}
        {{- '<|Assistant|>' }}
        {%- generation %}
            {{- '<|calls|>' }}
            {%- for call in message.tool_calls %}
                {{- '<|call|>' + call.function.name + '\\n' + call.function.arguments + '<|end_call|>' }}
            {%- endfor %}
            {{- '<|end_calls|>' + eos_token }}
        {%- endgeneration %}
    {%- elif message.role == 'assistant' %}
        {{- '<|end_outputs|>' if tool.before else '<|Assistant|>' }}
        {%- set tool.before = false %}
        {%- generation %}{{- message.content + eos_token }}{%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- ('<|outputs|>' if not tool.before else '\\n') + '<|output|>' + message.content + '<|end_output|>' }}
        {%- set tool.before = true %}
    {%- endif %}
{%- endfor %}
{%- if tool.before %}{{- '<|end_outputs|>' }}{%- elif add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}
"""
DEEPSEEK_R1 = DEEPSEEK_V3.replace(
    "message.content + eos", "message.content.split('</think>')[-1] + eos"
)
MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set last.question = loop.index0 %}{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set is_last = loop.index0 == last.question %}
        {%- if tools and is_last %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + (system + '\\n\\n' if is_last and system is defined else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {%- generation %}
            {{- '[TOOL_CALLS][' }}
            {%- for call in message.tool_calls %}
                {{- call.function | tojson }}
                {{- ', ' if not loop.last }}
            {%- endfor %}
            {{- ']' + eos_token }}
        {%- endgeneration %}
    {%- elif message.role == 'assistant' %}
        {%- generation %}{{- message.content + eos_token }}{%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
GPT_OSS = """\
{{- '<|start|>system<|message|>Reasoning: medium<|end|>' }}
{%- if messages[0].role == 'system' or tools %}
    {{- '<|start|>developer<|message|>' }}
    {%- if messages[0].role == 'system' %}
        {{- '# Instructions\\n\\n' + messages[0].content }}
        {%- set messages = messages[1:] %}
    {%- endif %}
    {%- for tool in tools or [] %}{{- "\\n" + tool | tojson }}{%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(call=none) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- elif message.role == 'tool' %}
        {%- if last.call is none %}{{- raise_exception('a result without a call') }}{%- endif %}
        {{- '<|start|>functions.' + last.call + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content | tojson + '<|end|>' }}
    {%- else %}
        {{- '<|start|>assistant' }}
        {%- generation %}
            {%- set is_end = loop.last and not add_generation_prompt %}
            {%- if message.thinking and (is_end or message.tool_calls) %}
                {{- '<|channel|>analysis<|message|>' + message.thinking + '<|end|><|start|>assistant' }}
            {%- endif %}
            {%- if message.tool_calls %}
                {%- set call = message.tool_calls[0].function %}
                {{- ' to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
                {{- call.arguments | tojson + '<|call|>' }}
                {%- set last.call = call.name %}
            {%- else %}
                {{- '<|channel|>final<|message|>' + message.content + ('<|return|>' if is_end else '<|end|>') }}
                {%- set last.call = none %}
            {%- endif %}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""
GLM = """\
{%- macro said(content) %}
    {%- if content is string %}{{- content }}{%- else %}
    {%- for part in content %}{{- part.text }}{%- endfor %}{%- endif %}
{%- endmacro %}
{{- '[gMASK]<sop>' }}
{%- if tools %}{{- '<|system|>\\n' + tools | tojson }}{%- endif %}
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set last.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set thought = message.reasoning_content or '' %}
        {%- set answer = said(message.content) %}
        {%- if not thought and '</think>' in answer %}
            {%- set thought = answer.split('</think>')[0].split('<think>')[-1].strip() %}
            {%- set answer = answer.split('</think>')[-1] %}
        {%- endif %}
        {{- '<|assistant|>' }}
        {%- set thinks = thought and loop.index0 > last.question %}
        {%- if not thinks %}{{- '\\n<think></think>' }}{%- endif %}
        {%- generation %}
            {%- if thinks %}{{- '\\n<think>' + thought.strip() + '</think>' }}{%- endif %}
            {{- '\\n' + answer.strip() if answer.strip() }}
            {%- for call in message.tool_calls %}
                {{- '\\n<tool_call>' + call.function.name }}
                {%- for name, value in call.function.arguments.items() %}
                    {{- '\\n<arg_key>' + name + '</arg_key>\\n<arg_value>' }}
                    {{- value if value is string else value | tojson }}
                    {{- '</arg_value>' }}
                {%- endfor %}
                {{- '\\n</tool_call>' }}
            {%- endfor %}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- '<|observation|>\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + said(message.content) }}
        {{- '/nothink' if message.role == 'user' and enable_thinking is defined and not enable_thinking }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '\\n<think></think>' }}{%- endif %}
{%- endif %}
"""
FAMILIES = {
    "ChatML": CHATML,
    "Llama 2": LLAMA2,
    "Llama 3.1": LLAMA3,
    "Qwen 3": QWEN3,
    "Gemma 3": GEMMA3,
    "DeepSeek V3": DEEPSEEK_V3,
    "DeepSeek R1": DEEPSEEK_R1,
    "Mistral": MISTRAL,
    "gpt-oss": GPT_OSS,
    "GLM 4.5": GLM,
}
CONTROL = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    *(
        "<start_of_turn>",
        "<end_of_turn>",
        "<s>",
        "</s>",
        "<|User|>",
        "<|Assistant|>",
        "<|outputs|>",
    ),
    *(
        "<|end_outputs|>",
        "<|calls|>",
        "<|end_calls|>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "<|start|>",
    ),
    *(
        "<|message|>",
        "<|channel|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
    ),
    "<|observation|>",
)
"""Special tokens of these templates."""


def unmarked(template: str) -> str:
    """Return the same template without its marks."""
    return template.replace(" generation %}", " if true %}").replace(
        "endgeneration", "endif"
    )


def user(content: Any) -> Message:
    """Return a turn of the user."""
    return {"role": "user", "content": content}


def assistant(content: Any, **fields: Any) -> Message:
    """Return a turn of the assistant."""
    return {"role": "assistant", "content": content, **fields}


def parts(*texts: str) -> list[dict[str, str]]:
    """Return a content of text parts."""
    return [{"type": "text", "text": text} for text in texts]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer", "description": "one"}},
            },
        },
    }
]
ARGUMENTS = {"a": 1, "b": "two"}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "add", "arguments": ARGUMENTS},
}
TOOL = {"role": "tool", "content": "3", "tool_call_id": "call00001", "name": "add"}
SYSTEM = {"role": "system", "content": "Be brief."}
KINDS: dict[str, list[Message]] = {
    "one answer": [user("hi"), assistant("hello")],
    "several answers": [
        user("hi"),
        assistant("hello"),
        user("bye"),
        assistant("bye bye"),
    ],
    "system": [
        SYSTEM,
        user("hi"),
        assistant("hello"),
        user("bye"),
        assistant("bye bye"),
    ],
    "tools": [
        user("1 + 2?"),
        assistant("", tool_calls=[CALL]),
        TOOL,
        assistant("It is 3."),
    ],
    "reasoning": [user("hi"), assistant("hello", reasoning_content="greet back")],
    "reasoning before": [
        user("hi"),
        assistant("hello", reasoning_content="greet back"),
        user("bye"),
        assistant("bye bye", reasoning_content="they leave"),
    ],
    "`<think>`": [user("hi"), assistant("<think>\ngreet back\n</think>\n\nhello")],
    "text parts": [user(parts("hi")), assistant(parts("hel", "lo"))],
}
"""Conversations by kind."""
