"""Whole builds through the library's runner; in this process, but for tests that ask
for real worker processes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.etl import outputs_support
from tests.etl.outputs_support import kill_after_a_unit, tree
from tests.tokenizer_files import copy_wrapping
from tests.tokenizer_reference import ReferenceTokenizer, needs_slow_reference
from tokenlake import BuildResult, load_config, verify
from tokenlake.base import file_id
from tokenlake.config.resolve import resolve
from tokenlake.errors import (
    AccountError,
    BadRecordError,
    CancelledError,
    ConfigError,
    EngineMismatchError,
    InputChangedError,
    SourceNotFoundError,
    TooManyBadRecordsError,
    WorkerDiedError,
)
from tokenlake.etl import (
    BuildSession,
    Event,
    InProcessPool,
    UnitFinished,
    UnitProgress,
    UnitRetried,
    UnitStarted,
    WorkerPool,
    build_dataset,
    make_plan,
    run_pending,
)
from tokenlake.etl.observability import RunTally
from tokenlake.etl.packing import Packed
from tokenlake.runtime.store import Layout, LocalStore, open_store

Config = dict[str, Any]
pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> Config:
    """Three small JSONL files, each a unit of its own."""
    write_jsonl(tmp_path / "in" / "a.jsonl", texts(0, 34))
    write_jsonl(tmp_path / "in" / "b.jsonl", texts(34, 67))
    write_jsonl(tmp_path / "in" / "c.jsonl", texts(67, 100))
    return {
        "name": "set",
        "datasets": [
            {
                "name": "s",
                "data_files": str(tmp_path / "in"),
                "tokenizer": str(tokenizer_dir),
            }
        ],
        "source": {"unit_size": 4000},
        "pack": {"enabled": True, "seq_length": 32},
        "save": {"output_dir": str(tmp_path / "store")},
    }


def texts(first: int, last: int) -> list[str]:
    return [
        f"document {i}: " + "the quick brown fox, été, 日本 " * (i % 5) + "x" * (i % 7)
        for i in range(first, last)
    ]


def write_jsonl(path: Path, documents: list[str]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


def rows(result: BuildResult, split: str = "train") -> pa.Table:
    """All rows of a split, in the manifest's order."""
    files = [entry.path for entry in result.manifest.files if entry.split == split]
    return pa.concat_tables(
        [
            pq.read_table(Path(result.path) / name, page_checksum_verification=True)
            for name in files
        ]
    )


def documents_of(
    result: BuildResult, split: str = "train"
) -> dict[tuple[int, int], list[int]]:
    """Every document's ids: (file, position) to ids with EOS."""
    return outputs_support.documents_of(rows(result, split).to_pylist())


def expected_documents(
    config: Config, tokenizer_dir: Path, names: tuple[str, ...] = ("a", "b", "c")
) -> dict:
    reference = ReferenceTokenizer.of_folder(tokenizer_dir, literal=True)
    eos = reference.token_id("<|endoftext|>")
    found = {}
    for name in names:
        at = 0
        path = Path(config["datasets"][0]["data_files"]) / f"{name}.jsonl"
        for line in path.read_bytes().splitlines(keepends=True):
            text = json.loads(line)["text"]
            found[file_id("s", path.name), at] = [
                *reference.encode(text, add_special_tokens=False).ids,
                eos,
            ]
            at += len(line)
    return found


def test_every_document_comes_back_token_for_token(config, tokenizer_dir):
    result = build_dataset(config, workers=2)
    assert documents_of(result) == expected_documents(config, tokenizer_dir)
    account = result.manifest.account
    tokens = sum(len(ids) for ids in expected_documents(config, tokenizer_dir).values())
    assert account.content_packed + account.eos == tokens
    assert (account.rows_read, account.documents, account.eos) == (100, 100, 100)
    assert account.slots == 32 * len(rows(result))
    assert (result.status, result.units_built) == ("built", 3)


def test_the_number_of_workers_and_the_place_change_no_byte(
    config, tmp_path, processes
):
    one = build_dataset(config, workers=1)
    moved = tmp_path / "elsewhere"
    (tmp_path / "in").rename(moved)
    config["datasets"][0]["data_files"] = str(moved / "*.jsonl")
    config["save"]["output_dir"] = str(tmp_path / "other")
    two = build_dataset(config, workers=2)
    assert tree(Path(one.path)) == tree(Path(two.path))


