"""From an address to a store: local folders and buckets for writing, and all file
systems of fsspec for reading.

An address is a path or a URL with the options of its file system; configurations, jobs
and processes pass it on. An object store whose address has no options takes those of
the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast, final
from urllib.parse import unquote, urlsplit

from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError, NotAvailableError, StoreError
from tokenlake.runtime.store.base import ReadStore, Store
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.schemes import url_probably_meant
from tokenlake.runtime.store.scratch import scratch_of
from tokenlake.runtime.store.shard_cache import DEFAULT_BYTES, ShardCache
from tokenlake.runtime.store.url import BUCKETS


@final
@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store that :func:`tokenlake.runtime.store.address.open_store` and
    ``open_read_store`` open.

    Attributes:
        url: Path or URL, without credentials.
        options: Options of its file system. References (``{"env": NAME}``) stay
            references, and no repr shows them.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @classmethod
    def of(cls, where: str | os.PathLike[str] | StoreAddress) -> StoreAddress:
        """Return an address unchanged; a path or URL as an address without options."""
        if isinstance(where, StoreAddress):
            return where
        return cls(os.fspath(where))

    def __str__(self) -> str:
        return self.url


def absolute_address(where: str, options: Mapping[str, Any]) -> StoreAddress:
    """Return an address that does not depend on the current folder: a path is made
    absolute.
    """
    _require_whole_scheme(where)
    if where and "://" not in where:
        where = str(Path(where).expanduser().absolute())
    return StoreAddress(where, options)


OPTIONS_VARIABLE: Final = "TOKENLAKE_STORE_OPTIONS"
"""Environment variable: a JSON object of storage_options for ``s3://`` and ``gs://``
stores that come without any.
"""


def options_here(
    url: str, options: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Any]:
    """Return the given options; without any, those of the environment for an object
    store.

    Args:
        url: Path or URL of the store.
        options: Options that were given.
        environ: Environment variables.

    Raises:
        ConfigError: The variable holds no JSON object. Its value, which may hold
            secrets, is not shown.
    """
    if options or url.partition("://")[0].lower() not in BUCKETS:
        return options or {}
    text = environ.get(OPTIONS_VARIABLE)
    if not text:
        return {}
    parsed: object = None
    with suppress(ValueError):
        parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ConfigError(
            f"{OPTIONS_VARIABLE} is not a JSON object (its value is not shown); expected one such as "
            '{"endpoint_url": "https://...", "key": {"env": "NAME"}, "secret": {"env": "OTHER"}}'
        )
    return cast("dict[str, Any]", parsed)


def open_store(
    where: str | os.PathLike[str] | StoreAddress,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Store:
    """Open the store at a path (``artifacts``, ``~/lake``), a ``file://`` URL, or in a
    bucket (``s3://``, ``gs://``). Nothing is created or requested yet.

    Args:
        where: Path, URL or address.
        storage_options: Options that replace those of a :class:`StoreAddress`. Local
            stores take none.

    Raises:
        NotAvailableError: The scheme is another one; :func:`open_read_store` reads
            those.
        ConfigError: A local store got options, the URL holds credentials, or an option
            is unknown.
        MissingExtraError: The package for the bucket is missing; the message has the
            line that installs it.
        StoreError: The address is empty, a ``file://`` URL of another host, or a file
            instead of a folder.
    """
    place = StoreAddress.of(where)
    address = place.url
    options = options_here(
        address, place.options if storage_options is None else storage_options
    )
    if (local := _local_store(address, options)) is not None:
        return local
    scheme = address.partition("://")[0].lower()
    if scheme in BUCKETS:
        # fsspec and asyncio take a while to import, and local stores need neither.
        from tokenlake.runtime.store.object_store import ObjectStore

        return ObjectStore(address, options)
    # Only the scheme is repeated: the rest of a URL may hold credentials.
    raise NotAvailableError(
        f"stores on {scheme}:// are not available in this release, except for reading; expected a local path, a "
        "file:// URL, s3:// or gs://",
        option="save.output_dir",
        scheme=scheme,
    )


def scratch_folder(url: str) -> Path:
    """Return the folder of this machine for files on their way into a folder of a
    bucket.
    """
    return scratch_of(url).local_path("flat")


def open_read_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> ReadStore:
    """Open a store for reading: a path, or a URL with ``file``, ``s3``, ``gs``,
    ``http``, ``https`` or another of fsspec's schemes. Nothing is requested yet.

    ::

        store = open_read_store("s3://bucket/artifacts", storage_options={"key": {"env": "LAKE_KEY"}, ...},
                                cache="/scratch/shards", cache_bytes="200GB")

    Args:
        url: Path or URL.
        storage_options: Options of fsspec's file system; ``{"env": NAME}`` stands for
            an environment variable. Local stores take none.
        cache: Folder of this machine for copies of whole shards, shared by all
            processes that name it. Local stores make no copies.
        cache_bytes: Bytes of all copies together, such as ``"100GB"``; 64 GiB by
            default.

    Raises:
        ConfigError: The URL holds credentials, a scheme or an option is unknown, or an
            option has no use.
        MissingExtraError: The package that reads the scheme is missing; the message has
            the line that installs it.
        StoreError: The address is empty, or the folder cannot be used.
    """
    address = os.fspath(url)
    if cache is None and cache_bytes is not None:
        raise ConfigError(
            f"cache_bytes={cache_bytes!r} without a cache; also give its folder: cache=FOLDER"
        )
    options = options_here(address, storage_options)
    if (local := _local_store(address, options)) is not None:
        return local
    # fsspec and asyncio take a while to import, and local stores need neither.
    from tokenlake.runtime.store.remote import RemoteStore

    limit = DEFAULT_BYTES if cache_bytes is None else parse_size(cache_bytes)
    return RemoteStore(
        address, options, None if cache is None else ShardCache(cache, limit)
    )


def _require_whole_scheme(address: str) -> None:
    """Raise ConfigError for a path that begins like the URL of a bucket: a folder of
    that name would be created.
    """
    url = url_probably_meant(address)
    if url:
        raise ConfigError(
            f"the store {address!r} is neither a path nor a URL; did you mean {url!r}?",
            got=address,
            expected=url,
        )


def _local_store(address: str, options: Mapping[str, Any]) -> LocalStore | None:
    if not address:
        raise StoreError(
            "the store's address is empty; expected a path such as ./artifacts"
        )
    _require_whole_scheme(address)
    scheme, separator, _ = address.partition("://")
    if separator and scheme.lower() != "file":
        return None
    if separator:
        parts = urlsplit(address)
        if (
            parts.netloc not in ("", "localhost")
            or not parts.path
            or parts.query
            or parts.fragment
        ):
            raise StoreError(
                f"the store URL {address!r} is refused; expected file:///absolute/path"
            )
        address = unquote(parts.path)
    local = LocalStore(address)
    if options:
        names = ", ".join(sorted(options))
        raise ConfigError(
            f"storage_options ({names}) for {local.url}, which is local; leave them out"
        )
    return local
