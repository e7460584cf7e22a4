"""File systems of fsspec: one for each process, storage and options, with credentials resolved on the spot.

A redirect of a web server is followed by the HTTP library as if its target had been asked for. Before it does, the
target is looked at here: it must be HTTP, must not fall back from HTTPS, must not be an address of this machine or its
network (a cloud's metadata service answers there with credentials) when the first one was not, and must lie in
``TOKENLAKE_ALLOWED_INPUTS`` where that is set. To another host none of the headers of the storage options go along.
"""

from __future__ import annotations

import asyncio
import atexit
import difflib
import hashlib
import ipaddress
import json
import os
import threading
import warnings
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar, final

import fsspec
from fsspec.asyn import get_loop
from fsspec.registry import known_implementations
from fsspec.utils import get_protocol

from tokenlake.config.references import resolve_options, scrub
from tokenlake.errors import ConfigError, MissingExtraError
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.url import INPUTS, Url, entries_of, is_odd, lies_below, parse_url

_T = TypeVar("_T")

_EXTRAS: Final = {"s3": "'tokenlake[s3]'", "gs": "'tokenlake[gcs]'", "http": "aiohttp", "https": "aiohttp"}
# We send each request again ourselves, with a look at what has already come; two layers would multiply.
_CLIENT: Final = {"retries": {"mode": "standard", "total_max_attempts": 1}, "max_pool_connections": 32}
_LOCK: Final = threading.Lock()


@final
class OpenFileSystem:
    """A file system of this process, and the session that its requests go through.

    Attributes:
        filesystem: of fsspec.
        options: resolved.
        trials: what a trial before the first write has shown, by what was tried.
    """

    def __init__(self, filesystem: Any, options: Mapping[str, Any], web: Any = None) -> None:
        """`web`: what has the session, where it is not the file system itself."""
        self.filesystem, self.options = filesystem, options
        self.trials: dict[str, bool] = {}
        self._web, self._session = web or filesystem, None

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


def open_filesystem(url: Url, options: Mapping[str, Any], failures: Failures) -> OpenFileSystem:
    """Return the file system that `url` is on.

    Args:
        options: fsspec's, with references to credentials in them.

    Raises:
        ConfigError: a reference cannot be resolved, or an option is unknown.
        MissingExtraError: the package that reads this scheme is missing.
        failures.failed: the credentials cannot be used.
    """
    resolved = resolve_options(options)
    key = _key(url, resolved)
    with _LOCK:
        if key not in _OPEN:
            _OPEN[key] = _make(url, resolved, failures)
        return _OPEN[key]


def on_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the thread of asynchronous file systems and wait for it."""
    future = asyncio.run_coroutine_threadsafe(work, get_loop())
    try:
        return future.result()
    finally:
        future.cancel()


def on_loop_to_its_end(work: Coroutine[Any, Any, _T], seconds: float = 20.0) -> _T:
    """As :func:`on_loop`; whoever is interrupted waits until the work has cleaned up, for so many seconds."""
    ended = threading.Event()

    async def whole() -> _T:
        try:
            return await work
        finally:
            ended.set()

    try:
        return on_loop(whole())
    except Exception:
        raise
    except BaseException:
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
    root = url.scheme if url.scheme in ("s3", "gs", "http", "https") else url.root
    text = json.dumps([os.getpid(), root, options], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _make(url: Url, options: Mapping[str, Any], failures: Failures) -> OpenFileSystem:
    given = {**options, "use_listings_cache": False, "skip_instance_cache": True}
    if url.scheme == "s3":
        given["config_kwargs"] = {**_CLIENT, **options.get("config_kwargs", {})}
    if url.is_http:
        given = _http_options(given)
    _require_package(url, failures.option)
    try:
        with warnings.catch_warnings():
            # gcsfs warns where no project is set, which only listing buckets needs.
            warnings.simplefilter("ignore")
            filesystem, _ = fsspec.core.url_to_fs(str(url), **given)
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
    web = None
    if url.scheme == "gs":
        web = fsspec.filesystem("http", client_kwargs=filesystem.session_kwargs, skip_instance_cache=True)
    return OpenFileSystem(filesystem, options, web)


def _http_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take out what aiohttp would not know: a user, a password, and queries, which go on each request.

    Redirects are looked at before they are followed.
    """
    given = {key: value for key, value in options.items() if key not in ("username", "password", "query")}
    if "username" in options or "password" in options:
        import aiohttp  # an optional extra

        auth = aiohttp.BasicAuth(str(options.get("username", "")), str(options.get("password", "")))
        given["client_kwargs"] = {**options.get("client_kwargs", {}), "auth": auth}
    given["client_kwargs"] = guarded(given.get("client_kwargs", {}))
    return given


