"""Row groups are decoded ahead of need, once, and kept no longer than they are
needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.loader.support import ids
from tokenlake.errors import IntegrityError
from tokenlake.runtime.loader import DecodedAhead
from tokenlake.runtime.reading import StoredRows


def groups_of(
    ds: tl.Dataset, *, threads: int, reach: int = 4, times: int | None = None
) -> DecodedAhead:
    decode = partial(StoredRows.decoded, loss_mask=False)
    return DecodedAhead(
        [ds.rows], decode, times=times, max_bytes=1 << 20, reach=reach, threads=threads
    )


def until(decoded: DecodedAhead, count: int) -> int:
    """Wait until so many row groups are decoded, or for a while; return how many
    are.
    """
    end = time.monotonic() + 120
    while decoded.decoded.groups < count and time.monotonic() < end:
        time.sleep(0.005)
    return decoded.decoded.groups


def test_a_step_has_what_it_asked_for(ds: tl.Dataset):
    groups = groups_of(ds, threads=0)
    for step, wanted in enumerate(([3, 0], [0, 5], [], [3])):
        groups.plan(step, np.array(wanted, np.int64))
        found = groups.take(step, wanted)
        assert list(found) == wanted
        for number, group in found.items():
            stored = ds.rows.packed(number, loss_mask=False)
            assert (group.ids == stored.ids).all()
    groups.close()


def test_threads_read_ahead_as_far_as_they_may_and_no_further(ds: tl.Dataset):
    groups = groups_of(ds, threads=1, reach=3)
    for step in range(10):
        groups.plan(step, np.array([step], np.int64))
    groups.take(0, [0])
    assert until(groups, 4) == 4  # steps 0 to 3
    time.sleep(0.05)
    assert groups.decoded.groups == 4
    groups.take(1, [1])
    assert until(groups, 5) == 5
    groups.close()


def test_a_run_that_begins_late_reads_ahead_from_there(ds: tl.Dataset):
    groups = groups_of(ds, threads=1, reach=2)
    for step in range(1000, 1005):
        groups.plan(step, np.array([step - 1000], np.int64))
    groups.take(1000, [0])
    assert until(groups, 3) == 3
    groups.close()


def test_what_fits_is_decoded_once_for_all_epochs(ds: tl.Dataset):
    loader = tl.DataLoader(ds, 8, epochs=3, columns=["input_ids"])
    assert sum(map(len, ids(loader))) == 3 * len(ds)
    assert loader.decoded.groups == len(ds.rows.group_rows)


def test_what_fits_is_let_go_once_all_of_its_rows_have_come(ds: tl.Dataset):
    rows = int(ds.rows.group_rows[0])
    for times in (1, 2):
        groups = groups_of(ds, threads=0, times=times)
        for step, (count, decoded) in enumerate(
            [(times * rows - 1, 1), (1, 1), (1, 2)]
        ):
            groups.plan(step, np.zeros(count, np.int64))
            groups.take(step, [0])
            assert groups.decoded.groups == decoded
        groups.close()


def test_what_does_not_fit_is_let_go_and_decoded_again(ds: tl.Dataset):
    one = ds.rows.packed(0, loss_mask=False).nbytes
    for workers in (0, 1, 3):
        loader = tl.DataLoader(
            ds,
            8,
            lanes=1,
            window=1,
            epochs=3,
            columns=["input_ids"],
            cache_bytes=4 * one,
            workers=workers,
        )
        assert sum(map(len, ids(loader))) == 3 * len(ds)
        # Once in an epoch; the last of one may be among the first of the next, and
        # threads may come too early: then once for them and once for who takes it.
        once = 3 * len(ds.rows.group_rows)
        assert once - 4 <= loader.decoded.groups <= (2 * once if workers else once)


def test_a_row_group_of_a_mixture_is_kept_while_its_epoch_lasts(ds: tl.Dataset):
    """A rarely drawn source gives a row of a row group every hundred steps. The row
    group stays although no planned step needs it, until its last row has come.
    """
    rows = int(ds.rows.group_rows[0])
    one = ds.rows.packed(0, loss_mask=False).nbytes
    decode = partial(StoredRows.decoded, loss_mask=False)
    # Twice the dataset does not fit, but six row groups do.
    groups = DecodedAhead(
        [ds.rows, ds.rows], decode, times=None, max_bytes=8 * one, reach=4, threads=0
    )
    rare = len(ds.rows.group_rows)
    step = 0
    decoded = 0
    for _ in range(2):
        for row in range(rows):
            groups.plan(step, np.array([rare], np.int64))
            groups.take(step, [rare])
            decoded += row == 0
            step += 1
            for other in range(1, 6):
                groups.plan(step, np.array([other], np.int64))
                before = groups.decoded.groups
                groups.take(step, [other])
                decoded += groups.decoded.groups - before
                step += 1
            assert groups.decoded.groups == decoded
    groups.close()


def test_idle_row_groups_of_a_mixture_need_no_more_than_their_memory(ds: tl.Dataset):
    one = max(
        ds.rows.packed(group, loss_mask=False).nbytes
        for group in range(len(ds.rows.group_rows))
    )
    decode = partial(StoredRows.decoded, loss_mask=False)
    groups = DecodedAhead(
        [ds.rows, ds.rows], decode, times=None, max_bytes=4 * one, reach=4, threads=0
    )
    # Three of four row groups may be idle: the one used longest ago is dropped.
    wanted = [0, 1, 2, 3, 1, 0]
    for step, number in enumerate(wanted):
        groups.plan(step, np.array([number], np.int64))
        groups.take(step, [number])
    assert groups.decoded.groups == 5
    groups.close()


def test_no_memory_at_all_is_slow_and_right(sources: dict[str, tl.Dataset]):
    mixture = tl.Mixture(sources, {"code": 0.5, "web": 0.5}, rows=64)
    expected = np.concatenate(ids(tl.DataLoader(mixture, 8, interleave=1)))
    for workers in (0, 2):
        got = np.concatenate(
            ids(tl.DataLoader(mixture, 8, cache_bytes=0, workers=workers))
        )
        assert (got == expected).all()


def test_row_groups_that_are_decoded_repeatedly_are_a_warning(
    ds: tl.Dataset, monkeypatch: pytest.MonkeyPatch
):
    module = "tokenlake.runtime.loader.read_ahead"
    monkeypatch.setattr(f"{module}._LEAST_JUDGED_BYTES", 1)
    monkeypatch.setattr(f"{module}._STEPS_PER_JUDGEMENT", 1)
    options: dict[str, Any] = {"epochs": 8, "window": "all", "workers": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(ids(tl.DataLoader(ds, 4, cache_bytes=0, **options)))
    (warning,) = [each for each in caught if "the loader decoded" in str(each.message)]
    assert issubclass(warning.category, RuntimeWarning)
    assert "cache_bytes=0 cannot hold the row groups" in str(warning.message)
    # Warnings are errors where memory suffices.
    assert len(ids(tl.DataLoader(ds, 4, **options)))
    assert len(ids(tl.DataLoader(ds, 4, cache_bytes="1MiB", **options)))


def test_a_size_as_text_is_a_number_of_bytes(ds: tl.Dataset):
    by_text = tl.DataLoader(ds, 4, cache_bytes="16KiB")
    by_number = tl.DataLoader(ds, 4, cache_bytes=16 << 10)
    assert by_text.plan.options.max_bytes == by_number.plan.options.max_bytes == 16384
    assert by_text.get_state() == by_number.get_state()


def test_damage_that_a_thread_meets_is_raised_where_it_is_needed(
    ds: tl.Dataset, tmp_path: Path
):
    import shutil

    shutil.copytree(ds.store.url, tmp_path / "store")
    damaged = tl.open(tmp_path / "store", "plain", split="train")
    path = tmp_path / "store" / "plain" / "v1" / damaged.rows.shard_of(12)[0].path
    path.chmod(0o644)
    path.write_bytes(b"PAR1" + bytes(path.stat().st_size - 8) + b"PAR1")
    groups = groups_of(damaged, threads=2, reach=9)
    for step in range(3):
        groups.plan(step, np.array([step * 12], np.int64))
    assert list(groups.take(0, [0])) == [0]
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"data/train-"):
            groups.take(1, [12])
    groups.close()


def test_a_process_that_ends_in_the_middle_ends_well(ds: tl.Dataset):
    """Threads inside of Arrow or numpy when the interpreter goes down could abort
    it.
    """
    script = (
        "import tokenlake as tl\n"
        f"ds = tl.open({ds.store.url!r}, 'plain', split='train')\n"
        "kept = [iter(tl.DataLoader(ds, 8, epochs=None, workers=4, prefetch=4)) for _ in range(3)]\n"
        "print([next(one)['input_ids'].shape for one in kept][0])\n"
        "next(iter(tl.DataLoader(ds, 8, epochs=None, workers=4)))\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(tl.__file__).parents[1])}
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env=env,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "(8, 32)\n", "")
