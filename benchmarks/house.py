"""Counts of the library's own code: `python -m benchmarks.house [FOLDER]`; `--walk`:
the way of one document.

A line of code is a line that holds a token other than a comment or a docstring; blank
lines do not count. A function's length is its lines from `def` to its end, docstring,
comments and blank lines left out.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median, quantiles

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


@dataclass(frozen=True)
class Source:
    """One file: its text and its parsed tree."""

    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def code(self) -> frozenset[int]:
        """The numbers of its lines of code."""
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _LAYOUT:
                found.update(range(token.start[0], token.end[0] + 1))
        return frozenset(found.difference(_docstrings(self.tree)))

    def length(self, node: ast.stmt) -> int:
        """Return the lines of code of a statement."""
        return len(
            self.code.intersection(
                range(node.lineno, (node.end_lineno or node.lineno) + 1)
            )
        )


@dataclass
class House:
    """What was found in all files."""

    sources: list[Source]
    functions: list[tuple[Source, ast.stmt]] = field(
        default_factory=list[tuple[Source, ast.stmt]]
    )
    imports: list[tuple[Source, ast.stmt]] = field(
        default_factory=list[tuple[Source, ast.stmt]]
    )
    annotated: int = 0
    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    edges: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def read(path: Path) -> Source:
    """Parse one file."""
    text = path.read_text("utf-8")
    return Source(path, text, ast.parse(text))


def measure(folder: Path) -> House:
    """Count everything below a package's folder."""
    house = House([read(path) for path in sorted(folder.rglob("*.py"))])
    modules = {_module(source.path, folder): source for source in house.sources}
    for name, source in modules.items():
        _count(house, source, name, modules)
    return house


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, in-function imports
    included (Tarjan 1972).
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for node in sorted(edges):
            if node not in order:
                visit(node)
    finally:  # what other tests of this process call too deep depends on it
        sys.setrecursionlimit(before)
    return found


def summary(house: House) -> Iterator[str]:
    """Return the lines of the table."""
    sizes = [source.text.count("\n") for source in house.sources]
    code = sum(len(source.code) for source in house.sources)
    imports = sum(source.length(node) for source, node in house.imports)
    lengths = [source.length(node) for source, node in house.functions]
    yield f"files            {len(sizes)} (mean {sum(sizes) / len(sizes):.0f} lines, max {max(sizes)})"
    yield f"below 100 lines  {sum(size < 100 for size in sizes)}; above 500: {sum(size > 500 for size in sizes)}"
    yield f"lines            {sum(sizes)}"
    yield f"code             {code}"
    yield f"imports          {imports} ({100 * imports / code:.1f}% of the code)"
    p90 = quantiles(lengths, n=10)[-1]
    yield f"functions        {len(lengths)} (median {median(lengths):.0f}, p90 {p90:.0f})"
    yield f"annotated        {100 * house.annotated / len(lengths):.1f}%"
    yield f"import cycles    {len(cycles(house.edges))}"
    yield f"names of several {sum(len(where) > 1 for where in house.names.values())} (classes of one name)"


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, _DOCUMENTED)
            and ast.get_docstring(node, clean=False) is not None
        ):
            text = node.body[0]
            yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def _module(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _count(house: House, source: Source, name: str, modules: dict[str, Source]) -> None:
    for node in ast.walk(source.tree):
        if isinstance(node, _FUNCTIONS):
            house.functions.append((source, node))
            house.annotated += _is_annotated(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            house.imports.append((source, node))
            house.edges[name].update(
                each for each in _targets(node, modules) if each != name
            )
        elif isinstance(node, ast.ClassDef) and node in source.tree.body:
            house.names[node.name].add(name)


def _is_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = node.args
    wanted = [
        *given.posonlyargs,
        *given.args,
        *given.kwonlyargs,
        *filter(None, (given.vararg, given.kwarg)),
    ]
    return node.returns is not None and all(
        each.annotation is not None or each.arg in ("self", "cls") for each in wanted
    )


def _targets(
    node: ast.Import | ast.ImportFrom, modules: dict[str, Source]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if each.name in modules)
    elif node.module in modules:
        inner = [f"{node.module}.{each.name}" for each in node.names]
        yield from (each for each in inner if each in modules)
        if not all(each in modules for each in inner):
            yield node.module


def main() -> None:
    """Print the table, the cycles and the names that two classes share."""
    if "--walk" in sys.argv:
        # Only here: counting needs no tokenizers.
        from benchmarks import walk

        print("\n".join(walk.summary(walk.walk())))
        return
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "lib/tokenlake")
    house = measure(folder)
    print("\n".join(summary(house)))
    for group in cycles(house.edges):
        print("cycle:", ", ".join(group))
    for name, where in sorted(house.names.items()):
        if len(where) > 1:
            print(f"{name}: {', '.join(sorted(where))}")


if __name__ == "__main__":
    main()
