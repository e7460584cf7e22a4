"""Datasets that loaders read: packed from the machine's text, and converted for peers.

The dataset ``corpus`` has all of the text, in many shards. The datasets ``text``,
``code`` and ``multilingual`` are the sources of a mixture and divide the same text.
They are made once and stay in the work folder. :mod:`loader_sink
<benchmarks.systems.loader_sink>` checks for every run whether it delivered exactly
these rows.
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

RECIPE: Final = 1
"""Version of the rows. It changes when the same arguments lead to other rows."""

CORPUS: Final = "corpus"

UNIT: Final = "16MiB"
"""Text of a unit. The default size has about forty shards."""

_STORE: Final = ""
_IDS: Final = "ids"
"""Forms of rows that are not converted: the store, and files of raw ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderInput:
    """Rows of 2,048 ids.

    Attributes:
        folder: Folder of the store, the ids, and the forms of peers.
        rows: Number of rows.
        tokens: Number of ids without padding.
        shards: Number of shards.
        bytes: Bytes of all shards.
        sum: Sum of all ids as 64-bit words, modulo 2^64.
    """

    folder: str
    rows: int
    tokens: int
    shards: int
    bytes: int
    sum: int

    @property
    def store(self) -> Path:
        """Folder of the datasets."""
        return Path(self.folder, "store")

    @property
    def version(self) -> Path:
        """Folder of the dataset `corpus`."""
        return self.store / CORPUS / "v1"

    @property
    def mtok(self) -> float:
        """Number of ids in 10^6, padding of the last row included.

        It is the number of every rate in Mtok per CPU second.
        """
        return self.rows * LENGTH / 1e6

    def keys(self) -> Any:
        """Return the sum of each row's words in stored order, uint64[rows]."""
        return np.load(Path(self.folder, "keys.npy"))

    def describe(self) -> str:
        """Return a description of one line."""
        bits_per_token = self.bytes * 8 / self.rows / LENGTH
        return (
            f"{self.mtok:.1f} Mtok in {self.rows:,} rows of {LENGTH}, {self.shards} shards of together "
            f"{self.bytes / 1e6:.0f} MB ({bits_per_token:.2f} bits per token)"
        )


def make_input(work: Path, source: Input, vocabulary: Vocabulary) -> LoaderInput:
    """Return the rows of an input. Build the datasets that do not exist yet.

    Args:
        work: Folder for all files of the benchmark.
        source: Text of the datasets.
        vocabulary: Their tokenizer.
    """
    folder_name = f"loader-{RECIPE}-{vocabulary.name}-{Path(source.folder).name}"
    folder = work / "inputs" / folder_name
    folder.mkdir(parents=True, exist_ok=True)
    # The dataset of all text, and the sources of the mixture.
    parts = sorted(Path(source.folder).glob("*.jsonl"))
    build(work, folder, CORPUS, parts, vocabulary)
    for source_name, parts_of_source in SOURCES.items():
        build(work, folder, source_name, parts[parts_of_source], vocabulary)
    # The description is written last, so that it proves that all ids are written.
    description = folder / "input.json"
    if not description.exists():
        _write_atomically(description, asdict(_extract_ids(folder)))
    return LoaderInput(**json.loads(description.read_bytes()))


