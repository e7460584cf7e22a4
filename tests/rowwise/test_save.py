"""save_dataset, save_iterator and create_writer: what is saved reads back equal, in
order, or nothing is there.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Known, Plain, check_flat
from tests.seeds import promise
from tokenlake.base import parse_size
from tokenlake.easydel import save_iterator
from tokenlake.errors import BadRecordError, ConfigError, SourceError
from tokenlake.etl.export import FlatManifest
from tokenlake.rowwise import (
    ArrowShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    create_writer,
    save_dataset,
)

Row = dict[str, Any]
READERS = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "jsonl": JsonShardedSource,
}
FORMS = [
    *(
        ("parquet", compression)
        for compression in (None, "none", "gzip", "lz4", "zstd")
    ),
    *(("arrow", compression) for compression in (None, "none", "lz4", "zstd")),
    *(("jsonl", compression) for compression in (None, "none", "gzip", "lz4", "zstd")),
]

NAMES = st.sampled_from(["a", "b", "text", "名前"])
SCALARS = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "bool": st.booleans(),
}


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows in which every field is of one kind."""
    fields = draw(st.dictionaries(NAMES, st.sampled_from(sorted(SCALARS)), min_size=1))
    values = {}
    for name, kind in fields.items():
        value = SCALARS[kind] | st.none()
        nested = draw(st.sampled_from(["flat", "list", "dict"]))
        values[name] = {
            "flat": value,
            "list": st.lists(value, max_size=3),
            "dict": st.fixed_dictionaries({"x": value, "y": value}),
        }[nested]
    return draw(st.lists(st.fixed_dictionaries(values), max_size=12))


def read(format: str, folder: Path) -> list[Row]:
    return list(READERS[format](f"{folder}/*.{format}*"))


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def numbers(count: int) -> list[Row]:
    return [{"id": i, "text": "x" * (i % 11)} for i in range(count)]


@promise(279)
@settings(max_examples=20)
@given(tables(), st.sampled_from(FORMS), st.none() | st.integers(1, 5), st.booleans())
@promise(71, 72, 73)
def test_what_is_saved_reads_back_equal_in_order(
    tmp_path_factory, rows, form, num_shards, counted
):
    folder = tmp_path_factory.mktemp("saved") / "out"
    format, compression = form
    source = rows if counted else iter(rows)
    stats = save_dataset(
        source, folder, format, num_shards=num_shards, compression=compression
    )
    assert stats.num_examples == len(rows)
    assert stats.num_shards == len(stats.output_paths) == (num_shards or 1)
    assert stats.total_bytes == sum(
        Path(path).stat().st_size for path in stats.output_paths
    )
    sizes = [file.rows for file in FlatManifest.of(folder).files]
    assert sum(sizes) == len(rows)
    assert max(sizes) - min(sizes) <= 1
    check_flat(folder)
    if rows:
        assert read(format, folder) == rows
    assert hidden(folder.parent) == []


@settings(max_examples=20)
@given(
    st.integers(0, 40), st.sampled_from(sorted(READERS)), st.none() | st.integers(1, 4)
)
def test_an_error_of_the_producer_leaves_nothing(
    tmp_path_factory, good, format, num_shards
):
    parent = tmp_path_factory.mktemp("failed")

    def rows() -> Iterator[Row]:
        yield from numbers(good)
        raise ZeroDivisionError("the producer broke")

    with pytest.raises(ZeroDivisionError):
        save_iterator(rows(), parent / "out", format, num_shards=num_shards)
    assert list(parent.iterdir()) == []


@promise(279)
def test_sources_are_saved_shard_after_shard(tmp_path: Path):
    rows = numbers(3000)
    source = Plain({"b": rows[:1700], "a": rows[1700:]})
    save_dataset(source, tmp_path / "out", num_shards=4)
    assert read("parquet", tmp_path / "out") == rows
    assert [file.rows for file in FlatManifest.of(tmp_path / "out").files] == [750] * 4
    save_dataset(Known({"a": rows}), tmp_path / "known", "arrow", num_shards=3)
    assert read("arrow", tmp_path / "known") == rows


