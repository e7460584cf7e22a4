"""Storages that break down while a store is read: what can be got is got, what is
wrong is never silent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.reading.support import rows_of
from tests.servers.base import Fault, Request
from tests.servers.s3 import KEY, SECRET
from tests.store.remote_store_support import (
    Served,
    files_of,
    require_same_rows,
    rows_at,
    serving,
    shard_keys,
)
from tokenlake import Catalog
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.runtime.reading import StoredRows
from tokenlake.runtime.store import Store

NAME = "learned"


@pytest.fixture(scope="module")
def files(lake: Store) -> dict[str, bytes]:
    return {
        key: data for key, data in files_of(lake).items() if key.startswith(f"{NAME}/")
    }


@pytest.fixture
def served(files: dict[str, bytes]) -> Iterator[Served]:
    with serving("http", files) as served:
        yield served


def shard(request: Request) -> bool:
    return request.method == "GET" and ".parquet" in request.path


def body(request: Request) -> bool:
    return request.method == "GET" and "list-type" not in request.path


@pytest.mark.parametrize("protocol", ["s3", "gs", "http"])
def test_what_passes_is_lived_through(
    protocol: str, lake: Store, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_KEY", KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    with serving(protocol, files) as served:
        served.break_down(
            Fault(status=503, applies=body),
            Fault(after=100, applies=body),  # in the manifest
            Fault(status=429, applies=shard),
            Fault(after=0, applies=shard),
            Fault(after=40, applies=shard),
            Fault(wait=0.3, applies=shard),
            Fault(status=500, applies=shard),
        )
        with rows_at(served.open(), NAME) as remote, rows_of(lake, NAME) as local:
            require_same_rows(remote, local)
        assert not served.server.faults


def test_what_came_is_not_asked_for_again(served: Served, lake: Store) -> None:
    key = shard_keys(lake, NAME)[0]
    data = lake.read(key)
    served.break_down(Fault(after=1000, applies=shard))
    with served.open().open(key, size=len(data)) as stream:
        assert stream.read() == data
    assert [one.range for one in served.server.requests("GET", "parquet")] == [
        (0, len(data) - 1),
        (1000, len(data) - 1),
    ]


def test_flipped_bits_are_never_silent(served: Served, lake: Store) -> None:
    local, dice = rows_of(lake, NAME), np.random.default_rng(6)
    manifest = Catalog(lake).manifest(NAME, 1)
    found = {"damaged": 0, "equal": 0}
    for _ in range(60):
        group = int(dice.integers(0, len(local.group_rows)))
        entry, index = local.shard_of(group)
        key = f"store/{NAME}/v1/{entry.path}"
        data = served.server.files[key]
        flipped = bytearray(data)
        # Pages lie before the footer, whose damage Parquet itself cannot tell.
        footer = int.from_bytes(data[-8:-4], "little") + 8
        for at in dice.integers(4, len(data) - footer, 3).tolist():
            flipped[at] ^= 1 << int(dice.integers(0, 8))
        served.server.files[key] = bytes(flipped)
        with StoredRows(served.open(), manifest, "train") as rows:
            try:
                ours, theirs = (
                    one.packed(group, loss_mask=True) for one in (rows, local)
                )
            except IntegrityError as error:
                assert entry.path in str(error)
                assert f"row group {index}" in str(error)
                found["damaged"] += 1
            else:
                assert ours.ids.tolist() == theirs.ids.tolist()
                assert ours.segments is not None and theirs.segments is not None
                assert list(map(list, ours.segments.rows())) == list(
                    map(list, theirs.segments.rows())
                )
                found["equal"] += 1
        served.server.files[key] = data
    assert found["damaged"] > 10
    assert found["equal"] > 0  # the bits were of other row groups


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_another_length(served: Served, lake: Store, change: int) -> None:
    entry = Catalog(lake).manifest(NAME, 1).files[0]
    key = f"store/{NAME}/v1/{entry.path}"
    data = served.server.files[key]
    served.server.files[key] = data[:change] if change < 0 else data + b"x"
    with rows_at(served.open(), NAME, entry.split) as rows:
        for read in (lambda: rows.read(0), lambda: rows.packed(0, loss_mask=True)):
            with pytest.raises(
                IntegrityError,
                match=f"it has {len(data) + change} bytes, expected {len(data)}",
            ):
                read()


def test_a_missing_shard(served: Served, lake: Store) -> None:
    entry = Catalog(lake).manifest(NAME, 1).files[0]
    del served.server.files[f"store/{NAME}/v1/{entry.path}"]
    with rows_at(served.open(), NAME, entry.split) as rows:
        for read in (lambda: rows.read(0), lambda: rows.packed(0, loss_mask=True)):
            with pytest.raises(IntegrityError, match=f"{entry.path} is missing"):
                read()


def test_a_storage_that_stays_broken(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.4")
    store = served.open()
    rows = rows_at(store, NAME)
    served.break_down(*[Fault(status=503)] * 50)
    with pytest.raises(
        StoreError,
        match=r"cannot be read: tried \d+ times.*HTTP status 503.*last checkpoint",
    ):
        rows.packed(0, loss_mask=False)
    served.server.faults.clear()
    assert rows.packed(0, loss_mask=False).rows > 0
    rows.close()


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAKE_RETRY_SECONDS", "0.4")
    with serving("http", {}) as served:
        store = served.open()
    with pytest.raises(
        StoreError, match=r"cannot be reached: tried .*TOKENLAKE_RETRY_SECONDS"
    ):
        Catalog(store).manifest("plain", 1)
