"""Names and keys: what may be called what, so that no path ever leaves its root.

A key is a POSIX path relative to the store's root (``llama2-2048/v1/manifest.json``). A path is the same,
relative to a version's folder, as manifests hold it (``data/train-00000-00.parquet``).
"""

from __future__ import annotations

import re
from typing import Final

from tokenlake.errors import StoreError

DATASET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# Never what could be read as a version: ``v3``, ``3``.
TAG_NAME: Final = re.compile(r"(?!v?[0-9]+\Z)[a-z0-9][a-z0-9._-]{0,63}")
SPLIT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# Nearly all keys are of this form, which has no problem; asking so is ten times as fast as looking for one.
_PLAIN_KEY: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}){0,31}"
)
# Unpublished files; they sit beside what they will become, and no listing shows them.
TEMP_MARK: Final = ".tmp-"


def key_problem(key: str) -> str | None:
    """Return why ``key`` is not a safe relative POSIX path, or None."""
    if _PLAIN_KEY.fullmatch(key):
        return None
    if not key:
        return "it is empty"
    if "\\" in key or any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "it has a backslash or a control character"
    try:
        parts = key.encode("utf-8").split(b"/")
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if len(parts) > 32 or any(len(part) > 255 for part in parts):
        return "it has more than 32 parts, or a part of more than 255 bytes"
    if any(part in (b"", b".", b"..") for part in parts):
        return "it has an empty, '.' or '..' part"
    if any(part.startswith(TEMP_MARK.encode()) for part in parts):
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
    """Return ``name`` if it is a dataset's name (``[a-z0-9][a-z0-9._-]{0,63}``), else raise StoreError."""
    if not DATASET_NAME.fullmatch(name):
        raise StoreError(
            f"the dataset name {name!r} is refused; expected 1 to 64 of a-z, 0-9, '.', '_', '-', "
            "starting with a letter or a digit. Set `name` in the config, or rename the config file.",
            name=name,
        )
    return name


def check_tag_name(name: str) -> str:
    """Return ``name`` if it is a tag's name (a dataset's name that is no version's), else raise StoreError."""
    if not TAG_NAME.fullmatch(name):
        raise StoreError(
            f"the tag name {name!r} is refused; expected 1 to 64 of a-z, 0-9, '.', '_', '-', starting with a letter "
            "or a digit, and nothing that reads as a version, such as v3 or 3",
            name=name,
        )
    return name
