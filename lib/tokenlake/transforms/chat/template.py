"""A chat template: compiled once, rendered for every conversation, bounded in what it may do."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import jinja2
from jinja2 import nodes

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.counting import COUNTERS, counted
from tokenlake.transforms.chat.generation import is_marked, misplaced
from tokenlake.transforms.chat.limits import Budget, Limits
from tokenlake.transforms.chat.sandbox import Sandbox, clock_at
from tokenlake.transforms.chat.weights import ERROR

Message = Mapping[str, Any]
Stretch = tuple[int, int]

MAX_TEMPLATE: Final = 1 << 20
"""Characters of a template; the longest known have 30,000."""

_NAME: Final = "<chat template>"
_CLOCK: Final = "strftime_now"
_THOUGHTS: Final = ("reasoning_content", "thinking", "reasoning")
_ELSEWHERE: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_NAMED_TOKENS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@final
@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation.

    Attributes:
        learned: stretches of characters that the template marks as the assistant's: (start, stop), ascending and
            disjoint, none empty; () where the template has no such marks.
    """

    text: str
    learned: tuple[Stretch, ...] = ()


@final
class ChatTemplate:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    It differs where that would let a mistake become text: what is missing or null is never output, today's date is
    not to be had, and everything is counted (:class:`Limits`). A message's fields that are null count as missing.

    Args:
        text: the Jinja template.
        bos_token, eos_token: texts of the tokenizer's tokens; None where it has none.
        tokens: further named tokens, such as ``{"pad_token": "<pad>"}``.
        variables: further variables of the template; ``strftime_now`` among them is the date that the function of
            this name says.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(
        self,
        text: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.text: Final = text
        named = {"bos_token": bos_token, "eos_token": eos_token, **(tokens or {})}
        self._variables = _with_clock(
            {name: token for name, token in named.items() if token is not None} | dict(variables or {})
        )
        self._sandbox = Sandbox(limits or Limits())
        self._sandbox.filters |= COUNTERS
        self._template, self.marked = _compiled(self._sandbox, text)

    marked: bool
    """Whether the template itself says what the assistant's stretches are."""

    @classmethod
    def of(
        cls,
        text: str,
        files: TokenizerFiles,
        variables: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> ChatTemplate:
        """Return a template with the named tokens of a tokenizer."""
        tokens = named_tokens(files)
        return cls(text, tokens=tokens, variables=variables, limits=limits)

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
            **_with_clock(variables),
        }
        budget = self._sandbox.begin()
        try:
            return self._render(budget, given)
        except (BadRecordError, ConfigError, MemoryError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"the chat template fails in line {self._line(error)}: {_words(error)}", reason=ERROR
            ) from error
        finally:
            self._sandbox.end()

    def _render(self, budget: Budget, variables: dict[str, Any]) -> RenderedChat:
        parts: list[str] = []
        for part in self._template.root_render_func(self._template.new_context(variables)):
            parts.append(part)
            budget.length += len(part)
        budget.look_at_clock()
        budget.make(budget.length)
        if budget.starts:
            raise BadRecordError(
                "the chat template leaves a generation block before its end (break, continue)", reason=ERROR
            )
        return RenderedChat("".join(parts), tuple(budget.learned))

    def _line(self, error: Exception) -> int:
        """Return the line of the template in which `error` came up."""
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _NAME
        ]
        return self._template.get_corresponding_lineno(lines[-1] or 1) if lines else 1


def named_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return the tokens that a template knows by name: bos_token, eos_token, and whatever the tokenizer has."""
    found: dict[str, str] = {}
    for kind in _NAMED_TOKENS:
        value: Any = files.config.get(f"{kind}_token")
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[f"{kind}_token"] = text
    extra: Any = files.config.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= {str(name): token for name, token in extra.items() if isinstance(token, str)}
    return found


def _compiled(sandbox: Sandbox, text: str) -> tuple[jinja2.Template, bool]:
    if len(text) > MAX_TEMPLATE:
        raise ConfigError(
            f"the chat template has {len(text):,} characters, at most {MAX_TEMPLATE:,} are allowed"
        )
    try:
        tree = sandbox.parse(text)
        _check(tree)
        marked = is_marked(tree)
        code = sandbox.compile(counted(tree), None, _NAME)
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


def _with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
    if _CLOCK not in variables:
        return dict(variables)
    return {**variables, _CLOCK: clock_at(variables[_CLOCK])}


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
