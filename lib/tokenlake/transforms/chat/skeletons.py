"""Conversations of equal shape, rendered without running the template again.

What a template makes of a conversation is mostly the same words around other contents. So it is run once for every
shape (the roles, in order) on symbols (:mod:`tokenlake.transforms.chat.symbols`), which shows where each content goes;
every conversation of that shape is then a join (:mod:`tokenlake.transforms.chat.alike`). A shape is used only if the
template itself, run on texts in place of the contents, says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError, TemplateMismatchError
from tokenlake.transforms.chat.eligible import is_eligible
from tokenlake.transforms.chat.symbols import (
    CLOSE,
    OPEN,
    Join,
    Looked,
    Slot,
    Symbol,
    mark,
    parts_of,
    untrimmed,
)

Messages = Sequence[Mapping[str, Any]]
Stretch = tuple[int, int]

_SHAPES: Final = 4096  # remembered; conversations of further shapes are rendered one by one
_TURNS: Final = 64
_JOIN: Final = "texts joined"


@final
@dataclass(frozen=True, slots=True)
class Filled:
    """A rendered conversation: its text, and the stretches of characters that bear loss, ascending and disjoint."""

    text: str
    learned: tuple[Stretch, ...]


@final
@dataclass(frozen=True, slots=True)
class Skeleton:
    """The words around the contents.

    Attributes:
        parts: words and slots, in order.
        learned: whether each part bears loss.
    """

    parts: tuple[str | Slot, ...]
    learned: tuple[bool, ...]


Render = Callable[[Messages], tuple[str, Sequence[Stretch]]]
"""The template itself: text, and stretches of characters; a BadRecordError where it has none for these messages."""


@final
class Skeletons:
    """The shapes that a template was seen to make.

    Args:
        template: Jinja text.
        render: the template as it is run row by row.
        variables: of the template, messages aside.
    """

    def __init__(self, template: str, render: Render, variables: Mapping[str, Any]) -> None:
        self._render = render
        self._variables = variables
        self._program = _program(template)
        self._known: dict[tuple[str, ...], Skeleton | None] = {}

    def of(self, roles: tuple[str, ...]) -> Skeleton | None:
        """Return the skeleton of conversations of these roles, None where the template itself must be run."""
        if self._program is None or len(roles) > _TURNS:
            return None
        if roles not in self._known and len(self._known) < _SHAPES:
            self._known[roles] = self._skeleton(roles)
        return self._known.get(roles)

    def compare(self, filled: Filled, messages: Messages) -> None:
        """Compare what a skeleton says with what the template says.

        Raises:
            TemplateMismatchError: they differ, which would be a bug; nothing was committed.
        """
        try:
            text, learned = self._render(messages)
        except BadRecordError as error:
            text, learned = f"the error {error}", ()
        if (text, _joined(learned)) != (filled.text, filled.learned):
            raise TemplateMismatchError(
                f"a chat template was rendered in two ways that differ: {filled.text[:400]!r} by its skeleton, "
                f"{text[:400]!r} by itself, learned {filled.learned} and {tuple(learned)}. Expected the same; this is "
                "a bug, please report the template. Nothing was committed"
            )

    def _skeleton(self, roles: tuple[str, ...]) -> Skeleton | None:
        """Run the template on symbols, and on texts in their place; None where these differ or it looks into them."""
        assert self._program is not None
        symbols = [{"role": role, "content": Symbol(mark(at))} for at, role in enumerate(roles)]
        texts = [{"role": role, "content": mark(at)} for at, role in enumerate(roles)]
        try:
            made = self._program.render(**self._variables, messages=symbols)
            text, learned = self._render(texts)
        except (
            Looked,
            BadRecordError,
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
        ):
            return None
        return _cut(made, learned) if untrimmed(made) == text else None


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


def _joined(learned: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Join stretches that touch, and leave empty ones out, as a skeleton does."""
    joined: list[Stretch] = []
    for start, stop in learned:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return tuple(joined)


def _program(template: str) -> jinja2.Template | None:
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
