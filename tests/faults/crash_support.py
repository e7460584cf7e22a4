"""One disturbed run after another: disturb, look at what is visible, run again,
compare.

The laws, whatever was hit: what is visible is whole, at once; finished units are not
redone; the final tree is the undisturbed one, byte for byte, ``runs/`` apart; no
temporary file stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import pytest

from tokenlake import Catalog, verify
from tokenlake.etl import BuildSession, Event, UnitStarted, WorkerPool, run_pending
from tokenlake.runtime.store import UnitRecord, open_store

Role: TypeAlias = Literal["main", "unit", "worker"]
Fault: TypeAlias = Literal["KILL", "EIO", "ENOSPC", "EDQUOT"]

ROOT: Final = Path(__file__).resolve().parents[2]

#: What the enumeration calls a call, and the system calls behind it ("?": not every machine has it).
FAMILIES: Final = {
    "link": ("link", "linkat"),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "fsync": ("fsync", "fdatasync"),
    "mkdir": ("mkdir", "mkdirat"),
    "write": ("write", "pwrite64", "writev"),
    "open": ("open", "openat"),
}
CALLS: Final = ",".join(f"?{call}" for calls in FAMILIES.values() for call in calls)
#: After a failure of one of these a run must not say that it succeeded, unless it tried again.
MUST_NOT_PASS: Final = ("link", "rename", "fsync", "write")


@dataclass(frozen=True, slots=True)
class Call:
    """One traced system call: its name, its how-manieth of its thread, and the whole
    line.
    """

    name: str
    ordinal: int
    line: str

    def on(self, place: str) -> bool:
        """Whether the call is about something at or below ``place``."""
        return re.search(re.escape(place) + r'[/">]', self.line) is not None


def calls_of(log: Path) -> list[Call]:
    """Parse the log of one traced thread."""
    found: list[Call] = []
    counts: dict[str, int] = {}
    for line in log.read_text(errors="replace").splitlines():
        if (match := re.match(r"(\w+)\(", line)) is not None:
            name = match[1]
            counts[name] = counts.get(name, 0) + 1
            found.append(Call(name, counts[name], line))
    return found


def tree(folder: Path) -> dict[str, str]:
    """Everything below a store but ``runs/``: kind, mode and hash by path."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if "runs" in name.parts[2:]:
            continue
        mode = stat.S_IMODE(path.lstat().st_mode)
        digest = (
            "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        found[str(name)] = f"{mode:o} {digest}"
    return found


def temporary(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".tmp*")]


def remove_temporary(folder: Path) -> None:
    for name in temporary(folder):
        (folder / name).unlink()


def damage(store: Path) -> list[str]:
    """What is wrong with the versions that are visible; tags that cannot be read
    raise.
    """
    if not store.exists():
        return []
    opened, wrong = open_store(store), list[str]()
    catalog = Catalog(opened)
    for dataset in sorted(path.name for path in store.iterdir() if path.is_dir()):
        for folder in sorted((store / dataset).iterdir()):
            if (
                re.fullmatch("v[1-9][0-9]*", folder.name)
                and (folder / "manifest.json").exists()
            ):
                version = int(folder.name[1:])
                problems = verify(
                    opened, dataset, version, deep=True, workers=1
                ).problems
                wrong += [f"{dataset}/{folder.name}: {problem}" for problem in problems]
        if any((store / dataset).glob("v*/manifest.json")):
            catalog.versions(dataset)
            catalog.tags(dataset)
    return wrong


def finished_units(store: Path) -> dict[Path, int]:
    """The ledger records that are there, whole, with their inodes."""
    found: dict[Path, int] = {}
    for path in store.glob("*/v*/ledger/*.json"):
        UnitRecord.from_bytes(path.read_bytes(), str(path))
        found[path] = path.stat().st_ino
    return found


