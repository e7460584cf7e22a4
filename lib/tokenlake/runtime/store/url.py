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
"""Environment variable: further schemes that may be opened.

They are separated by commas, such as ``sftp,oss``.
"""

USUAL: Final = ("s3", "gs", "http", "https", "hf", "file", "az", "abfs", "abfss", "adl")
"""Schemes that may be opened without being listed.

``s3a`` and ``gcs`` are other names of the first two.
"""

# Whatever the variable says: they go round the rules for local paths, open other
# addresses in turn, or keep copies that are read back unchecked.
_NEVER: Final = re.compile(
    "local|simplecache|filecache|blockcache|cached|reference|generic|dir|zip|tar|libarchive"
)


def check_scheme(scheme: str, option: str) -> None:
    """Refuse a scheme that is not allowed.

    Args:
        scheme: Scheme in lower case, without aliases.
        option: Option that holds the URL, for the message.

    Raises:
        ConfigError: The scheme is not on the list; the message says how to allow it.
    """
    if scheme in USUAL:
        return
    # The variable is read at each call, so that a worker's environment counts.
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
"""Packages that `pip` installs for the schemes that only fsspec reads."""

EXTRAS: Final = {
    "s3": "'tokenlake[s3]'",
    "gs": "'tokenlake[gcs]'",
    **dict.fromkeys(("http", "https"), "'tokenlake[http]'"),
}
"""Packages for the schemes that have a client of their own."""

BUCKETS: Final = ("s3", "s3a", "gs", "gcs")
"""Schemes of stores that can be written to, with their other names."""

_ALIASES: Final = {"s3a": "s3", "gcs": "gs"}
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL without secrets.

    Attributes:
        scheme: Scheme in lower case, aliases replaced (``s3a`` is ``s3``).
        root: Scheme and bucket or host: ``s3://bucket``; never ends with a slash.
        path: Path without the slash before it; for HTTP with its query.
    """

    scheme: str
    root: str
    path: str

    @property
    def is_http(self) -> bool:
        """Whether the URL is that of a web server, which cannot list its files."""
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
        text: URL.
        option: Option that holds the URL, for messages.

    Raises:
        ConfigError: The URL holds credentials, has no host, is of a scheme that may
            not be read, or chains file systems.
    """
    scheme, _, address = text.partition("://")
    scheme = scheme.lower()
    if not _SCHEME.fullmatch(scheme):
        raise ConfigError(
            f"{option}: {scheme.partition(':')[0]!r}... is not a URL; expected scheme://host/path, "
            "with one scheme (file systems cannot be chained with ::)"
        )
    scheme = _ALIASES.get(scheme, scheme)
    # The fragment is not sent, and a query may follow the host without a slash.
    if scheme in ("http", "https"):
        address = re.sub(r"^([^/?#]*)\?", r"\1/?", address).partition("#")[0]
    host, _, path = address.partition("/")
    if scheme == "memory":  # has no hosts
        host = ""
        path = address.lstrip("/")
    root = f"{scheme}://{host}" if host else f"{scheme}:/"
    url = Url(scheme, root, path)
    # Secrets first, so that no later message shows one.
    _refuse_password(url, host, option)
    _refuse_signature(url, option)
    check_scheme(scheme, option)
    if "::" in text:
        raise ConfigError(
            f"{option}: {url.root}...: file systems cannot be chained with ::"
        )
    if not host and scheme in EXTRAS:
        missing_name = "host" if url.is_http else "bucket"
        raise ConfigError(f"{option}: {text!r} names no {missing_name}", got=text)
    return url


def _refuse_password(url: Url, host: str, option: str) -> None:
    """Raise ConfigError for a URL with a user and a password before its host."""
    # On the web a user alone may be a token.
    has_password = ":" in host.rpartition("@")[0]
    if not has_password and not (url.is_http and "@" in host):
        return
    path = url.path.partition("?")[0] if url.is_http else url.path
    shown = f"{url.scheme}://...@{host.rpartition('@')[2]}/{path}"
    raise ConfigError(
        f"{option}: {shown} contains a password (not shown), and URLs are recorded in versions. Write the URL "
        "without it, and use storage_options: {username: NAME, password: {env: VARIABLE}}"
    )


def _refuse_signature(url: Url, option: str) -> None:
    """Raise ConfigError for a URL whose query holds credentials."""
    query = ""
    if url.is_http or "?" in url.path:
        query = urlsplit(str(url)).query
    parameter_names = [
        unquote(pair.partition("=")[0]) for pair in re.split("[&;]", query)
    ]
    # The version of an object is no secret, although its name looks like one.
    signed_names: list[str] = []
    for parameter in parameter_names:
        if SIGNED.search(parameter) and "versionid" not in parameter.lower():
            signed_names.append(parameter)
    if signed_names:
        raise ConfigError(
            f"{option}: {str(url).partition('?')[0]}?... contains credentials in its query "
            f"({', '.join(signed_names)}), and URLs are recorded in versions. Write the URL without its "
            "query, and the query as storage_options: "
            "{query: {env: VARIABLE}}, or {query: {FILE NAME: {env: VARIABLE}}} if every file has its own"
        )


def root_of(address: str) -> Url:
    """Return the URL of a store's root; its path has no slash at its ends.

    Raises:
        ConfigError: The URL holds credentials, or a query.
    """
    url = parse_url(address, "store")
    if "?" in url.path:
        raise ConfigError(
            f"store: {str(url).partition('?')[0]}?... has a query, but file names are appended to the URL. Write the "
            "URL without the query, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
        )
    return Url(url.scheme, url.root, url.path.strip("/"))


def url_of(root: Url, key: str) -> Url:
    """Return the URL of an object; StoreError for an unsafe key."""
    path = check_key(key)
    # Web servers need names in percent-encoding; buckets take keys as they are.
    if root.is_http:
        path = quote(path)
    return Url(root.scheme, root.root, _below(root) + path)


def folder_of(root: Url, prefix: str) -> Url:
    """Return the beginning of the URLs of all objects below a folder.

    The prefix "" means all objects of the store.
    """
    folder = root
    if prefix:
        folder = url_of(root, prefix)
    return Url(folder.scheme, folder.root, _below(folder))


def key_of(root: Url, path: str) -> str:
    """Return the key of an object."""
    return path.removeprefix(_below(root))


def _below(folder: Url) -> str:
    """Return the path of a folder with a slash; "" for the root of a bucket or host."""
    if not folder.path:
        return ""
    return f"{folder.path}/"
