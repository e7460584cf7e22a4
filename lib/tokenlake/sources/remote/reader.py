"""Objects at a URL: S3, GCS, HTTP(S), the Hub, and what else fsspec has installed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.errors import SourceNotFoundError
from tokenlake.sources.inputbytes import InputBytes, InputReader
from tokenlake.sources.inputs import InputFile, changed
from tokenlake.sources.remote.failures import OF_INPUTS
from tokenlake.sources.remote.readahead import ReadAhead
from tokenlake.storage.remote.asking import ask, fetch_range, objects_at
from tokenlake.storage.remote.filesystems import on_loop
from tokenlake.storage.remote.objects import Found, NoRangesError, OtherObjectError
from tokenlake.storage.remote.retries import patience
from tokenlake.storage.remote.urls import parse_url
from tokenlake.storage.remote.wholes import spooled

_STRETCH: Final = 16 << 20  # a larger read is done in such steps, so that pieces do not pile up


@final
class RemoteBytes(InputBytes):
    """An object at a URL, read by ranges; usable from threads, one read at a time.

    Every answer must be of the planned version: by a condition on each request where the protocol has
    one, else by a look before the first read; and by a look after the last one.
    """

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        """Open `file`; see :func:`tokenlake.sources.opening.opened` for what it raises."""
        self.file = file
        self._url = parse_url(file.url)
        self._planned = Found(path=self._url.path, size=file.size, token=file.token)
        self._patience = patience()
        self._objects = objects_at(self._url, storage_options, OF_INPUTS)
        self._ahead = ReadAhead(file.size, self._fetch)
        self._spool: BinaryIO | None = None
        self._lock = threading.Lock()
        if not self._objects.pins(file.token):
            self.check_unchanged()

    def read_into(self, view: memoryview, offset: int) -> int:
        at = 0
        while at < len(view):
            spans = self._spans(offset + at, min(len(view) - at, _STRETCH))
            if not spans:
                break
            for span in spans:
                view[at : at + len(span)] = span
                at += len(span)
        return at

    def pread(self, size: int, offset: int) -> bytes:
        return b"".join(self._spans(offset, size)) if size <= _STRETCH else super().pread(size, offset)

    def for_arrow(self) -> Any:
        return InputReader(self)

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""
        try:
            found = on_loop(ask(self._objects, self._url, self._patience, self._stat))
        except SourceNotFoundError:
            raise changed(self.file, "the object is gone") from None
        if found.size != self.file.size:
            raise changed(self.file, f"it has {found.size} bytes, planned were {self.file.size}")
        # A commit of the Hub is in the URL. Tokens of different kinds cannot be compared.
        if (
            self._url.scheme != "hf"
            and _kind(found) == _kind(self._planned)
            and found.token != self.file.token
        ):
            raise changed(self.file, f"its version is {found.token}, planned was {self.file.token}")

    def close(self) -> None:
        """Release what is open."""
        with self._lock:
            self._ahead.clear()
            if self._spool is not None:
                self._spool.close()

    def _stat(self) -> Any:
        return self._objects.stat(self._url)

    def _fetch(self, start: int, size: int) -> Future[bytearray]:
        work = fetch_range(self._objects, self._url, self._planned, start, size, self._patience)
        return asyncio.run_coroutine_threadsafe(work, get_loop())

    def _spans(self, offset: int, size: int) -> list[memoryview]:
        with self._lock:
            if self._spool is None:
                try:
                    with _planned_only(self.file):
                        return self._ahead.spans(offset, size)
                except NoRangesError:
                    self._spool = self._downloaded()
            data = os.pread(self._spool.fileno(), size, offset)
            return [memoryview(data)] if data else []

    def _downloaded(self) -> BinaryIO:
        """Fetch the whole object to a nameless file on the local disk, because the server knows no ranges."""
        with _planned_only(self.file):
            return spooled(self._objects, self._url, self._planned, self._patience)


@contextmanager
def _planned_only(file: InputFile) -> Generator[None]:
    """Turn failures that mean another object into InputChangedError."""
    try:
        yield
    except OtherObjectError as error:
        raise changed(file, str(error)) from None
    except SourceNotFoundError:
        raise changed(file, "the object is gone") from None


def _kind(found: Found) -> str:
    return found.token.partition(":")[0]
