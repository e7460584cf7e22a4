"""The Python that runs a peer: this one, or one with the peer's own packages, named
by an environment variable.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from typing import Final

from benchmarks.measure import ROOT

PACKAGES: Final = {"streaming": "mosaicml-streaming"}
"""Names of packages that are not those of their modules."""


def variable(name: str) -> str:
    """Return the environment variable that names a peer's Python:
    ``BENCH_PYTHON_LITDATA`` and so on.
    """
    return f"BENCH_PYTHON_{name.partition('.')[0].upper()}"


def interpreter(name: str) -> str:
    """Return the Python that has a peer, which is this one where no variable names
    another.
    """
    return os.environ.get(variable(name), sys.executable)


def release(module: str) -> str:
    """Return ``grain 0.2.18``: the package of a module that is there, as its
    interpreter has it.
    """
    return f"{PACKAGES.get(module, module)} {version_in(interpreter(module), module) or 'of an unknown version'}"


@functools.cache
def version_in(python: str, module: str) -> str | None:
    """Return the version of a package in an interpreter's environment, None where it
    is not installed.
    """
    look = f"import importlib.metadata as m; print(m.version({PACKAGES.get(module, module)!r}))"
    done = subprocess.run([python, "-c", look], capture_output=True, text=True)
    return done.stdout.strip() or None


@functools.cache
def can_import(python: str, module: str) -> bool:
    """Whether an interpreter finds a module."""
    if python == sys.executable:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return not subprocess.run(
        [python, "-c", look], cwd=ROOT, capture_output=True
    ).returncode
