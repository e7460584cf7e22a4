"""One small build, on whatever store: its inputs, its configuration, buckets to
build into, and what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server
from tokenlake.etl import BuildSession, InProcessPool, Job, run_pending
from tokenlake.etl.job import Progress
from tokenlake.runtime.store import StoreAddress, close_filesystems

Files: TypeAlias = dict[str, bytes]
"""Key below the store -> bytes; without ``runs/``, where clocks are."""

SOURCES = ("notes", "pages", "talks")


class Bucket(Protocol):
    """A bucket, looked at past the proxy that breaks answers."""

    server: Any

    def address(self, prefix: str) -> StoreAddress: ...
    def everything(self, prefix: str) -> Files: ...
    def put(self, prefix: str, files: Mapping[str, bytes]) -> None: ...


@dataclass(frozen=True)
class S3Bucket:
    server: S3Server
    client: Any

    def address(self, prefix: str) -> StoreAddress:
        return StoreAddress(f"s3://builds/{prefix}", self.server.options())

    def everything(self, prefix: str) -> Files:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket="builds", Prefix=f"{prefix}/"
        )
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {
            key.removeprefix(f"{prefix}/"): self.client.get_object(
                Bucket="builds", Key=key
            )["Body"].read()
            for key in keys
        }

    def put(self, prefix: str, files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            self.client.put_object(Bucket="builds", Key=f"{prefix}/{key}", Body=data)


@dataclass(frozen=True)
class GcsBucket:
    server: GcsServer

    def address(self, prefix: str) -> StoreAddress:
        return StoreAddress(f"gs://builds/{prefix}", self.server.options())

    def everything(self, prefix: str) -> Files:
        with self.server.lock:
            return {
                name.removeprefix(f"{prefix}/"): found.data
                for (_, name), found in sorted(self.server.objects.items())
                if name.startswith(f"{prefix}/")
            }

    def put(self, prefix: str, files: Mapping[str, bytes]) -> None:
        for key, data in files.items():
            self.server.put("builds", f"{prefix}/{key}", data)


@contextmanager
def bucket(scheme: str) -> Iterator[Bucket]:
    """Serve an empty bucket."""
    try:
        if scheme == "s3":
            with S3Server() as server:
                client = server.client()
                client.create_bucket(Bucket="builds")
                yield S3Bucket(server, client)
        else:
            with GcsServer() as server:
                yield GcsBucket(server)
    finally:
        close_filesystems()


def stored(where: Bucket | Path, prefix: str = "") -> Files:
    """Return the files of a store but ``runs/``, temporary ones and trials."""
    if isinstance(where, Path):
        found = {
            str(path.relative_to(where)): path.read_bytes()
            for path in where.rglob("*")
            if path.is_file()
        }
    else:
        found = where.everything(prefix)
    return {
        key: data
        for key, data in sorted(found.items())
        if "/runs/" not in key
        and not key.rpartition("/")[2].startswith(("_temp", "_probe"))
    }


def write_inputs(root: Path) -> None:
    """Three sources of a file each, of which each is a unit; one record is bad."""
    for number, source in enumerate(SOURCES):
        texts = [
            {"text": f"{source} {i}: " + "a lake holds water, été " * (i % 7 + number)}
            for i in range(12)
        ]
        lines = [json.dumps(text) for text in texts]
        if source == "pages":
            lines[5] = '{"text": null}'
        (root / source).mkdir(parents=True)
        (root / source / f"{source}.jsonl").write_text("\n".join(lines) + "\n")


def settings(
    root: Path,
    tokenizer: Path,
    address: StoreAddress | str | Path,
    sources: tuple[str, ...] = SOURCES,
) -> dict[str, Any]:
    """The configuration of a build of `root`'s sources."""
    where = StoreAddress.of(address)
    return {
        "name": "small",
        "datasets": [
            {"name": name, "data_files": str(root / name)} for name in sources
        ],
        "default_tokenizer": str(tokenizer),
        "source": {
            "on_bad_record": "quarantine",
            "max_bad_fraction": 0.5,
            "splits": {"train": 0.8, "validation": 0.2},
        },
        "pack": {"enabled": True, "seq_length": 64},
        "save": {
            "output_dir": where.url,
            **({"storage_options": dict(where.options)} if where.options else {}),
        },
    }


class Bench:
    """Stands in for a pool of workers.

    Args:
        interrupted_at: index of the unit at which whoever builds is interrupted.
    """

    workers = 1

    def __init__(self, interrupted_at: int | None = None) -> None:
        self._pool = InProcessPool()
        self._interrupted_at = interrupted_at

    def run(
        self, job: Job, on_progress: Progress = lambda fields: None
    ) -> dict[str, Any]:
        if getattr(job, "unit", None) == self._interrupted_at is not None:
            raise KeyboardInterrupt
        return self._pool.run(job, on_progress)

    def expect(self, count: int, jobs: object = None) -> None:
        """One process does all jobs, one after the other."""

    def cancel(self) -> None:
        """Nothing runs beside the caller."""


def build(
    config: dict[str, Any], retries: int = 2, bench: Bench | None = None
) -> dict[int, str]:
    """Build in this process, and return how each unit came to be."""
    session = BuildSession.open(config)
    workers: Any = bench or Bench()
    run_pending(session, workers, retries=retries)
    session.commit()
    return dict(session.how)