def test_an_equal_build_again_does_nothing_and_says_so(config):
    first = build_dataset(config, workers=1)
    before = tree(Path(first.path), skip=())
    again = build_dataset(config, workers=1)
    assert (again.status, again.version) == ("exists", first.version)
    assert tree(Path(first.path), skip=()) == before


def test_an_added_file_leaves_the_other_units_alone(config, tmp_path, tokenizer_dir):
    first = build_dataset(config, workers=1)
    write_jsonl(tmp_path / "in" / "aa.jsonl", texts(200, 230))
    second = build_dataset(config, workers=1)
    assert (second.version, second.units_built, second.units_reused) == (2, 1, 3)
    old = {entry.sha256 for entry in first.manifest.files}
    assert old < {entry.sha256 for entry in second.manifest.files}
    assert documents_of(second) == expected_documents(
        config, tokenizer_dir, ("a", "aa", "b", "c")
    )
    fresh = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "fresh")}}, workers=1
    )
    assert {e.path: e.sha256 for e in fresh.manifest.files} == {
        e.path: e.sha256 for e in second.manifest.files
    }


def test_another_licence_is_another_version_of_the_same_files(config):
    first = build_dataset(config, workers=1)
    config["card"] = {
        "license": "cc-by-4.0",
        "language": ["en", "de"],
        "task_categories": ["text-generation"],
    }
    second = build_dataset(config, workers=1)
    assert (second.version, second.units_built, second.units_reused) == (2, 0, 3)
    assert second.manifest.files == first.manifest.files
    header = (Path(second.path) / "README.md").read_text().partition("\n---\n")[0]
    told = yaml.safe_load(header)
    assert {name: told[name] for name in config["card"]} == config["card"]
    assert second.manifest.config == {**first.manifest.config, "card": config["card"]}
    assert build_dataset(config, workers=1).status == "exists"
    assert verify(open_store(config["save"]["output_dir"]), "set", 2, deep=True).ok


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_unit_that_is_spoilt_in_the_newest_version_is_taken_from_an_older_one(
    config, tmp_path, damage
):
    build_dataset(config, workers=1)
    write_jsonl(tmp_path / "in" / "d.jsonl", texts(200, 230))
    second = build_dataset(config, workers=1)
    victim = Path(second.path) / second.manifest.files[1].path
    data = victim.read_bytes()
    victim.unlink()
    if damage != "gone":
        victim.write_bytes(data[:-1] if damage == "cut" else data[:-9] + b"123456789")
    write_jsonl(tmp_path / "in" / "e.jsonl", texts(300, 330))
    third = build_dataset(config, workers=1)
    assert (third.version, third.units_built, third.units_reused) == (3, 1, 4)
    assert verify(open_store(tmp_path / "store"), "set", 3, deep=True).ok


@pytest.mark.parametrize("moment", ["link_all", "put_all"])
def test_a_run_that_dies_while_it_takes_units_over_is_resumed(
    config, tmp_path, monkeypatch, moment
):
    monkeypatch.setattr("tokenlake.etl.commit.finished_units._UNITS_PER_STEP", 1)
    build_dataset(config, workers=1)
    write_jsonl(tmp_path / "in" / "d.jsonl", texts(200, 230))
    calls, real = itertools.count(), getattr(LocalStore, moment)

    def dying(store: LocalStore, *arguments: Any) -> Any:
        found = real(store, *arguments)
        if next(calls) == 1:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, moment, dying)
        with pytest.raises(KeyboardInterrupt):
            build_dataset(config, workers=1)
    result = build_dataset(config, workers=1)
    done = 1 + (moment == "put_all")
    assert (result.status, result.units_resumed, result.units_reused) == (
        "resumed",
        done,
        3 - done,
    )
    fresh = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "fresh")}}, workers=1
    )
    assert result.manifest.files == fresh.manifest.files
    assert verify(open_store(tmp_path / "store"), "set", 2, deep=True).ok


