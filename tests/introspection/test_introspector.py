"""A look at a source: what it reports, what it reads for that, and what becomes of
damaged files.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import yaml

from tokenlake import DatasetIntrospector
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.etl.introspection import Inspection
from tokenlake.etl.sources import InputFile, opened

FILE_BYTES = 4 << 20
"""Largest number of bytes that an inspection reads of one file."""
LOOKED_INTO = 8
"""Largest number of files that it opens."""

CHAT = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
]


def inspect(source: Path | str | list[str], **options: Any) -> Inspection:
    return DatasetIntrospector(
        str(source) if isinstance(source, Path) else source, **options
    ).inspect()


def write_lines(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def prose(count: int) -> list[str]:
    return [
        f"Text number {i}. " + "The river rose, the lake did not. " * (i % 7 + 3)
        for i in range(count)
    ]


def told(found: Inspection) -> dict[str, str]:
    return {finding.file: finding.what for finding in found.findings}


# -- formats


def test_parquet_says_everything_by_its_footer(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("text", pa.dictionary(pa.int32(), pa.large_string())),
            pa.field(
                "meta",
                pa.struct(
                    [("tags", pa.list_(pa.string())), ("at", pa.timestamp("us"))]
                ),
            ),
        ]
    )
    rows = [
        {"id": i, "text": text, "meta": {"tags": ["a"], "at": None}}
        for i, text in enumerate(prose(500))
    ]
    pq.write_table(
        pa.Table.from_pylist(rows, schema), tmp_path / "a.parquet", row_group_size=100
    )
    found = inspect(tmp_path / "a.parquet")
    (group,) = found.groups
    assert (group.rows, group.rows_exact, group.kind, group.formats) == (
        500,
        True,
        "text",
        {"parquet": 1},
    )
    assert [(f.name, f.type, f.nullable, f.role) for f in group.features] == [
        ("id", "int64", False, "id"),
        ("text", "string", True, "text"),
        ("meta", "struct<tags: list<string>, at: timestamp[us]>", True, None),
    ]
    assert group.sample[0] == {
        "id": 0,
        "text": rows[0]["text"],
        "meta": {"tags": ["a"], "at": None},
    }
    assert (group.text.column, group.text.ascii_share, group.text.records) == (
        "text",
        1.0,
        64,
    )
    expected = sum(len(row["text"]) for row in rows[:64]) / 64
    assert group.text.mean_characters == pytest.approx(expected, abs=0.1)
    assert found.findings == ()


def test_json_lines_are_estimated_without_reading_all_of_them(tmp_path: Path) -> None:
    records = [{"text": text, "n": i} for i, text in enumerate(prose(30_000))]
    write_lines(tmp_path / "a.jsonl", records)
    found = inspect(tmp_path)
    (group,) = found.groups
    assert found.bytes > 2 * found.bytes_read
    assert not group.rows_exact
    assert group.rows == pytest.approx(30_000, rel=0.02)
    assert {f.name: f.type for f in group.features} == {"text": "string", "n": "int64"}
    assert not any(feature.nullable for feature in group.features)


def test_a_file_that_begins_with_short_lines_is_estimated_by_all_of_it(
    tmp_path: Path,
) -> None:
    short = [{"text": "a short one"}] * 60_000
    long = [{"text": text * 60} for text in prose(600)]
    write_lines(tmp_path / "big.jsonl", short + long)
    for number in range(20):
        write_lines(
            tmp_path / f"small-{number}.jsonl",
            [{"text": text * 5} for text in prose(40)],
        )
    (group,) = inspect(tmp_path).groups
    assert group.rows is not None
    assert group.rows_margin is not None
    assert abs(group.rows - (60_600 + 800)) <= group.rows_margin
    assert group.rows == pytest.approx(61_400, rel=0.1)
    assert "±" in group.records_in_words


def test_a_list_of_files_is_never_cut(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "part-0001.parquet", {"text": ["a"]}).read_bytes()
    for number in range(2, 1_100):
        (tmp_path / f"part-{number:04}.parquet").write_bytes(whole)
    # One file of the family cannot be read, so that no pattern names exactly the
    # others.
    (tmp_path / "part-0000.parquet").write_bytes(whole[:20])
    [dataset] = yaml.safe_load(inspect(tmp_path, tokenizer="gpt2").proposal)["datasets"]
    names = [Path(name).name for name in dataset["data_files"]]
    assert names == [f"part-{number:04}.parquet" for number in range(1, 1_100)]


def test_files_that_were_not_looked_into_count_like_those_of_their_size(
    tmp_path: Path,
) -> None:
    for number in range(30):
        write_lines(
            tmp_path / f"a-{number:02}.jsonl",
            [{"text": text} for text in prose(100 + number)],
        )
    (group,) = inspect(tmp_path).groups
    all_records = sum(100 + number for number in range(30))
    assert not group.rows_exact
    assert group.rows is not None and group.rows_margin is not None
    assert abs(group.rows - all_records) <= max(group.rows_margin, 0.02 * all_records)


def test_a_compressed_file_is_estimated_whatever_the_decompressor_reads_ahead(
    tmp_path: Path,
) -> None:
    numbers = [os.urandom(40).hex() for _ in range(80_000)]
    write_lines(tmp_path / "a.jsonl.gz", [{"text": text} for text in numbers])
    (group,) = inspect(tmp_path).groups
    assert not group.rows_exact
    assert group.rows == pytest.approx(80_000, rel=0.1)


def test_a_json_array_larger_than_the_look_is_cut_between_elements(
    tmp_path: Path,
) -> None:
    tricky = ['], [ "', "\\", 'a "quoted" }', "x, y"]
    records = [
        {"text": tricky[i % 4] + text, "tags": ["a", [1, 2]]}
        for i, text in enumerate(prose(9000))
    ]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=1))
    found = inspect(tmp_path)
    (group,) = found.groups
    assert found.findings == ()
    assert group.sample[1]["text"] == records[1]["text"]
    assert group.rows == pytest.approx(9000, rel=0.02)


def test_relative_paths_stay_relative_and_a_field_of_several_types_is_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [
        {"text": "a", "x": 1, "y": 1},
        {"text": "b", "x": "one", "y": 1.5},
        {"text": "c", "y": None},
    ]
    write_lines(tmp_path / "in" / "a-1.jsonl", records)
    write_parquet(tmp_path / "in" / "a-2.parquet", {"text": ["a"]})
    write_lines(tmp_path / "in" / "chat.jsonl", [{"messages": CHAT}])
    chat, text = sorted(inspect("in").groups, key=lambda group: group.kind)
    assert (text.entry["data_files"], chat.entry["data_files"]) == (
        ["in/a-1.jsonl", "in/a-2.parquet"],
        "in/chat.jsonl",
    )
    types = {f.name: (f.type, f.nullable) for f in text.features}
    assert types == {
        "text": ("string", True),
        "x": ("mixed", True),
        "y": ("double", True),
    }
    (tmp_path / "b.jsonl").write_text(json.dumps([{"text": "a"}, {"text": "b"}]))
    (group,) = inspect("b.jsonl").groups
    assert (group.rows, group.entry["type"]) == (2, "json")


def test_csv_with_another_delimiter_and_line_breaks_in_quotes(tmp_path: Path) -> None:
    lines = ["Nr.;Raw Content;Größe"] + [
        f'{i:04};"{text}\nsecond; line";NA' for i, text in enumerate(prose(9000))
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    found = inspect(tmp_path)
    (group,) = found.groups
    assert found.findings == ()
    assert [f.name for f in group.features] == ["Nr.", "Raw Content", "Größe"]
    assert group.sample[1]["Nr."] == "0001"
    assert group.entry["delimiter"] == ";"
    assert group.entry["content_field"] == "Raw Content"
    assert group.rows == pytest.approx(9000, rel=0.02)


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_are_looked_into_without_reading_their_batches(
    tmp_path: Path, stream: bool
) -> None:
    table = pa.table({"text": ["a long text " * 400] * 4000, "id": list(range(4000))})
    new = ipc.new_stream if stream else ipc.new_file
    with new(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2000)
    found = inspect(tmp_path)
    (group,) = found.groups
    assert found.bytes > 4 * FILE_BYTES
    assert found.bytes_read < FILE_BYTES
    assert [f.type for f in group.features] == ["string", "int64"]
    assert group.rows == pytest.approx(4000, rel=0.05)
    assert group.sample[2]["id"] == 2
    assert found.findings == ()


def test_text_files_are_documents_unless_they_look_like_lists_of_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(prose(6000)))
    (group,) = inspect(tmp_path / "book.txt").groups
    assert (group.rows, group.rows_exact) == (1, True)
    assert "text_mode" not in group.entry
    assert "content_field" not in group.entry
    assert group.text.mean_characters == pytest.approx(
        len("\n\n".join(prose(6000))), rel=0.01
    )
    (tmp_path / "list.txt").write_text("\n".join(prose(12000)))
    (group,) = inspect(tmp_path / "list.txt").groups
    assert group.entry["text_mode"] == "lines"


def test_a_name_that_says_nothing_is_judged_by_its_bytes(tmp_path: Path) -> None:
    write_lines(tmp_path / "part-0", [{"text": text} for text in prose(5)])
    write_lines(tmp_path / "part-1", [{"text": text} for text in prose(7)])
    (group,) = inspect(f"{tmp_path}/part-*").groups
    assert (group.rows, group.entry["type"]) == (12, "jsonl")
    write_parquet(tmp_path / "table", {"text": ["a"]})
    (group,) = inspect(tmp_path / "table").groups
    assert (group.rows, group.entry["type"]) == (1, "parquet")
    with pytest.raises(ConfigError, match="the extension is unknown"):
        inspect([str(tmp_path / "table"), str(tmp_path / "part-0")])


# -- kinds


@pytest.mark.parametrize(
    ("record", "kind", "column"),
    [
        ({"content": "a", "url": "b"}, "text", "content"),
        ({"instruction": "a", "input": "b", "output": "c"}, "instruction", None),
        ({"question": "a", "answer": "b", "text": "c"}, "instruction", "text"),
        ({"messages": CHAT}, "chat", None),
        (
            {"conversations": [{"from": "human", "value": "hi"}], "id": "1"},
            "chat",
            None,
        ),
        ({"data": CHAT}, "chat", None),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference", None),
        ({"data": {"text": "a"}, "id": 1}, "text", "data.text"),
        ({"x": 1}, "unknown", None),
    ],
)
def test_the_kind_and_the_text_by_the_columns(
    tmp_path: Path, record: dict[str, Any], kind: str, column: str | None
) -> None:
    write_lines(tmp_path / "a.jsonl", [record] * 3)
    found = inspect(tmp_path)
    (group,) = found.groups
    assert (group.kind, group.mapping.columns.get("text")) == (kind, column)
    assert found.runnable == (kind != "unknown")
    if column is not None:
        assert group.entry is not None
        assert group.entry["content_field"] == column


def test_a_column_can_be_named(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "a.jsonl",
        [{"text": "short", "essay": "a long one", "m": {"t": "x"}}],
    )
    for name in ("essay", "m.t"):
        (group,) = inspect(tmp_path, columns={"text": name}).groups
        assert group.entry["content_field"] == name
    with pytest.raises(ConfigError, match=r"no column 'esay'; did you mean 'essay'\?"):
        inspect(tmp_path, columns={"text": "esay"})


# -- several files


def test_files_of_different_kinds_are_groups_of_their_own(tmp_path: Path) -> None:
    for i in range(3):
        write_parquet(tmp_path / f"text-{i}.parquet", {"text": prose(20)})
        write_lines(
            tmp_path / f"web-{i}.jsonl",
            [{"content": text, "url": "u"} for text in prose(10)],
        )
    write_lines(tmp_path / "chat.jsonl", [{"messages": CHAT}] * 5)
    found = inspect(tmp_path)
    groups = {
        group.name: (group.kind, group.files, group.rows) for group in found.groups
    }
    assert groups == {
        "text": ("text", 3, 60),
        "web": ("text", 3, 30),
        "chat": ("chat", 1, 5),
    }
    entries = {
        g.name: (g.entry["data_files"], g.entry["content_field"])
        for g in found.groups
        if g.entry
    }
    assert entries == {
        "text": (f"{tmp_path}/text-*.parquet", "text"),
        "web": (f"{tmp_path}/web-*.jsonl", "content"),
        "chat": (f"{tmp_path}/chat.jsonl", "messages"),
    }


def test_names_suggest_splits_and_a_split_can_be_chosen(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("test", 1)):
        for i in range(count):
            write_parquet(
                tmp_path / "data" / f"{name}-{i:05}-of-{count:05}.parquet",
                {"text": prose(10)},
            )
    whole = DatasetIntrospector(tmp_path)
    assert [(split.name, split.files) for split in whole.splits()] == [
        ("test", 1),
        ("train", 3),
    ]
    usual = whole.inspect()
    assert (usual.files, usual.groups[0].rows) == (3, 30)
    assert "files of split 'train'; not among them: test (1 file)" in told(usual)[""]
    assert (usual.groups[0].entry["data_files"], usual.groups[0].entry["split"]) == (
        str(tmp_path),
        "train",
    )
    some = inspect(tmp_path, split="test")
    assert (some.files, some.groups[0].rows) == (1, 10)
    assert (some.groups[0].entry["data_files"], some.groups[0].entry["split"]) == (
        str(tmp_path),
        "test",
    )
    with pytest.raises(
        ConfigError, match=r"no split 'dev'.* it has train \(3 files\), test \(1 file\)"
    ):
        inspect(tmp_path, split="dev")


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="holds nothing"):
        inspect(tmp_path)
    write_lines(tmp_path / "books.jsonl", [{"text": "a"}])
    with pytest.raises(SourceNotFoundError, match=r"Did you mean .*books\.jsonl"):
        inspect(tmp_path / "boks.jsonl")
    with pytest.raises(ConfigError, match="rows: got -1"):
        inspect(tmp_path, rows=-1)


def test_sample_records_are_cut_and_come_from_several_files(tmp_path: Path) -> None:
    record = {"text": "x" * 1000, "list": list(range(9)), "inner": {"note": "y" * 400}}
    write_lines(tmp_path / "a.jsonl", [record, {"text": "a2"}])
    write_lines(tmp_path / "b.jsonl", [{"text": "b1"}])
    first, second = inspect(tmp_path, rows=2).groups[0].sample
    assert first["text"] == "x" * 300 + "... (1,000 characters)"
    assert first["list"] == [0, 1, 2, 3, 4, "... (9 items)"]
    assert first["inner"]["note"].endswith("... (400 characters)")
    assert second == {"text": "b1"}
    assert inspect(tmp_path, rows=0).groups[0].sample == ()


# -- damage


def test_damaged_files_are_findings_and_left_out(tmp_path: Path) -> None:
    for i in range(3):
        write_parquet(tmp_path / f"a-{i}.parquet", {"text": prose(50)})
    whole = (tmp_path / "a-1.parquet").read_bytes()
    (tmp_path / "a-1.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.parquet").touch()
    broken = write_lines(
        tmp_path / "b.jsonl.gz", [{"text": text} for text in prose(50)]
    )
    broken.write_bytes(broken.read_bytes()[:-20])
    found = inspect(tmp_path)
    assert set(told(found)) == {"a-1.parquet", "empty.parquet", "b.jsonl.gz"}
    assert "its footer cannot be read" in told(found)["a-1.parquet"]
    assert "stream is cut or corrupt" in told(found)["b.jsonl.gz"]
    assert "it is empty" in told(found)["empty.parquet"]
    (entry,) = (group.entry for group in found.groups if group.entry)
    assert entry["data_files"] == [f"{tmp_path}/a-0.parquet", f"{tmp_path}/a-2.parquet"]


def test_empty_files_change_nothing_and_others_are_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "b.jsonl").touch()
    for name in ("c.jsonl.br", "README.md", "_SUCCESS", ".hidden.doc"):
        (tmp_path / name).write_text("x")
    found = inspect(tmp_path)
    (group,) = found.groups
    assert (group.files, group.rows, group.entry["data_files"]) == (2, 1, str(tmp_path))
    assert told(found) == {
        "": "files that are not read, because of their names: .jsonl.br 1, .md 1",
        "b.jsonl": "it is empty",
    }
    assert not any(finding.fatal for finding in found.findings)
    (tmp_path / "a.jsonl").unlink()
    (group,) = inspect(tmp_path).groups
    assert (group.kind, group.rows, group.entry) == ("empty", 0, None)


def test_a_file_that_cannot_be_opened_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user sees it; whoever runs the tests may be allowed everything."""
    write_lines(tmp_path / "a.jsonl", [{"text": "a"}])

    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tokenlake.etl.introspection.sample.opened", refused)
    assert told(inspect(tmp_path)) == {
        "a.jsonl": "it cannot be read (Permission denied)"
    }