def test_a_source_that_miscounts_is_an_error(tmp_path: Path):
    class Liar(list):
        def __len__(self) -> int:
            return 5

    for count in (4, 6):
        with pytest.raises(SourceError, match="reported 5 rows"):
            save_dataset(Liar(numbers(count)), tmp_path / "out", num_shards=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", sorted(READERS))
@promise(79, 195)
def test_files_end_before_max_shard_size(tmp_path: Path, format: str):
    generator = np.random.default_rng(0)
    rows = [{"text": generator.bytes(3000).hex()} for _ in range(1750)]
    stats = save_dataset(
        rows, tmp_path / "out", format, max_shard_size="4.5MB", compression="none"
    )
    sizes = [Path(path).stat().st_size for path in stats.output_paths]
    assert len(sizes) >= 3
    assert max(sizes) <= 9 << 19
    assert sum(sizes[:-1]) > (len(sizes) - 1) * (2 << 20)
    assert Path(stats.output_paths[0]).name.startswith(
        f"train-00000-of-{len(sizes):05d}"
    )
    assert read(format, tmp_path / "out") == rows


@pytest.mark.parametrize(
    ("form", "limit"),
    [
        *((form, "30KB") for form in ("parquet", "jsonl gzip", "arrow zstd")),
        ("arrow", "250KB"),
    ],
)
@promise(79)
def test_small_files_end_before_max_shard_size_too(
    tmp_path: Path, form: str, limit: str
):
    generator = np.random.default_rng(0)
    rows = [
        {
            "text": generator.bytes(int(size)).hex(),
            "ids": list(range(int(size) % 50)),
            "n": int(size),
        }
        for size in generator.integers(1, 900, 600)
    ]
    format, _, compression = form.partition(" ")
    stats = save_dataset(
        rows,
        tmp_path / "out",
        format,
        max_shard_size=limit,
        compression=compression or "none",
    )
    sizes = [Path(path).stat().st_size for path in stats.output_paths]
    assert max(sizes) <= parse_size(limit)
    assert sum(sizes[:-1]) > (len(sizes) - 1) * parse_size(limit) / 4
    assert read(format, tmp_path / "out") == rows


@promise(75)
def test_num_shards_is_exact_unless_a_size_is_given_too(tmp_path: Path):
    rows = [{"text": np.random.default_rng(i).bytes(200_000).hex()} for i in range(40)]
    assert save_dataset(rows, tmp_path / "a", "jsonl", num_shards=2).num_shards == 2
    stats = save_dataset(
        rows, tmp_path / "b", "jsonl", num_shards=2, max_shard_size="9MB"
    )
    assert stats.num_shards > 2
    assert max(Path(path).stat().st_size for path in stats.output_paths) <= 9 << 20
    assert read("jsonl", tmp_path / "b") == rows


@promise(76, 77)
def test_compression_is_what_the_files_have(tmp_path: Path):
    save_dataset(numbers(10), tmp_path / "p", "parquet", compression="gzip")
    (path,) = (tmp_path / "p").glob("*.parquet")
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "GZIP"
    for compression in ("lz4", "zstd"):
        save_dataset(
            numbers(5000), tmp_path / compression, "arrow", compression=compression
        )
        save_dataset(numbers(5000), tmp_path / f"{compression}-none", "arrow")
    sizes = {
        path.parent.name: path.stat().st_size for path in tmp_path.glob("*/*.arrow")
    }
    assert max(sizes["lz4"], sizes["zstd"]) * 2 < sizes["lz4-none"]
    save_dataset(numbers(10), tmp_path / "j", "jsonl", compression="gzip")
    (path,) = (tmp_path / "j").glob("*.jsonl.gz")
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert path.read_bytes()[4:8] == bytes(4)  # no clock


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"format": "arrow", "compression": "gzip"},
            "'gzip', expected one of 'none', 'lz4', 'zstd'",
        ),
        (
            {"format": "jsonl", "compression": "brotli"},
            "'brotli', expected one of 'none', 'gzip', 'lz4', 'zstd'",
        ),
        ({"format": "parquett"}, "did you mean 'parquet'"),
        ({"compression": "snappy"}, "expected one of 'none', 'gzip', 'lz4', 'zstd'"),
        ({"num_shards": 0}, "num_shards: got 0"),
        ({"max_shard_size": "lots"}, "max_shard_size: got 'lots'"),
        ({"naming": "{split}"}, "not distinct names of data files"),
        ({"naming": "../{index}"}, "not distinct names of data files"),
        ({"naming": "{other}"}, "KeyError"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, options: Row, message: str
):
    with pytest.raises(ConfigError, match=message):
        create_writer(tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (1, "one", r"row 1500, field 'x': 'one' \(str\) is no int64"),
        (1, 1.5, r"row 1500, field 'x': 1.5 \(float\) is no int64"),
        (1, True, "field 'x'"),
        (1.0, True, "field 'x'"),
        ("a", b"a", "field 'x'"),
        (["a"], "a", "field 'x'"),
        ({"k": 1}, {"k": 1, "new": 2}, "field 'x'"),
        ([1], [1.5], "field 'x'"),
        (None, 1, "only nulls in it, so give a schema"),
        (0.5, 2**53 + 1, "field 'x'"),
    ],
)
def test_a_later_value_of_another_type_is_an_error_with_row_and_field(
    tmp_path: Path, first, later, message
):
    rows = [{"x": first}] * 1500 + [{"x": later}]
    with pytest.raises(BadRecordError, match=message) as caught:
        save_dataset(rows, tmp_path / "out")
    assert (caught.value.details["row"], caught.value.details["field"]) == (1500, "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 2.0),
        (1.5, 2),
        ({"k": 1, "l": 2}, {"k": 3}),
        ([1.5], [2]),
        ("a", None),
        ([1], []),
    ],
)
def test_a_later_value_that_is_exactly_of_the_type_is_taken(
    tmp_path: Path, first, later
):
    save_dataset([{"x": first}] * 1000 + [{"x": later}], tmp_path / "out")
    back = read("parquet", tmp_path / "out")[-1]["x"]
    assert back == (later if not isinstance(later, dict) else {"l": None, **later})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2**64 - 1, 0], "uint64"),
        ([2**70, -1, None], "decimal128(38, 0)"),
        ([[2**64 - 1], []], "large_list<item: uint64>"),
        ([{"a": 2**70}], "struct<a: decimal128(38, 0)>"),
    ],
)
def test_integers_beyond_64_bits_keep_their_value(
    tmp_path: Path, values: list[Any], kind: str
):
    for format in READERS:
        save_dataset([{"x": value} for value in values], tmp_path / format, format)
        back = [row["x"] for row in read(format, tmp_path / format)]
        assert back == values
    stored = (
        ipc.open_file(next((tmp_path / "arrow").glob("*.arrow"))).schema.field("x").type
    )
    assert str(stored) == kind
    with pytest.raises(BadRecordError, match="row 0, field 'x'"):
        save_dataset([{"x": 10**40}], tmp_path / "no")


