"""CSV and TSV: cells stay what they are, speed changes nothing, and neither does
where blocks end.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sources.csv_reference import Unclosed, rows_of
from tests.sources.support import (
    PACK,
    dicts,
    faults,
    one,
    parsed,
    positions,
    read,
    rows,
    texts,
    written,
)
from tokenlake.errors import DamagedFileError
from tokenlake.etl.sources import Parsed, Want, split_file

FOLDER = pytest.TempPathFactory


def whole(blocks: list[Parsed]) -> list[dict[str, str]]:
    return [
        row
        for block in blocks
        if block.rows is not None
        for row in block.rows.columns.to_pylist()
    ]


# ---- the law: nothing but the definition counts
# ------------------------------------------------------

SOUP = st.lists(
    st.sampled_from(
        [
            b'"',
            b'""',
            b",",
            b"\n",
            b"\r\n",
            b"\r",
            b"a",
            b"bb",
            b'"a',
            b'",',
            b'"\n',
            "é".encode(),
        ]
    )
    | st.sampled_from([b"\xc3", b"\0", b"x,y\n", b'"1","2"\n', b"1,2\n", b"c" * 20]),
    max_size=40,
).map(b"".join)
BLOCKS = st.sampled_from([1, 3, 7, 16, 64, 1 << 20])


@settings(max_examples=60, deadline=None)
@given(SOUP, BLOCKS, st.sampled_from([9, 25, 1 << 20]))
@example(b'a,b\n"x"\r', 64, 100)
@example(b'a,b\n1,"x"\r\n2,"y\r\n"\r\n', 5, 100)
@example(b'a,b\n1,"x\n2,"y"\n', 64, 100)
@example(b'a,b\n1,5" disk\n2,"6" disk"\n', 64, 100)
# What is read ends where a cell in quotes begins.
@example(b'""""cccccccccccccccccccc""""""","', 1, 25)
def test_any_bytes_are_read_as_the_definition_says(
    tmp_path_factory: FOLDER, body: bytes, block_bytes: int, limit: int
) -> None:
    data = b"a,b\n" + body
    path = tmp_path_factory.getbasetemp() / "soup.csv"
    path.write_bytes(data)
    want = Want(text="b", columns=None, max_record_bytes=limit, block_bytes=block_bytes)
    try:
        rows, blank, crlf = rows_of(data, 44, limit)
    except Unclosed:
        with pytest.raises(
            DamagedFileError, match="the quote that opens a cell on line"
        ):
            parsed(path, want)
        return
    found = parsed(path, want)
    expected = [(n, row) for n, row in enumerate(rows[1:])]
    good = [(n, row) for n, row in expected if len(row.cells) == 2 and not row.reasons]
    assert [n for block in found for n in block.positions.tolist()] == [
        n for n, _ in good
    ]
    assert [tuple(row.values()) for row in whole(found)] == [
        tuple(cell.decode() for cell in row.cells) for _, row in good
    ]
    assert [t for b in found if b.text is not None for t in b.text.to_pylist()] == [
        row.cells[1].decode() for _, row in good
    ]
    bad = {line.position: line for block in found for line in block.bad}
    assert sorted(bad) == [
        n for n, row in expected if len(row.cells) != 2 or row.reasons
    ]
    for n, line in bad.items():
        assert line.fault.reason in rows[n + 1].reasons | {"ragged_row"}
        assert line.raw == rows[n + 1].raw
    assert sum(block.normalized.get("blank_line", 0) for block in found) == blank
    assert sum(block.normalized.get("crlf", 0) for block in found) == crlf
    assert sum(block.bytes_read for block in found) <= len(data)


def test_a_row_longer_than_a_block_and_the_limit_is_named_with_its_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'a,b\n1,"\n"\n2,"\n",' + b"x" * 5000 + b"\r\n3,4\n5\n")
    found = parsed(path, Want(text="b", max_record_bytes=999, block_bytes=16))
    (long, ragged) = [line for block in found for line in block.bad]
    assert (long.position, long.fault.reason, len(long.raw)) == (
        1,
        "record_too_long",
        5006,
    )
    assert long.fault.detail == "the row has 5006 bytes, max_record_bytes is 999"
    assert (long.line, ragged.line) == (4, 7)
    assert sum(block.normalized.get("crlf", 0) for block in found) == 1


# ---- what is written is read
# -------------------------------------------------------------------------