def test_a_flipped_page_is_found(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "a.parquet",
        {"text": prose(60)},
        write_page_checksum=True,
        compression="none",
    )
    data = bytearray(path.read_bytes())
    data[data.index(b"The river")] ^= 1
    path.write_bytes(data)
    found = inspect(path)
    assert "row group 0 cannot be read" in told(found)["a.parquet"]
    assert not found.runnable


def test_bad_records_are_counted_by_reason(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in prose(5)])
    path.write_bytes(path.read_bytes() + b'{"text": \n{"text": null}\n{"other": 1}\n')
    found = inspect(tmp_path)
    (group,) = found.groups
    assert group.bad == {"invalid_json": 1, "missing_field": 1, "null_text": 1}
    assert group.first_bad == {
        "invalid_json": "a.jsonl:6",
        "missing_field": "a.jsonl:8",
        "null_text": "a.jsonl:7",
    }
    assert told(found)["a.jsonl"] == (
        "3 of 8 sampled records are bad: invalid_json 1 (first: a.jsonl:6), missing_field 1 (first: a.jsonl:8), "
        "null_text 1 (first: a.jsonl:7)"
    )
    assert "on_bad_record: quarantine" in found.proposal


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "json"])
def test_a_file_that_is_read_to_its_end_is_counted(tmp_path: Path, ending: str) -> None:
    """Two blocks are the whole file, which is longer than one."""
    texts = [text * 8 for text in prose(1_000)]
    path = tmp_path / f"a.{ending}"
    if ending == "csv":
        path.write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    elif ending == "json":
        path.write_text(json.dumps([{"text": text} for text in texts]))
    else:
        write_lines(path, [{"text": text} for text in texts])
    found = inspect(path)
    (group,) = found.groups
    assert (group.rows, group.rows_exact, group.sampled) == (1_000, True, 1_000)
    assert found.bytes_read == path.stat().st_size
    assert "1,000 records." in found.proposal


