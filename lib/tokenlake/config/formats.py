"""The formats of inputs, and the facts about each that are known before a file is opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Format = Literal["jsonl", "json", "parquet", "arrow", "csv", "tsv", "text"]
SourceType = Literal["jsonl", "json", "parquet", "arrow", "csv", "text", "hub"]
"""What a source's files hold; ``hub``: `data_files` are ids of datasets on the Hub."""
SaveFormat = Literal[
    "parquet", "arrow", "jsonl", "megatron", "numpy", "npy", "mds", "litdata", "array_record"
]
"""Format of saved files: one of rows, or one of a trainer, which only exports of builds have."""
TypeName = Literal["json", "jsonl", "parquet", "csv", "arrow", "huggingface", "hf", "txt"]
"""The same as people write it."""

ROW_FORMATS: Final = ("parquet", "arrow", "jsonl")
"""Formats of saved files that hold rows of any columns; the others hold tokens, as trainers read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """What is known of a format before a file is opened.

    Attributes:
        extensions: Extensions of its files.
        reader: module of :mod:`tokenlake.etl.sources` and function.
        layout: ``lines`` (any line can be found from any byte), ``blocks`` (a footer lists them), ``whole`` (read from
            the beginning on).
        schema: True if a file itself names its columns.
        nested: True if a field can hold a list.
        least_record_bytes: no record that holds anything is shorter, its separator included; None where bytes tell
            nothing.
        prose: further extensions, of files that a directory holds beside data: taken where the type is set, or by name.
    """

    extensions: tuple[str, ...]
    reader: tuple[str, str]
    layout: Literal["lines", "blocks", "whole"]
    schema: bool = False
    nested: bool = True
    least_record_bytes: int | None = None
    prose: tuple[str, ...] = ()

    @property
    def textual(self) -> bool:
        """Whether it is plain text to look at, which may be compressed as a whole."""
        return self.layout != "blocks"


_CSV: Final = FormatFacts(
    extensions=(".csv",),
    reader=("csv", "read_csv"),
    layout="whole",
    schema=True,
    nested=False,
    least_record_bytes=1,  # one empty cell: its newline
)

FORMATS: Final[dict[Format, FormatFacts]] = {
    "jsonl": FormatFacts(
        extensions=(".jsonl", ".ndjson"),
        reader=("json", "read_jsonl"),
        layout="lines",
        least_record_bytes=2,  # a digit, which is a bad record, and its newline
    ),
    "json": FormatFacts(
        extensions=(".json",), reader=("json_array", "read_json_array"), layout="whole", least_record_bytes=2
    ),
    "parquet": FormatFacts(
        extensions=(".parquet",), reader=("parquet", "read_parquet"), layout="blocks", schema=True
    ),
    "arrow": FormatFacts(
        extensions=(".arrow", ".feather", ".ipc", ".arrows"),
        reader=("arrow", "read_arrow"),
        layout="blocks",
        schema=True,
    ),
    "csv": _CSV,
    "tsv": replace(_CSV, extensions=(".tsv",)),
    "text": FormatFacts(
        extensions=(".txt",),
        prose=(".text", ".md", ".rst"),
        reader=("plain_text", "read_text"),
        layout="lines",
        nested=False,
        least_record_bytes=2,
    ),
}
TYPES: Final[dict[TypeName, SourceType]] = {
    "jsonl": "jsonl",
    "json": "json",
    "parquet": "parquet",
    "arrow": "arrow",
    "csv": "csv",
    "txt": "text",
    "huggingface": "hub",
    "hf": "hub",
}
