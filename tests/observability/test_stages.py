"""Where the time of a run goes."""

from __future__ import annotations

from pathlib import Path

from tests.observability.test_build import _record
from tokenlake.etl import Event, UnitFinished, build_dataset
from tokenlake.etl.observability import time_tables


def test_a_unit_says_what_each_stage_took(tmp_path: Path, tokenizer_dir: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "some words of a document"}\n' * 20_000)
    source = {
        "data_files": str(tmp_path / "a.jsonl"),
        "tokenizer": str(tokenizer_dir),
        "name": "web",
    }
    config = {
        "name": "web",
        "datasets": [source],
        "save": {"output_dir": str(tmp_path / "store")},
    }
    events: list[Event] = []
    build_dataset(config, workers=1, on_event=events.append)
    (unit,) = (event for event in events if isinstance(event, UnitFinished))
    assert set(unit.step_seconds) == {"load", "tokenize", "pack", "save"}
    assert 0 < sum(unit.step_seconds.values()) <= unit.seconds


def test_tables_show_sources_and_the_slowest_units() -> None:
    built = [
        UnitFinished(
            unit,
            source,
            10,
            _record(unit),
            "built",
            seconds,
            (0, 0, 0),
            {"load": seconds, "save": 0.5},
        )
        for unit, (source, seconds) in enumerate(
            [("web", 1.0), ("code", 3.0), ("web", 2.0)]
        )
    ]
    sources, units = time_tables(built)
    assert sources.cells() == [
        ["web", "2", "3.0 s", "3.0 s", "1.0 s"],
        ["code", "1", "3.0 s", "3.0 s", "0.5 s"],
    ]
    assert [row[0] for row in units.cells()] == ["00001", "00002", "00000"]
    assert time_tables([]) == []
