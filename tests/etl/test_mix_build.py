"""Mixtures and repacking as whole builds: through configurations, sessions and real
worker processes.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.etl.outputs_support import kill_after_a_unit
from tests.etl.outputs_support import tree as tree_of
from tests.store.support import copy_store
from tokenlake import Catalog, Manifest, load_config, repair, verify
from tokenlake.cli.app import main
from tokenlake.config import first_steps, last_step
from tokenlake.errors import AccountError, ConfigError, IntegrityError
from tokenlake.etl import (
    BuildSession,
    Event,
    UnitFinished,
    WorkerPool,
    build_dataset,
    commit,
    open_stream,
    planner,
    run_pending,
)
from tokenlake.etl.plan import Plan
from tokenlake.etl.tokenizers import Decoder
from tokenlake.runtime.store import Layout, UnitRecord, open_store, seal

Config = dict[str, Any]
SOURCES = {"code": 300, "text": 200, "rare": 20}
WEIGHTS = {"code": 0.5, "text": 0.4, "rare": 0.1}
MIX = {
    "weights": WEIGHTS,
    "total_rows": 600,
    "lanes": 2,
    "unit_rows": 200,
    "batch_size": 8,
    "block_size": 20,
}


def raw(root: Path, tokenizer: Path, **sections: Any) -> Config:
    """Three sources of text that are tokenized, mixed and packed."""
    datasets = [{"name": name, "data_files": str(root / name)} for name in SOURCES]
    return {
        "name": "mixed",
        "datasets": datasets,
        "default_tokenizer": str(tokenizer),
        "mix": MIX,
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(root / "store")},
        **sections,
    }


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path, pool: WorkerPool
) -> Path:
    """A store with the tokens of the three sources, in two splits, and packed rows
    of two of them.
    """
    root = tmp_path_factory.mktemp("lake")
    for name, count in SOURCES.items():
        (root / name).mkdir()
        texts = (
            f"{name} {number}: " + f"{name} of the river " * (number % 9)
            for number in range(count)
        )
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (root / name / "a.jsonl").write_text(lines)
    splits = {"splits": {"train": 0.9, "validation": 0.1}}
    for step in first_steps(
        load_config(raw(root, tokenizer_dir, source=splits))
    ).values():
        build(step, pool)
    for name in ("code", "text"):
        again = {
            "name": f"{name}.rows",
            "datasets": [{"dataset": f"mixed.{name}.tokens"}],
        }
        build(
            {
                **again,
                "pack": {"enabled": True, "seq_length": 64},
                "save": {"output_dir": str(root / "store")},
            },
            pool,
        )
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    """A copy that a test writes to."""
    copy_store(built / "store", tmp_path / "store")
    return tmp_path


def build(config: Any, pool: WorkerPool) -> Manifest:
    with_events = BuildSession.open(config)
    run_pending(with_events, pool)
    return with_events.commit()


def documents(
    root: Path, name: str = "mixed", pack: int | None = 64, **mix: Any
) -> Config:
    """A mixture of the stored tokens."""
    return {
        "name": name,
        "datasets": [
            {"name": source, "dataset": f"mixed.{source}.tokens"} for source in SOURCES
        ],
        "mix": {**MIX, **mix},
        "pack": {"enabled": True, "seq_length": pack} if pack else {},
        "save": {"output_dir": str(root / "store")},
    }


def sequences(root: Path, **mix: Any) -> Config:
    """A mixture of the stored packed rows."""
    weights = {"code": 0.7, "text": 0.3}
    return {
        "name": "rows",
        "datasets": [
            {"name": source, "dataset": f"{source}.rows"} for source in weights
        ],
        "mix": {**MIX, "weights": weights, **mix},
        "save": {"output_dir": str(root / "store")},
    }


def table(root: Path, manifest: Manifest, split: str = "train") -> pa.Table:
    folder = root / "store" / manifest.dataset / f"v{manifest.version}"
    return pa.concat_tables(
        [pq.read_table(folder / f.path) for f in manifest.files if f.split == split]
    )


def tree(root: Path, manifest: Manifest) -> dict[str, str]:
    """Path -> hash of every file of a version but those of its runs."""
    return tree_of(root / "store" / manifest.dataset / f"v{manifest.version}")


def problems(root: Path, manifest: Manifest) -> tuple[Any, ...]:
    store = open_store(str(root / "store"))
    return verify(store, manifest.dataset, manifest.version, deep=True).problems


def mix_plan(config: Config) -> Plan:
    plan = planner.plan(config)
    assert plan.parents
    return plan


# What is built


def test_documents_are_mixed_and_packed_with_every_token_in_the_account(
    root: Path, pool: WorkerPool
) -> None:
    config = documents(root)
    manifest = build(config, pool)
    assert problems(root, manifest) == ()
    mixture, account = manifest.mixture, manifest.account
    assert mixture is not None
    assert (
        account.documents
        == sum(one.drawn_rows for one in mixture.sources.values())
        == 600
    )
    assert (
        account.slots
        == account.content_packed + account.bos + account.eos + account.pad
    )
    rows: list[Any] = table(root, manifest)["documents"].to_pylist()
    found = Counter(
        (piece["file"], piece["position"])
        for row in rows
        for piece in row
        if not piece["start"]
    )
    assert found == Counter(expected_documents(root, config))
    store = open_store(str(root / "store"))
    parents = [Catalog(store).manifest(f"mixed.{name}.tokens", 1) for name in SOURCES]
    assert [(parent.dataset, parent.sha256) for parent in manifest.parents] == [
        (parent.dataset, parent.sha256) for parent in parents
    ]
    assert (
        {entry.source for entry in manifest.inputs}
        == set(manifest.tokenizer)
        == set(SOURCES)
    )
    ids = table(root, manifest)["input_ids"][0].as_py()
    assert "of the river" in Decoder.of(store, manifest, "code").text(ids)
    assert list(manifest.accounts) == list(SOURCES)
    assert set(manifest.config) == {"build", "mix", "sources"}


def expected_documents(root: Path, config: Config) -> list[tuple[int, int]]:
    """(file, position) of each row of the mixture, one by one, by the order of the
    plan.
    """
    plan = mix_plan(config)
    assert plan.spec is not None
    stored = [table(root, parent.manifest) for parent in plan.parents]
    stream = open_stream(
        plan.spec, {parent.name: parent.group_rows for parent in plan.parents}
    )
    rows = stream.rows(0, plan.spec.order.rows)
    first = [
        np.concatenate([[0], np.cumsum(parent.group_rows)]) for parent in plan.parents
    ]
    found: list[tuple[int, int]] = []
    for source, group, row in zip(rows.source, rows.group, rows.row, strict=True):
        at = int(first[source][group] + row)
        found.append(
            (stored[source]["file"][at].as_py(), stored[source]["position"][at].as_py())
        )
    return found


def test_unpacked_documents_come_one_by_one_in_the_order_of_the_plan(
    root: Path, pool: WorkerPool
) -> None:
    config = documents(root, pack=None, total_rows=350)
    manifest = build(config, pool)
    assert (manifest.kind, problems(root, manifest)) == ("tokens", ())
    rows = table(root, manifest)
    there = list(
        zip(rows["file"].to_pylist(), rows["position"].to_pylist(), strict=True)
    )
    assert there == expected_documents(root, config)


def test_until_all_sources_are_exhausted_every_document_comes_once(
    root: Path, pool: WorkerPool
) -> None:
    manifest = build(
        documents(root, total_rows=None, stop_strategy="all_exhausted"), pool
    )
    assert problems(root, manifest) == ()
    catalog = Catalog(open_store(str(root / "store")))
    parents = [catalog.manifest(f"mixed.{name}.tokens", 1) for name in SOURCES]
    stored = [
        row
        for parent in parents
        for row in table(root, parent).select(["file", "position"]).to_pylist()
    ]
    rows: list[Any] = table(root, manifest)["documents"].to_pylist()
    found = [
        (piece["file"], piece["position"])
        for row in rows
        for piece in row
        if not piece["start"]
    ]
    assert sorted(found) == sorted((row["file"], row["position"]) for row in stored)
    assert manifest.mixture is not None
    for parent, one in zip(parents, manifest.mixture.sources.values(), strict=True):
        assert one.drawn_tokens == one.tokens == parent.splits["train"].tokens
        assert (
            one.full_epochs,
            one.partial_rows,
            one.partial_tokens,
            one.unread_rows,
        ) == (1, 0, 0, 0)


def test_sequences_are_mixed_as_they_are(root: Path, pool: WorkerPool) -> None:
    manifest = build(sequences(root, total_rows=250), pool)
    assert (manifest.kind, manifest.seq_length, problems(root, manifest)) == (
        "packed",
        64,
        (),
    )
    stored = {
        tuple(row["input_ids"]): name
        for name in ("code", "text")
        for row in table(
            root, Catalog(open_store(str(root / "store"))).manifest(f"{name}.rows", 1)
        ).to_pylist()
    }
    found = Counter(
        stored[tuple(row or ())]
        for row in table(root, manifest)["input_ids"].to_pylist()
    )
    assert manifest.mixture is not None
    assert found == {
        name: one.drawn_rows for name, one in manifest.mixture.sources.items()
    }
    assert set(found) == {"code", "text"}


def test_text_is_tokenized_once_and_then_mixed(
    built: Path, tmp_path: Path, tokenizer_dir: Path, pool: WorkerPool
) -> None:
    config = raw(built, tokenizer_dir, save={"output_dir": str(tmp_path / "store")})
    result = build_dataset(config, pool=pool)
    assert problems(tmp_path, result.manifest) == ()
    assert [parent.dataset for parent in result.manifest.parents] == [
        f"mixed.{name}.tokens" for name in SOURCES
    ]
    stored = {name: f"mixed.{name}.tokens@v1" for name in SOURCES}
    plan = mix_plan(
        last_step(load_config(config), stored).model_dump(
            exclude_none=True, exclude_defaults=True
        )
    )
    assert plan.fingerprint == result.manifest.fingerprint
    again = build_dataset(config, pool=pool)
    assert (again.status, again.version) == ("exists", 1)
    assert [path.name for path in sorted((tmp_path / "store").iterdir())] == sorted(
        ["mixed", *(f"mixed.{name}.tokens" for name in SOURCES)]
    )


def test_a_renamed_mixture_finds_the_tokens_that_are_there(
    built: Path,
    tmp_path: Path,
    tokenizer_dir: Path,
    pool: WorkerPool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By what they hold: nothing is tokenized again, by a run, and `plan` says so
    beforehand.
    """
    store = tmp_path / "store"
    exports = [
        {
            "name": name,
            "data_files": str(built / name),
            "save_path": str(tmp_path / "flat" / name),
        }
        for name in SOURCES
    ]
    config = raw(built, tokenizer_dir, save={"output_dir": str(store)})
    first = build_dataset(config, pool=pool)
    renamed = {**config, "name": "renamed", "datasets": exports}
    (tmp_path / "renamed.yaml").write_text(json.dumps(renamed))
    assert main(["plan", str(tmp_path / "renamed.yaml"), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {
        step["source"]: step["version"] for step in planned["steps"]
    } == dict.fromkeys(SOURCES, 1)
    assert planned["mixture"]["version"] is None

    for status in ("built", "exists"):
        events: list[Event] = []
        result = build_dataset(renamed, pool=pool, on_event=events.append)
        assert (result.dataset, result.status) == ("renamed", status)
        assert not [
            event
            for event in events
            if isinstance(event, UnitFinished) and event.source in SOURCES
        ]
        assert sorted(path.name for path in (tmp_path / "flat").iterdir()) == sorted(
            SOURCES
        )
    assert [parent.dataset for parent in result.manifest.parents] == [
        f"mixed.{name}.tokens" for name in SOURCES
    ]
    assert result.manifest.fingerprint == first.manifest.fingerprint
    assert [path.name for path in sorted(store.iterdir())] == sorted(
        ["mixed", "renamed", *(f"mixed.{name}.tokens" for name in SOURCES)]
    )
    # What is damaged is made again from where it came, whatever its name is.
    shard = store / "renamed" / "v1" / result.manifest.files[0].path
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-9])
    assert repair(open_store(str(store)), "renamed@v1").ok
    # A source that changed is tokenized, under the name of its own configuration.
    other = {
        **renamed,
        "default_tokenizer": config["default_tokenizer"],
        "datasets": [dict(one) for one in exports],
    }
    other["datasets"][2] |= {"where": "length(text) > 20", "save_path": None}
    changed = build_dataset({**other, "name": "other"}, pool=pool)
    assert [parent.dataset for parent in changed.manifest.parents] == [
        "mixed.code.tokens",
        "mixed.text.tokens",
        "other.rare.tokens",
    ]


