"""What a watcher of a build sees."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from tests.seeds import promise
from tokenlake.cli.console import Counter
from tokenlake.config import ObservabilityConfig
from tokenlake.etl import (
    BuildPlanned,
    BuildStep,
    Event,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    UnitStarted,
)
from tokenlake.etl.events import (
    BackendChosen,
    BackendDiscarded,
    BuildRequested,
    Phase,
    Planning,
)
from tokenlake.etl.observability import RunProgress, RunTally
from tokenlake.etl.observability import build as build_display
from tokenlake.runtime.store import Account, UnitRecord

MB = 1_000_000


def _record(unit: int, tokens: int = 0, documents: int = 0) -> UnitRecord:
    return UnitRecord(
        unit=unit,
        fingerprint="ab" * 32,
        source="web",
        inputs=(),
        parts=(),
        account=Account(documents=documents, tokens=tokens),
        quarantine=None,
        engine="gigatoken",
        produced_by={},
    )


def _run() -> Iterator[Event]:
    """Four units: one resumed, one built, one retried and built, one left."""
    yield BuildPlanned(
        dataset="web",
        version=2,
        units=4,
        input_bytes=40 * MB,
        pending=3,
        source_bytes={"web": 30 * MB, "code": 10 * MB},
    )
    yield UnitFinished(0, "web", 10 * MB, _record(0, 1_000, 10), "resumed")
    yield BackendChosen("gpt2", "gigatoken", "equal to the reference")
    yield BackendChosen("gpt2", "gigatoken", "equal to the reference on other texts")
    yield UnitStarted(1, "web", 10 * MB)
    yield UnitProgress(1, "web", 6 * MB, 5, 500)
    yield UnitStarted(2, "code", 10 * MB)
    yield UnitProgress(2, "code", 3 * MB, 5, 500)
    yield UnitRetried(2, "code", "worker died", (3 * MB, 5, 500))
    yield UnitFinished(
        1, "web", 10 * MB, _record(1, 800, 8), "built", 1.0, (6 * MB, 5, 500)
    )
    yield UnitProgress(2, "code", 10 * MB, 5, 500)
    yield UnitFinished(
        2, "code", 10 * MB, _record(2, 500, 5), "built", 1.0, (10 * MB, 5, 500)
    )


def test_sums_add_up_whatever_was_resumed_or_retried() -> None:
    now = 0.0
    tally = RunTally(clock=lambda: now)
    for number, event in enumerate(_run()):
        tally.add(event)
        now += 1.0
        # What was resumed says nothing of this run's speed.
        assert number > 1 or tally.left() is None
    assert (tally.plan.units, tally.finished) == (4, 3)
    assert (tally.total, tally.done, tally.built) == (40 * MB, 30 * MB, 20 * MB)
    assert {name: (s.done, s.total) for name, s in tally.sources.items()} == {
        "web": (20 * MB, 30 * MB),
        "code": (10 * MB, 10 * MB),
    }
    assert (tally.documents, tally.tokens) == (10 + 8 + 5, 1_000 + 800 + 500)
    assert (tally.seconds(), tally.left()) == (8.0, 4.0)


def test_lines_without_a_terminal() -> None:
    out = io.StringIO()
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        for event in _run():
            progress(event)
        progress(BackendDiscarded("gigatoken", "differs on 'x\x1b[2J'"))
    assert out.getvalue().splitlines() == [
        "planning",
        "web v2: 4 units, 38.1 MiB; 3 to build, 1 already built",
        "tokenizer backend gigatoken for gpt2: equal to the reference",
        "unit 2 (code) is retried after: worker died",
        "tokenizer backend gigatoken is not exact; its units are rebuilt: differs on 'x\\x1b[2J'",
    ]


def test_a_plan_that_takes_a_while_says_so_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        told = {
            100.2: 0,
            100.6: 1200,
            101.0: 1300,
            105.5: 2500,
            105.7: 3000,
            111.0: 9000,
        }
        for clock[0], files in told.items():
            progress(
                Planning("web", "hashing", files, 10_000, files << 10, 10_000 << 10)
            )
        progress(Planning("web", "listing", 1, 0, 0, 0))
        clock[0] = 120.0
        progress(Planning("web", "counting", 3, 0, 512, 0))
    assert out.getvalue().splitlines() == [
        "planning",
        "planning: web: hashing, 1,200 of 10,000 files, 1.17 MiB of 9.77 MiB",
        "planning: web: hashing, 3,000 of 10,000 files, 2.93 MiB of 9.77 MiB",
        "planning: web: hashing, 9,000 of 10,000 files, 8.79 MiB of 9.77 MiB",
        "planning: web: counting records, 3 files, 512 B",
    ]


class Heard(io.StringIO):
    """Text that says when it holds some words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.has_words = threading.Event()

    def write(self, text: str, /) -> int:
        count = super().write(text)
        if self._words in self.getvalue():
            self.has_words.set()
        return count


