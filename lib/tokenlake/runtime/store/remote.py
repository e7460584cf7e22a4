"""A store at a URL, to be read: S3, GCS, HTTP(S), and what else fsspec has installed; and its objects as files.

A process has one client for each storage (:func:`client_at`). A new storage is a client of its own
(:class:`tokenlake.runtime.store.client.ObjectClient`, each method one request), its scheme in
:mod:`tokenlake.runtime.store.objects` and a line in ``_CLIENTS``.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, cast, final

import fsspec
from fsspec.asyn import get_loop
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from tokenlake.base.secrets import resolve_options, scrub
from tokenlake.errors import ConfigError, IntegrityError, MissingExtraError, NotFoundError, StoreError
from tokenlake.runtime.store import objects
from tokenlake.runtime.store.base import ObjectInfo, ReadStore
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.failures import OF_STORES, Failures
from tokenlake.runtime.store.fsspec_client import FsspecClient
from tokenlake.runtime.store.gcs import GcsClient
from tokenlake.runtime.store.http import HttpClient
from tokenlake.runtime.store.layout import TEMP_MARK, check_size
from tokenlake.runtime.store.s3 import S3Client
from tokenlake.runtime.store.shard_cache import ShardCache
from tokenlake.runtime.store.url import EXTRAS, INSTALLED_BY, Url, folder_of, key_of, root_of, url_of
from tokenlake.runtime.store.writes import ByteTarget, HashingTarget

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_T = TypeVar("_T")

_LOCK: Final = threading.Lock()
_STEP: Final = 0.5  # seconds of a wait, after which a signal that did not wake it is heard


_CLIENTS: Final[Mapping[str, type[ObjectClient]]] = {
    "s3": S3Client,
    "gs": GcsClient,
    "http": HttpClient,
    "https": HttpClient,
}
_OPEN: Final[dict[str, ObjectClient]] = {}


def client_at(url: Url, options: Mapping[str, Any], failures: Failures) -> ObjectClient:
    """Return the storage that `url` is on, through sessions of this process; the same one each time.

    Args:
        options: fsspec's, with references to credentials in them.

    Raises:
        ConfigError: a reference cannot be resolved, or an option is unknown.
        MissingExtraError: the package that reads this scheme is missing.
        failures.failed: the credentials cannot be used.
    """
    resolved = resolve_options(options)
    # Only a hash is kept, because the options may hold secrets. A fork must not use its parent's sockets.
    root = url.scheme if url.scheme in EXTRAS else url.root
    text = json.dumps([os.getpid(), root, resolved, failures.option], sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()
    with _LOCK:
        if key not in _OPEN:
            _require_package(url, failures)
            kind = _CLIENTS.get(url.scheme, FsspecClient)
            _OPEN[key] = kind(_filesystem(url, kind.arguments(resolved), failures), resolved, failures)
        return _OPEN[key]


def _require_package(url: Url, failures: Failures) -> None:
    """Raise MissingExtraError if the package for the scheme of a URL is missing, ConfigError for an unknown scheme."""
    try:
        fsspec.get_filesystem_class(get_protocol(str(url)))
    except ValueError:
        raise ConfigError(
            f"{failures.option}: {url.scheme}:// is not a known scheme; expected s3, gs, http, https or one of fsspec",
            got=url.scheme,
        ) from None
    except ImportError as error:
        package = str(known_implementations.get(url.scheme, {}).get("class", "fsspec")).partition(".")[0]
        extra = {**EXTRAS, **INSTALLED_BY}.get(url.scheme, package)
        install = str(error) if extra == "fsspec" else f"pip install {extra}"
        raise MissingExtraError(f"{url.scheme}:// needs a package that is missing: {install}") from error


def _filesystem(url: Url, arguments: dict[str, Any], failures: Failures) -> Any:
    """Return fsspec's file system of a URL; errors as of :func:`client_at`."""
    given = {**arguments, "use_listings_cache": False, "skip_instance_cache": True}
    try:
        with warnings.catch_warnings():
            # gcsfs warns where no project is set, which only listing buckets needs.
            warnings.simplefilter("ignore")
            return fsspec.core.url_to_fs(str(url), **given)[0]
    except TypeError as error:
        raise ConfigError(
            f"storage_options: the file system of {url.scheme}:// refuses them: {scrub(str(error))}"
        ) from None
    except Exception as error:
        raise failures.failed(
            f"{url.root}: the file system cannot be opened: {type(error).__name__}: {scrub(str(error))}. "
            "Check storage_options and the credentials of this machine.",
            url=url.root,
        ) from None


