"""Goals of the project: a measured figure and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.contenders import MEANING
from benchmarks.rotation import Series

LEAST_SPEEDUPS: Final = {
    "gpt2": {"datasets": 45.0, "datasets-tokenizers1": 1.0, "datatrove": 38.0},
    "llama2": {"datasets": 25.0, "datasets-tokenizers1": 1.0, "datatrove": 22.0},
}
"""Tokenizer -> peer -> smallest ratio of MB per CPU second, Tokenlake's over the
peer's. `datasets` and `datatrove` use tokenizers 0.x, which is slow.
"""

MOST_OVERHEADS: Final = {
    "gpt2": {"bare": 1.5, "tokenizers1": 1.5},
    "llama2": {"bare": 0.75, "tokenizers1": 0.5},
}
"""Tokenizer -> bare loop -> largest ratio of CPU seconds, Tokenlake's over the
loop's.
"""

MOST_PREFECT_SECONDS: Final = 15.0
"""Most CPU seconds of a run beyond those of the library's build."""

WORKER_BYTES: Final = 10**9
"""Largest peak of a worker's resident memory."""

FIRST_UNIT: Final = 8.0
"""Most seconds from the command to the first unit."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its limit.

    Attributes:
        what: Description of the figure.
        got: Measured value.
        relation: Side of the limit on which the value should be.
        limit: Limit, which is inclusive.
        unit: Unit of both numbers, with a leading space if it needs one.
    """

    what: str
    got: float
    relation: Literal["at least", "at most"]
    limit: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of the limit."""
        if self.relation == "at least":
            return self.got >= self.limit
        return self.got <= self.limit


def throughput_goals(all_series: Sequence[Series]) -> list[Goal]:
    """Return the goals of all systems that ran, and that can be compared."""
    measured: dict[tuple[str, str], Series] = {}
    for series in all_series:
        if series.runs:
            measured[series.vocabulary.name, series.system.name] = series
    goals: list[Goal] = []
    for tokenizer in LEAST_SPEEDUPS:
        for workers in (1, 2):
            goals.extend(_goals_of_build(tokenizer, workers, measured))
    return goals


def _goals_of_build(
    tokenizer: str, workers: int, measured: Mapping[tuple[str, str], Series]
) -> Iterator[Goal]:
    """Yield the goals of the library's build.

    Args:
        tokenizer: Name of the tokenizer.
        workers: Number of workers of the build.
        measured: (tokenizer, system) -> measurements.
    """
    build = measured.get((tokenizer, f"build-{workers}"))
    if build is None:
        return
    title = f"{tokenizer}, {workers} worker"
    if workers > 1:
        title += "s"

    # Peers with as many workers.
    for family, limit in LEAST_SPEEDUPS[tokenizer].items():
        peer = measured.get((tokenizer, f"{family}-{workers}"))
        if peer is None:
            continue
        figure = f"{title}: MB per CPU s, tokenlake / {MEANING[family]}"
        yield Goal(figure, build.rate / peer.rate, "at least", limit, "x")
        # The start-up of a peer weighs more in its shorter run, which flatters
        # Tokenlake. The second ratio leaves that out.
        peer_cpu = peer.cpu_on(build.source.megabytes)
        if peer.source != build.source and peer_cpu is not None:
            figure += ", peer extrapolated to the same input"
            yield Goal(figure, peer_cpu / build.cpu, "at least", limit, "x")

    # Bare loops of one process.
    for family, limit in MOST_OVERHEADS[tokenizer].items():
        loop = measured.get((tokenizer, f"{family}-1"))
        if loop is not None and loop.source == build.source:
            figure = f"{title}: CPU s, tokenlake / {MEANING[family]}"
            yield Goal(figure, build.cpu / loop.cpu, "at most", limit, "x")

    # The same build through Prefect.
    flow = measured.get((tokenizer, f"run-{workers}"))
    if flow is not None and flow.source == build.source:
        figure = f"{title}: Prefect's fixed cost (tokenlake run - library build)"
        prefect_cpu = flow.cpu - build.cpu
        yield Goal(figure, prefect_cpu, "at most", MOST_PREFECT_SECONDS, " CPU s")
