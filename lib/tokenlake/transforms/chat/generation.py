"""The block ``{% generation %} ... {% endgeneration %}``: what is in it, an assistant says and a trainer learns."""

from __future__ import annotations

from typing import Any, Final, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from tokenlake.transforms.chat.limits import Budget

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
    budget: Budget = context.environment.budget
    budget.starts.append(budget.length)


@jinja2.pass_context
def end(context: Any, _: int) -> None:
    """Note where it ends; inside another it is a part of that."""
    budget: Budget = context.environment.budget
    start = budget.starts.pop()
    if not budget.starts and start < budget.length:
        budget.learned.append((start, budget.length))
