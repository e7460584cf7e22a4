"""Names and docstrings are in the words of the field: counts of vague ones, per
package, which may only fall.

``python -m tests.test_readability`` writes ``tests/readability.tsv`` anew, and prints
where a package's vague names are if it is given as an argument, as
``lib/tokenlake/runtime/loader``. CONTRIBUTING.md shows what to write instead.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "tests" / "readability.tsv"

# A name is a noun of the field. These are participles, pronouns and adjectives, which
# name nothing.
VAGUE_NAMES: Final = frozenset(
    {
        *(
            "asked",
            "beside",
            "came",
            "drawn",
            "each",
            "found",
            "given",
            "held",
            "here",
            "how",
            "kept",
            "known",
        ),
        *(
            "made",
            "more",
            "most",
            "one",
            "others",
            "own",
            "some",
            "taken",
            "there",
            "told",
            "wanted",
            "what",
        ),
        *("where", "whole", "why"),
    }
)

# A line of `Args:` begins with a noun: "Number of rows", not "of rows" or "what is
# read".
VAGUE_OPENING: Final = re.compile(
    r"^\s+\*{0,2}\w+(?:, \w+)*: (?:of|as|what|which|how|whether it|in|by|for|to)\b"
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Counts:
    """Counts of one package."""

    vague_names: int = 0
    """Number of names in :data:`VAGUE_NAMES` that are assigned in functions, each
    once a function.
    """

    vague_arguments: int = 0
    """Number of lines in the section `Args:` or `Attributes:` that do not begin with
    a noun.
    """

    whats: int = 0
    """Number of times that docstrings say "what"."""


def package_of(path: Path) -> str:
    """Return the folder of a file, relative to the repository."""
    return path.parent.relative_to(ROOT).as_posix()


def sources() -> Iterator[Path]:
    """Yield the files of the flows, the tasks and the library."""
    for folder in ("flows", "tasks", "lib"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def vague_names_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the vague names that a function assigns, takes as arguments or loops
    over.
    """
    names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names & VAGUE_NAMES


def vague_arguments_in(docstring: str) -> int:
    """Return how many arguments a docstring does not explain by a noun."""
    count = 0
    is_section = False
    for line in docstring.splitlines():
        if re.fullmatch(r"\s*(Args|Attributes):", line):
            is_section = True
        elif re.fullmatch(r"\s*(Returns|Raises|Yields|Example|Examples):?", line):
            is_section = False
        elif is_section and VAGUE_OPENING.match(line):
            count += 1
    return count


@dataclass
class Density:
    """How dense the whole code is."""

    code_lines: int = 0
    """Number of lines that are neither empty nor comments; docstrings are counted."""

    comments: int = 0
    """Number of lines that are comments."""

    comprehensions: int = 0
    """Number of comprehensions and generator expressions."""

    conditional_expressions: int = 0
    """Number of expressions ``a if b else c``."""

    def per_thousand(self, count: int) -> float:
        """Return a count per 1,000 lines of code."""
        return 1000 * count / self.code_lines


DENSITY: Final = Density()


def measure() -> dict[str, Counts]:
    """Return the counts of every package, and add all up in :data:`DENSITY`."""
    packages: dict[str, Counts] = {}
    for path in sources():
        counts = packages.setdefault(package_of(path), Counts())
        text = path.read_text("utf-8")
        for line in map(str.strip, text.splitlines()):
            if line.startswith("#"):
                DENSITY.comments += 1
            elif line:
                DENSITY.code_lines += 1
        for node in ast.walk(ast.parse(text)):
            DENSITY.comprehensions += isinstance(node, _COMPREHENSIONS)
            DENSITY.conditional_expressions += isinstance(node, ast.IfExp)
            if isinstance(node, _FUNCTIONS):
                counts.vague_names += len(vague_names_in(node))
            if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
                docstring = ast.get_docstring(node) or ""
                counts.vague_arguments += vague_arguments_in(docstring)
                counts.whats += len(
                    re.findall(r"\bwhat(?:ever)?\b", docstring, re.IGNORECASE)
                )
    return packages


def recorded() -> dict[str, Counts]:
    """Return the counts of the table."""
    _, *lines = TABLE.read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    return {package: Counts(*map(int, counts)) for package, *counts in rows}


MEASURED: Final = measure()


@pytest.mark.parametrize("package", MEASURED)
def test_vague_names_and_docstrings_only_get_fewer(package: str) -> None:
    counts = MEASURED[package]
    allowed = recorded().get(package, Counts())
    is_allowed = all(
        count <= most
        for count, most in zip(astuple(counts), astuple(allowed), strict=True)
    )
    assert is_allowed, (
        f"{package} has {counts}, at most {allowed} is allowed; CONTRIBUTING.md shows better names and sentences"
    )
    assert counts == allowed, (
        "fewer than recorded: run `python -m tests.test_readability`, so that it stays so"
    )


def test_the_code_is_commented_and_not_dense() -> None:
    """Bounds a little beyond the figures of the day on which they were set."""
    assert DENSITY.per_thousand(DENSITY.comments) >= 48
    assert DENSITY.per_thousand(DENSITY.comprehensions) <= 13
    assert DENSITY.per_thousand(DENSITY.conditional_expressions) <= 4.5


def test_the_table_lists_no_package_that_is_gone() -> None:
    assert recorded().keys() <= MEASURED.keys()


def main() -> None:
    """Write the table, or print the vague names of a package."""
    for package in sys.argv[1:]:
        names: Counter[str] = Counter()
        for path in sources():
            if package_of(path) != package.rstrip("/"):
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, _FUNCTIONS) and (vague := vague_names_in(node)):
                    names.update(vague)
                    print(
                        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {', '.join(sorted(vague))}"
                    )
        print(names.most_common())
    if not sys.argv[1:]:
        lines = ["package\tvague names\tvague arguments\twhats"]
        lines += [
            "\t".join(map(str, [package, *astuple(counts)]))
            for package, counts in MEASURED.items()
        ]
        TABLE.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
