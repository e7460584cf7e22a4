"""Faults of the network and of the storage at every request of a build into a bucket,
and death at some.

One fault a run, enumerated: a request of the undisturbed build, and what goes wrong
with it. The build succeeds by trying again, or ends with an error that says so; then it
is run again. What is visible at any time is whole, what is finished stays, and the end
is, byte for byte, what the undisturbed build made.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from moto.s3 import models

from tests.etl.remote_builds_support import (
    SOURCES,
    Bench,
    Bucket,
    Files,
    bucket,
    build,
    settings,
    stored,
    write_inputs,
)
from tests.faults.conftest import Cases
from tests.servers.base import Fault, Request
from tests.servers.s3 import KEY, SECRET
from tokenlake import verify
from tokenlake.errors import TokenlakeError
from tokenlake.runtime.store import open_store, payload

_READS: Final = ("get", "head", "list", "stat")
_MOST_OF_ONE_OPERATION: Final = 9

_S3_WRITES: Final = {
    "slow down": {"status": 503, "code": "SlowDown"},
    "drop before": {"drop": True},
    "commit then drop": {"drop": True, "commits": True},
    "commit then 500": {"status": 500, "code": "InternalError", "commits": True},
    "flipped body": {"flip": True},
    "short clean body": {"short": True},
    "delay": {"wait": 0.3},
}
_S3_READS: Final = {
    "slow down": {"status": 503, "code": "SlowDown"},
    "drop before": {"drop": True},
    "flipped body": {"flip": True},
    "truncated body": {"after": 20},
    "short clean body": {"short": True},
    "delay": {"wait": 0.3},
}
_GCS_WRITES: Final = {
    "drop": {"drop": True},
    "commit then drop": {"drop": True, "commits": True},
    "503": {"status": 503},
    "flip": {"flip": True},
}
_GCS_READS: Final = {
    "drop": {"drop": True},
    "503": {"status": 503},
    "flip": {"flip": True},
}


def s3_operation(request: Request) -> str:
    """What a request to S3 is, in a word or two."""
    query = request.path.partition("?")[2]
    if request.method in ("GET", "HEAD"):
        return "list" if "list-type" in query else request.method.lower()
    if request.method == "POST":
        return "complete upload" if "uploadId" in query else "create upload"
    if "uploadId" in query:
        part = "copy part" if "x-amz-copy-source" in request.headers else "part"
        return "abort upload" if request.method == "DELETE" else part
    return request.method.lower()


def gcs_operation(request: Request) -> str:
    """What a request to Google Cloud Storage is."""
    path, _, query = request.path.partition("?")
    if request.method == "GET":
        return "get" if "alt=media" in query else "stat" if "/o/" in path else "list"
    return (
        "delete"
        if request.method == "DELETE"
        else "rewrite"
        if "rewriteTo" in path
        else "upload"
    )


@dataclass(frozen=True)
class Case:
    """One fault at one request.

    Attributes:
        start: what is in the store already, see :class:`Ground`.
        operation, nth: the request.
        name, fault: what goes wrong.
    """

    start: str
    operation: str
    nth: int
    name: str
    fault: Mapping[str, Any] = field(repr=False)


class Nth:
    """Applies to one request: the n-th of an operation, counted from 0."""

    def __init__(
        self, operation: Callable[[Request], str], wanted: str, nth: int
    ) -> None:
        self._operation, self._wanted, self._left = operation, wanted, nth

    def __call__(self, request: Request) -> bool:
        if self._operation(request) != self._wanted:
            return False
        self._left -= 1
        return self._left < 0


@dataclass
class Ground:
    """A bucket, and what builds in it begin and end with.

    Attributes:
        starts: ``fresh``, an empty store; ``resumed``, where two of three units are
            finished; ``reused``, where a version has two of three units: the files of
            each.
        ends: what an undisturbed build makes of each.
        requests: how many requests of each operation that takes.
    """

    lake: Bucket
    operation: Callable[[Request], str]
    inputs: Path
    tokenizer: Path
    starts: dict[str, Files] = field(default_factory=dict)
    ends: dict[str, Files] = field(default_factory=dict)
    requests: dict[str, Counter[str]] = field(default_factory=dict)
    number: int = 0

    def config(self, prefix: str, sources: tuple[str, ...] = SOURCES) -> dict[str, Any]:
        return settings(self.inputs, self.tokenizer, self.lake.address(prefix), sources)

    def survey(self) -> None:
        """Build undisturbed from each start, once."""
        if self.starts:
            return
        with pytest.raises(KeyboardInterrupt):
            build(self.config("half"), bench=Bench(interrupted_at=2))
        build(self.config("older", SOURCES[:2]))
        self.starts = {
            "fresh": {},
            "resumed": stored(self.lake, "half"),
            "reused": stored(self.lake, "older"),
        }
        for start in self.starts:
            prefix = self.prefix(start)
            self.lake.server.log.clear()
            build(self.config(prefix))
            self.requests[start] = Counter(map(self.operation, self.lake.server.log))
            self.ends[start] = stored(self.lake, prefix)
            version = 2 if start == "reused" else 1
            assert verify(
                open_store(self.lake.address(prefix)), "small", version, deep=True
            ).ok
        assert self.ends["fresh"] == self.ends["resumed"]

    def prefix(self, start: str) -> str:
        """A new store with what a start has."""
        self.number += 1
        prefix = f"case-{self.number}"
        self.lake.put(prefix, self.starts[start])
        return prefix

    def cases(
        self,
        writes: Mapping[str, Any],
        reads: Mapping[str, Any],
        starts: tuple[str, ...],
    ) -> list[Case]:
        return [
            Case(start, operation, nth, name, fault)
            for start in starts
            for operation, count in sorted(self.requests[start].items())
            for nth in _spread(count)
            for name, fault in (reads if operation in _READS else writes).items()
        ]


def _spread(count: int) -> list[int]:
    """All of so many, or some evenly spread ones."""
    if count <= _MOST_OF_ONE_OPERATION:
        return list(range(count))
    return sorted(
        {
            index * count // _MOST_OF_ONE_OPERATION
            for index in range(_MOST_OF_ONE_OPERATION)
        }
    )


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "3")
    # Shards are sent and copied in parts, the small files around them at once.
    monkeypatch.setattr(payload, "LARGE", 1000)
    monkeypatch.setattr(payload, "PIECE", 1000)
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def _ground(
    scheme: str, operation: Callable[[Request], str], tokenizer: Path, inputs: Path
) -> Iterator[Ground]:
    write_inputs(inputs)
    with bucket(scheme) as lake:
        yield Ground(lake, operation, inputs, tokenizer)


@pytest.fixture(scope="module")
def s3(
    tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    yield from _ground(
        "s3", s3_operation, tokenizer_dir, tmp_path_factory.mktemp("inputs")
    )


@pytest.fixture(scope="module")
def gcs(
    tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    yield from _ground(
        "gs", gcs_operation, tokenizer_dir, tmp_path_factory.mktemp("inputs")
    )


@dataclass
class Watched:
    """What happens to a store in one case, from attempt to attempt."""

    ground: Ground
    prefix: str
    start: str
    redone: int = 0
    problems: list[str] = field(default_factory=list)

    def attempt(self) -> TokenlakeError | None:
        """Build; return the error that it ends with."""
        before = self.finished()
        how: dict[int, str] = {}
        error: TokenlakeError | None = None
        try:
            how = build(self.ground.config(self.prefix))
        except TokenlakeError as caught:
            error = caught
        except Exception as caught:
            self.problems.append(f"not a clean error: {caught!r}")
        again = {unit for unit in before if how.get(unit, "resumed") != "resumed"}
        lost = before - self.finished()
        self.redone += len(again | lost)
        self.look()
        return error

    def finished(self) -> set[int]:
        """Units with a ledger record in the version that is being built."""
        version = "v2" if self.start == "reused" else "v1"
        mark = f"small/{version}/ledger/"
        return {
            int(key.removeprefix(mark)[:5])
            for key in stored(self.ground.lake, self.prefix)
            if key.startswith(mark)
        }

    def look(self) -> None:
        """What is visible must be whole."""
        files = stored(self.ground.lake, self.prefix)
        expected = self.ground.ends[self.start]
        for key in [key for key in files if key.endswith("/manifest.json")]:
            version = key.removesuffix("manifest.json")
            if {k: v for k, v in files.items() if k.startswith(version)} == {
                k: v for k, v in expected.items() if k.startswith(version)
            }:
                continue  # the undisturbed one was verified
            number = int(version.rstrip("/").rpartition("/v")[2])
            report = verify(
                open_store(self.ground.lake.address(self.prefix)),
                "small",
                number,
                deep=True,
            )
            if not report.ok:
                self.problems.append(f"visible and damaged: {report.problems[:2]}")

    def end(self) -> None:
        """Run again until it is done, undisturbed."""
        error = self.attempt()
        if error is not None:
            self.problems.append(f"cannot be resumed: {error}")
        found, expected = (
            stored(self.ground.lake, self.prefix),
            self.ground.ends[self.start],
        )
        if found != expected:
            names = sorted(found.keys() ^ expected.keys()) or [
                key for key in found if found[key] != expected[key]
            ]
            self.problems.append(f"another tree: {names[:4]}")
        if self.redone:
            self.problems.append(f"{self.redone} finished units were built again")


def run(ground: Ground, case: Case, cases: Cases, kind: str) -> None:
    watched = Watched(ground, ground.prefix(case.start), case.start)
    faults = ground.lake.server.faults
    faults.append(
        Fault(**case.fault, applies=Nth(ground.operation, case.operation, case.nth))
    )
    error = watched.attempt()
    if faults:
        watched.problems.append("the request never came")
        faults.clear()
    if error is not None and "\n" in str(error).strip():
        watched.problems.append(f"more than a sentence: {error}")
    watched.end()
    silent = sum(
        "visible and damaged" in problem or "another tree" in problem
        for problem in watched.problems
    )
    cases.add(
        kind,
        survived=not watched.problems,
        redone=watched.redone,
        silent=silent,
        note=f"{case}: first {error or 'well'}; {'; '.join(watched.problems)}",
    )


def test_faults_of_s3(s3: Ground, cases: Cases) -> None:
    s3.survey()
    everything = s3.cases(_S3_WRITES, _S3_READS, ("fresh", "resumed", "reused"))
    for case in cases.choose(everything, sample=24):
        run(s3, case, cases, f"s3: {case.name}")


def test_faults_of_gcs(gcs: Ground, cases: Cases) -> None:
    gcs.survey()
    everything = gcs.cases(_GCS_WRITES, _GCS_READS, ("fresh", "resumed", "reused"))
    for case in cases.choose(everything, sample=10):
        run(gcs, case, cases, f"gcs: {case.name}")


_PERMANENT: Final = {
    "403 on all": {"status": 403, "code": "AccessDenied"},
    "500 on all": {"status": 500, "code": "InternalError"},
}


def test_storages_that_refuse_for_good(
    s3: Ground, cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From some request on nothing goes through; later all is well again."""
    s3.survey()
    whole = s3.requests["fresh"].total()
    everything = [(name, first) for name in _PERMANENT for first in range(0, whole, 5)]
    for name, first in cases.choose(everything, sample=4):
        watched = Watched(s3, s3.prefix("fresh"), "fresh")
        left = [first]

        def applies(request: Request, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        s3.lake.server.faults.extend(
            Fault(**_PERMANENT[name], applies=applies) for _ in range(10_000)
        )
        monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "1")
        error = watched.attempt()
        s3.lake.server.faults.clear()
        monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "3")
        if error is None:
            watched.problems.append("no error")
        watched.end()
        note = f"{name} from request {first}: {error}; {'; '.join(watched.problems)}"
        cases.add(
            f"s3: {name}",
            survived=not watched.problems,
            redone=watched.redone,
            note=note,
        )


