"""Requests to remote storages that are sent again where that helps, and errors that say what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, TypeVar

from tokenlake.config.references import resolve_options
from tokenlake.errors import SourceError, SourceNotFoundError, TokenlakeError
from tokenlake.sources.remote.filesystems import open_filesystem
from tokenlake.sources.remote.gcs import GcsObjects
from tokenlake.sources.remote.http import HttpObjects
from tokenlake.sources.remote.objects import Found, NoRangesError, Objects, OtherObjectError, Sink
from tokenlake.sources.remote.others import OtherObjects
from tokenlake.sources.remote.retries import Patience, Trouble, told, verdict
from tokenlake.sources.remote.s3 import S3Objects
from tokenlake.sources.remote.urls import Url

_T = TypeVar("_T")


def objects_at(url: Url, options: Mapping[str, Any]) -> Objects:
    """Return the storage that `url` is on; see :func:`tokenlake.sources.remote.filesystems.open_filesystem`."""
    filesystem = open_filesystem(url, options)
    if url.scheme == "s3":
        return S3Objects(filesystem)
    if url.scheme == "gs":
        return GcsObjects(filesystem)
    return HttpObjects(filesystem, resolve_options(options)) if url.is_http else OtherObjects(filesystem)


async def ask(
    objects: Objects,
    url: Url,
    patience: Patience,
    request: Callable[[], Awaitable[_T]],
    progress: Callable[[], int] = lambda: 0,
) -> _T:
    """Return what `request` does, sending it again while its failures are passing ones.

    Args:
        progress: bytes that have come so far.

    Raises:
        SourceNotFoundError: there is no such object.
        SourceError: it cannot be had, after retries where they may help.
        OtherObjectError, NoRangesError: at once.
    """
    trouble = Trouble(patience, reached=objects.reached)
    while True:
        before = progress()
        try:
            return await request()
        except (OtherObjectError, NoRangesError, TokenlakeError):
            raise
        except Exception as error:
            if verdict(error) == "changed":
                raise OtherObjectError("the storage has another version of it now") from None
            if not await trouble.wait(error, progressed=progress() > before):
                raise _refusal(objects, url, error, trouble.tries) from None


async def fetch_range(
    objects: Objects, url: Url, planned: Found, start: int, size: int, patience: Patience
) -> bytearray:
    """Return `size` bytes from `start` on; after a failure only what is missing is asked for again."""
    sink = Sink(start, size)
    await ask(objects, url, patience, lambda: objects.fetch(url, sink, planned), lambda: sink.got)
    return sink.data


async def download(objects: Objects, url: Url, planned: Found, target: BinaryIO, patience: Patience) -> None:
    """Write the whole object to `target`; after a failure from the beginning, for there are no ranges."""

    async def once() -> None:
        target.seek(0)
        target.truncate()
        await objects.download(url, target.write, planned)

    await ask(objects, url, patience, once)
    target.flush()


def _refusal(objects: Objects, url: Url, error: Exception, tries: int) -> SourceError:
    kind = verdict(error)
    if kind == "missing":
        return SourceNotFoundError(f"{url}: there is no such object ({told(error)}).", url=str(url))
    if kind == "denied":
        return SourceError(f"{url}: access is denied ({told(error)}). {objects.credentials}.", url=str(url))
    if kind == "permanent":
        return SourceError(f"{url}: it cannot be read: {told(error)}.", url=str(url))
    reason = "cannot be reached" if kind == "unreachable" else "cannot be read"
    times = "once" if tries == 1 else f"{tries} times"
    return SourceError(
        f"{url}: it {reason}: tried {times}, the last failure was {told(error)}. Check the network and the "
        "storage and run again: what is finished stays. TOKENLAKE_RETRY_SECONDS sets how long is tried.",
        url=str(url),
        tries=tries,
    )
