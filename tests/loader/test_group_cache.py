"""Decoded row groups: kept while they fit, decoded once by whoever asks first, and
counted.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.reading.support import lake_of, rows_of
from tests.store.support import copy_store
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.reading import Decoded, batch_cache
from tokenlake.runtime.store import Store, open_store


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


def test_a_row_group_is_decoded_once_and_counted(lake: Store) -> None:
    cache, rows = batch_cache(1 << 20), rows_of(lake, "plain")
    batch = cache.read((rows, 3))
    assert batch.equals(rows.read(3))
    assert cache.read((rows, 3)) is batch
    cache.read((rows, 9))
    size = batch.get_total_buffer_size() + rows.read(9).get_total_buffer_size()
    assert cache.decoded == Decoded(hits=1, groups=2, rows=6 + 1, bytes=size)
    assert cache.groups.held == size


def test_the_row_groups_used_last_stay(lake: Store) -> None:
    rows = rows_of(lake, "plain")
    size = rows.read(0).get_total_buffer_size()
    cache = batch_cache(size * 5 // 2)  # two of them
    for group in (0, 1, 0, 2):  # 1 goes for 2
        cache.read((rows, group))
    assert cache.decoded.groups == 3
    cache.read((rows, 0))
    assert cache.decoded.groups == 3
    cache.read((rows, 1))
    assert cache.decoded.groups == 4
    assert cache.groups.held <= size * 5 // 2


def test_the_last_one_stays_however_large(lake: Store) -> None:
    cache, rows = batch_cache(0), rows_of(lake, "plain")
    for group in (0, 0, 1, 1, 0):
        cache.read((rows, group))
    assert (cache.decoded.hits, cache.decoded.groups) == (2, 3)
    cache.groups.invalidate()
    assert cache.groups.held == 0
    cache.read((rows, 0))
    assert cache.decoded.groups == 4
    with pytest.raises(ConfigError, match="a cache of None entries and -1 bytes"):
        batch_cache(-1)


def test_sources_do_not_take_each_others_row_groups(lake: Store) -> None:
    cache = batch_cache(1 << 20)
    plain, learned = rows_of(lake, "plain"), rows_of(lake, "learned")
    train, validation = (
        cache.read((plain, 0)),
        cache.read((rows_of(lake, "plain", "validation"), 0)),
    )
    assert not train.equals(validation)
    assert "loss_mask" in cache.read((learned, 0)).schema.names
    assert cache.read((plain, 0)) is train


def test_many_threads_decode_each_row_group_once(lake: Store) -> None:
    cache, rows = batch_cache(1 << 24), rows_of(lake, "texts")
    groups, together = len(rows.group_rows), Barrier(8, timeout=120)

    def read_all() -> list[int]:
        sizes: list[int] = []
        for group in range(groups):
            together.wait()  # all eight ask for the same at once
            sizes.append(cache.read((rows, group)).num_rows)
        return sizes

    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(read_all) for _ in range(8)]
    assert [future.result() for future in found] == [rows.group_rows.tolist()] * 8
    assert (cache.decoded.groups, cache.decoded.hits) == (groups, 7 * groups)


def test_a_failure_is_told_to_all_and_not_kept(lake: Store, tmp_path: Path) -> None:
    damaged = open_store(copy_store(Path(lake.url), tmp_path / "store"))
    cache, rows = batch_cache(1 << 20), rows_of(damaged, "plain")
    path = damaged.local_path(f"plain/v1/{rows.shard_of(0)[0].path}")
    away = path.rename(path.with_suffix(".away"))
    with ThreadPoolExecutor(4) as pool:
        failed = [pool.submit(cache.read, (rows, 0)) for _ in range(20)]
    assert all(isinstance(future.exception(), IntegrityError) for future in failed)
    assert cache.decoded.groups == 0
    away.rename(path)
    assert cache.read((rows, 0)).num_rows == 6
