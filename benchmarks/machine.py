"""What the measurements ran on: one line about the machine, and the versions that
matter.
"""

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
    *("numpy", "pyarrow", "polars", "awkward", "orjson", "tokenizers", "gigatoken"),
    *("transformers", "datasets", "datatrove", "prefect"),
)


def machine_line() -> str:
    """Processor, usable cores, memory, kernel, Python and the load before the
    benchmark starts.
    """
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{_processor()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, load {load:.2f} at the start"
    )


def versions() -> dict[str, str]:
    """Installed versions of everything compared; packages that are absent are left
    out.
    """
    found = {"tokenlake": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if variable(TOKENIZERS_1) in os.environ:
        python = interpreter(TOKENIZERS_1)
        for name in ("tokenizers", "datasets"):
            found[f"{name} in {variable(TOKENIZERS_1)}"] = (
                version_in(python, name) or "not installed"
            )
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.machine()