CELL = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=12
) | st.sampled_from(
    [
        "NA",
        "null",
        "",
        "007",
        "1e5",
        "2020-01-01",
        "true",
        " x ",
        '"',
        "a\nb",
        "\r\n",
        ",",
        "\t",
        "'",
        "\\",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CELL, CELL, CELL), max_size=8),
    st.sampled_from(",;\t|a"),
    BLOCKS,
    st.data(),
)
def test_what_a_writer_wrote_is_read(
    tmp_path_factory: FOLDER,
    rows: list[tuple[str, str, str]],
    delimiter: str,
    block_bytes: int,
    data: Any,
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    # The module leaves carriage returns unquoted where lines do not end in one.
    returns = any("\r" in cell for row in rows for cell in row)
    every = (
        csv.QUOTE_ALL
        if returns
        else data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        end = data.draw(st.sampled_from(["\n", "\r\n"]))
        writer = csv.writer(
            file, delimiter=delimiter, quoting=every, lineterminator=end
        )
        writer.writerows([("x", "y.z", ""), *rows])
    found = parsed(
        path,
        Want(
            text="y.z", columns=("", "x"), delimiter=delimiter, block_bytes=block_bytes
        ),
    )
    assert [line for block in found for line in block.bad] == []
    assert [
        text for block in found if block.text for text in block.text.to_pylist()
    ] == [y for _, y, _ in rows]
    assert [tuple(row.items()) for row in whole(found)] == [
        (("", z), ("x", x)) for x, _, z in rows
    ]


# ---- through the door
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", PACK)
def test_tabs_and_compression_are_taken_from_the_name(
    tmp_path: Path, extension: str
) -> None:
    data = b'id\ttext\n1\t"a\t""b"""\n02\tNA\n'
    path = written(tmp_path, PACK[extension](data), f"in.tsv{extension}")
    assert texts(read(path)) == ['a\t"b"', "NA"]
    assert positions(read(path)) == [0, 1]
    assert dicts(rows(path, ("text", "id"))) == [
        {"text": 'a\t"b"', "id": "1"},
        {"text": "NA", "id": "02"},
    ]
    assert sum(batch.bytes_read for batch in read(path)) == path.stat().st_size


def test_a_source_of_type_csv_may_have_another_name_and_delimiter(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, b"id|text\n1|a,b\n", "in.dat")
    assert dicts(rows(path, type="csv", delimiter="|")) == [{"id": "1", "text": "a,b"}]


def test_a_file_is_read_whole_however_small_a_unit_is(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        b"text\n" + b"".join(b'"line %d\n"\n' % n for n in range(500)),
        "in.csv",
    )
    assert len(split_file(one(path), 10)) == 1
    assert texts(read(path, unit_size=10)) == [f"line {n}\n" for n in range(500)]


def test_blocks_of_a_big_file_meet_exactly(tmp_path: Path) -> None:
    lines = [
        b'%d,"%s"\n' % (n, (b'some ""text"",\n' * (n % 50)) + b"%d" % n)
        for n in range(30_000)
    ]
    batches = read(written(tmp_path, b"id,text\n" + b"".join(lines), "in.csv"))
    assert len(batches) > 2
    assert texts(batches) == [
        'some "text",\n' * (n % 50) + str(n) for n in range(30_000)
    ]
    assert positions(batches) == list(range(30_000))


PLAIN_CELL = st.text(st.sampled_from('ab é",;'), min_size=1).filter(
    lambda cell: cell[0] != '"'
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(PLAIN_CELL, PLAIN_CELL), min_size=1, max_size=6),
    st.integers(1, 80),
)
def test_quotes_inside_of_cells_between_tabs_are_characters(
    tmp_path_factory: FOLDER, cells: list[tuple[str, str]], block: int
) -> None:
    lines = ["\t".join(row) for row in [("id", "text"), *cells]]
    path = written(
        tmp_path_factory.mktemp("tabs"), ("\n".join(lines) + "\n").encode(), "in.tsv"
    )
    blocks = parsed(path, Want(text=None, columns=("id", "text"), block_bytes=block))
    assert not [bad for found in blocks for bad in found.bad]
    assert [(row["id"], row["text"]) for row in whole(blocks)] == cells


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_quote_behind_one_that_closes_a_cell_is_stray_everywhere(
    tmp_path: Path, suffix: str
) -> None:
    separator = "\t" if suffix == "tsv" else ","
    data = f'id{separator}text\n1{separator}"said" he\n2{separator}fine\n'
    batches = read(written(tmp_path, data.encode(), f"in.{suffix}"))
    assert texts(batches) == ["fine"]
    assert [reason for _, _, reason in faults(batches)] == ["stray_quote"]
