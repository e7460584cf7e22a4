"""The formats behind one door: each reader turns a range of an input into blocks of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final

from tokenlake.predicate.where import Predicate
from tokenlake.sources.formats import Format
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.want import Want

Reader = Callable[[FileRange, InputBytes, Want, Predicate | None], Iterator[Parsed]]
"""Reads the records of a range in file order in bounded memory.

The predicate is a hint for formats with statistics: they may leave out stretches in which it holds
nowhere, counting the records as ``skipped["pruned"]``. Records are never left out one by one here.
"""

# By name: what one format needs (Polars for JSON, 0.1 s) is no burden to a worker that reads another.
_HOMES: Final[dict[Format, tuple[str, str]]] = {
    "jsonl": ("tokenlake.sources.json.lines", "read_jsonl"),
    "json": ("tokenlake.sources.json.array", "read_json_array"),
    "parquet": ("tokenlake.sources.parquet.reader", "read_parquet"),
    "arrow": ("tokenlake.sources.arrow.reader", "read_arrow"),
    "csv": ("tokenlake.sources.csv.reader", "read_csv"),
    "tsv": ("tokenlake.sources.csv.reader", "read_csv"),
    "text": ("tokenlake.sources.text.reader", "read_text"),
}


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    module, name = _HOMES[format_]
    return getattr(import_module(module), name)
