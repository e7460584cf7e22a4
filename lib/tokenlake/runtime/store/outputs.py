"""Places for files that a user names: exports, reports, lists, statements.

None of them may lie in a store.

A store holds committed versions, which nothing but `repair`, `rm` and `gc` may change.
A place is in a store if it, or a folder above it, is one of these:

- a version: a folder ``v1``, ``v2``, ... with a claim, or with a manifest beside
  ``data/`` or ``ledger/``;
- a dataset: a folder that holds a version;
- the root of a store: a folder that holds a dataset.

The places are looked up and not compared as text, so that links, ``..`` and other
spellings of one folder make no difference. A bucket has no folders: there the prefixes
of keys are looked up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias, final

from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, NotFoundError, StoreError
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.allowed import is_odd
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import (
    CLAIM,
    DATA,
    DATASET_NAME,
    LEDGER,
    MANIFEST,
    version_number,
)
from tokenlake.runtime.store.url import BUCKETS, Url, parse_url

StorePart: TypeAlias = Literal["version", "dataset", "store"]

_ALL_PARTS: Final[tuple[StorePart, ...]] = ("version", "dataset", "store")
_AT_ONCE: Final = 16  # listings of a bucket under way at a time
# Beginning of the note that takes the place of a removed version's manifest.
_CLOSED: Final = b'{"closed":true,'


def require_outside_stores(
    place: str | os.PathLike[str],
    option: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a file or folder that lies in a store, or is one.

    Nothing is changed.

    Args:
        place: A path of this machine, or a ``file://``, ``s3://`` or ``gs://`` URL.
        option: The option that holds the place, for the message.
        storage_options: Options of a bucket. None: those of the environment.

    Raises:
        ConfigError: The place is a store, a dataset or a version, or lies in one.
    """
    enclosing = _enclosing_part(place, option, storage_options, _ALL_PARTS)
    _refuse(enclosing, os.fspath(place), option)


