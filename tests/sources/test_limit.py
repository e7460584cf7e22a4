"""`num_rows`: exactly the first so many records, found out by the planner, the same
whatever the units.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builds import config_of
from tests.sources.support import COMPRESS, PACK, Source, one, renamed, written
from tokenlake.etl import build_dataset
from tokenlake.etl.planner import most_in_range
from tokenlake.etl.sources import (
    FileRange,
    RecordLimit,
    list_inputs,
    read_range,
    split_file,
)

FORMATS = [
    "jsonl",
    "jsonl.gz",
    "jsonl.zst",
    "lines.txt",
    "lines.txt.gz",
    "document.txt",
    "parquet",
]
FORMATS += ["csv", "tsv.gz", "json", "json.gz", "arrow", "arrows"]


def write(folder: Path, kind: str, number: int, texts: list[str | None]) -> Path:
    """Write texts as the records of one file; None is a bad record, where the format
    can hold one.
    """
    name = f"{number:03d}.{kind.removeprefix('lines.').removeprefix('document.')}"
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string())})
    if "parquet" in kind:
        pq.write_table(table, path, row_group_size=3)
    elif "arrow" in kind:
        opening = pa.ipc.new_stream if kind == "arrows" else pa.ipc.new_file
        with opening(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    else:
        path.write_bytes(PACK.get(path.suffix, bytes)(_as_bytes(kind, texts)))
    return path


def _as_bytes(kind: str, texts: list[str | None]) -> bytes:
    if "jsonl" in kind:
        lines = [
            json.dumps({"text": text}) if text is not None else "{" for text in texts
        ]
        # And blank lines.
        return "".join(f"{line}\n{' ' * (len(line) % 3)}\n" for line in lines).encode()
    if "json" in kind:
        return json.dumps([{"text": text} for text in texts]).encode()
    if "csv" in kind or "tsv" in kind:
        mark = "\t" if "tsv" in kind else ","
        return f"id{mark}text\n".encode() + b"".join(
            f"1{mark}{t or 'x'}\n".encode() for t in texts
        )
    if "lines" in kind:
        return "".join(f"{text or ' '}\n\n" for text in texts).encode()
    return "\n".join(text or "" for text in texts).encode()


def source_of(folder: Path, kind: str, **options: Any) -> Any:
    mode = "lines" if kind.startswith("lines") else "document"
    return Source(data_files=(str(folder),), text_mode=mode, **options)


def read_limited(
    source: Any, num_rows: int, unit_size: int = 200
) -> tuple[int, list[str], list[FileRange]]:
    """Return rows read, the texts, and the ranges of a limited source."""
    limit = RecordLimit(source, num_rows, unit_size)
    list_inputs(source, enough=limit.take)
    parts = [part for ranges in limit.ranges for part in ranges]
    batches = [batch for part in parts for batch in read_range(part, source)]
    assert sum(batch.bytes_read for batch in batches) == sum(
        part.weight for part in parts
    )
    return (
        sum(batch.rows_read for batch in batches),
        [text for batch in batches for text in batch.text.to_pylist()],
        parts,
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_the_first_records_of_every_format(tmp_path: Path, kind: str) -> None:
    for number in range(4):
        texts = [f"{number} {index} {'x' * (index % 40)}" for index in range(10)]
        write(
            tmp_path,
            kind,
            number,
            [None if index == 4 else text for index, text in enumerate(texts)],
        )
    source = source_of(tmp_path, kind)
    every, all_texts, _ = read_limited(source, 10**9)
    assert every == (4 if kind.startswith("document") else 40)
    ranges = [part for file in list_inputs(source) for part in split_file(file, 200)]
    assert [
        text
        for part in ranges
        for batch in read_range(part, source)
        for text in batch.text.to_pylist()
    ] == (all_texts)
    for count in (1, 4, 5, 9, 10, 11, 12, 27, 39, 40, 41):
        rows, texts, parts = read_limited(source, count)
        assert rows == min(count, every)
        assert texts == all_texts[: len(texts)]
        assert sum(most_in_range(part) for part in parts) >= rows
        again = read_limited(source, count, unit_size=10**6)
        assert (rows, texts) == again[:2], "units change nothing"


_LINES = st.sampled_from(
    [
        b"",
        b" ",
        b"\t ",
        b"{",
        b'{"text": "a"}',
        b'{"text": null}',
        b"1",
        b"\r",
        b' {"text": "b"} ',
        b"\xff",
    ]
)


@settings(max_examples=60)
@given(
    st.lists(_LINES, max_size=12),
    st.booleans(),
    st.sampled_from(["jsonl", "txt"]),
    st.integers(1, 14),
)
def test_what_is_counted_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    bom: bool,
    kind: str,
    most: int,
) -> None:
    path = tmp_path_factory.mktemp("lines") / f"x.{kind}"
    path.write_bytes(b"\xef\xbb\xbf" * bom + b"\n".join(lines))
    source: Any = Source(text_mode="lines")
    file = one(path, text_mode="lines") if kind == "txt" else one(path)
    for unit_size in (1 << 20, max(file.size // 2, 1), 7):
        parts = split_file(file, unit_size)
        reads = [
            sum(batch.rows_read for batch in read_range(part, source)) for part in parts
        ]
        assert all(
            most_in_range(part) >= read for part, read in zip(parts, reads, strict=True)
        )
        limit = RecordLimit(source, most, unit_size)
        assert limit.take(file) == (sum(reads) >= most)
        assert limit.left == max(most - sum(reads), 0)
        (limited,) = limit.ranges
        for part, whole, read in zip(limited, parts, reads, strict=False):
            assert sum(batch.rows_read for batch in read_range(part, source)) == min(
                read, part.rows or read
            )
            assert 0 <= part.weight <= whole.weight


@pytest.mark.parametrize(
    ("blanks", "records"), [((16 << 20) - 1, 2), (16 << 20, 2), (17 << 20, 3)]
)
def test_long_lines_count_as_the_reader_counts_them(
    tmp_path: Path, blanks: int, records: int
) -> None:
    path = tmp_path / "x.jsonl"
    long = b'{"text": "' + b"x" * (17 << 20) + b'"}\n'
    path.write_bytes(b"\n" + long + b" " * blanks + b'\n{"text": "b"}\n')
    file = one(path)
    (part,) = split_file(file, 1 << 30)
    source: Any = Source()
    limit = RecordLimit(source, 9, 1 << 30)
    assert not limit.take(file)
    assert limit.left == 9 - records
    assert sum(batch.rows_read for batch in read_range(part, source)) == records


def test_no_more_is_read_than_the_limit_needs(tmp_path: Path) -> None:
    write(tmp_path, "jsonl", 0, ["a"] * 10)
    # What is behind the limit may be anything: it is not even opened.
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(b"no gzip")
    write(tmp_path, "parquet", 0, ["a"] * 10)
    (tmp_path / "1.parquet").write_bytes(b"no parquet")
    for pattern, count in (("*.jsonl*", 10), ("*.parquet", 9)):
        rows, _, parts = read_limited(
            Source(data_files=(str(tmp_path / pattern),)), count
        )
        assert rows == count
        assert {part.file.path[:3] for part in parts} == {"000"}


def test_a_limited_range_weighs_what_is_read_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", 0, ["a text"] * 1000)
    source: Any = Source(data_files=(str(path),))
    (part,) = read_limited(source, 10, unit_size=1 << 30)[2]
    assert part.rows == 10
    assert part.weight == pytest.approx(path.stat().st_size / 100, rel=0.02)
    (whole,) = read_limited(source, 2000, unit_size=1 << 30)[2]
    assert (whole.rows, whole.weight) == (None, path.stat().st_size)


def test_where_filters_after_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", 0, [f"{index}" for index in range(100)])
    source: Any = Source(data_files=(str(path),), where="text like '%5'")
    rows, texts, _ = read_limited(source, 20)
    assert (rows, texts) == (20, ["5", "15"])


@pytest.mark.parametrize("count", [5, 8, 9, 10, 30])
def test_records_in_row_groups_that_where_rules_out_count_for_the_limit(
    tmp_path: Path, count: int
) -> None:
    path = write(tmp_path, "parquet", 0, [f"{index}" for index in range(10)])
    source: Any = Source(data_files=(str(path),), where="id >= 6")
    limit = RecordLimit(source, count, 1 << 20)
    list_inputs(source, enough=limit.take)
    batches = [
        batch
        for ranges in limit.ranges
        for part in ranges
        for batch in read_range(part, source)
    ]
    texts = [text for batch in batches for text in batch.text.to_pylist()]
    assert texts == [str(index) for index in range(6, min(count, 10))]
    skipped = sum(sum(batch.skipped.values()) for batch in batches)
    assert skipped == min(count, 6)
    assert sum(batch.rows_read for batch in batches) + skipped == min(count, 10)


def test_a_bound_holds_for_the_most_compressed_records_there_are(
    tmp_path: Path,
) -> None:
    for end, compress in COMPRESS.items():
        (part,) = split_file(
            one(written(tmp_path, compress(b"1\n" * (1 << 20)), f"x.jsonl{end}")),
            1 << 30,
        )
        assert most_in_range(part) >= 1 << 20
    file = renamed(one(tmp_path / "x.jsonl.gz"), format="arrow", compression=None)
    assert most_in_range(FileRange(file=file, start=0, stop=1, weight=1)) > 10**9
    assert most_in_range(FileRange(file=file, start=0, stop=1, weight=1, rows=7)) == 7
    assert (
        most_in_range(
            FileRange(file=file, start=0, stop=1, weight=1, records=9, rows=12)
        )
        == 9
    )


# ---- whole builds
# -----------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    for number in range(3):
        texts: list[str | None] = [f"document {number} {index}" for index in range(40)]
        texts[7] = None
        write(tmp_path / "in", "jsonl", number, texts)
    written(
        tmp_path / "in", COMPRESS[".gz"](b'{"text": "packed"}\n' * 40), "003.jsonl.gz"
    )
    source = {"unit_size": 500, "on_bad_record": "quarantine", "max_bad_fraction": 0.1}
    return config_of(tmp_path, tmp_path / "in", tokenizer_dir, pack=32, num_rows=95) | {
        "source": source
    }


def test_the_account_says_how_many_records_were_read(
    config: dict[str, Any], tmp_path: Path
) -> None:
    result = build_dataset(config, workers=1)
    account = result.manifest.account
    assert (account.rows_read, account.documents) == (95, 92)
    assert {entry.path for entry in result.manifest.inputs} == {
        "000.jsonl",
        "001.jsonl",
        "002.jsonl",
    }
    assert build_dataset(config, workers=1).status == "exists"
    more = config | {"datasets": [config["datasets"][0] | {"num_rows": 10**6}]}
    whole = build_dataset(more, workers=1)
    assert whole.manifest.account.rows_read == 160
    assert whole.units_reused > 0, "units before the limit are the same ones"
