"""The systems compared: how each is started, and what it should have produced."""

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
    """One line of the table.

    Attributes:
        family: What runs, a key of :data:`MEANING`.
        workers: Number of worker processes.
        peer: It is slow, so that it may get a smaller input.
        needs: Modules that must be importable.
        environment: Name of the environment that runs it, by the variable
            ``BENCH_PYTHON_`` and this name. Empty: the benchmark's own.
    """

    family: str
    workers: int
    peer: bool = False
    needs: tuple[str, ...] = ()
    environment: str = ""

    @property
    def name(self) -> str:
        """What the options and the table call it."""
        return f"{self.family}-{self.workers}"

    def missing(self) -> str | None:
        """Why it cannot run here, with the install line; None if it can."""
        if self.environment and variable(self.environment) not in os.environ:
            return f"it needs a Python of its own, named by {variable(self.environment)}: see benchmarks/README.md"
        absent = [name for name in self.needs if not can_import(self.python, name)]
        return (
            f"not installed for {self.python}: {', '.join(absent)}; {INSTALL}"
            if absent
            else None
        )

    @property
    def python(self) -> str:
        """The interpreter that runs it."""
        return interpreter(self.environment or "tokenlake")


TOKENIZERS_1: Final = "TOKENIZERS1"
"""The environment with `tokenizers` 1.x, named by ``BENCH_PYTHON_TOKENIZERS1``; it
may have Tokenlake and datasets.
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
_PROGRAMS: Final = {
    "bare": "bare_gigatoken",
    "tokenizers": "bare_tokenizers",
    "tokenizers1": "bare_tokenizers",
    "datasets": "hf_datasets",
    "datasets-tokenizers1": "datasets_tokenizers",
    "datatrove": "datatrove_tokens",
}
_RAW: Final = {"bare": "ids.bin", "tokenizers": "*.ids", "tokenizers1": "*.ids"}
"""Files of raw ids that a bare loop writes, in the order of the input's files."""


_OURS: Final = ("build", "build-tokenizers1", "run")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one system. `output` is an existing empty folder."""

    source: Input
    vocabulary: Vocabulary
    output: Path


def command(system: System, job: Job) -> list[str]:
    """The command line of this run; for Tokenlake it also writes the configuration."""
    if system.family in _OURS:
        config = builds.write_config(
            job.output / "bench.yaml", job.source, job.vocabulary, job.output / "store"
        )
        if system.family == "run":
            return builds.flow_command(config, system.workers)
        return builds.library_command(config, system.workers, system.python)
    arguments = [
        job.source.folder,
        job.vocabulary.folder,
        job.vocabulary.eos,
        str(job.output),
        str(system.workers),
        str(job.vocabulary.id_bytes),
    ]
    return [
        system.python,
        "-m",
        f"benchmarks.systems.{_PROGRAMS[system.family]}",
        *arguments,
    ]


def content_tokens(system: System, job: Job) -> int:
    """Ids of the documents' own text in the output, without what the system adds
    around a document.
    """
    if system.family in _OURS:
        return int(builds.manifest(job.output / "store")["account"]["tokens"])
    width = job.vocabulary.id_bytes
    if system.family in _RAW:
        return (
            sum(path.stat().st_size for path in job.output.glob(_RAW[system.family]))
            // width
        )
    # One EOS a document, in place of what the tokenizer adds.
    if system.family == "datatrove":
        total = sum(
            path.stat().st_size for path in (job.output / "merged").glob("*.ds")
        )
        return total // width - job.source.documents
    return (
        _parquet_ids(job.output / "train.parquet")
        - job.source.documents * job.vocabulary.adds
    )


def ids_digest(system: System, job: Job) -> str | None:
    """Return the sha256 of all ids of a bare loop, in the order of the documents;
    None for other systems.
    """
    if system.family not in _RAW:
        return None
    digest = hashlib.sha256()
    for path in sorted(job.output.glob(_RAW[system.family])):
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _parquet_ids(path: Path) -> int:
    batches = pq.ParquetFile(path).iter_batches(columns=["input_ids"])
    return sum(
        pc.sum(pc.list_value_length(batch.column(0))).as_py() or 0 for batch in batches
    )
