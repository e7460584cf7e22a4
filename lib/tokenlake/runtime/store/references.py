"""References to versions, as people write them.

The forms are ``NAME``, ``NAME@v3``, ``NAME@3`` and ``NAME@TAG``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar, final, overload

from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.runtime.store.layout import DATASET_NAME, TAG_NAME

SHOWN: Final = 20
"""Most names or versions that a message lists."""

_REFERENCE: Final = re.compile(
    rf"(?P<name>[^@]+)(?:@(?:v?(?P<version>[1-9][0-9]{{0,8}})|(?P<tag>{TAG_NAME.pattern})))?"
)


@final
@dataclass(frozen=True, slots=True)
class Reference:
    """A dataset, and a version or a tag of it.

    Without both it means the newest committed version.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        tag: Name of the tag.
    """

    dataset: str
    version: int | None = None
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a reference; NotFoundError if the text is none."""
        # A tag cannot look like a version, so that the text after the @ has one
        # meaning.
        match = _REFERENCE.fullmatch(text)
        if match is None or not DATASET_NAME.fullmatch(match["name"]):
            guess = _probable_reference(text)
            expected = "expected"
            if guess:
                expected = f"did you mean {guess}? Expected"
            raise NotFoundError(
                f"{text!r} names no dataset; {expected} NAME, NAME@v3, NAME@3 or NAME@TAG, where NAME is 1 to 64 of "
                "a-z, 0-9, '.', '_' and '-', the first of them a letter or a digit"
            )
        version: int | None = None
        if match["version"] is not None:
            version = int(match["version"])
        return cls(match["name"], version, match["tag"])


def _probable_reference(text: str) -> str:
    """Return the reference that is probably meant by a text that is none, as commands
    take it; "" if there is no answer.

    >>> _probable_reference("artifacts/code/v3")
    'code@v3 --store artifacts'
    >>> _probable_reference("Code:v3")
    'code@v3'
    """
    store = "."
    name = text.lower().replace(":", "@")
    if "/" in text and "://" not in text:
        store, name = parted(text)
    match = _REFERENCE.fullmatch(name)
    if match is None or not DATASET_NAME.fullmatch(match["name"]):
        return ""
    if store == ".":
        return name
    return f"{name} --store {store}"


def not_among(
    problem: str, name: str, names: Sequence[str], ending: str = ""
) -> NotFoundError:
    """Return the error for an unknown name; it lists near matches and the known names.

    Args:
        problem: Clause that says which name is unknown.
        name: The unknown name.
        names: The known names.
        ending: Text that follows.
    """
    # A misspelled name is the usual case: similar names come first.
    near_names = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near_names)}? There" if near_names else "there"
    known_names = ", ".join(names[:SHOWN]) or "none"
    return NotFoundError(
        f"{problem}; {guess} are: {known_names}.{ending}",
        name=name,
        near=near_names,
        expected=[*names],
    )


Opened = TypeVar("Opened")


@overload
def parted(
    where: str | os.PathLike[str], name: str | None = None
) -> tuple[str, str]: ...
@overload
def parted(
    where: Opened | str | os.PathLike[str], name: str | None = None
) -> tuple[Opened | str, str]: ...
def parted(where: Any, name: str | None = None) -> tuple[Any, str]:
    """Split the place of a version into a store and a reference.

    ``artifacts/code@v3`` gives ``artifacts`` and ``code@v3``; so does
    ``artifacts/code/v3``.

    Args:
        where: Path or URL of the version; or, with `name`, its store or the store's
            address.
        name: Reference in the store `where`.

    Raises:
        ConfigError: The name is missing, or the URL has a query.
    """
    # Addresses of stores pass unchanged; paths become texts.
    if isinstance(where, os.PathLike):
        where = os.fspath(where)
    if name is not None:
        return where, name
    if not isinstance(where, str):
        raise ConfigError(
            "name: got None, must be the name of a dataset in the store: NAME, NAME@v3 or NAME@TAG"
        )
    # A query belongs to one URL, and the files of a version have URLs of their own.
    if "://" in where and "?" in where:
        raise ConfigError(
            "the URL of a dataset has a query (not shown), but file names are appended to it. Write the URL without "
            "the query, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
        )
    store_address, separator, name = where.rstrip("/").rpartition("/")
    # The folder of a version is another spelling of its reference.
    is_version_folder = name[:1] == "v" and name[1:].isdecimal()
    if separator and is_version_folder:
        store_address, separator, dataset = store_address.rpartition("/")
        name = f"{dataset}@{name}"
    return store_address if separator else ".", name
