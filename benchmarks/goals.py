"""The project's goals, judged on the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.contenders import MEANING
from benchmarks.rotation import Series

FASTER: Final = {
    "gpt2": {"datasets": 45.0, "datasets-tokenizers1": 1.0, "datatrove": 38.0},
    "llama2": {"datasets": 25.0, "datasets-tokenizers1": 1.0, "datatrove": 22.0},
}
"""Times a peer's MB per CPU second, at least. `datasets` and `datatrove` use
tokenizers 0.x, which is slow.
"""
BARE: Final = {
    "gpt2": {"bare": 1.5, "tokenizers1": 1.5},
    "llama2": {"bare": 0.75, "tokenizers1": 0.5},
}
"""Times a bare loop's CPU seconds, at most."""
PREFECT: Final = 15.0  # CPU seconds a run costs beyond the library's build, at most
WORKER_BYTES: Final = 10**9  # peak resident memory of a worker, at most
FIRST_UNIT: Final = 8.0  # seconds from the command to the first unit, at most


@dataclass(frozen=True, slots=True)
class Goal:
    """One number and what it should be."""

    what: str
    got: float
    relation: Literal["at least", "at most"]
    limit: float
    unit: str = ""

    @property
    def met(self) -> bool:
        """Whether the number is on the right side of the limit."""
        return (
            self.got >= self.limit
            if self.relation == "at least"
            else self.got <= self.limit
        )


def throughput_goals(series: Sequence[Series]) -> list[Goal]:
    """Every ratio and difference that can be formed from the systems that ran."""
    measured = {
        (one.vocabulary.name, one.system.name): one for one in series if one.runs
    }
    return [goal for name in FASTER for goal in _of_vocabulary(name, measured)]


def _of_vocabulary(
    name: str, measured: dict[tuple[str, str], Series]
) -> Iterator[Goal]:
    for workers in (1, 2):
        ours = measured.get((name, f"build-{workers}"))
        if ours is None:
            continue
        many = f"{workers} worker" + "s" * (workers > 1)
        for family, least in FASTER[name].items():
            if peer := measured.get((name, f"{family}-{workers}")):
                what = f"{name}, {many}: MB per CPU s, tokenlake / {MEANING[family]}"
                yield Goal(what, ours.rate / peer.rate, "at least", least, "x")
                # The peer's shorter run pays relatively more for its start-up, which
                # flatters us.
                expected = peer.cpu_on(ours.source.megabytes)
                if peer.source != ours.source and expected is not None:
                    what += ", peer extrapolated to the same input"
                    yield Goal(what, expected / ours.cpu, "at least", least, "x")
        for family, most in BARE[name].items():
            bare = measured.get((name, f"{family}-1"))
            if bare and bare.source == ours.source:
                what = f"{name}, {many}: CPU s, tokenlake / {MEANING[family]}"
                yield Goal(what, ours.cpu / bare.cpu, "at most", most, "x")
        flow = measured.get((name, f"run-{workers}"))
        if flow and flow.source == ours.source:
            what = (
                f"{name}, {many}: Prefect's fixed cost (tokenlake run - library build)"
            )
            yield Goal(what, flow.cpu - ours.cpu, "at most", PREFECT, " CPU s")