def test_kinds_are_compared_place_by_place(tmp_path: Path):
    rows = [{"x": {"ok": True, "score": 0.5, "raw": b"1", "name": "one"}}]
    save_dataset(rows, tmp_path / "out")
    assert read("parquet", tmp_path / "out") == rows
    for values in ([{"a": 0.5}, {"a": True}], [[b"1"], ["one"]]):
        with pytest.raises(BadRecordError, match=r"row 1, field 'x': .* \(values of"):
            save_dataset([{"x": value} for value in values], tmp_path / "wrong")


@pytest.mark.parametrize(
    "value", [math.nan, [1.0, math.inf], {"k": np.array([math.nan])}, {1, 2}, object()]
)
def test_lines_refuse_what_would_read_back_as_something_else(
    tmp_path: Path, value: object
):
    with pytest.raises(BadRecordError, match="row 1"):
        save_dataset([{"x": 1}, {"x": value}], tmp_path / "out", "jsonl")


def test_what_json_lacks_keeps_its_type_in_columns(tmp_path: Path):
    rows = [
        {
            "when": datetime.datetime(2020, 1, 2, 3),
            "raw": b"\xff",
            "nan": math.inf,
            "ids": [1, 2],
        }
    ] * 3
    save_dataset(rows, tmp_path / "out")
    assert pq.read_table(next((tmp_path / "out").glob("*.parquet"))).to_pylist() == rows


def test_arrays_keep_their_kind_of_number(tmp_path: Path):
    rows = [{"input_ids": np.arange(i % 5, dtype=np.int32)} for i in range(2500)]
    for format in READERS:
        save_dataset(rows, tmp_path / format, format)
        back = [row["input_ids"] for row in read(format, tmp_path / format)]
        assert back == [row["input_ids"].tolist() for row in rows]
    schema = ipc.open_file(next((tmp_path / "arrow").glob("*.arrow"))).schema
    assert schema.field("input_ids").type.value_type == pa.int32()


@promise(279)
def test_rows_can_be_added_one_by_one(tmp_path: Path):
    with create_writer(tmp_path / "out", "jsonl") as writer:
        writer.add({"id": 0})
        writer.extend({"id": i} for i in range(1, 5))
        assert not (tmp_path / "out").exists()
    assert writer.stats.num_examples == 5
    assert [row["id"] for row in read("jsonl", tmp_path / "out")] == list(range(5))
    with pytest.raises(ConfigError, match="rows are added inside"):
        writer.add({"id": 5})
    with pytest.raises(ConfigError, match="already used"), writer:
        pass


def test_a_schema_is_followed(tmp_path: Path):
    schema = pa.schema([("x", pa.int16()), ("y", pa.string())])
    save_dataset([{"x": 1}, {"y": "a"}], tmp_path / "out", schema=schema)
    table = pq.read_table(next((tmp_path / "out").glob("*.parquet")))
    assert table.schema.equals(schema)
    assert table.to_pylist() == [{"x": 1, "y": None}, {"x": None, "y": "a"}]
    with pytest.raises(BadRecordError, match="row 1, field 'x': 70000"):
        save_dataset([{"x": 1}, {"x": 70000}], tmp_path / "new", schema=schema)


def test_values_of_several_kinds_among_the_first_rows_are_an_error(tmp_path: Path):
    rows = [{"x": 1}] * 40 + [{"x": "one"}] * 10
    with pytest.raises(
        BadRecordError,
        match=r"row 40, field 'x': 'one' .* cannot be stored in one column",
    ):
        save_dataset(rows, tmp_path / "out")


def test_a_field_that_the_first_rows_lack_is_an_error(tmp_path: Path):
    with pytest.raises(
        BadRecordError,
        match="row 1000, field 'y': the first rows do not have this field",
    ):
        save_dataset([{"x": 1}] * 1000 + [{"x": 1, "y": 2}], tmp_path / "out")
