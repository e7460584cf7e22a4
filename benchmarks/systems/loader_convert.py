"""Conversion of rows to the format of a peer: ``FORMAT FOLDER_OF_IDS TARGET``.

It is not measured. It reads files of raw ids, and imports the packages of its own
format alone, because a peer may be installed in another environment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

LENGTH: Final = 2048
"""Number of ids of a row."""

GROUP_ROWS: Final = 256
"""Number of rows of a row group, as in Tokenlake's shards."""

PAGE_ROWS: Final = 128
"""Number of rows of a page of 1 MiB."""


def parquet(paths: list[Path], target: Path) -> None:
    """Write Parquet as any program would: one list column, zstd."""
    pa = importlib.import_module("pyarrow")
    pq = importlib.import_module("pyarrow.parquet")
    for path in paths:
        ids = _ids(path)
        offsets = np.arange(len(ids) + 1, dtype=np.int32) * LENGTH
        row_lists = pa.ListArray.from_arrays(offsets, pa.array(ids.reshape(-1)))
        pq.write_table(
            pa.table({"input_ids": row_lists}),
            target / f"{path.stem}.parquet",
            row_group_size=GROUP_ROWS,
            compression="zstd",
            use_dictionary=False,
        )


def arrayrecord(paths: list[Path], target: Path) -> None:
    """Write ArrayRecord files with one record per row, and default compression.

    Groups have one record, as Grain requires for random access.
    """
    module = importlib.import_module("array_record.python.array_record_module")
    for path in paths:
        record_path = target / f"{path.stem}.arrayrecord"
        writer = module.ArrayRecordWriter(str(record_path), "group_size:1")
        for row in _ids(path):
            writer.write(row.tobytes())
        writer.close()


def datasets(paths: list[Path], target: Path) -> None:
    """Write Arrow files of rows of a fixed length."""
    hf = importlib.import_module("datasets")
    pa = importlib.import_module("pyarrow")
    hf.disable_progress_bars()
    tables: list[Any] = []
    for path in paths:
        ids = pa.array(_ids(path).reshape(-1))
        row_lists = pa.FixedSizeListArray.from_arrays(ids, LENGTH)
        tables.append(pa.table({"input_ids": row_lists}))
    dataset = hf.Dataset(pa.concat_tables(tables))
    dataset.save_to_disk(str(target), num_shards=len(paths))


def litdata(paths: list[Path], target: Path) -> None:
    """Write chunks of about 64 MB without compression."""
    module = importlib.import_module("litdata")
    # litdata calls the function in workers, and pickles it by name.
    module.optimize(
        fn=row_tensors,
        inputs=[str(path) for path in paths],
        output_dir=str(target),
        chunk_size=LENGTH * 8192,
        item_loader=module.TokensLoader(LENGTH),
        num_workers=2,
    )


def row_tensors(path: str) -> Iterator[Any]:
    """Yield each row as a tensor. It runs in the workers of litdata."""
    torch = importlib.import_module("torch")
    for row in _ids(Path(path)):
        yield torch.from_numpy(row.copy())


def mds(paths: list[Path], target: Path) -> None:
    """Write MDS shards of 64 MiB without compression and without hashes."""
    streaming = importlib.import_module("streaming")
    columns = {"input_ids": f"ndarray:int32:{LENGTH}"}
    with streaming.MDSWriter(out=str(target), columns=columns) as writer:
        for path in paths:
            for row in _ids(path):
                writer.write({"input_ids": np.ascontiguousarray(row)})


def zstd(paths: list[Path], target: Path) -> None:
    """Write blocks of the size of a Parquet page, at the level of Tokenlake's shards.

    A second file has the compressed and the uncompressed size of each block.
    """
    codec: Any = importlib.import_module("pyarrow").Codec("zstd", compression_level=3)
    for path in paths:
        ids = _ids(path)
        blocks: list[bytes] = []
        sizes: list[tuple[int, int]] = []
        for begin in range(0, len(ids), PAGE_ROWS):
            page_bytes = ids[begin : begin + PAGE_ROWS].tobytes()
            block = codec.compress(page_bytes, asbytes=True)
            blocks.append(block)
            sizes.append((len(block), len(page_bytes)))
        (target / f"{path.stem}.zstd").write_bytes(b"".join(blocks))
        np.save(target / f"{path.stem}.npy", np.array(sizes))


def uint16(paths: list[Path], target: Path) -> None:
    """Write all rows to one file of 16-bit ids, the layout of nanoGPT and Megatron."""
    with (target / "rows.u16").open("wb") as file:
        for path in paths:
            ids = _ids(path)
            # Larger ids would be cut silently.
            if int(ids.max()) >= 1 << 16:
                raise SystemExit(f"{path}: an id that 16 bits do not hold")
            file.write(ids.astype(np.uint16).tobytes())


FORMATS: Final[dict[str, Callable[[list[Path], Path], None]]] = {
    "parquet": parquet,
    "arrayrecord": arrayrecord,
    "datasets": datasets,
    "litdata": litdata,
    "mds": mds,
    "uint16": uint16,
    "zstd": zstd,
}
"""Name of a format -> function that converts files of ids to a folder."""


def _ids(path: Path) -> Any:
    """Return the rows of a file of ids, mapped into memory, int32[n, 2048]."""
    return np.memmap(path, np.int32, "r").reshape(-1, LENGTH)


def main(name: str, folder: str, target: str) -> None:
    """Convert a folder of ids.

    Args:
        name: Name of the format.
        folder: Folder of the files of ids.
        target: Folder for the converted rows.
    """
    target_folder = Path(target)
    target_folder.mkdir(parents=True, exist_ok=True)
    FORMATS[name](sorted(Path(folder).glob("*.ids")), target_folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
