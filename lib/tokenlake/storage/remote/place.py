"""Keys and URLs: what is where below the root of a remote store."""

from __future__ import annotations

from urllib.parse import quote

from tokenlake.errors import ConfigError
from tokenlake.storage.keys import check_key
from tokenlake.storage.remote.urls import Url, parse_url


def root_of(address: str) -> Url:
    """Return the URL of a store's root; its path has no slash at its ends.

    Raises:
        ConfigError: it holds credentials, or a query.
    """
    url = parse_url(address, "store")
    if "?" in url.path:
        raise ConfigError(
            f"store: {str(url).partition('?')[0]}?... has a query, and the names of files belong behind the URL. "
            "Write it without, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
        )
    return Url(url.scheme, url.root, url.path.strip("/"))


def url_of(root: Url, key: str) -> Url:
    """Return where an object is; StoreError for an unsafe key."""
    path = check_key(key)
    path = quote(path) if root.is_http else path
    return Url(root.scheme, root.root, f"{root.path}/{path}" if root.path else path)


def folder_of(root: Url, prefix: str) -> Url:
    """Return what the objects below the folder `prefix` ("" = all) begin with."""
    folder = url_of(root, prefix) if prefix else root
    return Url(folder.scheme, folder.root, f"{folder.path}/" if folder.path else "")


def key_of(root: Url, path: str) -> str:
    """Return the key of an object."""
    return path.removeprefix(f"{root.path}/" if root.path else "")
