"""What the fault suites share: a fixed sample of their cases or all, and one table of
what became of them.

``make test-faults`` runs them; ``make test`` does not. ``--faults sample`` (the
default) runs a fixed sample.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar, final

import pytest

_Case = TypeVar("_Case")
_PROPERTY = "fault case"


@dataclass
class Tally:
    """Runs of one kind, and what became of them."""

    cases: int = 0
    survived: int = 0
    redone: int = 0
    silent: int = 0


@final
class Cases:
    """Which cases run, and what became of them.

    Attributes:
        all: whether all of them run.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.all = request.config.getoption("--faults") == "all"

    def choose(self, cases: Sequence[_Case], *, sample: int) -> Sequence[_Case]:
        """Return all of them, or so many evenly spread ones: always the same."""
        if self.all or len(cases) <= sample:
            return cases
        return [cases[index * len(cases) // sample] for index in range(sample)]

    def add(
        self,
        kind: str,
        *,
        survived: bool = True,
        redone: int = 0,
        silent: int = 0,
        count: int = 1,
        note: str = "",
    ) -> None:
        """Count what became of a case, or of several of one kind; what did not
        survive fails the test at its end.
        """
        self._request.node.user_properties.append(
            (
                _PROPERTY,
                json.dumps([kind, count, count * survived, redone, silent, note]),
            )
        )


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[Cases]:
    """The cases of one test; it fails at its end if one of them did not survive."""
    yield Cases(request)
    bad = [
        entry
        for entry in _entries(request.node.user_properties)
        if entry[1] != entry[2] or entry[4]
    ]
    if bad:
        lines = "\n".join(
            f"{kind}: {note or 'did not survive'}" for kind, *_, note in bad[:20]
        )
        pytest.fail(f"{len(bad)} cases did not survive:\n{lines}", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    for report in (
        report for reports in terminalreporter.stats.values() for report in reports
    ):
        # The teardown's report has them all, and there is one for each test.
        if getattr(report, "when", "") == "teardown":
            for kind, *counts, _ in _entries(report.user_properties):
                known = tallies[kind]
                tallies[kind] = Tally(
                    *(a + b for a, b in zip(astuple(known), counts, strict=True))
                )
    if not tallies:
        return
    whole = Tally(*map(sum, zip(*map(astuple, tallies.values()), strict=True)))
    terminalreporter.section("faults")
    terminalreporter.write_line(
        f"{'kind':44} {'cases':>7} {'survived':>9} {'redone':>7} {'silent':>7}"
    )
    for kind, tally in [*sorted(tallies.items()), ("all", whole)]:
        terminalreporter.write_line(
            f"{kind:44} {tally.cases:7,} {tally.survived:9,} {tally.redone:7,} {tally.silent:7,}"
        )


def _entries(properties: Sequence[tuple[str, Any]]) -> list[list[Any]]:
    return [json.loads(value) for name, value in properties if name == _PROPERTY]
