"""A cache on disk: an entry is what was put, or a miss; whoever else writes, dies or
damages it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.seeds import promise
from tokenlake import DiskCache
from tokenlake.errors import ConfigError

ARROW: Any = pa
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
CODECS = ("none", "gzip", "lz4", "zstd")


@settings(max_examples=20)
@given(JSON | st.binary())
def test_values_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, value: Any
):
    cache = DiskCache(tmp_path_factory.getbasetemp() / "values")
    cache.put("key", value)
    entry = cache.get("key")
    assert entry is not None
    assert entry[0] == value
    assert type(entry[0]) is type(value)


@pytest.mark.parametrize("codec", CODECS)
@promise(157, 233)
def test_arrays_and_tables_come_back_as_they_were(tmp_path: Path, codec: Any):
    cache = tl.DiskCache(cache_dir=tmp_path, compression=codec)
    arrays = [
        np.arange(6).astype(kind).reshape(2, 3) for kind in ("<i4", ">f8", "?", "U3")
    ]
    for array in [*arrays, np.zeros((0, 3)), np.array(5), np.zeros((2, 2)).T]:
        cache.put("array", array)
        found = cache.get("array")
        assert found is not None
        assert (found[0].dtype, found[0].tolist()) == (array.dtype, array.tolist())
        assert found[0].flags.writeable
    row = {
        "text": "t",
        "input_ids": np.arange(4),
        "n": [1, {"a": None}],
        "mask": np.zeros(2, bool),
    }
    cache.put("row", row)
    found = cache.get("row")
    assert found is not None
    assert list(found[0]) == list(row)
    assert {
        k: v.tolist() if k in ("input_ids", "mask") else v for k, v in found[0].items()
    } == {
        **row,
        "input_ids": [0, 1, 2, 3],
        "mask": [False, False],
    }
    table = ARROW.table({"a": [[1], [2, 3], None], "b": ["x", None, "z"]})
    for each in (table, table.to_batches()[0]):
        cache.put("table", each)
        found = cache.get("table")
        assert found is not None
        assert type(found[0]) is type(each)
        assert found[0].equals(each)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ((1, 2), r"\$ is a tuple"),
        ({"a": {1: 2}}, r"\$\[0\] has the key 1"),
        ({1: 2}, r"\$ has the key 1"),
        ([object()], r"\$\[0\] is a object"),
        (np.array([object()]), "an array of object"),
        ({"a": np.float32(1)}, r"is a float32"),
    ],
)
def test_other_values_are_errors(tmp_path: Path, value: Any, problem: str):
    with pytest.raises(ConfigError, match=problem):
        DiskCache(tmp_path).put("key", value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_byte_and_every_cut_is_a_miss(tmp_path: Path, codec: Any):
    cache = DiskCache(tmp_path, codec)
    cache.put(
        "key", {"ids": np.arange(30), "text": "abc"}, tl.CacheMetadata(config_hash="c")
    )
    [path] = tmp_path.iterdir()
    data = path.read_bytes()
    spoilt = [
        data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :] for at in range(len(data))
    ]
    for bad in [*spoilt, *(data[:at] for at in range(0, len(data), 7)), data + b"x"]:
        path.write_bytes(bad)
        assert cache.get("key") is None
        assert not path.exists()  # removed, to be made anew
    path.write_bytes(data)
    assert cache.contains("key")
    # Another key's entry is none of this.
    path.rename(path.with_name("0" * 64 + ".entry"))
    assert not cache.contains("key")


@promise(158, 233)
def test_entries_expire_and_are_swept(tmp_path: Path):
    now = [1e9]
    cache = DiskCache(tmp_path, expiry_seconds=60, clock=lambda: now[0])
    cache.put("a", 1)
    cache.put("b", 2, expires=1e9 + 1000)
    now[0] += 59.9
    assert cache.get("a") == (1, None)
    now[0] += 0.1
    assert cache.contains("a") is False
    assert cache.get("b") == (2, None)
    now[0] += 100
    other = DiskCache(tmp_path, expiry_seconds=60, clock=lambda: now[0])
    # The first one of a process looks for what nobody asks for any more.
    other.put("c", 3)
    assert other.stats["size"] == 1


def test_an_expired_entry_that_cannot_be_removed_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(path: Path) -> None:
        raise PermissionError(path)

    now = [1e9]
    cache = DiskCache(tmp_path, expiry_seconds=60, clock=lambda: now[0])
    cache.put("a", 1)
    now[0] += 60
    monkeypatch.setattr(Path, "unlink", refused)
    assert cache.get("a") is None
    assert cache.contains("a") is False


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(0, 400)),
        max_size=25,
    ),
    st.integers(0, 1500),
)
def test_bytes_stay_below_the_limit_and_the_last_used_stay(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[bool, str, int]],
    most: int,
):
    folder, ticks = tmp_path_factory.mktemp("cache"), [1e9]
    cache = DiskCache(folder, max_bytes=most, clock=lambda: ticks[0])
    model: dict[str, int] = {}
    for put, key, size in steps:
        ticks[0] += 1
        if put:
            cache.put(key, bytes(size))
            written = entry_bytes(folder.parent, key, size)
            model.pop(key, None)
            if written <= most:
                model[key] = written
            while sum(model.values()) > most:
                del model[next(iter(model))]
        else:
            assert (cache.get(key) is not None) == (key in model)
            if key in model:
                model[key] = model.pop(key)
        assert cache.stats["bytes"] == sum(model.values()) <= most


def entry_bytes(folder: Path, key: str, size: int) -> int:
    plain = DiskCache(folder / "plain", clock=lambda: 1e9)
    plain.invalidate()
    plain.put(key, bytes(size))
    return plain.stats["bytes"]


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "below", max_bytes=100)
    cache.put("key", 1)
    assert cache.get("key") is None
    cache.invalidate()
    assert cache.stats["size"] == 0


def test_what_a_dead_process_left_is_swept(tmp_path: Path):
    for name, age in ((".part-old", 7200), (".part-new", 10)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    DiskCache(tmp_path).put("key", 1)
    assert sorted(
        path.name[:9] for path in tmp_path.iterdir() if path.name.startswith(".")
    ) == [".part-new"]


WRITER = """
import sys, numpy as np
from tokenlake import DiskCache
cache, number = DiskCache(sys.argv[1], "zstd", max_bytes=4_000_000), int(sys.argv[2])
print("ready", flush=True)
for turn in range(int(sys.argv[3])):
    key = str(turn % 5)
    cache.put(key, np.full(60_000 + number, number))
    found = cache.get(key)
    assert found is None or len(set(found[0][::1000].tolist())) == 1 and len(found[0]) == 60_000 + found[0][0]
