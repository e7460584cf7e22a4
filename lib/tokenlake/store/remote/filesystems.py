"""From a URL and options to the storage there, one for each process; and objects of what else fsspec has installed."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import threading
import warnings
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, final

import fsspec
from fsspec.asyn import get_loop
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from tokenlake.config.references import resolve_options, scrub
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.store.remote.gcs import GcsClient
from tokenlake.store.remote.http import HttpClient
from tokenlake.store.remote.objects import (
    ListPage,
    ObjectClient,
    RangeBuffer,
    RemoteObject,
    Write,
    require_size,
)
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.s3 import S3Client
from tokenlake.store.remote.url import EXTRAS, INSTALLED_BY, Url

_T = TypeVar("_T")

_LOCK: Final = threading.Lock()
_STEP: Final = 0.5  # seconds of a wait, after which a signal that did not wake it is heard


# Kinds of token, the best first, with what file systems call them.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "generation": ("generation",),
    "version": ("version_id", "versionId", "VersionId", "version"),
    "etag": ("etag", "ETag", "e_tag"),
    "checksum": ("checksum", "md5", "content_md5", "sha256", "blob_id"),
    "modified": (
        "mtime",
        "last_modified",
        "LastModified",
        "modified",
        "updated",
        "ModifiedAt",
        "modificationTime",
    ),
    "created": ("created", "creation_time"),
}


@final
class FsspecClient(ObjectClient):
    """Calls of an fsspec file system; tokens are what its `info` has of the names above, else ``size:``."""

    credentials = (
        "They are given by storage_options, under the names that the file system's documentation has: "
        "{NAME: {env: VARIABLE}}"
    )

    def __init__(self, filesystem: Any, options: Mapping[str, Any], failures: Failures) -> None:
        super().__init__(filesystem, options, failures)
        # One connection often serves a whole synchronous file system (FTP, SFTP): one call at a time.
        self._turn = asyncio.Lock()

    async def _stat(self, url: Url) -> RemoteObject:
        info = await self._call("info", self._path(url))
        if info["type"] != "file" or info.get("size") is None:
            raise FileNotFoundError(str(url))
        return _found(url.path, info)

    async def _page(self, url: Url, flat: bool, mark: str | None) -> ListPage:
        folder = Url(url.scheme, url.root, url.path.rpartition("/")[0])
        top = self._path(folder)
        try:
            infos = await self._call("ls" if flat else "find", top, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return [], None
        found: list[RemoteObject] = []
        for info in infos.values() if isinstance(infos, dict) else infos:
            rest = str(info["name"]).strip("/").removeprefix(top.strip("/")).lstrip("/")
            path = f"{folder.path}/{rest}" if folder.path else rest
            found.append(_found(path + "/" * (info["type"] == "directory"), info))
        return [one for one in found if one.path.startswith(url.path)], None

    async def _fetch(self, url: Url, buffer: RangeBuffer, planned: RemoteObject) -> None:
        data = await self._call("cat_file", self._path(url), start=buffer.at, end=buffer.stop)
        pieces = iter([data])

        async def read(_: int) -> bytes:
            return next(pieces, b"")

        await buffer.fill(read)

    async def _download(self, url: Url, write: Write, planned: RemoteObject | None) -> None:
        data = await self._call("cat_file", self._path(url))
        require_size(len(data), planned)
        write(data)

    def _path(self, url: Url) -> str:
        return type(self._fs)._strip_protocol(str(url))  # fsspec's own extension point, without a public name

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self._fs.async_impl:
            # The documented asynchronous names.
            answer = await getattr(self._fs, f"_{name}")(*args, **options)
        else:
            async with self._turn:
                answer = await asyncio.to_thread(getattr(self._fs, name), *args, **options)
        self.reached = True
        return answer


def _found(path: str, info: Mapping[str, Any]) -> RemoteObject:
    size = int(info.get("size") or 0)
    for kind, names in _KINDS.items():
        if value := next((info[name] for name in names if info.get(name)), None):
            token = _moment(value) if kind in ("modified", "created") else str(value).strip('"')
            return RemoteObject(path=path, size=size, token=f"{kind}:{token}")
    return RemoteObject(path=path, size=size, token=f"size:{size}")


def _moment(value: Any) -> str:
    """Return a time in one spelling: a listing may have it as a number and a single answer as a text."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return str(round(value * 1_000_000)) if isinstance(value, int | float) else str(value)


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
            kind = _CLIENTS.get(url.scheme, FsspecClient)
            _OPEN[key] = kind(_filesystem(url, kind.arguments(resolved), failures), resolved, failures)
        return _OPEN[key]


def _filesystem(url: Url, arguments: dict[str, Any], failures: Failures) -> Any:
    """Return fsspec's file system of a URL; errors as of :func:`client_at`."""
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
