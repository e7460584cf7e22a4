"""Python interpreters of the compared systems.

A system runs in the interpreter of the benchmark, unless an environment variable names
another one that has the packages of the system.
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
"""Module -> package, if their names differ."""


def variable(name: str) -> str:
    """Return the environment variable that names the interpreter of a system.

    Example: ``BENCH_PYTHON_LITDATA``.
    """
    return f"BENCH_PYTHON_{name.partition('.')[0].upper()}"


def interpreter(name: str) -> str:
    """Return the interpreter of a system; by default that of the benchmark."""
    return os.environ.get(variable(name), sys.executable)


def release(module: str) -> str:
    """Return the package and version of an installed module, as ``grain 0.2.18``."""
    package = PACKAGES.get(module, module)
    version = version_in(interpreter(module), module)
    return f"{package} {version or 'of an unknown version'}"


@functools.cache
def version_in(python: str, module: str) -> str | None:
    """Return the version of a module's package in the environment of an interpreter.

    It is None if the package is not installed.
    """
    package = PACKAGES.get(module, module)
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    process = subprocess.run([python, "-c", program], capture_output=True, text=True)
    return process.stdout.strip() or None


@functools.cache
def can_import(python: str, module: str) -> bool:
    """Return whether an interpreter finds a module."""
    if python == sys.executable:
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # a parent package is missing
            return False
    program = (
        "import importlib.util, sys; "
        f"sys.exit(importlib.util.find_spec({module!r}) is None)"
    )
    process = subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True)
    return process.returncode == 0
