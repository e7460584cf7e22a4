"""A store at a URL, to be read: S3, GCS, HTTP(S), and what else fsspec has installed; and its objects as files."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, cast, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.store.base import ByteTarget, Digest, ObjectInfo, ReadStore
from tokenlake.store.layout import TEMP_MARK, check_size
from tokenlake.store.local_files import HashingTarget
from tokenlake.store.remote.connection import Connection
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import NoRangesError, OtherObjectError, RemoteObject
from tokenlake.store.remote.preflight import PROBE
from tokenlake.store.remote.transfer import MemoryTarget, fetch_whole, read_version, spooled
from tokenlake.store.remote.url import Url, folder_of, key_of, root_of, url_of
from tokenlake.store.shard_cache import ShardCache

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@final
class RemoteFile(io.RawIOBase):
    """An object of a remote store, of a known size; seekable.

    :meth:`read_at` may be used by any number of threads at once, everything else by one at a time. A server
    without ranges sends the whole object, once, which then lies in a nameless file on the local disk.
    """

    def __init__(self, connection: Connection, url: Url, planned: RemoteObject) -> None:
        """`planned`: its size, and its version where every answer must be of that one."""
        super().__init__()
        self._connection, self._url, self._planned = connection, url, planned
        self._at = 0
        self._spool: BinaryIO | None = None
        self._lock = Lock()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer only where the object ends.

        Raises:
            NotFoundError: the object is gone, or never was.
            IntegrityError: it is not the one that was opened: it has another size or version.
            StoreError: it cannot be reached, after retries.
        """
        if self.closed:
            raise ValueError(f"{self._url} is closed")
        if offset < 0 or size < 0:
            raise ValueError(f"{self._url}: {size} bytes from {offset} on is not a range of a file")
        wanted = min(size, self._planned.size - offset)
        if wanted <= 0:
            return b""
        try:
            return self._fetched(offset, wanted)
        except OtherObjectError as error:
            raise IntegrityError(
                f"{self._url}: it is not what was opened: {error}. Verify the version where it is stored.",
                file=str(self._url),
            ) from None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset from the beginning, from here or from the end; no request is made."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._planned.size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self._url}: cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, all that are left for None or -1; fewer only where the object ends."""
        left = max(self._planned.size - self._at, 0)
        data = self.read_at(self._at, left if size is None or size < 0 else size)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        with self._lock:
            if self._spool is not None:
                self._spool.close()
        super().close()

    def __repr__(self) -> str:
        return f"RemoteFile({str(self._url)!r})"

    def _fetched(self, offset: int, size: int) -> bytes:
        client = self._connection.client()
        if self._spool is None:
            try:
                return bytes(on_loop(client.fetch(self._url, self._planned, offset, size)))
            except NoRangesError:
                with self._lock:
                    if self._spool is None:
                        self._spool = spooled(client, self._url, self._planned)
        return os.pread(self._spool.fileno(), size, offset)


@final
class RemoteStore(ReadStore):
    """Objects below a URL. Reading one costs a request, opening one none where its size is known.

    It may be pickled and used in other processes, which open connections of their own.

    Args:
        address: a URL without credentials and without a query.
        options: of fsspec's file system; credentials may be references.
        cache: keeps copies of objects whose size and hash are known when they are opened.

    Attributes:
        connection: to the storage, which the store that writes there shares.
    """

    def __init__(
        self, address: str, options: Mapping[str, Any] | None = None, cache: ShardCache | None = None
    ) -> None:
        self._root = root_of(address)
        self.connection = Connection(self._root, options or {})
        self._cache = cache
        self._cached: dict[str, str] = {}  # what was opened through the cache, by key

    @property
    def url(self) -> str:
        return str(self._root).rstrip("/")

    @property
    def can_list(self) -> bool:
        return not self._root.is_http

    def read(self, key: str) -> bytes:
        target = MemoryTarget(lambda size: check_size(key, size))
        on_loop(self.connection.client().download(self._at(key), None, target))
        return target.data

    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        url = self._at(key)
        if size is None:
            # Nobody can check these bytes later: every answer must be of the version that is there now.
            return cast("BinaryIO", RemoteFile(self.connection, url, self._stat(url)))
        # Of a known object any version will do, for its pages are checked; one that was repaired, too.
        planned = RemoteObject(path=url.path, size=size, token="")
        if self._cache is not None and sha256 is not None:
            self._cached[key] = sha256
            copy = self._cache.open(
                sha256, size, lambda target: self._download(url, planned, target), str(url)
            )
            if copy is not None:
                return copy
        return cast("BinaryIO", RemoteFile(self.connection, url, planned))

    def discard(self, key: str) -> bool:
        sha256 = self._cached.get(key)
        return self._cache is not None and sha256 is not None and self._cache.discard(sha256)

    def digest(self, key: str) -> Digest:
        return self._read(key, HashingTarget())

    def download(self, key: str, path: Path) -> Digest:
        url = self._at(key)
        try:
            file = path.open("xb")
        except OSError as error:
            raise StoreError(f"cannot write a copy of {url}: {error.strerror} ({path})", key=key) from error
        try:
            with file:
                return self._read(key, HashingTarget(file))
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

    def _listed(self, prefix: str, *, flat: bool) -> builtins.list[RemoteObject]:
        if not self.can_list:
            raise StoreError(
                f"{self.url}: web servers do not list what they have. Name a version that is there (NAME@v3), or a tag "
                "(NAME@TAG)."
            )
        place = folder_of(self._root, prefix)
        found = on_loop(self.connection.client().list(place, flat=flat))
        return [one for one in found if one.path != place.path]

    def _read(self, key: str, target: HashingTarget) -> Digest:
        read_version(self.connection.client(), self._at(key), target)
        return target.finish()

    def _stat(self, url: Url) -> RemoteObject:
        return on_loop(self.connection.client().stat(url))

    def _download(self, url: Url, planned: RemoteObject, target: ByteTarget) -> None:
        try:
            fetch_whole(self.connection.client(), url, planned, target)
        except OtherObjectError as error:
            raise IntegrityError(
                f"{url}: it is not what the manifest says: {error}. Verify the version where it is stored.",
                file=str(url),
            ) from None

    def _at(self, key: str) -> Url:
        return url_of(self._root, key)

    def _key(self, found: RemoteObject) -> str:
        return key_of(self._root, found.path)


def _is_passing(key: str) -> bool:
    """Say whether it is a trial of a preflight, or something unpublished that a copied folder brought along."""
    return key.startswith(PROBE) or key.rpartition("/")[2].startswith(TEMP_MARK)
