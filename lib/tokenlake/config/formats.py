"""The formats of inputs, and facts about each that need no opened file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Format = Literal[
    "jsonl",
    "json",
    "parquet",
    "arrow",
    "csv",
    "tsv",
    "text",
    "megatron",
    "numpy",
    "mds",
    "litdata",
    "array_record",
]
SourceType = Literal[
    "jsonl",
    "json",
    "parquet",
    "arrow",
    "csv",
    "text",
    "hub",
    "megatron",
    "numpy",
    "mds",
    "litdata",
    "array_record",
]
"""Contents of a source's files; ``hub``: `data_files` are ids of datasets on the Hub."""
TypeName = Literal[
    "json",
    "jsonl",
    "parquet",
    "csv",
    "arrow",
    "huggingface",
    "hf",
    "txt",
    "megatron",
    "numpy",
    "mds",
    "litdata",
    "array_record",
]
"""The same as people write it."""

SaveFormat = Literal[
    "parquet",
    "arrow",
    "jsonl",
    "megatron",
    "numpy",
    "npy",
    "mds",
    "litdata",
    "array_record",
]
"""Format of saved files: one of rows, or one of a trainer, which only exports of
builds have.
"""

ROW_FORMATS: Final = ("parquet", "arrow", "jsonl")
"""Formats of saved files that hold rows of any columns; the others hold tokens, as
trainers read them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """Facts about a format that are known before a file is opened.

    Attributes:
        extensions: Extensions of its files.
        reader: Module of :mod:`tokenlake.etl.sources` and function.
        layout: ``lines`` (any line can be found from any byte), ``blocks`` (a footer
            lists them), ``whole`` (read from the beginning on), ``records`` (any record
            can be found by its number), ``ids`` (one stream of ids, in which a document
            can be found from any byte).
        schema: True if a file itself names its columns.
        nested: True if a field can hold a list.
        least_record_bytes: Size of the shortest record that holds anything, its
            separator included; None where bytes tell nothing.
        prose: Further extensions, of files that a directory holds beside data: taken
            where the type is set, or by name.
        tokens: True if records hold token ids and no text.
        companions: Files that belong to data files and hold no records: ends of names
            (``.idx``: that of ``a.bin`` is ``a.idx``), and whole names of files that
            describe all others of their folder.
        needs: Those of `companions` without which no record can be read.
    """

    extensions: tuple[str, ...]
    reader: tuple[str, str]
    layout: Literal["lines", "blocks", "whole", "records", "ids"]
    schema: bool = False
    nested: bool = True
    least_record_bytes: int | None = None
    prose: tuple[str, ...] = ()
    tokens: bool = False
    companions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def textual(self) -> bool:
        """Whether it is plain text to look at, which may be compressed as a whole."""
        return self.layout in ("lines", "whole")

    def companion(self, path: str) -> str:
        """Return the entry of `companions` for a path; "" for a file of records."""
        # An ending belongs to one data file; a whole name describes its folder.
        file_name = path.rpartition("/")[2]
        for companion in self.companions:
            is_ending = companion.startswith(".")
            if is_ending and file_name.endswith(companion):
                return companion
            if not is_ending and file_name == companion:
                return companion
        return ""


# Quoted cells may hold line breaks, so that a file is read from its beginning.
_CSV: Final = FormatFacts(
    extensions=(".csv",),
    reader=("csv", "read_csv"),
    layout="whole",
    schema=True,
    nested=False,
    least_record_bytes=1,  # one empty cell: its newline
)

# Formats of trainers: an index has the place of every record.
_NUMBERED_RECORDS: Final = FormatFacts(
    extensions=(),
    reader=("numbered_records", "read_numbered"),
    layout="records",
    schema=True,
    tokens=True,
)

FORMATS: Final[dict[Format, FormatFacts]] = {
    # Rows.
    "jsonl": FormatFacts(
        extensions=(".jsonl", ".ndjson"),
        reader=("json", "read_jsonl"),
        layout="lines",
        least_record_bytes=2,  # a digit, which is a bad record, and its newline
    ),
    "json": FormatFacts(
        extensions=(".json",),
        reader=("json_array", "read_json_array"),
        layout="whole",
        least_record_bytes=2,
    ),
    "parquet": FormatFacts(
        extensions=(".parquet",),
        reader=("parquet", "read_parquet"),
        layout="blocks",
        schema=True,
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
    # Token ids. Trainers share the extension .bin, and a folder of text may hold arrays beside it:
    # these files are read where the type is set, and never by their names alone.
    "megatron": replace(
        _NUMBERED_RECORDS,
        prose=(".bin",),
        companions=(".idx",),
        needs=(".idx",),
    ),
    "numpy": FormatFacts(
        extensions=(),
        prose=(".bin", ".npy"),
        reader=("numpy_ids", "read_numpy"),
        layout="ids",
        schema=True,
        least_record_bytes=1,
        tokens=True,
        companions=(".csv.gz", ".label_mask.npy", "metadata.json"),
    ),
    "mds": replace(_NUMBERED_RECORDS, prose=(".mds",)),
    "litdata": replace(
        _NUMBERED_RECORDS,
        prose=(".bin",),
        companions=("index.json",),
        needs=("index.json",),
    ),
    "array_record": replace(
        _NUMBERED_RECORDS,
        prose=(".array_record", ".arrayrecord"),
        companions=("metadata.json",),
    ),
}
# Value of the option `type` -> format. A file of type csv may be .tsv.
TYPES: Final[dict[TypeName, SourceType]] = {
    "jsonl": "jsonl",
    "json": "json",
    "parquet": "parquet",
    "arrow": "arrow",
    "csv": "csv",
    "txt": "text",
    "huggingface": "hub",
    "hf": "hub",
    "megatron": "megatron",
    "numpy": "numpy",
    "mds": "mds",
    "litdata": "litdata",
    "array_record": "array_record",
}
TOKEN_TYPES: Final = frozenset(name for name, facts in FORMATS.items() if facts.tokens)
"""Formats whose records hold token ids and no text."""
