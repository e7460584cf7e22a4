"""A cache in memory never holds more than it may, and what it holds is what was used
last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlake as tl
from tests.seeds import promise
from tokenlake.base.cache import Entry
from tokenlake.errors import ConfigError

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 12)),
        st.tuples(st.just("get"), KEYS, st.just(0)),
        st.tuples(st.just("invalidate"), KEYS, st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 20), st.integers(0, 4))
def test_it_does_what_a_plain_model_does(
    steps: list[tuple[str, str, int]], most: int, entries: int
):
    cache = tl.MemoryCache(entries, most, size_of=len)
    model = OrderedDict[str, bytes]()
    for step, key, size in steps:
        if step == "get":
            found = model.get(key)
            assert cache.get(key) == (None if found is None else (found, None))
            if found is not None:
                model.move_to_end(key)
        else:
            model.pop(key, None)
            if step == "put":
                cache.put(key, bytes(size))
                if size <= most:
                    model[key] = bytes(size)
                while sum(map(len, model.values())) > most or len(model) > entries:
                    model.popitem(last=False)
            else:
                cache.invalidate(key)
        assert list(cache.kept) == list(model)
        assert cache.held == sum(map(len, model.values())) <= most


@promise(232)
def test_stats_tell_of_size_and_hits():
    cache = tl.MemoryCache(max_size=2)
    metadata = tl.CacheMetadata(source_hash="s")
    cache.put("a", {"data": "value"}, metadata)
    assert cache.get("a") == ({"data": "value"}, metadata)
    assert cache.get("b") is None
    assert cache.contains("a")
    stats = cache.stats
    assert (
        stats["size"],
        stats["max_size"],
        stats["hits"],
        stats["misses"],
        stats["hit_rate"],
    ) == (
        1,
        2,
        1,
        1,
        0.5,
    )
    cache.invalidate()
    assert not cache.contains("a")
    assert cache.stats["bytes"] == 0


def test_entries_expire():
    now = [100.0]
    cache = tl.MemoryCache(expiry_seconds=10, clock=lambda: now[0])
    cache.put("a", 1)
    cache.put("b", 2, expires=200)
    now[0] = 109.9
    assert cache.get("a") == (1, None)
    now[0] = 110
    assert (cache.contains("a"), cache.get("a"), cache.get("b")) == (
        False,
        None,
        (2, None),
    )
    assert cache.stats["size"] == 1


def test_threads_that_ask_at_once_compute_once():
    cache = tl.MemoryCache[str]()
    together, made, found = threading.Barrier(8, timeout=120), list[int](), list[int]()

    def make() -> Entry:
        made.append(1)
        return Entry(7)

    def ask() -> None:
        together.wait()
        found.append(cache.compute("key", make).value)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), found, cache.stats["hits"]) == (1, [7] * 8, 7)


def test_a_failure_is_not_kept():
    cache = tl.MemoryCache[str]()
    with pytest.raises(ZeroDivisionError):
        cache.compute("key", lambda: Entry(1 // 0))
    assert cache.compute("key", lambda: Entry(2)).value == 2


def test_bytes_are_those_of_buffers():
    cache, array = tl.MemoryCache(), np.zeros(1000, np.int32)
    cache.put("a", array)
    assert cache.held == 4000
    cache.put("a", {"a": array, "b": [array]})
    assert 8000 < cache.held < 8500


def test_a_negative_bound_is_an_error():
    with pytest.raises(ConfigError, match="expected 0 or more of each"):
        tl.MemoryCache(-1)