def test_a_record_larger_than_the_bound_is_said(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "x" * (FILE_BYTES + 10)}])
    found = inspect(tmp_path)
    assert "no record ends in its first 4 MiB" in told(found)["a.jsonl"]
    assert found.bytes_read <= FILE_BYTES


# -- bounds


class Counted:
    """Bytes that were really read of local files, by path."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.places: dict[str, set[int]] = {}

    def add(self, file: InputFile, offset: int, count: int) -> None:
        self.bytes[file.path] = self.bytes.get(file.path, 0) + count
        places = self.places.setdefault(file.path, set())
        places.update(range(offset, offset + count))

    @property
    def distinct(self) -> int:
        """The number of bytes of the files that were read, each once."""
        return sum(len(places) for places in self.places.values())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Every byte of an input goes through this, below what bounds it."""
    counts = Counted()

    class _Counting:
        """An input that counts its reads; it has no `for_arrow`, since Arrow must
        read through the bound.
        """

        def __init__(self, data: Any) -> None:
            self.file = data.file
            self.read_ahead = data.read_ahead
            self.max_expansion = data.max_expansion
            self._data = data

        def read_into(self, view: memoryview, offset: int) -> int:
            read = self._data.read_into(view, offset)
            counts.add(self.file, offset, read)
            return read

    @contextmanager
    def counting(file: InputFile, options: Any = None) -> Iterator[_Counting]:
        with opened(file, options) as data:
            yield _Counting(data)

    monkeypatch.setattr("tokenlake.etl.introspection.sample.opened", counting)
    return counts


