"""CSV and TSV: cells stay what they are, speed changes nothing, and neither does where blocks end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.csv_reference import Unclosed, rows_of
from tests.sources_support import one
from tokenlake.errors import DamagedFileError
from tokenlake.sources.csv_file import parse_csv
from tokenlake.sources.csvblocks import Layout
from tokenlake.sources.opening import opened
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.stream import ByteStream
from tokenlake.sources.want import Want

FOLDER = pytest.TempPathFactory


def parse(path: Path, want: Want, layout: Layout) -> list[Parsed]:
    file = one(path)
    with opened(file) as data:
        return list(parse_csv(file, ByteStream(data), want, layout))


def whole(blocks: list[Parsed]) -> list[dict[str, str]]:
    return [row for block in blocks if block.rows is not None for row in block.rows.to_pylist()]


# ---- the law: nothing but the definition counts ------------------------------------------------------

SOUP = st.lists(
    st.sampled_from(
        [b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"a", b"bb", b'"a', b'",', b'"\n', "é".encode()]
    )
    | st.sampled_from([b"\xc3", b"\0", b"x,y\n", b'"1","2"\n', b"1,2\n", b"c" * 20]),
    max_size=40,
).map(b"".join)
BLOCKS = st.sampled_from([1, 3, 7, 16, 64, 1 << 20])


@settings(max_examples=600, deadline=None)
@given(SOUP, BLOCKS, st.sampled_from([9, 25, 1 << 20]))
@example(b'a,b\n"x"\r', 64, 100)
@example(b'a,b\n1,"x"\r\n2,"y\r\n"\r\n', 5, 100)
@example(b'a,b\n1,"x\n2,"y"\n', 64, 100)
@example(b'a,b\n1,5" disk\n2,"6" disk"\n', 64, 100)
def test_any_bytes_are_read_as_the_definition_says(
    tmp_path_factory: FOLDER, body: bytes, block_bytes: int, limit: int
) -> None:
    data = b"a,b\n" + body
    path = tmp_path_factory.getbasetemp() / "soup.csv"
    path.write_bytes(data)
    layout = Layout(delimiter=44, max_record_bytes=limit, block_bytes=block_bytes)
    want = Want(text="b", columns=None, max_record_bytes=limit)
    try:
        rows, blank, crlf = rows_of(data, 44, limit)
    except Unclosed:
        with pytest.raises(DamagedFileError, match="the quote that opens a cell on line"):
            parse(path, want, layout)
        return
    found = parse(path, want, layout)
    expected = [(n, row) for n, row in enumerate(rows[1:])]
    good = [(n, row) for n, row in expected if len(row.cells) == 2 and not row.reasons]
    assert [n for block in found for n in block.positions.tolist()] == [n for n, _ in good]
    assert [tuple(row.values()) for row in whole(found)] == [
        tuple(cell.decode() for cell in row.cells) for _, row in good
    ]
    assert [t for b in found if b.text is not None for t in b.text.to_pylist()] == [
        row.cells[1].decode() for _, row in good
    ]
    bad = {line.position: line for block in found for line in block.bad}
    assert sorted(bad) == [n for n, row in expected if len(row.cells) != 2 or row.reasons]
    for n, line in bad.items():
        assert line.fault.reason in rows[n + 1].reasons | {"ragged_row"}
        assert line.raw == rows[n + 1].raw
    assert sum(block.normalized.get("blank_line", 0) for block in found) == blank
    assert sum(block.normalized.get("crlf", 0) for block in found) == crlf
    assert sum(block.bytes_read for block in found) <= len(data)
