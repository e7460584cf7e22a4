"""A store in a bucket: S3 and Google Cloud Storage.

Publishing, always the same: temporary file on this machine, re-read and compare sha256, one create-only put with
checksums, which the service carries out whole or not at all. Where there is an object already, or the answer
was lost and the second try is refused, it is read back: equal is success. What is replaced is replaced by
compare-and-swap of the version that was read.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.store.base import Digest, Leftover, ObjectInfo, Outcome, Store
from tokenlake.store.compare_and_swap import create_conflict, replace_conflict, swap_conflict
from tokenlake.store.local_files import os_errors
from tokenlake.store.remote import unfinished
from tokenlake.store.remote.asking import ask
from tokenlake.store.remote.connection import Connection
from tokenlake.store.remote.content import LARGE, Content, content_of, content_of_file
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.judging import Look, Send, settle
from tokenlake.store.remote.objects import Found, SourceChangedError
from tokenlake.store.remote.preflight import keeps_copies, try_out
from tokenlake.store.remote.retry import OF_WRITERS
from tokenlake.store.remote.scratch import Scratch
from tokenlake.store.remote.seeing import Hashed, Kept, see
from tokenlake.store.remote.store import RemoteStore
from tokenlake.store.remote.target import Target
from tokenlake.store.remote.url import root_of, url_of
from tokenlake.store.remote.writes import Writes

_TRYING: Final = threading.Lock()


@final
class ObjectStore(Store):
    """Objects below a URL of a bucket, read as :class:`RemoteStore` does and written with conditions.

    It may be pickled and used in other processes, which open connections of their own. The first write of a
    process tries out whether the storage keeps conditions (:meth:`preflight`).

    Args:
        address: ``s3://`` or ``gs://``, without credentials and without a query.
        options: of fsspec's file system; credentials may be references.
    """

    at_once = 32

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        self._root = root_of(address)
        self._connection = Connection(self._root, options or {}, OF_WRITERS)
        self._reads = RemoteStore(address, options)
        self._scratch = Scratch(self._reads.url)

    @property
    def url(self) -> str:
        return self._reads.url

    def read(self, key: str) -> bytes:
        return self._reads.read(key)

    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        return self._reads.open(key, size=size, sha256=sha256)

    def digest(self, key: str) -> Digest:
        return self._reads.digest(key)

    def download(self, key: str, path: Path) -> Digest:
        return self._reads.download(key, path)

    def size(self, key: str) -> int | None:
        return self._reads.size(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._reads.list(prefix)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        return self._reads.list_dirs(prefix)

    def preflight(self) -> None:
        try_out(self._connection.writes(), self._root, self._connection.patience)
        self._connection.set_tried()

    def put_new(self, key: str, data: bytes, *, replace_orphan: bool | Callable[[], bool] = False) -> Outcome:
        content = content_of(data)
        return self._create(key, content.sha256, self._putting(key, content), replace_orphan)

    def temp(self, prefix: str) -> Path:
        return self._scratch.new(prefix)

    def publish(
        self, temp: Path, key: str, sha256: str, *, replace_orphan: bool | Callable[[], bool] = False
    ) -> Outcome:
        def create(content: Content) -> Outcome:
            # Before much is sent a look says whether it need be.
            look_first = content.size >= LARGE
            return self._create(
                key, sha256, self._putting(key, content), replace_orphan, look_first=look_first
            )

        return self._with_temp(temp, key, sha256, create)

    def link(
        self,
        src_key: str,
        dst_key: str,
        sha256: str,
        *,
        seen: ObjectInfo | None = None,
        replace_orphan: bool | Callable[[], bool] = False,
    ) -> Outcome:
        url_of(self._root, dst_key)
        found = self._source(src_key, dst_key, sha256) if seen is None or not seen.token else _found(seen)

        def look() -> tuple[str, str] | None:
            token = self._same(dst_key, found)
            return self._hash(dst_key) if token is None else (sha256, token)

        try:
            send = self._copying(src_key, found, dst_key)
            return self._create(dst_key, sha256, send, replace_orphan, look=look)
        except SourceChangedError as error:
            raise IntegrityError(
                f"cannot reuse {src_key} as {dst_key}: it was replaced while it was copied ({error}); nothing was "
                "made. Verify the version it belongs to.",
                file=src_key,
            ) from None

    def delete(self, key: str) -> None:
        url = url_of(self._root, key)
        if self.size(key) is None:
            raise NotFoundError(f"cannot delete {url}: there is no such object", key=key)
        on_loop(self._writes().delete(url))

    def sweep_temp(self, prefix: str) -> int:
        return self._scratch.sweep(prefix)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        def judge(found: bytes | None) -> Outcome | None:
            if found == data:
                return "equal"
            if found != expected:
                raise swap_conflict(key, expected, found)
            return None

        send = self._putting(key, content_of(data))
        return settle(key, send, lambda: self._bytes(key), judge, look_first=True)

    def replace(self, temp: Path, key: str, sha256: str, found: str | None) -> Outcome:
        def judge(there: str | None) -> Outcome | None:
            if there == sha256:
                return "equal"
            if there != found:
                raise replace_conflict(key, found, there)
            return None

        def swap(content: Content) -> Outcome:
            return settle(key, self._putting(key, content), lambda: self._hash(key), judge, look_first=True)

        return self._with_temp(temp, key, sha256, swap)

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        return unfinished.leftovers(self._connection, self._scratch, prefix)

    def remove_leftover(self, leftover: Leftover) -> bool:
        return unfinished.remove(self._connection, self._scratch, leftover)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"  # options may hold secrets

    def _create(
        self,
        key: str,
        sha256: str,
        send: Send,
        replace_orphan: bool | Callable[[], bool],
        *,
        look: Look[str] | None = None,
        look_first: bool = False,
    ) -> Outcome:
        def judge(found: str | None) -> Outcome | None:
            if found is None:
                return None
            if found == sha256:
                return "equal"
            if replace_orphan is False or (callable(replace_orphan) and not replace_orphan()):
                raise create_conflict(key, found, sha256)
            return None

        return settle(key, send, look or (lambda: self._hash(key)), judge, look_first=look_first)

    def _with_temp(self, temp: Path, key: str, sha256: str, use: Callable[[Content], Outcome]) -> Outcome:
        """Read a temporary file back and use it; its name is gone after."""
        url_of(self._root, key)
        if not self._scratch.holds(temp):
            raise StoreError(
                f"cannot publish {temp} as {key}: not a temporary file of this store; write into temp()"
            )
        try:
            with (
                os_errors("publish", key),
                content_of_file(temp, parts=self._connection.writes().parts) as content,
            ):
                if content.sha256 != sha256:
                    raise StoreError(
                        f"{key}: read back is not what was written: sha256 {content.sha256}, expected {sha256}. "
                        "Nothing was published. Check the disk and the memory of this machine.",
                        key=key,
                    )
                return use(content)
        finally:
            temp.unlink(missing_ok=True)

    def _putting(self, key: str, content: Content) -> Send:
        url = url_of(self._root, key)
        return lambda over: self._writes().put(url, content, over)

    def _copying(self, src_key: str, found: Found, dst_key: str) -> Send:
        source, url = url_of(self._root, src_key), url_of(self._root, dst_key)
        return lambda over: self._copies().copy(source, found, url, over)

    def _writes(self) -> Writes:
        """Return the storage to write to, which this process has tried out."""
        if not self._connection.tried:
            self.preflight()
        return self._connection.writes()

    def _copies(self) -> Writes:
        """Return the storage to make copies in, which this process has tried out, too."""
        writes = self._writes()
        if writes.parts:
            with _TRYING:
                if self._connection.whole_copies is None:
                    kept = keeps_copies(writes, self._root, self._connection.patience)
                    self._connection.set_whole_copies(kept)
            writes.whole_copies = self._connection.whole_copies is True
        return writes

    def _source(self, src_key: str, dst_key: str, sha256: str) -> Found:
        """Return which version of an object has a hash."""
        got: builtins.list[str] = []
        for _ in range(2):  # a damaged answer must not look like a damaged object
            target = Hashed()
            found = self._see(src_key, target)
            if target.digest.sha256 == sha256:
                return found
            got.append(target.digest.sha256)
        raise IntegrityError(
            f"cannot reuse {src_key} as {dst_key}: its sha256 is {got[-1]}, expected {sha256}. "
            "Verify the version it belongs to; without reuse the unit is built again.",
            file=src_key,
        )

    def _same(self, key: str, found: Found) -> str | None:
        """Return the token of an object that has the one of another version, as copies have on S3; else None."""
        objects, url = self._connection.objects(), url_of(self._root, key)
        try:
            there = on_loop(ask(objects, url, self._connection.patience, lambda: objects.stat(url)))
        except NotFoundError:
            return None
        return there.token if there.token == found.token else None

    def _bytes(self, key: str) -> tuple[bytes, str] | None:
        target = Kept()
        found = self._seen(key, target)
        return None if found is None else (target.data, found.token)

    def _hash(self, key: str) -> tuple[str, str] | None:
        target = Hashed()
        found = self._seen(key, target)
        return None if found is None else (target.digest.sha256, found.token)

    def _seen(self, key: str, target: Target) -> Found | None:
        try:
            return self._see(key, target)
        except NotFoundError:
            return None

    def _see(self, key: str, target: Target) -> Found:
        return see(self._connection.objects(), url_of(self._root, key), self._connection.patience, target)


def _found(seen: ObjectInfo) -> Found:
    return Found(path=seen.key, size=seen.size, token=seen.token, modified=seen.modified)
