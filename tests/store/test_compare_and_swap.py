"""Compare-and-swap: of writers that saw the same one succeeds, and nobody ever reads half of anything."""

from __future__ import annotations

import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.test_races import race
from tokenlake.errors import StoreError, VersionConflictError
from tokenlake.store.address import open_store
from tokenlake.store.base import Store

KEY = "d/tags/x.json"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "lake")


def everything(store: Store) -> list[str]:
    return sorted(str(path) for path in Path(store.url).rglob("*") if not path.is_dir())


def test_create_replace_and_say_it_again(store: Store) -> None:
    assert store.swap(KEY, b"one", None) == "created"
    assert store.swap(KEY, b"one", None) == "equal"
    before = store.local_path(KEY).stat().st_ino
    with store.open(KEY) as opened:
        assert store.swap(KEY, b"two", b"one") == "replaced"
        assert opened.read() == b"one"
    assert store.local_path(KEY).stat().st_ino != before
    assert store.swap(KEY, b"two", b"one") == "equal"
    assert store.swap(KEY, b"", b"two") == "replaced"
    assert store.swap(KEY, b"three", b"") == "replaced"
    assert store.read(KEY) == b"three"
    assert stat.S_IMODE(store.local_path(KEY).stat().st_mode) == 0o444
    assert everything(store) == [str(store.local_path(KEY))]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, b"a", b"b", b"c"])), max_size=6
    )
)
def test_it_is_the_swap_of_a_variable(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bytes, bytes | None]]
) -> None:
    store, held = open_store(tmp_path_factory.mktemp("swap")), None
    for data, expected in steps:
        if held == data:
            wanted = "equal"
        elif held != expected:
            wanted = "conflict"
        else:
            wanted = "created" if held is None else "replaced"
        try:
            assert store.swap(KEY, data, expected) == wanted
        except VersionConflictError:
            assert wanted == "conflict"
        held = held if wanted == "conflict" else data
        assert (store.read(KEY) if store.exists(KEY) else None) == held


COUNT_UP = """
for _ in range(arguments):
    while True:
        seen = store.read("d/tags/n") if store.exists("d/tags/n") else None
        try:
            outcome = store.swap("d/tags/n", str(int(seen or b"0") + 1).encode(), seen)
        except VersionConflictError:
            continue
        if outcome != "equal":  # somebody else counted to the same number
            break
print(store.read("d/tags/n").decode())
"""


def test_processes_that_count_lose_no_count(tmp_path: Path) -> None:
    assert max(race(tmp_path, COUNT_UP, [10, 10, 10])) == 30
    assert everything(open_store(tmp_path)) == [str(tmp_path / "d/tags/n")]


def test_of_several_repairs_one_replaces(store: Store) -> None:
    bad, good = b"as it was c0mmitted", b"as it was committed"
    store.put_new(KEY, bad)
    temps = [store.temp("d/v1") for _ in range(8)]
    for temp in temps:
        temp.write_bytes(good)
    seen, whole = hashlib.sha256(bad).hexdigest(), hashlib.sha256(good).hexdigest()
    with store.open(KEY) as opened, ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda temp: store.replace(temp, KEY, whole, seen), temps))
        assert opened.read() == bad  # readers keep what they opened
    assert sorted(outcomes) == ["equal"] * 7 + ["replaced"]
    assert store.leftovers("") == []


def test_links_and_folders_are_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"one")
    store.local_path("d/tags").mkdir(parents=True)
    (Path(store.url) / "d/tags/link").symlink_to(tmp_path / "outside")
    (Path(store.url) / "d/tags/folder").mkdir()
    for key in ("d/tags/link", "d/tags/folder"):
        with pytest.raises(StoreError):
            store.swap(key, b"two", b"one")
    assert (tmp_path / "outside").read_bytes() == b"one"


def test_what_is_read_back_must_be_what_was_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.swap(KEY, b"one", None)
    monkeypatch.setattr("tokenlake.store.local.hash_regular", lambda _: "0" * 64)
    with pytest.raises(StoreError, match="read back is not what was written"):
        store.swap(KEY, b"two", b"one")
    assert store.read(KEY) == b"one"
    assert everything(store) == [str(store.local_path(KEY))]
