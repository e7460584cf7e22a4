"""Keys, names and places: allowed names, places of files in a version, largest sizes.

A key is a POSIX path relative to the store's root (``llama2-2048/v1/manifest.json``). A
path is the same, relative to a version's folder, as manifests hold it
(``data/train-00000-00.parquet``). No key ever leaves its root.

Sealed documents are parsed before their seal is checked, so their size is limited
first.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final, final

from tokenlake.errors import IntegrityError, StoreError

DATASET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# A tag must not look like a version: ``v3``, ``3``.
TAG_NAME: Final = re.compile(r"(?!v?[0-9]+\Z)[a-z0-9][a-z0-9._-]{0,63}")
SPLIT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Nearly all keys have this form, which has no problem; this check is ten times as fast
# as the search for a problem.
_PLAIN_KEY: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){0,31}"
)
# Beginning of the names of unpublished files; they lie beside their objects, and no
# listing shows them.
TEMP_MARK: Final = ".tmp-"


def key_problem(key: str) -> str | None:
    """Return the reason why a key is not a safe relative POSIX path, as a clause.

    The result is None for a safe path.
    """
    if _PLAIN_KEY.fullmatch(key):
        return None
    if not key:
        return "it is empty"
    has_control_characters = any(
        ord(letter) < 32 or ord(letter) == 127 for letter in key
    )
    if "\\" in key or has_control_characters:
        return "it has a backslash or a control character"
    # Parts are counted in bytes, as file systems do.
    try:
        path_parts = key.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if len(path_parts) > 32 or any(len(path_part) > 255 for path_part in path_parts):
        return "it has more than 32 parts, or a part of more than 255 bytes"
    if any(path_part in (b"", b".", b"..") for path_part in path_parts):
        return "it has an empty, '.' or '..' part"
    if any(path_part.startswith(TEMP_MARK.encode()) for path_part in path_parts):
        return f"names that start with {TEMP_MARK!r} are kept for unpublished files"
    return None


def check_key(key: str) -> str:
    """Return ``key`` if it is a safe relative path, else raise StoreError."""
    problem = key_problem(key)
    if problem is not None:
        raise StoreError(
            f"the key {key!r} is refused: {problem}. Expected a relative path below the store's root.",
            key=key,
        )
    return key


def check_dataset_name(name: str) -> str:
    """Return ``name`` if it is a dataset's name, else raise StoreError.

    A name matches ``[a-z0-9][a-z0-9._-]{0,63}``.
    """
    if not DATASET_NAME.fullmatch(name):
        raise StoreError(
            f"the dataset name {name!r} is refused; expected 1 to 64 of a-z, 0-9, '.', '_', '-', "
            "starting with a letter or a digit. Set `name` in the config, or rename the config file.",
            name=name,
        )
    return name


def check_tag_name(name: str) -> str:
    """Return ``name`` if it is a tag's name, else raise StoreError.

    A tag's name is a dataset's name that cannot be read as a version.
    """
    if not TAG_NAME.fullmatch(name):
        raise StoreError(
            f"the tag name {name!r} is refused; expected 1 to 64 of a-z, 0-9, '.', '_', '-', starting with a letter "
            "or a digit, and nothing that reads as a version, such as v3 or 3",
            name=name,
        )
    return name


# Names in the folder of a version, and in that of a dataset (tags).
MANIFEST: Final = "manifest.json"
CLAIM: Final = "claim.json"
CONFIG: Final = "config.yaml"
CARD: Final = "README.md"
DATA: Final = "data"
LEDGER: Final = "ledger"
QUARANTINE: Final = "quarantine"
TAGS: Final = "tags"
RUNS: Final = "runs"
TOKENIZER: Final = "tokenizer"
MANIFEST_COPY: Final = f"{RUNS}/manifest-copy.json"
"""Second copy of the manifest, in equal bytes.

