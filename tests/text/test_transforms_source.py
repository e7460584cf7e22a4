"""Transforms over sources of rows: numbers stay those of the source's rows, whatever
is left out or multiplied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rowwise.sharded_support import Known, Plain, counted, ids, numbered
from tokenlake import (
    AddField,
    CombineFields,
    ExpandTransform,
    FilterByField,
    LimitedShardedSource,
    RenameFields,
    TransformedShardedSource,
    create_source,
)
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.sources import Row


class Copies(ExpandTransform):
    """As many rows as the row's number says."""

    def expand(self, example: Row) -> list[Row]:
        return [{**example, "copy": copy} for copy in range(example["id"])]


def test_rows_made_of_one_have_its_number() -> None:
    source = Plain(counted(a=4)).transform(Copies())
    assert [(number, row["copy"]) for number, row in numbered(source, "a")] == [
        *((1, 0), (2, 0), (2, 1)),
        *((3, 0), (3, 1), (3, 2)),
    ]
    assert [number for number, _ in numbered(source, "a", 2)] == [2, 2, 3, 3, 3]
    assert [number for number, _ in numbered(source, "a", 4)] == []
    with pytest.raises(ConfigError, match="beyond its end; it has 4 rows"):
        numbered(source, "a", 5)
    with pytest.raises(TypeError, match="unknown"):
        len(Known(counted(a=4)).transform(Copies()))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 20))
def test_a_consumer_resumes_among_the_rows_of_one(sizes: list[int], taken: int) -> None:
    source = TransformedShardedSource(
        Plain({"a": [{"id": size} for size in sizes]}), Copies()
    )
    rows = numbered(source, "a")
    seen = rows[:taken]
    if not seen:
        return
    last = seen[-1][0]
    had = sum(number == last for number, _ in seen)
    assert seen + numbered(source, "a", last)[had:] == rows


def test_a_chain_is_applied_to_every_row() -> None:
    chain = (
        Copies()
        >> FilterByField("copy", lambda copy: copy != 1)
        >> AddField("x", lambda row: row["id"] * 10)
    )
    source = TransformedShardedSource(Plain(counted(a=4)), chain)
    assert [
        (number, row["copy"], row["x"]) for number, row in numbered(source, "a")
    ] == [
        (1, 0, 10),
        (2, 0, 20),
        (3, 0, 30),
        (3, 2, 30),
    ]
    one = TransformedShardedSource(
        Known(counted(a=4)),
        transform=RenameFields({"id": "n"}) >> AddField("y", 1),
        drops=False,
    )
    assert len(one) == 4
    assert list(one)[3] == {"n": 3, "y": 1}


def test_the_limit_of_an_expanded_source_counts_what_comes_out() -> None:
    source = LimitedShardedSource(Plain(counted(a=3, b=2)).transform(Copies()), 4)
    assert [row["id"] for row in source] == [1, 2, 2, 3]
    assert [row["id"] for row in source.open_shard_at_row("a", 2)] == [2, 2]
    assert [row["id"] for row in source.open_shard_at_row("b", 0)] == [3]


def test_rows_that_a_transform_cannot_use_follow_the_policy() -> None:
    rows = Plain(
        {"a": [{"id": 0, "t": "x"}, {"id": 1, "t": ["x"]}, {"id": 2, "t": "y"}]}
    )
    step = CombineFields(["t"], "text")
    with pytest.raises(
        BadRecordError,
        match=r"shard 'a', row 1: CombineFields: the field 't' holds list",
    ):
        list(TransformedShardedSource(rows, step))
    left = TransformedShardedSource(rows, step, on_bad_record="quarantine")
    assert ids(iter(left)) == [0, 2]
    assert not left.every_row
    with pytest.raises(
        ConfigError,
        match="on_bad_record is 'skip', expected one of 'fail', 'quarantine'",
    ):
        TransformedShardedSource(rows, step, on_bad_record="skip")  # pyright: ignore[reportArgumentType]


def test_an_expansion_that_makes_no_rows_is_an_error_with_the_place() -> None:
    class Wrong(ExpandTransform):
        def expand(self, example: Row) -> Any:
            return [3]

    with pytest.raises(
        ConfigError, match=r"shard 'a', row 0: a transform returned int, must be a dict"
    ):
        list(Plain(counted(a=1)).transform(Wrong()))


# --- a dataset as it is configured


def strip(row: Row) -> Row | None:
    return {**row, "old": row["old"].strip()} if row["old"] else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"old": " a "}, {"old": ""}, {"old": "b"}, {"old": 3}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    "callback", [strip, f"{__name__}:strip", lambda row: strip(row)]
)
def test_rows_follow_callback_renames_and_transforms(
    folder: Path, callback: Any
) -> None:
    config = {
        "data_files": f"{folder}/a.jsonl",
        "on_bad_record": "quarantine",
        "where": "old <> '3'",
        "format_callback": callback,
        "format_fields": {"old": "new"},
        "transforms": [
            {"combine": {"fields": ["new", "new2"], "output_field": "x"}},
            {"select": ["x"]},
        ],
    }
    with pytest.raises(BadRecordError, match="no field 'new2'"):
        list(create_source({**config, "on_bad_record": "fail"}))
    config["transforms"] = [
        {"combine": {"fields": ["new"], "output_field": "x"}},
        {"select": ["x"]},
    ]
    source = create_source(config)
    assert numbered(source, "a.jsonl") == [(0, {"x": "a"}), (2, {"x": "b"})]
    assert numbered(source, "a.jsonl", 1) == [(2, {"x": "b"})]


def test_an_exception_of_a_named_function_is_a_bad_record(folder: Path) -> None:
    config = {"data_files": f"{folder}/a.jsonl", "format_callback": f"{__name__}:strip"}
    with pytest.raises(
        BadRecordError,
        match=r"row 3: tests.text.test_transforms_source:strip raised AttributeError: 'int'",
    ):
        list(create_source(config))
    assert len(list(create_source({**config, "on_bad_record": "quarantine"}))) == 2
