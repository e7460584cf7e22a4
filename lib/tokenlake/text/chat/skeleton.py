"""Where a template puts contents, told by running it on symbols.

What a template makes of a conversation is mostly the same words around other contents. So it is run once for every
shape (the roles, in order) on symbols (:mod:`tokenlake.text.chat.skeleton`), which shows where each content goes. A
shape has a skeleton only if the template itself, run on texts in place of the contents, says the same.

Which templates may be run on symbols: those made of parts that either pass a content on or ask it openly.

Jinja hands some values to C code that reads a text's characters without asking the object. A template that has any
such part is not run on symbols at all; it is rendered row by row.

Texts that stand for a message's content while a template runs, and refuse to be looked into.

A template that only puts contents between its own words, trimmed at most, does the same whatever they say. A symbol
goes through such a template like the content would, and whatever asks it for more (its length, its letters, whether
it equals something) raises :class:`Looked`: then the template's text depends on the content, and nothing can be said
beforehand.

A symbol's characters are a mark, ``U+E000, how it was trimmed, the message's number, U+E001``, among the words of the
template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError
from tokenlake.text.chat.sandbox import Program
from tokenlake.text.chat.template import LEFT, RIGHT, Message, RenderedChat, Skeleton, Slot, Stretch

_PARTS: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.NSRef,
    nodes.Const,
    nodes.List,
    nodes.Tuple,
    nodes.Keyword,
    nodes.For,
    nodes.If,
    nodes.CondExpr,
    nodes.Assign,
    nodes.Concat,
    nodes.Add,
    nodes.Sub,
    nodes.Mod,
    nodes.Getitem,
    nodes.Getattr,
    nodes.Slice,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Compare,
    nodes.Operand,
    nodes.Test,
    nodes.Filter,
    nodes.Call,
    nodes.ExprStmt,
    nodes.Scope,
    nodes.Break,
    nodes.Continue,
)
_METHODS: Final = frozenset({"strip", "lstrip", "rstrip"})
_FUNCTIONS: Final = frozenset({"raise_exception", "namespace", "range"})
_FILTERS: Final = frozenset({"trim", "length", "count", "first", "last", "default", "d"})
_TESTS: Final = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean"}
    | {"odd", "even", "true", "false"}
)


def is_eligible(tree: nodes.Template) -> bool:
    """Say whether a template consists of such parts alone."""
    return all(isinstance(node, _PARTS) and _is_open(node) for node in tree.find_all(nodes.Node))


def _is_open(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Call):
        return _is_known_call(node)
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS and not (node.name == "trim" and _arguments(node))
    if isinstance(node, nodes.Test):
        return node.name in _TESTS
    if isinstance(node, nodes.Compare):
        return _asks_openly(node)
    return not isinstance(node, nodes.For) or not node.recursive


def _is_known_call(node: nodes.Call) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    if isinstance(node.node, nodes.Name):
        return node.node.name in _FUNCTIONS
    return isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS and not _arguments(node)


def _arguments(node: nodes.Call | nodes.Filter) -> bool:
    return bool(node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)


def _asks_openly(node: nodes.Compare) -> bool:
    """``x in y`` asks y; if that is a text it must not be a content that is looked for in a word of the template."""
    left: nodes.Expr = node.expr
    for operand in node.ops:
        if operand.op in ("in", "notin"):
            listed = isinstance(operand.expr, nodes.List | nodes.Tuple)
            if not listed and not isinstance(left, nodes.Const):
                return False
        left = operand.expr
    return True


OPEN: Final = "\ue000"
CLOSE: Final = "\ue001"

_MARK: Final = re.compile(f"{OPEN}([0-3])([0-9]+){CLOSE}")
_SPLIT: Final = re.compile(f"({OPEN}[0-3][0-9]+{CLOSE})")
_HARMLESS: Final = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__str__", "__repr__", "__add__", "__radd__"}
    | {
        "__init_subclass__",
        "__subclasshook__",
        "__doc__",
        "__setattr__",
        "__delattr__",
        "__dir__",
        "__sizeof__",
    }
    | {"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "strip", "lstrip", "rstrip"}
)


class Looked(Exception):
    """A template looked into a content."""


def mark(number: int, sides: int = 0) -> str:
    """Return the characters that stand for the content of message `number`."""
    return f"{OPEN}{sides}{number}{CLOSE}"


def untrimmed(text: str) -> str:
    """Return `text` with every mark as it was before anything was trimmed."""
    return _MARK.sub(lambda found: mark(int(found[2])), text)


def parts_of(text: str) -> list[str | Slot]:
    """Return the words of a template and the slots among them, in order, no word empty."""
    parts: list[str | Slot] = []
    for part in _SPLIT.split(text):
        found = _MARK.fullmatch(part)
        if found:
            parts.append((int(found[2]), int(found[1])))
        elif part:
            parts.append(part)
    return parts


class Symbol(str):
    """A text with marks in it. Contents are taken to hold more than blanks, so that trimming stops at a mark."""

    __slots__ = ()

    def __add__(self, other: str) -> Symbol:
        return Symbol(str.__add__(self, other))

    def __radd__(self, other: str) -> Symbol:
        return Symbol(str.__add__(other, str.__str__(self)))

    def strip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on both sides."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on the left."""
        return self if chars is None and self.startswith_mark() else self._trimmed(LEFT, chars)

    def rstrip(self, chars: str | None = None) -> Symbol:
        """Trim blanks on the right."""
        return self._trimmed(RIGHT, chars)

    def startswith_mark(self) -> bool:
        """Say whether it begins with a content that is trimmed on the left already."""
        found = _MARK.match(str.__str__(self))
        return found is not None and bool(int(found[1]) & LEFT)

    def _trimmed(self, side: int, chars: str | None) -> Symbol:
        if chars is not None:
            _looked()
        parts = [part for part in _SPLIT.split(str.__str__(self)) if part]
        at = 0 if side == LEFT else -1
        while parts:
            found = _MARK.fullmatch(parts[at])
            if found:
                parts[at] = mark(int(found[2]), int(found[1]) | side)
                break
            word = parts[at].lstrip() if side == LEFT else parts[at].rstrip()
            if word:
                parts[at] = word
                break
            del parts[at]
        return Symbol("".join(parts))


