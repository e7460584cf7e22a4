"""Buckets of both clouds on loopback: what is in them, seen from behind, and stores
to write into them.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moto.s3 import models

from tests.servers.base import Fault, Request
from tests.servers.gcs import GcsServer
from tests.servers.s3 import KEY, SECRET, S3Server
from tests.store.support import sha256
from tokenlake.runtime.store import (
    HashingFile,
    ReadStore,
    Store,
    close_filesystems,
    open_read_store,
    open_store,
    payload,
)

__all__ = [
    "CLOUDS",
    "Bucket",
    "Folder",
    "bucket_on",
    "environment",
    "on",
    "sha256",
    "small_parts",
    "written",
]

CLOUDS = ("s3", "gs")


@dataclass
class Bucket:
    """A bucket called ``lake``.

    Attributes:
        server: with the log, the faults, and what is stored.
    """

    scheme: str
    server: Any

    def open(self, root: str | None = None) -> Store:
        """Open a store; each at a root of its own, unless one is named."""
        # Servers of one process share what moto holds.
        name = f"store-{secrets.token_hex(6)}" if root is None else root
        return open_store(
            f"{self.scheme}://lake/{name}", storage_options=self.server.options()
        )

    def ready(self) -> Store:
        """Open a store that has done its preflight, and forget the requests so far."""
        store = self.open()
        store.put_new("ready", b"")
        self.server.log.clear()
        return store

    def reading(self, store: Store) -> ReadStore:
        """Open the same store to be read."""
        return open_read_store(store.url, storage_options=self.server.options())

    def inside(self, store: Store, prefix: str = "") -> dict[str, bytes]:
        """Return all objects of a store whose keys begin so, as the server has them."""
        root = store.url.partition("lake/")[2] + "/"
        found = self._all(root + prefix)
        return {name.removeprefix(root): data for name, data in found.items()}

    def put(self, store: Store, key: str, data: bytes) -> None:
        """Put an object behind the back of everybody."""
        name = f"{store.url.partition('lake/')[2]}/{key}"
        if self.scheme == "s3":
            self.server.client().put_object(Bucket="lake", Key=name, Body=data)
        else:
            self.server.put("lake", name, data)

    def uploads(self) -> int:
        """Return how many uploads were begun and neither finished nor aborted."""
        if self.scheme == "gs":
            return 0
        return len(
            self.server.client()
            .list_multipart_uploads(Bucket="lake")
            .get("Uploads", [])
        )

    def break_down(self, *faults: Fault) -> None:
        self.server.faults.extend(faults)

    def methods(self) -> list[str]:
        """Return the methods of the requests so far, and forget them."""
        found = [one.method for one in self.server.log]
        self.server.log.clear()
        return found

    def _all(self, prefix: str) -> dict[str, bytes]:
        if self.scheme == "gs":
            with self.server.lock:
                found = dict(self.server.objects)
            return {
                name: one.data
                for (_, name), one in found.items()
                if name.startswith(prefix)
            }
        client = self.server.client()
        names = [
            one["Key"]
            for one in client.list_objects_v2(Bucket="lake", Prefix=prefix).get(
                "Contents", []
            )
        ]
        return {
            name: client.get_object(Bucket="lake", Key=name)["Body"].read()
            for name in names
        }


@dataclass
class Folder:
    """Stores on this disk, seen from behind as :class:`Bucket` does."""

    root: Path
    scheme: str = "file"

    def open(self) -> Store:
        """Open a store at a root of its own."""
        return open_store(self.root / secrets.token_hex(6))

    def ready(self) -> Store:
        store = self.open()
        store.put_new("ready", b"")
        return store

    def reading(self, store: Store) -> ReadStore:
        """Open the same store to be read."""
        return open_read_store(store.url)

    def inside(self, store: Store, prefix: str = "") -> dict[str, bytes]:
        """Return all files of a store whose keys begin so, temporary ones too."""
        files = (path for path in Path(store.url).rglob("*") if path.is_file())
        found = {
            path.relative_to(store.url).as_posix(): path.read_bytes() for path in files
        }
        return {key: data for key, data in found.items() if key.startswith(prefix)}

    def put(self, store: Store, key: str, data: bytes) -> None:
        """Put an object behind the back of everybody."""
        path = Path(store.url) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def uploads(self) -> int:
        return 0


@contextlib.contextmanager
def bucket_on(scheme: str) -> Iterator[Bucket]:
    """Start a server with an empty bucket; credentials and scratch folder are in the
    environment.
    """
    with S3Server() if scheme == "s3" else GcsServer() as server:
        if scheme == "s3":
            server.client().create_bucket(Bucket="lake")
        try:
            yield Bucket(scheme, server)
        finally:
            close_filesystems()


@contextlib.contextmanager
def environment(scratch: Path) -> Iterator[pytest.MonkeyPatch]:
    """Set what the buckets' options refer to, and a scratch folder of the test's
    own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKE_KEY", KEY)
        patch.setenv("LAKE_SECRET", SECRET)
        patch.setenv("TOKENLAKE_SCRATCH", str(scratch))
        patch.setenv("TOKENLAKE_RETRY_SECONDS", "20")
        yield patch


def small_parts(patch: pytest.MonkeyPatch) -> None:
    """Let large begin at 1 MB, with parts of 500 KiB, which the stand-in for S3
    takes for once.
    """
    patch.setattr(payload, "LARGE", 1_000_000)
    patch.setattr(payload, "PIECE", 500 << 10)
    patch.setattr("tokenlake.runtime.store.object_store.LARGE", 1_000_000)
    patch.setattr("tokenlake.runtime.store.gcs.PIECE", 500 << 10)
    patch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 1)


def written(store: Store, data: bytes, prefix: str = "corpus/v1") -> tuple[Path, str]:
    """Write a temporary file; return it and its hash."""
    temp = store.temp(prefix)
    with HashingFile(temp) as sink:
        sink.write(data)
    return temp, sink.sha256


def on(method: str, part: str = "") -> Callable[[Request], bool]:
    """Requests of a method with something in their path or query."""
    return lambda request: request.method == method and part in request.path