def test_a_look_reads_at_most_a_few_megabytes_of_a_few_files(
    tmp_path: Path, counted: Counted
) -> None:
    noise = [os.urandom(3000).hex() for _ in range(1500)]  # 9 MB
    for i in range(12):
        kind = ("jsonl", "jsonl.gz", "parquet")[i % 3]
        if kind == "parquet":
            write_parquet(
                tmp_path / f"p-{i}.parquet",
                {"text": noise, "b": noise, "c": noise},
                row_group_size=2000,
            )
        elif i < 3:
            write_lines(tmp_path / f"a-{i}.{kind}", [{"text": text} for text in noise])
        else:
            (tmp_path / f"a-{i}.{kind}").hardlink_to(tmp_path / f"a-{i % 3}.{kind}")
    found = inspect(tmp_path)
    assert found.files == 12
    assert found.looked_into == LOOKED_INTO
    assert counted.distinct == found.bytes_read
    assert max(counted.bytes.values()) <= FILE_BYTES
    opened = {path for path, size in counted.bytes.items() if size > 1 << 20}
    assert len(opened) <= LOOKED_INTO


def test_of_hundreds_of_files_eight_are_opened(
    tmp_path: Path, counted: Counted
) -> None:
    for i in range(300):
        (tmp_path / f"{chr(97 + i % 26)}{i}.txt").write_text("tiny")
    found = inspect(tmp_path)
    assert (found.files, found.groups[0].rows, found.groups[0].rows_exact) == (
        300,
        300,
        True,
    )
    assert len(counted.bytes) == LOOKED_INTO
    assert found.groups[0].entry["data_files"] == str(tmp_path)