def move_config(config: Config, folder: Path) -> Config:
    """Leave the name to the configuration's file, which has another one in another
    folder.
    """
    return {key: value for key, value in config.items() if key != "name"}


def move_data(config: Config, folder: Path) -> Config:
    """Read equal files below another folder."""
    for dataset in config["datasets"]:
        target = folder / "elsewhere" / dataset["name"]
        shutil.copytree(dataset["data_files"], target)
        dataset["data_files"] = str(target)
    return config


def use_globs(config: Config, folder: Path) -> Config:
    """Name the same files by a pattern."""
    for dataset in config["datasets"]:
        dataset["data_files"] += "/*.jsonl"
    return config


def copy_tokenizer(config: Config, folder: Path) -> Config:
    """Use equal files of the tokenizer in another folder."""
    shutil.copytree(config["default_tokenizer"], folder / "copied")
    return {**config, "default_tokenizer": str(folder / "copied")}


def rename_input(config: Config, folder: Path) -> Config:
    """Give one input file another name, which the rows of its documents record."""
    move_data(config, folder)
    moved = Path(config["datasets"][0]["data_files"])
    (moved / "a.jsonl").rename(moved / "b.jsonl")
    return config


@pytest.mark.parametrize(
    ("change", "tokenized"),
    [
        (move_config, set[str]()),
        (move_data, set[str]()),
        (use_globs, set[str]()),
        (copy_tokenizer, set[str]()),
        (rename_input, {"code"}),
    ],
)
def test_sources_of_a_mixture_are_found_by_their_content(
    change: Any,
    tokenized: set[str],
    root: Path,
    built: Path,
    tokenizer_dir: Path,
    pool: WorkerPool,
) -> None:
    """`root` has the tokens of a configuration named `mixed`; the one that is built
    has another name.
    """
    splits = {"splits": {"train": 0.9, "validation": 0.1}}
    config = raw(
        built,
        tokenizer_dir,
        name="other",
        source=splits,
        save={"output_dir": str(root / "store")},
    )
    (root / "folder").mkdir()
    file = root / "folder" / "other.yaml"
    file.write_text(json.dumps(change(config, root)))
    events: list[Event] = []
    result = build_dataset(file, pool=pool, on_event=events.append)
    finished = {event.source for event in events if isinstance(event, UnitFinished)}
    assert result.dataset == "other"
    assert finished & SOURCES.keys() == tokenized
    assert [parent.dataset for parent in result.manifest.parents] == [
        f"other.{name}.tokens" if name in tokenized else f"mixed.{name}.tokens"
        for name in SOURCES
    ]


