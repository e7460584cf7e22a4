"""Every type of column in every export format: JSON Lines have a documented text
form for what JSON has no type for.
"""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from tests.etl.outputs_support import build_here, settings
from tokenlake import export_version
from tokenlake.errors import BadRecordError
from tokenlake.etl.export import text_of
from tokenlake.query import read_sequences
from tokenlake.rowwise import save_dataset
from tokenlake.runtime.store import open_store

INSTANT = datetime.datetime(2026, 1, 31, 12, 34, 56, 500000)
ZONED = INSTANT.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
DAY = datetime.date(2026, 1, 31)
MAP = pa.map_(pa.string(), pa.timestamp("us"))
STRUCT = pa.struct(
    [("when", pa.timestamp("us", "UTC")), ("prices", pa.list_(pa.decimal128(5, 2)))]
)
NESTED = {"when": ZONED, "prices": [decimal.Decimal("1.50"), None]}

COLUMNS: list[tuple[Any, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int8(), -1, -1),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float16(), 1.5, 1.5),
    (pa.float32(), 1.5, 1.5),
    (pa.float64(), float("nan"), None),
    (pa.float64(), float("-inf"), None),
    (pa.list_(pa.float64()), [1.5, float("nan")], [1.5, None]),
    (pa.string(), "é\n", "é\n"),
    (pa.string_view(), "x", "x"),
    (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
    (pa.binary(), b"\xff\x00", "/wA="),
    (pa.binary(2), b"\xff\x00", "/wA="),
    (pa.large_binary(), b"", ""),
    (pa.date32(), DAY, "2026-01-31"),
    (pa.date64(), DAY, "2026-01-31"),
    (pa.time32("s"), datetime.time(1, 2, 3), "01:02:03"),
    (pa.time32("ms"), datetime.time(1, 2, 3, 4000), "01:02:03.004"),
    (pa.time64("us"), datetime.time(23, 59, 59, 1), "23:59:59.000001"),
    (pa.time64("ns"), 86_399_999_999_999, "23:59:59.999999999"),
    (pa.timestamp("s"), INSTANT.replace(microsecond=0), "2026-01-31T12:34:56"),
    (pa.timestamp("ms"), INSTANT, "2026-01-31T12:34:56.5"),
    (pa.timestamp("us"), INSTANT, "2026-01-31T12:34:56.5"),
    (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
    (pa.timestamp("us", "Europe/Zurich"), ZONED, "2026-01-31T11:34:56.5Z"),
    (pa.timestamp("us"), 10**18, "33658-09-27T01:46:40"),  # beyond Python's years
    (pa.duration("s"), -90, "-PT90S"),
    (pa.duration("ms"), 1500, "PT1.5S"),
    (pa.duration("us"), 1, "PT0.000001S"),
    (pa.duration("ns"), 1, "PT0.000000001S"),
    (pa.decimal128(10, 2), decimal.Decimal("1.10"), "1.10"),
    (pa.decimal128(38, 0), decimal.Decimal(2**70), 2**70),
    (pa.decimal256(76, 1), decimal.Decimal("0.1"), "0.1"),
    (pa.list_(pa.timestamp("us")), [INSTANT, None], ["2026-01-31T12:34:56.5", None]),
    (pa.list_(pa.binary(), 1), [b"a"], ["YQ=="]),
    (STRUCT, NESTED, {"when": "2026-01-31T11:34:56.5Z", "prices": ["1.50", None]}),
]
NOT_IN_PARQUET: list[tuple[Any, Any, Any]] = [
    (MAP, [("k", INSTANT)], [["k", "2026-01-31T12:34:56.5"]]),
    (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, -3]), "P1M2DT-0.000000003S"),
    (pa.run_end_encoded(pa.int32(), pa.date32()), DAY, "2026-01-31"),
    (pa.list_view(pa.date32()), [DAY], ["2026-01-31"]),
    (pa.null(), None, None),
]


def saved_lines(
    folder: Path, rows: list[Any], schema: pa.Schema | None = None
) -> list[Any]:
    """Return the values of the JSON Lines file that rows are written to."""
    save_dataset(rows, folder, "jsonl", schema=schema)
    [path] = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


