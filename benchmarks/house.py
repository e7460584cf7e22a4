"""Size and structure of the library's code.

``python -m benchmarks.house [FOLDER]`` counts files, lines, functions and imports, and
finds import cycles. ``--walk`` prints the functions through which one document passes.

A line of code is a line that holds a token other than a comment or a docstring. Blank
lines do not count. The length of a function is its number of lines of code.
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
from typing import TypeAlias

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Types of tokens that are no code."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)

SourceNode: TypeAlias = "tuple[Source, ast.stmt]"
"""(file, statement in it)."""

Graph = dict[str, set[str]]
"""Module -> modules that it imports."""


@dataclass(frozen=True)
class Source:
    """Parsed source file.

    Attributes:
        path: Path of the file.
        text: Text of the file.
        tree: Syntax tree of the text.
    """

    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def code(self) -> frozenset[int]:
        """Numbers of the lines of code."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _LAYOUT:
                lines.update(range(token.start[0], token.end[0] + 1))
        return frozenset(lines.difference(_docstring_lines(self.tree)))

    def length(self, node: ast.stmt) -> int:
        """Return the number of lines of code of a statement."""
        return len(self.code.intersection(_lines_of(node)))


@dataclass
class CodeStatistics:
    """Functions, imports and classes of a package.

    Attributes:
        sources: All files.
        functions: All functions.
        imports: All import statements.
        annotated: Number of functions whose parameters and results are annotated.
        names: Name of a class -> modules that define it.
        edges: Graph of the imports between modules of the package.
    """

    sources: list[Source]
    functions: list[SourceNode] = field(default_factory=list[SourceNode])
    imports: list[SourceNode] = field(default_factory=list[SourceNode])
    annotated: int = 0
    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    edges: Graph = field(default_factory=lambda: defaultdict(set))


def read(path: Path) -> Source:
    """Read and parse a file."""
    text = path.read_text("utf-8")
    return Source(path, text, ast.parse(text))


def measure(folder: Path) -> CodeStatistics:
    """Return the statistics of all files below the folder of a package."""
    sources = [read(path) for path in sorted(folder.rglob("*.py"))]
    statistics = CodeStatistics(sources)
    modules = {_module_name(source.path, folder): source for source in sources}
    for module_name, source in modules.items():
        _count(statistics, source, module_name, modules)
    return statistics


