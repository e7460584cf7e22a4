"""The table of the promises: each with the tests that show it, or with the reason
why it is not kept.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent.parent
PAGE: Final = TESTS.parent / "docs/seeds.md"
_HEADING: Final = "## What is not kept"


@dataclass(frozen=True, slots=True)
class Promise:
    """One row of ``promises.tsv``.

    Attributes:
        tests: ``file.py::test`` of those that show it.
        reason: why it is not kept, and what does the job instead; "" where it is.
    """

    number: int
    section: str
    text: str
    tests: tuple[str, ...]
    reason: str

    @property
    def state(self) -> str:
        """``kept``, ``refused`` or ``open``."""
        return "kept" if self.tests else "refused" if self.reason else "open"


def table() -> list[Promise]:
    """Return all promises in order."""
    shown, reasons = marked(), refused()
    with (Path(__file__).parent / "promises.tsv").open(
        encoding="utf-8", newline=""
    ) as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [
        Promise(
            int(number),
            section,
            text,
            tuple(shown.get(int(number), ())),
            reasons.get(int(number), ""),
        )
        for number, section, text in rows
    ]


def marked() -> dict[int, list[str]]:
    """Return number -> the tests that carry its mark."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        if "@promise(" not in source:
            continue
        for test in ast.walk(ast.parse(source)):
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in _numbers(test):
                    found[number].append(f"{path.relative_to(TESTS)}::{test.name}")
    return found


def _numbers(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    for mark in test.decorator_list:
        if (
            isinstance(mark, ast.Call)
            and isinstance(mark.func, ast.Name)
            and mark.func.id == "promise"
        ):
            yield from (ast.literal_eval(number) for number in mark.args)


def refused() -> dict[int, str]:
    """Return number -> why it is not kept, and what does the job, as docs/seeds.md
    says it.
    """
    section = (
        PAGE.read_text(encoding="utf-8").partition(_HEADING)[2].partition("\n## ")[0]
    )
    rows = re.findall(
        r"^\| ([\d, ]+) \| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE
    )
    return {
        int(number): f"{why}; {instead}"
        for numbers, _, why, instead in rows
        for number in numbers.split(",")
    }
