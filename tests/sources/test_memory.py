"""A document of 200 MB is read in bounded memory, whatever the format."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.sources.support import Source, one
from tokenlake.sources.records import read_range
from tokenlake.sources.splits import split_file

total = 0
for part in split_file(one(Path(sys.argv[1])), 128 << 20):
    for batch in read_range(part, Source()):
        total += batch.text.nbytes
        del batch
status = Path("/proc/self/status").read_text()
print(total, int(status.split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.integration
@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz", "in.txt", "in.txt.zst", "in.parquet"])
def test_a_document_of_200_megabytes_takes_bounded_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    _write(path, 200_000_000)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    path.unlink()
    total, peak = map(int, done.stdout.split())
    assert total > 180_000_000
    assert peak < 600, f"{name}: {peak} MB"


def _write(path: Path, size: int) -> None:
    # One emoji makes a Python string four bytes wide.
    if ".jsonl" in path.name:
        piece = b"line of text, \\n and more " * 40 + b"\\ud83d\\ude00"
        data = b'{"text":"a"}\n{"id":1,"text":"' + piece * (size // len(piece)) + b'"}\n{"text":"b"}\n'
    else:
        data = b"line of text, \n and more " * (size // 25) + "\U0001f600".encode()
    if path.suffix == ".parquet":
        text = pa.LargeStringArray.from_buffers(
            1, pa.array([0, len(data)], pa.int64()).buffers()[1], pa.py_buffer(data)
        )
        pq.write_table(pa.table({"text": text}), path, use_dictionary=False, compression="snappy")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(data, 1))
    elif path.suffix == ".zst":
        path.write_bytes(pa.Codec("zstd").compress(data, asbytes=True))
    else:
        path.write_bytes(data)