def test_stored_tokens_are_packed_again_to_the_rows_that_packing_the_text_gives(
    built: Path, tmp_path: Path, tokenizer_dir: Path, pool: WorkerPool
) -> None:
    copy_store(built / "store", tmp_path / "store")
    splits = {"splits": {"train": 0.9, "validation": 0.1}}
    text = raw(
        built,
        tokenizer_dir,
        mix={},
        source=splits,
        save={"output_dir": str(tmp_path / "store")},
    )
    text |= {
        "name": "text",
        "datasets": text["datasets"][:1],
        "pack": {"enabled": True, "seq_length": 48},
    }
    again = {
        "name": "again",
        "datasets": [{"dataset": "mixed.code.tokens"}],
        "pack": text["pack"],
    }
    direct, repacked = build(text, pool), build({**again, "save": text["save"]}, pool)
    assert problems(tmp_path, repacked) == ()
    assert [(shard.split, shard.logical) for shard in repacked.files] == [
        (shard.split, shard.logical) for shard in direct.files
    ]
    assert (repacked.accounts["code"].tokens, repacked.mixture) == (
        direct.accounts["code"].tokens,
        None,
    )


def test_a_mixture_of_a_mixture_keeps_the_files_of_the_texts(
    root: Path, pool: WorkerPool
) -> None:
    build(documents(root, "inner", pack=None, total_rows=300), pool)
    config = documents(
        root, "outer", total_rows=100, weights={"inner": 0.5, "code": 0.5}
    )
    config["datasets"] = [
        {"name": "inner", "dataset": "inner"},
        {"name": "code", "dataset": "mixed.code.tokens"},
    ]
    manifest = build(config, pool)
    assert problems(root, manifest) == ()
    assert sorted({entry.source for entry in manifest.inputs}) == sorted(SOURCES)
    again = {
        "name": "again",
        "datasets": [{"name": "all", "dataset": "inner"}],
        "pack": config["pack"],
    }
    repacked = build({**again, "save": config["save"]}, pool)
    assert (list(repacked.accounts), problems(root, repacked)) == (["all"], ())
    assert repacked.accounts["all"].documents == 300