def convert(loader_input: LoaderInput, form: str, python: str) -> Path:
    """Return the folder of the rows in a form. Convert them if it does not exist yet.

    Args:
        loader_input: Rows to convert.
        form: Form of the rows, a key of
            :data:`benchmarks.systems.loader_convert.FORMATS`. Empty: the store itself.
        python: Interpreter that has the package of the form.

    Raises:
        RuntimeError: The conversion failed.
    """
    if form == _STORE:
        return loader_input.store
    ids = Path(loader_input.folder, "ids")
    if form == _IDS:
        return ids
    target = Path(loader_input.folder, "peers", form)
    if target.exists():
        return target
    # A folder under the final name is complete.
    incomplete = target.with_name(f"{form}.half")
    shutil.rmtree(incomplete, ignore_errors=True)
    # The package of the form may be installed for another interpreter.
    program = [python, "-m", "benchmarks.systems.loader_convert"]
    process = subprocess.run(
        [*program, form, str(ids), str(incomplete)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            f"the rows could not be written as {form}: {process.stderr.strip()[-400:]}"
        )
    incomplete.rename(target)
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
    """Build a dataset with two workers, unless it exists.

    Args:
        work: Folder for all files of the benchmark.
        folder: Folder of the store.
        name: Name of the dataset.
        parts: JSON Lines files of its text.
        vocabulary: Its tokenizer.
        seq_length: Number of ids of a row; None: every document is a row of its own, of
            at most 2,048 ids.
        num_shards: Number of shards; None: the library chooses.

    Returns:
        Folder of the version.

    Raises:
        RuntimeError: The build failed.
    """
    store = folder / "store"
    version = store / name / "v1"
    if (version / "manifest.json").exists():
        return version

    # 1. Write the configuration.
    pack: dict[str, Any] = {"enabled": False}
    if seq_length is not None:
        pack = {"enabled": True, "seq_length": seq_length}
    config = {
        "name": name,
        "datasets": [
            {
                "name": name,
                "data_files": [str(path) for path in parts],
                "tokenizer": vocabulary.folder,
            }
        ],
        "pack": pack,
        "source": {"unit_size": UNIT},
        "save": {"output_dir": str(store), "num_shards": num_shards},
    }
    config_path = folder / f"{name}.yaml"
    config_path.write_text(json.dumps(config, indent=1))

    # 2. Build.
    log_path = folder / f"{name}.log"
    environment = builds.environment(work, work / "scratch" / "hash-cache")
    with log_path.open("wb") as sink:
        process = subprocess.run(
            builds.library_command(config_path, 2),
            env=environment,
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
        )
    if process.returncode:
        raise RuntimeError(
            f"the build of {name} ended with exit code {process.returncode}; its output is in {log_path}"
        )
    return version


def _extract_ids(folder: Path) -> LoaderInput:
    """Write the raw ids of each shard to a file of its own, and sum up the rows.

    The shards are read by pyarrow alone, so that the sums do not depend on Tokenlake's
    reader.
    """
    import pyarrow.parquet as pq

    version = folder / "store" / CORPUS / "v1"
    # The manifest has the shards in the order of their rows.
    manifest: Mapping[str, Any] = json.loads((version / "manifest.json").read_bytes())
    target = folder / "ids"
    target.mkdir(exist_ok=True)
    keys_of_groups = [np.zeros(0, np.uint64)]  # sums of the rows of each row group
    for number, shard in enumerate(manifest["files"]):
        with (
            (target / f"{number:05d}.ids").open("wb") as sink,
            pq.ParquetFile(version / shard["path"]) as file,
        ):
            for group_index in range(file.num_row_groups):
                table = file.read_row_group(group_index, columns=["input_ids"])
                column: Any = table.column(0).combine_chunks()
                ids = column.flatten().to_numpy().reshape(-1, LENGTH)
                sink.write(ids.data)
                # Two 32-bit ids are one 64-bit word.
                words = ids.view(np.uint64)
                keys_of_groups.append(words.sum(axis=1, dtype=np.uint64))
    # The sum of all rows is that of their sums, modulo 2^64.
    keys = np.concatenate(keys_of_groups)
    np.save(folder / "keys.npy", keys)
    return LoaderInput(
        folder=str(folder),
        rows=len(keys),
        tokens=manifest["totals"]["tokens"],
        shards=len(manifest["files"]),
        bytes=manifest["totals"]["bytes"],
        sum=int(np.add.reduce(keys)),
    )


def _write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that is complete if it exists."""
    incomplete = path.with_suffix(".half")
    # A rename is atomic.
    incomplete.write_text(json.dumps(content))
    incomplete.rename(path)
