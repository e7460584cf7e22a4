"""What a file name says about its format and compression, and the globs and ranges that names are given by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath
from typing import Final, Literal

from tokenlake.base.checks import nearest
from tokenlake.config.formats import FORMATS, TYPES, Format, SourceType
from tokenlake.errors import ConfigError, SourceNotFoundError

Compression = Literal["gzip", "zstd", "lz4", "bzip2", "xz"]

_EXTENSIONS: Final[dict[str, Format]] = {
    extension: name for name, facts in FORMATS.items() for extension in facts.extensions
}
_COMPRESSIONS: Final[dict[str, Compression]] = {
    ".gz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".lz4": "lz4",
    ".bz2": "bzip2",
    ".xz": "xz",
}
COMPRESSION_ENDINGS: Final[dict[Compression, str]] = {
    "gzip": ".gz",
    "zstd": ".zst",
    "lz4": ".lz4",
    "bzip2": ".bz2",
    "xz": ".xz",
}
"""Compression to the extension that is written for it."""

KNOWN_EXTENSIONS: Final = (*_EXTENSIONS, *(f"{e}.gz" for e in (".jsonl", ".txt")), ".jsonl.zst", ".txt.zst")
_TYPES: Final = tuple(name for name, type_ in TYPES.items() if type_ != "hub")
_MAGIC: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MOST: Final = 1_000_000  # names that one entry may stand for


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
    compression, extension = _known(_ending(name))
    by_name = _EXTENSIONS.get(extension)
    found = by_name if wanted is None or wanted == "hub" else wanted
    if found == "csv" and by_name == "tsv":
        found = by_name
    if found is None:
        raise ConfigError(
            f"{shown}: the extension does not say what the file holds. Expected one of "
            f"{', '.join(KNOWN_EXTENSIONS)}, or set `type` of the dataset to one of {', '.join(_TYPES)}.",
            file=shown,
        )
    if found == "parquet" and compression:
        raise ConfigError(
            f"{shown}: Parquet compresses its own pages; a compressed Parquet file cannot be read in parts. "
            "Decompress it first.",
            file=shown,
        )
    return found


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


def expand_braces(entry: str) -> list[str]:
    """Return the names that an entry stands for: ``data-{0..3}.parquet`` four, ``{train,test}.jsonl`` two.

    Both ends of a range belong to it; where one is written with a zero before it, all have as many digits. Unlike a
    glob this asks nobody what is there, so that it names the files of a web server, too.

    Raises:
        ConfigError: a range falls, or there are more than a million names.
    """
    names, found = [entry], _BRACES.search(entry)
    while found is not None:
        choices = _choices(found)
        if len(names) * len(choices) > _MOST:
            raise ConfigError(
                f"data_files: {entry!r} stands for more than {_MOST} names; use a folder or a glob"
            )
        names = [name.replace(found[0], each, 1) for name in names for each in choices]
        found = _BRACES.search(names[0])
    return names


def _choices(found: re.Match[str]) -> list[str]:
    first, last, listed = found.groups()
    if listed is not None:
        return listed.split(",")
    low, high = int(first), int(last)
    if high < low:
        raise ConfigError(f"data_files: {found[0]} falls, must be a range from a smaller to a larger number")
    if high - low >= _MOST:
        told = f"data_files: {found[0]} stands for more than {_MOST} names; use a folder or a glob"
        raise ConfigError(told)
    padded = any(end[0] == "0" and len(end) > 1 for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}}" for number in range(low, high + 1)]


def has_wildcard(path: str) -> bool:
    """Say whether a path has one of ``*``, ``?`` and ``[``."""
    return _MAGIC.search(path) is not None


def static_folder(pattern: str) -> str:
    """Return the folder that all matches are in, without a slash at its end; "" for the top."""
    return "/".join(takewhile(lambda part: not has_wildcard(part), pattern.split("/")[:-1]))


def static_prefix(pattern: str) -> str:
    """Return what all matches begin with, which need not be a whole folder."""
    return _MAGIC.split(pattern, maxsplit=1)[0]


def is_flat(pattern: str) -> bool:
    """Say whether matches lie in the one folder that the pattern names."""
    folder, _, name = pattern.rpartition("/")
    return not has_wildcard(folder) and name != "**"


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a whole path matches.

    ``*`` and ``?`` stop at slashes, ``**`` as a whole component stands for any number of folders, also
    none, and no wildcard stands for a dot at the beginning of a name.

    Raises:
        ValueError: it is no pattern.
    """
    from fsspec.utils import glob_translate  # which imports asyncio and half a dozen compressions

    try:
        regex = re.compile(glob_translate(pattern), re.DOTALL)
    except re.error as error:
        raise ValueError(str(error)) from error
    hidden = hidden_parts(pattern)
    return lambda path: regex.match(path) is not None and hidden_parts(path) == hidden


def hidden_parts(path: str) -> int:
    """Return how many folders and files of a path are hidden."""
    if "/." not in path and not path.startswith("."):
        return 0
    return sum(part.startswith(".") and part not in (".", "..") for part in path.split("/"))