# The same work


def test_after_kill_9_a_rerun_ends_with_the_undisturbed_tree(
    built: Path, tmp_path: Path, pool: WorkerPool
) -> None:
    for name in ("calm", "killed"):
        copy_store(built / "store", tmp_path / name / "store")
    mix: Config = {"total_rows": 2000, "unit_rows": 100}
    calm = build(documents(tmp_path / "calm", **mix), pool)
    config = documents(tmp_path / "killed", **mix)
    finished = kill_after_a_unit(config, tmp_path / "killed/store/mixed/v1")
    assert 0 < len(finished) < 20
    resumed = build(config, pool)
    assert {path: path.stat().st_ino for path in finished} == finished
    assert tree(tmp_path / "killed", resumed) == tree(tmp_path / "calm", calm)


def test_a_longer_mixture_takes_over_the_units_that_are_there(
    root: Path, pool: WorkerPool
) -> None:
    build(documents(root), pool)
    opened = BuildSession.open(documents(root, total_rows=1000))
    assert (opened.version, list(opened.how.values()), opened.pending) == (
        2,
        ["reused"] * 3,
        [3, 4],
    )
    run_pending(opened, pool)
    longer = opened.commit()
    assert problems(root, longer) == ()
    assert longer.account.documents == 1000
    fresh = build(documents(root, "fresh", total_rows=1000), pool)
    assert [shard.logical for shard in fresh.files] == [
        shard.logical for shard in longer.files
    ]


