"""Subsets and splits of a folder, by rules of the `datasets` library and the Hub.

The same rules read a repository on the Hub, a folder of this machine and a folder in a
bucket. In this order:

1. The dataset card: ``configs:`` in the front matter of ``README.md`` names subsets,
   splits and files (:mod:`tokenlake.etl.sources.card_layout`).
2. A folder that ``DatasetDict.save_to_disk`` wrote: ``dataset_dict.json`` names the
   splits, each a folder (:mod:`tokenlake.etl.sources.saved_layout`).
3. Shards: ``data/NAME-00000-of-00005.parquet`` is a part of the split NAME.
4. Folders: a file below ``train/``, ``my-test/`` or ``dev_2024/`` belongs to the split
   that the folder names.
5. File names: ``train.jsonl``, ``books-test-01.csv``.
6. All files are the split ``train``.

A word names a split where it is between separators (``-._ 0-9``) or fills a folder's
whole name: ``training`` does, ``trainer`` and ``tests`` do not.

Nothing here reads a file. The caller lists the folder, and gives the paths and the text
of small files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tokenlake.errors import ConfigError
from tokenlake.etl.sources.formats import compile_glob, format_of

DEFAULT: Final = "default"
"""Name of the only subset of a dataset that names none."""
TRAIN: Final = "train"
"""The split of files whose names say none."""
CARD: Final = "README.md"
"""Name of a dataset card."""

# Files that describe a dataset rather than being a part of it, unless a pattern names
# them.
_HUB_DESCRIPTIONS: Final = frozenset({CARD, "config.json", "dummy_data.zip"})
DESCRIPTIONS: Final = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
)
"""Names of files that describe a dataset, in any folder."""

# Extensions that the Hub takes for data, and that are not read here: such files hold
# records that would be lost.
_ARCHIVES: Final = r"tar|tgz|zip|7z|rar|xz|bz2|lz4|gz|zst|zstd"
_TABLES: Final = (
    r"geoparquet|gpq|conllu?|xml|hdf5|h5|eval|lance|tsfile|vortex|sqlite|db|pkl|pickle|np[yz]|pt|mds|tfrecord|avro|orc"
    r"|xlsx?|fa|fasta|fq|fastq|gb|pdb|cif|nii"
)
_MEDIA: Final = (
    r"jpe?g|png|webp|gif|tiff?|bmp|wav|mp3|flac|ogg|opus|m4a|mp4|avi|mov|mkv|webm|pdf"
)
_FOREIGN: Final = re.compile(rf"\.({_ARCHIVES}|{_TABLES}|{_MEDIA})$", re.IGNORECASE)

Splits: TypeAlias = Mapping[str, Sequence[str]]
"""Split to the paths of its files."""


def foreign(path: str) -> bool:
    """Say whether a file holds records in a format that is not read here."""
    return format_of(path) is None and _FOREIGN.search(path) is not None


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """The subsets of a dataset, each with its splits.

    Attributes:
        subsets: Subset to split to paths, in the order of the card or of the names.
        default: Subset that is meant if none is named, None if one must be named.
        origin: Source of the layout: ``card``, ``saved``, ``names`` or ``converted``.
    """

    subsets: Mapping[str, Splits]
    default: str | None
    origin: str = field(default="names")


def matches(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a pattern matches, in their order.

    Hidden files and ``__folders__`` match only if the pattern has as many of them.

    Raises:
        ConfigError: The pattern is not valid.
    """
    pattern = pattern.removeprefix("./").lstrip("/")
    try:
        is_match = compile_glob(pattern)
    except ValueError as error:
        raise ConfigError(
            f"data_files: {pattern!r} is not a valid glob: {error}", got=pattern
        ) from error
    ignored_names = (DESCRIPTIONS | _HUB_DESCRIPTIONS) - {pattern.rpartition("/")[2]}
    special_count = special_folders(pattern)
    matching: list[str] = []
    for path in paths:
        file_name = path.rpartition("/")[2]
        if file_name in ignored_names or special_folders(path) != special_count:
            continue
        if is_match(path):
            matching.append(path)
    return matching


def special_folders(path: str) -> int:
    """Return the number of folders of a path that begin with two underscores."""
    if "__" not in path:
        return 0
    # The file itself may begin with underscores: only folders are special.
    return sum(part.startswith("__") for part in path.split("/")[:-1])


def describes(name: str, pattern: str) -> bool:
    """Say whether a file that a glob matches is no data.

    It then describes data, or marks that a folder is complete.

    Args:
        name: Name of the file.
        pattern: Last part of the glob; it may name such a file by its extension or its
            beginning.
    """
    if name in DESCRIPTIONS:
        return True
    if name == CARD:
        return not pattern.endswith(("md", "]"))
    # Hadoop writes _SUCCESS beside its files.
    is_mark = name.startswith("_") and "." not in name
    return is_mark and not pattern.startswith(("_", "["))


def in_no_split(paths: Iterable[str], splits: Splits) -> Iterator[str]:
    """Yield the paths that are in none of the splits."""
    paths_in_splits: set[str] = set()
    for files in splits.values():
        paths_in_splits.update(files)
    return (path for path in paths if path not in paths_in_splits)
