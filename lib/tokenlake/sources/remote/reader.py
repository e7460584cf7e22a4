"""Objects at a URL: S3, GCS, HTTP(S), and what else fsspec has installed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, final

from fsspec.asyn import get_loop

from tokenlake.errors import SourceError, SourceNotFoundError
from tokenlake.sources.inputs import InputFile, changed
from tokenlake.sources.readahead import ReadAheadBytes
from tokenlake.store.remote.connection import client_at
from tokenlake.store.remote.filesystems import on_loop
from tokenlake.store.remote.objects import NoRangesError, OtherObjectError, RemoteObject
from tokenlake.store.remote.retry import Failures
from tokenlake.store.remote.transfer import spooled
from tokenlake.store.remote.url import parse_url

OF_INPUTS: Final = Failures(
    option="data_files",
    failed=SourceError,
    missing=SourceNotFoundError,
    advice="run again: finished units are kept",
)
"""What a failing storage is to a build: the errors of inputs."""


@final
class RemoteBytes(ReadAheadBytes):
    """An object at a URL, read by ranges; usable from threads, one read at a time.

    Every answer must be of the planned version: by a condition on each request where the protocol has
    one, else by a look before the first read; and by a look after the last one.
    """

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        """Open `file`; see :func:`tokenlake.sources.opening.opened` for what it raises."""
        self._url = parse_url(file.url)
        self._planned = RemoteObject(path=self._url.path, size=file.size, token=file.token)
        self._client = client_at(self._url, storage_options, OF_INPUTS)
        self._spool: BinaryIO | None = None
        super().__init__(file, self._fetch)
        if not self._client.pins(file.token):
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""
        try:
            found = on_loop(self._client.stat(self._url))
        except SourceNotFoundError:
            raise changed(self.file, "the object is gone") from None
        if found.size != self.file.size:
            raise changed(self.file, f"it has {found.size} bytes, expected {self.file.size}")
        # A commit of the Hub is in the URL. Tokens of different kinds cannot be compared.
        if (
            self._url.scheme != "hf"
            and _kind(found) == _kind(self._planned)
            and found.token != self.file.token
        ):
            raise changed(self.file, f"its version is {found.token}, expected {self.file.token}")

    def close(self) -> None:
        """Release what is open."""
        super().close()
        if self._spool is not None:
            self._spool.close()

    def _fetch(self, start: int, size: int) -> Future[bytearray]:
        work = self._client.fetch(self._url, self._planned, start, size)
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
            return spooled(self._client, self._url, self._planned)


@contextmanager
def _planned_only(file: InputFile) -> Generator[None]:
    """Turn failures that mean another object into InputChangedError."""
    try:
        yield
    except OtherObjectError as error:
        raise changed(file, str(error)) from None
    except SourceNotFoundError:
        raise changed(file, "the object is gone") from None


def _kind(found: RemoteObject) -> str:
    return found.token.partition(":")[0]
