"""What the loaders are measured on: packed datasets built from the machine's text, and
the same rows for each peer.

``corpus`` holds all of the text, in many shards; ``text``, ``code`` and
``multilingual`` stand for three sources of a mixture and share the same text out.
Everything is made once and kept in the work folder, and :mod:`loader_sink
<benchmarks.systems.loader_sink>` says of every run whether it delivered exactly these
rows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import builds
from benchmarks.inputs import Input
from benchmarks.loader_sources import SOURCES
from benchmarks.measure import ROOT
from benchmarks.systems.loader_sink import LENGTH
from benchmarks.vocabularies import Vocabulary

RECIPE: Final = 1  # change it when the same request would give other rows
CORPUS: Final = "corpus"
UNIT: Final = "16MiB"  # of text: some forty shards at the default size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderInput:
    """Rows of 2,048 ids. `sum` is of all of them as 64-bit words, modulo 2^64."""

    folder: str
    rows: int
    tokens: int
    shards: int
    bytes: int
    sum: int

    @property
    def store(self) -> Path:
        """Where the datasets are."""
        return Path(self.folder, "store")

    @property
    def version(self) -> Path:
        """Folder of the dataset `corpus`."""
        return self.store / CORPUS / "v1"

    @property
    def mtok(self) -> float:
        """Ids in 10^6, padding of the last row included: what every Mtok per CPU
        second counts.
        """
        return self.rows * LENGTH / 1e6

    def keys(self) -> Any:
        """Return the sum of each row's words in stored order, uint64[rows]."""
        return np.load(Path(self.folder, "keys.npy"))

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.mtok:.1f} Mtok in {self.rows:,} rows of {LENGTH}, {self.shards} shards of together "
            f"{self.bytes / 1e6:.0f} MB ({self.bytes * 8 / self.rows / LENGTH:.2f} bits per token)"
        )


def make_input(work: Path, source: Input, vocabulary: Vocabulary) -> LoaderInput:
    """Build what is not there yet, the three sources of the mixture as well."""
    folder = (
        work
        / "inputs"
        / f"loader-{RECIPE}-{vocabulary.name}-{Path(source.folder).name}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    parts = sorted(Path(source.folder).glob("*.jsonl"))
    build(work, folder, CORPUS, parts, vocabulary)
    for name, share in SOURCES.items():
        build(work, folder, name, parts[share], vocabulary)
    told = folder / "input.json"
    if not told.exists():
        _write_atomically(told, asdict(_extract(folder)))
    return LoaderInput(**json.loads(told.read_bytes()))


def convert(given: LoaderInput, form: str, python: str) -> Path:
    """Return the folder that holds the rows in a peer's format; `python` is the
    interpreter that has the peer.
    """
    if form in ("", "ids"):
        return Path(given.folder, form or "store")
    target = Path(given.folder, "peers", form)
    if not target.exists():
        half = target.with_name(f"{form}.half")
        shutil.rmtree(half, ignore_errors=True)
        program = [python, "-m", "benchmarks.systems.loader_convert"]
        done = subprocess.run(
            [*program, form, str(Path(given.folder, "ids")), str(half)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(
                f"the rows could not be written as {form}: {done.stderr.strip()[-400:]}"
            )
        half.rename(target)
    return target


def build(
    work: Path,
    folder: Path,
    name: str,
    parts: Sequence[Path],
    vocabulary: Vocabulary,
    *,
    seq_length: int | None = LENGTH,
    num_shards: int | None = None,
) -> Path:
    """One real build with two workers, unless it was made before; returns the version's
    folder.

    Without a `seq_length` documents stay rows of their own, of at most 2,048 ids.
    """
    store = folder / "store"
    version = store / name / "v1"
    if (version / "manifest.json").exists():
        return version
    config = {
        "name": name,
        "datasets": [
            {
                "name": name,
                "data_files": list(map(str, parts)),
                "tokenizer": vocabulary.folder,
            }
        ],
        "pack": {"enabled": False}
        if seq_length is None
        else {"enabled": True, "seq_length": seq_length},
        "source": {"unit_size": UNIT},
        "save": {"output_dir": str(store), "num_shards": num_shards},
    }
    path, log = folder / f"{name}.yaml", folder / f"{name}.log"
    path.write_text(json.dumps(config, indent=1))
    env = builds.environment(work, work / "scratch" / "hash-cache")
    with log.open("wb") as sink:
        done = subprocess.run(
            builds.library_command(path, 2), env=env, cwd=ROOT, stdout=sink, stderr=sink
        )
    if done.returncode:
        raise RuntimeError(
            f"the build of {name} ended with exit code {done.returncode}; its output is in {log}"
        )
    return version


def _extract(folder: Path) -> LoaderInput:
    """Write the ids of each shard to a file of their own, read by pyarrow alone, and
    sum up their rows.
    """
    import pyarrow.parquet as pq

    version = folder / "store" / CORPUS / "v1"
    manifest: Mapping[str, Any] = json.loads((version / "manifest.json").read_bytes())
    target, keys = folder / "ids", [np.zeros(0, np.uint64)]
    target.mkdir(exist_ok=True)
    for number, shard in enumerate(manifest["files"]):
        with (
            (target / f"{number:05d}.ids").open("wb") as sink,
            pq.ParquetFile(version / shard["path"]) as file,
        ):
            for group in range(file.num_row_groups):
                column: Any = (
                    file.read_row_group(group, columns=["input_ids"])
                    .column(0)
                    .combine_chunks()
                )
                ids = column.flatten().to_numpy().reshape(-1, LENGTH)
                sink.write(ids.data)
                keys.append(ids.view(np.uint64).sum(axis=1, dtype=np.uint64))
    every = np.concatenate(keys)
    np.save(folder / "keys.npy", every)
    return LoaderInput(
        folder=str(folder),
        rows=len(every),
        tokens=manifest["totals"]["tokens"],
        shards=len(manifest["files"]),
        bytes=manifest["totals"]["bytes"],
        sum=int(np.add.reduce(every)),
    )


def _write_atomically(path: Path, value: Mapping[str, Any]) -> None:
    half = path.with_suffix(".half")
    half.write_text(json.dumps(value))
    half.rename(path)
