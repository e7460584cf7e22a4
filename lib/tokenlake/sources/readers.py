"""The formats behind one door: each reader turns a range of an input into blocks of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tokenlake.sources.arrow.reader import read_arrow
from tokenlake.sources.csv.reader import read_csv
from tokenlake.sources.formats import Format
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.json.array import read_json_array
from tokenlake.sources.json.lines import read_jsonl
from tokenlake.sources.parquet.reader import read_parquet
from tokenlake.sources.parsed import Parsed
from tokenlake.sources.predicate.where import Predicate
from tokenlake.sources.ranges import FileRange
from tokenlake.sources.text.reader import read_text
from tokenlake.sources.want import Want

Reader = Callable[[FileRange, InputBytes, Want, Predicate | None], Iterator[Parsed]]
"""Reads the records of a range in file order in bounded memory.

The predicate is a hint for formats with statistics: they may leave out stretches in which it holds
nowhere, counting the records as ``skipped["pruned"]``. Records are never left out one by one here.
"""

READERS: Final[dict[Format, Reader]] = {
    "jsonl": read_jsonl,
    "json": read_json_array,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": read_csv,
    "tsv": read_csv,
    "text": read_text,
}
