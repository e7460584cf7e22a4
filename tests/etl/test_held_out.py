"""Held-out documents: chosen by identity once, and never in training again, whatever
is added, by whatever road.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.etl.outputs_support import (
    Built,
    Config,
    build_here,
    notes,
    settings,
    write_jsonl,
)
from tokenlake import Catalog, load_config, repair
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import ConfigError
from tokenlake.etl import build_dataset, planner
from tokenlake.etl.sources import RecordLimit, list_inputs, read_rows, split_files
from tokenlake.etl.sources.record_limit import positions_of
from tokenlake.etl.unit import held_out_draws, split_indices
from tokenlake.runtime.store import open_store


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Config:
    """Three files of 60 records, in several units each, 25 of which are held out."""
    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", notes(60, ord(name) * 100))
    return settings(tmp_path, tokenizer_dir, tmp_path / "in", eval=25) | {
        "source": {"unit_size": 2000}
    }


def identities(built: Built, split: str) -> set[tuple[int, int]]:
    table = built.table(split)
    return set(
        zip(table["file"].to_pylist(), table["position"].to_pylist(), strict=True)
    )


def test_the_draws_are_pinned() -> None:
    """A change here brings documents that were held out back to training: never
    change it.
    """
    drawn = held_out_draws(np.full(4, -5), np.arange(4, dtype=np.int64))
    assert drawn.tolist() == GOLDEN
    assert (
        split_indices(np.full(4, -5), np.arange(4), [0.5, 0.5], int(np.sort(drawn)[1]))
        .tolist()
        .count(2)
        == 1
    )


GOLDEN = [8608703731373513, 3951709007922571, 355149274553096, 150796963235872]


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(0, 2**62), unique=True, min_size=1, max_size=50),
    st.integers(0, 2**53),
)
def test_what_is_left_is_divided_as_if_nothing_had_been_held_out(
    file: int, positions: list[int], below: int
) -> None:
    files, where = np.full(len(positions), file), np.array(positions, np.int64)
    plain, held = (
        split_indices(files, where, [0.7, 0.3], limit) for limit in (None, below)
    )
    assert (held == np.where(held_out_draws(files, where) < below, 2, plain)).all()


def test_what_is_held_out_once_is_held_out_whatever_is_added(
    config: Config, tmp_path: Path
) -> None:
    first = build_here(config)
    held = identities(first, "eval_s")
    assert len(held) == 25 and first.manifest.held_out == {"s": "eval_s"}
    assert len(identities(first, "train")) == 155
    write_jsonl(tmp_path / "in" / "0.jsonl", notes(400, 5000))
    second = build_here(config)
    assert second.manifest.version == 2
    assert held < identities(second, "eval_s") and held.isdisjoint(
        identities(second, "train")
    )
    # Of what was added a like share: 400 * 25 / 180 is 56.
    assert 40 < len(identities(second, "eval_s")) - 25 < 72
    # What was there is the same bytes, and taken over.
    old = {shard.sha256 for shard in first.manifest.files}
    assert len(old & {shard.sha256 for shard in second.manifest.files}) > 0.8 * len(old)
    # A larger number holds more out, never other documents; a smaller one is refused.
    config["datasets"][0]["eval"] = 60
    third = build_here(config)
    assert identities(second, "eval_s") <= identities(third, "eval_s")
    assert len(identities(third, "eval_s")) >= 60
    config["datasets"][0]["eval"] = 59
    with pytest.raises(
        ConfigError,
        match=r"datasets.s.eval: 59, but set@v3 holds out 60, and .*expected 60 or more",
    ):
        planner.plan(config)


def test_a_version_is_repaired_with_the_threshold_of_then(config: Config) -> None:
    first = build_here(config)
    shard = first.files("eval_s")[0]
    whole = shard.read_bytes()
    config["datasets"][0]["eval"] = 90
    build_here(config)
    shard.chmod(0o644)
    shard.write_bytes(whole[:-9] + b"x" + whole[-8:])
    # A version is not earlier than itself: that fewer documents are asked for is no
    # error of the plan.
    config["datasets"][0]["eval"] = 10
    (refused,) = repair(
        config["save"]["output_dir"], "set@v1", config=config, workers=1
    ).files
    assert refused.how == "not repaired"
    assert "sources.s.eval.count is 10; expected 25" in refused.note
    report = repair(config["save"]["output_dir"], "set@v1", workers=1)
    assert [file.path for file in report.files] == [
        str(shard.relative_to(first.folder))
    ] and report.ok
    assert shard.read_bytes() == whole


def test_mixtures_and_packing_leave_held_out_documents_out_of_training(
    config: Config, tmp_path: Path
) -> None:
    tokens = build_here(config | {"name": "tokens"})
    held = identities(tokens, "eval_s")

    def stored(name: str, **changes: Any) -> Built:
        datasets = [{"name": "s", "dataset": "tokens@v1", **changes.pop("dataset", {})}]
        return build_here(
            {
                "name": name,
                "datasets": datasets,
                "save": config["save"],
                "pack": {"enabled": True, "seq_length": 32},
            }
            | changes
        )

    def pieces(built: Built, split: str) -> set[tuple[int, int]]:
        return {
            (p["file"], p["position"])
            for row in built.rows(split)
            for p in row["documents"]
        }

    mixed = stored("mixed", mix={"stop_strategy": "all_exhausted"})
    assert held.isdisjoint(pieces(mixed, "train"))
    packed = stored("packed")
    assert pieces(packed, "eval_s") == held and held.isdisjoint(pieces(packed, "train"))
    assert packed.manifest.held_out == {"s": "eval_s"} and mixed.manifest.held_out == {}
    # Alone, for who trains on a mixture; and shuffled as the text packed at once would
    # have been.
    alone = stored("alone", dataset={"split": "eval_s"})
    assert (
        set(alone.manifest.splits)
        == {"eval_s"}
        == set(alone.manifest.held_out.values())
    )
    assert (
        alone.table("eval_s").equals(packed.table("eval_s"))
        and pieces(alone, "eval_s") == held
    )
    strategy = {"enabled": True, "seq_length": 32, "strategy": "best_fit"}
    shuffled = [
        stored("shuffled", pack=strategy),
        build_here(config | {"name": "at-once", "pack": strategy}),
    ]
    assert shuffled[0].table("eval_s").equals(shuffled[1].table("eval_s"))
    with pytest.raises(
        ConfigError, match=r"has no rows in a split 'eval_t'; it has eval_s"
    ):
        stored("absent", dataset={"split": "eval_t"})
    with pytest.raises(
        ConfigError,
        match=r"datasets.s.split: the documents of 'eval_s' were held out of training",
    ):
        stored(
            "wrong", dataset={"split": "eval_s"}, mix={"stop_strategy": "all_exhausted"}
        )


def test_the_tokens_of_a_mixture_keep_what_they_hold_out(
    config: Config, tmp_path: Path
) -> None:
    config |= {
        "mix": {"stop_strategy": "all_exhausted"},
        "pack": {"enabled": True, "seq_length": 32},
    }
    build_dataset(config, workers=1)
    write_jsonl(tmp_path / "in" / "0.jsonl", notes(90, 5000))
    build_dataset(config, workers=1)
    catalog = Catalog(open_store(config["save"]["output_dir"]))
    one, two = (
        Built(
            Path(config["save"]["output_dir"]) / f"set.s.tokens/v{v}",
            catalog.manifest("set.s.tokens", v),
        )
        for v in (1, 2)
    )
    assert identities(one, "eval_s") < identities(two, "eval_s")


def test_the_records_of_every_format_are_found_where_readers_find_them(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    records = [{"text": f"text {i}", "n": i} for i in range(50)]
    lines = "".join(
        ("" if i % 7 else "\n") + json.dumps(record) + "\r\n"
        for i, record in enumerate(records)
    )
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "c.json").write_text(json.dumps(records))
    (folder / "d.csv").write_text(
        "text,n\n" + "".join(f"text {i},{i}\n" for i in range(50))
    )
    table = pa.Table.from_pylist(records)
    pq.write_table(table, folder / "e.parquet", row_group_size=8)
    with (
        pa.OSFile(str(folder / "f.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=9)
    for dataset in ({}, {"where": "TRY_CAST(n AS BIGINT) % 3 = 0"}, {"num_rows": 137}):
        whole = load_config(settings(tmp_path, tokenizer_dir, folder, **dataset))
        source = resolve_source(whole, whole.datasets[0])
        files = list_inputs(source)
        limit = RecordLimit(source, source.num_rows or 10**9, 300)
        for file in files:
            limit.take(file)
        for parts in limit.ranges if source.num_rows else split_files(files, 300):
            if not parts:
                continue
            found = np.concatenate(list(positions_of(parts, source)))
            read = [
                batch.positions for part in parts for batch in read_rows(part, source)
            ]
            assert found.tolist() == np.concatenate(read).tolist(), (
                parts[0].file.path,
                dataset,
            )


def test_what_is_left_out_is_not_counted(config: Config, tmp_path: Path) -> None:
    """`where` and takedowns make no hole in the set; the shape of the configuration
    is checked before any work.
    """
    config["datasets"][0] |= {"where": "id % 2 = 0"}
    gone = identities(build_here(config | {"name": "all"}), "eval_s")
    assert len(gone) == 25
    pq.write_table(
        pa.table(
            {
                "file": [f for f, _ in sorted(gone)[:5]],
                "position": [p for _, p in sorted(gone)[:5]],
            }
        ),
        tmp_path / "gone.parquet",
    )
    config["datasets"][0]["exclude"] = str(tmp_path / "gone.parquet")
    assert len(identities(build_here(config), "eval_s")) == 25


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            {"eval": 180},
            r"datasets.s.eval: 180, but the source has 180 records; expected fewer",
        ),
        (
            {"name": "x" * 40},
            r"its split would be called 'eval_x+', of 45 letters; expected at most 32",
        ),
        (
            {"splits": {"train": 0.5, "eval_s": 0.5}},
            r"its split 'eval_s' is called like one of datasets.s.splits",
        ),
        ({"eval": 0}, "eval: got 0, must be greater than 0"),
    ],
)
def test_what_cannot_be_held_out_is_refused(
    config: Config, dataset: Any, message: str
) -> None:
    config["datasets"][0] |= dataset
    with pytest.raises(ConfigError, match=message):
        planner.plan(config)