class StopAfter:
    """A watcher that fails once `units` units are finished."""

    def __init__(self, units: int) -> None:
        self.left = units

    def __call__(self, event: Event) -> None:
        if isinstance(event, UnitFinished) and event.how == "built":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_an_interrupted_build_resumes_without_redoing_and_ends_equal(config, tmp_path):
    undisturbed = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "calm")}}, workers=1
    )
    with pytest.raises(KeyboardInterrupt):
        build_dataset(config, workers=1, on_event=StopAfter(2))
    assert not (tmp_path / "store/set/v1/manifest.json").exists()
    begun: list[int] = []
    result = build_dataset(
        config,
        workers=1,
        on_event=lambda e: begun.append(e.unit) if isinstance(e, UnitStarted) else None,
    )
    assert (result.status, result.units_resumed, result.units_built) == (
        "resumed",
        2,
        1,
    )
    assert begun == [2]
    assert tree(Path(result.path)) == tree(Path(undisturbed.path))


@pytest.mark.parametrize("damage", ["record", "part", "gone"])
def test_resume_redoes_a_finished_unit_whose_files_are_damaged(
    config, tmp_path, damage
):
    with pytest.raises(KeyboardInterrupt):
        build_dataset(config, workers=1, on_event=StopAfter(2))
    version = tmp_path / "store/set/v1"
    target = version / (
        "ledger/00001.json" if damage == "record" else "data/train-00001-00.parquet"
    )
    target.chmod(0o644)
    target.unlink() if damage == "gone" else target.write_bytes(
        target.read_bytes()[:-1]
    )
    result = build_dataset(config, workers=1)
    assert (result.units_resumed, result.units_built) == (1, 2)


def test_a_killed_worker_costs_one_retry_and_not_the_run(config, tmp_path):
    calm = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "calm")}}, workers=2
    )
    retried: list[UnitRetried] = []
    with WorkerPool(2) as pool:
        killed = threading.Event()

        def watch(event: Event) -> None:
            if isinstance(event, UnitStarted) and not killed.is_set():
                killed.set()
                for pid in pool.pids():
                    os.kill(pid, signal.SIGKILL)
            if isinstance(event, UnitRetried):
                retried.append(event)

        session = BuildSession.open(config, on_event=watch)
        run_pending(session, pool, on_event=watch)
        manifest = session.commit()
    assert retried
    assert all("SIGKILL" in event.error for event in retried)
    assert manifest.files == calm.manifest.files


def test_cancelling_stops_at_once_and_leaves_no_process(config):
    with WorkerPool(2) as pool:
        pool.expect(2)
        pids = pool.pids()
        threading.Timer(0.05, pool.cancel).start()
        session = BuildSession.open(config)
        with pytest.raises(CancelledError):
            run_pending(session, pool)
            pool.run(session.plan.backend_job(session.plan.units[0], Layout("d", 1)))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_splits_partition_the_documents_and_stay_when_data_is_added(
    config, tmp_path, tokenizer_dir
):
    config["source"]["splits"] = {"train": 0.7, "validation": 0.3}
    first = build_dataset(config, workers=1)
    parts = documents_of(first), documents_of(first, "validation")
    assert parts[0] | parts[1] == expected_documents(config, tokenizer_dir)
    assert len(parts[0]) + len(parts[1]) == 100
    assert 15 <= len(parts[1]) <= 45
    write_jsonl(tmp_path / "in" / "0.jsonl", texts(300, 330))
    second = build_dataset(config, workers=1)
    assert parts[1].items() <= documents_of(second, "validation").items()
    assert parts[0].items() <= documents_of(second).items()


@pytest.mark.parametrize("kind", ["number", "float", "unsigned", "text"])
def test_excluded_documents_are_left_out_and_only_their_unit_is_rebuilt(
    kind, config, tmp_path
):
    """A file is named by its number, or in any of the ways in which people write a
    path.
    """
    write_jsonl(tmp_path / "in" / "deep" / "b.jsonl", texts(34, 67))
    expected = documents_of(build_dataset(config, workers=1))
    ours, full = file_id("s", "b.jsonl"), str(tmp_path / "in" / "b.jsonl")
    names: dict[str, list[Any]] = {"number": [ours], "float": [float(ours)]}
    names["unsigned"] = [pa.scalar(ours % (1 << 64), pa.uint64())]
    names["text"] = [str(ours), "./b.jsonl", full, f"file://{full}", "in/b.jsonl"]
    gone = sorted(key for key in expected if key[0] == ours)[3 : 3 + len(names[kind])]
    takedown(
        config,
        tmp_path,
        [(name, p) for name, (_, p) in zip(names[kind], gone, strict=True)],
    )
    result = build_dataset(config, workers=1)
    assert (result.version, result.units_reused, result.units_built) == (2, 3, 1)
    assert documents_of(result) == {
        key: ids for key, ids in expected.items() if key not in gone
    }
    assert result.manifest.account.filtered == {"excluded": len(gone)}
    assert result.notes == ()


