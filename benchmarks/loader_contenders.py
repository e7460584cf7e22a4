"""Loaders that are compared: program, form of the rows, and package of each."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.contenders import INSTALL
from benchmarks.interpreters import PACKAGES, can_import, interpreter, variable

Role = Literal["ours", "peer", "ceiling"]

SHUFFLED: Final = "shuffled"
GLOBAL: Final = "global shuffle"
"""Order of a loader whose figures are those of a uniform permutation."""


@dataclass(frozen=True, slots=True)
class Loader:
    """One line of the table.

    Attributes:
        name: Name in the table.
        program: Module of :mod:`benchmarks.systems`.
        form: Form of the rows, a key of
            :data:`benchmarks.systems.loader_convert.FORMATS`. Empty: the store itself.
        variant: Variant of the program.
        module: Module that must be importable.
        order: Description of the order of rows. "shuffled" becomes :data:`GLOBAL` if
            the delivered order looks like chance.
        share: Number of epochs over that of other loaders; slow loaders have fewer.
        role: Role in the comparison. Ceilings do not check, shuffle or collect
            anything, and are no loaders.
    """

    name: str
    program: str
    form: str = ""
    variant: str = ""
    module: str = "tokenlake.runtime.loader"
    order: str = SHUFFLED
    share: float = 1.0
    role: Role = "peer"

    def missing(self) -> str | None:
        """Return why it cannot run here, with the line that installs it; None if it can."""
        python = interpreter(self.module)
        if can_import(python, self.module):
            return None
        return (
            f"{self.name} left out, {self.module} not installed for {python}: "
            f"{_install_line(self.module)}"
        )


OURS: Final = "tokenlake, input_ids"
DECODED: Final = "tokenlake, input_ids, decoded in every epoch"
SEGMENTS: Final = "tokenlake, input_ids, segment_ids, positions"
EVERYTHING: Final = "tokenlake, all four columns"
MIXTURE: Final = "tokenlake, mixture of three, input_ids"
MIXTURE_EVERYTHING: Final = "tokenlake, mixture of three, all four columns"
GRAIN: Final = "Grain Parquet"
UNSHUFFLED: Final = "Grain Parquet, unshuffled"
MAPPED: Final = "raw uint16 memory map"
STORED: Final = "pyarrow row groups"
PAGES: Final = "tokenlake's pages"
LITDATA: Final = "litdata TokensLoader"

BY_WEIGHTS: Final = "by weights, row groups shuffled, rows inside each"

LOADERS: Final = (
    # Tokenlake's loader.
    Loader(OURS, "loader_tokenlake", variant="ids", role="ours"),
    Loader(DECODED, "loader_tokenlake", variant="decoded", role="ours"),
    Loader(SEGMENTS, "loader_tokenlake", variant="segments", role="ours"),
    Loader(EVERYTHING, "loader_tokenlake", variant="all", role="ours"),
    Loader(
        MIXTURE, "loader_tokenlake", variant="mixture", role="ours", order=BY_WEIGHTS
    ),
    Loader(
        MIXTURE_EVERYTHING,
        "loader_tokenlake",
        variant="mixture-all",
        role="ours",
        order=BY_WEIGHTS,
    ),
    Loader(
        "tokenlake, input_ids, jax.Array on the CPU",
        "loader_tokenlake",
        variant="jax",
        module="jax",
        role="ours",
    ),
    # Peers.
    Loader(
        GRAIN,
        "loader_grain",
        form="parquet",
        variant="parquet",
        module="grain",
        order="files shuffled, 16 interleaved, window of 10,000",
    ),
    Loader(
        UNSHUFFLED,
        "loader_grain",
        form="parquet",
        variant="stored",
        module="grain",
        order="16 files interleaved",
    ),
    Loader(
        "Grain ArrayRecord",
        "loader_grain",
        form="arrayrecord",
        variant="arrayrecord",
        module="grain",
    ),
    Loader(
        LITDATA,
        "loader_litdata",
        form="litdata",
        module="litdata",
        order="chunks shuffled, rows inside each",
    ),
    Loader(
        "datasets, Arrow mapped", "loader_datasets", form="datasets", module="datasets"
    ),
    Loader(
        "MosaicML MDS",
        "loader_mds",
        form="mds",
        module="streaming",
        order="py1e, its default",
        share=0.25,
    ),
    Loader(MAPPED, "loader_bare", form="uint16", variant="memmap", module="numpy"),
    # Ceilings.
    Loader(
        STORED,
        "loader_bare",
        variant="parquet",
        module="pyarrow",
        order="stored",
        role="ceiling",
    ),
    Loader(
        PAGES,
        "loader_bare",
        variant="pages",
        module="tokenlake.runtime.reading",
        order="stored",
        role="ceiling",
    ),
    Loader(
        "zstd blocks",
        "loader_bare",
        form="zstd",
        variant="zstd",
        module="pyarrow",
        order="stored",
        role="ceiling",
    ),
    Loader(
        "memory copy",
        "loader_bare",
        form="ids",
        variant="copy",
        module="numpy",
        order="stored",
        role="ceiling",
    ),
)


def command(loader: Loader, data: Path, passes: int) -> list[str]:
    """Return the command line of one run, all of it on one core.

    Args:
        loader: Loader to run.
        data: Folder of its rows.
        passes: Number of epochs.
    """
    words: list[str] = []
    # CPU seconds of threads that move between virtual cores differ by a third, from run
    # to run and with the number of wake-ups. That depends on the machine more than on
    # the loader.
    if shutil.which("taskset"):
        last_core = max(os.sched_getaffinity(0))
        words += ["taskset", "-c", str(last_core)]
    words += [
        interpreter(loader.module),
        "-m",
        f"benchmarks.systems.{loader.program}",
        str(data),
        str(passes),
    ]
    if loader.variant:
        words += ["--variant", loader.variant]
    return words


def _install_line(module: str) -> str:
    """Return the line that installs a module."""
    # Packages of peers may conflict with those of the benchmark.
    package = PACKAGES.get(module)
    environment = f"in an environment of its own, named by {variable(module)}"
    if package:
        return f"pip install {package}  ({environment})"
    return f"{INSTALL}, or {environment}"
