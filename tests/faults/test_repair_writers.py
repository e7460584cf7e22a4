"""Repair where the writer is another by now: the same rows come out in other bytes.

The other writer is a real one: worker processes whose Parquet writers compress in
another way, as another release of pyarrow or zstd does, or name another release in the
footer.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integrity import conftest as repairing
from tests.integrity.support import build, damage, tree
from tests.store.support import settings, write_inputs
from tokenlake import Catalog, repair, verify
from tokenlake.etl import WorkerPool
from tokenlake.etl.integrity.rebuild import other_rows
from tokenlake.runtime import LogicalHasher, open_writer, tokens_schema
from tokenlake.runtime.store import (
    HashingFile,
    Layout,
    ShardEntry,
    open_store,
    shard_path,
)

_OTHER_WRITER = """
import pyarrow.parquet as pq

class Writer(pq.ParquetWriter):
    def __init__(self, *args, **options):
        super().__init__(*args, **{**options, "compression": "gzip", "compression_level": 9})

pq.ParquetWriter = Writer

from tokenlake.runtime.parquet import writer

writer._CREATED_BY = b"tokenlake version 0.9"
"""
SHARD, OWN = "data/train-00001-00.parquet", "data/train-00000-00.parquet"


lake = repairing.lake


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    """``small`` v1, written by the other writer."""
    root = tmp_path_factory.mktemp("writers")
    write_inputs(root)
    (root / "site").mkdir()
    (root / "site" / "sitecustomize.py").write_text(_OTHER_WRITER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join([str(root / "site"), os.environ.get("PYTHONPATH", "")]),
        )
        with WorkerPool(1) as other:
            build(settings(root, tokenizer_dir), other)
    return root


def test_the_same_rows_in_other_bytes_become_a_new_version(
    built: Path, lake: Path
) -> None:
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    before = tree(lake)
    report = repair(lake, "small@v1")
    assert report.new_version == 2 and not report.ok
    assert [(file.path, file.how) for file in report.files] == [(OWN, "new version")]
    after = tree(lake)
    assert {name: after[name] for name in before} == before
    store = open_store(lake)
    assert verify(store, "small", 2, deep=True).ok
    old, new = (Catalog(store).manifest("small", version) for version in (1, 2))
    assert (new.fingerprint, new.totals.rows, new.accounts, new.inputs) == (
        old.fingerprint,
        old.totals.rows,
        old.accounts,
        old.inputs,
    )
    assert [(one.path, one.logical) for one in new.files] == [
        (one.path, one.logical) for one in old.files
    ]
    differ = {
        a.unit
        for a, b in zip(old.files, new.files, strict=True)
        if a.sha256 != b.sha256
    }
    assert differ == {0}
    for path in (SHARD, "data/validation-00001-00.parquet"):
        assert (lake / "small/v1" / path).samefile(lake / "small/v2" / path)
    assert repair(lake, "small").ok and repair(lake, "small").files == ()


def test_a_new_version_is_made_once(lake: Path) -> None:
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    assert repair(lake, "small@v1").new_version == 2
    first = tree(lake)
    assert repair(lake, "small@v1").new_version == 2
    assert tree(lake) == first


def test_what_can_be_repaired_as_it_was_is_repaired_in_place(
    built: Path, lake: Path
) -> None:
    for path in (OWN, "README.md", "quarantine/00001.parquet", "ledger/00000.json"):
        damage(lake / "small/v1" / path, "truncate", Random(2))
    report = repair(lake, "small@v1")
    states = {file.path: file.how for file in report.files}
    assert states == {
        OWN: "new version",
        "README.md": "rendered",
        "quarantine/00001.parquet": "new version",
        "ledger/00000.json": "rebuilt",  # the shards that are well vouch for the others
    }
    assert [problem.path for problem in report.problems] == [
        OWN,
        "quarantine/00001.parquet",
    ]
    assert verify(open_store(lake), "small", 2, deep=True).ok


def test_a_new_version_that_was_begun_is_finished(lake: Path) -> None:
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    assert repair(lake, "small@v1").new_version == 2
    whole = tree(lake)
    for name in ("manifest.json", "README.md", "ledger/00000.json", SHARD):
        (lake / "small/v2" / name).unlink()
    (lake / "small/v2" / OWN).chmod(0o644)
    (lake / "small/v2" / OWN).write_bytes(b"half")
    assert repair(lake, "small@v1").new_version == 2
    assert tree(lake) == whole


def test_nothing_becomes_a_new_version_while_other_files_are_lost(
    built: Path, lake: Path
) -> None:
    damage(lake / "small/v1" / OWN, "flip", Random(1))
    damage(lake / "small/v1" / "data/train-00001-00.parquet", "flip", Random(1))
    pages = json.dumps({"text": "another page"}) + "\n"
    moved = lake.parent / "pages"
    moved.mkdir()
    (moved / "lake.jsonl").write_text(pages)
    before = tree(lake)
    report = repair(lake, "small@v1", overrides=[f"datasets.pages.data_files={moved}"])
    assert report.repaired == 0 and report.new_version is None
    assert tree(lake) == before


# Whether rows are the same, however they are cut into files


def _parts(root: Path, ids: list[list[int]], cuts: list[int]) -> list[ShardEntry]:
    """Write rows into files that end at `cuts`, in row groups of three."""
    store, layout, found = open_store(root), Layout("set", 1), list[ShardEntry]()
    schema = tokens_schema()
    for part, (first, last) in enumerate(
        zip([0, *cuts], [*cuts, len(ids)], strict=True)
    ):
        rows: dict[str, Any] = {"input_ids": ids[first:last]}
        rows |= {name: list(range(first, last)) for name in ("file", "position")}
        table, hasher, temp = (
            pa.table(rows, schema=schema),
            LogicalHasher(),
            store.temp("set/v1"),
        )
        hasher.update(table)
        with HashingFile(temp) as sink, open_writer(sink, schema) as writer:
            writer.write_table(table, row_group_size=3)
        path = shard_path("train", 0, part)
        store.publish(temp, layout.key(path), sink.sha256)
        found.append(
            ShardEntry(
                path=path,
                split="train",
                unit=0,
                part=part,
                bytes=sink.bytes,
                sha256=sink.sha256,
                rows=last - first,
                tokens=sum(map(len, ids[first:last])),
                documents=last - first,
                row_groups=tuple(range(0, last - first, 3)),
                logical=hasher.digest(),
            )
        )
    return found


@pytest.mark.parametrize("cuts", [[], [4], [1, 2, 11], [3, 9], [10]])
def test_rows_are_the_same_however_they_are_cut(
    tmp_path: Path, cuts: list[int]
) -> None:
    ids = [[number, number + 1][: 1 + number % 2] for number in range(12)]
    wanted = _parts(tmp_path / "a", ids, [5])
    built = _parts(tmp_path / "b", ids, cuts)
    store, layout = open_store(tmp_path / "b"), Layout("set", 1)
    assert other_rows(store, layout, wanted, built) == []
    lies = [
        wanted[0],
        replace(wanted[1], logical={**wanted[1].logical, "input_ids": "0" * 64}),
    ]
    (clause,) = other_rows(store, layout, lies, built)
    assert wanted[1].path in clause and "input_ids" in clause


def test_other_rows_are_told_apart(tmp_path: Path) -> None:
    ids = [[number] for number in range(12)]
    wanted = _parts(tmp_path / "a", ids, [5])
    store, layout = open_store(tmp_path / "b"), Layout("set", 1)
    built = _parts(tmp_path / "b", [*ids[:-1], [99]], [5])
    assert [
        wanted[1].path in clause for clause in other_rows(store, layout, wanted, built)
    ] == [True]
    fewer = _parts(tmp_path / "c", ids[:-1], [5])
    assert "11 rows" in other_rows(open_store(tmp_path / "c"), layout, wanted, fewer)[0]
    assert pq.read_table(tmp_path / "c" / layout.key(fewer[0].path)).num_rows == 5
