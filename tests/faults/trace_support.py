"""What a process and all its children did to a store, in order, from a trace of theirs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_NAMES: Final = (
    "?link",
    "linkat",
    "?rename",
    "?renameat",
    "renameat2",
    "?unlink",
    "unlinkat",
    "?mkdir",
    "mkdirat",
)
_CALLS: Final = ",".join([*_NAMES, "fsync", "fdatasync", "write", "pwrite64", "openat"])
_LINE: Final = re.compile(r"(?P<pid>\d+) +(?P<rest>.*)")
_PATH: Final = re.compile(r'(?:AT_FDCWD<[^>]*>, )?(?:"([^"]*)"|\d+<([^>]*)>)')
_ALIKE: Final = {"linkat": "link", "fdatasync": "fsync", "mkdirat": "mkdir", "unlinkat": "unlink"}


@dataclass(frozen=True, slots=True)
class Done:
    """One call that succeeded: what, on which paths, and at which lines of the log it began and ended."""

    call: str
    paths: tuple[str, ...]
    begin: int
    end: int
    line: str

    def before(self, other: Done) -> bool:
        """Whether it was over when the other began; calls of several processes may overlap."""
        return self.end < other.begin


def traced(script: str, *arguments: str, log: Path, cache: Path) -> list[Done]:
    """Run a Python script under strace with all its children; return what succeeded, in order."""
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}", "-o", str(log)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}",
        "TOKENLAKE_CACHE": str(cache),
    }
    done = subprocess.run(
        [*command, sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(calls_in(log.read_text(errors="replace").splitlines()))


def calls_in(lines: list[str]) -> Iterator[Done]:
    """Parse a log of ``strace -f -y``; calls that were interrupted by another's line are put together."""
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None:
            continue
        pid, rest, begin = match["pid"], match["rest"], number
        if rest.endswith("<unfinished ...>"):
            begun[pid] = number, rest.removesuffix("<unfinished ...>")
            continue
        if (resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", rest)) is not None and pid in begun:
            begin, first = begun.pop(pid)
            rest = first + resumed[1]
        call = re.match(r"(\w+)\((.*)\)\s+= (\d+)", rest)
        if call is not None:
            name = _ALIKE.get(call[1], call[1])
            name = "rename" if name.startswith("rename") else "write" if name.startswith("pwrite") else name
            yield Done(name, tuple(a or b for a, b in _PATH.findall(call[2])), begin, number, rest)
