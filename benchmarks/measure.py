"""CPU seconds, wall time and memory of a command and of all processes that it starts.

The kernel adds the CPU time of a process to its parent's RUSAGE_CHILDREN when the
parent waits for it. Fork servers, daemons and resource trackers outlive their parents,
and their time would be lost. Therefore the command runs under a small process of its
own, which is this module:

1. The process is the *subreaper* of the tree (prctl(2)): orphans become its children.
2. It waits for every child, so that the kernel adds the user and system time of all of
   them to its RUSAGE_CHILDREN.
3. It samples /proc for the peak memory of each process, and for CPU time as a check. A
   process whose parent ignores SIGCHLD is in no RUSAGE_CHILDREN. The sampled time then
   exceeds the time of the kernel, and the measurement is refused.

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
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
"""Folder from which `benchmarks` can be imported."""

SAMPLE_SECONDS: Final = 0.2
"""Time between two samples of /proc."""

GRACE_SECONDS: Final = 30.0
"""Time that processes may outlive the command before they are killed."""

MOST_PROCESSES: Final = 40
"""Number of processes whose peaks a measurement has."""

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
TICK: Final = 1 / os.sysconf("SC_CLK_TCK")
"""Unit of the CPU times in /proc, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Resources that a command used. Times are seconds, memory is bytes.

    Attributes:
        exit_code: Exit code of the command.
        wall: Wall time until the command ended.
        user: User time of the whole process tree.
        system: System time of the whole process tree.
        sampled_cpu: User and system time as seen in /proc.
        peak_bytes: Largest resident set of a single process (exact, from the kernel).
        processes: "pid command" -> peak of that process (sampled), largest first.
        left_behind: Commands that were killed because they outlived the measured
            command by more than :data:`GRACE_SECONDS`.
        killed: Whether the command was killed because of `kill_after`.
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
        """Check that the kernel counted all processes.

        Raises:
            RuntimeError: A process was seen that the kernel did not count.
        """
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
    """Run a command in a fresh measuring process.

    Args:
        command: Command and its arguments.
        report: File for the measurement.
        log: File for the output of the command.
        env: Environment variables; None: those of this process.
        kill_after: Seconds after which the process tree is killed; None: never.
        billed: False if some processes are known to ignore SIGCHLD, so that nothing is
            checked.

    Raises:
        RuntimeError: A process was seen that the kernel did not count.
    """
    # The measuring process has no other children. It writes the report as JSON.
    wrapper = [sys.executable, "-m", "benchmarks.measure", str(report)]
    if kill_after is not None:
        wrapper += ["--kill-after", str(kill_after)]
    # A report of an earlier run must not be read as the report of this one.
    report.unlink(missing_ok=True)
    with log.open("wb") as sink:
        subprocess.run(
            [*wrapper, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=env,
            cwd=ROOT,
            check=True,
        )
    measurement = Measurement(**json.loads(report.read_bytes()))
    if not measurement.killed and billed:
        measurement.check()
    return measurement


def printed_figures(measurement: Measurement, log_path: Path) -> dict[str, Any]:
    """Return the figures that a measured program printed as a line of JSON.

    Args:
        measurement: Measurement of the program.
        log_path: File with its output.

    Raises:
        RuntimeError: The program failed; the message has the end of its output.
    """
    log_lines = log_path.read_text(errors="replace").strip().splitlines()
    if measurement.exit_code:
        last_lines = " / ".join(log_lines[-2:])[-300:]
        raise RuntimeError(
            f"exit code {measurement.exit_code}: {last_lines} (whole output: {log_path})"
        )
    # Packages may print lines after the figures.
    return json.loads(
        next(line for line in reversed(log_lines) if line.startswith("{"))
    )


class _Process(NamedTuple):
    """Process, also after its number was reused.

    Attributes:
        pid: Number of the process.
        start: Time of its start, in ticks.
    """

    pid: int
    start: int


@dataclass(slots=True)
class _Sample:
    """Last sample of a process.

    Attributes:
        command: Its command line.
        cpu: User and system seconds.
        peak_bytes: Largest resident set so far.
    """

    command: str
    cpu: float = 0.0
    peak_bytes: int = 0


def run(command: Sequence[str], kill_after: float | None) -> Measurement:
    """Run a command under this process, which should do nothing else.

    Args:
        command: Command and its arguments.
        kill_after: Seconds after which the process tree is killed; None: never.
    """
    _adopt_orphans()
    # `sigtimedwait` below waits for this signal, which must be blocked for that.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    start = time.monotonic()
    pid = os.posix_spawnp(command[0], list(command), os.environ, setsigmask=[])

    samples: dict[_Process, _Sample] = {}
    exit_status: int | None = None
    end = start
    left_behind: list[str] = []
    is_killed = False
    while True:
        # 1. Look at all processes before their entries in /proc vanish.
        _sample_processes(samples)
        # 2. Wait for those that ended. The command may have descendants that live on.
        exit_statuses = _reap()
        if pid in exit_statuses:
            exit_status = exit_statuses[pid]
            end = time.monotonic()
        if not _has_children():
            break
        # 3. Kill the tree if its time is over, or the command ended long ago.
        now = time.monotonic()
        is_over = kill_after is not None and now - start >= kill_after
        is_abandoned = exit_status is not None and now - end > GRACE_SECONDS
        if is_over and not is_killed:
            kill_tree()
            is_killed = True
        elif is_abandoned and not left_behind:
            left_behind = [_command_line(orphan) for orphan in descendants()]
            kill_tree()
        signal.sigtimedwait({signal.SIGCHLD}, SAMPLE_SECONDS)

    # All descendants ended, and the kernel added their times.
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measurement(
        exit_code=os.waitstatus_to_exitcode(exit_status or 0),
        wall=end - start,
        user=usage.ru_utime,
        system=usage.ru_stime,
        sampled_cpu=sum(sample.cpu for sample in samples.values()),
        peak_bytes=usage.ru_maxrss * 1024,
        processes=_largest_processes(samples),
        left_behind=left_behind,
        killed=is_killed,
    )


def descendants() -> list[int]:
    """Return the process numbers of all descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        # Processes may end at any time: their entries are gone then.
        fields = _stat(pid)
        if fields:
            parent = int(fields[1])
            children.setdefault(parent, []).append(pid)
    # The list grows while it is read: children follow their parents.
    pids = [os.getpid()]
    for pid in pids:
        pids.extend(children.get(pid, ()))
    return pids[1:]


def kill_tree() -> None:
    """Kill all descendants."""
    # All are stopped first, so that none sees the end of another one.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for _ in range(3):  # a process may fork between the listing and the signal
            for pid in descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _adopt_orphans() -> None:
    """Make this process the parent of all descendants that lose theirs."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(),
            "prctl(PR_SET_CHILD_SUBREAPER) failed; the benchmark needs Linux 3.4 or later",
        )
    # The tree ends with the benchmark that started it.
    signal.signal(signal.SIGTERM, lambda *_: (kill_tree(), os._exit(143)))
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _reap() -> dict[int, int]:
    """Wait for the children that ended. Return process number -> exit status."""
    exit_statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, exit_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            exit_statuses[pid] = exit_status
    return exit_statuses


