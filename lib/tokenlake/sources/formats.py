"""What a file name says about its format and compression."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Final, Literal

from tokenlake.config.formats import FORMATS, TYPES, Format, SourceType
from tokenlake.config.values import nearest
from tokenlake.errors import ConfigError, SourceNotFoundError

Compression = Literal["gzip", "zstd", "lz4"]

_EXTENSIONS: Final[dict[str, Format]] = {
    extension: name for name, facts in FORMATS.items() for extension in facts.extensions
}
_COMPRESSIONS: Final[dict[str, Compression]] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".lz4": "lz4",
}

KNOWN_EXTENSIONS: Final = (*_EXTENSIONS, *(f"{e}.gz" for e in (".jsonl", ".txt")), ".jsonl.zst", ".txt.zst")
_TYPES: Final = tuple(name for name, type_ in TYPES.items() if type_ != "hub")


def compression_of(name: str) -> Compression | None:
    """Return the compression named by the last extension, None for a plain file."""
    return _known(_ending(name))[0]


def inner_extension(name: str) -> str:
    """Return the extension below a compression's: ``.jsonl`` for ``a.jsonl.gz``; lower case, "" if none."""
    return _known(_ending(name))[1]


def format_of(name: str) -> Format | None:
    """Return the format that the extension stands for, None for one that stands for nothing here."""
    return _EXTENSIONS.get(inner_extension(name))


def _ending(name: str) -> str:
    at = name.find(".", name.rfind("/") + 2)  # a name that begins with a dot is not all ending
    return name[at:] if at > 0 else ""


@lru_cache(1024)  # a listing may have a hundred thousand names, of few endings
def _known(ending: str) -> tuple[Compression | None, str]:
    path = PurePath(f"_{ending}")
    compression = _COMPRESSIONS.get(path.suffix.lower())
    return compression, (path.with_suffix("") if compression else path).suffix.lower()


def belongs(name: str, wanted: SourceType | None) -> bool:
    """Say whether a listing of a directory takes `name`; `wanted` is a source's explicit type."""
    found = format_of(name)
    if wanted is None:
        return found is not None
    if wanted not in FORMATS:
        return False
    return found == wanted or inner_extension(name) in FORMATS[wanted].prose


def format_for(name: str, shown: str, wanted: SourceType | None) -> Format:
    """Return what a file holds: by its extension, or as the source says.

    Args:
        name: of the file, with its extensions.
        shown: its full path or URL, for messages.
        wanted: the source's explicit type, None for the extension's.

    Raises:
        ConfigError: the extension says nothing and no type is set, or the file is Parquet, compressed as a whole.
    """
    ending = _ending(name)
    found = _format_of(ending, wanted)
    if found is None:
        raise ConfigError(
            f"{shown}: the extension does not say what the file holds. Expected one of "
            f"{', '.join(KNOWN_EXTENSIONS)}, or set `type` of the dataset to one of {', '.join(_TYPES)}.",
            file=shown,
        )
    if found == "parquet" and _known(ending)[0]:
        raise ConfigError(
            f"{shown}: Parquet compresses its own pages; a compressed Parquet file cannot be read in parts. "
            "Decompress it first.",
            file=shown,
        )
    return found


@lru_cache(1024)
def _format_of(ending: str, wanted: SourceType | None) -> Format | None:
    """What a file holds by its ending, or as the source says."""
    by_name = _EXTENSIONS.get(_known(ending)[1])
    if wanted is None or wanted == "hub":
        return by_name
    return "tsv" if wanted == "csv" and by_name == "tsv" else wanted


def nothing_known(
    where: str, names: Iterable[str], wanted: SourceType | None, entry: str
) -> SourceNotFoundError:
    """Return the error for a folder that holds files, and none that is read."""
    others = sorted({PurePath(name).suffix or PurePath(name).name for name in names})[:8]
    kind = f"of type {wanted}" if wanted else "with a known extension"
    return SourceNotFoundError(
        f"data_files: no file {kind} in {where}. It holds {', '.join(others) or 'nothing'}; known extensions are "
        f"{', '.join(KNOWN_EXTENSIONS)}. Other names can be given one by one, or by a glob, with `type` set.",
        got=entry,
    )


def not_found(
    entry: str, folder: str, name: str, names: Iterable[str], more: str = ""
) -> SourceNotFoundError:
    """Return the error for an entry that nothing matches: its `folder` holds `names`, and lacks `name`."""
    known = sorted(names)
    found = nearest(name, known)
    near = [] if found is None else [f"{folder.rstrip('/')}/{found}"]
    listed = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    hint = f"Did you mean {near[0]!r}?" if near else f"{folder!r} holds: {listed or 'nothing'}."
    return SourceNotFoundError(f"data_files: nothing matches {entry!r}. {hint}{more}", got=entry, near=near)