It lies in ``runs/``, where older releases look at no such file.
"""
# Largest numbers of units (seven digits in the names of files) and of parts.
MAX_UNIT: Final = 9_999_999
MAX_PART: Final = 99_999

_LEDGER_NAME: Final = re.compile(r"ledger/(\d{5,7})\.json")
_VERSION_NAME: Final = re.compile(r"v([1-9]\d{0,8})")


def shard_path(split: str, unit: int, part: int) -> str:
    """Return the path of a shard, relative to its version.

    Split, unit and part make its name: ``data/train-00017-00.parquet``.
    """
    return f"{DATA}/{_checked_split(split)}-{unit:05d}-{part:02d}.parquet"


# A version has a few splits, and perhaps a hundred thousand shards.
@functools.lru_cache(64)
def _checked_split(split: str) -> str:
    """Return the name of a split if it is allowed, else raise StoreError."""
    if not SPLIT_NAME.fullmatch(split):
        raise StoreError(
            f"the split name {split!r} is refused; expected letters, digits, '_', '.', '-' (at most 64)"
        )
    return split


def ledger_path(unit: int) -> str:
    """Return ``ledger/00017.json``."""
    return f"{LEDGER}/{unit:05d}.json"


def quarantine_path(unit: int) -> str:
    """Return ``quarantine/00017.parquet``."""
    return f"{QUARANTINE}/{unit:05d}.parquet"


def tokenizer_path(folder: str) -> str:
    """Return ``tokenizer``, or the folder in it of one tokenizer of several."""
    return f"{TOKENIZER}/{folder}".rstrip("/")


def ledger_unit(path: str) -> int | None:
    """Return the unit of a ledger record's path; None if it is no such path."""
    match = _LEDGER_NAME.fullmatch(path)
    if match is None:
        return None
    unit = int(match[1])
    # A name with more zeros than ours is a file of someone else.
    return unit if ledger_path(unit) == path else None


def version_number(name: str) -> int | None:
    """Return 3 for ``v3``; None for anything that is not a version's folder."""
    match = _VERSION_NAME.fullmatch(name)
    return int(match[1]) if match else None


def tags_prefix(dataset: str) -> str:
    """Return ``llama2-2048/tags``, the folder of a dataset's tags."""
    return f"{check_dataset_name(dataset)}/{TAGS}"


def tag_key(dataset: str, tag: str) -> str:
    """Return ``llama2-2048/tags/prod.json``."""
    return f"{tags_prefix(dataset)}/{check_tag_name(tag)}.json"


def tag_of(key: str) -> str | None:
    """Return the tag of a tag's key; None for another key."""
    file_name = key.rpartition("/")[2]
    tag = file_name.removesuffix(".json")
    # The key is DATASET/tags/TAG.json.
    is_tag_file = tag != file_name and key.count("/") == 2
    if is_tag_file and TAG_NAME.fullmatch(tag):
        return tag
    return None


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of one version: ``Layout("llama2-2048", 1).ledger(17)``."""

    dataset: str
    version: int

    def __post_init__(self) -> None:
        check_dataset_name(self.dataset)
        if version_number(f"v{self.version}") is None:
            raise StoreError(
                f"{self.dataset}: version {self.version} is refused; versions are 1, 2, 3, ..."
            )

    @property
    def prefix(self) -> str:
        return f"{self.dataset}/v{self.version}"

    @property
    def manifest(self) -> str:
        return self.key(MANIFEST)

    @property
    def manifest_copy(self) -> str:
        return self.key(MANIFEST_COPY)

    @property
    def claim(self) -> str:
        return self.key(CLAIM)

    @property
    def card(self) -> str:
        return self.key(CARD)

    def key(self, path: str) -> str:
        """Return the key of a path relative to the version (as manifests hold it)."""
        return check_key(f"{self.dataset}/v{self.version}/{path}")

    def path(self, key: str) -> str:
        """Return the path of a key of this version; the inverse of :meth:`key`."""
        return key.removeprefix(self.prefix + "/")

    def ledger(self, unit: int) -> str:
        return self.key(ledger_path(unit))

    def run(self, run_id: str) -> str:
        return self.key(f"{RUNS}/{run_id}.json")


# Largest sizes in bytes, far above those that tokenlake writes.
_WHOLE: Final = 1 << 30  # a manifest of a million shards, a tokenizer
_RECORD: Final = 256 << 20  # of one unit
_SMALL: Final = 16 << 20  # claims, tags


def check_size(key: str, size: int) -> None:
    """Raise IntegrityError for an object that is too large to be one of ours.

    The size is checked before the object is in memory.
    """
    # The place of an object says which kind it is.
    *folders, file_name = key.split("/")
    max_bytes = _RECORD if folders[-1:] == [LEDGER] else _WHOLE
    if file_name == CLAIM or folders[-1:] == [TAGS]:
        max_bytes = _SMALL
    if size > max_bytes:
        raise IntegrityError(
            f"{key}: it has {size} bytes or more; expected at most {max_bytes}. tokenlake writes smaller ones: restore "
            "it from a copy, or build it again.",
            file=key,
            expected=max_bytes,
            got=size,
        )
