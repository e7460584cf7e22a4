"""Replacing damaged bytes, reading objects whole, and what was begun and never published."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokenlake.errors import ConfigError, VersionConflictError
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.local import LocalStore
from tokenlake.store.local_files import new_temp_name

KEY = "d/v1/data/x"
GOOD, BAD = b"as it was committed", b"as it was c0mmitted"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "lake")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def written(store: LocalStore, data: bytes) -> Path:
    temp = store.temp("d/v1")
    temp.write_bytes(data)
    return temp


def test_damage_is_replaced_and_readers_keep_what_they_opened(store: LocalStore) -> None:
    store.put_new(KEY, BAD)
    with store.open(KEY) as opened:
        assert store.replace(written(store, GOOD), KEY, sha256(GOOD), sha256(BAD)) == "replaced"
        assert opened.read() == BAD
    assert store.read(KEY) == GOOD
    assert store.replace(written(store, GOOD), KEY, sha256(GOOD), sha256(BAD)) == "equal"
    assert store.leftovers("") == []


@pytest.mark.parametrize("found", [None, sha256(b"something else")])
def test_what_the_caller_did_not_see_is_not_replaced(store: LocalStore, found: str | None) -> None:
    store.put_new(KEY, BAD)
    with pytest.raises(VersionConflictError, match=sha256(BAD)):
        store.replace(written(store, GOOD), KEY, sha256(GOOD), found)
    assert store.read(KEY) == BAD
    assert store.leftovers("") == []


def test_of_several_repairs_one_replaces(store: LocalStore) -> None:
    store.put_new(KEY, BAD)
    temps = [written(store, GOOD) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda temp: store.replace(temp, KEY, sha256(GOOD), sha256(BAD)), temps))
    assert sorted(outcomes) == ["equal"] * 7 + ["replaced"]


def test_leftovers_are_found_wherever_they_lie_and_removed_by_name(store: LocalStore) -> None:
    alive = store.temp("d/v1")
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    gone = child.stdout.strip()
    dead = alive.parent.parent / new_temp_name().replace(f"-{os.getpid()}-", f"-{gone}-")
    dead.write_bytes(b"12345")
    os.utime(dead, (1000, 1000))
    store.put_new(KEY, GOOD)
    found = {leftover.name: leftover for leftover in store.leftovers("")}
    assert set(found) == {f"d/{dead.name}", f"d/v1/{alive.name}"}
    assert (found[f"d/{dead.name}"].dead, found[f"d/{dead.name}"].bytes) == (True, 5)
    assert found[f"d/{dead.name}"].modified == 1000
    assert not found[f"d/v1/{alive.name}"].dead
    assert [one.name for one in store.leftovers("d/v1")] == [f"d/v1/{alive.name}"]
    assert store.remove_leftover(found[f"d/{dead.name}"])
    assert not store.remove_leftover(found[f"d/{dead.name}"])
    assert alive.exists() and store.read(KEY) == GOOD


def test_an_address_travels_as_json_and_shows_no_options() -> None:
    address = StoreAddress("s3://bucket/lake", {"key": {"env": "LAKE_KEY"}})
    assert StoreAddress.from_json(address.to_json()) == address
    assert "LAKE_KEY" not in repr(address) and str(address) == "s3://bucket/lake"
    assert StoreAddress.of(address) is address


def test_local_stores_take_no_options(tmp_path: Path) -> None:
    assert open_store(StoreAddress(str(tmp_path))).url == str(tmp_path)
    with pytest.raises(ConfigError, match="which is local"):
        open_store(StoreAddress(str(tmp_path), {"key": "x"}))
