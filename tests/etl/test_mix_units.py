"""Units of mixtures: they write what a walk over positions finds, lose nothing, and
account for every token.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.etl.mix_plan_support import taken
from tests.etl.mix_units_support import (
    mix_job,
    mixture,
    opened,
    packing,
    parent,
    rows_out,
    run,
    stream_of,
    walked,
    written,
)
from tests.reading.support import LENGTH, lake_of
from tests.store.support import copy_store
from tokenlake.errors import AccountError, IntegrityError
from tokenlake.etl import InProcessPool, WorkerPool
from tokenlake.etl.job import MixJob
from tokenlake.etl.unit import OpenedParents, check_written, mix_steps
from tokenlake.runtime import schema
from tokenlake.runtime.mixing import EpochOrder, MixtureStream, SourceMixture, constant
from tokenlake.runtime.store import Account, Store, UnitRecord, open_store

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
    monkeypatch.setattr("tokenlake.etl.unit.mix._STEP_TOKENS", 400)
    monkeypatch.setattr("tokenlake.etl.unit.mix._LEAST_ROWS", 4)
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
    return mix_job(
        store,
        parents,
        mixture(store, parents, weights, **changes),
        start,
        stop,
        out=out,
    )


def test_sequences_are_passed_on_in_the_order_of_the_mixture(store: Store) -> None:
    job = _sequences(store, 37, 237)
    record = run(job)
    rows, expected = written(store, record).to_pylist(), walked(store, job)
    assert len(rows) == 200
    assert {name for name, _ in expected} == set(EVEN)
    for row, (name, stored) in zip(rows, expected, strict=True):
        for column in ("input_ids", "segment_lengths", "documents"):
            assert row[column] == stored[column]
        assert row["loss_mask"] == (
            stored["loss_mask"] if name == "learned" else _all_but_bos(stored, job)
        )
    _check_record(store, job, record)


def _all_but_bos(stored: Row, job: MixJob) -> list[bool]:
    """What bears loss in a row whose dataset does not say."""
    mask: list[bool] = []
    for length, document in zip(
        stored["segment_lengths"], stored["documents"], strict=True
    ):
        begins = (
            document["start"] == 0
            and stored["input_ids"][len(mask)] == job.out.prefix[0]
        )
        mask += [not begins] + [True] * (length - 1)
    return mask + [False] * (LENGTH - len(mask))


def _check_record(store: Store, job: MixJob, record: UnitRecord) -> None:
    """The record says of the files what is in them, and of the sources what was
    drawn.
    """
    table = written(store, record)
    assert sum(part.rows for part in record.parts) == len(table)
    for part in record.parts:
        metadata = pq.ParquetFile(store.local_path(f"mixed/v1/{part.path}")).metadata
        sizes = [
            metadata.row_group(index).num_rows
            for index in range(metadata.num_row_groups)
        ]
        assert np.diff([*part.row_groups, part.rows]).tolist() == sizes
    drawn = [name for name, _ in walked(store, job)]
    assert {name: share.rows_read for name, share in record.shares.items()} == {
        name: drawn.count(name) for name in job.mixture.lengths
    }
    account = record.account
    account.check(job.out.width)
    assert account.content_packed + account.bos + account.eos == sum(
        part.tokens for part in record.parts
    )


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
        assert row["loss_mask"] == (
            stored["loss_mask"] if name == "answers" else everything
        )
    _check_record(store, job, record)
    assert record.account.eos_existing == 0


def _segments(
    rows: list[Row],
) -> list[tuple[tuple[int, int], int, list[int], list[bool]]]:
    """(file and position, start, ids, mask) of each segment, rows one after another."""
    found: list[Any] = []
    for row in rows:
        at = 0
        mask = row.get("loss_mask") or [True] * LENGTH
        for length, document in zip(
            row["segment_lengths"], row["documents"], strict=True
        ):
            place = document["file"], document["position"]
            found.append(
                (
                    place,
                    document["start"],
                    row["input_ids"][at : at + length],
                    mask[at : at + length],
                )
            )
            at += length
        assert not any(mask[at:]) or "loss_mask" not in row
    return found


def _packed_documents(rows: list[Row]) -> list[Any]:
    """(file and position, ids, mask) of each document of greedily packed rows, put
    together again.
    """
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
def test_documents_are_packed_without_a_token_lost(
    store: Store, weights: dict[str, float]
) -> None:
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


@pytest.mark.parametrize("kind", ["sequences", "documents"])
def test_any_cut_into_units_writes_the_same_rows(store: Store, kind: str) -> None:
    make = _sequences if kind == "sequences" else _documents
    whole = written(store, run(replace(make(store, 0, 150), dataset="whole")), "whole")
    cuts = [0, 1, 40, 97, 150]
    records = [
        run(replace(make(store, start, stop), unit=number))
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]
    assert [record.unit for record in records] == [0, 1, 2, 3]
    parts = pa.concat_tables(written(store, record) for record in records)
    assert parts.equals(whole)
    assert Account.total(record.account for record in records).rows_read == 150


def test_a_token_that_was_read_and_not_written_is_an_error(store: Store) -> None:
    for record in (run(_documents(store, 0, 40)), run(_sequences(store, 0, 40))):
        length = LENGTH if record.account.slots else None
        check_written(record.account, record.parts, length, where="here")
        (part,) = record.parts
        with pytest.raises(
            AccountError,
            match=rf"here: {part.tokens} ids were read .* but {part.tokens - 1} were",
        ):
            check_written(
                record.account,
                (replace(part, tokens=part.tokens - 1),),
                length,
                where="here",
            )
        with pytest.raises(AccountError, match="does not balance"):
            check_written(
                replace(record.account, kept=39), record.parts, length, where="here"
            )


def test_steps_change_nothing_in_packed_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _documents(store, 5, 250, pack=packing(LENGTH))
    small = run(replace(job, dataset="small"))
    monkeypatch.setattr("tokenlake.etl.unit.mix._STEP_TOKENS", 1 << 23)
    large = run(replace(job, dataset="large"))
    assert [part.sha256 for part in small.parts] == [
        part.sha256 for part in large.parts
    ]


@pytest.mark.parametrize("strategy", ["pool", "first_fit", "best_fit"])
def test_every_strategy_keeps_every_token_of_every_document(
    store: Store, strategy: str
) -> None:
    pack = packing(LENGTH, strategy=strategy, window_tokens=900, shuffle_seed=3)
    job = _documents(store, 0, 160, pack=pack)
    record = run(job)
    found = sorted(
        (place, start, ids, mask)
        for place, start, ids, mask in _segments(written(store, record).to_pylist())
    )
    expected = sorted(_expected_documents(store, job))
    # Segments of a document lie in order of their start; one that is drawn twice comes
    # twice.
    assert sum(len(ids) for _, _, ids, _ in found) == sum(
        len(ids) for _, ids, _ in expected
    )
    begun = sorted(place for place, start, _, _ in found if start == 0)
    assert begun == [place for place, _, _ in expected]
    tokens = {
        (place, start + at): token
        for place, start, ids, _ in found
        for at, token in enumerate(ids)
    }
    assert tokens == {
        (place, at): token for place, ids, _ in expected for at, token in enumerate(ids)
    }
    _check_record(store, job, record)


def test_a_restarted_source_comes_in_another_order_each_time(store: Store) -> None:
    parents = [parent(store, "texts"), parent(store, "few", "validation", "answers")]
    rows = opened(store, parents[1]).rows
    out = rows_out(store, parents[0], loss_mask=True, whole=("few",))
    weights = {"texts": 0.3, "few": 0.7}
    job = mix_job(
        store, parents, mixture(store, parents, weights, lanes=1), 0, 5 * rows, out=out
    )
    record = run(job)
    files = {
        (each["file"], each["position"])
        for name, each in walked(store, job)
        if name == "few"
    }
    table = written(store, record).to_pylist()
    seen = [
        each["position"] for each in table if (each["file"], each["position"]) in files
    ]
    assert [each["input_ids"] for each in table] == [
        each["input_ids"] for _, each in walked(store, job)
    ]
    assert record.shares["few"].rows_read == len(seen) >= 3 * rows
    assert seen[:rows] != seen[rows : 2 * rows]
    assert sorted(seen[:rows]) == sorted(seen[rows : 2 * rows])


def test_the_same_unit_is_the_same_bytes_in_any_worker(store: Store) -> None:
    job = _documents(store, 20, 120, pack=packing(LENGTH))
    pool = InProcessPool()
    once, again = run(job, pool=pool), run(job, pool=pool)
    with WorkerPool(1) as workers:
        told: list[Row] = []
        elsewhere = UnitRecord.from_bytes(workers.run(job, told.append).encode())
    assert once == again == elsewhere
    assert sum(each.get("documents", 0) for each in told) == 100
    assert {"load", "mix", "pack", "save"} <= set(told[-1])


def test_progress_adds_up_to_what_was_read(store: Store) -> None:
    told: list[Row] = []
    job = _documents(store, 0, 200)
    record = run(job, told)
    assert len(told) > 3
    assert sum(each["documents"] for each in told) == 200
    assert sum(each["tokens"] for each in told) == sum(
        part.tokens for part in record.parts
    )
    expected = 0
    for name, share in record.shares.items():
        total = opened(store, parent(store, name)).manifest.splits["train"]
        expected += share.rows_read * total.bytes // total.rows
    assert sum(each["bytes"] for each in told) == expected


def test_a_row_group_is_decoded_once_for_each_time_a_lane_goes_through_it(
    store: Store,
) -> None:
    told: list[Row] = []
    job = _sequences(store, 0, 150, lanes=1)
    run(job, told)
    counts = taken(stream_of(store, job), 0, 150)
    assert all(rows for _, rows in counts)
    groups = sum(held for held, _ in counts)
    largest = max(int(opened(store, each).group_rows.max()) for each in job.parents)
    assert 0 < told[-1]["decoded_rows"] <= groups * largest


@pytest.mark.parametrize(
    ("kind", "victim"), [("sequences", "learned"), ("documents", "texts")]
)
def test_damage_in_a_parent_is_named_and_nothing_is_written(
    store: Store, kind: str, victim: str
) -> None:
    make = _sequences if kind == "sequences" else _documents
    shard, _ = opened(store, parent(store, victim)).shard_of(0)
    path = store.local_path(f"{victim}/v1/{shard.path}")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 4
    path.write_bytes(data)
    with pytest.raises(
        IntegrityError,
        match=rf"{victim}@v1: {shard.path}: row group 0 .*tokenlake verify {victim}@v1",
    ):
        run(make(store, 0, 200))
    assert not list(store.list("mixed"))
    assert not list(Path(store.url).rglob("*.tmp*"))
    path.unlink()
    with pytest.raises(IntegrityError, match=f"{victim}@v1: {shard.path} is missing"):
        run(make(store, 0, 200))


def test_another_version_in_a_parents_place_is_refused(store: Store) -> None:
    job = _sequences(store, 0, 8)
    first, second = job.parents
    other = replace(job, parents=(first, replace(second, sha256="0" * 64)))
    with pytest.raises(
        IntegrityError, match="source 'learned': the manifest of learned@v1 has sha256"
    ):
        run(other)
    spec = replace(job.mixture, lengths={**job.mixture.lengths, "plain": 7})
    with pytest.raises(IntegrityError, match=r"source 'plain' has .* rows; expected 7"):
        run(replace(job, mixture=spec))


def test_parents_stay_open_between_jobs_until_another_version_is_asked_for(
    store: Store,
) -> None:
    parents = OpenedParents()
    given = parent(store, "plain")
    rows = parents.open(store, given)
    assert parents.open(store, given) is rows
    assert parents.open(store, given, "validation").manifest is rows.manifest
    with pytest.raises(IntegrityError):
        parents.open(store, replace(given, sha256="1" * 64))


@pytest.mark.parametrize(
    ("lanes", "weights"), [(16, (1, 1, 1)), (8, (80, 15, 5)), (8, (998, 1, 1))]
)
def test_a_unit_of_the_planned_size_decodes_hardly_more_than_it_writes(
    lanes: int, weights: tuple[int, ...]
) -> None:
    """12 row groups of each source for each lane: of these the first and the last
    are cut by the unit's ends.
    """
    groups = np.full(1000, 40)
    total = sum(weights)
    shares = {f"s{at}": weight / total for at, weight in enumerate(weights)}
    mixed = SourceMixture(
        dict.fromkeys(shares, 40_000), constant(shares), lanes=lanes, batch_size=64
    )
    stream = MixtureStream(
        mixed, [EpochOrder(groups, lanes=lanes, seed=at) for at in range(len(shares))]
    )
    size = 12 * lanes * len(shares) * 40
    held, decoded, most = set[tuple[int, int]](), 0, 0
    for step in mix_steps(stream, 2 * size, 3 * size, 640):
        used = set(zip(step.source.tolist(), step.group.tolist(), strict=True))
        decoded += 40 * len(used - held)
        held |= used
        most = max(most, len(held))
        held -= set(step.done)
    assert decoded <= 1.2 * size
    # A window's two row groups, and the next one's.
    assert most <= 3 * lanes * len(shares)
