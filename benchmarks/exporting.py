"""Exports to the formats of trainers, compared with a bare loop and a bare write.

``python -m benchmarks.exporting STORE NAME`` exports a committed version that is packed
or of kind ``tokens``, without loss mask. For each format it measures, in turns:

1. The export, with its hashes, borders, manifest and fsync.
2. The bare loop: decode the same row groups as the loader does, one after the other,
   hash the bytes of the exported files, which are in memory, and write them.
3. The bare write: only write the same bytes.

All three write the same files and folders, and call fsync on each of them, as an export
does. Each begins when the disk has no pending writes. Otherwise a bare write would wait
for the bytes of the run before it, and appear slower than it is.

The table has the median of each, in wall seconds and in CPU seconds of all threads, and
the ratios ``bare loop / export`` and ``bare write / export``. The first ratio shows how
much an export could save. It may exceed 1, because an export uses several threads. The
second ratio depends on the disk: if the disk is faster than the hash, it is low for
every export.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
    """Times of a run.

    Attributes:
        wall: Wall seconds.
        cpu: CPU seconds of all threads of this process.
    """

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Times:
    """Run a function once, when the disk has no pending writes."""
    os.sync()
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    work()
    wall = time.perf_counter() - wall_start
    return Times(wall, time.process_time() - cpu_start)


def median_of(runs: Sequence[Times]) -> Times:
    """Return the medians of several runs."""
    wall = statistics.median(run.wall for run in runs)
    cpu = statistics.median(run.cpu for run in runs)
    return Times(wall, cpu)


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder, by relative path."""
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def bare_loop(
    store: str, manifest: tl.Manifest, contents: Mapping[str, bytes], folder: Path
) -> None:
    """Decode all rows of a version, hash the exported files, and write them.

    Args:
        store: Address of the store.
        manifest: Manifest of the version.
        contents: Relative path -> content of each file.
        folder: New folder for the files.
    """
    # 1. Decode.
    opened_store = open_store(store)
    for split in manifest.splits:
        with StoredRows(opened_store, manifest, split) as rows:
            for group in range(len(rows.group_rows)):
                if manifest.kind == "packed":
                    rows.packed(group, loss_mask=False)
                else:
                    rows.read(group, ["input_ids"])
    # 2. Hash and write.
    content_hash = hashlib.sha256()
    for data in contents.values():
        content_hash.update(data)
    bare_write(contents, folder)


def bare_write(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write files, and call fsync on them and on their folders.

    Args:
        contents: Relative path -> content of each file.
        folder: New folder for the files.
    """
    folder.mkdir()
    # The folders that get a new entry.
    folders = {folder, folder.parent}
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.add(path.parent)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    for written_folder in folders:
        descriptor = os.open(written_folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)


def measure_format(
    store: str, manifest: tl.Manifest, format: str, folder: Path, repeats: int
) -> str:
    """Measure a format, and return its line of the table.

    Args:
        store: Address of the store.
        manifest: Manifest of the version.
        format: Name of the format.
        folder: Folder to write into.
        repeats: Number of measurements.
    """
    name = f"{manifest.dataset}@v{manifest.version}"
    export_runs: list[Times] = []
    loop_runs: list[Times] = []
    write_runs: list[Times] = []
    contents: dict[str, bytes] = {}
    for _ in range(repeats):
        for target in ("export", "loop", "write"):
            shutil.rmtree(folder / target, ignore_errors=True)
        # 1. The export.
        export = partial(tl.export_version, store, folder / "export", format, name=name)
        export_runs.append(timed(export))
        contents = contents_of(folder / "export")
        # 2. The bare loop and the bare write of the exported files.
        loop = partial(bare_loop, store, manifest, contents, folder / "loop")
        loop_runs.append(timed(loop))
        write = partial(bare_write, contents, folder / "write")
        write_runs.append(timed(write))
    export_time = median_of(export_runs)
    loop_time = median_of(loop_runs)
    write_time = median_of(write_runs)
    megabytes = sum(map(len, contents.values())) / 1e6
    return (
        f"{format:<12} {megabytes:8.1f} MB"
        f"  export {export_time.wall:.3f} s ({export_time.cpu:.3f} CPU)"
        f"  loop {loop_time.wall:.3f} s ({loop_time.cpu:.3f} CPU)"
        f"  write {write_time.wall:.3f} s ({write_time.cpu:.3f} CPU)"
        f"  loop/export {loop_time.wall / export_time.wall:.2f}"
        f" ({loop_time.cpu / export_time.cpu:.2f} CPU)"
        f"  write/export {write_time.wall / export_time.wall:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all requested formats, and print the table."""
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
    parser.add_argument(
        "--folder", help="folder to write into; default: that of temporary files"
    )
    options = parser.parse_args(arguments)
    manifest = tl.Catalog(open_store(options.store)).manifest_of(options.name)
    print(f"{options.name}: {manifest.totals.tokens / 1e6:.1f} Mtok, {manifest.kind}")
    with TemporaryDirectory(
        prefix="tokenlake-exporting-", dir=options.folder
    ) as folder:
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
