"""The folder of a store's pages: its files, and the record of the pages in it.

The record (``.tokenlake-pages.json``) names the store, and the identity of the pages of
each version. A folder without it is not ours, and nothing in it is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, TypeAlias

from tokenlake.errors import ConfigError, StoreError
from tokenlake.etl.reports.store_pages import VersionName, rows_page, version_page
from tokenlake.runtime.store.layout import Layout

Identities: TypeAlias = dict[VersionName, str]
"""Identity of the pages of each version."""

RECORD: Final = ".tokenlake-pages.json"
"""Name of the record."""

# Names of files that are written, and renamed once they are whole.
_TEMPORARY: Final = ".tokenlake-*.tmp"
# Age of a temporary file that no running call needs any more.
_LEFTOVER_SECONDS: Final = 3600.0


def check_folder(folder: Path, store_url: str) -> Identities:
    """Return the identities of the pages in a folder; none for a new folder.

    Raises:
        ConfigError: The folder holds other files or the pages of another store, is a
            file, or cannot be read.
    """
    try:
        file_names = os.listdir(folder)  # noqa: PTH208 - only the names
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"output: {folder} cannot be read: {error.strerror or error}"
        ) from error
    # A call that was killed at once leaves temporary files alone.
    if all(fnmatch(name, _TEMPORARY) for name in file_names):
        return {}
    if RECORD not in file_names:
        raise ConfigError(
            f"output: the folder {folder} holds other files than the pages of a store; nothing was written. Expected a "
            "new or empty folder, or one that an earlier report wrote: name another one",
            got=str(folder),
        )
    try:
        # The record is a file that anybody may have changed.
        record = json.loads((folder / RECORD).read_bytes())
        recorded_url = str(record["store"])
        entries = dict(record["pages"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}  # a damaged record: all pages are written again
    if recorded_url != store_url:
        raise ConfigError(
            f"output: the folder {folder} holds the pages of another store, {recorded_url}; expected those of "
            f"{store_url}. Nothing was written: name another folder, or remove this one",
            got=recorded_url,
            expected=store_url,
        )
    return dict(_named_identities(entries))


def _named_identities(
    entries: Mapping[str, object],
) -> Iterator[tuple[VersionName, str]]:
    """Yield versions and identities of a record.

    A name of another form is left out, because it could lead out of the folder when its
    pages are removed.
    """
    for version_name, identity in entries.items():
        dataset, _, version_number = version_name.rpartition("@v")
        # The layout checks the name of the dataset, and the number.
        with suppress(StoreError, ValueError):
            layout = Layout(dataset, int(version_number))
            yield VersionName(layout.dataset, layout.version), str(identity)


def write_record(folder: Path, store_url: str, identities: Identities) -> None:
    """Write the record of the pages in a folder.

    Args:
        folder: Folder of the pages.
        store_url: URL of their store.
        identities: Identity of the pages of each version; "" for pages that the next
            call shall write again.

    Raises:
        ConfigError: The file cannot be written.
    """
    pages = {str(name): identity for name, identity in sorted(identities.items())}
    record_json = json.dumps(
        {"format": 1, "store": store_url, "pages": pages}, indent=1
    )
    write_page(folder, RECORD, f"{record_json}\n")


def write_page(folder: Path, path: str, text: str) -> None:
    """Write a file as a whole or not at all.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = folder / path
    # One name for each path and process, so that two calls do not write one file.
    path_digest = hashlib.sha256(path.encode()).hexdigest()[:16]
    temporary = folder / f".tokenlake-{path_digest}-{os.getpid()}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise ConfigError(
            f"output: {target} cannot be written: {error.strerror or error}"
        ) from error


def remove_pages(folder: Path, name: VersionName) -> None:
    """Remove the pages of a version, and the folder of its dataset if it is empty."""
    for path in (version_page(name), rows_page(name)):
        with suppress(OSError):
            (folder / path).unlink()
    with suppress(OSError):
        (folder / version_page(name)).parent.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of calls that were killed."""
    for path in folder.glob(_TEMPORARY):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                path.unlink()