class Server:
    """The forking process of :mod:`tests.faults.crash_server_support`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.faults.crash_server_support"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}",
            },
            cwd=ROOT,
            text=True,
        )
        assert self._answer() == "ready\n"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks the runs ended"
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(120)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A call of the library, and what the store holds before it.

    Attributes:
        name: for messages.
        roles: threads of it that are disturbed.
        request: what the server is asked, without store and strace; ``{store}`` in it
            is the store's path.
        before: the store before; None: there is none.
        config: what a rerun builds; None: the request is asked again.
        first: whether every kind of fault is worth a run, also where it must be like
            another.
    """

    name: str
    roles: tuple[Role, ...]
    request: dict[str, Any]
    before: Path | None = None
    config: dict[str, Any] | None = None
    first: bool = False

    def asked(self, store: Path) -> dict[str, Any]:
        """Return the request for a store."""
        return json.loads(json.dumps(self.request).replace("{store}", str(store)))

    def built(self, store: Path) -> dict[str, Any]:
        return json.loads(json.dumps(self.config).replace("{store}", str(store)))

    def prepare(self, store: Path) -> None:
        if self.before is not None:
            shutil.copytree(self.before, store, symlinks=True)


@dataclass(frozen=True, slots=True)
class Case:
    """Hit the ``ordinal``-th ``call`` of one thread of a scenario."""

    scenario: Scenario
    role: Role
    call: str
    ordinal: int
    fault: Fault
    retries: int
    line: str

    def __str__(self) -> str:
        hit = f"{self.call}#{self.ordinal} {self.fault} retries={self.retries}"
        return f"{self.scenario.name}/{self.role}: {hit} [{self.line}]"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case; ``hit`` is False where another call than one on the
    store was disturbed.
    """

    hit: bool
    wrong: tuple[str, ...] = ()
    redone: int = 0
    silent: int = 0


class Bench:
    """Where cases are run: one server for the disturbed runs, one pool of workers
    for the reruns.
    """

    def __init__(self, folder: Path, server: Server, pool: WorkerPool) -> None:
        self._folder, self._server, self._pool = folder, server, pool
        self._calls: dict[tuple[str, Role], list[Call]] = {}
        self._trees: dict[str, dict[str, str]] = {}
        self._made = 0

    def place(self) -> Path:
        self._made += 1
        place = self._folder / f"{self._made:05d}"
        place.mkdir()
        return place

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a run done as it is asked for."""
        return self._server.ask(request)

    def undisturbed(self, scenario: Scenario) -> dict[str, str]:
        """The tree that a scenario ends with."""
        if scenario.name not in self._trees:
            store = self.place() / "store"
            scenario.prepare(store)
            answer = self._server.ask(scenario.asked(store))
            assert answer["code"] == 0, answer
            assert not damage(store) and not temporary(store)
            self._trees[scenario.name] = tree(store)
        return self._trees[scenario.name]

    def recorded(self, scenario: Scenario, role: Role) -> list[Call]:
        """The calls of one thread of an undisturbed run that are about the store."""
        if (scenario.name, role) not in self._calls:
            # First, so that whatever a first run does (.pyc) is done.
            self.undisturbed(scenario)
            place = self.place()
            store = place / "store"
            scenario.prepare(store)
            traced = {"role": role, "strace": strace(place / "log")}
            answer = self._server.ask(scenario.asked(store) | traced)
            assert answer["code"] == 0, answer
            self._calls[scenario.name, role] = [
                c for c in calls_of(place / "log") if c.on(str(store))
            ]
        return self._calls[scenario.name, role]

    def enumerate(self, scenario: Scenario, family: str, fault: Fault) -> list[Case]:
        """Every occurrence of a family of calls on the store, in every thread that
        touches it.
        """
        # Killed where it opens a file, a run has changed nothing that it had not
        # changed before: once is enough.
        if family == "open" and fault != "EIO" and not scenario.first:
            return []
        found: list[Case] = []
        for role in scenario.roles:
            calls = [
                call
                for call in self.recorded(scenario, role)
                if call.name in FAMILIES[family]
            ]
            # A full disk stays full: no retry mends it. An error of the disk is met by
            # one.
            retries = 0 if fault in ("ENOSPC", "EDQUOT") else 2
            found += [
                Case(scenario, role, c.name, c.ordinal, fault, retries, short(c.line))
                for c in calls
            ]
        return found

    def run(self, case: Case) -> Verdict:
        """Disturb a run and judge it; a second try where the call was not met."""
        for _ in range(2):
            place = self.place()
            verdict = self._run(case, place)
            if not verdict.wrong:
                shutil.rmtree(place)
            if verdict.hit:
                return verdict
        return verdict

    def _run(self, case: Case, place: Path) -> Verdict:
        store, log = place / "store", place / "log"
        expected = self.undisturbed(case.scenario)
        case.scenario.prepare(store)
        how = "signal=KILL" if case.fault == "KILL" else f"error={case.fault}"
        inject = f"inject={case.call}:{how}:when={case.ordinal}"
        request = case.scenario.asked(store) | {
            "retries": case.retries,
            "role": case.role,
        }
        answer = self._server.ask(request | {"strace": [*strace(log), "-e", inject]})
        hit = hit_call(log, case)
        if hit is None or not hit.on(str(store)):
            return Verdict(hit=False)
        wrong = outcome_problems(case, answer)
        broken = damage(store)
        if answer["code"] == 0 and case.call.startswith("unlink"):
            # A name that cannot be removed: what was published stands.
            remove_temporary(store)
        if answer["code"] == 0:
            broken += [
                f"it said that all is well, but {line}"
                for line in difference(store, expected)
            ]
        again, redone = self._again(case, store, expected)
        silent = int(bool(broken)) + int(bool(again))
        return Verdict(True, tuple(wrong + broken + again), redone, silent)

    def _again(
        self, case: Case, store: Path, expected: dict[str, str]
    ) -> tuple[list[str], int]:
        """Run again, undisturbed; what is wrong then, and how many finished units
        were redone.
        """
        finished = finished_units(store)
        if case.scenario.config is None:
            answer = self._server.ask(case.scenario.asked(store))
            return (
                [] if answer["code"] == 0 else [f"the rerun: {answer}"]
            ) + difference(store, expected), 0
        status, started = rebuild(case.scenario.built(store), self._pool)
        redone = sum(changed(path, inode) for path, inode in finished.items())
        current = {int(path.stem) for path in finished if path.parts[-3] == status[1]}
        redone = max(redone, len(current & started))
        wrong = [f"{redone} finished units were redone"] if redone else []
        return wrong + difference(store, expected), redone