def takedown(config: Config, folder: Path, entries: list[tuple[Any, Any]]) -> None:
    path = folder / "takedown.parquet"
    pq.write_table(
        pa.table(
            {"file": [f for f, _ in entries], "position": [p for _, p in entries]}
        ),
        path,
    )
    config["datasets"][0]["exclude"] = str(path)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "num_shards"])
def test_one_excluded_document_rebuilds_its_part_of_a_file_alone(
    form, config, tmp_path
):
    path = tmp_path / "in" / "big" / ("x.parquet" if form == "parquet" else "x.jsonl")
    write_jsonl(path, documents := texts(0, 400))
    if form == "parquet":
        pq.write_table(pa.table({"text": documents}), path, row_group_size=20)
    config["datasets"][0]["data_files"] = str(path)
    if form == "num_shards":
        config["save"]["num_shards"] = 6
    first = build_dataset(config, workers=1)
    positions = sorted(position for _, position in documents_of(first))
    takedown(config, tmp_path, [(path.name, positions[100])])
    second = build_dataset(config, workers=1)
    assert second.units_built == 1
    assert second.units_reused == first.units_built - 1 > 3
    assert (
        sorted(position for _, position in documents_of(second))
        == positions[:100] + positions[101:]
    )


@pytest.mark.parametrize(
    ("entries", "note"),
    [
        ([("nowhere.jsonl", 0)], "row 0: file 'nowhere.jsonl' is not an input file"),
        (
            [("a.jsonl", 3), ("a.jsonl", 10**6), ("a.jsonl", -1)],
            "row 0: a.jsonl at 3: no line begins at this byte",
        ),
        ([(1.5, 0.0), (float("nan"), 0.0)], "row 0: file 1.5 is not an input file"),
        ([("a.jsonl", None)], "row 0: position None is not a whole number"),
        ([], None),
    ],
)
def test_entries_of_exclude_that_match_nothing_are_told(
    entries, note, config, tmp_path
):
    if not entries:
        takedown(config, tmp_path, entries)
        assert build_dataset(config, workers=1).notes == ()
        return
    takedown(config, tmp_path, entries)
    with pytest.raises(ConfigError, match=re.escape(note)):
        build_dataset(config, workers=1)
    takedown(config, tmp_path, [(str(f), p) for f, p in entries] + [("c.jsonl", 0.0)])
    plan = make_plan(resolve(load_config(config)))
    assert len(plan.notes) == len(entries)
    result = build_dataset(config, workers=1)
    assert result.manifest.account.filtered == {"excluded": 1}
    assert result.notes == plan.notes
    assert build_dataset(config, workers=1).notes == plan.notes


def test_what_only_reading_can_tell_of_exclude_is_told_by_the_build(config, tmp_path):
    (tmp_path / "in" / "z.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "one"}\n{"text": "two"}\n')
    )
    takedown(config, tmp_path, [("z.jsonl.gz", 1)])
    with pytest.raises(ConfigError, match="matches no document"):
        build_dataset(config, workers=1)
    takedown(config, tmp_path, [("z.jsonl.gz", 1), ("z.jsonl.gz", 16)])
    [note] = build_dataset(config, workers=1).notes
    assert "1 of 2 entries left out no document" in note


def test_an_ambiguous_name_in_exclude_is_an_error(config, tmp_path):
    write_jsonl(tmp_path / "in" / "one" / "y.jsonl", texts(0, 2))
    write_jsonl(tmp_path / "in" / "two" / "y.jsonl", texts(0, 2))
    takedown(config, tmp_path, [("y.jsonl", 0)])
    with pytest.raises(
        ConfigError, match=r"file 'y.jsonl' means .*one/y.jsonl, .*two/y.jsonl"
    ):
        build_dataset(config, workers=1)


def test_sources_share_a_list(config, tmp_path, tokenizer_dir):
    write_jsonl(tmp_path / "other" / "o.jsonl", texts(0, 5))
    other = {
        "name": "o",
        "data_files": str(tmp_path / "other"),
        "tokenizer": str(tokenizer_dir),
    }
    takedown(config, tmp_path, [("a.jsonl", 0)])
    config["datasets"].append(other | {"exclude": config["datasets"][0]["exclude"]})
    result = build_dataset(config, workers=1)
    assert (result.manifest.account.filtered, result.notes) == ({"excluded": 1}, ())


