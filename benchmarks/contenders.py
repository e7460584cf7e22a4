"""The systems compared: how each is started, and what it should have produced."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.vocabularies import Vocabulary

INSTALL: Final = "pip install 'tokenlake[bench]'  (in a checkout: pip install -e '.[bench]')"


@dataclass(frozen=True, slots=True)
class System:
    """One line of the table. `peer` systems are slow and may get a smaller input."""

    family: str
    workers: int
    peer: bool = False
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the options and the table call it."""
        return f"{self.family}-{self.workers}"

    def missing(self) -> str | None:
        """Why it cannot run here, with the install line; None if it can."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(absent)}; {INSTALL}" if absent else None


SYSTEMS: Final = (
    System("build", 1),
    System("build", 2),
    System("run", 1),
    System("run", 2),
    System("bare", 1),
    System("datasets", 1, peer=True, needs=("datasets", "transformers")),
    System("datasets", 2, peer=True, needs=("datasets", "transformers")),
    System("datatrove", 1, peer=True, needs=("datatrove",)),
    System("datatrove", 2, peer=True, needs=("datatrove",)),
)
MEANING: Final = {
    "build": "tokenlake, the library's build",
    "run": "tokenlake run (Prefect)",
    "bare": "bare gigatoken loop",
    "datasets": "datasets map + to_parquet",
    "datatrove": "datatrove tokenize + merge",
}
_PROGRAMS: Final = {"bare": "bare_gigatoken", "datasets": "hf_datasets", "datatrove": "datatrove_tokens"}


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one system. `output` is an existing empty folder."""

    source: Input
    vocabulary: Vocabulary
    output: Path


def command(system: System, job: Job) -> list[str]:
    """The command line of this run; for Tokenlake it also writes the configuration."""
    if system.family in ("build", "run"):
        config = builds.write_config(
            job.output / "bench.yaml", job.source, job.vocabulary, job.output / "store"
        )
        make = builds.library_command if system.family == "build" else builds.flow_command
        return make(config, system.workers)
    arguments = [
        job.source.folder,
        job.vocabulary.folder,
        job.vocabulary.eos,
        str(job.output),
        str(system.workers),
    ]
    return [sys.executable, "-m", f"benchmarks.systems.{_PROGRAMS[system.family]}", *arguments]


def content_tokens(system: System, job: Job) -> int:
    """Ids of the documents' own text in the output, without what the system adds around a document."""
    if system.family in ("build", "run"):
        return int(builds.manifest(job.output / "store")["account"]["tokens"])
    width = 2 if job.vocabulary.size <= 1 << 16 else 4
    if system.family == "bare":
        return (job.output / "ids.bin").stat().st_size // width
    if system.family == "datatrove":  # one EOS a document, in place of what the tokenizer adds
        total = sum(path.stat().st_size for path in (job.output / "merged").glob("*.ds"))
        return total // width - job.source.documents
    return _parquet_ids(job.output / "train.parquet") - job.source.documents * job.vocabulary.adds


def _parquet_ids(path: Path) -> int:
    batches = pq.ParquetFile(path).iter_batches(columns=["input_ids"])
    return sum(pc.sum(pc.list_value_length(batch.column(0))).as_py() or 0 for batch in batches)
