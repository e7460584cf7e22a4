"""What verification cannot do without, done barely: ``sha256|pyarrow FOLDER``, for all
shards of a folder.

``sha256``: of the bytes of each file. ``pyarrow``: every row group decoded, all
columns, checksums verified.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pyarrow.parquet as pq

_PIECE = 1 << 20


def sha256(path: Path) -> None:
    """Hash a file."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])


def pyarrow(path: Path) -> None:
    """Decode a file."""
    with pq.ParquetFile(
        path, page_checksum_verification=True, pre_buffer=False
    ) as file:
        for group in range(file.num_row_groups):
            file.read_row_group(group, use_threads=False)


if __name__ == "__main__":
    for shard in sorted(Path(sys.argv[2]).glob("*.parquet")):
        {"sha256": sha256, "pyarrow": pyarrow}[sys.argv[1]](shard)