def test_an_empty_document_is_filtered_and_counted(config, tmp_path):
    write_jsonl(tmp_path / "in" / "d.jsonl", ["", "something", ""])
    account = build_dataset(config, workers=1).manifest.account
    assert account.filtered == {"empty": 2}
    assert account.documents == 101


def test_a_bad_record_fails_the_build_with_its_place(config, tmp_path):
    bad = tmp_path / "in" / "b.jsonl"
    bad.write_text(bad.read_text() + '{"text": null}\n{"text": "fine"}\n')
    with pytest.raises(BadRecordError, match=r"b\.jsonl:34: null_text") as caught:
        build_dataset(config, workers=1)
    assert caught.value.details["line"] == 34
    assert not (tmp_path / "store/set/v1/manifest.json").exists()


def test_quarantine_sets_bad_records_aside_and_counts_them(
    config, tmp_path, tokenizer_dir
):
    expected = expected_documents(config, tokenizer_dir)
    bad = tmp_path / "in" / "c.jsonl"
    bad.write_bytes(b'{"text": 7}\n' + bad.read_bytes() + b'{"text": "\xff"}\n')
    config["source"] |= {"on_bad_record": "quarantine", "max_bad_fraction": 0.05}
    result = build_dataset(config, workers=1)
    account = result.manifest.account
    assert sum(account.quarantined.values()) == 2
    assert account.rows_read == 102
    held = pq.read_table(Path(result.path) / "quarantine/00002.parquet").to_pylist()
    assert [
        (row["path"], row["position"], row["line"], row["raw"]) for row in held
    ] == [
        ("c.jsonl", 0, 1, b'{"text": 7}'),
        ("c.jsonl", len(bad.read_bytes()) - 14, 35, b'{"text": "\xff"}'),
    ]
    assert len(documents_of(result)) == len(expected)


def test_too_many_bad_records_are_refused_at_commit(config, tmp_path):
    write_jsonl(tmp_path / "in" / "d.jsonl", [None] * 3)  # pyright: ignore[reportArgumentType]
    config["source"] |= {"on_bad_record": "quarantine", "max_bad_fraction": 0.01}
    with pytest.raises(TooManyBadRecordsError, match=r"3 bad records of 103"):
        build_dataset(config, workers=1)
    assert not (tmp_path / "store/set/v1/manifest.json").exists()


def test_as_many_bad_records_as_are_allowed_are_no_error(config, tmp_path):
    write_jsonl(tmp_path / "in" / "d.jsonl", [None] * 25)  # pyright: ignore[reportArgumentType]
    config["source"] |= {"on_bad_record": "quarantine", "max_bad_fraction": 0.2}
    account = build_dataset(config, workers=1).manifest.account
    assert (sum(account.quarantined.values()), account.rows_read) == (25, 125)


def test_a_hopeless_build_stops_early(config, tmp_path):
    write_jsonl(tmp_path / "in" / "0.jsonl", [None] * 3000)  # pyright: ignore[reportArgumentType]
    config["source"] |= {"on_bad_record": "quarantine", "max_bad_fraction": 0.0001}
    finished: list[Event] = []
    with pytest.raises(TooManyBadRecordsError, match="raise max_bad_fraction"):
        build_dataset(
            config,
            workers=1,
            on_event=lambda e: (
                finished.append(e) if isinstance(e, UnitFinished) else None
            ),
        )
    assert not finished


def test_a_special_token_inside_a_document_can_be_a_bad_record(config, tmp_path):
    write_jsonl(tmp_path / "in" / "a.jsonl", ["fine", "before <|endoftext|> after"])
    config["tokenize"] = {"special_tokens_in_text": "fail"}
    with pytest.raises(BadRecordError, match="special_token_in_text"):
        build_dataset(config, workers=1)
    config["source"] |= {"on_bad_record": "quarantine", "max_bad_fraction": 0.5}
    account = build_dataset(config, workers=1).manifest.account
    assert account.quarantined == {"special_token_in_text": 1}
    assert account.special_tokens_in_text == 0