_CHILD: Final = """
import json, sys
from tests.etl.remote_builds_support import build
print("ready", flush=True)
build(json.loads(sys.stdin.readline()))
"""


class Killing(Nth):
    """Kills a process when its n-th request arrives: before the server acts on it,
    as the fault says.
    """

    def __init__(self, nth: int) -> None:
        super().__init__(lambda request: "", "", nth)
        self.pid = 0

    def __call__(self, request: Request) -> bool:
        if not super().__call__(request):
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True


def _killed(ground: Ground, prefix: str, nth: int, *, commits: bool) -> bool:
    """Build in a process that is killed at a request; return False where it was done
    before.
    """
    killing = Killing(nth)
    ground.lake.server.faults.append(Fault(drop=True, commits=commits, applies=killing))
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    killing.pid = child.pid
    child.communicate(json.dumps(ground.config(prefix)).encode() + b"\n", timeout=120)
    ground.lake.server.faults.clear()
    return child.returncode == -signal.SIGKILL


def test_processes_that_are_killed(s3: Ground, cases: Cases) -> None:
    s3.survey()
    everything = [
        (start, nth, commits)
        for start in ("fresh", "reused")
        for nth in range(0, s3.requests[start].total(), 3)
        for commits in (False, True)
    ]
    missed, chosen = 0, cases.choose(everything, sample=6)
    for start, nth, commits in chosen:
        watched = Watched(s3, s3.prefix(start), start)
        if not _killed(s3, watched.prefix, nth, commits=commits):
            # The build was done in fewer requests than the one that was counted.
            missed += 1
            continue
        watched.look()
        watched.end()
        note = (
            f"{start}, request {nth}, commits={commits}: {'; '.join(watched.problems)}"
        )
        cases.add(
            "s3: kill -9",
            survived=not watched.problems,
            redone=watched.redone,
            note=note,
        )
    assert missed <= len(chosen) // 3