def _require_package(url: Url, option: str) -> None:
    try:
        fsspec.get_filesystem_class(get_protocol(str(url)))
    except ValueError:
        near = difflib.get_close_matches(url.scheme, known_implementations, 3)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "expected s3, gs, http, https or one of fsspec"
        )
        raise ConfigError(
            f"{option}: {url.scheme}:// is not a known scheme; {hint}", got=url.scheme
        ) from None
    except ImportError as error:
        raise MissingExtraError(
            f"{url.scheme}:// needs a package that is missing: {_install(url, error)}"
        ) from error


def _install(url: Url, error: ImportError) -> str:
    if url.scheme in _EXTRAS:
        return f"pip install {_EXTRAS[url.scheme]}"
    package = str(known_implementations.get(url.scheme, {}).get("class", "fsspec")).partition(".")[0]
    return str(error) if package == "fsspec" else f"pip install {package}"


_KEPT: Final = frozenset(
    {"accept", "accept-encoding", "range", "if-match", "if-unmodified-since", "user-agent"}
)


class RedirectRefusedError(Exception):
    """A redirect leads where it may not. It becomes the failure of the request, and is not tried again."""


def guarded(client_options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for an aiohttp session whose redirects are looked at before they are followed."""
    import aiohttp  # an optional extra

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_look)
    return {**client_options, "trace_configs": [*client_options.get("trace_configs", ()), trace]}


async def _look(_session: Any, _context: Any, redirect: Any) -> None:
    answer = redirect.response
    location = answer.headers.get("Location") or answer.headers.get("URI") or ""
    try:
        source, target = answer.url, answer.url.join(type(answer.url)(location, encoded=True))
    except ValueError:
        raise RedirectRefusedError("the server redirects to an invalid URL") from None
    if target.scheme not in ("http", "https") or (source.scheme == "https" and target.scheme == "http"):
        raise RedirectRefusedError(f"the server redirects from {source.scheme} to {target.scheme}")
    if target.origin() == source.origin():
        return
    for name in [name for name in redirect.headers if name.lower() not in _KEPT]:
        redirect.headers.popall(name, None)
    await _require_allowed(source, target)


async def _require_allowed(source: Any, target: Any) -> None:
    allowed = entries_of(os.environ.get(INPUTS))
    if allowed is not None:
        if not _is_listed(target, allowed):
            raise RedirectRefusedError(
                f"the server redirects to {target.origin()}, outside what {INPUTS} allows in this environment"
            )
        return
    near = await _addresses(target)
    if any(address.is_link_local for address in near):
        raise RedirectRefusedError(f"the server redirects to {target.origin()}, a link-local address")
    if any(map(_is_inner, near)) and not any(map(_is_inner, await _addresses(source))):
        raise RedirectRefusedError(
            f"the server redirects to {target.origin()}, an address of the private network"
        )


def _is_listed(target: Any, allowed: list[str]) -> bool:
    try:
        url = parse_url(str(target.with_query(None)))
        above = [parse_url(entry) for entry in allowed if entry.lower().startswith(("http://", "https://"))]
    except ConfigError:
        return False
    return not is_odd(url.path) and any(lies_below(url, each) for each in above)


async def _addresses(url: Any) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port)
    except OSError as error:
        raise RedirectRefusedError(
            f"the server redirects to {url.origin()}, whose name has no address"
        ) from error
    parsed = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    return [getattr(each, "ipv4_mapped", None) or each for each in parsed]


def _is_inner(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
