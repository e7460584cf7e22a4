"""The block ``{% generation %} ... {% endgeneration %}``: what is in it, an assistant says and a trainer learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

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
