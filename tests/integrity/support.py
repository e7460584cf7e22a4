"""Versions to damage and to repair: copies of a small store that keep its hard
links, and ways to damage a file.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenlake import Manifest
from tokenlake.etl import BuildSession, WorkerPool, run_pending

KINDS = ("flip", "truncate", "empty", "append", "remove")


def tree(root: Path, *, runs: bool = False) -> dict[str, str]:
    """Path -> sha256 of every file below a folder, `runs/` apart."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (runs or "runs" not in path.relative_to(root).parts)
    }


def files_of(version: Path) -> Iterator[Path]:
    """Yield the files of a version that can be damaged and are no business of a run."""
    for path in sorted(version.rglob("*")):
        if path.is_file() and "runs" not in path.relative_to(version).parts:
            yield path


def damage(path: Path, kind: str, dice: Random) -> None:
    """Damage a file in place: every name of it is damaged, as by a disk."""
    data = bytearray(path.read_bytes())
    if kind == "remove":
        path.unlink()
        return
    path.chmod(0o644)
    if kind == "flip":
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    elif kind == "truncate":
        del data[dice.randrange(len(data)) :]
    elif kind == "empty":
        data.clear()
    else:
        data += dice.randbytes(7)
    with path.open("r+b") as stream:
        stream.truncate()
        stream.write(data)


def build(config: dict[str, Any] | Path, pool: WorkerPool) -> Manifest:
    """Build with workers that are there already: each takes a second to start."""
    session = BuildSession.open(config)
    run_pending(session, pool)
    return session.commit()


_KILLED = """
import os, signal, sys
from tokenlake.etl.integrity.repair import repair
from tokenlake.runtime.store.local import LocalStore

moment, seen = int(sys.argv[3]), 0

def counted(name):
    real = getattr(LocalStore, name)
    def call(self, *args, **options):
        global seen
        if "tokenlake-repair-" in self.url:
            return real(self, *args, **options)
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(self, *args, **options)
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(LocalStore, name, call)

for name in ("replace", "link", "put_new", "publish", "swap"):
    counted(name)
report = repair(sys.argv[1], sys.argv[2], workers=1)
sys.exit(0 if report.ok else 3)
"""


def repaired_until_killed(store: Path, reference: str, moment: int) -> int:
    """Repair in a process that kills itself at a moment (before or after a write to
    the store); return how it ended.
    """
    command = [sys.executable, "-c", _KILLED, str(store), reference, str(moment)]
    return subprocess.run(command, capture_output=True, check=False).returncode