def test_a_shard_rolls_at_the_first_row_group_past_its_size(
    config, tmp_path, tokenizer_dir, monkeypatch
):
    monkeypatch.setattr("tokenlake.etl.unit.sink.group_tokens", lambda files: 1 << 14)
    config["save"]["max_shard_size"] = 100
    config["pack"]["seq_length"] = 4096
    config["source"]["unit_size"] = "1GiB"
    write_jsonl(tmp_path / "in" / "a.jsonl", [f"{i} " * 2000 for i in range(20)])
    result = build_dataset(config, workers=1)
    assert len(result.manifest.files) > 2
    assert all(entry.row_groups == (0,) for entry in result.manifest.files)
    assert documents_of(result) == expected_documents(config, tokenizer_dir)


def test_progress_adds_up_to_the_input(config):
    seen: list[Event] = []
    build_dataset(config, workers=2, on_event=seen.append)
    progress = [event for event in seen if isinstance(event, UnitProgress)]
    finished = [event for event in seen if isinstance(event, UnitFinished)]
    assert sum(event.bytes for event in progress) == sum(
        event.bytes for event in finished
    )
    assert sum(event.documents for event in progress) == 100
    assert all(event.progressed[0] == event.bytes for event in finished)


def test_the_progress_of_an_attempt_that_failed_is_taken_back(config, monkeypatch):
    seen: list[Event] = []
    run, fails = InProcessPool.run, iter([True])

    def dying(self: InProcessPool, job: Any, *more: Any) -> Any:
        answer = run(self, job, *more)
        if job.op == "unit" and next(fails, False):
            raise WorkerDiedError("it is gone")
        return answer

    monkeypatch.setattr(InProcessPool, "run", dying)
    build_dataset(config, workers=1, on_event=seen.append)
    tally = RunTally()
    for event in seen:
        tally.add(event)
    [retried] = [event for event in seen if isinstance(event, UnitRetried)]
    finished = {event.unit: event for event in seen if isinstance(event, UnitFinished)}
    accounts = [event.record.account for event in finished.values()]
    unit = finished[retried.unit]
    own = unit.record.account
    assert retried.progressed == (unit.bytes, own.documents, own.tokens)
    assert all(event.progressed[0] == event.bytes for event in finished.values())
    assert tally.done == sum(event.bytes for event in finished.values())
    assert tally.documents == sum(account.documents for account in accounts) == 100
    assert tally.tokens == sum(account.tokens for account in accounts)


def test_an_input_that_changes_during_the_build_is_an_error(config, tmp_path):
    session = BuildSession.open(config)
    write_jsonl(tmp_path / "in" / "b.jsonl", texts(0, 3))
    pool: Any = InProcessPool()
    with pytest.raises(InputChangedError, match=r"b\.jsonl"):
        run_pending(session, pool)


@needs_slow_reference
def test_a_condemned_engine_has_its_units_rebuilt_by_the_reference(
    config, tmp_path, monkeypatch
):
    """The second unit finds a mismatch; the first one, already in the ledger, is
    built again as well.
    """
    calm = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "calm")}}, workers=1
    )
    attempts: list[tuple[int, str]] = []
    run = InProcessPool.run

    def sabotaged(self: InProcessPool, job: Any, *more: Any) -> Any:
        if job.op == "unit":
            attempts.append((job.unit, job.engine))
            if attempts[-1] == (1, "gigatoken"):
                raise EngineMismatchError("differs", text="x", expected=[1], got=[2])
        return run(self, job, *more)

    monkeypatch.setattr(InProcessPool, "run", sabotaged)
    tally = RunTally()
    result = build_dataset(config, workers=1, on_event=tally.add)
    assert attempts[:2] == [(0, "gigatoken"), (1, "gigatoken")]
    account = result.manifest.account  # what was built in vain is taken back
    assert (tally.finished, tally.documents, tally.tokens) == (
        3,
        account.documents,
        account.tokens,
    )
    assert tally.done == tally.built == tally.total and tally.ended is not None
    assert tally.written == account.content_packed + account.bos + account.eos
    assert sorted(attempts[2:]) == [
        (0, "tokenizers"),
        (1, "tokenizers"),
        (2, "tokenizers"),
    ]
    assert [e.sha256 for e in result.manifest.files] == [
        e.sha256 for e in calm.manifest.files
    ]
    (kept,) = (Path(result.path) / "runs").glob("*condemned*")
    assert json.loads(kept.read_text())["details"]["text"] == "x"


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (
            lambda c: c["datasets"][0].update(data_files="nowhere/*.jsonl"),
            SourceNotFoundError,
            "nowhere",
        ),
        (lambda c: c["pack"].update(eos_token_id=99999), ConfigError, "has ids 0 to"),
        (
            lambda c: c["datasets"][0].update(exclude="nowhere.parquet"),
            ConfigError,
            r"nowhere\.parquet",
        ),
        (lambda c: c["pack"].update(seq_lenght=3), ConfigError, "seq_length"),
    ],
)
def test_a_build_that_cannot_be_planned_claims_nothing(
    config: Config,
    tmp_path: Path,
    change: Callable[[Config], None],
    error: type[Exception],
    match: str,
):
    change(config)
    with pytest.raises(error, match=match):
        build_dataset(config, workers=1)
    assert not (tmp_path / "store").exists() or not list(
        (tmp_path / "store").rglob("claim.json")
    )


