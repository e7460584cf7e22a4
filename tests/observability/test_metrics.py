"""Figures of builds, pipelines and loaders, as Prometheus and OpenTelemetry read
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import opentelemetry.metrics
import pytest
from opentelemetry.metrics import CallbackOptions, NoOpMeter
from prometheus_client.parser import text_string_to_metric_families

import tokenlake as tl
from tests.loader.support import plain
from tests.seeds import promise
from tokenlake import Metric, MetricsExport


def figures() -> Iterator[Metric]:
    yield Metric("tests_rows", "counter", "Rows.", 3, {"source": 'a "b"\n'})
    yield Metric("tests_rows", "counter", "Rows.", 4, {"source": "c"})
    yield Metric("tests_left", "gauge", "Left.", 1.5)


def read(path: Path) -> dict[tuple[str, str], float]:
    """Return (name, labels) -> value, as Prometheus' own parser reads a file."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_a_file_is_read_by_prometheus(tmp_path: Path) -> None:
    path = tmp_path / "a.prom"
    with MetricsExport(figures, file=path):
        assert read(path)[("tests_left", "")] == 1.5
    assert read(path) == {
        ("tests_rows_total", 'a "b"\n'): 3,
        ("tests_rows_total", "c"): 4,
        ("tests_left", ""): 1.5,
    }


def test_the_file_is_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    path, value = tmp_path / "a.prom", [1.0]
    with MetricsExport(
        lambda: [Metric("tests_now", "gauge", "Now.", value[0])],
        file=path,
        interval=0.01,
    ):
        value[0] = 2.0
        until = time.monotonic() + 120
        while read(path)[("tests_now", "")] != 2.0 and time.monotonic() < until:
            time.sleep(0.01)
        assert read(path)[("tests_now", "")] == 2.0
        value[0] = 3.0
    assert read(path)[("tests_now", "")] == 3.0


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(tl.TokenlakeError, match="neither file nor opentelemetry"):
        MetricsExport(figures)
    with pytest.raises(tl.TokenlakeError, match="interval: got 0"):
        MetricsExport(figures, file=tmp_path / "a", interval=0)
    with (
        pytest.raises(FileNotFoundError),
        MetricsExport(figures, file=tmp_path / "none" / "a.prom"),
    ):
        pytest.fail("the path is wrong")


class Reader(NoOpMeter):
    """A meter that asks its instruments when it is told to, as an SDK's reader does."""

    def __init__(self) -> None:
        super().__init__("tests")
        self.asked: dict[str, Sequence[Callable[[CallbackOptions], Any]]] = {}

    def create_observable_counter(
        self, name: str, callbacks: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        self.asked[name] = callbacks

    create_observable_gauge = create_observable_counter

    def collect(self) -> dict[str, list[tuple[float, dict[str, str]]]]:
        return {
            name: [
                (seen.value, dict(seen.attributes or {}))
                for ask in asks
                for seen in ask(CallbackOptions())
            ]
            for name, asks in self.asked.items()
        }


def test_opentelemetry_asks_all_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Reader()
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", lambda name: meter)
    with MetricsExport(figures, opentelemetry=True, labels={"loader": "train"}):
        with MetricsExport(figures, opentelemetry=True, labels={"loader": "held out"}):
            found = meter.collect()
            assert found["tests_left"] == [
                (1.5, {"loader": "train"}),
                (1.5, {"loader": "held out"}),
            ]
        assert len(meter.collect()["tests_rows"]) == 2
    assert meter.collect() == {"tests_rows": [], "tests_left": []}


def rows(tmp_path: Path, count: int) -> str:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(f'{{"text": "row {number} of a few"}}\n' for number in range(count))
    )
    return str(path)


@promise(264)
def test_a_pipeline_shows_and_exports_what_it_gave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.prom"
    config = {
        "datasets": [{"data_files": rows(tmp_path, 50)}],
        "load": {"batch_size": 10},
        "observability": {"metrics_file": str(path), "log_interval": 2},
    }
    assert len(list(tl.Pipeline.from_config(config).source().load().build())) == 5
    assert read(path)[("tokenlake_pipeline_batches_total", "")] == 5
    assert read(path)[("tokenlake_pipeline_rows_total", "")] == 50
    told = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[:2] for line in told] == [
        ["2 batches", "20 rows"],
        ["4 batches", "40 rows"],
        ["5 batches", "50 rows"],
    ]
    quiet = {
        **config,
        "observability": {"log_level": "ERROR", "progress_enabled": False},
    }
    assert len(list(tl.Pipeline.from_config(quiet).source().load().build())) == 5
    unasked = {name: value for name, value in config.items() if name != "observability"}
    assert len(list(tl.Pipeline.from_config(unasked).source().build())) == 50
    assert capsys.readouterr().err == ""


def test_a_loader_says_what_it_did(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    ds = plain(tmp_path_factory)
    loader, path = tl.DataLoader(ds, batch_size=4, seed=0), tmp_path / "loader.prom"
    assert loader.metrics().batches == 0
    with MetricsExport(loader.metrics, file=path, labels={"loader": "train"}):
        for _ in range(2):
            assert sum(len(batch["input_ids"]) for batch in loader) == len(ds)
    done = loader.metrics()
    assert (done.batches, done.rows) == (2 * -(-len(ds) // 4), 2 * len(ds))
    assert done.decoded_rows >= 2 * len(ds)  # each pass decodes anew
    assert done.groups > 0
    assert done.group_hits > 0
    assert done.wait_seconds > 0
    assert done.decode_seconds > 0
    written = read(path)
    assert written[("tokenlake_loader_rows_total", "train")] == 2 * len(ds)
    assert written[("tokenlake_loader_group_hits_total", "train")] == done.group_hits
