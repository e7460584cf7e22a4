"""Verification of any store, whatever lies in the place of files: tags, web servers,
interruptions, other writers.
"""

from __future__ import annotations

import _thread
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reading.support import lake_of
from tests.servers.s3 import KEY, SECRET
from tests.store.remote_store_support import Served, files_of, serving
from tests.store.support import copy_store
from tokenlake import Catalog, VerifyReport, verify
from tokenlake.cli.app import main
from tokenlake.errors import IntegrityError
from tokenlake.etl.integrity import FILE_PROBLEMS
from tokenlake.runtime import LogicalHasher
from tokenlake.runtime.store import Layout, LocalStore, Store, open_store, seal

Found = set[tuple[str, str]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return lake_of(tmp_path_factory)


@pytest.fixture
def copy(lake: Store, tmp_path: Path) -> Path:
    return copy_store(Path(lake.url), tmp_path / "copy")


def found(report: VerifyReport) -> Found:
    return {(problem.path, problem.problem) for problem in report.problems}


def check(root: Path, name: str = "plain", **options: Any) -> Found:
    return found(verify(open_store(root), name, 1, **options))


# Every kind of dataset


@pytest.mark.parametrize(
    "name", ["plain", "learned", "texts", "answers", "left", "judged"]
)
def test_every_kind_is_whole(lake: Store, name: str) -> None:
    report = verify(lake, name, 1, deep=True)
    assert report.ok and report.listed
    totals = Catalog(lake).manifest(name, 1).totals
    assert (report.rows, report.tokens) == (totals.rows, totals.tokens)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), max_size=9),
    st.integers(0, 8),
)
def test_values_are_hashed_as_their_rows_are(rows: list[list[int]], cut: int) -> None:
    whole, parts = LogicalHasher(), LogicalHasher()
    column = pa.array(rows, pa.list_(pa.int32()))
    whole.update(pa.table({"a": column}))
    values = np.array([value for row in rows for value in row], np.int32)
    lengths = np.array([len(row) for row in rows], np.int32)
    parts.update_list("a", values[:cut], lengths[:cut])
    parts.update_list("a", values[cut:], lengths[cut:])
    assert parts.digest() == whole.digest()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 7), st.integers(1, 9), st.sampled_from(["int32", "bool"]))
def test_values_of_rows_of_one_length_are_hashed_as_their_rows_are(
    rows: int, size: int, kind: str
) -> None:
    values = (np.arange(rows * size) * 7 % 3 == 0).astype(kind)
    whole, parts = LogicalHasher(), LogicalHasher()
    whole.update(
        pa.table({"a": pa.FixedSizeListArray.from_arrays(pa.array(values), size)})
    )
    for part in np.array_split(values, 3):
        parts.update_list("a", part)
    assert parts.digest() == whole.digest()


# What lies in the place of a file


@pytest.mark.parametrize("what", ["pipe", "folder", "link", "socket"])
def test_what_is_no_file_is_a_problem_and_never_a_hang(copy: Path, what: str) -> None:
    layout = Layout("plain", 1)
    paths = [layout.path(info.key) for info in open_store(copy).list(layout.prefix)]
    for path in (path for path in paths if not path.startswith("runs/")):
        there = copy / layout.key(path)
        kept = there.read_bytes()
        there.unlink()
        _put(there, what, copy)
        if path == "manifest.json" and what == "folder":
            got = found(verify(open_store(copy), "plain", 1))
        else:
            got = check(copy)
        assert (path, "unreadable") in got, (path, got)
        assert {problem for _, problem in got} <= {"unreadable"}, (path, got)
        there.rmdir() if what == "folder" else there.unlink()
        there.write_bytes(kept)
    assert check(copy) == set()


def _put(path: Path, what: str, root: Path) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "socket":
        import socket

        # Names of sockets are short: it is made by its name in its folder.
        here = Path.cwd()
        os.chdir(path.parent)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    else:
        (root / "elsewhere").write_bytes(b"x")
        path.symlink_to(root / "elsewhere")


