"""A chat template as a program, in Jinja's immutable sandbox with nothing in it but data.

A template knows no clock and no chance. What is missing may be asked about (``is defined``, ``if``, ``for``,
``default``); neither it nor a function, a generator or anything else that is no data ever becomes text. The block
``{% generation %} ... {% endgeneration %}`` marks what the assistant says. How much a template does is bounded from
outside (:mod:`tokenlake.text.chat.template`).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import resource
import time
import traceback
from collections.abc import Callable, Generator, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
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
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.text.chat.skeleton import Symbol, concat, is_string, marked_text, trim
from tokenlake.text.chat.template import LIMIT, MAX_TEMPLATE, CharSpan, Limits, Message, RenderedChat

REFUSED: Final = "template_refused"
"""The reason of rows that a template itself refuses, by ``raise_exception``."""
ERROR: Final = "template_error"
"""The reason of rows on which a template fails."""

_NAME: Final = "<chat template>"
_BEGIN, _END = (
    "generation begins",
    "generation ends",
)  # filters that note where the output is; nobody can spell them
_THOUGHTS: Final = ("reasoning_content", "thinking", "reasoning")
_ELSEWHERE: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_CAPTURING: Final = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)
_ESCAPING: Final = (nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)
_ABSENT: Final = ("random", "pprint", "urlize", "xmlattr")
"""Filters that depend on chance or on Python, or make markup for pages."""
_DATA: Final = (str, int, float, list, tuple, dict, range, KeysView, ValuesView, ItemsView, jinja2.Undefined)
_JINJAS_NAMES: Final = {"loop", "caller", "varargs", "kwargs", "self", "super"}
_FUNCTIONS: Final = (BuiltinMethodType, FunctionType, MethodType)
_JINJAS_OWN: Final = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


@final
class Program:
    """Renders conversations as `apply_chat_template(tokenize=False)` of transformers does, or not at all.

    Args:
        text: the Jinja template.
        variables: of every conversation, the tokenizer's named tokens among them.
        limits: of one rendering.
        learned: a variable that is marked wherever it is output, in a template without marks of its own.

    Raises:
        ConfigError: the template cannot be compiled, asks for other files, or has ``{% generation %}`` where its
            place in the text is not known.
    """

    def __init__(
        self, text: str, variables: Mapping[str, Any], limits: Limits, learned: str | None = None
    ) -> None:
        self.text: Final = text
        self._variables, self._limits = _with_clock(variables), limits
        self._sandbox = _Sandbox()
        self._bound()
        tree = _parsed(self._sandbox, text, learned)
        names = list(tree.find_all(nodes.Name))
        read = {name.name for name in names if name.ctx == "load"}
        own = {name.name for name in names if name.ctx != "load"} | _JINJAS_NAMES
        self.names: Final = sorted(read - own - set(self._sandbox.globals))
        """Variables that neither the template nor Jinja sets anywhere."""
        self.marked: Final = any(True for _ in _marks(tree))
        """Whether the template itself marks what the assistant says."""
        self.captures: Final = any(True for _ in (*_captures(tree), *tree.find_all(_ESCAPING)))
        """Whether it may get hold of what it has output."""
        with _compiling():
            code = self._sandbox.compile(tree, None, _NAME)
        self._template = jinja2.Template.from_code(self._sandbox, code, self._sandbox.make_globals(None))
        self._template.root_render_func.__globals__["str_join"] = concat  # what `~` calls

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
        return self._made(given)

    def render_row(self, row: Mapping[str, Any]) -> RenderedChat:
        """Render a row, whose fields are variables; raises as :meth:`render`."""
        return self._made({**row, **self._variables})

    def _made(self, given: dict[str, Any]) -> RenderedChat:
        self._bound()
        try:
            return self._render(given)
        except (BadRecordError, ConfigError, MemoryError):
            raise
        except Exception as error:
            told = (
                str(error) if isinstance(error, jinja2.UndefinedError) else f"{type(error).__name__}: {error}"
            )
            told = "it calls itself without end" if isinstance(error, RecursionError) else told
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno or 1 for frame in frames if frame.filename == _NAME]
            line = self._template.get_corresponding_lineno(lines[-1]) if lines else 1
            raise BadRecordError(f"the chat template fails in line {line}: {told}", reason=ERROR) from error

    def _bound(self) -> None:
        """Have the kernel end this process where the next rendering takes too long, or refuse it more memory."""
        seconds = int(time.process_time()) + 1 + self._limits.seconds
        for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, self._limits.memory)):
            hard = resource.getrlimit(kind)[1]
            with contextlib.suppress(OSError, ValueError):  # not every system bounds memory
                resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    def _render(self, variables: dict[str, Any]) -> RenderedChat:
        parts: list[str] = []
        output = self._sandbox.output = _Output()
        for part in self._template.root_render_func(self._template.new_context(variables)):
            parts.append(part)
            output.length += len(part)
            if output.length > self._limits.text:
                raise BadRecordError(
                    f"the chat template took more than {self._limits.text:,} characters", reason=LIMIT
                )
        if output.starts:
            raise BadRecordError(
                "the chat template leaves a generation block before its end (break, continue)", reason=ERROR
            )
        return RenderedChat("".join(parts), tuple(output.marked))


def _parsed(sandbox: _Sandbox, text: str, learned: str | None = None) -> nodes.Template:
    if len(text) > MAX_TEMPLATE:
        raise ConfigError(
            f"the chat template has {len(text):,} characters, at most {MAX_TEMPLATE:,} are allowed"
        )
    with _compiling():
        tree = sandbox.parse(text)
    if learned is not None and not any(True for _ in _marks(tree)):
        tree = _OutputMarker(learned).visit(tree)
        tree.set_environment(sandbox)
    for node in tree.find_all(_ELSEWHERE):
        raise ConfigError(
            f"the chat template, line {node.lineno}: it asks for another file, which a chat template cannot have"
        )
    for outer in _captures(tree):
        for mark in _marks(outer):
            raise ConfigError(
                f"the chat template, line {mark.lineno}: a generation block inside a macro, a call, a filter, a set "
                "block, a named block or a recursive loop, where its place in the text is not known; put it where its "
                "text is output"
            )
    return tree


@contextlib.contextmanager
def _compiling() -> Generator[None]:
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"the chat template, line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        raise ConfigError(f"the chat template cannot be compiled: {type(error).__name__}: {error}") from error


def _captures(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Yield the parts of a template whose text does not go straight to the output."""
    yield from tree.find_all(_CAPTURING)
    yield from (loop for loop in tree.find_all(nodes.For) if loop.recursive)


