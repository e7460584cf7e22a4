"""URLs of inputs and stores: their parts, and no secrets in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from tokenlake.errors import SIGNED, ConfigError
from tokenlake.storage.remote.schemes import check_scheme

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

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"


def parse_url(text: str, option: str = "data_files") -> Url:
    """Return the parts of a URL.

    Args:
        option: what holds the URL, for messages.

    Raises:
        ConfigError: it holds credentials, has no host, is of a scheme that may not be read, or chains file systems.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if not _SCHEME.fullmatch(scheme):
        raise ConfigError(
            f"{option}: {scheme.partition(':')[0]!r}... is no URL that can be read; expected scheme://host/path, "
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
        raise ConfigError(f"{option}: {url.root}...: file systems cannot be chained with ::")
    if not host and scheme in ("s3", "gs", "http", "https"):
        raise ConfigError(f"{option}: {text!r} names no {'host' if url.is_http else 'bucket'}", got=text)
    return url


def without_query(url: str) -> str:
    """Return an HTTP URL up to its query; others as they are."""
    return url.partition("?")[0] if url.startswith(("http://", "https://")) else url


def _refuse_password(url: Url, host: str, option: str) -> None:
    if ":" not in host.rpartition("@")[0] and not (url.is_http and "@" in host):
        return
    shown = (
        f"{url.scheme}://...@{host.rpartition('@')[2]}/{without_query(str(url)).partition(url.root + '/')[2]}"
    )
    raise ConfigError(
        f"{option}: {shown} has a password in it (not shown), and URLs are written down "
        "with what is made from them. Write the URL without it, and storage_options: "
        "{username: NAME, password: {env: VARIABLE}}"
    )


def _refuse_signature(url: Url, option: str) -> None:
    query = urlsplit(str(url)).query if url.is_http or "?" in url.path else ""
    names = [unquote(pair.partition("=")[0]) for pair in re.split("[&;]", query)]
    if signed := [name for name in names if SIGNED.search(name) and "versionid" not in name.lower()]:
        raise ConfigError(
            f"{option}: {str(url).partition('?')[0]}?... has credentials in its query ({', '.join(signed)}), and "
            "URLs are written down with what is made from them. Write the URL without its query, and the query as "
            "storage_options: {query: {env: VARIABLE}}, or {query: {FILE NAME: {env: VARIABLE}}} where every "
            "file has its own"
        )
