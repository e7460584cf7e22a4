"""Format and compression of a file by its name, and globs and ranges of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Final, Literal

from tokenlake.base.checks import nearest
from tokenlake.config.formats import FORMATS, TYPES, Format, SourceType
from tokenlake.errors import ConfigError, SourceNotFoundError
from tokenlake.runtime.store.schemes import url_probably_meant

Compression = Literal["gzip", "zstd", "lz4", "bzip2", "xz"]

_FORMAT_OF_EXTENSION: Final[dict[str, Format]] = {
    extension: name for name, facts in FORMATS.items() for extension in facts.extensions
}
_COMPRESSION_OF_EXTENSION: Final[dict[str, Compression]] = {
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

KNOWN_EXTENSIONS: Final = (
    *_FORMAT_OF_EXTENSION,
    ".jsonl.gz",
    ".txt.gz",
    ".jsonl.zst",
    ".txt.zst",
)
_TYPES: Final = tuple(
    name for name, source_type in TYPES.items() if source_type != "hub"
)
_WILDCARD: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MAX_NAMES: Final = 1_000_000  # that one entry may stand for
_SHOWN_NAMES: Final = 8  # in a message


def compression_of(name: str) -> Compression | None:
    """Return the compression named by the last extension, None for a plain file."""
    compression, _ = _parse_ending(_ending(name))
    return compression


def inner_extension(name: str) -> str:
    """Return the extension before a compression's: ``.jsonl`` for ``a.jsonl.gz``.

    It is in lower case, and "" if there is none.
    """
    _, extension = _parse_ending(_ending(name))
    return extension


def format_of(name: str) -> Format | None:
    """Return the format of a file's extension, None for an unknown one."""
    return _FORMAT_OF_EXTENSION.get(inner_extension(name))


def _ending(name: str) -> str:
    """Return all extensions of a name; a dot at its beginning begins none."""
    start = name.find(".", name.rfind("/") + 2)
    return name[start:] if start > 0 else ""


@lru_cache(1024)  # a listing may have a hundred thousand names, of few endings
def _parse_ending(ending: str) -> tuple[Compression | None, str]:
    """Return the compression that an ending names, and the extension before it.

    The extension is in lower case.
    """
    path = PurePath(f"_{ending}")
    compression = _COMPRESSION_OF_EXTENSION.get(path.suffix.lower())
    if compression is not None:
        path = path.with_suffix("")
    return compression, path.suffix.lower()


def belongs(name: str, wanted: SourceType | None) -> bool:
    """Say whether a listing of a directory takes a file.

    Args:
        name: Name of the file.
        wanted: Type that the source sets, None for none.
    """
    named_format = format_of(name)
    # Without a type every known format is taken. With one, files of its format, its
    # companions, and files that only by their extension are another format.
    if wanted is None:
        return named_format is not None
    if wanted not in FORMATS:
        return False
    facts = FORMATS[wanted]
    is_of_type = named_format == wanted or inner_extension(name) in facts.prose
    return is_of_type or bool(facts.companion(name))


def format_for(name: str, shown: str, wanted: SourceType | None) -> Format:
    """Return the format of a file: by its extension, or the one that the source sets.

    Args:
        name: Name of the file, with its extensions.
        shown: Full path or URL, for messages.
        wanted: Type that the source sets, None for the extension's.

    Raises:
        ConfigError: The extension is unknown and no type is set, or the file is
            Parquet, compressed as a whole.
    """
    # The type of the source counts more than the extension, except that a file of type
    # csv may be TSV by its name.
    compression, extension = _parse_ending(_ending(name))
    named_format = _FORMAT_OF_EXTENSION.get(extension)
    file_format = named_format
    if wanted is not None and wanted != "hub":
        file_format = wanted
    if file_format == "csv" and named_format == "tsv":
        file_format = named_format
    if file_format is None:
        raise ConfigError(
            f"{shown}: the extension is unknown. Expected one of {', '.join(KNOWN_EXTENSIONS)}, or set `type` of the "
            f"dataset to one of {', '.join(_TYPES)}.",
            file=shown,
        )
    if file_format == "parquet" and compression:
        raise ConfigError(
            f"{shown}: Parquet compresses its own pages; a compressed Parquet file cannot be read in parts. "
            "Decompress it first.",
            file=shown,
        )
    # Ids are read at any place, which a stream of compressed bytes does not allow. MDS
    # is an exception: its shards are decompressed as a whole.
    facts = FORMATS[file_format]
    is_of_ids = facts.tokens and not facts.companion(name)
    is_compressed_mds = file_format == "mds" and compression == "zstd"
    if is_of_ids and compression and not is_compressed_mds:
        raise ConfigError(
            f"{shown}: compressed as a whole ({compression}); files of {file_format} are read at any place. Decompress "
            "it first.",
            file=shown,
        )
    return file_format


def nothing_known(
    where: str, names: Iterable[str] | None, wanted: SourceType | None, entry: str
) -> SourceNotFoundError:
    """Return the error for a folder that holds files, and none that is read.

    Args:
        where: Folder, for the message.
        names: Names of its files; None where they are not to be shown.
        wanted: Type that the source sets, None for none.
        entry: Entry of `data_files`.
    """
    # Three sentences: the problem, the extensions that the folder holds, and those that
    # are read.
    extensions = "Known"
    if names is not None:
        endings: set[str] = set()
        for name in names:
            path = PurePath(name)
            endings.add(path.suffix or path.name)
        shown_extensions = ", ".join(sorted(endings)[:_SHOWN_NAMES]) or "nothing"
        extensions = f"It holds {shown_extensions}; known"
    file_kind = f"of type {wanted}" if wanted else "with a known extension"
    known_extensions: Iterable[str] = KNOWN_EXTENSIONS
    if wanted in FORMATS and FORMATS[wanted].tokens:
        known_extensions = FORMATS[wanted].prose
    return SourceNotFoundError(
        f"data_files: no file {file_kind} in {where}. {extensions} extensions are "
        f"{', '.join(known_extensions)}. List files with other names one by one, or by a glob, and set `type`.",
        got=entry,
    )


