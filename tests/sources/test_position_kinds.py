"""The meaning of a document's position, by the file's name and the configuration of
its source.
"""

from __future__ import annotations

from typing import Any

import pytest

from tokenlake.etl.sources import position_kind


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("a.jsonl", {"type": None}, "byte offset"),
        ("folder/a.ndjson.gz", {}, "byte offset"),
        ("a.parquet", {}, "row"),
        ("a.csv.zst", {}, "row"),
        ("a.arrow", {}, "row"),
        ("a.txt", {"text_mode": "lines"}, "byte offset"),
        ("a.txt", {"text_mode": "document"}, "row"),
        ("data.bin", {"type": "jsonl"}, "byte offset"),
        ("a.jsonl", {"type": "csv"}, "row"),
        ("a.json", {}, ""),  # an array, or lines: only its bytes tell
        ("data.bin", {}, ""),
    ],
)
def test_a_position_is_a_byte_offset_in_files_of_lines(
    path: str, source: dict[str, Any], expected: str
) -> None:
    assert position_kind(path, source) == expected