def _marks(tree: nodes.Node) -> Iterator[nodes.Node]:
    return (found for found in tree.find_all(nodes.Filter) if found.name == _BEGIN)


def _without_nulls(message: Message) -> dict[str, Any]:
    """Return a message's fields; a thought is there under each of the names that templates know it by."""
    fields = {name: value for name, value in message.items() if value is not None}
    thought = next((fields[name] for name in _THOUGHTS if name in fields), None)
    if thought is not None:
        return {"thinking": thought, **fields, "reasoning_content": thought}
    return fields


@final
@dataclass(slots=True)
class _Output:
    """What one rendering has output so far.

    Attributes:
        length: characters.
        starts: where the generation blocks that are open began.
        marked: those that ended.
    """

    length: int = 0
    starts: list[int] = field(default_factory=list[int])
    marked: list[CharSpan] = field(default_factory=list[CharSpan])


@final
class _GenerationBlock(Extension):
    """Notes how long the output is where the block begins and where it ends."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Make of the block its own body in a scope, between two notes."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return _marked(nodes.Scope(body).set_lineno(line))


def _marked(node: nodes.Node) -> list[nodes.Node]:
    """Return a statement between the notes of where its output begins and ends."""
    begin, end = (
        nodes.ExprStmt(nodes.Filter(nodes.Const(0), name, [], [], None, None)).set_lineno(node.lineno)
        for name in (_BEGIN, _END)
    )
    return [begin, node, end]


@final
class _OutputMarker(NodeTransformer):
    """Marks every expression that is output and that `name` is a part of."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802 (as Jinja calls it)
        """Part an output into its expressions, so that marks can stand between them."""
        parts: list[nodes.Node] = []
        for each in node.nodes:
            part = nodes.Output([each]).set_lineno(node.lineno)
            names = (found for found in (each, *each.find_all(nodes.Name)) if isinstance(found, nodes.Name))
            parts += _marked(part) if any(name.name == self._name for name in names) else [part]
        return parts


@jinja2.pass_context
def _begin(context: Any, _: int) -> None:
    output: _Output = context.environment.output
    output.starts.append(output.length)


@jinja2.pass_context
def _end(context: Any, _: int) -> None:
    """Note where a block ends; inside another it is a part of that."""
    output: _Output = context.environment.output
    start = output.starts.pop()
    if not output.starts and start < output.length:
        output.marked.append((start, output.length))


@final
class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Missing,
            finalize=_finalized,
            extensions=[_GenerationBlock, loopcontrols],
            optimized=False,
        )
        self.output = _Output()
        """Of the rendering that goes on."""
        for name in _ABSENT:
            del self.filters[name]
        self.filters = {name: _undrawn(function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _tojson, "trim": trim, _BEGIN: _begin, _END: _end}
        self.tests["string"] = is_string
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


def _no_text(self: Any) -> NoReturn:
    """In place of ``__str__`` and ``__repr__`` of what is no data."""
    kind = getattr(self, "kind", type(self).__name__)
    raise BadRecordError(
        f"the chat template makes text of a {kind}, which is no data: a call may lack its parentheses, or a field the "
        "name of a method",
        reason=ERROR,
    )


class NoData:
    """A value that may be asked about but is no text; what is left of a value given that is no JSON."""

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
class _Missing(jinja2.Undefined):
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


def _shut(value: Any) -> Any:
    return _Function(value) if isinstance(value, _FUNCTIONS) else value


def _undrawn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose result, where it is drawn item by item, is no text."""

    @functools.wraps(function)  # with Jinja's mark of those that get its context
    def undrawn(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return _Items(made) if isinstance(made, Iterator) else made

    return undrawn


@jinja2.pass_context  # which also keeps Jinja from computing anything while it compiles
def _finalized(_: Context, value: Any) -> Any:
    if value is None:
        raise BadRecordError(
            "the chat template outputs a null (None): the field that it prints may be null in this row",
            reason=ERROR,
        )
    if isinstance(value, Symbol):
        return marked_text(value)
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


def _with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables of which ``strftime_now``, where it is one, gives a fixed date; ConfigError if it is none."""
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
