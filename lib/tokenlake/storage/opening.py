"""From a URL to a store, by an allow-list of schemes."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from tokenlake.errors import NotAvailableError, StoreError
from tokenlake.storage.base import Store
from tokenlake.storage.local import LocalStore


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open the store at a path (``artifacts``, ``~/lake``) or a ``file://`` URL; nothing is made yet.

    Raises:
        NotAvailableError: any other scheme.
        StoreError: an empty address, a ``file://`` URL of another host, or a file where a folder belongs.
    """
    address = os.fspath(url)
    if not address:
        raise StoreError("the store's address is empty; expected a path such as ./artifacts")
    scheme, separator, _ = address.partition("://")
    if not separator:
        return LocalStore(address)
    if scheme.lower() == "file":
        return LocalStore(_file_path(address))
    # Only the scheme is repeated: the rest of a URL may hold credentials.
    raise NotAvailableError(
        f"stores on {scheme}:// are not available in this release; expected a local path or a file:// URL",
        option="save.output_dir",
        scheme=scheme,
    )


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise StoreError(f"the store URL {url!r} is refused; expected file:///absolute/path")
    return unquote(parts.path)
