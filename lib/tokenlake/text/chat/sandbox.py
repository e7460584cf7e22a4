"""A chat template as a program: compiled once, run for every conversation, in a process that is bounded.

The block ``{% generation %} ... {% endgeneration %}``: what is in it, an assistant says and a trainer learns.

The environment that chat templates run in: Jinja's immutable sandbox, with nothing in it but data.

A template knows no clock and no chance. What is missing may be asked about (``is defined``, ``if``, ``for``,
``default``); neither it nor a function, a generator or whatever else is no data ever becomes text. How much a template
does is bounded from outside (:mod:`tokenlake.text.chat.template`).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import resource
import time
import traceback
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, NoReturn, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.text.chat.template import LIMIT, MAX_TEMPLATE, Limits, Message, RenderedChat

BEGIN: Final = "generation begins"
END: Final = "generation ends"
"""Names of the filters that note where the output is; a template cannot spell them."""

_BUFFERED: Final = (
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.AssignBlock,
    nodes.Block,
)


@final
@dataclass(slots=True)
class Written:
    """What one rendering has output so far.

    Attributes:
        length: characters.
        starts: where the blocks that are open began.
        learned: the blocks that ended.
    """

    length: int = 0
    starts: list[int] = field(default_factory=list[int])
    learned: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@final
class GenerationMarks(Extension):
    """Notes how long the output is where the block begins and where it ends."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Make of the block its own body in a scope, between two notes."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        scope = nodes.Scope(body).set_lineno(line)
        return [_note(BEGIN, line), scope, _note(END, line)]


def _note(name: str, line: int) -> nodes.Node:
    call = nodes.Filter(nodes.Const(0), name, [], [], None, None)
    return nodes.ExprStmt(call).set_lineno(line)


def is_marked(tree: nodes.Template) -> bool:
    """Return whether a template has the block."""
    return any(True for _ in _notes(tree))


def misplaced(tree: nodes.Template) -> int | None:
    """Return the line of a block whose text does not go straight to the output, so that its place cannot be noted."""
    for kind in _BUFFERED:
        for outer in tree.find_all(kind):
            for note in _notes(outer):
                return note.lineno
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            for note in _notes(loop):
                return note.lineno
    return None


def _notes(tree: nodes.Node) -> Any:
    return (found for found in tree.find_all(nodes.Filter) if found.name == BEGIN)


@jinja2.pass_context
def begin(context: Any, _: int) -> None:
    """Note where a stretch begins."""
    written: Written = context.environment.written
    written.starts.append(written.length)


@jinja2.pass_context
def end(context: Any, _: int) -> None:
    """Note where it ends; inside another it is a part of that."""
    written: Written = context.environment.written
    start = written.starts.pop()
    if not written.starts and start < written.length:
        written.learned.append((start, written.length))


REFUSED: Final = "template_refused"
"""The reason of rows that a template itself refuses, by ``raise_exception``."""
ERROR: Final = "template_error"
"""The reason of rows on which a template fails."""

_ABSENT: Final = ("random", "pprint", "urlize", "xmlattr")
"""Filters that depend on chance or on Python, or make markup for pages."""
_DRAWN: Final = (
    "batch",
    "items",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "unique",
)
"""Filters whose result is drawn item by item."""
_DATA: Final = (str, int, float, list, tuple, dict, range, KeysView, ValuesView, ItemsView, jinja2.Undefined)
_FUNCTIONS: Final = (BuiltinMethodType, FunctionType, MethodType)
_JINJAS_OWN: Final = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


def _no_text(self: Any) -> NoReturn:
    """In place of ``__str__`` and ``__repr__`` of what is no data."""
    kind = getattr(self, "kind", type(self).__name__)
    raise BadRecordError(
        f"the chat template makes text of a {kind}, which is no data: a call may lack its parentheses, or a field the "
        "name of a method",
        reason=ERROR,
    )


class NoData:
    """A value that may be asked about but is no text; of what was given, all that is left of what is no JSON."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind: Final = kind

    __str__ = __repr__ = _no_text


@final
class _Function(NoData):
    """A function or a method: called, never printed."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(type(function).__name__)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@final
class _Items(NoData):
    """What a filter hands out one by one."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        super().__init__("generator")
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._items


def forbid_text_of_jinjas_own() -> None:
    """Let no object of Jinja's become text, in this process, which does nothing else than render templates."""
    kinds: tuple[Any, ...] = _JINJAS_OWN
    for kind in kinds:
        kind.__str__ = kind.__repr__ = _no_text


@final
class Missing(jinja2.Undefined):
    """What is not there: may be asked about, but is no text."""

    __slots__ = ()

    def __str__(self) -> NoReturn:
        self._fail_with_undefined_error()

    __repr__ = __str__


@final
class _Namespace(Namespace):
    """Values that a template changes; names that begin with an underscore are Python's."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: it begins with an underscore"
        )


@final
class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=Missing,
            finalize=_output,
            extensions=[GenerationMarks, loopcontrols],
            optimized=False,
        )
        self.written = Written()
        """What the rendering that goes on has output."""
        for name in _ABSENT:
            del self.filters[name]
        self.filters |= {name: _drawn(self.filters[name]) for name in _DRAWN}
        self.filters |= {"tojson": _tojson, BEGIN: begin, END: end}
        del self.globals["lipsum"]  # random words
        own = {"namespace": _Namespace, "raise_exception": _refuse, "strftime_now": _no_clock}
        self.globals |= {name: _Function(value) for name, value in {**self.globals, **own}.items()}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        return _shut(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``; a message is a dict, whose fields need not be looked for among its methods."""
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return _shut(super().getitem(obj, argument))


def _shut(value: Any) -> Any:
    return _Function(value) if isinstance(value, _FUNCTIONS) else value


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # with Jinja's mark of those that get its context
    def drawn(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made if isinstance(made, _DATA) else _Items(made)

    return drawn


@jinja2.pass_context  # which also keeps Jinja from computing anything while it compiles
def _output(_: Context, value: Any) -> Any:
    if value is None:
        raise BadRecordError(
            "the chat template outputs a null (None): the field that it prints may be null in this row",
            reason=ERROR,
        )
    return value if isinstance(value, _DATA) else _no_text(value)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, nothing escaped for a page."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: Any = "") -> NoReturn:
    raise BadRecordError(f"the chat template refuses the conversation: {message}", reason=REFUSED)


def _no_clock(_format: Any = "") -> NoReturn:
    raise ConfigError(
        "the chat template asks for today's date (strftime_now), which would make every build another one; give the "
        "date in chat.template_kwargs, such as {strftime_now: 2025-01-31}, or the variable that the template looks at "
        "first, often date_string"
    )


def with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of which ``strftime_now``, where it is one, says a fixed date.

    Raises:
        ConfigError: it is no date in ISO form.
    """
    if "strftime_now" not in variables:
        return dict(variables)
    given = variables["strftime_now"]
    try:
        when = datetime.datetime.fromisoformat(str(given))
    except ValueError:
        raise ConfigError(
            f"chat.template_kwargs.strftime_now: got {given!r}, must be a date such as 2025-01-31"
        ) from None
    return {**variables, "strftime_now": _Function(when.strftime)}


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
