"""From a URL and options to the storage there, in every process that a trainer or a build starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, final

from tokenlake.store.remote.filesystems import OpenFileSystem, open_filesystem
from tokenlake.store.remote.fsspec_files import FsspecClient
from tokenlake.store.remote.gcs import GcsClient
from tokenlake.store.remote.http import HttpClient
from tokenlake.store.remote.objects import BucketClient, ObjectClient
from tokenlake.store.remote.retry import OF_STORES, Failures
from tokenlake.store.remote.s3 import S3Client
from tokenlake.store.remote.url import Url


def client_at(url: Url, options: Mapping[str, Any], failures: Failures) -> ObjectClient:
    """Return the storage that `url` is on; see :func:`tokenlake.store.remote.filesystems.open_filesystem`."""
    return _client_on(open_filesystem(url, options, failures), url, failures)


def _client_on(opened: OpenFileSystem, url: Url, failures: Failures) -> ObjectClient:
    if url.scheme == "s3":
        return S3Client(opened, failures)
    if url.scheme == "gs":
        return GcsClient(opened, failures)
    return HttpClient(opened, failures) if url.is_http else FsspecClient(opened, failures)


@final
class Connection:
    """The storage of one store. It may be pickled, and used on both sides of a fork.

    Attributes:
        url: of the store's root; its path has no slash at its end.
    """

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        self.url, self._options = url, dict(options)
        self._known: tuple[OpenFileSystem, ObjectClient] | None = None
        self.client()  # a package that is missing and an unknown option are said at once

    def client(self) -> ObjectClient:
        """Return the storage, through sessions of this process."""
        opened = open_filesystem(self.url, self._options, OF_STORES)
        if self._known is None or self._known[0] is not opened:
            self._known = opened, _client_on(opened, self.url, OF_STORES)
        return self._known[1]

    def bucket(self) -> BucketClient:
        """Return the storage to write to, on S3 or GCS."""
        return cast("BucketClient", self.client())

    @property
    def trials(self) -> dict[str, bool]:
        """What this process has tried out in this storage before it wrote to it, and what came of it."""
        return open_filesystem(self.url, self._options, OF_STORES).trials

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def __repr__(self) -> str:
        return f"Connection({str(self.url)!r})"  # options may hold secrets