def require_no_version_above(
    store: str | os.PathLike[str],
    option: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a store whose root lies in a version or dataset of another store.

    Args:
        store: Path or URL of the store.
        option: Option that holds it, for the message.
        storage_options: Options of a bucket. None: those of the environment.

    Raises:
        ConfigError: The root lies in one.
    """
    # The root of a store is itself a store, so that only the inner parts are refused.
    enclosing = _enclosing_part(store, option, storage_options, ("version", "dataset"))
    _refuse(enclosing, os.fspath(store), option)


@final
@dataclass(frozen=True, slots=True)
class _Enclosing:
    """Innermost part of a store that a place lies in.

    Attributes:
        part: Kind of the part.
        place: Its path or URL.
    """

    part: StorePart
    place: str


def _refuse(enclosing: _Enclosing | None, place: str, option: str) -> None:
    """Raise ConfigError for a place in a part of a store."""
    if enclosing is None:
        return
    kinds = {
        "version": "a version of a dataset",
        "dataset": "the folder of a dataset's versions",
        "store": "the root of a store",
    }
    relation = "is" if place.rstrip("/") == enclosing.place else "lies in"
    raise ConfigError(
        f"{option}: {place!r} {relation} {kinds[enclosing.part]} ({enclosing.place}), whose files must not be changed; "
        "nothing was written or removed. Expected a place outside every store: use another one",
        got=place,
        part=enclosing.part,
        place=enclosing.place,
    )


def _enclosing_part(
    place: str | os.PathLike[str],
    option: str,
    storage_options: Mapping[str, Any] | None,
    parts: Sequence[StorePart],
) -> _Enclosing | None:
    """Return the innermost part of a store that a place lies in.

    Only the kinds in `parts` are looked for.
    """
    address = os.fspath(place)
    scheme, separator, path = address.partition("://")
    if not separator:
        return _part_on_disk(Path(address), parts)
    if scheme.lower() == "file":
        return _part_on_disk(Path(path), parts)
    if scheme.lower() in BUCKETS:
        url = parse_url(address, option)
        return _part_in_bucket(url, option, storage_options, parts)
    return None  # nothing is written to other storages


# Paths of this machine


def _part_on_disk(path: Path, parts: Sequence[StorePart]) -> _Enclosing | None:
    """Return the innermost part of a store that a path lies in, links followed."""
    # From the path upwards. Parts lie in one another, so that the first one found is
    # the innermost.
    real = path.expanduser().resolve()
    for folder in (real, *real.parents):
        if folder == folder.parent:
            break  # the root of the file system
        if not os.path.isdir(folder):  # noqa: PTH112 - False where it may not be looked at
            continue
        if _is_named_version(folder):
            return _Enclosing("version", str(folder))
        if _holds_version(str(folder)):
            return _Enclosing("dataset", str(folder))
        if "store" in parts and _holds_dataset(str(folder)):
            return _Enclosing("store", str(folder))
    return None


def _is_version(folder: Path) -> bool:
    """Return whether a folder holds the files of a version."""
    # Not through Path, which raises for a folder that may not be looked at.
    if os.path.isfile(folder / CLAIM):  # noqa: PTH113
        return True
    manifest = folder / MANIFEST
    if not os.path.isfile(manifest):  # noqa: PTH113
        return False
    if os.path.isdir(folder / DATA) or os.path.isdir(folder / LEDGER):  # noqa: PTH112
        return True
    # A version that was removed has this note alone.
    with suppress(OSError), manifest.open("rb") as file:
        return file.read(len(_CLOSED)) == _CLOSED
    return False


def _is_named_version(folder: Path) -> bool:
    """Return whether a folder is a version, by its name and its files."""
    return version_number(folder.name.lower()) is not None and _is_version(folder)


def _holds_version(folder: str) -> bool:
    """Return whether a folder has a version as an entry."""
    # Names are compared first: most entries have other names, and need no Path.
    for name in _folders_in(folder):
        is_version_name = version_number(name.lower()) is not None
        if is_version_name and _is_version(Path(folder, name)):
            return True
    return False


def _holds_dataset(folder: str) -> bool:
    """Return whether a folder has a dataset as an entry.

    A dataset has such a name, and a version.
    """
    for name in _folders_in(folder):
        is_dataset_name = DATASET_NAME.fullmatch(name.lower()) is not None
        if is_dataset_name and _holds_version(f"{folder}/{name}"):
            return True
    return False


def _folders_in(folder: str) -> list[str]:
    """Return the names of the folders in a folder; none if it cannot be listed."""
    # A folder for temporary files may have thousands of entries, so that none of them
    # costs more than its entry in the listing.
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # A link that leads in a circle is no folder, and hides no other entry.
            with suppress(OSError):
                if entry.is_dir():
                    names.append(entry.name)
    return names


# Prefixes of keys in buckets


def _part_in_bucket(
    url: Url,
    option: str,
    storage_options: Mapping[str, Any] | None,
    parts: Sequence[StorePart],
) -> _Enclosing | None:
    """Return the innermost part of a store that a URL lies in."""
    # A path with odd parts would name another folder than the one that is looked up.
    path = url.path.strip("/")
    if is_odd(path) or "//" in path:
        raise ConfigError(
            f"{option}: {str(url)!r} has an empty, '.' or '..' part; expected the plain name of a folder of the bucket",
            got=str(url),
        )
    # From the prefix upwards, as on a disk.
    bucket = open_read_store(url.root, storage_options=storage_options)
    prefix = PurePosixPath(path)
    for folder in (prefix, *prefix.parents):
        key = "" if str(folder) == "." else str(folder)
        store_part = _part_at(bucket, key, parts)
        if store_part is not None:
            return _Enclosing(store_part, f"{url.root}/{key}".rstrip("/"))
    return None


def _part_at(
    bucket: ReadStore, key: str, parts: Sequence[StorePart]
) -> StorePart | None:
    """Return the kind of a prefix of a bucket; None if it is none of the `parts`."""
    folder_name = key.rpartition("/")[2]
    if version_number(folder_name) is not None and _is_version_key(bucket, key):
        return "version"
    folders = _listed_folders(bucket, key)
    # Folders with the name of a version are looked into, in the order of the listing.
    for child in _named_versions(key, folders):
        if _is_version_key(bucket, child):
            return "dataset"
    if "store" not in parts:
        return None
    # One listing for each folder that may be a dataset.
    dataset_names = [folder for folder in folders if DATASET_NAME.fullmatch(folder)]
    datasets = [_joined(key, folder) for folder in dataset_names]
    are_datasets = in_order(
        lambda dataset: _is_dataset_key(bucket, dataset), datasets, _AT_ONCE
    )
    if any(are_datasets):
        return "store"
    return None


def _is_dataset_key(bucket: ReadStore, key: str) -> bool:
    """Return whether a prefix of a bucket holds a version."""
    folders = _listed_folders(bucket, key)
    return any(
        _is_version_key(bucket, child) for child in _named_versions(key, folders)
    )


def _named_versions(key: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the keys of the folders whose names are those of versions."""
    for folder in folders:
        if version_number(folder) is not None:
            yield _joined(key, folder)


def _is_version_key(bucket: ReadStore, key: str) -> bool:
    """Return whether a prefix of a bucket holds the objects of a version."""
    if _exists(bucket, f"{key}/{CLAIM}"):
        return True
    if not _exists(bucket, f"{key}/{MANIFEST}"):
        return False
    folders = _listed_folders(bucket, key)
    if DATA in folders or LEDGER in folders:
        return True
    with suppress(NotFoundError, StoreError):
        return bucket.read(f"{key}/{MANIFEST}").startswith(_CLOSED)
    return False


def _exists(bucket: ReadStore, key: str) -> bool:
    """Return whether an object exists; False if it may not be looked at."""
    with suppress(StoreError):  # a place that may not be read cannot be written either
        return bucket.size(key) is not None
    return False


def _listed_folders(bucket: ReadStore, key: str) -> list[str]:
    """Return the folders right below a prefix; none if it may not be listed."""
    # Credentials are often for a part of a bucket: folders above it may not be listed.
    with suppress(StoreError):
        return bucket.list_dirs(key)
    return []


def _joined(key: str, name: str) -> str:
    """Return the key of a name below a key; "" is the root of the bucket."""
    return f"{key}/{name}" if key else name