def _has_children() -> bool:
    """Return whether this process has children that it has not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _sample_processes(samples: dict[_Process, _Sample]) -> None:
    """Sample all descendants.

    Args:
        samples: Last sample of each process, which is updated.
    """
    for pid in descendants():
        fields = _stat(pid)
        if not fields:
            continue
        process = _Process(pid, start=int(fields[19]))
        sample = samples.setdefault(process, _Sample(_command_line(pid)))
        sample.cpu = (int(fields[11]) + int(fields[12])) * TICK
        sample.peak_bytes = max(sample.peak_bytes, _peak_bytes(pid))
        # A process gets another command line by exec, and has none when it ends.
        sample.command = _command_line(pid) or sample.command


def _largest_processes(samples: Mapping[_Process, _Sample]) -> dict[str, int]:
    """Return "pid command" -> peak bytes of the largest processes, largest first."""
    peaks: list[tuple[str, int]] = []
    for process, sample in samples.items():
        peaks.append((f"{process.pid} {sample.command}", sample.peak_bytes))
    peaks.sort(key=lambda peak: -peak[1])
    return dict(peaks[:MOST_PROCESSES])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third on; None if it is gone.

    Field 0 is the state, 1 the parent, 11 the user time, 12 the system time, and 19 the
    start.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _peak_bytes(pid: int) -> int:
    """Return the largest resident set of a process so far; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for status_line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if status_line.startswith("VmHWM:"):
                return int(status_line.split()[1]) * 1024
    return 0


def _command_line(pid: int) -> str:
    """Return the first 100 characters of a command line; "" if the process is gone."""
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
        words = data.decode(errors="replace").split("\0")
        program = Path(words[0]).name
        return " ".join([program, *words[1:]]).strip()[:100]
    return ""


def main(arguments: Sequence[str]) -> None:
    """Run the command line that the docstring of the module describes."""
    # Options of this module come before the separator, the command after it.
    separator = arguments.index("--")
    options = arguments[:separator]
    command = arguments[separator + 1 :]
    kill_after: float | None = None
    if options[1:2] == ["--kill-after"]:
        kill_after = float(options[2])
    try:
        measurement = run(command, kill_after)
    except BaseException:
        # After Ctrl-C above all, no process may continue unmeasured.
        kill_tree()
        raise
    Path(options[0]).write_text(json.dumps(asdict(measurement)))


if __name__ == "__main__":
    main(sys.argv[1:])