def on_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the thread of asynchronous file systems and wait for it."""
    future = asyncio.run_coroutine_threadsafe(work, get_loop())
    try:
        # In steps: a signal that comes just before the wait for a lock does not wake it.
        while not future.done():
            with suppress(TimeoutError):
                future.exception(_STEP)
        return future.result()
    finally:
        future.cancel()


def on_loop_to_its_end(work: Coroutine[Any, Any, _T], seconds: float = 20.0) -> _T:
    """As :func:`on_loop`; whoever is interrupted waits until the work has cleaned up, for so many seconds."""
    ended = threading.Event()
    begun: list[asyncio.Task[_T] | None] = []

    async def whole() -> _T:
        begun.append(asyncio.current_task())
        try:
            return await work
        finally:
            ended.set()

    def cancel() -> None:
        for task in begun:
            if task is not None and not task.cancelling():  # a second time would end its cleaning up
                task.cancel()

    try:
        return on_loop(whole())
    except Exception:
        raise
    except BaseException:
        # The interrupt may have come before `on_loop` waited, and then it has cancelled nothing.
        get_loop().call_soon_threadsafe(cancel)
        ended.wait(seconds)
        raise


def close_filesystems() -> None:
    """Close all sessions; what is opened later opens new ones."""
    with _LOCK:
        found, _ = list(_OPEN.values()), _OPEN.clear()
    for client in found:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(client.close(), get_loop()).result(timeout=2)


class _Nothing: ...


# Whatever is registered last runs first at exit. The file systems close their sessions by finalizers of
# `weakref`, some of them too late for the loop's thread; so those are registered now, and ours after them.
weakref.finalize(_Nothing(), int)
atexit.register(close_filesystems)

PROBE: Final = "_probe-"
"""What the keys of trials begin with; no listing shows them."""

_FETCHED: Final = 8 << 20  # bytes that are asked for at once, and of a small object
_UNDER_WAY: Final = 4  # such pieces, or waiting to be written: at most 32 MiB
_TRIES: Final = 8  # of reading an object that is replaced meanwhile


def read_version(client: ObjectClient, url: Url, target: ByteTarget) -> objects.RemoteObject:
    """Read an object into `target`, and return which version it was.

    A small one is one answer, checked as a whole where the storage has checksums.

    Raises:
        failures.missing: there is none.
        failures.failed: it cannot be had, or is replaced all the time.
    """
    for _ in range(_TRIES):
        found = on_loop(client.stat(url))
        try:
            if found.size <= _FETCHED:
                on_loop(client.download(url, found, target))
            else:
                fetch_whole(client, url, found, target)
            return found
        except objects.OtherObjectError:
            continue
    raise client.failures.failed(
        f"{url}: it was replaced {_TRIES} times while it was read; another process writes it", url=str(url)
    )


def fetch_whole(client: ObjectClient, url: Url, planned: objects.RemoteObject, target: ByteTarget) -> None:
    """Write a whole object to `target`, several ranges under way at once; `write` is called in this thread.

    From a server without ranges it comes in one answer, and `write` is called in another thread.

    Raises:
        OtherObjectError: it is not the planned one.
    """
    under_way: deque[Future[bytearray]] = deque()
    target.restart()
    try:
        for start in range(0, planned.size, _FETCHED):
            piece = client.fetch(url, planned, start, min(_FETCHED, planned.size - start))
            under_way.append(asyncio.run_coroutine_threadsafe(piece, get_loop()))
            if len(under_way) == _UNDER_WAY:
                target.write(under_way.popleft().result())
        while under_way:
            target.write(under_way.popleft().result())
    except objects.NoRangesError:
        on_loop(client.download(url, planned, target))
    finally:
        for piece in under_way:
            piece.cancel()


def spooled(client: ObjectClient, url: Url, planned: objects.RemoteObject) -> BinaryIO:
    """Fetch a whole object to a nameless file on the local disk, from a server that knows no ranges.

    Raises:
        failures.failed: the disk has no room for it, or the object cannot be had.
        OtherObjectError: it is not the planned one.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if planned.size > free:
        raise client.failures.failed(
            f"{url}: the server sends whole files only, and {folder} has {free} bytes free for the {planned.size} "
            "of this one. Set TMPDIR to a larger disk.",
            url=str(url),
        )
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked closes it
    try:
        on_loop(client.download(url, planned, HashingTarget(spool)))
        spool.flush()
    except BaseException:
        spool.close()
        raise
    return spool


@final
class MemoryTarget:
    """Keeps what comes in memory."""

    def __init__(self, check: Callable[[int], None] = lambda size: None) -> None:
        """`check`: called with the number of bytes while they come; what it raises ends the request."""
        self._data, self._check = bytearray(), check

    @property
    def data(self) -> bytes:
        """What came since the last start."""
        return bytes(self._data)

    def restart(self) -> None:
        self._data.clear()

    def write(self, data: bytes | bytearray, /) -> None:
        self._check(len(self._data) + len(data))
        self._data += data