@pytest.mark.parametrize("folder", ["ledger", "data"])
def test_folders_that_are_links_are_refused(copy: Path, folder: str) -> None:
    there = copy / "plain" / "v1" / folder
    there.rename(copy / "moved")
    there.symlink_to(copy / "moved")
    got = check(copy)
    assert {problem for _, problem in got} == {"unreadable", "unlisted"}
    assert (folder, "unlisted") in got


# Tags


def test_tags_are_compared_with_their_versions(copy: Path) -> None:
    catalog = Catalog(open_store(copy))
    catalog.set_tag("plain", "prod", 1)
    assert check(copy) == set()
    tag = copy / "plain" / "tags" / "prod.json"
    good = tag.read_bytes()
    tag.write_bytes(good[:-9])
    assert check(copy) == {("../tags/prod.json", "damaged")}
    tag.write_bytes(good)
    (copy / "plain" / "tags" / "notes.txt").write_text("x")
    assert check(copy) == {("../tags/notes.txt", "unlisted")}
    (copy / "plain" / "tags" / "notes.txt").unlink()
    tag.unlink()
    os.mkfifo(tag)
    assert check(copy) == {("../tags/prod.json", "unreadable")}


def test_a_tag_of_a_version_that_was_replaced_or_is_gone(copy: Path) -> None:
    catalog = Catalog(open_store(copy))
    catalog.set_tag("plain", "prod", 1)
    tags = copy / "plain" / "tags"
    another_manifest = json.loads((tags / "prod.json").read_bytes()) | {
        "manifest_sha256": "0" * 64
    }
    (tags / "prod.json").write_bytes(seal(another_manifest))
    (tags / "old.json").write_bytes(
        seal(another_manifest | {"tag": "old", "version": 7})
    )
    assert check(copy) == {("../tags/old.json", "tag"), ("../tags/prod.json", "tag")}


# Stores elsewhere


@pytest.fixture(params=["http", "s3"])
def served(request: pytest.FixtureRequest, lake: Store) -> Iterator[Served]:
    files = {
        key: data for key, data in files_of(lake).items() if key.startswith("learned/")
    }
    with pytest.MonkeyPatch.context() as patch, serving(request.param, files) as there:
        patch.setenv("LAKE_KEY", KEY)
        patch.setenv("LAKE_SECRET", SECRET)
        yield there


def test_a_store_elsewhere_is_verified_and_each_file_is_fetched_once(
    served: Served,
) -> None:
    store = served.open()
    report = verify(store, "learned", 1, deep=True)
    assert report.ok and report.rows
    assert report.listed == store.can_list
    assert report.listed == served.url.startswith("s3")
    shards = [
        name
        for method, name in served.asked()
        if method == "GET" and name.endswith(".parquet")
    ]
    assert sorted(shards) == sorted(set(shards)) and len(shards) == 6


def test_damage_elsewhere_is_found(lake: Store) -> None:
    files = {
        key: data for key, data in files_of(lake).items() if key.startswith("learned/")
    }
    shard, other = (
        f"learned/v1/data/train-0000{number}-00.parquet" for number in (0, 1)
    )
    config = "learned/v1/config.yaml"
    files[shard] = (
        files[shard][:100] + bytes([files[shard][100] ^ 1]) + files[shard][101:]
    )
    files[config] += b"\n"
    del files[other]
    with serving("http", files) as served:
        assert found(verify(served.open(), "learned", 1)) == {
            ("config.yaml", "size"),
            ("data/train-00000-00.parquet", "sha256"),
            ("data/train-00001-00.parquet", "missing"),
        }


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = copy / "plain" / "v1" / "README.md"
    card.chmod(0o644)
    opened: list[str] = []
    pieces: list[object] = []
    open_file = LocalStore.open

    def noted(self: LocalStore, key: str, **options: Any) -> Any:
        opened.append(key)
        return open_file(self, key, **options)

    def grow(progress: object) -> None:
        if opened[-1].endswith("README.md"):
            pieces.append(progress)
            assert len(pieces) < 5
            with card.open("ab") as sink:
                sink.write(b"y" * 10)

    monkeypatch.setattr(LocalStore, "open", noted)
    check(copy, workers=1, on_progress=grow)
    assert pieces
    assert check(copy) == {("README.md", "size")}


