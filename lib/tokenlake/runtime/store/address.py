"""From an address to a store.

Local folders and buckets are opened for writing and reading, all file systems of fsspec
for reading.

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
    """Address of a store that :func:`open_store` or :func:`open_read_store` opens.

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
    """Return an address that does not depend on the current folder.

    A path is made absolute.
    """
    _require_whole_scheme(where)
    if where and "://" not in where:
        where = str(Path(where).expanduser().absolute())
    return StoreAddress(where, options)


OPTIONS_VARIABLE: Final = "TOKENLAKE_STORE_OPTIONS"
"""Environment variable with a JSON object of storage_options.

``s3://`` and ``gs://`` stores that come without options take them.
"""


def options_here(
    url: str, options: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Any]:
    """Return the given options; without any, those of the environment.

    Only object stores take options from the environment.

    Args:
        url: Path or URL of the store.
        options: Options that were given.
        environ: Environment variables.

    Raises:
        ConfigError: The variable holds no JSON object. Its value, which may hold
            secrets, is not shown.
    """
    # The options of the caller win. Local paths and web servers have no use for those
    # of a bucket.
    if options or url.partition("://")[0].lower() not in BUCKETS:
        return options or {}
    variable_text = environ.get(OPTIONS_VARIABLE)
    if not variable_text:
        return {}
    # The text of the error would repeat a part of the value, so that it is not passed
    # on.
    parsed: object = None
    with suppress(ValueError):
        parsed = json.loads(variable_text)
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
    """Open the store at a path, a ``file://`` URL, or in a bucket.

    Paths are such as ``artifacts`` and ``~/lake``, buckets ``s3://`` and ``gs://``
    URLs. Nothing is created or requested yet.

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
    store_address = StoreAddress.of(where)
    if storage_options is None:
        storage_options = store_address.options
    address = store_address.url
    options = options_here(address, storage_options)
    local_store = _local_store(address, options)
    if local_store is not None:
        return local_store
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
    """Return the folder of this machine for files on their way into a bucket."""
    return scratch_of(url).local_path("flat")


def open_read_store(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> ReadStore:
    """Open a store for reading.

    It is a path, or a URL with ``file``, ``s3``, ``gs``, ``http``, ``https`` or another
    of fsspec's schemes. Nothing is requested yet.

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
    local_store = _local_store(address, options)
    if local_store is not None:
        return local_store
    # fsspec and asyncio take a while to import, and local stores need neither.
    from tokenlake.runtime.store.remote import RemoteStore

    shard_cache: ShardCache | None = None
    if cache is not None:
        max_bytes = DEFAULT_BYTES if cache_bytes is None else parse_size(cache_bytes)
        shard_cache = ShardCache(cache, max_bytes)
    return RemoteStore(address, options, shard_cache)


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
    """Return the store of a path or a ``file://`` URL; None for other URLs."""
    if not address:
        raise StoreError(
            "the store's address is empty; expected a path such as ./artifacts"
        )
    _require_whole_scheme(address)
    scheme, separator, _ = address.partition("://")
    folder = address
    if separator:
        if scheme.lower() != "file":
            return None
        # A host, a query or a fragment would silently name another folder.
        url_parts = urlsplit(address)
        is_this_machine = url_parts.netloc in ("", "localhost")
        has_more = bool(url_parts.query or url_parts.fragment)
        if not is_this_machine or not url_parts.path or has_more:
            raise StoreError(
                f"the store URL {address!r} is refused; expected file:///absolute/path"
            )
        folder = unquote(url_parts.path)
    local_store = LocalStore(folder)
    if options:
        names = ", ".join(sorted(options))
        raise ConfigError(
            f"storage_options ({names}) for {local_store.url}, which is local; leave them out"
        )
    return local_store
