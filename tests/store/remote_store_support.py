"""The lake of :mod:`tests.reading.support` behind servers of every protocol, each
with a log of its requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec

from tests.servers.base import Fault
from tests.servers.gcs import GcsServer
from tests.servers.http import HttpServer
from tests.servers.s3 import S3Server
from tokenlake import Catalog
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import ReadStore, Store, close_filesystems, open_read_store

PROTOCOLS = ("s3", "gs", "http", "memory")


@dataclass(frozen=True)
class Served:
    """A store at a URL.

    Attributes:
        server: with the log; None for `memory`, which has none.
    """

    url: str
    server: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> ReadStore:
        return open_read_store(self.url, storage_options=self.options, **options)

    def asked(self) -> list[tuple[str, str]]:
        """Method and last part of the path of each request so far, and forget them."""
        found = [
            (
                one.method,
                one.path.partition("?")[0].replace("%2F", "/").rpartition("/")[2],
            )
            for one in self.server.log
        ]
        self.server.log.clear()
        return found

    def break_down(self, *faults: Fault) -> None:
        self.server.faults.extend(faults)


def files_of(store: ReadStore) -> dict[str, bytes]:
    return {info.key: store.read(info.key) for info in store.list("")}


@contextlib.contextmanager
def serving(protocol: str, files: Mapping[str, bytes]) -> Iterator[Served]:
    """Serve files below ``store`` of a bucket or host."""
    put = _PUT[protocol]
    try:
        with put(files) as served:
            yield served
    finally:
        close_filesystems()


@contextlib.contextmanager
def _s3(files: Mapping[str, bytes]) -> Iterator[Served]:
    with S3Server() as server:
        client = server.client()
        client.create_bucket(Bucket="lake")
        # Servers of one process share their objects, and another module's may have left
        # some here.
        for left in client.list_objects_v2(Bucket="lake").get("Contents", ()):
            client.delete_object(Bucket="lake", Key=left["Key"])
        for key, data in files.items():
            client.put_object(Bucket="lake", Key=f"store/{key}", Body=data)
        yield Served("s3://lake/store", server, server.options())


@contextlib.contextmanager
def _gcs(files: Mapping[str, bytes]) -> Iterator[Served]:
    with GcsServer() as server:
        for key, data in files.items():
            server.put("lake", f"store/{key}", data)
        yield Served("gs://lake/store/", server, server.options())


@contextlib.contextmanager
def _http(files: Mapping[str, bytes]) -> Iterator[Served]:
    with HttpServer({f"store/{key}": data for key, data in files.items()}) as server:
        yield Served(f"{server.url}/store", server)


@contextlib.contextmanager
def _memory(files: Mapping[str, bytes]) -> Iterator[Served]:
    system = fsspec.filesystem("memory")
    for key, data in files.items():
        system.pipe_file(f"/store/{key}", data)
    try:
        yield Served("memory://store")
    finally:
        system.store.clear()
        system.pseudo_dirs[:] = [""]


_PUT = {"s3": _s3, "gs": _gcs, "http": _http, "memory": _memory}


def rows_at(store: ReadStore, name: str = "plain", split: str = "train") -> StoredRows:
    return StoredRows(store, Catalog(store).manifest(name, 1), split)


def require_same_rows(remote: StoredRows, local: StoredRows) -> None:
    """Read all of both, in every way."""
    assert remote.group_rows.tolist() == local.group_rows.tolist()
    for group in range(len(local.group_rows)):
        assert remote.read(group).equals(local.read(group))
        if local.manifest.kind == "packed":
            ours, theirs = (
                rows.packed(group, loss_mask=True) for rows in (remote, local)
            )
            assert ours.ids.tolist() == theirs.ids.tolist()
            assert ours.segments is not None and theirs.segments is not None
            assert list(map(list, ours.segments.rows())) == list(
                map(list, theirs.segments.rows())
            )


def shard_keys(store: Store, name: str = "plain") -> list[str]:
    return [info.key for info in store.list(f"{name}/v1/data")]
