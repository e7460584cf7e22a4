"""Clients of remote storages, and the thread that their requests run on.

Each storage and process has one client.

:func:`client_at` opens a client, or returns the open one. A new storage needs a class
of :class:`tokenlake.runtime.store.client.ObjectClient`, and a line in ``_CLIENTS`` and
in ``tokenlake.runtime.store.url.EXTRAS``.
"""

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
from typing import Any, Final, TypeVar

import fsspec
from fsspec.asyn import get_loop
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from tokenlake.base.secrets import resolve_options, scrub
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.runtime.store.client import ObjectClient
from tokenlake.runtime.store.failures import Failures
from tokenlake.runtime.store.fsspec_client import FsspecClient
from tokenlake.runtime.store.gcs import GcsClient
from tokenlake.runtime.store.http import HttpClient
from tokenlake.runtime.store.s3 import S3Client
from tokenlake.runtime.store.url import EXTRAS, INSTALLED_BY, Url

_T = TypeVar("_T")

_CLIENTS: Final[Mapping[str, type[ObjectClient]]] = {
    "s3": S3Client,
    "gs": GcsClient,
    "http": HttpClient,
    "https": HttpClient,
}
_OPEN: Final[dict[str, ObjectClient]] = {}  # by the hash of `client_at`
_LOCK: Final = threading.Lock()
# Seconds of a wait, after which a signal that did not wake it is handled.
_STEP: Final = 0.5
_CLOSE_SECONDS: Final = 2  # longest wait for a client at the end of the process


def client_at(url: Url, options: Mapping[str, Any], failures: Failures) -> ObjectClient:
    """Return the client of the storage of a URL.

    Each call in this process gets the same one.

    Args:
        url: URL on the storage.
        options: Options of fsspec's file system, with references to credentials.
        failures: Error classes of the user.

    Raises:
        ConfigError: A reference cannot be resolved, or an option is unknown.
        MissingExtraError: The package that reads this scheme is missing.
        failures.failed: The credentials cannot be used.
    """
    resolved = resolve_options(options)
    # A fork must not use its parent's sockets, so the key names the process. Only a
    # hash is kept: the options may hold secrets.
    root = url.scheme if url.scheme in EXTRAS else url.root
    identity_text = json.dumps(
        [os.getpid(), root, resolved, failures.option], sort_keys=True, default=str
    )
    client_key = hashlib.sha256(identity_text.encode()).hexdigest()
    # Two threads must not open two clients of one storage.
    with _LOCK:
        if client_key not in _OPEN:
            _require_package(url, failures)
            client_class = _CLIENTS.get(url.scheme, FsspecClient)
            filesystem = _filesystem(url, client_class.arguments(resolved), failures)
            _OPEN[client_key] = client_class(filesystem, resolved, failures)
        return _OPEN[client_key]


def _require_package(url: Url, failures: Failures) -> None:
    """Check that the package for the scheme of a URL is installed.

    Raises:
        ConfigError: The scheme is unknown.
        MissingExtraError: The package is missing.
    """
    # fsspec names the package in its error. Ours names the extra that installs it.
    try:
        fsspec.get_filesystem_class(get_protocol(str(url)))
    except ValueError:
        raise ConfigError(
            f"{failures.option}: {url.scheme}:// is not a known scheme; expected s3, gs, http, https or one of fsspec",
            got=url.scheme,
        ) from None
    except ImportError as error:
        class_path = str(
            known_implementations.get(url.scheme, {}).get("class", "fsspec")
        )
        package = class_path.partition(".")[0]
        extra = {**EXTRAS, **INSTALLED_BY}.get(url.scheme, package)
        install = str(error) if extra == "fsspec" else f"pip install {extra}"
        raise MissingExtraError(
            f"{url.scheme}:// needs a package that is missing: {install}"
        ) from error


def _filesystem(url: Url, arguments: dict[str, Any], failures: Failures) -> Any:
    """Return fsspec's file system of a URL; errors of :func:`client_at`."""
    # No caches: a listing must be that of now, and a file system belongs to its client.
    all_arguments = {
        **arguments,
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    try:
        with warnings.catch_warnings():
            # gcsfs warns if no project is set, which only listing buckets needs.
            warnings.simplefilter("ignore")
            return fsspec.core.url_to_fs(str(url), **all_arguments)[0]
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
        # Wait in steps: a signal that comes just before the wait for a lock does not
        # wake it.
        while not future.done():
            with suppress(TimeoutError):
                future.exception(_STEP)
        return future.result()
    finally:
        future.cancel()


def on_loop_to_its_end(work: Coroutine[Any, Any, _T], seconds: float = 20.0) -> _T:
    """Run a coroutine as :func:`on_loop` does.

    An interrupted caller waits until the coroutine has cleaned up.

    Args:
        work: The coroutine.
        seconds: Longest wait for its cleanup.
    """
    ended = threading.Event()
    tasks: list[asyncio.Task[_T] | None] = []

    async def run_to_its_end() -> _T:
        tasks.append(asyncio.current_task())
        try:
            return await work
        finally:
            ended.set()

    def cancel() -> None:
        for task in tasks:
            # A second cancellation would end its cleanup.
            if task is not None and not task.cancelling():
                task.cancel()

    # Errors of the coroutine come after its end. Only an interrupt of the caller needs
    # the wait.
    try:
        return on_loop(run_to_its_end())
    except Exception:
        raise
    except BaseException:
        # The interrupt may have come before `on_loop` waited; then it has cancelled
        # nothing.
        get_loop().call_soon_threadsafe(cancel)
        ended.wait(seconds)
        raise


def close_filesystems() -> None:
    """Close all clients; a later request opens new ones."""
    with _LOCK:
        clients = list(_OPEN.values())
        _OPEN.clear()
    for client in clients:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(client.close(), get_loop()).result(
                timeout=_CLOSE_SECONDS
            )


class _Nothing:
    """Object without a use, for a finalizer that starts the ones of weakref."""


# The function that is registered last runs first at exit. The file systems close their
# sessions by finalizers of `weakref`, some of them too late for the loop's thread. So
# register those now, and ours after them.
weakref.finalize(_Nothing(), int)
atexit.register(close_filesystems)