def test_columns_too_large_for_a_look_are_left_out_of_the_sample(
    tmp_path: Path, counted: Counted
) -> None:
    big = [os.urandom(500_000) for _ in range(8)]
    columns: dict[str, list[Any]] = {f"image_{i}": big for i in range(4)} | {
        "text": prose(8)
    }
    write_parquet(tmp_path / "a.parquet", columns, use_dictionary=False)
    found = inspect(tmp_path)
    (group,) = found.groups
    assert max(counted.bytes.values()) <= FILE_BYTES
    assert [f.name for f in group.features] == list(columns)
    assert group.sample[0]["text"] == columns["text"][0]
    assert "columns not sampled, too large" in told(found)["a.parquet"]
    assert group.entry["content_field"] == "text"


# -- real data


@pytest.mark.corpora
def test_real_corpora_are_told_apart(shared_data: Path) -> None:
    found = inspect(shared_data / "corpora")
    groups = {
        group.kind: (group.files, group.rows, group.rows_exact)
        for group in found.groups
    }
    assert groups["text"][0] == 10
    assert groups["text"][1] == pytest.approx(3403, rel=0.1)
    assert groups["chat"][1] == pytest.approx(3736, rel=0.1)
    assert groups["instruction"][1] == pytest.approx(7472, rel=0.1)
    proposed = {
        dataset["data_files"] for dataset in yaml.safe_load(found.proposal)["datasets"]
    }
    assert proposed == {str(shared_data / "corpora" / "*.parquet")}
    assert found.findings == ()


def test_a_field_of_a_single_odd_record_does_not_decide(tmp_path: Path) -> None:
    records: list[Any] = [{"messages": CHAT}] * 99 + [{"text": "no messages"}]
    found = inspect(write_lines(tmp_path / "chats.jsonl", records))
    assert found.groups[0].kind == "chat"
    assert yaml.safe_load(found.proposal)["datasets"][0]["content_field"] == "messages"