def test_a_phase_that_takes_long_gets_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_display, "_LONG_SECONDS", 0.0)
    out = Heard("starting 2 workers; starting Prefect")
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        progress(Phase("starting 2 workers"))
        progress(Phase("starting Prefect", "flow"))
        assert out.has_words.wait(120)


def test_a_short_phase_gets_no_line() -> None:
    out = io.StringIO()
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        progress(Phase("starting 2 workers"))
        progress(Phase(""))
    assert out.getvalue().splitlines() == ["planning"]


def test_the_phase_after_the_last_unit_is_below_the_bars() -> None:
    out = io.StringIO()
    progress = RunProgress("planning", Console(file=io.StringIO()))
    for event in _run():
        progress(event)
    progress(Phase("committing 4 units"))
    progress(Phase("writing the report", "flow"))
    Console(file=out, width=100).print(progress.render(100))
    assert out.getvalue().splitlines()[-1] == "committing 4 units; writing the report"
    progress(Phase(""))
    Console(file=out, width=100).print(progress.render(100))
    assert out.getvalue().splitlines()[-1] == "writing the report"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bars_fit_the_terminal(width: int) -> None:
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system=None,
        legacy_windows=False,
    )
    progress = RunProgress("planning", Console(file=io.StringIO()))
    for event in _run():
        progress(event)
    console.print(progress.render(console.width))
    lines = out.getvalue().replace("\0", "").splitlines()
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("web")
    assert "19.1 MiB of 28.6 MiB" in lines[0] or width < 80
    assert lines[2].startswith("3 of 4 units")


def _steps() -> Iterator[Event]:
    """Two builds: the tokens of a source, there already, and a mixture."""
    yield BuildStep(1, 2, "tokens of web")
    yield BuildPlanned(
        dataset="pile.web.tokens",
        version=1,
        units=1,
        input_bytes=5 * MB,
        pending=0,
        source_bytes={"web": 5 * MB},
    )
    yield UnitFinished(0, "web", 5 * MB, _record(0, 700, 7), "resumed")
    yield BuildStep(2, 2, "the mixture")
    yield BuildPlanned(
        dataset="pile",
        version=3,
        units=2,
        input_bytes=8 * MB,
        pending=2,
        source_bytes={"*": 8 * MB},
    )
    yield UnitStarted(0, "*", 4 * MB)
    yield UnitProgress(0, "*", 4 * MB, 5, 900)


def test_several_builds_are_told_and_counted_one_after_another() -> None:
    out = io.StringIO()
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        for event in _steps():
            progress(event)
        progress(UnitRetried(0, "*", "worker died", (4 * MB, 5, 900)))
    assert out.getvalue().splitlines() == [
        "planning",
        "step 1 of 2: tokens of web",
        "pile.web.tokens v1: 1 unit, 4.77 MiB; 0 to build, 1 already built",
        "step 2 of 2: the mixture",
        "pile v3: 2 units, 7.63 MiB",
        "unit 0 (all sources) is retried after: worker died",
    ]
    web, pile = progress.tallies
    assert (web.step.what, web.plan.dataset) == ("tokens of web", "pile.web.tokens")
    assert (web.plan.pending, web.tokens) == (0, 700)
    assert (pile.step.number, pile.step.of, pile.total, pile.tokens) == (
        2,
        2,
        8 * MB,
        0,
    )
    assert progress.tally is pile


