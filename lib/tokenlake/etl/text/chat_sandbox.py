"""A chat template as a program, in Jinja's immutable sandbox with nothing in it but data.

A template knows no clock and no chance. What is missing may be asked about (``is defined``, ``if``, ``for``,
``default``); neither it nor a function, a generator or anything else that is no data ever becomes text. The block
``{% generation %} ... {% endgeneration %}`` marks what the assistant says. How much a template does is bounded from
outside (:mod:`tokenlake.etl.text.chat_template`).

For a skeleton (:mod:`tokenlake.etl.text.chat_server`) contents are symbols: objects that can be joined and
stripped, and that raise :class:`LookedInto` when they are asked for anything else (their length, their
letters, whether they equal something). What is output of one is a mark: ``U+E000, how it was stripped, the
message's number, U+E001``.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
from collections.abc import (
    Callable,
    Generator,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final, NoReturn, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_trim
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.chat_protocol import LEFT, MAX_TEMPLATE, RIGHT, CharSpan, Slot, template_error

REFUSED: Final = "template_refused"
"""The reason of rows that a template itself refuses, by ``raise_exception``."""
ERROR: Final = "template_error"
"""The reason of rows on which a template fails."""

OPEN: Final = "\ue000"
"""What a mark begins with."""
NAME: Final = "<chat template>"
# Filters that note where the output is; nobody can spell them.
_BEGIN, _END = "generation begins", "generation ends"
_ELSEWHERE: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_CAPTURING: Final = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)
_ESCAPING: Final = (nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)
_ABSENT: Final = ("random", "pprint", "urlize", "xmlattr")
"""Filters that depend on chance or on Python, or make markup for pages."""
_DATA: Final = (str, int, float, list, tuple, dict, range, KeysView, ValuesView, ItemsView, jinja2.Undefined)
_JINJAS_NAMES: Final = {"loop", "caller", "varargs", "kwargs", "self", "super"}
_FUNCTIONS: Final = (BuiltinMethodType, FunctionType, MethodType)
_JINJAS_OWN: Final = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


def _parsed(sandbox: Sandbox, text: str, learned: str | None = None) -> nodes.Template:
    if len(text) > MAX_TEMPLATE:
        raise template_error(
            ConfigError, f" has {len(text):,} characters, at most {MAX_TEMPLATE:,} are allowed"
        )
    with _compiling():
        tree = sandbox.parse(text)
    if learned is not None and not any(True for _ in _marks(tree)):
        tree = _OutputMarker(learned).visit(tree)
        tree.set_environment(sandbox)
    for node in tree.find_all(_ELSEWHERE):
        raise template_error(
            ConfigError,
            f", line {node.lineno}: it asks for another file, which a chat template cannot have",
        )
    for outer in _captures(tree):
        for mark in _marks(outer):
            raise template_error(
                ConfigError,
                f", line {mark.lineno}: a generation block inside a macro, a call, a filter, a set "
                "block, a named block or a recursive loop, where its place in the text is not known; put it where its "
                "text is output",
            )
    return tree


@contextlib.contextmanager
def _compiling() -> Generator[None]:
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise template_error(ConfigError, f", line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        problem = f" cannot be compiled: {type(error).__name__}: {error}"
        raise template_error(ConfigError, problem) from error


def _captures(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Yield the parts of a template whose text does not go straight to the output."""
    yield from tree.find_all(_CAPTURING)
    yield from (loop for loop in tree.find_all(nodes.For) if loop.recursive)


def _marks(tree: nodes.Node) -> Iterator[nodes.Node]:
    return (found for found in tree.find_all(nodes.Filter) if found.name == _BEGIN)


@final
@dataclass(slots=True)
class Output:
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
    output: Output = context.environment.output
    output.starts.append(output.length)


