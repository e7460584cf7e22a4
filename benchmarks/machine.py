"""Description of the machine and of the packages that the measurements ran with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.contenders import TOKENIZERS_1
from benchmarks.interpreters import interpreter, variable, version_in
from tokenlake._version import __version__

PACKAGES: Final = (
    "numpy",
    "pyarrow",
    "polars",
    "awkward",
    "orjson",
    "tokenizers",
    "gigatoken",
    "transformers",
    "datasets",
    "datatrove",
    "prefect",
)


def machine_line() -> str:
    """Return a line with the processor, usable cores, memory, kernel, Python and load.

    The load is that before the benchmark starts.
    """
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    load = os.getloadavg()[0]
    kernel = platform.release().split("-")[0]
    return (
        f"{_processor()}, {cores} cores, {memory_gib:.0f} GiB, Linux {kernel}, "
        f"Python {platform.python_version()}, load {load:.2f} at the start"
    )


def versions() -> dict[str, str]:
    """Return package -> version of all compared packages that are installed."""
    package_versions = {"tokenlake": __version__}
    for package in PACKAGES:
        try:
            package_versions[package] = version(package)
        except PackageNotFoundError:
            continue
    # Packages of the environment with tokenizers 1.x.
    environment = variable(TOKENIZERS_1)
    if environment in os.environ:
        python = interpreter(TOKENIZERS_1)
        for package in ("tokenizers", "datasets"):
            package_version = version_in(python, package) or "not installed"
            package_versions[f"{package} in {environment}"] = package_version
    return package_versions


def _processor() -> str:
    """Return the name of the processor's model."""
    for info_line in Path("/proc/cpuinfo").read_text().splitlines():
        if info_line.lower().startswith(("model name", "hardware")):
            return info_line.partition(":")[2].strip()
    return platform.machine()
