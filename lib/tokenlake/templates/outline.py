"""Where a template puts contents, told by running it on symbols.

What a template makes of a conversation is mostly the same words around other contents. So it is run once for every
shape (the roles, in order) on symbols (:mod:`tokenlake.templates.symbols`), which shows where each content goes. A
shape has a skeleton only if the template itself, run on texts in place of the contents, says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tokenlake.errors import BadRecordError
from tokenlake.templates.eligible import is_eligible
from tokenlake.templates.program import Program
from tokenlake.templates.rendered import Message, RenderedChat, Skeleton, Slot, Stretch
from tokenlake.templates.symbols import CLOSE, OPEN, Join, Looked, Symbol, mark, parts_of, untrimmed

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
