"""The same input gives the same bytes: with 1 and 2 workers, through Prefect, after
kill -9 and a rerun.
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

UNIT_SIZE: Final = "4MiB"  # small, so that a modest input has many units
MakeCommand = Callable[[Path, int], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One build compared with the reference tree.

    `finished` is how many units had their ledger record when the build was killed;
    `redone` and `different` name what should not be: finished units whose files were
    written again, and files of other bytes.
    """

    what: str
    files: int
    killed_after: float | None = None
    finished: int = 0
    redone: Sequence[str] = ()
    different: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing differs and nothing was redone."""
        return not self.redone and not self.different


class Determinism:
    """Builds the reference (library, one worker) once, then compares other builds
    with it.
    """

    def __init__(self, work: Path, source: Input, vocabulary: Vocabulary) -> None:
        self._work, self._source, self._vocabulary = work, source, vocabulary
        store, _ = self._build("reference", builds.library_command, 1)
        self._reference = builds.tree_digests(store)

    def workers(self) -> list[Trial]:
        """Two workers, and two workers through Prefect."""
        makes = {
            "library, 2 workers": builds.library_command,
            "tokenlake run, 2 workers": builds.flow_command,
        }
        return [
            self._compare(what, self._build("compared", make, 2)[0])
            for what, make in makes.items()
        ]

    def kill(self, times: int, seed: int) -> list[Trial]:
        """Kills two-worker builds at random moments and runs them again; library and
        Prefect in turn.
        """
        moments = random.Random(seed)
        makes = {
            "library": builds.library_command,
            "tokenlake run": builds.flow_command,
        }
        names = [("library", "tokenlake run")[number % 2] for number in range(times)]
        walls = {
            name: self._build("compared", makes[name], 2)[1].wall
            for name in dict.fromkeys(names)
        }
        return [
            self._kill_once(name, makes[name], moments.uniform(0.2, walls[name]))
            for name in names
        ]

    def _kill_once(self, name: str, make: MakeCommand, moment: float) -> Trial:
        store, run = self._build("compared", make, 2, kill_after=moment)
        while not run.killed:  # it was faster this time
            moment *= 0.8
            store, run = self._build("compared", make, 2, kill_after=moment)
        before = stamps(store)
        self._build("compared", make, 2, fresh=False)
        after = stamps(store)
        redone = [key for key, stamp in before.items() if after.get(key) != stamp]
        finished = sum(key.startswith("ledger/") for key in before)
        trial = self._compare(
            f"{name}, 2 workers, killed after {moment:.2f} s, run again", store
        )
        return replace(trial, killed_after=moment, finished=finished, redone=redone)

    def _compare(self, what: str, store: Path) -> Trial:
        return Trial(
            what=what,
            files=len(self._reference),
            different=differences(self._reference, builds.tree_digests(store)),
        )

    def _build(
        self,
        name: str,
        make: MakeCommand,
        workers: int,
        *,
        kill_after: float | None = None,
        fresh: bool = True,
    ) -> tuple[Path, Measurement]:
        """Builds into scratch/NAME; unless killed on purpose, a failure raises
        RuntimeError.
        """
        output = self._work / "scratch" / name
        if fresh:
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
        store = output / "store"
        config = builds.write_config(
            output / "bench.yaml", self._source, self._vocabulary, store, UNIT_SIZE
        )
        log = self._work / "logs" / "determinism.log"
        log.parent.mkdir(exist_ok=True)
        env = builds.environment(self._work, output / "hash-cache")
        run = measure(
            make(config, workers),
            report=output / "measured.json",
            log=log,
            env=env,
            kill_after=kill_after,
        )
        if run.exit_code != 0 and not run.killed:
            raise RuntimeError(
                f"the build ended with exit code {run.exit_code}; its output is in {log}"
            )
        return store, run


def differences(expected: Mapping[str, str], got: Mapping[str, str]) -> list[str]:
    """Names of files that are missing, unexpected or of other bytes."""
    return sorted(
        name
        for name in expected.keys() | got.keys()
        if expected.get(name) != got.get(name)
    )


def stamps(store: Path) -> dict[str, tuple[int, int]]:
    """(inode, modification time) of every ledger record and of its unit's data
    files, by relative path.
    """
    root = builds.version_folder(store)
    records = sorted(root.glob("ledger/*.json"))
    units = {record.stem for record in records}
    parts = [
        path
        for path in root.glob("data/*.parquet")
        if path.stem.split("-")[-2] in units
    ]
    kept = {
        path.relative_to(root).as_posix(): path.stat() for path in [*records, *parts]
    }
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in kept.items()}
