"""`num_shards`: exactly so many files, whatever the inputs, the workers and the
interruptions.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import build_here, notes, settings, tree, write_jsonl
from tokenlake import load_config
from tokenlake.cli.app import main
from tokenlake.config.resolve import resolve
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset, make_plan
from tokenlake.etl.plan import cut_into_files as cut
from tokenlake.etl.plan import estimate, files_of_sources, total
from tokenlake.etl.sources import FileRange, InputFile

# Cutting


def whole(path: str, size: int, *, lines: bool) -> FileRange:
    file = InputFile(
        source="s",
        path=path,
        url=f"/{path}",
        size=size,
        token="sha256:00",
        stat=(0, 0, 0),
        format="jsonl",
        compression=None if lines else "gzip",
        file_id=0,
    )
    return FileRange(file=file, start=0, stop=size, weight=size)


def source(splits: int = 1) -> Any:
    names = tuple(f"s{i}" for i in range(splits))
    return SimpleNamespace(
        name="s", split_names=names, num_rows=None, storage_options={}
    )


def knots(*sizes: int) -> list[list[FileRange]]:
    return [[whole(f"{i}.gz", size, lines=False)] for i, size in enumerate(sizes)]


@given(
    st.lists(st.tuples(st.integers(0, 500), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_every_byte_is_in_one_unit_in_order_and_the_files_add_up(sizes, files):
    parts = [
        [whole(f"{i}", size, lines=lines)] for i, (size, lines) in enumerate(sizes)
    ]
    found = cut(source(), parts, files)
    assert sum(number for _, number in found) == files
    assert min(number for _, number in found) >= 1
    ranges = [part for group, _ in found for part in group]
    assert [part.file.path for part in ranges] == sorted(
        (p.file.path for p in ranges), key=int
    )
    for (size, lines), (one,) in zip(sizes, parts, strict=True):
        mine = [(part.start, part.stop) for part in ranges if part.file == one.file]
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == size
        assert lines or len(mine) == 1
        assert all(part.weight == part.stop - part.start for part in ranges)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(1, 50))
def test_lines_are_cut_into_equal_parts(sizes, files):
    parts = [[whole(f"{i}", size, lines=True)] for i, size in enumerate(sizes)]
    found = cut(source(), parts, files)
    weights = [sum(part.weight for part in group) for group, _ in found]
    if sum(sizes) >= files:
        assert [number for _, number in found] == [1] * files
        assert max(weights) - min(weights) <= 1


@pytest.mark.parametrize(
    ("sizes", "files", "expected"),
    [
        ([90], 4, [(1, 4)]),
        ([90, 90, 90], 2, [(1, 1), (2, 1)]),
        ([90, 90, 90], 3, [(1, 1), (1, 1), (1, 1)]),
        ([90, 90, 90], 10, [(1, 3), (1, 3), (1, 4)]),
        ([10, 10, 980], 4, [(2, 1), (1, 3)]),
        ([0, 0], 3, [(2, 3)]),
    ],
)
def test_what_cannot_be_cut_is_dealt(sizes, files, expected):
    found = cut(source(), knots(*sizes), files)
    assert sum(number for _, number in found) == files
    assert [len(group) for group, _ in found] == [count for count, _ in expected]
    assert [number for _, number in found] == [number for _, number in expected]


def test_a_range_that_a_limit_of_rows_ends_is_not_cut():
    limited = replace(whole("a", 900, lines=True), rows=5)
    assert [number for _, number in cut(source(), [[limited]], 3)] == [3]


def test_more_files_at_a_time_than_can_be_open_are_an_error():
    with pytest.raises(ConfigError, match="400 files for each of 2 splits at a time"):
        cut(source(2), knots(90), 400)


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.one_of(st.none(), st.integers(1, 9))),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 30),
)
def test_the_files_of_the_whole_are_shared_by_weight(found, more):
    own = [number for _, number in found]
    least = sum(number or 1 for number in own)
    count = least + (more if None in own else 0)
    build: Any = SimpleNamespace(
        sources=[SimpleNamespace(num_shards=number) for number in own], num_shards=count
    )
    shares = files_of_sources(
        build, [[[SimpleNamespace(weight=weight)]] for weight, _ in found]
    )  # type: ignore[list-item]
    assert sum(share or 0 for share in shares) == count
    assert all(
        share == number
        for share, number in zip(shares, own, strict=True)
        if number is not None
    )
    free = [
        (weight, share)
        for (weight, number), share in zip(found, shares, strict=True)
        if number is None
    ]
    assert all(share is not None and share >= 1 for _, share in free)
    assert [share for _, share in sorted(free)] == sorted(
        share or 0 for _, share in free
    )


# Building


def ids(built: Any, split: str = "train") -> list[tuple[int, list[int]]]:
    """(position, ids) of all rows, sorted."""
    return sorted((row["position"], row["input_ids"]) for row in built.rows(split))


def write_inputs(root: Path, kind: str) -> Path:
    """120 notes in one file of lines, three, one that cannot be cut, or one with row
    groups.
    """
    folder = root / "in"
    if kind == "three":
        for part in range(3):
            write_jsonl(folder / f"{part}.jsonl", notes(40, 40 * part))
    elif kind == "parquet":
        folder.mkdir()
        pq.write_table(
            pa.Table.from_pylist(notes(120)), folder / "a.parquet", row_group_size=25
        )
    else:
        path = write_jsonl(folder / "a.jsonl", notes(120))
        if kind == "gzip":
            (folder / "a.jsonl.gz").write_bytes(
                gzip.compress(path.read_bytes(), mtime=0)
            )
            path.unlink()
    return folder


@pytest.mark.parametrize(
    ("kind", "files", "units", "packed"),
    [
        ("lines", 7, 7, True),
        ("three", 2, 2, False),
        ("three", 10, 10, False),
        ("gzip", 4, 1, True),
        ("gzip", 4, 1, False),
        ("parquet", 3, 3, True),
        ("parquet", 9, 5, False),
    ],
)
def test_there_are_exactly_so_many_files_and_no_document_is_lost(
    tmp_path, tokenizer_dir, kind, files, units, packed
):
    config = settings(tmp_path, tokenizer_dir, write_inputs(tmp_path, kind))
    config["pack"] = (
        {"enabled": packed, "seq_length": 16} if packed else {"enabled": False}
    )
    plain = build_here(config)
    config["save"]["num_shards"] = files
    built = build_here(config)
    assert len(built.files()) == files
    assert len({shard.unit for shard in built.manifest.files}) == units
    account, before = built.manifest.account, plain.manifest.account
    assert (account.documents, account.tokens, account.rows_read) == (
        120,
        before.tokens,
        120,
    )
    if packed:
        assert (
            account.content_packed + account.eos == before.content_packed + before.eos
        )
    else:
        assert ids(built) == ids(plain)
        assert min(built.sizes()) > 0
        assert max(built.sizes()) <= 3 * min(built.sizes())


def test_documents_of_one_reader_are_dealt_one_by_one(tmp_path, tokenizer_dir):
    config = settings(
        tmp_path,
        tokenizer_dir,
        write_inputs(tmp_path, "gzip"),
        additional_fields=["id"],
    )
    config["save"]["num_shards"] = 7
    built = build_here(config)
    dealt = [pq.read_table(path)["id"].to_pylist() for path in built.files()]
    assert dealt == [list(range(first, 120, 7)) for first in range(7)]


@pytest.mark.parametrize("kind", ["lines", "gzip"])
def test_files_without_rows_are_parquet_that_everybody_reads(
    tmp_path, tokenizer_dir, kind
):
    folder = write_inputs(tmp_path, kind)
    rows = notes(3)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (path,) = folder.iterdir()
    path.write_bytes(gzip.compress(text) if kind == "gzip" else text)
    config = settings(tmp_path, tokenizer_dir, folder, additional_fields=["id"])
    config["save"]["num_shards"] = 20
    built = build_here(config)
    assert sorted(built.sizes()) == [0] * 17 + [1] * 3
    names = [str(path) for path in built.files()]
    assert duckdb.sql(f"select count(*) from read_parquet({names})").fetchall() == [
        (3,)
    ]
    assert pl.read_parquet(built.folder / "data").height == 3
    assert sorted(built.table()["id"].to_pylist()) == [0, 1, 2]
    assert all(pq.read_schema(path).equals(built.table().schema) for path in names)


def test_each_split_has_so_many_files(tmp_path, tokenizer_dir):
    config = settings(tmp_path, tokenizer_dir, write_inputs(tmp_path, "three"))
    config["source"] = {"splits": {"train": 0.8, "test": 0.2}}
    config["save"]["num_shards"] = 4
    built = build_here(config)
    assert Counter(shard.split for shard in built.manifest.files) == {
        "train": 4,
        "test": 4,
    }
    assert sum(built.sizes()) + sum(built.sizes("test")) == 120


def test_a_file_is_not_ended_by_its_size(tmp_path, tokenizer_dir, monkeypatch):
    monkeypatch.setattr("tokenlake.etl.unit.sink.group_tokens", lambda files: 64)
    config = settings(tmp_path, tokenizer_dir, write_inputs(tmp_path, "lines"))
    config["save"] |= {"num_shards": 2, "max_shard_size": 1}
    assert len(build_here(config).files()) == 2
    del config["save"]["num_shards"]
    assert len(build_here(config).files()) > 20


def test_several_sources_share_the_number_or_have_their_own(tmp_path, tokenizer_dir):
    write_jsonl(tmp_path / "small.jsonl", notes(10))
    write_jsonl(tmp_path / "large.jsonl", notes(90))
    config = settings(tmp_path, tokenizer_dir, tmp_path / "small.jsonl")
    config["datasets"].append(
        {"name": "t", "data_files": str(tmp_path / "large.jsonl")}
    )
    config["save"]["num_shards"] = 10

    def files_each() -> Counter[str]:
        plan = make_plan(resolve(load_config(config)))
        return Counter(
            {
                s.name: sum(u.files or 0 for u in plan.units if u.source == s.name)
                for s in plan.build.sources
            }
        )

    assert files_each() == {"s": 2, "t": 8}
    config["datasets"][0]["num_shards"] = 6
    assert files_each() == {"s": 6, "t": 4}
    built = build_here(config)
    assert len(built.files()) == 10
    assert [shard.unit for shard in built.manifest.files] == list(range(10))
    del config["save"]["num_shards"]
    assert files_each() == {"s": 6, "t": 0}


@pytest.mark.parametrize(
    ("whole_number", "own", "match"),
    [
        (1, (None, None), "save.num_shards: 1, but the datasets need at least 2"),
        (
            3,
            (3, None),
            "need at least 4: their own num_shards come to 3, and each of the 1",
        ),
        (3, (3, 3), "save.num_shards: 3, but the datasets need exactly 6"),
    ],
)
def test_numbers_that_contradict_each_other_are_errors(
    tmp_path, whole_number, own, match
):
    config = settings(tmp_path, tmp_path, "a.jsonl")
    config["datasets"].append({"name": "t", "data_files": "b.jsonl"})
    for dataset, number in zip(config["datasets"], own, strict=True):
        dataset["num_shards"] = number
    config["save"]["num_shards"] = whole_number
    with pytest.raises(ConfigError, match=match):
        resolve(load_config(config))


def test_the_plan_shows_the_number_and_who_has_to_deal(tmp_path, tokenizer_dir, capsys):
    config = settings(tmp_path, tokenizer_dir, write_inputs(tmp_path, "gzip"))
    config["save"]["num_shards"] = 4
    config["source"] = {"splits": {"train": 0.5, "test": 0.5}}
    plan = make_plan(resolve(load_config(config)))
    assert total(estimate(plan)).files == 8
    assert plan.notes == (
        "s: its input cannot be divided into 4 files; 1 worker at most read it and distribute its documents",
    )
    (tmp_path / "set.yaml").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path / "set.yaml")]) == 0
    assert "in 8 files" in capsys.readouterr().out


def test_it_is_identity_only_where_it_is_set(tmp_path, tokenizer_dir):
    config = settings(tmp_path, tokenizer_dir, write_inputs(tmp_path, "lines"))
    plain = make_plan(resolve(load_config(config)))
    config["save"]["num_shards"] = 1
    one = make_plan(resolve(load_config(config)))
    config["save"]["num_shards"] = 2
    two = make_plan(resolve(load_config(config)))
    assert len({plain.fingerprint, one.fingerprint, two.fingerprint}) == 3


def test_workers_change_no_byte(tmp_path, tokenizer_dir):
    config = settings(
        tmp_path,
        tokenizer_dir,
        write_inputs(tmp_path, "gzip"),
        additional_fields=["id"],
    )
    write_jsonl(tmp_path / "more.jsonl", notes(60))
    config["datasets"].append({"name": "t", "data_files": str(tmp_path / "more.jsonl")})
    config["save"]["num_shards"] = 5
    here = build_here(
        {**config, "save": config["save"] | {"output_dir": str(tmp_path / "here")}}
    )
    assert tree(Path(build_dataset(config, workers=2).path)) == tree(here.folder)
