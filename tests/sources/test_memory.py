"""Enormous documents and lines are read, or passed over, in bounded memory, whatever
the format.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.seeds import promise
from tests.sources.support import PACK

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.sources.support import Source, one
from tokenlake.etl.sources.records import read_range
from tokenlake.etl.sources.splits import split_file

path, options = Path(sys.argv[1]), eval(sys.argv[2])
mode = {name: value for name, value in options.items() if name == "text_mode"}
total, bad = 0, []
for part in split_file(one(path, **mode), 128 << 20):
    for batch in read_range(part, Source(**options)):
        total += batch.text.nbytes
        bad += [(record.position, record.reason, len(record.raw)) for record in batch.bad]
        del batch
status = Path("/proc/self/status").read_text()
print((total, bad, int(status.split("VmHWM:")[1].split()[0]) >> 10))
"""


def _peak(path: Path, **options: object) -> tuple[int, list[tuple[int, str, int]], int]:
    """Return (bytes of text, bad records, peak memory in MB) of a process that reads
    `path`, and remove it.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", SCRIPT, str(path), repr(options)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    path.unlink()
    return eval(done.stdout)


# One emoji makes a Python string four bytes wide: one copy as a string would be over
# each bound.
def _records(size: int) -> bytes:
    piece = b"line of text, \\n and more " * 40 + b"\\ud83d\\ude00"
    return (
        b'{"text":"a"}\n{"id":1,"text":"'
        + piece * (size // len(piece))
        + b'"}\n{"text":"b"}\n'
    )


def _prose(size: int) -> bytes:
    return b"line of text, \n and more " * (size // 25) + "\U0001f600".encode()


def _table(size: int) -> bytes:
    data = _prose(size)
    offsets = pa.array([0, len(data)], pa.int64()).buffers()[1]
    text = pa.LargeStringArray.from_buffers(1, offsets, pa.py_buffer(data))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"text": text}), sink, use_dictionary=False, compression="snappy"
    )
    return sink.getvalue().to_pybytes()


def _cell(size: int) -> bytes:
    return (
        b'id,text\n1,a\n2,"'
        + b'line of ""text"", and more\n' * (size // 27)
        + b'"\n3,b\n'
    )


@promise(135)
@pytest.mark.integration
@pytest.mark.parametrize(("name", "write", "size", "bound"), [
    ("in.jsonl", _records, 100_000_000, 420),
    ("in.jsonl.gz", _records, 100_000_000, 420),
    ("in.txt", _prose, 100_000_000, 300),
    ("in.txt.zst", _prose, 100_000_000, 300),
    ("in.parquet", _table, 100_000_000, 400),
    ("in.csv", _cell, 50_000_000, 300),
])  # fmt: skip
def test_an_enormous_document_takes_bounded_memory(
    tmp_path: Path, name: str, write: Callable[[int], bytes], size: int, bound: int
) -> None:
    path = tmp_path / name
    path.write_bytes(PACK.get(path.suffix, bytes)(write(size)))
    total, bad, peak = _peak(path)
    assert total > 0.9 * size
    assert bad == []
    assert peak < bound, f"{name}: {peak} MB"


@pytest.mark.integration
def test_a_line_of_300_megabytes_is_passed_over_in_bounded_memory(
    tmp_path: Path,
) -> None:
    # After some text the line goes on as a hole in the file, which takes no room on
    # disk.
    path = tmp_path / "in.txt"
    size = 300 << 20
    with path.open("wb") as file:
        file.write(b"a\n" + b"x" * (128 << 10))
        file.truncate(size)
        file.seek(size)
        file.write(b"\nb\n")
    _, bad, peak = _peak(path, text_mode="lines")
    assert bad == [(2, "line_too_long", 65536)]
    assert peak < 300


@pytest.mark.integration
def test_a_row_over_the_limit_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "in.csv.zst"
    path.write_bytes(
        PACK[".zst"](b"id,text\n1,a\n2," + b"line of text " * 6_000_000 + b"\n3,b\n")
    )
    total, bad, peak = _peak(path, max_record_bytes=1 << 20)
    assert (total < 100, len(bad)) == (True, 1)
    assert peak < 190