@final
class RemoteFile(io.RawIOBase):
    """An object of a remote store, of a known size; seekable.

    :meth:`read_at` may be used by any number of threads at once, everything else by one at a time. A server
    without ranges sends the whole object, once, which then lies in a nameless file on the local disk.
    """

    def __init__(self, client: Callable[[], ObjectClient], url: Url, planned: objects.RemoteObject) -> None:
        """
        Args:
            client: returns the storage, through sessions of this process.
            planned: its size, and its version where every answer must be of that one.
        """
        super().__init__()
        self._client, self._url, self._planned = client, url, planned
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
        client = self._client()
        try:
            if self._spool is None:
                try:
                    return bytes(on_loop(client.fetch(self._url, self._planned, offset, wanted)))
                except objects.NoRangesError:
                    with self._lock:
                        if self._spool is None:
                            self._spool = spooled(client, self._url, self._planned)
            return os.pread(self._spool.fileno(), wanted, offset)
        except objects.OtherObjectError as error:
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


class _Options(dict[str, Any]):
    """Options of a file system; they may hold secrets, which a repr must not show."""

    def __repr__(self) -> str:
        return "..."


class RemoteStore(ReadStore):
    """Objects below a URL. Reading one costs a request, opening one none where its size is known.

    It may be pickled and used in other processes and on both sides of a fork: each opens connections of its own.

    Args:
        address: a URL without credentials and without a query.
        options: of fsspec's file system; credentials may be references.
        cache: keeps copies of objects whose size and hash are known when they are opened.
    """

    def __init__(
        self, address: str, options: Mapping[str, Any] | None = None, cache: ShardCache | None = None
    ) -> None:
        self._root, self._options = root_of(address), _Options(options or {})
        self._cache = cache
        self._cached: dict[str, str] = {}  # what was opened through the cache, by key
        self._client()  # a package that is missing and an unknown option are said at once

    @property
    def url(self) -> str:
        return str(self._root).rstrip("/")

    @property
    def can_list(self) -> bool:
        return not self._root.is_http

    def read(self, key: str) -> bytes:
        target = MemoryTarget(lambda size: check_size(key, size))
        on_loop(self._client().download(self._at(key), None, target))
        return target.data

    def open(self, key: str, *, size: int | None = None, sha256: str | None = None) -> BinaryIO:
        url = self._at(key)
        if size is None:
            # Nobody can check these bytes later: every answer must be of the version that is there now.
            planned = on_loop(self._client().stat(url))
        else:
            # Of a known object any version will do, for its pages are checked; one that was repaired, too.
            planned = objects.RemoteObject(path=url.path, size=size, token="")
            if self._cache is not None and sha256 is not None:
                self._cached[key] = sha256

                def fetch(target: ByteTarget) -> None:
                    try:
                        fetch_whole(self._client(), url, planned, target)
                    except objects.OtherObjectError as error:
                        raise IntegrityError(
                            f"{url}: it is not what the manifest says: {error}. Verify the version where it is stored.",
                            file=str(url),
                        ) from None

                if (copy := self._cache.open(sha256, size, fetch, str(url))) is not None:
                    return copy
        return cast("BinaryIO", RemoteFile(self._client, url, planned))

    def discard(self, key: str) -> bool:
        sha256 = self._cached.get(key)
        return self._cache is not None and sha256 is not None and self._cache.discard(sha256)

    def size(self, key: str) -> int | None:
        with contextlib.suppress(NotFoundError):
            return on_loop(self._client().stat(self._at(key))).size
        return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = [one for one in self._listed(prefix, flat=False) if not one.path.endswith("/")]
        named = (ObjectInfo(self._key(one.path), one.size, one.modified, one.token) for one in found)
        # No trials of a preflight, and nothing unpublished that a copied folder brought along.
        shown = (
            info
            for info in named
            if not info.key.startswith(PROBE) and not info.key.rpartition("/")[2].startswith(TEMP_MARK)
        )
        yield from sorted(shown, key=lambda info: info.key)

    def list_dirs(self, prefix: str) -> builtins.list[str]:
        folders = (one for one in self._listed(prefix, flat=True) if one.path.endswith("/"))
        names = {self._key(one.path).rstrip("/").rpartition("/")[2] for one in folders}
        return sorted(names - {""})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _client(self) -> ObjectClient:
        """Return the storage, through sessions of this process."""
        return client_at(self._root, self._options, OF_STORES)

    def _pour(self, key: str, target: ByteTarget) -> None:
        read_version(self._client(), self._at(key), target)

    def _listed(self, prefix: str, *, flat: bool) -> builtins.list[objects.RemoteObject]:
        if not self.can_list:
            how = "Name a version that is there (NAME@v3), or a tag (NAME@TAG)."
            raise StoreError(f"{self.url}: web servers do not list what they have. {how}")
        place = folder_of(self._root, prefix)
        found = on_loop(self._client().list(place, flat=flat))
        return [one for one in found if one.path != place.path]

    def _at(self, key: str) -> Url:
        return url_of(self._root, key)

    def _key(self, path: str) -> str:
        return key_of(self._root, path)
