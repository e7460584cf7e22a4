"""Repair of versions in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etl.remote_builds_support import bucket
from tests.integrity.support import build
from tests.store.support import settings, write_inputs
from tokenlake.etl.pool import WorkerPool
from tokenlake.integrity.repair import repair
from tokenlake.integrity.verify import verify
from tokenlake.store.address import open_store


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKE_KEY", "testing")
        patch.setenv("LAKE_SECRET", "testing")
        with WorkerPool(1) as workers:
            yield workers


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_version_in_a_bucket_comes_back(
    tmp_path: Path, tokenizer_dir: Path, pool: WorkerPool, scheme: str
) -> None:
    write_inputs(tmp_path)
    with bucket(scheme) as place:
        address = place.address("store")
        config = settings(tmp_path, tokenizer_dir)
        build({**config, "save": {"output_dir": address.url, "storage_options": dict(address.options)}}, pool)
        before = {key: data for key, data in place.everything("store").items() if "/runs/" not in key}
        place.put(
            "store", {f"small/v1/{path}": b"damaged" for path in ("data/train-00000-00.parquet", "README.md")}
        )
        report = repair(address, "small")  # whatever keys opened it, no run kept them
        assert report.ok, report.files
        assert {file.path: file.how for file in report.files} == {
            "data/train-00000-00.parquet": "rebuilt",
            "README.md": "rendered",
        }
        after = {key: data for key, data in place.everything("store").items() if "/runs/" not in key}
        assert after == before
        assert verify(open_store(address), "small", 1, deep=True).ok
