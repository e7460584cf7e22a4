"""What a file name says about its format and compression."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal

from tokenlake.errors import ConfigError

if TYPE_CHECKING:
    from tokenlake.config.resolved import SourceType

Format = Literal["jsonl", "json", "parquet", "arrow", "csv", "tsv", "text"]
Compression = Literal["gzip", "zstd"]

_FORMATS: Final[dict[str, Format]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
}
# Prose that a directory of type `text` is searched for. Without that type they are taken only when
# named: the README.md of a dataset's folder is not one of its documents.
_PROSE: Final = frozenset({".text", ".md", ".rst"})
_COMPRESSIONS: Final[dict[str, Compression]] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}

KNOWN_EXTENSIONS: Final = (*_FORMATS, *(f"{e}.gz" for e in (".jsonl", ".txt")), ".jsonl.zst", ".txt.zst")
_TYPES: Final = ("jsonl", "json", "parquet", "arrow", "csv", "txt")


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


def format_for(name: str, shown: str, wanted: SourceType | None) -> Format:
    """Return what a file holds: by its extension, or as the source says.

    Args:
        name: of the file, with its extensions.
        shown: its full path or URL, for messages.
        wanted: the source's explicit type, None for the extension's.

    Raises:
        ConfigError: the extension says nothing and no type is set, or the file is Parquet, compressed as a whole.
    """
    found = _explicit(name, wanted) or format_of(name)
    if found is None:
        raise ConfigError(
            f"{shown}: the extension does not say what the file holds. Expected one of "
            f"{', '.join(KNOWN_EXTENSIONS)}, or set `type` of the dataset to one of {', '.join(_TYPES)}.",
            file=shown,
        )
    if found == "parquet" and compression_of(name):
        raise ConfigError(
            f"{shown}: Parquet compresses its own pages; a compressed Parquet file cannot be read in parts. "
            "Decompress it first.",
            file=shown,
        )
    return found


def _explicit(name: str, wanted: SourceType | None) -> Format | None:
    if wanted is None or wanted == "hub":
        return None
    return "tsv" if wanted == "csv" and format_of(name) == "tsv" else wanted