def test_bos_and_eos_of_the_post_processor_are_kept_and_no_second_eos_is_added(
    config, tmp_path, tokenizer_dir
):
    folder = copy_wrapping(
        tokenizer_dir, tmp_path / "wrapping", before=["!"], after=["<|endoftext|>"]
    )
    config["datasets"][0]["tokenizer"] = str(folder)
    result = build_dataset(config, workers=1)
    bos = ReferenceTokenizer.of_folder(folder).token_id("!")
    expected = {
        key: [bos, *ids]
        for key, ids in expected_documents(config, tokenizer_dir).items()
    }
    assert documents_of(result) == expected
    account = result.manifest.account
    assert (account.bos, account.eos, account.eos_existing) == (100, 100, 100)


@pytest.mark.parametrize("other", [32, 64])
def test_two_builds_at_once_both_succeed_equal_ones_as_one_version(
    config, other, processes
):
    configs = [config, {**config, "pack": {"enabled": True, "seq_length": other}}]
    with ThreadPoolExecutor(2) as threads:
        one, two = threads.map(lambda each: build_dataset(each, workers=1), configs)
    assert {one.version, two.version} == ({1} if other == 32 else {1, 2})
    assert (one.manifest == two.manifest) == (other == 32)


def test_after_kill_9_of_everything_a_rerun_ends_with_the_undisturbed_tree(
    config, tmp_path
):
    calm = build_dataset(
        {**config, "save": {"output_dir": str(tmp_path / "calm")}}, workers=1
    )
    finished = kill_after_a_unit(config, tmp_path / "store/set/v1")
    begun: list[int] = []
    resumed = build_dataset(
        config,
        workers=1,
        on_event=lambda e: begun.append(e.unit) if isinstance(e, UnitStarted) else None,
    )
    assert resumed.units_resumed == len(finished) >= 1
    assert not {int(path.stem) for path in finished} & set(begun)
    assert {path: path.stat().st_ino for path in finished} == finished
    assert tree(Path(resumed.path)) == tree(Path(calm.path))
    assert not list(Path(resumed.path).rglob(".tmp*"))


def test_a_wrong_boundary_in_packed_ids_is_found():
    packed = Packed(
        input_ids=np.array([7, 1, 9, 7, 2, 9], np.int32),
        segment_lengths=np.array([3, 3], np.int32),
        row_offsets=np.array([0, 2]),
        file=np.array([1, 1]),
        position=np.array([0, 5]),
        start=np.array([0, 0], np.int32),
        ends=np.array([True, True]),
        pad=0,
    )
    packed.check_boundaries((7,), (9,))
    with pytest.raises(AccountError, match="begins with id 7, expected 8"):
        packed.check_boundaries((8,), (9,))
    with pytest.raises(AccountError, match="ends with id 9, expected 2"):
        packed.check_boundaries((7,), (2,))


def test_text_files_are_documents_or_lines(config, tmp_path, tokenizer_dir):
    folder = tmp_path / "texts"
    folder.mkdir()
    for index, text in enumerate(texts(0, 30)):
        (folder / f"{index:02d}.txt").write_text(text + "\nsecond line\n")
    config["datasets"][0]["data_files"] = str(folder)
    config["source"]["unit_size"] = "1MiB"
    whole = build_dataset(config, workers=1).manifest.account
    config["datasets"][0] |= {"type": "txt", "text_mode": "lines"}
    lines = build_dataset(config, workers=1).manifest.account
    assert (whole.documents, lines.documents) == (30, 60)
    assert whole.text_bytes == lines.text_bytes + 60
