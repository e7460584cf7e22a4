"""Store at a URL, for reading.

S3, GCS and HTTP(S) have clients of their own; other file systems of fsspec are read if
they are installed.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, cast

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.base import ObjectInfo, ReadStore
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.downloads import MemoryTarget, fetch_whole, read_version
from tokenlake.runtime.store.failures import OF_STORES
from tokenlake.runtime.store.layout import TEMP_MARK, check_size
from tokenlake.runtime.store.remote_file import RemoteFile
from tokenlake.runtime.store.sessions import client_at, on_loop
from tokenlake.runtime.store.shard_cache import ShardCache
from tokenlake.runtime.store.url import Url, folder_of, key_of, root_of, url_of
from tokenlake.runtime.store.writes import ByteTarget

PROBE: Final = "_probe-"
"""Beginning of the keys of trials; no listing shows them."""


class _Options(dict[str, Any]):
    """Options of a file system. They may hold secrets, which a repr must not show."""

    def __repr__(self) -> str:
        return "..."


class RemoteStore(ReadStore):
    """Objects below a URL.

    Reading an object is one request; opening an object of known size is none.

    A store may be pickled, and used in other processes and on both sides of a fork:
    each process opens connections of its own.

    Args:
        address: URL without credentials and without a query.
        options: Options of fsspec's file system; credentials may be references.
        cache: Cache for copies of objects whose size and hash are known when they are
            opened.
    """

    def __init__(
        self,
        address: str,
        options: Mapping[str, Any] | None = None,
        cache: ShardCache | None = None,
    ) -> None:
        self._root = root_of(address)
        self._options = _Options(options or {})
        self._cache = cache
        # Sha256 of the objects opened through the cache, by key.
        self._cached_hashes: dict[str, str] = {}
        self._client()  # a missing package or an unknown option is an error now

    @property
    def url(self) -> str:
        return str(self._root).rstrip("/")

    @property
    def can_list(self) -> bool:
        return not self._root.is_http

    # The size is checked while the bytes come: an answer may be of any length.
    def read(self, key: str) -> bytes:
        target = MemoryTarget(lambda size: check_size(key, size))
        on_loop(self._client().download(self._at(key), None, target))
        return target.data

    def open(
        self, key: str, *, size: int | None = None, sha256: str | None = None
    ) -> BinaryIO:
        url = self._at(key)
        if size is None:
            # Nothing checks these bytes later: every answer must be of the version that
            # is current now.
            planned = on_loop(self._client().stat(url))
            return cast("BinaryIO", RemoteFile(self._client, url, planned))
        # The pages of a known object are checked, so that any version will do, also one
        # that was repaired.
        planned = objects.RemoteObject(path=url.path, size=size, token="")
        if self._cache is not None and sha256 is not None:
            copy = self._cached_copy(self._cache, key, planned, sha256)
            if copy is not None:
                return copy
        return cast("BinaryIO", RemoteFile(self._client, url, planned))

    def _cached_copy(
        self, cache: ShardCache, key: str, planned: objects.RemoteObject, sha256: str
    ) -> BinaryIO | None:
        """Return an open copy of an object in the cache; None if it keeps none."""
        # A reader that finds damage names the object by its key, so that its hash is
        # needed then.
        url = self._at(key)
        self._cached_hashes[key] = sha256

        def fetch(target: ByteTarget) -> None:
            try:
                fetch_whole(self._client(), url, planned, target)
            except objects.OtherObjectError as error:
                raise IntegrityError(
                    f"{url}: it differs from the manifest: {error}. Verify the version where it is stored.",
                    file=str(url),
                ) from None

        return cache.open(sha256, planned.size, fetch, str(url))

    def discard(self, key: str) -> bool:
        sha256 = self._cached_hashes.get(key)
        if self._cache is None or sha256 is None:
            return False
        return self._cache.discard(sha256)

    def size(self, key: str) -> int | None:
        with contextlib.suppress(NotFoundError):
            return on_loop(self._client().stat(self._at(key))).size
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        object_infos: builtins.list[ObjectInfo] = []
        for remote in self._listed(prefix, flat=False):
            object_info = ObjectInfo(
                self._key(remote.path), remote.size, remote.modified, remote.token
            )
            is_folder = remote.path.endswith("/")
            # Trials of a preflight, and unpublished files that came with a copied
            # folder, are hidden.
            file_name = object_info.key.rpartition("/")[2]
            is_hidden = object_info.key.startswith(PROBE) or file_name.startswith(
                TEMP_MARK
            )
            if not is_folder and not is_hidden:
                object_infos.append(object_info)
        yield from sorted(object_infos, key=lambda object_info: object_info.key)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        names: set[str] = set()
        for remote in self._listed(prefix, flat=True):
            if remote.path.endswith("/"):
                names.add(self._key(remote.path).rstrip("/").rpartition("/")[2])
        return sorted(names - {""})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _client(self) -> ObjectClient:
        """Return the client of the storage in this process."""
        return client_at(self._root, self._options, OF_STORES)

    def _pour(self, key: str, target: ByteTarget) -> None:
        read_version(self._client(), self._at(key), target)

    def _listed(
        self, prefix: str, *, flat: bool
    ) -> builtins.list[objects.RemoteObject]:
        """Return the objects and folders below a prefix; StoreError for web servers."""
        # Web servers have no listing that all of them share.
        if not self.can_list:
            remedy = "Name an existing version (NAME@v3) or a tag (NAME@TAG)."
            raise StoreError(
                f"{self.url}: web servers do not list their files. {remedy}"
            )
        folder = folder_of(self._root, prefix)
        # The folder itself may be listed, as an object of no bytes.
        remote_objects = on_loop(self._client().list(folder, flat=flat))
        return [remote for remote in remote_objects if remote.path != folder.path]

    def _at(self, key: str) -> Url:
        """Return the URL of an object."""
        return url_of(self._root, key)

    def _key(self, path: str) -> str:
        """Return the key of an object at a path of the storage."""
        return key_of(self._root, path)
