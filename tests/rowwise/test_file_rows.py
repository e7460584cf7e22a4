"""Where rows start: the index of line files agrees with the readers, and is never
trusted when it should not be.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sources.support import one, read
from tokenlake.errors import DamagedFileError, InputChangedError
from tokenlake.etl.sources import InputFile, opened
from tokenlake.rowwise.file_rows import RowIndexes, seek

MODULE = "tokenlake.rowwise.file_rows"

LINES = st.lists(
    st.sampled_from(
        [
            *(
                b"",
                b"\r",
                b"\r\r",
                b" ",
                b" \t ",
                b" \r",
                b"x",
                b'{"text":"a"}',
                b' {"text":"b"}\r',
            ),
            *(
                b'{"text":"' + b"long" * 20 + b'"}',
                b'{"text":',
                b" " * 90,
                b"a\xff",
                b"null",
            ),
            *(b"\xef\xbb\xbf", b"\0"),
        ]
    ),
    max_size=12,
)


@pytest.fixture(params=["jsonl", "text"])
def kind(request) -> str:
    return request.param


def listed(folder: str, kind: str, data: bytes) -> InputFile:
    path = Path(folder, "a.jsonl" if kind == "jsonl" else "a.txt")
    path.write_bytes(data)
    return one(path, text_mode="lines")


def row_places(file: InputFile) -> list[int]:
    """Where the readers see records, good or bad."""
    batches = read(Path(file.url), text_mode="lines")
    found = [position for batch in batches for position in batch.positions.tolist()]
    return sorted(found + [bad.position for batch in batches for bad in batch.bad])


def indexed(file: InputFile, indexes: RowIndexes, row: int = 1 << 60) -> Any:
    """Return the index of a file, continued up to a row, by default to the end of
    the file.
    """
    with opened(file) as data:
        return indexes.up_to(data, row)


def first_byte(file: InputFile, row: int, indexes: RowIndexes) -> int:
    """Return the byte at which reading begins for a row."""
    parts, number = seek(file, row, indexes)
    assert number == row
    return next(iter(parts)).start


@pytest.mark.parametrize("kind", ["jsonl", "text"])
@given(
    lines=LINES,
    bom=st.booleans(),
    ended=st.booleans(),
    step=st.sampled_from([8, 64, 1 << 20]),
)
@example(lines=[], bom=True, ended=False, step=8)
@example(lines=[b""], bom=True, ended=True, step=8)
@example(lines=[b"\r"], bom=False, ended=False, step=8)
@settings(max_examples=30)
def test_the_index_finds_every_row_where_the_readers_see_one(
    kind, lines, bom, ended, step
):
    data = b"\xef\xbb\xbf" * bom + b"\n".join(lines) + b"\n" * ended
    with tempfile.TemporaryDirectory() as folder, patch(f"{MODULE}._STEP", step):
        file = listed(folder, kind, data)
        indexes = RowIndexes(folder)
        index = indexed(file, indexes)
        places = row_places(file)
        assert [
            first_byte(file, row, indexes) for row in range(1, index.count)
        ] == places[1:]
        assert (index.count, index.complete, index.end) == (
            len(places),
            True,
            len(data),
        )


@given(lines=LINES, stops=st.lists(st.integers(0, 12), max_size=3).map(sorted))
@settings(max_examples=25)
def test_a_scan_in_pieces_gives_the_index_of_one_scan(lines, stops):
    with tempfile.TemporaryDirectory() as folder, patch(f"{MODULE}._STEP", 8):
        file = listed(folder, "jsonl", b"\n".join(lines))
        indexes = RowIndexes(folder)
        for row in stops:
            index = indexed(file, indexes, row)
            assert index.complete or index.count > row
        assert same(indexed(file, indexes), indexed(file, RowIndexes(folder)))


def test_a_scan_goes_no_further_than_it_is_asked_to(tmp_path):
    file = listed(str(tmp_path), "jsonl", b'{"text":"a"}\n' * 1_000_000)
    index = indexed(file, RowIndexes(tmp_path), 10)
    assert 10 < index.count < 100_000
    assert not index.complete
    assert index.end <= 1 << 20


def test_a_blank_line_longer_than_a_step_is_blank_and_a_long_record_is_a_row(
    tmp_path, kind
):
    blank = b" " * (3 << 20)
    file = listed(
        str(tmp_path), kind, b"a\n" + blank + b"\n" + b"b" * (3 << 20) + b"\nc\n"
    )
    index = indexed(file, RowIndexes(tmp_path))
    assert index.count == len(row_places(file)) == (3 if kind == "jsonl" else 4)


# --- stored indexes


@pytest.fixture
def old(tmp_path, kind, monkeypatch) -> InputFile:
    """Return a file that counts as changed long enough ago for its state to be
    trusted.
    """
    monkeypatch.setattr(f"{MODULE}._RACY_NS", 0)
    monkeypatch.setattr(f"{MODULE}._STEP", 1 << 10)
    return listed(str(tmp_path), kind, b"row\n\n" * 1000)


def same(left: Any, right: Any) -> bool:
    numbers = (left.count, left.end, left.complete) == (
        right.count,
        right.end,
        right.complete,
    )
    return (
        numbers
        and left.rows.tolist() == right.rows.tolist()
        and left.offsets.tolist() == right.offsets.tolist()
    )


def test_a_stored_index_comes_back_in_another_process(tmp_path, old):
    cache = tmp_path / "cache"
    index = indexed(old, RowIndexes(cache, least=1))
    assert len(index.rows) == 5
    assert same(RowIndexes(cache).get(old), index)
    assert [path.suffix for path in cache.iterdir()] == [".entry"]


@pytest.mark.parametrize("change", ["stat", "size", "url", "format"])
def test_another_state_of_the_file_has_another_index(tmp_path, old, change):
    indexed(old, RowIndexes(tmp_path / "cache", least=1))
    values = {"stat": (1, 2, 3), "size": 7, "url": "/elsewhere", "format": "csv"}
    other = replace(old, **{change: values[change]})
    assert RowIndexes(tmp_path / "cache").get(other).count == 0


def test_the_index_of_a_file_that_may_still_change_unseen_is_not_stored(tmp_path, kind):
    file = listed(str(tmp_path), kind, b"row\n")
    indexes = RowIndexes(tmp_path / "cache", least=1)
    index = indexed(file, indexes)
    assert not (tmp_path / "cache").exists()
    assert index.complete and indexes.get(file) is index


def test_a_seek_uses_the_index_that_is_there(tmp_path):
    file = listed(str(tmp_path), "jsonl", b'{"text":"a"}\n' * 5000)
    indexes = RowIndexes(tmp_path / "cache")
    assert indexed(file, indexes).count == 5000
    # A second scan would make more entries, as its steps are smaller.
    with patch(f"{MODULE}._STEP", 1 << 10):
        assert first_byte(file, 4000, indexes) == 13 * 4000
    assert len(indexes.get(file).rows) == 1


def test_a_file_that_changed_since_it_was_listed_is_no_longer_scanned(tmp_path, kind):
    file = listed(str(tmp_path), kind, b"row\n" * 5)
    Path(file.url).write_bytes(b"row\n" * 6)
    with pytest.raises(InputChangedError):
        seek(file, 3, RowIndexes(tmp_path / "cache"))


# --- formats with metadata


@pytest.fixture
def grouped(tmp_path) -> InputFile:
    """Seven rows in row groups of three, three and one."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": list("abcdefg")}), path, row_group_size=3)
    return one(path)


def test_row_groups_without_rows_are_passed_over(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a", "b"]})
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table[:0], table[:1], table[:0], table[1:], table[:0]):
            writer.write_table(part)
    starts = [
        next(iter(seek(one(path), row, RowIndexes(tmp_path))[0])).start
        for row in (0, 1)
    ]
    assert starts == [1, 3]


def test_a_cut_footer_is_a_damaged_file(tmp_path, grouped):
    data = Path(grouped.url).read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(data[:-5])
    with pytest.raises(DamagedFileError, match="footer"):
        seek(one(path), 1, RowIndexes(tmp_path))


def test_the_index_of_another_file_under_this_name_is_void(tmp_path, old):
    cache = tmp_path / "cache"
    index = indexed(old, RowIndexes(cache, least=1))
    (mine,) = cache.iterdir()
    other = replace(old, size=old.size + 1)
    RowIndexes(cache, least=1).put(other, index)
    (others,) = set(cache.iterdir()) - {mine}
    others.replace(mine)
    assert RowIndexes(cache).get(old).count == 0