# Threads


def test_an_interrupt_does_not_wait_for_what_hangs(
    lake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread waits for a disk that never answers; the caller is interrupted, and
    the thread reads no more.
    """
    answer = threading.Event()
    waiting: list[threading.Thread] = []
    steps: list[object] = []
    open_file = LocalStore.open

    def open_or_hang(self: LocalStore, key: str, **options: Any) -> Any:
        stream = open_file(self, key, **options)
        if key.endswith("train-00000-00.parquet"):
            waiting.append(threading.current_thread())
            _thread.interrupt_main()
            answer.wait()
        return stream

    monkeypatch.setattr(LocalStore, "open", open_or_hang)
    with pytest.raises(KeyboardInterrupt):
        verify(lake, "plain", 1, workers=2, on_progress=steps.append)
    (thread,) = waiting
    assert thread.is_alive()
    before = len(steps)
    answer.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(steps) == before


def test_an_interrupt_between_pieces_ends_the_verification(lake: Store) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    for workers in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            verify(lake, "plain", 1, workers=workers, on_progress=interrupt)


# The command


def test_several_versions_and_all_of_them(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", str(copy)]
    assert main(["verify", "plain", "texts@v1", *store]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "plain v1",
        "texts v1",
    ]
    shard = copy / "left" / "v1" / "data" / "train-00000-00.parquet"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    assert main(["verify", "--all", "--json", *store]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert {report["dataset"] for report in told["reports"]} == {
        *("plain", "learned", "texts", "answers", "left", "right", "judged")
    }
    (bad,) = [problem for report in told["reports"] for problem in report["problems"]]
    assert (bad["path"], bad["problem"]) == ("data/train-00000-00.parquet", "sha256")
    assert bad["problem"] in FILE_PROBLEMS and bad["expected"] != bad["got"]
    assert main(["verify", *store]) == main(["verify", "plain", "--all", *store]) == 2
    assert main(["verify", "plain", "--workers", "0", *store]) == 2


def test_a_manifest_that_is_no_file_is_damage(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = copy / "plain" / "v1" / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert main(["verify", "plain@v1", "--store", str(copy)]) == 3
    assert "manifest.json  unreadable" in capsys.readouterr().out
    assert main(["verify", "--all", "--store", str(copy)]) == 3


def test_a_web_server_says_what_was_not_looked_for(
    lake: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        key: data for key, data in files_of(lake).items() if key.startswith("learned/")
    }
    with serving("http", files) as served:
        assert main(["verify", "learned@v1", "--store", served.url]) == 0
    out = capsys.readouterr().out
    assert "intact" in out and "unlisted files and tags were not checked" in out


def test_records_of_another_version_are_no_records_of_this_one(copy: Path) -> None:
    catalog = Catalog(open_store(copy))
    manifest = catalog.manifest("plain", 1)
    assert catalog.ledger("plain", 1, manifest=manifest)
    ledgers = [
        copy / name / "v1" / "ledger" / "00000.json" for name in ("plain", "texts")
    ]
    ledgers[0].write_bytes(ledgers[1].read_bytes())
    with pytest.raises(IntegrityError, match="the manifest lists"):
        catalog.ledger("plain", 1, manifest=manifest)
    ledgers[0].unlink()
    with pytest.raises(IntegrityError, match="missing"):
        catalog.ledger("plain", 1, manifest=manifest)
