"""A store at a URL, to be read: S3, GCS, HTTP(S), and what else fsspec has installed."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.store.base import Digest, ObjectInfo, ReadStore
from tokenlake.store.layout import TEMP_MARK, check_size
from tokenlake.store.remote.asking import ask
from tokenlake.store.remote.connection import Connection
from tokenlake.store.remote.file import RemoteFile
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.listing import listed
from tokenlake.store.remote.objects import Found, OtherObjectError
from tokenlake.store.remote.preflight import PROBE
from tokenlake.store.remote.seeing import Hashed, see
from tokenlake.store.remote.target import Target
from tokenlake.store.remote.url import Url, folder_of, key_of, root_of, url_of
from tokenlake.store.remote.wholes import fetch_whole, read_whole
from tokenlake.store.shard_cache import ShardCache


@final
class RemoteStore(ReadStore):
    """Objects below a URL. Reading one costs a request, opening one none where its size is known.

    It may be pickled and used in other processes, which open connections of their own.

    Args:
        address: a URL without credentials and without a query.
        options: of fsspec's file system; credentials may be references.
        cache: keeps copies of objects whose size and hash are known when they are opened.
    """

    def __init__(
        self, address: str, options: Mapping[str, Any] | None = None, cache: ShardCache | None = None
    ) -> None:
        self._root = root_of(address)
        self._connection = Connection(self._root, options or {})
        self._cache = cache
        self._cached: dict[str, str] = {}  # what was opened through the cache, by key

    @property
    def url(self) -> str:
        return str(self._root).rstrip("/")

    @property
    def can_list(self) -> bool:
        return not self._root.is_http

    def read(self, key: str) -> bytes:
        url, patience = self._at(key), self._connection.patience
        return read_whole(self._connection.objects(), url, patience, lambda size: check_size(key, size))

    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        url = self._at(key)
        if size is None:
            # Nobody can check these bytes later: every answer must be of the version that is there now.
            return cast("BinaryIO", RemoteFile(self._connection, url, self._stat(url)))
        # Of a known object any version will do, for its pages are checked; one that was repaired, too.
        planned = Found(path=url.path, size=size, token="")
        if self._cache is not None and sha256 is not None:
            self._cached[key] = sha256
            copy = self._cache.open(
                sha256, size, lambda target: self._download(url, planned, target), str(url)
            )
            if copy is not None:
                return copy
        return cast("BinaryIO", RemoteFile(self._connection, url, planned))

    def discard(self, key: str) -> bool:
        sha256 = self._cached.get(key)
        return self._cache is not None and sha256 is not None and self._cache.discard(sha256)

    def digest(self, key: str) -> Digest:
        return self._poured(key, Hashed())

    def download(self, key: str, path: Path) -> Digest:
        url = self._at(key)
        try:
            file = path.open("xb")
        except OSError as error:
            raise StoreError(f"cannot write a copy of {url}: {error.strerror} ({path})", key=key) from error
        try:
            with file:
                return self._poured(key, Hashed(file))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def size(self, key: str) -> int | None:
        try:
            return self._stat(self._at(key)).size
        except NotFoundError:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = [one for one in self._listed(prefix, flat=False) if not one.path.endswith("/")]
        named = (ObjectInfo(self._key(one), one.size, one.modified, one.token) for one in found)
        shown = (info for info in named if not _is_passing(info.key))
        yield from sorted(shown, key=lambda info: info.key)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        folders = (one for one in self._listed(prefix, flat=True) if one.path.endswith("/"))
        names = {self._key(one).rstrip("/").rpartition("/")[2] for one in folders}
        return sorted(names - {""})

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"  # options may hold secrets

    def _listed(self, prefix: str, *, flat: bool) -> builtins.list[Found]:
        if not self.can_list:
            raise StoreError(
                f"{self.url}: web servers do not list what they have. Name a version that is there (NAME@v3), or a tag "
                "(NAME@TAG)."
            )
        place = folder_of(self._root, prefix)
        return listed(self._connection.objects(), place, self._connection.patience, flat=flat)

    def _poured(self, key: str, target: Hashed) -> Digest:
        see(self._connection.objects(), self._at(key), self._connection.patience, target)
        return target.digest

    def _stat(self, url: Url) -> Found:
        objects = self._connection.objects()
        return on_loop(ask(objects, url, self._connection.patience, lambda: objects.stat(url)))

    def _download(self, url: Url, planned: Found, target: Target) -> None:
        try:
            fetch_whole(self._connection.objects(), url, planned, target, self._connection.patience)
        except OtherObjectError as error:
            raise IntegrityError(
                f"{url}: it is not what the manifest says: {error}. Verify the version where it is stored.",
                file=str(url),
            ) from None

    def _at(self, key: str) -> Url:
        return url_of(self._root, key)

    def _key(self, found: Found) -> str:
        return key_of(self._root, found.path)


def _is_passing(key: str) -> bool:
    """Say whether it is a trial of a preflight, or something unpublished that a copied folder brought along."""
    return key.startswith(PROBE) or key.rpartition("/")[2].startswith(TEMP_MARK)
