"""The same rows in a peer's own format: ``FORMAT FOLDER_OF_IDS TARGET``. Nothing here
is measured.

Comes from files of raw ids, and with imports of its own format alone: a peer may live
in another environment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

LENGTH: Final = 2048
GROUP: Final = 256  # rows of a Parquet row group, as our own
PAGE: Final = 128  # rows of a page of 1 MiB


def parquet(source: list[Path], target: Path) -> None:
    """Plain rows as any writer makes them: one list column, zstd."""
    pa, pq = (
        importlib.import_module("pyarrow"),
        importlib.import_module("pyarrow.parquet"),
    )
    for path in source:
        rows = pa.ListArray.from_arrays(
            _offsets(path), pa.array(_ids(path).reshape(-1))
        )
        table = pa.table({"input_ids": rows})
        pq.write_table(
            table,
            target / f"{path.stem}.parquet",
            row_group_size=GROUP,
            compression="zstd",
            use_dictionary=False,
        )


def arrayrecord(source: list[Path], target: Path) -> None:
    """One record a row, groups of one as Grain asks for random access, its default
    compression.
    """
    module = importlib.import_module("array_record.python.array_record_module")
    for path in source:
        writer = module.ArrayRecordWriter(
            str(target / f"{path.stem}.arrayrecord"), "group_size:1"
        )
        for row in _ids(path):
            writer.write(row.tobytes())
        writer.close()


def datasets(source: list[Path], target: Path) -> None:
    """Arrow files, rows of one length."""
    hf, pa = importlib.import_module("datasets"), importlib.import_module("pyarrow")
    hf.disable_progress_bars()
    arrays = [
        pa.FixedSizeListArray.from_arrays(pa.array(_ids(path).reshape(-1)), LENGTH)
        for path in source
    ]
    tables = [pa.table({"input_ids": array}) for array in arrays]
    hf.Dataset(pa.concat_tables(tables)).save_to_disk(
        str(target), num_shards=len(source)
    )


def litdata(source: list[Path], target: Path) -> None:
    """Chunks of about 64 MB without compression."""
    lit = importlib.import_module("litdata")
    lit.optimize(
        fn=tensors,
        inputs=list(map(str, source)),
        output_dir=str(target),
        chunk_size=LENGTH * 8192,
        item_loader=lit.TokensLoader(LENGTH),
        num_workers=2,
    )


def tensors(path: str) -> Iterator[Any]:
    """Yield each row for :func:`litdata`, in whose workers this runs."""
    torch = importlib.import_module("torch")
    for row in _ids(Path(path)):
        yield torch.from_numpy(row.copy())


def mds(source: list[Path], target: Path) -> None:
    """Shards of 64 MiB without compression, no hashes."""
    streaming = importlib.import_module("streaming")
    columns = {"input_ids": f"ndarray:int32:{LENGTH}"}
    with streaming.MDSWriter(out=str(target), columns=columns) as writer:
        for path in source:
            for row in _ids(path):
                writer.write({"input_ids": np.ascontiguousarray(row)})


def zstd(source: list[Path], target: Path) -> None:
    """Blocks the size of a Parquet page at the level of our own, and their
    compressed sizes.
    """
    codec: Any = importlib.import_module("pyarrow").Codec("zstd", compression_level=3)
    for path in source:
        ids = _ids(path)
        blocks = [
            codec.compress(ids[at : at + PAGE].tobytes(), asbytes=True)
            for at in range(0, len(ids), PAGE)
        ]
        (target / f"{path.stem}.zstd").write_bytes(b"".join(blocks))
        plain = [ids[at : at + PAGE].nbytes for at in range(0, len(ids), PAGE)]
        np.save(
            target / f"{path.stem}.npy", np.array([list(map(len, blocks)), plain]).T
        )


def uint16(source: list[Path], target: Path) -> None:
    """All rows in one file of 16-bit ids, the layout of nanoGPT's and Megatron's
    data.
    """
    with (target / "rows.u16").open("wb") as file:
        for path in source:
            ids = _ids(path)
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


def _ids(path: Path) -> Any:
    return np.memmap(path, np.int32, "r").reshape(-1, LENGTH)


def _offsets(path: Path) -> Any:
    return np.arange(len(_ids(path)) + 1, dtype=np.int32) * LENGTH


if __name__ == "__main__":
    into = Path(sys.argv[3])
    into.mkdir(parents=True, exist_ok=True)
    FORMATS[sys.argv[1]](sorted(Path(sys.argv[2]).glob("*.ids")), into)