def test_bars_of_a_mixture_stand_below_its_step() -> None:
    out = io.StringIO()
    console = Console(
        file=out, width=80, force_terminal=True, color_system=None, legacy_windows=False
    )
    progress = RunProgress("planning", Console(file=io.StringIO()))
    for event in _steps():
        progress(event)
    console.print(progress.render(console.width))
    lines = out.getvalue().replace("\0", "").splitlines()
    assert lines[0].rstrip() == "step 2 of 2: the mixture"
    assert lines[1].startswith("all sources")
    assert all(len(line) <= 80 for line in lines)


def test_events_may_come_from_any_thread() -> None:
    progress = RunProgress("planning", Console(file=io.StringIO()))
    progress(next(_run()))

    def report() -> None:
        for _ in range(1_000):
            progress(UnitProgress(0, "web", 1, 1, 2))

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (progress.tally.done, progress.tally.tokens) == (4_000, 8_000)


def _shown(terminal: bool = False, **section: Any) -> list[str]:
    """What a run shows whose configuration has this section."""
    out = io.StringIO()
    with RunProgress(
        "planning", Console(file=out, width=200, force_terminal=terminal)
    ) as progress:
        progress(BuildRequested(ObservabilityConfig(**section)))
        for event in _run():
            progress(event)
    return out.getvalue().splitlines()


MESSAGES = [
    "planning",
    "web v2: 4 units, 38.1 MiB; 3 to build, 1 already built",
    "tokenizer backend gigatoken for gpt2: equal to the reference",
    "unit 2 (code) is retried after: worker died",
]


def test_the_level_decides_which_messages_are_shown() -> None:
    assert _shown() == MESSAGES
    assert _shown(log_level="WARNING") == MESSAGES[3:]
    assert _shown(log_level="ERROR") == []
    told = _shown(log_level="DEBUG")
    assert [line for line in told if line not in MESSAGES] == [
        "unit 0 (web) is resumed: 10 documents, 1.00 k tokens",
        "unit 1 (web) is built: 8 documents, 800 tokens in 1.0 s",
        "unit 2 (code) is built: 5 documents, 500 tokens in 1.0 s",
    ]


def test_lines_of_progress_come_after_so_many_units() -> None:
    told = [line for line in _shown(log_interval=2) if line not in MESSAGES]
    assert len(told) == 1
    assert told[0].startswith("2 of 4 units  1.80 k tokens")
    assert len(_shown(log_interval=1)) == len(MESSAGES) + 3


@pytest.mark.parametrize(
    "off", [{"progress_type": "none"}, {"progress_enabled": False}]
)
def test_without_progress_only_messages_are_shown(off: dict[str, Any]) -> None:
    told = "\n".join(_shown(terminal=True, log_interval=1, **off))
    # What a terminal shows until the configuration is known.
    wiped = told.rindex("\x1b[2K") + len("\x1b[2K")
    assert told[wiped:].splitlines() == MESSAGES


@promise(263)
def test_json_is_an_object_a_line_from_the_first_one_on() -> None:
    told = [json.loads(line) for line in _shown(progress_type="json", log_interval=2)]
    assert [line["message"] for line in told if "message" in line] == MESSAGES
    assert {line.get("level") for line in told} == {"INFO", "WARNING", None}
    (progress,) = (line["progress"] for line in told if "progress" in line)
    assert (progress["dataset"], progress["finished"], progress["bytes"]) == (
        "web",
        2,
        20 * MB,
    )


@promise(263)
def test_tqdm_has_a_bar_for_each_build() -> None:
    out = io.StringIO()
    with RunProgress("planning", Console(file=out, width=200)) as progress:
        progress(BuildRequested(ObservabilityConfig(progress_type="tqdm")))
        for event in [*_steps(), *_run()]:
            progress(event)
    assert "pile.web.tokens v1: 100%" in out.getvalue()
    assert "pile v3:  50%" in out.getvalue()
    assert "unit 2 (code) is retried after: worker died" in out.getvalue()


def test_a_counter_is_quiet_at_first() -> None:
    counter = Counter("verifying")
    counter.add(5)
    assert counter.line() == ""
    counter._began -= 1
    assert counter.line().startswith("verifying: 5 B, ")
    counter.set(6, 10)
    assert counter.line().startswith("verifying: 6 B of 10 B, ")
