"""What a file name says about its format and compression."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final, Literal

Format = Literal["jsonl", "parquet", "text"]
Compression = Literal["gzip", "zstd"]

_FORMATS: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
}
# Prose that a directory of type `text` is searched for. Without that type they are taken only when
# named: the README.md of a dataset's folder is not one of its documents.
_PROSE: Final = frozenset({".text", ".md", ".rst"})
_COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}

KNOWN_EXTENSIONS: Final = (*_FORMATS, *(f"{e}.gz" for e in (".jsonl", ".txt")), ".jsonl.zst", ".txt.zst")


def compression_of(name: str) -> Compression | None:
    """Return the compression named by the last extension, None for a plain file."""
    return _COMPRESSIONS.get(PurePath(name).suffix.lower())


def inner_extension(name: str) -> str:
    """Return the extension below a compression's: ``.jsonl`` for ``a.jsonl.gz``; lower case, "" if none."""
    path = PurePath(name)
    if compression_of(name):
        path = path.with_suffix("")
    return path.suffix.lower()


def format_of(name: str) -> Format | None:
    """Return the format that the extension stands for, None for one that stands for nothing here."""
    return _FORMATS.get(inner_extension(name))


def belongs(name: str, wanted: str | None) -> bool:
    """Say whether a listing of a directory takes `name`; `wanted` is a source's explicit type."""
    found = format_of(name)
    if wanted is None:
        return found is not None
    return found == wanted or (wanted == "text" and inner_extension(name) in _PROSE)