def cycles(edges: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other.

    These are the strongly connected components of the graph with more than one module,
    found by the algorithm of Tarjan (1972). Imports inside functions count.

    Args:
        edges: Graph of the imports.
    """
    index: dict[str, int] = {}  # module -> its number in the order of visits
    lowest: dict[str, int] = {}  # module -> least index that it reaches on the stack
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        # 1. Visit the imported modules.
        index[module] = len(index)
        lowest[module] = index[module]
        stack.append(module)
        for imported in sorted(edges.get(module, ())):
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        # 2. If the module reaches no earlier one, a component ends here: it is the
        #    stack from this module on.
        if lowest[module] == index[module]:
            begin = stack.index(module)
            component = stack[begin:]
            del stack[begin:]
            if len(component) > 1:
                groups.append(sorted(component))

    # The recursion is as deep as the longest chain of imports. The limit is restored,
    # since other tests of the process depend on it.
    recursion_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for module in sorted(edges):
            if module not in index:
                visit(module)
    finally:
        sys.setrecursionlimit(recursion_limit)
    return groups


def shared_names(statistics: CodeStatistics) -> dict[str, list[str]]:
    """Return the class names that several modules define, with these modules."""
    shared: dict[str, list[str]] = {}
    for class_name, modules in sorted(statistics.names.items()):
        if len(modules) > 1:
            shared[class_name] = sorted(modules)
    return shared


def summary(statistics: CodeStatistics) -> Iterator[str]:
    """Yield the lines of the table."""
    # 1. Files.
    sizes: list[int] = []
    small_files = 0
    large_files = 0
    code = 0
    for source in statistics.sources:
        size = source.text.count("\n")
        sizes.append(size)
        code += len(source.code)
        if size < 100:
            small_files += 1
        elif size > 500:
            large_files += 1
    yield f"files            {len(sizes)} (mean {sum(sizes) / len(sizes):.0f} lines, max {max(sizes)})"
    yield f"below 100 lines  {small_files}; above 500: {large_files}"
    # 2. Lines.
    imports = sum(source.length(node) for source, node in statistics.imports)
    yield f"lines            {sum(sizes)}"
    yield f"code             {code}"
    yield f"imports          {imports} ({100 * imports / code:.1f}% of the code)"
    # 3. Functions.
    lengths = [source.length(node) for source, node in statistics.functions]
    ninth_decile = quantiles(lengths, n=10)[-1]
    yield f"functions        {len(lengths)} (median {median(lengths):.0f}, p90 {ninth_decile:.0f})"
    yield f"annotated        {100 * statistics.annotated / len(lengths):.1f}%"
    # 4. Structure.
    yield f"import cycles    {len(cycles(statistics.edges))}"
    yield f"names of several {len(shared_names(statistics))} (classes of one name)"


def _lines_of(node: ast.stmt) -> range:
    """Return the numbers of the lines of a statement."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of the lines of all docstrings."""
    for node in ast.walk(tree):
        if not isinstance(node, _DOCUMENTED):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            yield from _lines_of(node.body[0])


def _module_name(path: Path, folder: Path) -> str:
    """Return the dotted name of a module.

    Args:
        path: File of the module.
        folder: Folder of the package.
    """
    parts = path.relative_to(folder.parent).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def _count(
    statistics: CodeStatistics, source: Source, name: str, modules: dict[str, Source]
) -> None:
    """Add the functions, imports and classes of a file to the statistics.

    Args:
        statistics: Statistics of the package.
        source: File to count.
        name: Name of its module.
        modules: Name -> file of all modules of the package.
    """
    for node in ast.walk(source.tree):
        # Nested functions and imports inside functions count.
        if isinstance(node, _FUNCTIONS):
            statistics.functions.append((source, node))
            if _is_annotated(node):
                statistics.annotated += 1
        elif isinstance(node, ast.Import | ast.ImportFrom):
            statistics.imports.append((source, node))
            imported = set(_imported_modules(node, modules))
            statistics.edges[name].update(imported - {name})
        elif isinstance(node, ast.ClassDef) and node in source.tree.body:
            statistics.names[node.name].add(name)


def _is_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether all parameters and the result of a function are annotated."""
    if node.returns is None:
        return False
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    # `*args` and `**kwargs` need annotations, too.
    for variadic in (arguments.vararg, arguments.kwarg):
        if variadic is not None:
            parameters.append(variadic)
    for parameter in parameters:
        if parameter.annotation is None and parameter.arg not in ("self", "cls"):
            return False
    return True


def _imported_modules(
    node: ast.Import | ast.ImportFrom, modules: dict[str, Source]
) -> Iterator[str]:
    """Yield the modules of the package that a statement imports.

    Args:
        node: Import statement.
        modules: Name -> file of all modules of the package.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in modules:
                yield alias.name
        return
    if node.module not in modules:
        return
    # `from package import name` imports a module, or else a name of the package.
    imports_name = False
    for alias in node.names:
        submodule = f"{node.module}.{alias.name}"
        if submodule in modules:
            yield submodule
        else:
            imports_name = True
    if imports_name:
        yield node.module


def main() -> None:
    """Print the table, the import cycles, and the class names of several modules."""
    if "--walk" in sys.argv:
        # Imported here, since counting needs no tokenizers.
        from benchmarks import walk

        print("\n".join(walk.summary(walk.walk())))
        return
    folder = Path("lib/tokenlake")
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    statistics = measure(folder)
    print("\n".join(summary(statistics)))
    for group in cycles(statistics.edges):
        print("cycle:", ", ".join(group))
    for class_name, modules in shared_names(statistics).items():
        print(f"{class_name}: {', '.join(modules)}")


if __name__ == "__main__":
    main()
