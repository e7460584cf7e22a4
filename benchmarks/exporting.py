"""Export to the formats of trainers: CPU seconds beside a bare loop, and beside a bare
write.

``python -m benchmarks.exporting STORE NAME`` takes a committed version that is packed
or of kind ``tokens`` and has no loss mask. For each format, in turns:

1. The export, with its hashes, borders, manifest and fsync.
2. The bare loop: decode the same row groups as the loader does it, then hash the bytes
   of the export's files, which are in memory, and write them. No export can do less
   work.
3. The bare write: the same bytes, with fsync.

The table has the median of the CPU seconds of each, and the shares ``bare loop /
export`` and ``bare write / export``, the latter by wall clock as well.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import tokenlake as tl
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import open_store

FORMATS: Final = ("megatron", "numpy", "npy", "mds", "litdata", "array_record")


@dataclass(frozen=True, slots=True)
class Times:
    """Duration of one run.

    Attributes:
        wall: Seconds by the clock.
        cpu: CPU seconds of this process, all threads.
    """

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Times:
    """Run a function once."""
    wall = time.perf_counter()
    cpu = time.process_time()
    work()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def bare_loop(
    store: str, manifest: tl.Manifest, contents: Sequence[bytes], path: Path
) -> None:
    """Decode all rows of a version, and write the bytes of the export with their
    hash.
    """
    reading = open_store(store)
    for split in manifest.splits:
        with StoredRows(reading, manifest, split) as rows:
            for group in range(len(rows.group_rows)):
                if manifest.kind == "packed":
                    rows.packed(group, loss_mask=False)
                else:
                    rows.read(group, ["input_ids"])
    content_hash = hashlib.sha256()
    with path.open("wb") as file:
        for data in contents:
            content_hash.update(data)
            file.write(data)


def bare_write(contents: Sequence[bytes], folder: Path) -> None:
    """Write files and bring them to the disk."""
    folder.mkdir()
    for number, data in enumerate(contents):
        with (folder / str(number)).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def measure_format(
    store: str, manifest: tl.Manifest, format: str, folder: Path, repeats: int
) -> str:
    """Return the line of a format."""
    runs: dict[str, list[Times]] = {"export": [], "loop": [], "write": []}
    target = folder / "export"
    name = f"{manifest.dataset}@v{manifest.version}"
    contents: list[bytes] = []
    for _ in range(repeats):
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(folder / "write", ignore_errors=True)
        runs["export"].append(
            timed(partial(tl.export_version, store, target, format, name=name))
        )
        paths = [
            path
            for path in sorted(target.rglob("*"))
            if path.is_file() and "_tokenlake" not in path.parts
        ]
        contents = [path.read_bytes() for path in paths]
        runs["loop"].append(
            timed(partial(bare_loop, store, manifest, contents, folder / "loop"))
        )
        runs["write"].append(timed(partial(bare_write, contents, folder / "write")))
    cpu = {
        name: statistics.median(run.cpu for run in times)
        for name, times in runs.items()
    }
    wall = {
        name: statistics.median(run.wall for run in times)
        for name, times in runs.items()
    }
    megabytes = sum(map(len, contents)) / 1e6
    return (
        f"{format:<13} {megabytes:8.1f} MB  export {cpu['export']:.3f} s  loop {cpu['loop']:.3f} s  "
        f"write {cpu['write']:.3f} s  loop/export {cpu['loop'] / cpu['export']:.2f}  "
        f"write/export by wall clock {wall['write'] / wall['export']:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="path of the store")
    parser.add_argument("name", help="dataset, or one version of it")
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs of each; default: 5"
    )
    parser.add_argument(
        "--format", action="append", choices=FORMATS, help="a format; default: all"
    )
    options = parser.parse_args(arguments)
    manifest = tl.Catalog(open_store(options.store)).manifest_of(options.name)
    print(
        f"{options.name}: {manifest.totals.tokens / 1e6:.1f} Mtok, {manifest.kind}, CPU seconds"
    )
    with TemporaryDirectory(prefix="tokenlake-exporting-") as folder:
        for format in options.format or FORMATS:
            print(
                measure_format(
                    options.store, manifest, format, Path(folder), options.repeats
                ),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