def rebuild(
    config: dict[str, Any], pool: WorkerPool
) -> tuple[tuple[str, str], set[int]]:
    """Build as the library's runner does, with workers that run already; status and
    version, and units begun.
    """
    begun: set[int] = set()

    def watch(event: Event) -> None:
        if isinstance(event, UnitStarted):
            begun.add(event.unit)

    session = BuildSession.open(config, on_event=watch)
    run_pending(session, pool, on_event=watch)
    session.commit()
    status = "exists" if session.found_committed else "built"
    if "resumed" in session.how.values():
        status = "resumed"
    return (status, f"v{session.version}"), begun


def changed(path: Path, inode: int) -> bool:
    return not path.exists() or path.stat().st_ino != inode


def difference(store: Path, expected: dict[str, str]) -> list[str]:
    """How a store's tree differs from what it should be."""
    found = tree(store)
    names = sorted(set(found) ^ set(expected)) + [
        n for n in found if found[n] != expected.get(n, found[n])
    ]
    return [
        f"the final tree differs: {name}: {found.get(name)}, not {expected.get(name)}"
        for name in names
    ]


def strace(log: Path) -> list[str]:
    return ["strace", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", str(log)]


def hit_call(log: Path, case: Case) -> Call | None:
    """The call that was disturbed: marked, or the last one of a killed process."""
    calls = [
        call
        for call in calls_of(log)
        if call.name == case.call and call.ordinal == case.ordinal
    ]
    if not calls or (case.fault != "KILL" and "(INJECTED)" not in calls[0].line):
        return None
    return calls[0]


def outcome_problems(case: Case, answer: dict[str, Any]) -> list[str]:
    """Whether a disturbed run ended as it must: killed, with one sentence of ours,
    or well after a retry.
    """
    code, said = answer["code"], answer["said"]
    if not answer["ended"]:
        return [f"it never ended: {said[-2000:]}"]
    if case.fault == "KILL":
        # A worker's death costs a retry; its parent's is the end.
        return (
            []
            if code == (0 if case.role == "worker" else -9)
            else [f"ended with {code}: {said[-2000:]}"]
        )
    if code == 0:
        family = next(name for name, calls in FAMILIES.items() if case.call in calls)
        mended = case.role != "main" and case.retries
        return (
            ["it failed in silence"] if family in MUST_NOT_PASS and not mended else []
        )
    return sentence_problems(said)


def sentence_problems(said: str) -> list[str]:
    """Whether what a run said is nothing but an error of the store in one line."""
    lines = [line for line in said.splitlines() if line]
    try:
        [told] = [json.loads(line) for line in lines]
        error, message = told["error"], told["message"]
    except (ValueError, KeyError):
        return [f"not one sentence of ours: {said[-3000:]}"]
    if (
        error not in ("StoreError", "NotFoundError")
        or "\n" in message
        or "Traceback" in message
    ):
        return [f"not an error of the store in one line: {error}: {message}"]
    return []


def short(line: str) -> str:
    """A traced call for people: without descriptors' paths and the folders above the
    store.
    """
    line = re.sub(r"AT_FDCWD<[^>]*>", "AT_FDCWD", line)
    return re.sub(r'[^"<]*/store\b', "store", line)[:160]


def require_strace(folder: Path) -> None:
    """Skip where there is no strace, or it may not attach to a process that is not
    its child.
    """
    if shutil.which("strace") is None:
        pytest.skip("needs strace; install it (apt-get install strace)")
    victim = subprocess.Popen(["sleep", "30"])
    try:
        command = ["strace", "-o", str(folder / "probe"), "-p", str(victim.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        with tracer.stderr:
            said = tracer.stderr.readline()
            victim.kill()
            tracer.wait()
    finally:
        victim.kill()
        victim.wait()
    if "attached" not in said:
        pytest.skip(
            f"ptrace is denied here ({said.strip()}); run as root, with CAP_SYS_PTRACE, or with "
            "`sysctl kernel.yama.ptrace_scope=0`"
        )


@contextmanager
def bench_in(folder: Path) -> Iterator[Bench]:
    """A bench; everything it started is gone afterwards."""
    with (
        Server({"TOKENLAKE_CACHE": str(folder / "cache")}) as server,
        WorkerPool(1) as pool,
    ):
        (folder / "runs").mkdir()
        yield Bench(folder / "runs", server, pool)


Make: TypeAlias = Callable[[Path], dict[str, Any]]


def write_jsonl(folder: Path, first: int, units: int) -> None:
    """Small files, each a unit of its own."""
    folder.mkdir(exist_ok=True)
    for unit in range(first, first + units):
        texts = [
            f"document {unit}-{i}: " + "the quick brown fox, été, 日本 " * (i % 5)
            for i in range(33)
        ]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        # One bad record, in the last: quarantined.
        bad = ['{"text": 7}\n'] if unit == 2 else []
        (folder / f"{unit}.jsonl").write_text("".join(lines + bad))


def configuration(inputs: Path, tokenizer: Path) -> dict[str, Any]:
    """A packed build of a unit per file; ``{store}`` is where."""
    return {
        "name": "set",
        "datasets": [
            {"name": "s", "data_files": str(inputs), "tokenizer": str(tokenizer)}
        ],
        "source": {
            "unit_size": 4000,
            "on_bad_record": "quarantine",
            "max_bad_fraction": 0.1,
        },
        # The reference engine: a worker has imported it in half the time, and no call
        # on the store is another.
        "tokenize": {"tokenizer_backend": "tokenizers"},
        "pack": {"enabled": True, "seq_length": 32},
        "save": {"output_dir": "{store}"},
    }
