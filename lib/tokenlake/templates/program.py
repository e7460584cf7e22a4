"""A chat template as a program: compiled once, run for every conversation, in a process that is bounded."""

from __future__ import annotations

import contextlib
import resource
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import jinja2
from jinja2 import nodes

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.templates.generation import Written, is_marked, misplaced
from tokenlake.templates.rendered import LIMIT, MAX_TEMPLATE, Limits, Message, RenderedChat
from tokenlake.templates.sandbox import ERROR, Sandbox, with_clock

_NAME: Final = "<chat template>"
_THOUGHTS: Final = ("reasoning_content", "thinking", "reasoning")
_ELSEWHERE: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


@final
class Program:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    Args:
        text: the Jinja template.
        variables: of every conversation, the tokenizer's named tokens among them.
        limits: of one rendering.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(self, text: str, variables: Mapping[str, Any], limits: Limits) -> None:
        self.text: Final = text
        self._variables, self._limits = with_clock(variables), limits
        self._sandbox = Sandbox()
        self.bound()
        self._template, self.marked = _compiled(self._sandbox, text)

    marked: bool
    """Whether the template itself says what the assistant's stretches are."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **variables: Any
    ) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: dicts of plain data (JSON), as ``role`` and ``content``.
            tools: JSON schemas of what may be called.
            variables: of this conversation; ``add_generation_prompt`` is False unless given.

        Raises:
            BadRecordError: the template fails on this conversation (``template_error``), refuses it
                (``template_refused``), or does more than it may (``template_limit``).
            ConfigError: the template asks for today's date, and none was given.
        """
        given = {
            "messages": [_without_nulls(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
            **self._variables,
            **with_clock(variables),
        }
        self.bound()
        try:
            return self._render(given)
        except (BadRecordError, ConfigError, MemoryError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"the chat template fails in line {self._line(error)}: {_words(error)}", reason=ERROR
            ) from error

    def bound(self) -> None:
        """Have the kernel end this process where the next rendering takes too long, or refuse it more memory."""
        seconds = int(time.process_time()) + 1 + self._limits.seconds
        for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, self._limits.memory)):
            hard = resource.getrlimit(kind)[1]
            with contextlib.suppress(OSError, ValueError):  # not every system bounds memory
                resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    def _render(self, variables: dict[str, Any]) -> RenderedChat:
        parts: list[str] = []
        written = self._sandbox.written = Written()
        for part in self._template.root_render_func(self._template.new_context(variables)):
            parts.append(part)
            written.length += len(part)
            if written.length > self._limits.text:
                raise BadRecordError(
                    f"the chat template came to more than {self._limits.text:,} characters", reason=LIMIT
                )
        if written.starts:
            raise BadRecordError(
                "the chat template leaves a generation block before its end (break, continue)", reason=ERROR
            )
        return RenderedChat("".join(parts), tuple(written.learned))

    def _line(self, error: Exception) -> int:
        """Return the line of the template in which `error` came up."""
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _NAME
        ]
        return self._template.get_corresponding_lineno(lines[-1] or 1) if lines else 1


def _compiled(sandbox: Sandbox, text: str) -> tuple[jinja2.Template, bool]:
    if len(text) > MAX_TEMPLATE:
        raise ConfigError(
            f"the chat template has {len(text):,} characters, at most {MAX_TEMPLATE:,} are allowed"
        )
    try:
        tree = sandbox.parse(text)
        _check(tree)
        marked = is_marked(tree)
        code = sandbox.compile(tree, None, _NAME)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"the chat template, line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        raise ConfigError(f"the chat template cannot be compiled: {type(error).__name__}: {error}") from error
    return jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None)), marked


def _check(tree: nodes.Template) -> None:
    for node in tree.find_all(_ELSEWHERE):
        raise ConfigError(
            f"the chat template, line {node.lineno}: it asks for another file, which a chat template cannot have"
        )
    line = misplaced(tree)
    if line is not None:
        raise ConfigError(
            f"the chat template, line {line}: a generation block inside a macro, a call, a filter, a set block, a "
            "named block or a recursive loop, where its place in the text is not known; put it where its text is output"
        )


def _without_nulls(message: Message) -> dict[str, Any]:
    """Return a message's fields; a thought is there under each of the names that templates know it by."""
    fields = {name: value for name, value in message.items() if value is not None}
    thought = next((fields[name] for name in _THOUGHTS if name in fields), None)
    if thought is not None:
        return {"thinking": thought, **fields, "reasoning_content": thought}
    return fields


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    if isinstance(error, jinja2.UndefinedError):
        return str(error)
    return f"{type(error).__name__}: {error}"
