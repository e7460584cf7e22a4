"""Bare loops of verification, over all shards of a folder: ``LOOP FOLDER``.

LOOP is ``sha256``, which hashes the bytes of each file, or ``pyarrow``, which decodes
all columns of all row groups and verifies the checksums.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pyarrow.parquet as pq

_BUFFER_BYTES = 1 << 20


def sha256(path: Path) -> None:
    """Hash a file."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with path.open("rb", buffering=0) as stream:
        # Read into one buffer, without the buffers of Python.
        while byte_count := stream.readinto(buffer):
            digest.update(buffer[:byte_count])


def pyarrow(path: Path) -> None:
    """Decode a file."""
    with pq.ParquetFile(
        path, page_checksum_verification=True, pre_buffer=False
    ) as file:
        for group in range(file.num_row_groups):
            file.read_row_group(group, use_threads=False)


if __name__ == "__main__":
    loop = {"sha256": sha256, "pyarrow": pyarrow}[sys.argv[1]]
    for shard in sorted(Path(sys.argv[2]).glob("*.parquet")):
        loop(shard)
