"""File systems of fsspec: one for each process, storage and options, with credentials resolved on the spot."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar, final

import fsspec
from fsspec.asyn import get_loop
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from tokenlake.config.references import resolve_options, scrub
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.url import EXTRAS, INSTALLED_BY, Url

_T = TypeVar("_T")

_LOCK: Final = threading.Lock()
_STEP: Final = 0.5  # seconds of a wait, after which a signal that did not wake it is heard


@final
class OpenFileSystem:
    """A file system of this process, and the session that its requests go through.

    Attributes:
        filesystem: of fsspec.
        options: resolved.
        clients: what sends requests through it, by whose errors they raise.
    """

    def __init__(self, filesystem: Any, options: Mapping[str, Any], web: Any) -> None:
        """`web`: what has the session."""
        self.filesystem, self.options = filesystem, options
        self.clients: dict[str, Any] = {}
        self._web, self._session = web, None

    async def session(self) -> Any:
        """Return the HTTP session, of S3 the client; it is opened by the first use."""
        self._session = await self._web.set_session()
        return self._session

    def close(self) -> None:
        """Close the session; what is asked for later opens another one."""
        if self._session is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close(self._session), get_loop()).result(timeout=2)

    @staticmethod
    async def _close(session: Any) -> None:
        if hasattr(session, "meta"):  # a client of botocore ends as a context does
            await session.__aexit__(None, None, None)
        else:
            await session.close()


_OPEN: Final[dict[str, OpenFileSystem]] = {}


Arguments: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]
"""From options to what a file system is opened with."""


def open_filesystem(
    url: Url, options: Mapping[str, Any], failures: Failures, arguments: Arguments, web: Callable[[Any], Any]
) -> OpenFileSystem:
    """Return the file system that `url` is on.

    Args:
        options: fsspec's, with references to credentials in them.
        web: from a file system to what has its session.

    Raises:
        ConfigError: a reference cannot be resolved, or an option is unknown.
        MissingExtraError: the package that reads this scheme is missing.
        failures.failed: the credentials cannot be used.
    """
    resolved = resolve_options(options)
    key = _key(url, resolved)
    with _LOCK:
        if key not in _OPEN:
            filesystem = _make(url, arguments(resolved), failures)
            _OPEN[key] = OpenFileSystem(filesystem, resolved, web(filesystem))
        return _OPEN[key]


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
    for opened in found:
        opened.close()


class _Nothing: ...


# Whatever is registered last runs first at exit. The file systems close their sessions by finalizers of
# `weakref`, some of them too late for the loop's thread; so those are registered now, and ours after them.
weakref.finalize(_Nothing(), int)
atexit.register(close_filesystems)


def _key(url: Url, options: Mapping[str, Any]) -> str:
    # Only a hash is kept, because the options may hold secrets. A fork must not use its parent's sockets.
    root = url.scheme if url.scheme in EXTRAS else url.root
    text = json.dumps([os.getpid(), root, options], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _make(url: Url, arguments: dict[str, Any], failures: Failures) -> Any:
    _require_package(url, failures.option)
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


def _require_package(url: Url, option: str) -> None:
    try:
        fsspec.get_filesystem_class(get_protocol(str(url)))
    except ValueError:
        raise ConfigError(
            f"{option}: {url.scheme}:// is not a known scheme; expected s3, gs, http, https or one of fsspec",
            got=url.scheme,
        ) from None
    except ImportError as error:
        raise MissingExtraError(
            f"{url.scheme}:// needs a package that is missing: {_install(url, error)}"
        ) from error


def _install(url: Url, error: ImportError) -> str:
    if (extra := {**EXTRAS, **INSTALLED_BY}.get(url.scheme)) is not None:
        return f"pip install {extra}"
    package = str(known_implementations.get(url.scheme, {}).get("class", "fsspec")).partition(".")[0]
    return str(error) if package == "fsspec" else f"pip install {package}"
