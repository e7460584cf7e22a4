"""Check that equal inputs give equal bytes.

The version of a build with one worker is compared with those of builds with two
workers, through Prefect, and after kill -9 and a rerun.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.measure import Measurement, measure
from benchmarks.vocabularies import Vocabulary

UNIT_SIZE: Final = "4MiB"
"""Size of a unit. It is small, so that a modest input has many units."""

MakeCommand = Callable[[Path, int], list[str]]
"""(configuration, number of workers) -> command of a build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Build compared with the reference version.

    Attributes:
        what: Description for the report.
        files: Number of files of the reference version.
        killed_after: Seconds until the build was killed; None if it was not.
        finished: Number of units that had a ledger record when the build was killed.
        redone: Files of finished units that were written again.
        different: Files with other bytes than the reference.
    """

    what: str
    files: int
    killed_after: float | None = None
    finished: int = 0
    redone: Sequence[str] = ()
    different: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether no file differs and none was written again."""
        return not self.redone and not self.different


class Determinism:
    """Comparison of builds with a reference, which the library builds with one worker.

    Args:
        work: Work folder of the benchmark.
        source: Input of the builds.
        vocabulary: Tokenizer of the builds.
    """

    def __init__(self, work: Path, source: Input, vocabulary: Vocabulary) -> None:
        self._work = work
        self._source = source
        self._vocabulary = vocabulary
        store, _ = self._build("reference", builds.library_command, 1)
        self._reference = builds.tree_digests(store)

    def workers(self) -> list[Trial]:
        """Compare builds with two workers, by the library and through Prefect."""
        commands: dict[str, MakeCommand] = {
            "library, 2 workers": builds.library_command,
            "tokenlake run, 2 workers": builds.flow_command,
        }
        trials: list[Trial] = []
        for description, make_command in commands.items():
            store, _ = self._build("compared", make_command, 2)
            trials.append(self._compare(description, store))
        return trials

    def kill(self, times: int, seed: int) -> list[Trial]:
        """Kill builds with two workers at random moments, and run them again.

        Builds by the library and through Prefect alternate.

        Args:
            times: Number of builds to kill.
            seed: Random seed of the moments.
        """
        commands: dict[str, MakeCommand] = {
            "library": builds.library_command,
            "tokenlake run": builds.flow_command,
        }
        runners = [list(commands)[number % 2] for number in range(times)]
        # Wall seconds of a complete build bound the moments.
        wall_seconds: dict[str, float] = {}
        for runner in dict.fromkeys(runners):
            _, run = self._build("compared", commands[runner], 2)
            wall_seconds[runner] = run.wall
        generator = random.Random(seed)
        trials: list[Trial] = []
        for runner in runners:
            moment = generator.uniform(0.2, wall_seconds[runner])
            trials.append(self._kill_once(runner, commands[runner], moment))
        return trials

    def _kill_once(self, name: str, make_command: MakeCommand, moment: float) -> Trial:
        """Kill a build after `moment` seconds, run it again, and compare the result."""
        store, run = self._build("compared", make_command, 2, kill_after=moment)
        while not run.killed:  # this build ended earlier than the measured one
            moment *= 0.8
            store, run = self._build("compared", make_command, 2, kill_after=moment)
        # Resume the build: files of finished units must keep their stamps.
        before = stamps(store)
        self._build("compared", make_command, 2, is_new=False)
        after = stamps(store)
        redone: list[str] = []
        finished_units = 0
        for path, stamp in before.items():
            if after.get(path) != stamp:
                redone.append(path)
            if path.startswith("ledger/"):
                finished_units += 1
        trial = self._compare(
            f"{name}, 2 workers, killed after {moment:.2f} s, run again", store
        )
        return replace(
            trial, killed_after=moment, finished=finished_units, redone=redone
        )

    def _compare(self, description: str, store: Path) -> Trial:
        """Compare the version of a store with the reference."""
        return Trial(
            what=description,
            files=len(self._reference),
            different=differences(self._reference, builds.tree_digests(store)),
        )

    def _build(
        self,
        name: str,
        make_command: MakeCommand,
        workers: int,
        *,
        kill_after: float | None = None,
        is_new: bool = True,
    ) -> tuple[Path, Measurement]:
        """Build below the folder ``scratch/NAME``.

        Args:
            name: Name of the folder.
            make_command: Function that returns the command of the build.
            workers: Number of workers.
            kill_after: Seconds until the build is killed; None: it is not.
            is_new: False to resume the build in an existing folder.

        Returns:
            Folder of the store, and measurement of the build.

        Raises:
            RuntimeError: The build failed.
        """
        # 1. An empty folder, unless an interrupted build is resumed.
        output = self._work / "scratch" / name
        if is_new:
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
        store = output / "store"
        config = builds.write_config(
            output / "bench.yaml", self._source, self._vocabulary, store, UNIT_SIZE
        )
        log_path = self._work / "logs" / "determinism.log"
        log_path.parent.mkdir(exist_ok=True)
        # 2. The build, with a cache of hashes in the same folder.
        run = measure(
            make_command(config, workers),
            report=output / "measured.json",
            log=log_path,
            env=builds.environment(self._work, output / "hash-cache"),
            kill_after=kill_after,
        )
        if run.exit_code != 0 and not run.killed:
            raise RuntimeError(
                f"the build ended with exit code {run.exit_code}; its output is in {log_path}"
            )
        return store, run


def differences(expected: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """Return the files that are missing, unexpected or of other bytes.

    Args:
        expected: Name of each file of the reference -> hash.
        got: Name of each file of the compared version -> hash.
    """
    differing: list[str] = []
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            differing.append(name)
    return differing


def stamps(store: Path) -> dict[str, tuple[int, int]]:
    """Return the (inode, modification time) of the files of finished units.

    These are the ledger records, and the data files of their units. A file that was
    written again has another stamp.
    """
    root = builds.version_folder(store)
    paths = sorted(root.glob("ledger/*.json"))
    finished_units = {record.stem for record in paths}
    for path in root.glob("data/*.parquet"):
        unit = path.stem.split("-")[-2]  # of SPLIT-UNIT-PART
        if unit in finished_units:
            paths.append(path)
    file_stamps: dict[str, tuple[int, int]] = {}
    for path in paths:
        status = path.stat()
        name = path.relative_to(root).as_posix()
        file_stamps[name] = (status.st_ino, status.st_mtime_ns)
    return file_stamps
