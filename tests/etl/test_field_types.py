"""Types that a configuration declares for kept fields: what they hold, where they
act, and where they are refused.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import Built, build_here, settings, write_jsonl
from tokenlake import DatasetConfig, PipelineConfig, create_source, load_config
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import BadRecordError, ConfigError, NotAvailableError
from tokenlake.etl.sources import Rows
from tokenlake.etl.unit import Keeper


def kept(built: Built, name: str = "x") -> tuple[str, list[Any]]:
    table = built.table()
    return str(table.schema.field(name).type), table[name].to_pylist()


def config_of(
    folder: Path, tokenizer: Path, files: Path, **types: str
) -> dict[str, Any]:
    return settings(
        folder, tokenizer, files, additional_fields=list(types), field_types=types
    )


def keeper_of(written: str) -> Keeper:
    """Return the keeper of a field ``x`` whose type is declared."""
    dataset = DatasetConfig(
        data_files="a.jsonl",
        name="a",
        additional_fields=["x"],
        field_types={"x": written},
    )
    return Keeper(
        resolve_source(PipelineConfig(), dataset).field_types, frozenset({"x"})
    )


def test_a_declared_type_holds_a_float_behind_thousands_of_integers(
    tmp_path: Path, tokenizer_dir: Path
):
    records = [
        *({"text": f"a{i}", "x": i} for i in range(3000)),
        {"text": "late", "x": 1.5},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    with pytest.raises(
        BadRecordError,
        match=r"a\.jsonl:3001: .* holds 1\.5, .* field_types: \{x: float64\}",
    ):
        build_here(settings(tmp_path, tokenizer_dir, path, additional_fields=["x"]))
    built = build_here(config_of(tmp_path, tokenizer_dir, path, x="float64"))
    assert kept(built) == ("double", [*map(float, range(3000)), 1.5])


def test_integers_of_any_size_are_kept_as_numbers_in_every_unit(
    tmp_path: Path, tokenizer_dir: Path
):
    values = [1, 2**64 - 1, -(2**63) - 1, 10**38 - 1] * 50
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"text": f"a {i}", "x": x} for i, x in enumerate(values)]
    )
    config = settings(tmp_path, tokenizer_dir, path, additional_fields=["x"])
    config["source"] = {"unit_size": 2000}
    built = build_here(config)
    assert len(built.files()) > 1
    assert {str(pq.read_schema(file).field("x").type) for file in built.files()} == {
        "decimal128(38, 0)"
    }
    assert kept(built)[1] == values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1] * 50 + [1.5], "double"),
        ([2**60] * 50 + [1.5], "large_string"),
        ([None] * 50 + [-(2**70)], "decimal128(38, 0)"),
    ],
)
def test_a_type_does_not_depend_on_where_units_begin(
    tmp_path: Path, tokenizer_dir: Path, values: list[Any], kind: str
):
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"text": f"a {i}", "x": x} for i, x in enumerate(values)]
    )
    for unit_size in (300, 1 << 20):
        config = settings(
            tmp_path / str(unit_size), tokenizer_dir, path, additional_fields=["x"]
        )
        config["source"] = {"unit_size": unit_size}
        built = build_here(config)
        assert kept(built)[0] == kind
        assert (len(built.files()) > 3) == (unit_size == 300)


def test_a_late_integer_beyond_64_bits_names_the_type_that_holds_it(
    tmp_path: Path, tokenizer_dir: Path
):
    records = [
        *({"text": "a", "x": 1} for _ in range(3000)),
        {"text": "late", "x": 2**64},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    with pytest.raises(BadRecordError, match=r"field_types: \{x: decimal\(38, 0\)\}"):
        build_here(settings(tmp_path, tokenizer_dir, path, additional_fields=["x"]))
    built = build_here(config_of(tmp_path, tokenizer_dir, path, x="decimal(38, 0)"))
    assert kept(built)[1][-1] == 2**64


def test_cells_of_csv_become_what_is_declared(tmp_path: Path, tokenizer_dir: Path):
    (tmp_path / "a.csv").write_text(
        "text,n,f,ok,s\none,007,1.5,TRUE,7\ntwo,, .5e1,false,\n"
    )
    types = {"n": "int64", "f": "float64", "ok": "bool", "s": "string"}
    built = build_here(config_of(tmp_path, tokenizer_dir, tmp_path / "a.csv", **types))
    assert kept(built, "n") == ("int64", [7, None])
    assert kept(built, "f") == ("double", [1.5, 5.0])
    assert kept(built, "ok") == ("bool", [True, False])
    assert kept(built, "s") == ("large_string", ["7", ""])
    (tmp_path / "a.csv").write_text("text,n\none,1\ntwo,x\n")
    with pytest.raises(
        BadRecordError,
        match=r"row 1: the kept field 'n' holds 'x', .* int64 \(field_types\)",
    ):
        build_here(config_of(tmp_path, tokenizer_dir, tmp_path / "a.csv", n="int64"))


@pytest.mark.parametrize(
    ("written", "values", "kind", "expected"),
    [
        ("int16", [5, "6", " 7 ", None, ""], "int16", [5, 6, 7, None, None]),
        ("uint64", [2**64 - 1], "uint64", [2**64 - 1]),
        ("float64", [1, 1.5, "2", "1e3"], "double", [1.0, 1.5, 2.0, 1000.0]),
        ("float32", [0.1, 1], "float", [0.10000000149011612, 1.0]),
        (
            "decimal(38, 0)",
            [2**100, "-5"],
            "decimal128(38, 0)",
            [Decimal(2**100), Decimal(-5)],
        ),
        ("string", ["a", None, ""], "large_string", ["a", None, ""]),
        ("json", ["a", 1, [True]], "large_string", ['"a"', "1", "[true]"]),
        ("list<float64>", [[1, 2.5], []], "large_list<item: double>", [[1.0, 2.5], []]),
        (
            "struct<n: float64, deep: list<int64>>",
            [{"n": 1, "deep": ["1"]}, {"n": 0.5}],
            "struct<n: double, deep: large_list<item: int64>>",
            [{"n": 1.0, "deep": [1]}, {"n": 0.5, "deep": None}],
        ),
        ("list<json>", [[1, "a"]], "large_string", ['[1,"a"]']),
    ],
)
def test_a_declared_type_holds_its_values(
    written: str, values: list[Any], kind: str, expected: list[Any]
):
    keeper = keeper_of(written)
    batch, faults = keeper.take(Rows(objects=[{"x": value} for value in values]))
    assert not faults
    assert (str(batch.schema.field("x").type), batch["x"].to_pylist()) == (
        kind,
        expected,
    )


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("int8", 128),
        ("int64", 1.5),
        ("int64", "1.5"),
        ("int64", True),
        ("float64", 2**53 + 1),
        ("float64", "x"),
        ("float32", 1e300),
        ("bool", 1),
        ("bool", "yes"),
        ("decimal(3, 0)", 1000),
        ("decimal(3, 0)", True),
        ("string", 5),
        ("list<int64>", [None, 1.5]),
        ("struct<a: int64>", {"b": 1}),
    ],
)
def test_a_value_that_a_declared_type_cannot_hold_is_a_fault(written: str, value: Any):
    keeper = keeper_of(written)
    batch, faults = keeper.take(Rows(objects=[{"x": value}]))
    assert batch["x"].to_pylist() == [None]
    assert "(field_types) cannot hold" in faults[0].detail


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1),
    st.integers(0, 20),
)
def test_a_declared_type_is_that_of_any_part_of_the_rows(values: list[Any], at: int):
    keeper = Keeper([("x", "decimal128(38, 0)")], frozenset({"x"}))
    parts = [values[:at], values[at:]]
    batches = [
        keeper.take(Rows(objects=[{"x": value} for value in part]))[0] for part in parts
    ]
    assert pa.Table.from_batches(batches)["x"].to_pylist() == values


WRONG = (
    *(
        "integer",
        "float",
        "list<int64",
        "struct<>",
        "struct<a: int64; b: bool>",
        "int64 x",
        "",
        "list",
    ),
    *("decimal(39, 0)", "decimal(5, 2)", "struct<a: int64, a: bool>", "list<" * 300),
)


@pytest.mark.parametrize("written", WRONG)
def test_other_types_are_refused_by_name(
    tmp_path: Path, tokenizer_dir: Path, written: str
):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "x": 1}\n')
    config = config_of(tmp_path, tokenizer_dir, tmp_path / "a.jsonl", x=written)
    with pytest.raises(
        ConfigError,
        match=r"field_types.*(must be one of bool, int8|at least 1 character)",
    ):
        load_config(config)


def test_types_of_fields_that_are_not_kept_are_refused(
    tmp_path: Path, tokenizer_dir: Path
):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "x": 1}\n')
    config = settings(
        tmp_path, tokenizer_dir, tmp_path / "a.jsonl", field_types={"x": "int64"}
    )
    with pytest.raises(
        ConfigError, match=r"field_types: 'x' is not one of additional_fields \(none\)"
    ):
        build_here(config)


def test_a_source_of_rows_refuses_them(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "x": 1}\n')
    with pytest.raises(NotAvailableError, match=r"field_types.*save_dataset\(schema="):
        create_source(
            {
                "name": "a",
                "data_files": str(tmp_path / "a.jsonl"),
                "field_types": {"x": "int64"},
            }
        )


def test_columns_that_cannot_become_it_are_refused_by_the_plan(
    tmp_path: Path, tokenizer_dir: Path
):
    table = pa.table(
        {
            "text": ["a"],
            "x": pa.array([0], pa.timestamp("us")),
            "n": pa.array([300], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        ConfigError, match=r"'x' is declared int64, but the files hold timestamp\[us\]"
    ):
        build_here(
            config_of(tmp_path, tokenizer_dir, tmp_path / "a.parquet", x="int64")
        )
    built = build_here(
        config_of(tmp_path, tokenizer_dir, tmp_path / "a.parquet", n="int32")
    )
    assert kept(built, "n") == ("int32", [300])


def test_two_sources_cannot_declare_different_types(
    tmp_path: Path, tokenizer_dir: Path
):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "x": 1}\n')
    config = config_of(tmp_path, tokenizer_dir, tmp_path / "a.jsonl", x="int64")
    other = config["datasets"][0] | {"name": "other", "field_types": {"x": "string"}}
    config["datasets"].append(other)
    with pytest.raises(
        ConfigError,
        match=r"datasets\.other\.field_types: 'x' is declared large_string, and int64",
    ):
        build_here(config)


def test_a_declared_type_counts_for_identity_only_where_it_is_set(
    tmp_path: Path, tokenizer_dir: Path
):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "x": 1}])
    plain = build_here(settings(tmp_path, tokenizer_dir, path, additional_fields=["x"]))
    assert "field_types" not in json.dumps(plain.manifest.config)
    declared = build_here(config_of(tmp_path, tokenizer_dir, path, x="int64"))
    assert kept(plain)[0] == kept(declared)[0] == "int64"
    assert plain.manifest.fingerprint != declared.manifest.fingerprint
