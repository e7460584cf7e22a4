"""A template as a program that renders, within the limits of its process."""

from __future__ import annotations

import contextlib
import resource
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import jinja2

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.chat_protocol import (
    LIMIT,
    Limits,
    Message,
    RenderedChat,
    template_error,
)
from tokenlake.etl.text.chat_sandbox import ERROR, NAME, Output, Sandbox, with_clock


@final
class Program:
    """Renders conversations as transformers does, or not at all.

    Its text is that of `apply_chat_template(tokenize=False)`.

    Args:
        text: Jinja template.
        variables: Variables of every conversation, the tokenizer's named tokens among
            them.
        limits: Limits of one rendering.
        learned: Variable that is marked wherever it is output, in a template without
            marks of its own.

    Raises:
        ConfigError: The template cannot be compiled, needs other files, or has ``{%
            generation %}`` at a place that is not known in the text.
    """

    def __init__(
        self,
        text: str,
        variables: Mapping[str, Any],
        limits: Limits,
        learned: str | None = None,
    ) -> None:
        self.text: Final = text
        # Processor time is counted from the start of the process: the limit is set anew
        # before each rendering.
        self._variables = with_clock(variables)
        self._limits = limits
        self._sandbox = Sandbox()
        self._set_limits()
        self.compiled: Final = self._sandbox.compiled(text, learned)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> RenderedChat:
        """Render a conversation.

        Args:
            messages: Dicts of plain data (JSON) with ``role`` and ``content``, as the
                template gets them.
            tools: JSON schemas of the tools.
            variables: Variables of this conversation; ``add_generation_prompt`` is
                False by default.

        Raises:
            BadRecordError: The template fails on this conversation
                (``template_error``), refuses it (``template_refused``), or exceeds a
                limit (``template_limit``).
            ConfigError: The template needs today's date, and none was given.
        """
        # Variables of the conversation come last: they override those of the template.
        all_variables = {
            "messages": list(messages),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
            **self._variables,
            **with_clock(variables),
        }
        return self._rendered(all_variables)

    def render_row(self, row: Mapping[str, Any]) -> RenderedChat:
        """Render a row, whose fields are variables; errors as of :meth:`render`."""
        return self._rendered({**row, **self._variables})

    def _rendered(self, variables: dict[str, Any]) -> RenderedChat:
        """Run the template with limits, and name the line in which it fails."""
        self._set_limits()
        try:
            return self._run(variables)
        except (BadRecordError, ConfigError, MemoryError):
            raise
        except Exception as error:
            line = self._line_of(error)
            problem = f" fails in line {line}: {_problem_of(error)}"
            raise template_error(BadRecordError, problem, reason=ERROR) from error

    def _run(self, variables: dict[str, Any]) -> RenderedChat:
        """Run the template and join its output."""
        # The parts are joined once: a template may output a word at a time.
        parts: list[str] = []
        output = Output()
        self._sandbox.output = output
        template = self.compiled.template
        # Marks need the length of the output before each of its parts.
        for part in template.root_render_func(template.new_context(variables)):
            parts.append(part)
            output.length += len(part)
            if output.length > self._limits.text:
                raise template_error(
                    BadRecordError,
                    f" took more than {self._limits.text:,} characters",
                    reason=LIMIT,
                )
        # A block that a loop leaves early never notes its end; its span would be wrong.
        if output.starts:
            raise template_error(
                BadRecordError,
                " leaves a generation block before its end (break, continue)",
                reason=ERROR,
            )
        return RenderedChat("".join(parts), tuple(output.marked))

    def _line_of(self, error: Exception) -> int:
        """Return the line of the template that raised an error; 1 where it is unknown."""
        # The last frame of the template is the innermost one, in a macro or a loop.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno or 1 for frame in frames if frame.filename == NAME]
        if not lines:
            return 1
        return self.compiled.template.get_corresponding_lineno(lines[-1])

    def _set_limits(self) -> None:
        """Limit the processor time and the memory of the next rendering.

        The kernel ends this process if the rendering takes too long, and refuses it
        more memory.
        """
        # The limit counts whole seconds of the process: the running one is not used up.
        seconds = int(time.process_time()) + 1 + self._limits.seconds
        _set_limit(resource.RLIMIT_CPU, seconds)
        _set_limit(resource.RLIMIT_AS, self._limits.memory)


def _set_limit(resource_kind: int, maximum: int) -> None:
    """Set the soft limit of a resource of this process, within its hard limit."""
    _, hard_limit = resource.getrlimit(resource_kind)
    soft_limit = maximum
    if hard_limit != resource.RLIM_INFINITY:
        soft_limit = min(maximum, hard_limit)
    with contextlib.suppress(OSError, ValueError):  # not every system limits memory
        resource.setrlimit(resource_kind, (soft_limit, hard_limit))


def _problem_of(error: Exception) -> str:
    """Return the message of an error that a template raised."""
    if isinstance(error, jinja2.UndefinedError):
        return str(error)
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    return f"{type(error).__name__}: {error}"
