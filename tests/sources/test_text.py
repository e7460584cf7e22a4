"""Plain text as documents and as lines, and compressed streams of lines."""

from __future__ import annotations

import gzip
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.support import (
    COMPRESS,
    PACK,
    Source,
    faults,
    normalized,
    one,
    parsed,
    positions,
    read,
    renamed,
    texts,
    written,
)
from tokenlake.errors import DamagedFileError, InputChangedError
from tokenlake.etl.sources import FileRange, Want, read_range

# ---- documents
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", PACK)
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\r\nb\n", "a\r\nb\n"),
        (b"\xef\xbb\xbfa", "a"),
        (b"", ""),
        ("é\ufeff".encode(), "é\ufeff"),
    ],
    ids=["line ends stay", "byte order mark", "empty", "mark inside"],
)
def test_a_file_is_a_document(
    tmp_path: Path, data: bytes, text: str, extension: str
) -> None:
    path = written(tmp_path, PACK[extension](data), f"in.txt{extension}")
    batches = read(path)
    assert texts(batches) == [text]
    assert positions(batches) == [0]
    assert normalized(batches) == (
        {"bom": 1} if data.startswith(b"\xef\xbb\xbf") else {}
    )
    assert sum(batch.bytes_read for batch in batches) == path.stat().st_size


# ---- lines
# ------------------------------------------------------------------------------------------


def test_every_line_that_holds_something_is_a_document(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfone\r\n\r\n\n  \ntwo\r\r\nlast\r"
    batches = read(written(tmp_path, data, "in.txt"), text_mode="lines")
    assert texts(batches) == ["one", "  ", "two\r", "last\r"]
    assert positions(batches) == [0, 11, 14, 20]
    assert normalized(batches) == {"bom": 1, "crlf": 3, "blank_line": 2}


def test_bad_lines_are_named_and_the_others_kept(tmp_path: Path) -> None:
    data = "a\n\né\n".encode() + b"\xff\n" + b"x" * 50 + b"\nb"
    batches = read(
        written(tmp_path, data, "in.txt"), text_mode="lines", max_record_bytes=49
    )
    assert texts(batches) == ["a", "é", "b"]
    assert positions(batches) == [0, 3, 59]
    assert faults(batches) == [(6, 4, "invalid_utf8"), (8, 5, "line_too_long")]


lines = st.lists(
    st.sampled_from(["", "\r", "a", "é" * 5, " ", "x" * 40, "\v"]), max_size=9
).map("\n".join)


@settings(max_examples=80, deadline=None)
@given(lines, st.sampled_from(["", "\n"]), st.integers(1, 40), st.integers(1, 60))
def test_any_partition_of_text_lines_gives_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    ending: str,
    unit_size: int,
    block_bytes: int,
) -> None:
    data = (text + ending).encode()
    path = written(tmp_path_factory.getbasetemp(), data, "lines.txt")
    want = Want(text="text", block_bytes=block_bytes)
    blocks = parsed(
        path, want, text_mode="lines", cuts=range(unit_size, len(data), unit_size)
    )
    found = [line for block in blocks for line in block.text.to_pylist()]
    expected = [line.removesuffix("\r") for line in (text + ending).split("\n")[:-1]]
    expected += (
        [] if not data or data.endswith(b"\n") else [(text + ending).split("\n")[-1]]
    )
    assert found == [line for line in expected if line]


# ---- compressed
# -------------------------------------------------------------------------------------

RECORDS = [b'{"text":"%d %s"}\n' % (n, b"x" * (n % 90)) for n in range(3000)]


@pytest.mark.parametrize("extension", COMPRESS)
def test_a_bad_record_of_a_compressed_file_has_its_line_and_decompressed_offset(
    tmp_path: Path, extension: str
) -> None:
    records = [*RECORDS[:2000], b"{}\n", *RECORDS[2000:]]
    path = written(
        tmp_path, COMPRESS[extension](b"".join(records)), f"in.jsonl{extension}"
    )
    assert faults(read(path)) == [
        (sum(map(len, RECORDS[:2000])), 2001, "missing_field")
    ]


def test_a_wrong_checksum_of_gzip_is_damage(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"".join(RECORDS)))
    data[-8] ^= 1
    with pytest.raises(DamagedFileError, match="incorrect data check"):
        read(written(tmp_path, bytes(data), "in.jsonl.gz"))


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 5000])
def test_records_of_a_stream_are_those_of_the_plain_file(
    tmp_path: Path, block_bytes: int
) -> None:
    data = b"".join(RECORDS[:200]) + b"no end"
    path = written(tmp_path, gzip.compress(data), "in.jsonl.gz")
    blocks = parsed(path, Want(text="text", block_bytes=block_bytes))
    starts = list(accumulate(map(len, RECORDS[:200]), initial=0))
    assert [
        position for block in blocks for position in block.positions.tolist()
    ] == starts[:-1]
    assert [bad.position for block in blocks for bad in block.bad] == starts[-1:]
    assert sum(block.lines for block in blocks) == 201
    assert sum(block.bytes_read for block in blocks) == path.stat().st_size


# ---- inputs that change
# -----------------------------------------------------------------------------


def test_an_input_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"text":"a"}\n', "in.jsonl")
    file = one(path)
    part = FileRange(file=file, start=0, stop=file.size, weight=file.size)
    moved = renamed(file, stat=(file.stat[0], file.stat[1] + 1, file.stat[2]))
    source: Any = Source()
    with pytest.raises(InputChangedError, match="planned was"):
        list(read_range(FileRange(file=moved, start=0, stop=13, weight=13), source))
    reader = read_range(part, source)
    next(reader)
    path.write_bytes(b'{"text":"b"}\n{"text":"c"}\n')
    with pytest.raises(InputChangedError, match="it has 26 bytes, planned were 13"):
        list(reader)
    path.unlink()
    with pytest.raises(InputChangedError, match="the file no longer exists"):
        list(read_range(part, source))
