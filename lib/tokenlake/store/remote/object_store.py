"""A store in a bucket: S3 and Google Cloud Storage.

Publishing, always the same: temporary file on this machine, re-read and compare sha256, one create-only put with
checksums, which the service carries out whole or not at all. Where there is an object already, or the answer
was lost and the second try is refused, it is read back: equal is success. What is replaced is replaced by
compare-and-swap of the version that was read.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.store.base import ByteTarget, Digest, Leftover, ObjectInfo, Orphan, Outcome, Store
from tokenlake.store.compare_and_swap import judge_create, judge_replace, judge_swap, put_object
from tokenlake.store.local import LocalStore
from tokenlake.store.local_files import HashingTarget, os_errors, remove_temp
from tokenlake.store.remote import objects
from tokenlake.store.remote.filesystems import on_loop, on_loop_to_its_end
from tokenlake.store.remote.objects import (
    BucketClient,
    OtherObjectError,
    Payload,
    RemoteObject,
    SourceChangedError,
)
from tokenlake.store.remote.preflight import PROBE, keeps_copies, try_out
from tokenlake.store.remote.store import RemoteStore
from tokenlake.store.remote.transfer import MemoryTarget, read_version
from tokenlake.store.remote.url import folder_of, key_of, url_of

Send: TypeAlias = Callable[[str | None], None]
"""Puts an object in the place of the version of a token, or of none."""

_TRYING: Final = threading.Lock()
_SCRATCH: Final = "scratch:"
_UPLOAD: Final = "upload:"
_TRIAL: Final = "trial:"


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
        self._reads = RemoteStore(address, options)
        self._connection = self._reads.connection
        self._root = self._connection.url

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
        try_out(self._connection.bucket(), self._root)
        self._connection.trials[str(self._root)] = True

    def put_new(self, key: str, data: bytes, *, replace_orphan: Orphan = False) -> Outcome:
        payload = Payload.of(data)
        return self._create(key, payload.sha256, self._putting(key, payload), replace_orphan)

    def temp(self, prefix: str) -> Path:
        return self._scratch().temp(prefix)

    def publish(self, temp: Path, key: str, sha256: str, *, replace_orphan: Orphan = False) -> Outcome:
        def create(payload: Payload) -> Outcome:
            # Before much is sent a look says whether it need be.
            first = payload.size >= objects.LARGE
            return self._create(key, sha256, self._putting(key, payload), replace_orphan, look_first=first)

        return self._with_temp(temp, key, sha256, create)

    def link(
        self,
        src_key: str,
        dst_key: str,
        sha256: str,
        *,
        seen: ObjectInfo | None = None,
        replace_orphan: Orphan = False,
    ) -> Outcome:
        target = url_of(self._root, dst_key)
        if seen is not None and seen.token:
            found = RemoteObject(path=seen.key, size=seen.size, token=seen.token)
        else:
            found = self._source(src_key, dst_key, sha256)

        def look() -> tuple[str, str] | None:
            token = self._same(dst_key, found)
            return self._hash(dst_key) if token is None else (sha256, token)

        def send(over: str | None) -> None:
            source = url_of(self._root, src_key)
            on_loop_to_its_end(self._copies().copy(source, found, target, over))

        try:
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
        on_loop(self._bucket().delete(url))

    def sweep_temp(self, prefix: str) -> int:
        return self._scratch().sweep_temp(prefix)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> Outcome:
        send, look = self._putting(key, Payload.of(data)), partial(self._bytes, key)
        return put_object(key, send, look, judge_swap(key, data, expected), OtherObjectError)

    def replace(self, temp: Path, key: str, sha256: str, found: str | None) -> Outcome:
        def swap(payload: Payload) -> Outcome:
            send, look = self._putting(key, payload), partial(self._hash, key)
            return put_object(key, send, look, judge_replace(key, sha256, found), OtherObjectError)

        return self._with_temp(temp, key, sha256, swap)

    def leftovers(self, prefix: str) -> builtins.list[Leftover]:
        uploads = on_loop(self._connection.bucket().uploads(folder_of(self._root, prefix)))
        found = [
            Leftover(f"{_UPLOAD}{one.id}:{key_of(self._root, one.path)}", 0, one.begun, dead=False)
            for one in uploads
        ]
        found += self._trials() if not prefix else []
        found += [
            Leftover(f"{_SCRATCH}{one.name}", one.bytes, one.modified, one.dead)
            for one in self._scratch().leftovers(prefix)
        ]
        return sorted(found, key=lambda one: one.name)

    def remove_leftover(self, leftover: Leftover) -> bool:
        kind, _, name = leftover.name.partition(":")
        if f"{kind}:" == _SCRATCH:
            return self._scratch().remove_leftover(Leftover(name, 0, 0.0, leftover.dead))
        if f"{kind}:" == _UPLOAD:
            upload, _, key = name.partition(":")
            return on_loop(self._connection.bucket().abort(url_of(self._root, key), upload))
        if leftover.name.startswith(_TRIAL + PROBE):
            there = any(one.name == leftover.name for one in self._trials())
            on_loop(self._connection.bucket().delete(url_of(self._root, name)))
            return there
        raise StoreError(
            f"{leftover.name} is neither an upload nor a temporary file; nothing was removed",
            key=leftover.name,
        )

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"  # options may hold secrets

    def _trials(self) -> builtins.list[Leftover]:
        """Return what preflights left behind whose process died."""
        found = on_loop(self._connection.client().list(url_of(self._root, PROBE), flat=True))
        return [
            Leftover(f"{_TRIAL}{key_of(self._root, one.path)}", one.size, one.modified or 0.0, dead=False)
            for one in found
            if not one.path.endswith("/")
        ]

    def _scratch(self) -> LocalStore:
        return scratch_of(self.url)

    def _create(
        self,
        key: str,
        sha256: str,
        send: Send,
        replace_orphan: Orphan,
        *,
        look: Callable[[], tuple[str, str] | None] | None = None,
        look_first: bool = False,
    ) -> Outcome:
        judge, look = judge_create(key, sha256, replace_orphan), look or partial(self._hash, key)
        return put_object(key, send, look, judge, OtherObjectError, look_first=look_first)

    def _with_temp(self, temp: Path, key: str, sha256: str, use: Callable[[Payload], Outcome]) -> Outcome:
        """Read a temporary file back and use it; its name is gone after."""
        url_of(self._root, key)
        self._scratch().check_temp(temp, key)
        in_parts = self._connection.bucket().in_parts
        try:
            with os_errors("publish", key), Payload.of_file(temp, in_parts=in_parts) as payload:
                if payload.sha256 != sha256:
                    raise StoreError(
                        f"{key}: read back is not what was written: sha256 {payload.sha256}, expected {sha256}. "
                        "Nothing was published. Check the disk and the memory of this machine.",
                        key=key,
                    )
                return use(payload)
        finally:
            remove_temp(temp)

    def _putting(self, key: str, payload: Payload) -> Send:
        url = url_of(self._root, key)
        return lambda over: on_loop_to_its_end(self._bucket().put(url, payload, over))

    def _bucket(self) -> BucketClient:
        """Return the storage to write to, which this process has tried out."""
        if str(self._root) not in self._connection.trials:
            self.preflight()
        return self._connection.bucket()

    def _copies(self) -> BucketClient:
        """Return the storage to make copies in, which this process has tried out, too."""
        client = self._bucket()
        if client.in_parts:
            with _TRYING:
                trials, name = self._connection.trials, f"{self._root} copies"
                if name not in trials:
                    trials[name] = keeps_copies(client, self._root)
                client.whole_copies = trials[name]
        return client

    def _source(self, src_key: str, dst_key: str, sha256: str) -> RemoteObject:
        """Return which version of an object has a hash."""
        got = ""
        for _ in range(2):  # a damaged answer must not look like a damaged object
            target = HashingTarget()
            found = self._version(src_key, target)
            got = target.finish().sha256
            if got == sha256:
                return found
        raise IntegrityError(
            f"cannot reuse {src_key} as {dst_key}: its sha256 is {got}, expected {sha256}. "
            "Verify the version it belongs to; without reuse the unit is built again.",
            file=src_key,
        )

    def _same(self, key: str, found: RemoteObject) -> str | None:
        """Return the token of an object that has the one of another version, as copies have on S3; else None."""
        try:
            there = on_loop(self._connection.client().stat(url_of(self._root, key)))
        except NotFoundError:
            return None
        return there.token if there.token == found.token else None

    def _bytes(self, key: str) -> tuple[bytes, str] | None:
        target = MemoryTarget()
        try:
            token = self._version(key, target).token
        except NotFoundError:
            return None
        return target.data, token

    def _hash(self, key: str) -> tuple[str, str] | None:
        target = HashingTarget()
        try:
            token = self._version(key, target).token
        except NotFoundError:
            return None
        return target.finish().sha256, token

    def _version(self, key: str, target: ByteTarget) -> RemoteObject:
        return read_version(self._connection.client(), url_of(self._root, key), target)


FOLDER_VARIABLE: Final = "TOKENLAKE_SCRATCH"
"""Environment variable: the folder for temporary files of remote stores; by default the system's temporary one."""


def scratch_of(url: str) -> LocalStore:
    """Return the folder for the store at `url`, where the environment of this process says.

    Raises:
        StoreError: it is another user's, is no folder, or cannot be written.
    """
    base = Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()).expanduser().resolve()
    ours = base / f"tokenlake-{os.geteuid()}"
    try:
        _make_private(ours)
    except OSError as error:
        raise StoreError(
            f"{ours} cannot be made: {error.strerror}; temporary files of remote stores are written there. Set "
            f"{FOLDER_VARIABLE} to a folder of your own."
        ) from error
    return LocalStore(ours / hashlib.sha256(url.encode()).hexdigest()[:16])


def _make_private(folder: Path) -> None:
    """Make a folder for this user alone, or see that it is one, no symlink, another user's, or open to others."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        problem = "is not a folder (a symlink, or a file)"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & 0o077:
        problem = f"may be used by others (mode {stat.S_IMODE(found.st_mode):o}, expected 700)"
    else:
        return
    raise StoreError(
        f"{folder} {problem}; temporary files of remote stores are written there. Remove it, or set "
        f"{FOLDER_VARIABLE} to a folder of your own."
    )
