"""A chat template as a program, in Jinja's immutable sandbox that holds data only.

A template has no clock and no chance. It may test whether a value is missing (``is
defined``, ``if``, ``for``, ``default``), but neither a missing value nor a function, a
generator or anything else that is no data ever becomes text. The block ``{% generation
%} ... {% endgeneration %}`` marks the assistant's words. Limits of a template are set
from outside (:mod:`tokenlake.etl.text.chat_template`).

For a skeleton (:mod:`tokenlake.etl.text.chat_server`) contents are symbols: objects
that can be joined and stripped, and that raise :class:`LookedInto` when a template does
anything else with them (reads their length or letters, compares them). The output of
one is a mark: ``U+E000, sides on which it was stripped, index of the message, U+E001``.
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
from jinja2.runtime import (
    BlockReference,
    Context,
    LoopContext,
    Macro,
    TemplateReference,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.text.chat_protocol import (
    LEFT,
    MAX_TEMPLATE,
    RIGHT,
    CharSpan,
    Slot,
    template_error,
)

REFUSED: Final = "template_refused"
"""Reason of rows that a template itself refuses, by ``raise_exception``."""
ERROR: Final = "template_error"
"""Reason of rows on which a template fails."""

OPEN: Final = "\ue000"
"""First character of a mark."""
NAME: Final = "<chat template>"
# Filters that note the length of the output. Their names have blanks, so that no
# template can use them.
_BEGIN: Final = "generation begins"
_END: Final = "generation ends"
# Nodes that read other files, nodes whose text is captured before it is output (its
# place in the output is unknown then), and nodes that switch the escaping of output.
_OTHER_FILES: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_CAPTURING: Final = (
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.AssignBlock,
    nodes.Block,
)
_ESCAPING: Final = (nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)
_REMOVED_FILTERS: Final = ("random", "pprint", "urlize", "xmlattr")
"""Filters that depend on chance or on Python, or make markup for pages."""
# Types of values that may become text. A view of a dict prints its items.
_DATA_TYPES: Final = (
    str,
    int,
    float,
    list,
    tuple,
    dict,
    range,
    KeysView,
    ValuesView,
    ItemsView,
    jinja2.Undefined,
)
# Names that Jinja sets itself, which are no variables of the template.
_JINJAS_NAMES: Final = {"loop", "caller", "varargs", "kwargs", "self", "super"}
_FUNCTIONS: Final = (BuiltinMethodType, FunctionType, MethodType)
# Objects of Jinja that a template may hold, and whose text would be a Python address.
_JINJAS_OWN: Final = (
    BlockReference,
    Cycler,
    Joiner,
    LoopContext,
    Macro,
    Namespace,
    TemplateReference,
)


# ---- parsing and marks ---------------------------------------------------------------


def _parsed(sandbox: Sandbox, text: str, learned: str | None = None) -> nodes.Template:
    """Return the syntax tree of a template.

    Args:
        sandbox: Environment.
        text: Text of the template.
        learned: Variable that is marked wherever it is output, in a template without
            marks of its own.

    Raises:
        ConfigError: The template cannot be parsed, needs other files, or has marks at
            unknown places of the text.
    """
    if len(text) > MAX_TEMPLATE:
        raise template_error(
            ConfigError,
            f" has {len(text):,} characters, at most {MAX_TEMPLATE:,} are allowed",
        )
    # The learned variable is marked in the tree: the text of the template stays as it
    # is.
    with _compiling():
        tree = sandbox.parse(text)
    if learned is not None and not _has_marks(tree):
        tree = _OutputMarker(learned).visit(tree)
        tree.set_environment(sandbox)
    # Templates cannot be used if they need other files, or if their marks lie in text
    # that is captured first.
    for included in tree.find_all(_OTHER_FILES):
        raise template_error(
            ConfigError,
            f", line {included.lineno}: it includes another file, which a chat template cannot do",
        )
    for outer in _captures(tree):
        for mark in _marks(outer):
            raise template_error(
                ConfigError,
                f", line {mark.lineno}: a generation block inside a macro, a call, a filter, a set block, a named "
                "block or a recursive loop, in which its place in the text is unknown; put it where its text is "
                "output",
            )
    return tree


@contextlib.contextmanager
def _compiling() -> Generator[None]:
    """Turn the errors of Jinja's compiler into ConfigError."""
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise template_error(
            ConfigError, f", line {error.lineno}: {error.message}"
        ) from error
    except (RecursionError, SyntaxError, ValueError) as error:
        problem = f" cannot be compiled: {type(error).__name__}: {error}"
        raise template_error(ConfigError, problem) from error


