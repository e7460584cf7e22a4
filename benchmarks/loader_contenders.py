"""The loaders compared: how each is started, from which form of the rows, and where
its package is.
"""

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
        name: what the table calls it.
        program: module of :mod:`benchmarks.systems`.
        form: of the rows, one of :data:`benchmarks.systems.loader_convert.FORMATS`;
            empty: the store itself.
        variant: passed to the program.
        module: what must be importable.
        order: in which rows come, in words. "shuffled" becomes :data:`GLOBAL` where the
            delivered order looks like chance.
        share: of the epochs that the others deliver; slow ones deliver fewer.
        role: ceilings check, shuffle or collect nothing, and are no loaders.
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
        """Why it cannot run here, with the install line; None if it can."""
        python = interpreter(self.module)
        if can_import(python, self.module):
            return None
        return f"{self.name} left out, {self.module} not installed for {python}: {_install(self.module)}"


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
    Loader(
        *(
            GRAIN,
            "loader_grain",
            "parquet",
            "parquet",
            "grain",
            "files shuffled, 16 interleaved, window of 10,000",
        ),
    ),
    Loader(
        UNSHUFFLED, "loader_grain", "parquet", "stored", "grain", "16 files interleaved"
    ),
    Loader("Grain ArrayRecord", "loader_grain", "arrayrecord", "arrayrecord", "grain"),
    Loader(
        LITDATA,
        "loader_litdata",
        "litdata",
        module="litdata",
        order="chunks shuffled, rows inside each",
    ),
    Loader("datasets, Arrow mapped", "loader_datasets", "datasets", module="datasets"),
    Loader(
        "MosaicML MDS",
        "loader_mds",
        "mds",
        module="streaming",
        order="py1e, its default",
        share=0.25,
    ),
    Loader(MAPPED, "loader_bare", "uint16", "memmap", "numpy"),
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
        "zstd",
        "zstd",
        "pyarrow",
        "stored",
        role="ceiling",
    ),
    Loader(
        "memory copy", "loader_bare", "ids", "copy", "numpy", "stored", role="ceiling"
    ),
)


def command(loader: Loader, data: Path, passes: int) -> list[str]:
    """The command line of one run, all of it on one core.

    CPU seconds of threads that move between virtual cores vary by a third, from run to
    run and with how often they wake each other, which says more of the machine than of
    the loader.
    """
    variant = ["--variant", loader.variant] if loader.variant else []
    program = f"benchmarks.systems.{loader.program}"
    pinned = (
        ["taskset", "-c", str(max(os.sched_getaffinity(0)))]
        if shutil.which("taskset")
        else []
    )
    return [
        *pinned,
        interpreter(loader.module),
        "-m",
        program,
        str(data),
        str(passes),
        *variant,
    ]


def _install(module: str) -> str:
    package = PACKAGES.get(module)
    apart = f"in an environment of its own, named by {variable(module)}"
    return f"pip install {package}  ({apart})" if package else f"{INSTALL}, or {apart}"