@pytest.mark.parametrize(
    ("kind", "value", "expected"), COLUMNS + NOT_IN_PARQUET, ids=str
)
def test_a_value_has_its_text_form_wherever_it_stands_in_a_column(
    kind: Any, value: Any, expected: Any
):
    batch = pa.RecordBatch.from_arrays([pa.array([value, None], kind)], names=["x"])
    lines = [{"x": expected}, {"x": None}]
    for first, part in ((0, batch), (1, batch.slice(1))):
        assert [json.loads(line) for line in text_of(part).splitlines()] == lines[
            first:
        ]


def test_every_kept_field_is_exported_in_every_format(
    tmp_path: Path, tokenizer_dir: Path
):
    columns = {
        f"c{index}": pa.array([value, None], kind)
        for index, (kind, value, _) in enumerate(COLUMNS)
    }
    parquet_columns = {
        name: column.cast(pa.string()) if column.type == pa.string_view() else column
        for name, column in columns.items()
    }
    pq.write_table(
        pa.table({"text": ["one", "two"], **parquet_columns}), tmp_path / "in.parquet"
    )
    config = settings(
        tmp_path,
        tokenizer_dir,
        tmp_path / "in.parquet",
        additional_fields=list(columns),
    )
    built = build_here(config)
    store = built.folder.parents[1]
    reference = f"{store}/{built.manifest.dataset}"
    stored = built.table()
    manifest = built.manifest
    (first, _) = read_sequences(open_store(str(store)), manifest, None, 0, 2)
    assert set(first.kept) == set(columns)  # `peek` and `report` show all of them

    for format, suffix in (
        ("parquet", "parquet"),
        ("arrow", "arrow"),
        ("jsonl", "jsonl"),
    ):
        export_version(reference, tmp_path / format, format)
        [path] = (tmp_path / format).glob(f"*.{suffix}")
        if format == "jsonl":
            first, second = map(json.loads, path.read_text().splitlines())
            wrong = [
                (kind, first[f"c{index}"], expected)
                for index, (kind, _, expected) in enumerate(COLUMNS)
                if first[f"c{index}"] != expected or second[f"c{index}"] is not None
            ]
            assert not wrong
        else:
            table = (
                pq.read_table(path)
                if format == "parquet"
                else ipc.open_file(path).read_all()
            )
            # As text: NaN is no equal of itself, and Python's years end at 9999.
            for name in columns:
                exported = table[name].cast(stored[name].type)
                assert (
                    exported.combine_chunks().to_string()
                    == stored[name].combine_chunks().to_string()
                )


ROWS: list[tuple[Any, Any]] = [
    (INSTANT, "2026-01-31T12:34:56.5"),
    (ZONED, "2026-01-31T11:34:56.5Z"),
    (DAY, "2026-01-31"),
    (datetime.time(1, 2, 3), "01:02:03"),
    (datetime.timedelta(seconds=-1.5), "-PT1.5S"),
    (decimal.Decimal("1.10"), "1.10"),
    (decimal.Decimal(2**70), 2**70),
    (b"\xff", "/w=="),
    (bytearray(b"\xff"), "/w=="),
    (-(2**70), -(2**70)),
    ([{"a": (2**70, DAY)}], [{"a": [2**70, "2026-01-31"]}]),
]


@pytest.mark.parametrize(("value", "expected"), ROWS, ids=str)
@pytest.mark.parametrize("with_schema", [False, True])
def test_python_rows_have_the_same_forms_as_columns(
    tmp_path: Path, value: Any, expected: Any, with_schema
):
    schema = (
        pa.schema([("x", pa.array([value]).type)])
        if with_schema and _has_type(value)
        else None
    )
    assert saved_lines(tmp_path / "out", [{"x": value}], schema) == [{"x": expected}]


def _has_type(value: Any) -> bool:
    try:
        pa.array([value])
    except (pa.ArrowException, OverflowError):
        return False
    return True


@pytest.mark.parametrize(
    "schema", [None, pa.schema([("x", pa.float64())])], ids=["lines", "columns"]
)
def test_python_rows_with_nan_are_refused_by_row_and_field(tmp_path: Path, schema: Any):
    with pytest.raises(
        BadRecordError,
        match="row 1, field 'x': NaN and infinities are not valid JSON; write None",
    ):
        save_dataset(
            [{"x": 1.0}, {"x": float("nan")}], tmp_path / "out", "jsonl", schema=schema
        )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(JSON, min_size=1, max_size=20))
@effort(max_examples=25, deadline=None)
def test_json_is_written_as_what_it_is(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
):
    rows = [{"x": value} for value in values]
    assert saved_lines(tmp_path_factory.mktemp("json") / "out", rows) == rows