def test_a_schedule_that_goes_on_takes_over_the_units_before_that(
    root: Path, pool: WorkerPool
) -> None:
    """Steps of 8 rows: from row 400 on the weights move, and the units before hold
    what they held.
    """
    start, end = (
        {"code": 0.8, "text": 0.2, "rare": 0.0},
        {"code": 0.2, "text": 0.6, "rare": 0.2},
    )
    points: list[Any] = [{"step": step, "weights": start} for step in (0, 50)]
    moving: Config = {
        "weights": None,
        "weight_schedule": points,
        "weight_schedule_type": "linear",
        "step_rows": 8,
    }
    first = build(documents(root, **moving, total_rows=1000, unit_rows=100), pool)
    points.append({"step": 100, "weights": end})
    opened = BuildSession.open(
        documents(root, **moving, total_rows=1000, unit_rows=100)
    )
    reused = [index for index, how in opened.how.items() if how == "reused"]
    assert reused == [0, 1]  # rows 256 to 511 are dealt together
    run_pending(opened, pool)
    second = opened.commit()
    assert problems(root, second) == ()
    assert first.mixture is not None
    assert second.mixture is not None
    assert list(first.mixture.sources) == ["code", "text"]
    assert second.mixture.sources["rare"].drawn_rows > 0


# What must not be committed, and what is found


def changed_share(record: UnitRecord, source: str, **more: int) -> UnitRecord:
    """A record that tells of other figures, and sums them up rightly."""
    share = record.shares[source]
    fields = {name: getattr(share, name) + by for name, by in more.items()}
    whole = {name: getattr(record.account, name) + by for name, by in more.items()}
    return replace(
        record,
        shares={**record.shares, source: replace(share, **fields)},
        account=replace(record.account, **whole),
    )