@jinja2.pass_context
def _end(context: Any, _: int) -> None:
    """Note where a block ends; inside another it is a part of that."""
    output: Output = context.environment.output
    start = output.starts.pop()
    if not output.starts and start < output.length:
        output.marked.append((start, output.length))


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A template, ready to render.

    Attributes:
        names: variables that neither the template nor Jinja sets anywhere.
        marked: whether the template itself marks what the assistant says.
        captures: whether it may get hold of what it has output.
    """

    template: jinja2.Template
    names: list[str]
    marked: bool
    captures: bool


@final
class Sandbox(ImmutableSandboxedEnvironment):
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
        self.output = Output()
        """Of the rendering that goes on."""
        for name in _ABSENT:
            del self.filters[name]
        self.filters = {name: _undrawn(function) for name, function in self.filters.items()}
        self.filters |= {"tojson": _tojson, "trim": _trim, _BEGIN: _begin, _END: _end}
        self.tests["string"] = _is_string
        del self.globals["lipsum"]  # random words
        own = {"namespace": _Namespace, "raise_exception": _refuse, "strftime_now": _no_clock}
        self.globals |= {name: _Function(value) for name, value in {**self.globals, **own}.items()}

    def compiled(self, text: str, learned: str | None) -> Compiled:
        """Compile a template; ConfigError where that cannot be done, or what it marks cannot be known.

        Args:
            learned: a variable that is marked wherever it is output, in a template without marks of its own.
        """
        tree = _parsed(self, text, learned)
        names = list(tree.find_all(nodes.Name))
        read = {name.name for name in names if name.ctx == "load"}
        own = {name.name for name in names if name.ctx != "load"} | _JINJAS_NAMES
        captures = any(True for _ in (*_captures(tree), *tree.find_all(_ESCAPING)))
        with _compiling():
            code = self.compile(tree, None, NAME)
        template = jinja2.Template.from_code(self, code, self.make_globals(None))
        template.root_render_func.__globals__["str_join"] = _concat  # what `~` calls
        marked = any(True for _ in _marks(tree))
        return Compiled(template, sorted(read - own - set(self.globals)), marked, captures)

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
    raise template_error(
        BadRecordError,
        f" makes text of a {kind}, which is no data: a call may lack its parentheses, or a field the "
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
        raise template_error(
            BadRecordError,
            " outputs a null (None): the field that it prints may be null in this row",
            reason=ERROR,
        )
    if isinstance(value, Symbol):
        return _marked_text(value)
    return value if isinstance(value, _DATA) else _no_text(value)


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, nothing escaped for a page."""
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: Any = "") -> NoReturn:
    raise template_error(BadRecordError, f" refuses the conversation: {message}", reason=REFUSED)


def _no_clock(_format: Any = "") -> NoReturn:
    raise template_error(
        ConfigError,
        " asks for today's date (strftime_now), which would make every build another one; give the "
        "date in chat.template_kwargs, such as {strftime_now: 2025-01-31}, or the variable that the template looks at "
        "first, often date_string",
    )


def with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
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


class LookedInto(BaseException):
    """A template looked into a content. No Exception, which Jinja's own functions would catch."""


def _look(*_: Any) -> NoReturn:
    raise LookedInto


_refused: Any = _look


@final
class Symbol:
    """A text of words and contents that are not known yet, each taken to hold more than blanks.

    It is no `str`, whose characters C code reads without asking; what a template may ask of one is refused.
    """

    __slots__ = ("_parts",)

    def __init__(self, *parts: str | Slot) -> None:
        self._parts: Any = parts

    def __add__(self, other: object) -> Symbol:
        return Symbol(*self._parts, *_parts(other))

    def __radd__(self, other: object) -> Symbol:
        return Symbol(*_parts(other), *self._parts)

    def strip(self) -> Symbol:
        """Strip blanks on both sides."""
        return self.lstrip().rstrip()

    def lstrip(self) -> Symbol:
        """Strip blanks on the left."""
        first, *rest = self._parts
        if not isinstance(first, str):
            return Symbol((first[0], first[1] | LEFT), *rest)
        first = first.lstrip()
        return Symbol(first, *rest) if first else Symbol(*rest).lstrip()

    def rstrip(self) -> Symbol:
        """Strip blanks on the right."""
        *rest, last = self._parts
        if not isinstance(last, str):
            return Symbol(*rest, (last[0], last[1] | RIGHT))
        last = last.rstrip()
        return Symbol(*rest, last) if last else Symbol(*rest).rstrip()

    __getattr__ = _refused
    __str__ = __repr__ = __format__ = __bool__ = __int__ = __float__ = __index__ = __hash__ = _refused
    __len__ = __iter__ = __contains__ = __getitem__ = _refused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused


def _parts(value: object) -> Sequence[str | Slot]:
    if isinstance(value, Symbol):
        return value._parts  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, str):
        return (value,) if value else ()
    raise TypeError(f"a text and a {type(value).__name__} cannot be joined")


def _marked_text(symbol: Symbol) -> str:
    """Return the text of a symbol as it is output, its contents as marks."""
    return "".join(part if isinstance(part, str) else mark(*part) for part in _parts(symbol))


def mark(number: int, sides: int) -> str:
    """Return what is output of a message's content."""
    return f"{OPEN}{sides}{number}\ue001"


def _concat(values: Iterable[Any]) -> Any:
    """Join what ``~`` joins."""
    items = list(values)
    if not any(isinstance(item, Symbol) for item in items):
        return "".join(map(str, items))
    return Symbol(
        *(part for item in items for part in _parts(item if isinstance(item, Symbol) else str(item)))
    )


def _trim(value: Any, chars: str | None = None) -> Any:
    """Strip, as the filter `trim` does."""
    text: Any = value
    return value.strip() if type(value) is Symbol and chars is None else do_trim(text, chars)


def _is_string(value: Any) -> bool:
    """Say whether a value is a text."""
    return isinstance(value, str | Symbol)
