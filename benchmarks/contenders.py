"""Compared systems: command line, required packages, and expected output of each."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.interpreters import can_import, interpreter, variable
from benchmarks.vocabularies import Vocabulary

INSTALL: Final = (
    "pip install 'tokenlake[bench]'  (in a checkout: pip install -e '.[bench]')"
)


@dataclass(frozen=True, slots=True)
class System:
    """Compared system with a number of workers, one row of the table.

    Attributes:
        family: Name of the program, a key of :data:`MEANING`.
        workers: Number of worker processes.
        peer: True for slow systems, which may get a smaller input.
        needs: Modules that must be importable.
        environment: Name of the environment that runs the system, see
            :func:`.interpreters.variable`; empty: that of the benchmark.
    """

    family: str
    workers: int
    peer: bool = False
    needs: tuple[str, ...] = ()
    environment: str = ""

    @property
    def name(self) -> str:
        """Name in options and reports."""
        return f"{self.family}-{self.workers}"

    def missing(self) -> str | None:
        """Return why the system cannot run, with the install line; None if it can."""
        if self.environment and variable(self.environment) not in os.environ:
            return f"it needs a separate Python, named by {variable(self.environment)}: see benchmarks/README.md"
        # Its interpreter may be that of another environment.
        missing_modules: list[str] = []
        for module in self.needs:
            if not can_import(self.python, module):
                missing_modules.append(module)
        if missing_modules:
            return f"not installed for {self.python}: {', '.join(missing_modules)}; {INSTALL}"
        return None

    @property
    def python(self) -> str:
        """Python interpreter that runs the system."""
        return interpreter(self.environment or "tokenlake")


TOKENIZERS_1: Final = "TOKENIZERS1"
"""Environment with `tokenizers` 1.x, named by ``BENCH_PYTHON_TOKENIZERS1``. Tokenlake
and datasets are optional in it.
"""

SYSTEMS: Final = (
    System("build", 1),
    System("build", 2),
    System("run", 1),
    System("run", 2),
    System("bare", 1, needs=("gigatoken", "awkward")),
    System("tokenizers", 1, peer=True, needs=("tokenizers",)),
    System("tokenizers", 2, peer=True, needs=("tokenizers",)),
    System("tokenizers1", 1, needs=("tokenizers", "pyarrow"), environment=TOKENIZERS_1),
    System("tokenizers1", 2, needs=("tokenizers", "pyarrow"), environment=TOKENIZERS_1),
    System(
        "build-tokenizers1",
        1,
        needs=("tokenizers", "tokenlake"),
        environment=TOKENIZERS_1,
    ),
    System(
        "build-tokenizers1",
        2,
        needs=("tokenizers", "tokenlake"),
        environment=TOKENIZERS_1,
    ),
    System("datasets", 1, peer=True, needs=("datasets", "transformers")),
    System("datasets", 2, peer=True, needs=("datasets", "transformers")),
    System(
        "datasets-tokenizers1",
        1,
        peer=True,
        needs=("datasets",),
        environment=TOKENIZERS_1,
    ),
    System(
        "datasets-tokenizers1",
        2,
        peer=True,
        needs=("datasets",),
        environment=TOKENIZERS_1,
    ),
    System("datatrove", 1, peer=True, needs=("datatrove",)),
    System("datatrove", 2, peer=True, needs=("datatrove",)),
)
MEANING: Final = {
    "build": "tokenlake, the library's build",
    "run": "tokenlake run (Prefect)",
    "bare": "bare gigatoken loop",
    "tokenizers": "bare tokenizers loop, the installed version",
    "tokenizers1": "bare tokenizers loop, version 1.x",
    "build-tokenizers1": "tokenlake, the library's build, with tokenizers 1.x",
    "datasets": "datasets map + to_parquet, with transformers",
    "datasets-tokenizers1": "datasets map + to_parquet, with tokenizers 1.x",
    "datatrove": "datatrove tokenize + merge",
}
"""Family -> label in reports."""

_PROGRAMS: Final = {
    "bare": "bare_gigatoken",
    "tokenizers": "bare_tokenizers",
    "tokenizers1": "bare_tokenizers",
    "datasets": "hf_datasets",
    "datasets-tokenizers1": "datasets_tokenizers",
    "datatrove": "datatrove_tokens",
}
"""Family -> program in :mod:`benchmarks.systems`."""

_RAW: Final = {"bare": "ids.bin", "tokenizers": "*.ids", "tokenizers1": "*.ids"}
"""Bare loop -> pattern of its files of raw ids. They are in the order of the input."""

_OURS: Final = ("build", "build-tokenizers1", "run")


@dataclass(frozen=True, slots=True)
class Job:
    """Work of one run of a system.

    Attributes:
        source: Input to read.
        vocabulary: Tokenizer.
        output: Existing, empty folder for the output.
    """

    source: Input
    vocabulary: Vocabulary
    output: Path


def command(system: System, job: Job) -> list[str]:
    """Return the command line of a run.

    For Tokenlake, the configuration of the build is written as well.
    """
    if system.family in _OURS:
        config = builds.write_config(
            job.output / "bench.yaml", job.source, job.vocabulary, job.output / "store"
        )
        if system.family == "run":
            return builds.flow_command(config, system.workers)
        return builds.library_command(config, system.workers, system.python)
    # All other programs have the same arguments, see systems/arguments.py.
    program = f"benchmarks.systems.{_PROGRAMS[system.family]}"
    arguments = [
        job.source.folder,
        job.vocabulary.folder,
        job.vocabulary.eos,
        str(job.output),
        str(system.workers),
        str(job.vocabulary.id_bytes),
    ]
    return [system.python, "-m", program, *arguments]


def content_tokens(system: System, job: Job) -> int:
    """Return the number of ids in the output that belong to the text of documents.

    Ids that a system adds to each document are not counted, so that all systems have
    the same number.
    """
    if system.family in _OURS:
        return int(builds.manifest(job.output / "store")["account"]["tokens"])
    id_bytes = job.vocabulary.id_bytes
    document_count = job.source.documents
    if system.family in _RAW:
        return _bytes_of(job.output, _RAW[system.family]) // id_bytes
    if system.family == "datatrove":
        # It adds one EOS to each document, in place of the post-processor's ids.
        return _bytes_of(job.output / "merged", "*.ds") // id_bytes - document_count
    added = document_count * job.vocabulary.adds
    return _parquet_ids(job.output / "train.parquet") - added


def ids_digest(system: System, job: Job) -> str | None:
    """Return the sha256 of all ids of a bare loop; None for other systems.

    The ids are in the order of the documents.
    """
    if system.family not in _RAW:
        return None
    digest = hashlib.sha256()
    # Files in the order of the input, in blocks.
    for path in sorted(job.output.glob(_RAW[system.family])):
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _bytes_of(folder: Path, pattern: str) -> int:
    """Return the bytes of the files of a folder that match a pattern."""
    return sum(path.stat().st_size for path in folder.glob(pattern))


def _parquet_ids(path: Path) -> int:
    """Return the number of ids in the column `input_ids` of a Parquet file."""
    total = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["input_ids"]):
        lengths = pc.list_value_length(batch.column(0))
        total += pc.sum(lengths).as_py() or 0  # None for an empty batch
    return total