@pytest.mark.parametrize(
    "more",
    [
        {"rows_read": 1, "kept": 1, "documents": 1},
        {"tokens": 1},
        {"tokens": -5, "content_packed": -5},
    ],
)
def test_an_account_that_is_not_the_orders_is_not_committed(
    root: Path, pool: WorkerPool, more: dict[str, int]
) -> None:
    opened = BuildSession.open(documents(root))
    run_pending(opened, pool)
    records = [
        Catalog(open_store(str(root / "store"))).ledger("mixed", 1)[unit]
        for unit in range(3)
    ]
    records[1] = changed_share(records[1], "code", **more)
    with pytest.raises(AccountError, match=r"mixed/v1/manifest\.json"):
        commit.commit_version(
            open_store(str(root / "store")), opened.plan, Layout("mixed", 1), records
        )
    assert not (root / "store/mixed/v1/manifest.json").exists()


def resealed(path: Path, change: Any) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.chmod(0o644)
    path.write_bytes(seal(value))


def test_damage_to_shares_rows_and_sources_is_found(
    root: Path, pool: WorkerPool
) -> None:
    manifest = build(documents(root), pool)
    folder = root / "store/mixed/v1"
    store = open_store(str(root / "store"))

    def found(path: str, change: Any) -> str:
        before = (folder / path).read_bytes()
        resealed(folder / path, change)
        text = "\n".join(
            f"{one.path}: {one.problem}" for one in verify(store, "mixed", 1).problems
        )
        (folder / path).write_bytes(before)
        return text

    def swap(value: dict[str, Any]) -> None:
        value["shares"]["code"], value["shares"]["text"] = (
            value["shares"]["text"],
            value["shares"]["code"],
        )

    def window(value: dict[str, Any]) -> None:
        value["mixture"]["sources"]["code"]["window"] += 1

    def parent(value: dict[str, Any]) -> None:
        value["lineage"]["parents"][0]["sha256"] = "0" * 64

    def pad(value: dict[str, Any]) -> None:
        value["mixture"]["rows"]["pad"] += 1
        value["account"]["pad"] += 1

    assert verify(store, "mixed", 1, deep=True).problems == ()
    assert "ledger/00000.json: sha256" in found("ledger/00000.json", swap)
    assert "manifest.json: mixture source code" in found("manifest.json", window)
    assert "manifest.json: parent mixed.code.tokens@v1" in found(
        "manifest.json", parent
    )
    assert "manifest.json: account" in found("manifest.json", pad)
    assert manifest == Catalog(store).manifest("mixed", 1)


def test_a_parent_that_is_gone_is_no_damage_but_one_that_is_another_is(
    root: Path, pool: WorkerPool
) -> None:
    manifest = build(documents(root), pool)
    path = root / "store/mixed.rare.tokens/v1/manifest.json"
    whole = path.read_bytes()
    path.unlink()
    assert problems(root, manifest) == ()
    path.write_bytes(whole[:-2])
    assert [problem.problem for problem in problems(root, manifest)] == [
        "parent mixed.rare.tokens@v1"
    ]


def test_a_parent_that_is_damaged_stops_the_build(root: Path, pool: WorkerPool) -> None:
    shard = next((root / "store/mixed.code.tokens/v1/data").glob("train-*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    with pytest.raises(
        IntegrityError,
        match=r"mixed.code.tokens@v1: data/train-00000-00.parquet: row group 0",
    ):
        build(documents(root), pool)


def test_text_beside_stored_datasets_is_tokenized_first(
    root: Path, built: Path, tokenizer_dir: Path
) -> None:
    config = documents(root, total_rows=50)
    config["datasets"][2] = {
        "name": "rare",
        "data_files": str(built / "rare"),
        "tokenizer": str(tokenizer_dir),
    }
    with pytest.raises(ConfigError, match="is text, which is tokenized first"):
        BuildSession.open(config)
    result = build_dataset(config, workers=1)
    # Version 1 of these tokens has another split, so that this is the second.
    assert [parent.version for parent in result.manifest.parents] == [1, 1, 2]
