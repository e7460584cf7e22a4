"""Plans of thousands of files: nothing in them grows with the square of their
number.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from benchmarks.planning import make_tree
from tokenlake import load_config
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError
from tokenlake.etl import BuildSession, Event, UnitJob, make_plan
from tokenlake.etl.events import Listed, Planning
from tokenlake.etl.job import job_of, to_line
from tokenlake.etl.plan import Plan
from tokenlake.runtime.store import Layout

MANY = 1000


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("trees")
    return {count: make_tree(root / str(count), count) for count in (MANY // 5, MANY)}


@pytest.fixture
def planned(
    trees: dict[int, Path],
    tokenizer_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Plan]:
    monkeypatch.setenv("TOKENLAKE_CACHE", str(tmp_path / "cache"))

    def plan(
        count: int,
        on_event: Callable[[Event], None] = lambda event: None,
        **options: Any,
    ) -> Plan:
        dataset = {
            "name": "s",
            "data_files": str(trees[count]),
            "tokenizer": str(tokenizer_dir),
        } | options
        config = {
            "name": "scale",
            "datasets": [dataset],
            "source": {
                "on_bad_record": "quarantine",
                "max_bad_fraction": 1.0,
                "unit_size": "1MiB",
            },
            "pack": {"enabled": True},
            "save": {"output_dir": str(tmp_path / "store")},
        }
        return make_plan(resolve(load_config(config)), on_event=on_event)

    return plan


def _calls(work: Callable[[], object]) -> Counter[str]:
    """Count the calls of functions of ours while `work` runs in this thread: no
    clock is asked.
    """
    calls: Counter[str] = Counter()

    def profile(frame: Any, event: str, argument: object) -> None:
        if event == "call":
            code: CodeType = frame.f_code
            if "tokenlake" in code.co_filename:
                calls[code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_five_times_the_files_are_five_times_the_work(
    planned: Callable[..., Plan],
) -> None:
    few, many = (
        _calls(lambda count=count: planned(count)) for count in (MANY // 5, MANY)
    )
    assert few.total() > MANY // 5
    assert many.total() < 7 * few.total()
    assert not [name for name, count in many.items() if count > 10 * MANY]
    assert many["most_in_range"] == MANY


def test_a_unit_of_thousands_of_files_is_a_job(
    planned: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = planned(MANY)
    assert 1 <= len(plan.units) < 30
    session = BuildSession.open({}, plan=plan)
    largest = max(plan.units, key=lambda unit: len(unit.ranges))
    assert len(largest.ranges) > 100
    job = plan.job(
        largest, plan.store, Layout(session.dataset, session.version), "tokenizers"
    )
    assert isinstance(job, UnitJob)
    # half of the files of three rows; half of 201 bytes, at most a record in two bytes
    assert job.bad_budget == MANY // 2 * 104
    sent = to_line(job)
    assert len(sent) < 1000 * len(largest.ranges) + 10_000
    back = job_of(sent)
    assert isinstance(back, UnitJob)
    assert [part.file for part in back.ranges] == [part.file for part in largest.ranges]


def test_progress_is_told_from_every_step(planned: Callable[..., Plan]) -> None:
    events: list[Event] = []
    planned(MANY, events.append)
    told = [event for event in events if isinstance(event, Planning)]
    last = {event.step: event for event in told}
    assert (last["hashing"].files, last["hashing"].all_files) == (MANY, MANY)
    assert last["hashing"].bytes == last["hashing"].all_bytes > 0
    assert (last["splitting"].files, last["splitting"].all_files) == (
        MANY // 2,
        MANY // 2,
    )
    assert last["listing"].files > 0
    assert [type(event) for event in events if not isinstance(event, Planning)] == [
        Listed
    ]
    planned(MANY, events.append, num_rows=1000)
    counted = [
        event
        for event in events
        if isinstance(event, Planning) and event.step == "counting"
    ]
    assert 0 < counted[-1].files <= 1000


def test_every_file_is_hashed_once_and_each_footer_read_once(
    planned: Callable[..., Plan],
    trees: dict[int, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: Counter[str] = Counter()
    root = str(trees[MANY // 5])

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and str(arguments[0]).startswith(root):
            opened[str(arguments[0])] += 1

    watching = True
    sys.addaudithook(watch)  # cannot be taken away again, hence the switch
    try:
        for path in Path(root).rglob("*.*"):
            os.utime(path, ns=(1, 1))
        planned(MANY // 5)
    finally:
        watching = False
    files = {path: count for path, count in opened.items() if "complete" not in path}
    assert len([path for path in files if path.endswith(".jsonl")]) == MANY // 10
    assert {count for path, count in files.items() if path.endswith(".jsonl")} == {1}
    # Arrow's own opening of a Parquet file is not seen from here; the first file is
    # looked into twice, for its columns
    assert Counter(
        count for path, count in files.items() if path.endswith(".parquet")
    ) == {
        2: MANY // 10 - 1,
        4: 1,
    }


def test_a_wrong_where_is_an_error_before_any_work(
    planned: Callable[..., Plan],
) -> None:
    events: list[Event] = []
    with pytest.raises(
        ConfigError, match=r"^datasets\.s\.where: 'length\(text' cannot be used"
    ):
        planned(MANY, events.append, where="length(text")
    assert not events
