"""Units of mixtures: what they write is what a walk over positions finds, nothing lost, and every token accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.mix_support import (
    mix_job,
    mixture,
    packing,
    parent,
    rows_out,
    run,
    walked,
    written,
)
from tests.reading_support import LENGTH, lake_of
from tests.store_support import copy_store
from tokenlake import schema
from tokenlake.build.mixing import unit
from tokenlake.build.mixing.job import MixJob
from tokenlake.manifest import UnitRecord
from tokenlake.storage import Store, open_store

Row = dict[str, Any]
EVEN = {"plain": 0.5, "learned": 0.5}
TOKENS = {"texts": 0.6, "answers": 0.4}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


@pytest.fixture
def store(lake: Store, tmp_path: Any) -> Store:
    """A copy that a test writes to."""
    return open_store(str(copy_store(Path(lake.url), tmp_path / "store")))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps in a unit, and several row groups in its files."""
    monkeypatch.setattr(unit, "_STEP_TOKENS", 400)
    monkeypatch.setattr(unit, "_LEAST_ROWS", 4)
    monkeypatch.setattr(schema, "ROW_GROUP_TOKENS", 200)


def _sequences(store: Store, start: int, stop: int, **changes: Any) -> MixJob:
    parents = [parent(store, name) for name in EVEN]
    out = rows_out(store, parents[0], loss_mask=True)
    spec = mixture(store, parents, EVEN, **changes)
    return mix_job(store, parents, spec, start, stop, level="sequences", out=out)


def _documents(
    store: Store,
    start: int,
    stop: int,
    *,
    pack: Any = None,
    weights: dict[str, float] | None = None,
    **changes: Any,
) -> MixJob:
    weights = weights or TOKENS
    parents = [parent(store, name) for name in weights]
    masked = "answers" in weights
    whole = ("answers",) if masked else ()
    out = rows_out(store, parents[0], pack=pack, loss_mask=masked, whole=whole)
    return mix_job(store, parents, mixture(store, parents, weights, **changes), start, stop, out=out)


def test_sequences_are_passed_on_in_the_order_of_the_mixture(store: Store) -> None:
    job = _sequences(store, 37, 237)
    record = run(job)
    rows, expected = written(store, record).to_pylist(), walked(store, job)
    assert len(rows) == 200
    assert {name for name, _ in expected} == set(EVEN)
    for row, (name, stored) in zip(rows, expected, strict=True):
        for column in ("input_ids", "segment_lengths", "documents"):
            assert row[column] == stored[column]
        assert row["loss_mask"] == (stored["loss_mask"] if name == "learned" else _all_but_bos(stored, job))
    _check_record(store, job, record)


def _all_but_bos(stored: Row, job: MixJob) -> list[bool]:
    """What bears loss in a row whose dataset does not say."""
    mask: list[bool] = []
    for length, document in zip(stored["segment_lengths"], stored["documents"], strict=True):
        begins = document["start"] == 0 and stored["input_ids"][len(mask)] == job.out.prefix[0]
        mask += [not begins] + [True] * (length - 1)
    return mask + [False] * (LENGTH - len(mask))


def _check_record(store: Store, job: MixJob, record: UnitRecord) -> None:
    """The record says of the files what is in them, and of the sources what was drawn."""
    table = written(store, record)
    assert sum(part.rows for part in record.parts) == len(table)
    for part in record.parts:
        metadata = pq.ParquetFile(store.local_path(f"mixed/v1/{part.path}")).metadata
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        assert np.diff([*part.row_groups, part.rows]).tolist() == sizes
    drawn = [name for name, _ in walked(store, job)]
    assert {name: share.rows_read for name, share in record.shares.items()} == {
        name: drawn.count(name) for name in job.mixture.lengths
    }
    account = record.account
    account.check(job.out.seq_length)
    assert account.content_packed + account.bos + account.eos == sum(part.tokens for part in record.parts)


def test_documents_stay_what_they_are_where_they_are_not_packed(store: Store) -> None:
    job = _documents(store, 11, 191)
    record = run(job)
    rows, expected = written(store, record).to_pylist(), walked(store, job)
    assert len(rows) == 180
    for row, (name, stored) in zip(rows, expected, strict=True):
        assert {key: row[key] for key in ("input_ids", "file", "position")} == {
            key: stored[key] for key in ("input_ids", "file", "position")
        }
        everything = [False] + [True] * (len(stored["input_ids"]) - 1)
        assert row["loss_mask"] == (stored["loss_mask"] if name == "answers" else everything)
    _check_record(store, job, record)
    assert record.account.eos_existing == 0


def _segments(rows: list[Row]) -> list[tuple[tuple[int, int], int, list[int], list[bool]]]:
    """(file and position, start, ids, mask) of each segment, rows one after another."""
    found: list[Any] = []
    for row in rows:
        at = 0
        mask = row.get("loss_mask") or [True] * LENGTH
        for length, document in zip(row["segment_lengths"], row["documents"], strict=True):
            place = document["file"], document["position"]
            found.append(
                (place, document["start"], row["input_ids"][at : at + length], mask[at : at + length])
            )
            at += length
        assert not any(mask[at:]) or "loss_mask" not in row
    return found


def _packed_documents(rows: list[Row]) -> list[Any]:
    """(file and position, ids, mask) of each document of greedily packed rows, put together again."""
    found: list[Any] = []
    for place, start, ids, mask in _segments(rows):
        if start == 0:
            found.append((place, list(ids), list(mask)))
        else:
            assert found[-1][0] == place
            assert len(found[-1][1]) == start
            found[-1][1].extend(ids)
            found[-1][2].extend(mask)
    return found


def _expected_documents(store: Store, job: MixJob) -> list[Any]:
    """The same from the parents' rows, with the EOS that packing adds."""
    found: list[Any] = []
    for name, stored in walked(store, job):
        ids = stored["input_ids"]
        mask = stored.get("loss_mask") or [False] + [True] * (len(ids) - 1)
        if name not in job.out.whole or ids[-1] != job.out.eos_id:
            bears = mask[-1] if name in job.out.whole else True
            ids, mask = [*ids, job.out.eos_id], [*mask, bears]
        found.append(((stored["file"], stored["position"]), ids, mask))
    return found


@pytest.mark.parametrize("weights", [TOKENS, {"texts": 0.3, "left": 0.7}])
def test_documents_are_packed_without_a_token_lost(store: Store, weights: dict[str, float]) -> None:
    job = _documents(store, 3, 203, pack=packing(LENGTH), weights=weights)
    job = replace(job, out=replace(job.out, suffix=(), append_eos=True))
    if "left" in weights:
        job = replace(job, out=replace(job.out, loss_mask=False))
    record = run(job)
    rows = written(store, record).to_pylist()
    found, expected = _packed_documents(rows), _expected_documents(store, job)
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    if job.out.loss_mask:
        assert [each[2] for each in found] == [each[2] for each in expected]
    _check_record(store, job, record)
    assert record.account.slots == len(rows) * LENGTH
