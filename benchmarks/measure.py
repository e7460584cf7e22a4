"""CPU seconds, wall time and memory of one command with everything it starts, however
it starts it.

A process's children count in its parent's RUSAGE_CHILDREN only if that parent lives to
wait for them. Fork servers, daemons and resource trackers outlive theirs and would
vanish from the bill. So the command runs under a small process of its own (this module)
that is the tree's "subreaper" (prctl(2)): orphans become its children, it waits for
every one, and the kernel adds all their user and system time to its RUSAGE_CHILDREN. It
also samples /proc, for the peak memory of each process and as a check: a process whose
parent ignores SIGCHLD is never billed to anybody, and then the sampled time exceeds the
billed time and the measurement is refused.

As a program: ``python -m benchmarks.measure REPORT [--kill-after SECONDS] --
COMMAND...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # where `benchmarks` can be imported
SAMPLE_EVERY = 0.2  # seconds
# Seconds that processes may outlive the command before they are killed and named.
GRACE = 30.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a command cost. Times are seconds, memory is bytes.

    `peak_bytes` is the largest resident set any single process had (exact, from the
    kernel); `processes` maps "pid command" to the peak of that process (sampled),
    largest first. `left_behind` names what had to be killed because it outlived the
    command by more than :data:`GRACE`.
    """

    exit_code: int
    wall: float
    user: float
    system: float
    sampled_cpu: float
    peak_bytes: int
    processes: dict[str, int] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)
    killed: bool = False

    @property
    def cpu(self) -> float:
        """User and system seconds of the whole tree."""
        return self.user + self.system

    def check(self) -> None:
        """Raises RuntimeError if some process was never billed."""
        if self.sampled_cpu > 1.02 * self.cpu + 0.2:
            raise RuntimeError(
                f"the kernel billed {self.cpu:.2f} CPU s but {self.sampled_cpu:.2f} were seen in /proc; "
                "expected them to agree: some process ignores SIGCHLD, so its children are billed to nobody"
            )


def measure(
    command: Sequence[str],
    *,
    report: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    kill_after: float | None = None,
    billed: bool = True,
) -> Measurement:
    """Runs `command` in a fresh measuring process, its output going to `log`; raises
    what `check` raises.

    Args:
        billed: False where processes are known that ignore SIGCHLD: nothing is checked.
    """
    extra = [] if kill_after is None else ["--kill-after", str(kill_after)]
    wrapper = [
        sys.executable,
        "-m",
        "benchmarks.measure",
        str(report),
        *extra,
        "--",
        *command,
    ]
    report.unlink(missing_ok=True)
    with log.open("wb") as sink:
        subprocess.run(
            wrapper,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=env,
            cwd=ROOT,
            check=True,
        )
    measured = Measurement(**json.loads(report.read_bytes()))
    if not measured.killed and billed:
        measured.check()
    return measured


@dataclass(slots=True)
class _Seen:
    """The last look at one process."""

    name: str
    cpu: float = 0.0
    peak: int = 0


def run(command: Sequence[str], kill_after: float | None) -> Measurement:
    """Runs `command` under this process, which should do nothing else."""
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    started = time.monotonic()
    pid = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=[])
    seen: dict[tuple[int, int], _Seen] = {}
    status: int | None = None
    ended, left, killed = started, [], False
    while True:
        _sample(seen)
        reaped = _reap()
        if pid in reaped:
            status, ended = reaped[pid], time.monotonic()
        if not _has_children():
            break
        if (
            kill_after is not None
            and not killed
            and time.monotonic() - started >= kill_after
        ):
            kill_tree()
            killed = True
        elif status is not None and not left and time.monotonic() - ended > GRACE:
            left = [_name(orphan) for orphan in descendants()]
            kill_tree()
        signal.sigtimedwait({signal.SIGCHLD}, SAMPLE_EVERY)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    peaks = sorted(
        ((f"{key[0]} {one.name}", one.peak) for key, one in seen.items()),
        key=lambda item: -item[1],
    )
    return Measurement(
        exit_code=os.waitstatus_to_exitcode(status or 0),
        wall=ended - started,
        user=usage.ru_utime,
        system=usage.ru_stime,
        sampled_cpu=sum(one.cpu for one in seen.values()),
        peak_bytes=usage.ru_maxrss * 1024,
        processes=dict(peaks[:40]),
        left_behind=left,
        killed=killed,
    )


def descendants() -> list[int]:
    """Pids below this process, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def kill_tree() -> None:
    """SIGKILL for every descendant: all are stopped first, so that none outlives
    another by a moment.
    """
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for _ in range(3):  # a process may fork between the listing and the signal
            for pid in descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _adopt_orphans() -> None:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(),
            "prctl(PR_SET_CHILD_SUBREAPER) failed; the benchmark needs Linux 3.4 or later",
        )
    # The tree ends with the benchmark that asked for it.
    signal.signal(signal.SIGTERM, lambda *_: (kill_tree(), os._exit(143)))
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _reap() -> dict[int, int]:
    reaped: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            reaped[result[0]] = result[1]
    return reaped


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _sample(seen: dict[tuple[int, int], _Seen]) -> None:
    for pid in descendants():
        stat = _stat(pid)
        if stat:
            one = seen.setdefault((pid, int(stat[19])), _Seen(_name(pid)))
            one.cpu = (int(stat[11]) + int(stat[12])) * TICK
            one.peak = max(one.peak, _peak(pid))
            one.name = _name(pid) or one.name


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on: 0 state, 1 parent, 11 user, 12
    system, 19 start.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .decode(errors="replace")
            .split("\0")
        )
        return " ".join([Path(words[0]).name, *words[1:]]).strip()[:100]
    return ""


def main(arguments: Sequence[str]) -> None:
    """See the module's text for the command line."""
    options, command = (
        arguments[: arguments.index("--")],
        arguments[arguments.index("--") + 1 :],
    )
    kill_after = float(options[2]) if options[1:2] == ["--kill-after"] else None
    try:
        measured = run(command, kill_after)
    except BaseException:  # Ctrl-C above all: nothing may run on unmeasured
        kill_tree()
        raise
    Path(options[0]).write_text(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main(sys.argv[1:])