"""


def writer(folder: Path, number: int, turns: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@promise(233)
def test_several_processes_share_a_folder_and_one_that_is_killed_leaves_nothing_bad(
    tmp_path: Path,
):
    endless, others = (
        writer(tmp_path, 0, 10**9),
        [writer(tmp_path, number, 25) for number in (1, 2)],
    )
    assert endless.stdout is not None
    assert endless.stdout.readline() == "ready\n"
    assert [other.wait() for other in others] == [0, 0]
    endless.send_signal(signal.SIGKILL)
    endless.communicate()
    for other in others:
        other.communicate()
    cache = DiskCache(tmp_path)
    for key in "01234":
        found = cache.get(key)
        assert found is not None
        assert len(found[0]) == 60_000 + found[0][0]
        assert len(set(found[0].tolist())) == 1


def test_options_are_checked(tmp_path: Path):
    with pytest.raises(
        ConfigError,
        match="compression: got 'snappy', must be one of none, gzip, lz4, zstd",
    ):
        DiskCache(tmp_path, "snappy")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected 0 or more"):
        DiskCache(tmp_path, expiry_seconds=-1)
    with pytest.raises(ConfigError, match="expected JSON values in `extra`"):
        DiskCache(tmp_path).put("key", 1, tl.CacheMetadata(extra={"a": object()}))
