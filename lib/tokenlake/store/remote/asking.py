"""Requests to remote storages that are sent again where that helps, and errors that say what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from tokenlake.config.references import resolve_options
from tokenlake.errors import TokenlakeError
from tokenlake.store.remote.filesystems import open_filesystem
from tokenlake.store.remote.gcs import GcsObjects
from tokenlake.store.remote.http import HttpObjects
from tokenlake.store.remote.objects import (
    Found,
    NoRangesError,
    Objects,
    OtherObjectError,
    Sink,
    SourceChangedError,
)
from tokenlake.store.remote.others import OtherObjects
from tokenlake.store.remote.retry import Failures, Patience, Trouble, told, verdict
from tokenlake.store.remote.s3 import S3Objects
from tokenlake.store.remote.target import Target
from tokenlake.store.remote.url import Url

_T = TypeVar("_T")


def objects_at(url: Url, options: Mapping[str, Any], failures: Failures) -> Objects:
    """Return the storage that `url` is on; see :func:`tokenlake.store.remote.filesystems.open_filesystem`."""
    return objects_on(open_filesystem(url, options, failures), url, options, failures)


def objects_on(filesystem: Any, url: Url, options: Mapping[str, Any], failures: Failures) -> Objects:
    """Return the storage that `url` is on, through a file system that is open."""
    if url.scheme == "s3":
        return S3Objects(filesystem, failures)
    if url.scheme == "gs":
        return GcsObjects(filesystem, failures)
    if url.is_http:
        return HttpObjects(filesystem, resolve_options(options), failures)
    return OtherObjects(filesystem, failures)


async def ask(
    objects: Objects,
    url: Url,
    patience: Patience,
    request: Callable[[], Awaitable[_T]],
    progress: Callable[[], int] = lambda: 0,
    done: str = "read",
) -> _T:
    """Return what `request` does, sending it again while its failures are passing ones.

    Args:
        progress: bytes that have come so far.
        done: what cannot be done to the object, for messages; a participle.

    Raises:
        failures.missing: there is no such object; the failures are those of `objects`.
        failures.failed: it cannot be had, after retries where they may help.
        OtherObjectError, SourceChangedError, NoRangesError: at once.
    """
    trouble = Trouble(patience, reached=objects.reached)
    while True:
        before = progress()
        try:
            return await request()
        except (OtherObjectError, SourceChangedError, NoRangesError, TokenlakeError):
            raise
        except Exception as error:
            if verdict(error) == "changed":
                raise OtherObjectError("the storage has another version of it now") from None
            if not await trouble.wait(error, progressed=progress() > before):
                raise _refusal(objects, url, error, trouble.tries, done) from None


async def fetch_range(
    objects: Objects, url: Url, planned: Found, start: int, size: int, patience: Patience
) -> bytearray:
    """Return `size` bytes from `start` on; after a failure only what is missing is asked for again."""
    sink = Sink(start, size)
    await ask(objects, url, patience, lambda: objects.fetch(url, sink, planned), lambda: sink.got)
    return sink.data


async def download(
    objects: Objects, url: Url, planned: Found | None, target: Target, patience: Patience
) -> None:
    """Write the whole object to `target`; after a failure from the beginning.

    Args:
        planned: what it must be; None for whatever is there.
    """

    async def once() -> None:
        target.restart()
        await objects.download(url, target.write, planned)

    await ask(objects, url, patience, once)


def _refusal(objects: Objects, url: Url, error: Exception, tries: int, done: str) -> TokenlakeError:
    kind, failures = verdict(error), objects.failures
    if kind == "missing":
        return failures.missing(f"{url}: there is no such object ({told(error)}).", url=str(url))
    if kind == "denied":
        return failures.failed(
            f"{url}: access is denied ({told(error)}). {objects.credentials}.", url=str(url)
        )
    if kind == "permanent":
        return failures.failed(f"{url}: it cannot be {done}: {told(error)}.", url=str(url))
    reason = "cannot be reached" if kind == "unreachable" else f"cannot be {done}"
    times = "once" if tries == 1 else f"{tries} times"
    return failures.failed(
        f"{url}: it {reason}: tried {times}, the last failure was {told(error)}. Check the network and the "
        f"storage and {failures.advice}. TOKENLAKE_RETRY_SECONDS sets how long is tried.",
        url=str(url),
        tries=tries,
    )