def not_found(
    entry: str, folder: str, name: str, names: Iterable[str] | None, more: str = ""
) -> SourceNotFoundError:
    """Return the error for an entry that nothing matches.

    Args:
        entry: Entry of `data_files`.
        folder: Folder in which nothing matches.
        name: Name that the folder lacks.
        names: Names that it has; None where they are not to be shown.
        more: Last sentence of the message.
    """
    # A name that was mistyped is proposed. Otherwise the message shows names of the
    # folder.
    known_names = sorted(names or ())
    similar = nearest(name, known_names)
    near: list[str] = []
    url = url_probably_meant(entry)
    if url:
        near.append(url)
        hint = f"Did you mean {url!r}?"
    elif similar is not None:
        near.append(f"{folder.rstrip('/')}/{similar}")
        hint = f"Did you mean {near[0]!r}?"
    elif names is None:
        hint = f"{folder!r} has no {name!r}."
    else:
        shown_names = ", ".join(known_names[:_SHOWN_NAMES])
        if len(known_names) > _SHOWN_NAMES:
            shown_names += ", ..."
        hint = f"{folder!r} holds: {shown_names or 'nothing'}."
    return SourceNotFoundError(
        f"data_files: nothing matches {entry!r}. {hint}{more}", got=entry, near=near
    )


def expand_braces(entry: str) -> list[str]:
    """Return the names that an entry stands for.

    ``data-{0..3}.parquet`` stands for four, ``{train,test}.jsonl`` for two.

    Both ends of a range belong to it. If one is written with a leading zero, all
    numbers have as many digits. Unlike a glob this lists nothing, so that it also names
    the files of a web server.

    Raises:
        ConfigError: A range falls, or the entry expands to more than a million names.
    """
    # The first braces of all names are alike: they are replaced in all names at once,
    # until no braces are left.
    names = [entry]
    braces = _BRACES.search(entry)
    while braces is not None:
        choices = _choices(braces)
        if len(names) * len(choices) > _MAX_NAMES:
            raise ConfigError(
                f"data_files: {entry!r} expands to more than {_MAX_NAMES} names; use a folder or a glob"
            )
        expanded: list[str] = []
        for name in names:
            expanded.extend(name.replace(braces[0], choice, 1) for choice in choices)
        names = expanded
        braces = _BRACES.search(names[0])
    return names


def _choices(braces: re.Match[str]) -> list[str]:
    """Return the texts that a range or a list in braces stands for."""
    first_number, last_number, listed = braces.groups()
    if listed is not None:
        return listed.split(",")
    smallest = int(first_number)
    largest = int(last_number)
    if largest < smallest:
        raise ConfigError(
            f"data_files: {braces[0]} decreases, must be a range from a smaller to a larger number"
        )
    if largest - smallest >= _MAX_NAMES:
        raise ConfigError(
            f"data_files: {braces[0]} expands to more than {_MAX_NAMES} names; use a folder or a glob"
        )
    # A leading zero fixes the number of digits, as in a shell.
    digit_count = 0
    if _has_leading_zero(first_number) or _has_leading_zero(last_number):
        digit_count = max(len(first_number), len(last_number))
    return [f"{number:0{digit_count}}" for number in range(smallest, largest + 1)]


def _has_leading_zero(number: str) -> bool:
    return number[0] == "0" and len(number) > 1


def has_wildcard(path: str) -> bool:
    """Say whether a path has one of ``*``, ``?`` and ``[``."""
    return _WILDCARD.search(path) is not None


def static_folder(pattern: str) -> str:
    """Return the folder that all matches are in, without a slash at its end.

    It is "" for the top.
    """
    static_folders: list[str] = []
    for folder in pattern.split("/")[:-1]:
        if has_wildcard(folder):
            break
        static_folders.append(folder)
    return "/".join(static_folders)


def static_prefix(pattern: str) -> str:
    """Return the text that all matches begin with, which need not be a whole folder."""
    return _WILDCARD.split(pattern, maxsplit=1)[0]


def is_flat(pattern: str) -> bool:
    """Say whether matches lie in the one folder that the pattern names."""
    folder, _, name = pattern.rpartition("/")
    return not has_wildcard(folder) and name != "**"


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a whole path matches.

    ``*`` and ``?`` stop at slashes, ``**`` as a whole component stands for any number
    of folders, also none, and no wildcard stands for a dot at the beginning of a name.

    Raises:
        ValueError: The text is not a valid pattern.
    """
    # Imported here because it imports asyncio and half a dozen compressions.
    from fsspec.utils import glob_translate

    try:
        regex = re.compile(glob_translate(pattern), re.DOTALL)
    except re.error as error:
        raise ValueError(str(error)) from error
    # A wildcard never stands for a leading dot, so that a match has exactly as many
    # hidden parts as the pattern writes.
    hidden_in_pattern = hidden_parts(pattern)

    def is_match(path: str) -> bool:
        return regex.match(path) is not None and hidden_parts(path) == hidden_in_pattern

    return is_match


def hidden_parts(path: str) -> int:
    """Return the number of hidden folders and files in a path."""
    if "/." not in path and not path.startswith("."):
        return 0
    hidden_count = 0
    for path_part in path.split("/"):
        if path_part.startswith(".") and path_part not in (".", ".."):
            hidden_count += 1
    return hidden_count
