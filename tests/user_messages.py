"""All sentences that a user can meet, collected from the code into one file:
``tests/user_messages.txt``.

``python -m tests.user_messages`` writes the file anew. Read it from top to bottom to
see whether all messages are in the same plain language, and search it to find where a
message comes from.

A message is built in pieces: an error's text may be assembled from a reason, a list and
a hint, in three functions. So the collection does not follow values to the place where
they are shown. It takes

1. every text of a function, method or constant that has at least two words (errors,
   notes, prompts, progress lines, labels of tables and reports), with ``{…}`` for the
   values in it;
2. docstrings that are shown: help of the commands, forms and descriptions of the flows,
   options of configurations.

It leaves out other docstrings, and texts for programs: patterns, SQL, JavaScript,
styles, and the lists of fields of tables.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenlake.cli import COMMANDS

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "tests" / "user_messages.txt"

VALUE: Final = "{…}"
"""A value in a message."""

OPTIONS: Final = frozenset({"Section", "_Choice"})
"""Base classes of the sections of a configuration. Their explanations are in the
JSON Schema and in errors.
"""

TWO_WORDS: Final = re.compile(
    r"[^\W\d_]{2,}[^\w\s]*\s+[^\w\s]*[^\W\d_]{2,}|[^\W\d_]{2,}[^\w\s]*\s+\{…\}"
)
"""A sentence, or a part of one: two words, or a word and a value."""

FOR_PROGRAMS: Final = re.compile(
    r"\b(SELECT|CREATE|INSERT|COPY|FROM|PRAGMA|SET) |function\s*\(|=>|;\n|\(\?|\\[sdwb]|\{\{|</|:text\b|:int\b"
    r"|^[\s\w-]+\{(?!…)|^[\w. ]+\[.*\]$|^(from|import) "
)
"""Text that a program reads: SQL, JavaScript, styles, patterns, templates, columns
of a table, types, imports.
"""

CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    """Yield the files of the flows, the tasks and the library."""
    for folder in ("flows", "tasks", "lib"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def text_of(node: ast.expr) -> str | None:
    """Return a text with ``{…}`` for its values; None where an expression is no text.

    A text is a literal, an f-string, or a sum with at least one of these.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part) or VALUE for part in node.values]
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left = text_of(node.left)
        right = text_of(node.right)
        if left is None and right is None:
            return None
        return (left or VALUE) + (right or VALUE)
    return None


def nested_expressions(node: ast.expr) -> Iterator[ast.AST]:
    """Yield the expressions inside a text that may hold other texts, as ``{"one" if
    count == 1 else "many"}``.
    """
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield part.value
    elif isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            if text_of(side) is None:
                yield side
            else:
                yield from nested_expressions(side)


class Collector(ast.NodeVisitor):
    """Collects the messages of one file.

    Attributes:
        messages: Messages in the order of the code, each once.
        has_commands: True if functions of the file are commands of the command line.
    """

    def __init__(self, has_commands: bool) -> None:
        self.messages: dict[str, None] = {}
        self.has_commands = has_commands

    def visit(self, node: ast.AST) -> None:
        """Add a text, or visit the parts of anything else."""
        if isinstance(node, ast.expr):
            text = text_of(node)
            if text is not None:
                self._add(text)
                for expression in nested_expressions(node):
                    self.visit(expression)
                return
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
            self._visit_documented(node)
            return
        super().visit(node)

    def _visit_documented(self, node: _Documented) -> None:
        """Add explanations that are shown, and visit everything that is no
        explanation.
        """
        shows_docstring = self._shows_docstring(node)
        shows_fields = isinstance(node, ast.ClassDef) and is_section(node)
        for child in ast.iter_child_nodes(node):
            # A text that is a statement explains the module, class or function, or the
            # name above it.
            is_explanation = isinstance(child, ast.Expr) and isinstance(
                child.value, ast.Constant
            )
            is_docstring = is_explanation and child is node.body[0]
            is_shown = shows_docstring if is_docstring else shows_fields
            if is_shown or not is_explanation:
                self.visit(child)

    def _shows_docstring(self, node: _Documented) -> bool:
        """Return True if users see the docstring: that of a flow, of a command, or
        of a section of a configuration.
        """
        if isinstance(node, ast.ClassDef):
            return is_section(node)
        if isinstance(node, ast.Module):
            return False
        is_command = self.has_commands and node.name in COMMANDS
        return is_command or any(
            is_flow(decorator) for decorator in node.decorator_list
        )

    def _add(self, text: str) -> None:
        """Add a text if it is a message."""
        text = inspect.cleandoc(text).strip()
        # Control characters are shown as escapes, so that the file is plain text.
        text = CONTROL.sub(lambda match: repr(match.group())[1:-1], text)
        if TWO_WORDS.search(text) and not FOR_PROGRAMS.search(text):
            self.messages[text] = None


def is_section(node: ast.ClassDef) -> bool:
    """Return True if a class is a section of a configuration."""
    return any(isinstance(base, ast.Name) and base.id in OPTIONS for base in node.bases)


def is_flow(decorator: ast.expr) -> bool:
    """Return True for the decorator ``@flow(...)``."""
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "flow"
    )


def messages_of(path: Path) -> list[str]:
    """Return the messages of a file, in the order of its code."""
    name = path.relative_to(ROOT).as_posix()
    collector = Collector(has_commands=name.startswith("lib/tokenlake/cli/"))
    collector.visit(ast.parse(path.read_text("utf-8")))
    return list(collector.messages)


def collection() -> str:
    """Return the messages of all files: the path of a file, and below it a line for
    each message.
    """
    lines = [
        "Messages of Tokenlake. Written by `python -m tests.user_messages`; do not edit."
    ]
    for path in sources():
        messages = messages_of(path)
        if not messages:
            continue
        lines += ["", path.relative_to(ROOT).as_posix()]
        for message in messages:
            # Lines of a longer message are indented below its first.
            lines.append("  " + message.replace("\n", "\n    "))
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n")) + "\n"


def main() -> int:
    """Write the file anew."""
    FILE.write_text(collection(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