def _looked(*_: Any, **__: Any) -> NoReturn:
    raise Looked


def _refuse_the_rest() -> None:
    """Everything else that a text can do is looking into it."""
    own = {"startswith_mark", "_trimmed", "__slots__", "__module__", "__qualname__"}
    refused: Callable[..., NoReturn] = _looked
    for name in dir(str):
        if name not in _HARMLESS and name not in own:
            setattr(Symbol, name, refused)
    for name in ("__bool__", "__int__", "__float__", "__index__"):
        setattr(Symbol, name, refused)


_refuse_the_rest()


@final
class Join:
    """``~`` for texts that may be symbols."""

    def __call__(self, *values: Any) -> str:
        if not any(isinstance(value, Symbol) for value in values):
            return "".join(map(str, values))
        whole = Symbol("")
        for value in values:
            whole = whole + (value if isinstance(value, str) else str(value))
        return whole


_JOIN: Final = "texts joined"

Render = Callable[[Sequence[Message]], RenderedChat]
"""The template itself, as it is run on one conversation; BadRecordError where it has no text for it."""


@final
class Outline:
    """Runs a template on symbols.

    Args:
        variables: of the template, messages aside.
    """

    def __init__(self, program: Program, variables: Mapping[str, Any]) -> None:
        self._program, self._variables = program, variables
        self._template = _compiled(program.text)

    def skeleton(self, roles: Sequence[str], render: Render) -> Skeleton | None:
        """Return the skeleton of conversations of these roles; None where the template itself must be run.

        That is where what it makes of symbols is not what `render` makes of texts, or it looks into them.
        """
        if self._template is None:
            return None
        symbols = [{"role": role, "content": Symbol(mark(at))} for at, role in enumerate(roles)]
        texts = [{"role": role, "content": mark(at)} for at, role in enumerate(roles)]
        self._program.bound()
        try:
            made = self._template.render(**self._variables, messages=symbols)
            whole = render(texts)
        except (
            Looked,
            BadRecordError,
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ):
            return None
        return _cut(made, whole.learned) if untrimmed(made) == whole.text else None


def _cut(made: str, learned: Sequence[Stretch]) -> Skeleton | None:
    """Cut the words where stretches begin and end; None where one does so inside a content."""
    edges = sorted({edge for stretch in learned for edge in stretch})
    parts: list[str | Slot] = []
    flags: list[bool] = []
    at = 0
    for part in parts_of(made):
        size = len(part) if isinstance(part, str) else len(mark(part[0]))
        inside = [edge - at for edge in edges if at < edge < at + size]
        if inside and not isinstance(part, str):
            return None
        cuts = [0, *inside, size]
        for first, last in pairwise(cuts):
            parts.append(part[first:last] if isinstance(part, str) else part)
            flags.append(_inside(learned, at + first, at + last))
        at += size
    return Skeleton(tuple(parts), tuple(flags))


def _inside(learned: Sequence[Stretch], first: int, last: int) -> bool:
    return any(start <= first and last <= stop for start, stop in learned)


def _compiled(template: str) -> jinja2.Template | None:
    """Compile a template to be run on symbols; None where it may not be."""
    if OPEN in template or CLOSE in template:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    names: dict[str, Any] = environment.globals
    names["raise_exception"] = _raise
    filters: dict[str, Any] = environment.filters
    filters[_JOIN] = _join
    try:
        tree = environment.parse(template)
    except jinja2.TemplateError:
        return None
    if not is_eligible(tree):
        return None
    tree = _JoinsOpenly().visit(tree)
    tree.set_environment(environment)
    return jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _join(values: list[Any]) -> str:
    return Join()(*values)


def _raise(message: object) -> None:
    raise jinja2.TemplateError(str(message))


class _JoinsOpenly(NodeTransformer):
    """Makes ``a ~ b`` a call of ours: Jinja's own joins characters without asking."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        values = nodes.List(node.nodes).set_lineno(node.lineno)
        return nodes.Filter(values, _JOIN, [], [], None, None).set_lineno(node.lineno)


class _Generation(Extension):
    """``{% generation %}`` without its meaning: where it is, the template itself says."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body in a scope."""
        line = next(parser.stream).lineno
        return [
            nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)
        ]
