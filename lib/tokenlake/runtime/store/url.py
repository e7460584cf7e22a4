"""URLs of stores and inputs.

URLs hold no secrets. Their schemes are an allow-list, because fsspec opens much that
nobody meant: shells on other machines, caches that unpickle files of a folder, ways
around the rules for local paths. A scheme that is not on the list is refused before
fsspec is asked for it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from tokenlake.base.checks import did_you_mean
from tokenlake.errors import SIGNED, ConfigError
from tokenlake.runtime.store.layout import check_key

VARIABLE: Final = "TOKENLAKE_ALLOWED_SCHEMES"
"""Environment variable: further schemes that may be opened, separated by commas,
such as ``sftp,oss``.
"""

USUAL: Final = ("s3", "gs", "http", "https", "hf", "file", "az", "abfs", "abfss", "adl")
"""What may be opened without being asked for; ``s3a`` and ``gcs`` are other names of
the first two.
"""

# Whatever the variable says: they go round the rules for local paths, open other
# addresses in turn, or keep copies that are read back unchecked.
_NEVER: Final = re.compile(
    "local|simplecache|filecache|blockcache|cached|reference|generic|dir|zip|tar|libarchive"
)


def check_scheme(scheme: str, option: str) -> None:
    """Refuse a scheme that is not allowed.

    Args:
        scheme: in lower case, without aliases.
        option: what holds the URL, for the message.

    Raises:
        ConfigError: it is not on the list; the message says how to allow it.
    """
    if scheme in USUAL:
        return
    schemes = {name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",")}
    if scheme in schemes and not _NEVER.fullmatch(scheme):
        return
    guess = did_you_mean(scheme, (*USUAL, *_ALIASES, "sftp", "ftp"))
    allow = f"to allow it, set {VARIABLE}={scheme} in the environment"
    if _NEVER.fullmatch(scheme):
        allow = "it bypasses the rules for addresses and cannot be allowed"
    raise ConfigError(
        f"{option}: {scheme}:// is not an allowed scheme; expected one of {', '.join(USUAL)}{guess} ({allow})",
        got=scheme,
    )


INSTALLED_BY: Final = dict.fromkeys(("az", "abfs", "abfss"), "'tokenlake[azure]'")
"""Schemes that fsspec alone reads to what `pip` installs for them."""

EXTRAS: Final = {
    "s3": "'tokenlake[s3]'",
    "gs": "'tokenlake[gcs]'",
    **dict.fromkeys(("http", "https"), "'tokenlake[http]'"),
}
"""What has to be installed for the schemes that have a client of their own."""

BUCKETS: Final = ("s3", "s3a", "gs", "gcs")
"""Schemes of stores that can be written to, with their other names."""

_ALIASES: Final = {"s3a": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL without secrets.

    Attributes:
        scheme: in lower case, aliases replaced (``s3a`` is ``s3``).
        root: scheme and bucket or host: ``s3://bucket``; never ends with a slash.
        path: what follows, without the slash before it; for HTTP with its query.
    """

    scheme: str
    root: str
    path: str

    @property
    def is_http(self) -> bool:
        """Whether it is of a web server, which cannot list what it has."""
        return self.scheme in ("http", "https")

    @property
    def bucket(self) -> str:
        """Name of the bucket, or of the host."""
        return self.root.partition("://")[2]

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"


def parse_url(text: str, option: str = "data_files") -> Url:
    """Return the parts of a URL.

    Args:
        option: what holds the URL, for messages.

    Raises:
        ConfigError: it holds credentials, has no host, is of a scheme that may not be
            read, or chains file systems.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if not _SCHEME.fullmatch(scheme):
        raise ConfigError(
            f"{option}: {scheme.partition(':')[0]!r}... is not a URL; expected scheme://host/path, "
            "with one scheme (file systems cannot be chained with ::)"
        )
    scheme = _ALIASES.get(scheme, scheme)
    if scheme in ("http", "https"):
        rest = re.sub(r"^([^/?#]*)\?", r"\1/?", rest).partition("#")[0]
    host, _, path = rest.partition("/")
    if scheme == "memory":  # has no hosts
        host, path = "", rest.lstrip("/")
    url = Url(scheme, f"{scheme}://{host}" if host else f"{scheme}:/", path)
    _refuse_password(url, host, option)
    _refuse_signature(url, option)
    check_scheme(scheme, option)
    if "::" in text:
        raise ConfigError(
            f"{option}: {url.root}...: file systems cannot be chained with ::"
        )
    if not host and scheme in EXTRAS:
        raise ConfigError(
            f"{option}: {text!r} names no {'host' if url.is_http else 'bucket'}",
            got=text,
        )
    return url


def _refuse_password(url: Url, host: str, option: str) -> None:
    if ":" not in host.rpartition("@")[0] and not (url.is_http and "@" in host):
        return
    path = url.path.partition("?")[0] if url.is_http else url.path
    shown = f"{url.scheme}://...@{host.rpartition('@')[2]}/{path}"
    raise ConfigError(
        f"{option}: {shown} contains a password (not shown), and URLs are recorded in versions. Write the URL "
        "without it, and use storage_options: {username: NAME, password: {env: VARIABLE}}"
    )


def _refuse_signature(url: Url, option: str) -> None:
    query = urlsplit(str(url)).query if url.is_http or "?" in url.path else ""
    names = [unquote(pair.partition("=")[0]) for pair in re.split("[&;]", query)]
    if signed := [
        name
        for name in names
        if SIGNED.search(name) and "versionid" not in name.lower()
    ]:
        raise ConfigError(
            f"{option}: {str(url).partition('?')[0]}?... contains credentials in its query ({', '.join(signed)}), "
            "and URLs are recorded in versions. Write the URL without its query, and the query as storage_options: "
            "{query: {env: VARIABLE}}, or {query: {FILE NAME: {env: VARIABLE}}} if every file has its own"
        )


def root_of(address: str) -> Url:
    """Return the URL of a store's root; its path has no slash at its ends.

    Raises:
        ConfigError: it holds credentials, or a query.
    """
    url = parse_url(address, "store")
    if "?" in url.path:
        raise ConfigError(
            f"store: {str(url).partition('?')[0]}?... has a query, but file names are appended to the URL. Write the "
            "URL without the query, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
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
