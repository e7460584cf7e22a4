"""Callbacks that write the measurements of a run.

They write progress lines, JSON lines, and TensorBoard events.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from tokenlake.errors import MissingExtraError
from tokenlake.runtime.trainer.callbacks import Callback, Results, TrainingRun
from tokenlake.runtime.trainer.measurements import TrainingMetrics, finite


@final
class ProgressCallback(Callback):
    """Writes a line to stderr for each measurement and each evaluation.

    Another line tells that a run resumes.
    """

    def on_train_begin(self, run: TrainingRun) -> None:
        if run.step:
            self._say(f"step {run.step}/{run.steps}  resumes here")

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        # Metrics do not know how many steps the run has.
        step = f"step {metrics.step}"
        self._say(str(metrics).replace(step, f"{step}/{run.steps}", 1))

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            metrics = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self._say(f"step {run.step}/{run.steps}  {tag}: {metrics}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 (its purpose)


@final
class JsonlLog(Callback):
    """Appends a JSON object for each measurement and each evaluation to a file.

    A run that resumes from a checkpoint first deletes the lines of later steps, which
    an earlier process wrote: each step has its lines once.

    Args:
        path: Path of the file; its folders are created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def on_train_begin(self, run: TrainingRun) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A killed process may leave an unfinished line, which is of a later step too.
        earlier_lines = [
            line
            for line in lines
            if line.endswith("\n") and json.loads(line)["step"] <= run.step
        ]
        if len(earlier_lines) < len(lines):
            # The file is replaced as a whole: a killed process leaves the old one.
            unfinished = self._path.with_name(f".{self._path.name}.unfinished")
            unfinished.write_text("".join(earlier_lines), encoding="utf-8")
            unfinished.replace(self._path)

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        self._append(metrics.to_json())

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            self._append({"step": run.step, "evaluation": tag, **finite(values)})

    def _append(self, facts: Mapping[str, Any]) -> None:
        # Closed after each line, so that a process that is killed loses none.
        with self._path.open("a", encoding="utf-8") as log_file:
            log_file.write(json.dumps(facts) + "\n")


@final
class TensorBoardLog(Callback):
    """Writes event files for TensorBoard, with tensorboardX.

    Args:
        folder: Folder of the event files; it is created.

    Raises:
        MissingExtraError: The package tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError(
                "log.tensorboard needs tensorboardX, which is not installed: pip install tensorboardX (log.jsonl needs "
                "nothing)"
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def on_log(self, run: TrainingRun, metrics: TrainingMetrics) -> None:
        # The step is the position on the axis, and no value of its own.
        self._write("train", metrics.step, {**metrics.to_json(), "step": None})

    def on_evaluate(self, run: TrainingRun, results: Results) -> None:
        for tag, values in results.items():
            self._write(tag, run.step, values)

    def on_train_end(self, run: TrainingRun) -> None:
        self._writer.close()

    def _write(self, group: str, step: int, values: Mapping[str, float | None]) -> None:
        for metric_name, metric_value in values.items():
            if metric_value is not None:
                self._writer.add_scalar(f"{group}/{metric_name}", metric_value, step)
        self._writer.flush()