def _captures(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Yield the parts of a template whose text is captured before it may be output."""
    yield from tree.find_all(_CAPTURING)
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            yield loop


def _marks(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Yield the beginnings of the marks in a part of a template."""
    for node in tree.find_all(nodes.Filter):
        if node.name == _BEGIN:
            yield node


def _has_marks(tree: nodes.Node) -> bool:
    return next(_marks(tree), None) is not None


@final
@dataclass(slots=True)
class Output:
    """The output of one rendering so far.

    Attributes:
        length: Number of characters.
        starts: Places at which the generation blocks that are still open began.
        marked: Spans of the blocks that ended.
    """

    length: int = 0
    starts: list[int] = field(default_factory=list[int])
    marked: list[CharSpan] = field(default_factory=list[CharSpan])


@final
class _GenerationBlock(Extension):
    """Notes the length of the output at the beginning and at the end of the block."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the block in a scope, between two notes."""
        # Jinja stands at the tag. A scope keeps variables of the block inside it, as
        # transformers does.
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return _marked(nodes.Scope(body).set_lineno(line))


def _marked(node: nodes.Node) -> list[nodes.Node]:
    """Return a statement between notes of the beginning and end of its output."""
    return [_note(_BEGIN, node.lineno), node, _note(_END, node.lineno)]


def _note(name: str, line: int) -> nodes.Node:
    """Return a statement that calls one of our two filters."""
    # The filters ignore their value, here 0, and only note the length of the output.
    call = nodes.Filter(nodes.Const(0), name, [], [], None, None)
    return nodes.ExprStmt(call).set_lineno(line)


@final
class _OutputMarker(NodeTransformer):
    """Marks every expression that is output and that a variable is a part of.

    Args:
        name: Name of the variable.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802 (as Jinja calls it)
        """Split an output into its expressions, with marks between them."""
        parts: list[nodes.Node] = []
        for expression in node.nodes:
            part = nodes.Output([expression]).set_lineno(node.lineno)
            # A constant beside the variable stays outside of the marks.
            if self._is_part_of(expression):
                parts += _marked(part)
            else:
                parts.append(part)
        return parts

    def _is_part_of(self, expression: nodes.Node) -> bool:
        """Return whether an expression is the variable, or has it inside."""
        if isinstance(expression, nodes.Name) and expression.name == self._name:
            return True
        return any(name.name == self._name for name in expression.find_all(nodes.Name))


@jinja2.pass_context
def _begin(context: Any, _: int) -> None:
    """Note the beginning of a block."""
    output: Output = context.environment.output
    output.starts.append(output.length)


@jinja2.pass_context
def _end(context: Any, _: int) -> None:
    """Note the end of a block; a block inside another is a part of that."""
    output: Output = context.environment.output
    start = output.starts.pop()
    # An empty block is no span.
    if not output.starts and start < output.length:
        output.marked.append((start, output.length))


@final
@dataclass(frozen=True, slots=True)
class Compiled:
    """A template, ready to render.

    Attributes:
        template: Template of Jinja.
        names: Names of variables that neither the template nor Jinja sets.
        marked: Whether the template marks the assistant's words itself.
        captures: Whether it may read its own output.
    """

    template: jinja2.Template
    names: list[str]
    marked: bool
    captures: bool


@final
class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    def __init__(self) -> None:
        # Blocks are trimmed as transformers does it. Without the optimizer nothing is
        # computed before the first rendering.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Missing,
            finalize=_finalized,
            extensions=[_GenerationBlock, loopcontrols],
            optimized=False,
        )
        self.output = Output()
        """Output of the current rendering."""
        # 1. Filters: those that could make a text of chance or of an address go, and no
        #    generator is ever printed.
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name, filter_function in self.filters.items():
            self.filters[name] = _without_generators(filter_function)
        self.filters |= {"tojson": _tojson, "trim": _trim, _BEGIN: _begin, _END: _end}
        self.tests["string"] = _is_string
        # 2. Functions: random words go, those of transformers come, and all are called
        #    but never printed.
        del self.globals["lipsum"]  # random words
        self.globals |= {
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": _no_clock,
        }
        for name, function in self.globals.items():
            self.globals[name] = _Function(function)

    def compiled(self, text: str, learned: str | None) -> Compiled:
        """Compile a template.

        Args:
            text: Text of the template.
            learned: Variable that is marked wherever it is output, in a template
                without marks of its own.

        Raises:
            ConfigError: The template cannot be compiled, or its marks have no known
                place in the text.
        """
        tree = _parsed(self, text, learned)
        # 1. Names that are read, and names that the template sets itself.
        loaded_names: set[str] = set()
        own_names = set(_JINJAS_NAMES)
        for node in tree.find_all(nodes.Name):
            if node.ctx == "load":
                loaded_names.add(node.name)
            else:
                own_names.add(node.name)
        # 2. A template that captures or escapes text may look into its own output.
        captures = bool([*_captures(tree), *tree.find_all(_ESCAPING)])
        # 3. The compiled template, under a name by which errors find its lines.
        with _compiling():
            code = self.compile(tree, None, NAME)
        template = jinja2.Template.from_code(self, code, self.make_globals(None))
        # The operator `~` calls this function.
        template.root_render_func.__globals__["str_join"] = _concat
        return Compiled(
            template=template,
            names=sorted(loaded_names - own_names - set(self.globals)),
            marked=_has_marks(tree),
            captures=captures,
        )

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return ``obj.attribute``."""
        return _closed(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return ``obj[argument]``.

        The fields of a message, a dict, come before its methods.
        """
        if type(obj) is dict and type(argument) is str and argument in obj:
            return obj[argument]
        return _closed(super().getitem(obj, argument))


# ---- values that are no text ---------------------------------------------------------


def _no_text(self: Any) -> NoReturn:
    """Raise BadRecordError, as ``__str__`` and ``__repr__`` of values that are no data."""
    kind = getattr(self, "kind", type(self).__name__)
    raise template_error(
        BadRecordError,
        f" converts a {kind} to text, which is not data: a call may lack its parentheses, or a field may have the "
        "name of a method",
        reason=ERROR,
    )


class NoData:
    """A value that may be tested but is no text.

    It also stands for a value of a row that is no JSON.

    Args:
        kind: Name of the value's type.
    """

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
    """The results of a filter that come one by one."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        super().__init__("generator")
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._items


def forbid_text_of_jinjas_own() -> None:
    """Make objects of Jinja raise an error instead of becoming text.

    This changes Jinja's classes in the whole process, which only renders templates.
    """
    jinja_classes: tuple[Any, ...] = _JINJAS_OWN
    for jinja_class in jinja_classes:
        jinja_class.__str__ = _no_text
        jinja_class.__repr__ = _no_text


@final
class _Missing(jinja2.Undefined):
    """A missing value: it may be tested, but is no text."""

    __slots__ = ()

    def __str__(self) -> NoReturn:
        self._fail_with_undefined_error()

    __repr__ = __str__


@final
class _Namespace(Namespace):
    """Values that a template changes; names with a leading underscore are Python's."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    """Require that a name of a namespace is none of Python's own."""
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(
            f"a namespace cannot hold {name!r}: it begins with an underscore"
        )


# Functions of a row's values are methods of its strings, lists and dicts.
def _closed(value: Any) -> Any:
    """Return a value; a function in a form that can be called but not printed."""
    if isinstance(value, _FUNCTIONS):
        return _Function(value)
    return value


def _without_generators(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter whose result cannot be printed if it is a generator."""

    @functools.wraps(function)  # keeps Jinja's mark of filters that get its context
    def filter_function(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, Iterator):
            return _Items(result)
        return result

    return filter_function


@jinja2.pass_context  # which also keeps Jinja from computing anything while it compiles
def _finalized(_: Context, value: Any) -> Any:
    """Return the text of a value that is output.

    Raises:
        BadRecordError: It is null, or no data.
    """
    if value is None:
        raise template_error(
            BadRecordError,
            " outputs null (None): the field that it prints may be null in this row",
            reason=ERROR,
        )
    if isinstance(value, Symbol):
        return _marked_text(value)
    if not isinstance(value, _DATA_TYPES):
        _no_text(value)
    return value


# ---- functions and filters -----------------------------------------------------------


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Return the JSON of a value, with nothing escaped for a page."""
    return json.dumps(
        x,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: Any = "") -> NoReturn:
    """Raise the error of a conversation that the template refuses."""
    raise template_error(
        BadRecordError, f" refuses the conversation: {message}", reason=REFUSED
    )


def _no_clock(_format: Any = "") -> NoReturn:
    """Raise ConfigError: today's date would differ from build to build."""
    raise template_error(
        ConfigError,
        " uses today's date (strftime_now), which would make every build different; give the date in "
        "chat.template_kwargs, such as {strftime_now: 2025-01-31}, or the variable that the template reads first, "
        "often date_string",
    )


def with_clock(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables with ``strftime_now`` as a function that gives this date.

    Variables without it are returned as they are.

    Raises:
        ConfigError: It is no date.
    """
    if "strftime_now" not in variables:
        return dict(variables)
    setting = variables["strftime_now"]
    try:
        date = datetime.datetime.fromisoformat(str(setting))
    except ValueError:
        raise ConfigError(
            f"chat.template_kwargs.strftime_now: got {setting!r}, must be a date such as 2025-01-31"
        ) from None
    return {**variables, "strftime_now": _Function(date.strftime)}


# ---- symbols -------------------------------------------------------------------------


class LookedInto(BaseException):
    """A template looked into a content.

    It is no Exception, because Jinja's own functions would catch that.
    """


def _raise_looked_into(*_: Any) -> NoReturn:
    raise LookedInto


_refused: Any = _raise_looked_into


@final
class Symbol:
    """A text of words and contents.

    Contents are not known yet. Each is assumed to hold more than blanks.

    It is no `str`, whose characters C code reads directly. All operations of a text but
    joining and stripping are refused.

    Args:
        parts: Words and slots, in order.
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
        first, *other_parts = self._parts
        # A content notes that it is stripped: how many blanks it has is not known.
        if not isinstance(first, str):
            message, sides = first
            return Symbol((message, sides | LEFT), *other_parts)
        words = first.lstrip()
        if words:
            return Symbol(words, *other_parts)
        # Words that are all blank go, and stripping reaches the next part.
        return Symbol(*other_parts).lstrip()

    def rstrip(self) -> Symbol:
        """Strip blanks on the right."""
        *other_parts, last = self._parts
        if not isinstance(last, str):
            message, sides = last
            return Symbol(*other_parts, (message, sides | RIGHT))
        words = last.rstrip()
        if words:
            return Symbol(*other_parts, words)
        return Symbol(*other_parts).rstrip()

    # Each of these would read a content that is not known: its letters, its length, its
    # order.
    __getattr__ = _refused
    __str__ = __repr__ = __format__ = __bool__ = __int__ = __float__ = __index__ = (
        __hash__
    ) = _refused
    __len__ = __iter__ = __contains__ = __getitem__ = _refused
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused


def _parts(value: object) -> Sequence[str | Slot]:
    """Return the parts of a symbol or a text; TypeError for another value."""
    if isinstance(value, Symbol):
        return value._parts  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, str):
        # An empty text is no part: the ends of a symbol always hold something.
        return (value,) if value else ()
    raise TypeError(f"a text and a {type(value).__name__} cannot be joined")


def _marked_text(symbol: Symbol) -> str:
    """Return the text of a symbol in the output, with marks for its contents."""
    texts: list[str] = []
    for part in _parts(symbol):
        if isinstance(part, str):
            texts.append(part)
        else:
            texts.append(mark(*part))
    return "".join(texts)


def mark(index: int, sides: int) -> str:
    """Return the mark of a message's content in the output.

    Args:
        index: Index of the message.
        sides: Sides on which the content is stripped.
    """
    return f"{OPEN}{sides}{index}\ue001"


def _concat(values: Iterable[Any]) -> Any:
    """Join the operands of ``~``."""
    operands = list(values)
    if not any(isinstance(operand, Symbol) for operand in operands):
        return "".join(map(str, operands))
    parts: list[str | Slot] = []
    for operand in operands:
        if isinstance(operand, Symbol):
            parts += _parts(operand)
        else:
            parts += _parts(str(operand))
    return Symbol(*parts)


def _trim(value: Any, chars: str | None = None) -> Any:
    """Return a value without the blanks around it: the filter `trim`."""
    # A symbol cannot be stripped of certain letters: Jinja's filter looks into it, and
    # raises.
    if type(value) is Symbol and chars is None:
        return value.strip()
    text: Any = value
    return do_trim(text, chars)


def _is_string(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str | Symbol)
