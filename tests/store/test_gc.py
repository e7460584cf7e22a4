"""Collecting garbage: what goes, what stays whatever its age, and that nothing
counts before its swap.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenlake as tl
from tests.store.support import build_store, claimed, closing_note, copy_store, files
from tests.store.support import settings as build_settings
from tests.store.test_catalog import commit
from tokenlake import Catalog, verify
from tokenlake.cli.app import main
from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.etl import BuildSession, InProcessPool, build_dataset
from tokenlake.runtime.store import (
    Claim,
    GcReport,
    Layout,
    LocalStore,
    VersionInfo,
    collect,
)

DAY = 86_400.0
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
Output = pytest.CaptureFixture[str]
FILES = (
    "data/train-00000-00.parquet",
    "ledger/00000.json",
    "runs/1.json",
    "tokenizer/tokenizer.json",
)

POOL: Any = InProcessPool()


def age(root: Path, days: float) -> None:
    """Make everything below a folder, or one file, so old."""
    then = time.time() - days * DAY
    for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
        os.utime(path, (then, then), follow_symlinks=False)


def temporary(
    folder: Path, *, pid: int | None = None, machine: str = "elsewhere"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".tmp-{machine}-{pid or 1}-{'0' * 16}"
    path.write_bytes(b"half")
    return path


def unfinished(
    store: LocalStore, dataset: str = "code", fingerprint: str = A
) -> Layout:
    """Claim a version, and write a few files of it."""
    layout = Layout(dataset, Catalog(store).claim(dataset, fingerprint, {}).version)
    for path in FILES:
        store.put_new(layout.key(path), path.encode())
    return layout


def week(store: LocalStore, *, dry_run: bool = False) -> GcReport:
    return collect(store, grace=7 * DAY, dry_run=dry_run)


def few_inputs(root: Path) -> None:
    for name, text in (
        ("notes/a.txt", "One line.\nAnother one.\n"),
        ("pages/b.jsonl", '{"text": "A page."}\n'),
    ):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


# Unfinished builds


def test_an_unfinished_build_leaves_its_claim_and_its_number(
    store: LocalStore, tmp_path: Path
) -> None:
    layout = unfinished(store)
    age(tmp_path, 8)
    planned = week(store, dry_run=True)
    assert planned.dry_run
    assert len(files(tmp_path)) == 5
    report = week(store)
    assert (report.removed, report.swept, report.kept) == (
        planned.removed,
        planned.swept,
        (),
    )
    assert [each.name for each in report.removed] == [
        layout.key(path) for path in FILES
    ]
    assert {each.kind for each in report.removed} == {"unfinished"}
    assert report.bytes == sum(len(layout.path(each.name)) for each in report.removed)
    assert [path.name for path in (tmp_path / "code/v1").iterdir()] == ["claim.json"]
    assert Catalog(store).read_claim("code", 1).state == "swept"
    nothing = GcReport(
        store=store.url, grace=7 * DAY, dry_run=False, removed=(), swept=(), kept=()
    )
    assert week(store) == nothing


@pytest.mark.parametrize(
    "fresh",
    [
        "claim.json",
        "data/train-00000-00.parquet",
        "runs/1.json",
        ".tmp-elsewhere-1-0000000000000000",
    ],
)
def test_one_change_keeps_a_build_alive(
    store: LocalStore, tmp_path: Path, fresh: str
) -> None:
    unfinished(store)
    temporary(tmp_path / "code/v1")
    age(tmp_path, 8)
    age(tmp_path / "code/v1" / fresh, 2)
    before = files(tmp_path)
    report = week(store)
    assert report.swept == ()
    assert [(each.name, each.reason) for each in report.kept] == [
        ("code/v1", "unfinished, and changed 2 days ago")
    ]
    gone = (
        set()
        if fresh.startswith(".tmp")
        else {"code/v1/.tmp-elsewhere-1-0000000000000000"}
    )
    assert files(tmp_path) == before - gone


def test_a_sweep_that_died_is_ended(store: LocalStore, tmp_path: Path) -> None:
    layout = unfinished(store)
    claim, data = Catalog(store).stored_claim("code", 1)
    store.swap(layout.claim, claim.turned("swept").to_bytes(), data)
    report = week(store)  # whatever its age
    assert [(each.version, each.was) for each in report.swept] == [(1, "swept")]
    assert files(tmp_path) == {"code/v1/claim.json"}
    (tmp_path / "code/v1/data").mkdir()  # it died before it removed the folders
    week(store)
    assert [path.name for path in (tmp_path / "code/v1").iterdir()] == ["claim.json"]
    assert week(store).swept == ()


def test_a_claim_that_began_to_commit_is_closed_first(
    store: LocalStore, tmp_path: Path
) -> None:
    layout = unfinished(store)
    claim, data = Catalog(store).stored_claim("code", 1)
    store.swap(layout.claim, claim.turned("committing").to_bytes(), data)
    assert week(store).swept == ()  # the swap itself is a change
    age(tmp_path, 8)
    assert [each.was for each in week(store).swept] == ["committing"]
    assert files(tmp_path) == {"code/v1/claim.json", "code/v1/manifest.json"}
    assert store.read(layout.manifest) == closing_note("code", 1)
    catalog = Catalog(store)
    assert catalog.read_claim("code", 1).state == "swept"
    assert catalog.datasets() == []
    with pytest.raises(
        NotFoundError, match="was removed, by rm or as an unfinished build by gc"
    ):
        catalog.manifest("code", 1)
    with pytest.raises(VersionConflictError):
        commit(store, "code", 1)
    assert claimed(catalog, A) == (2, "new")
    assert week(store).swept == ()


def test_a_damaged_claim_ages_like_another_and_blocks_no_build_after(
    store: LocalStore, tmp_path: Path
) -> None:
    layout = unfinished(store)
    path = tmp_path / layout.claim
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IntegrityError):
        Catalog(store).claim("code", A, {})
    age(tmp_path, 8)
    assert [each.was for each in week(store).swept] == ["damaged"]
    assert claimed(Catalog(store), A) == (2, "new")
    with pytest.raises(VersionConflictError):  # whoever held it cannot commit
        commit(store, "code", 1)


def test_a_claim_of_a_later_format_is_not_ours_to_judge(
    store: LocalStore, tmp_path: Path
) -> None:
    layout = unfinished(store)
    path = tmp_path / layout.claim
    path.chmod(0o644)
    path.write_bytes(
        path.read_bytes().replace(b'"format_version":1', b'"format_version":2')
    )
    age(tmp_path, 100)
    report = week(store)
    assert [each.name for each in report.kept] == [layout.claim]
    assert report.removed == ()


def test_a_build_that_wakes_up_learns_that_it_was_swept(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    few_inputs(tmp_path)
    config = build_settings(tmp_path, tokenizer_dir)
    session = BuildSession.open(config)
    store = LocalStore(tmp_path / "store")
    age(tmp_path / "store", 8)
    assert len(week(store).swept) == 1
    with pytest.raises(
        VersionConflictError, match="run the build again: it starts a new version"
    ):
        session.run_unit(0, POOL)
    result = build_dataset(config, workers=1)
    assert result.version == 2
    assert verify(store, "small", 2, deep=True).ok


def test_a_build_that_gc_sweeps_before_its_first_unit_says_so(
    tmp_path: Path, tokenizer_dir: Path, capsys: Output
) -> None:
    few_inputs(tmp_path)
    session = BuildSession.open(build_settings(tmp_path, tokenizer_dir))
    assert main(["gc", "--grace", "0", "--store", str(tmp_path / "store")]) == 0
    with pytest.raises(
        VersionConflictError, match="run the build again: it starts a new version"
    ) as caught:
        session.run_unit(0, POOL)
    assert caught.value.exit_code == 1


def test_a_file_that_vanishes_while_it_is_written_is_no_missing_object(
    store: LocalStore, tmp_path: Path
) -> None:
    temp = store.temp("small/v1")
    temp.unlink()
    digest = hashlib.sha256(b"").hexdigest()
    with pytest.raises(
        StoreError, match=r"removed while it was written.*`gc`"
    ) as caught:
        store.publish(temp, "small/v1/claim.json", digest)
    assert caught.value.exit_code == 1


def test_resuming_an_old_build_makes_it_young(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    few_inputs(tmp_path)
    config = build_settings(tmp_path, tokenizer_dir)
    BuildSession.open(config)
    age(tmp_path / "store", 8)
    BuildSession.open(config)
    assert week(LocalStore(tmp_path / "store")).swept == ()


# Temporary files


def test_temporary_files_go_when_they_are_old_or_their_process_is_dead(
    store: LocalStore, tmp_path: Path
) -> None:
    commit(store, "code", 1)
    mine = store.temp("code/v1")
    machine, _ = mine.name.removeprefix(".tmp-").split(f"-{os.getpid()}-")
    dead = temporary(tmp_path / "code/v1", pid=2**22 + 5, machine=machine)
    old = temporary(tmp_path / "code/tags")
    age(old, 8)
    young = temporary(tmp_path / "code/v1", pid=77)
    report = week(store)
    gone = {path.relative_to(tmp_path).as_posix() for path in (dead, old)}
    assert {each.name for each in report.removed} == gone
    assert {each.kind for each in report.removed} == {"temporary"}
    assert mine.exists()
    assert young.exists()


def test_the_folder_of_a_claim_that_never_was_goes(
    store: LocalStore, tmp_path: Path
) -> None:
    temporary(tmp_path / "code/v1")
    assert week(store).removed == ()
    assert (tmp_path / "code/v1").is_dir()
    age(tmp_path, 8)
    assert len(week(store).removed) == 1
    assert not (tmp_path / "code/v1").exists()


def test_an_empty_folder_that_gc_removes_stops_no_writer(
    store: LocalStore, tmp_path: Path
) -> None:
    store.temp("code/v1").unlink()
    assert store.remove_folder("code/v1")
    assert not store.remove_folder("code/v1")
    assert store.temp("code/v1").exists()
    assert not store.remove_folder("code/v1")


# Committed versions


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    return build_store(tmp_path_factory.mktemp("built"), tokenizer_dir)


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> LocalStore:
    copy = copy_store(built, tmp_path / "lake")
    age(copy, 100)
    return LocalStore(copy)


def test_strays_go_and_what_is_known_stays(lake: LocalStore) -> None:
    root = Path(lake.url)
    version = root / "small/v1"
    strays = [
        version / "data/train-00077-00.parquet",
        version / "notes.txt",
        version / "deep/er/file",
    ]
    kept = [
        version / "runs/mine.json",
        root / "small/readme.txt",
        root / "foreign.bin",
        root / "Other/v1/x",
    ]
    young = version / "data/train-00078-00.parquet"
    for path in (*strays, *kept, young):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    age(root, 100)
    age(young, 1)
    assert not verify(lake, "small", 1).ok
    planned = week(lake, dry_run=True)
    report = week(lake)
    assert report.removed == planned.removed
    assert {each.name for each in report.removed} == {
        path.relative_to(root).as_posix() for path in strays
    }
    assert {each.kind for each in report.removed} == {"stray"}
    assert all(path.exists() for path in (*kept, young))
    assert not (version / "deep").exists()
    young.unlink()
    assert verify(lake, "small", 1, deep=True).ok


def test_of_a_damaged_version_nothing_is_touched(lake: LocalStore) -> None:
    root = Path(lake.url)
    (root / "small/v1/notes.txt").write_bytes(b"x")
    manifest = root / "small/v1/manifest.json"
    for data in (manifest.read_bytes()[:-7], b"", b"{}"):
        manifest.write_bytes(data)
        age(root, 100)
        report = collect(lake, grace=0)
        assert report.removed == ()
        assert [each.name for each in report.kept] == ["small/v1/manifest.json"]
        assert "none of its files was removed" in report.kept[0].reason


def test_a_folder_without_claim_and_manifest_is_not_ours(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "code/v1").mkdir(parents=True)
    (tmp_path / "code/v1/thesis.tex").write_text("x")
    age(tmp_path, 100)
    report = collect(store, grace=0)
    assert report.removed == ()
    assert [each.name for each in report.kept] == ["code/v1"]


# Any store


THINGS = st.tuples(
    st.sampled_from(
        ["building", "committing", "swept", "damaged", "stray", "temporary", "dead"]
    ),
    st.booleans(),
)


@settings(max_examples=8)
@given(st.lists(THINGS, max_size=8))
def test_whatever_lies_in_a_store(built: Path, things: list[tuple[str, bool]]) -> None:
    """What counts is untouched, what is young stays, the rest goes, and a dry run
    says exactly that before.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = copy_store(built, Path(folder) / "lake")
        age(root, 100)
        store = LocalStore(root)
        machine = store.temp("").name.removeprefix(".tmp-").split(f"-{os.getpid()}-")[0]
        gone, stays = set[str](), files(root)
        for index, (kind, old) in enumerate(things):
            added = _put(store, root, kind, index, machine)
            age(root / added.pop(), 8 if old else 1)
            for path in added:
                age(root / path, 8)
            after = files(root) - stays - gone
            kept = {path for path in after if path.endswith("claim.json")}
            goes = kind in ("swept", "dead") or old
            gone |= after - kept if goes else set()
            stays |= kept if goes else after
        planned, report = week(store, dry_run=True), week(store)
        assert (report.removed, report.swept, report.kept) == (
            planned.removed,
            planned.swept,
            planned.kept,
        )
        assert {each.name for each in report.removed} == gone
        noted = [
            each.version
            for each in report.swept
            if each.was not in ("building", "swept")
        ]
        closed = {f"small/v{version}/manifest.json" for version in noted}
        assert files(root) == stays | closed
        for version in (1, 2):
            report = verify(store, "small", version, deep=True)
            assert {problem.problem for problem in report.problems} <= {"unlisted"}
        for index, (kind, old) in enumerate(things):
            if (
                kind in ("building", "committing")
                and not old
                and ("damaged", False) not in things
            ):
                found = Catalog(store).claim("small", f"{index:064x}", {})
                assert (found.version, found.status) == (index + 10, "resumed")
        assert (week(store).removed, week(store).swept) == ((), ())


def _put(
    store: LocalStore, root: Path, kind: str, index: int, machine: str
) -> list[str]:
    """Put something into a store, and return its files; the last one says how old it
    is.
    """
    if kind == "stray":
        path = root / f"small/v1/data/stray-{index}"
        path.write_bytes(b"stray")
        return [path.relative_to(root).as_posix()]
    if kind in ("temporary", "dead"):
        dead = kind == "dead"
        path = temporary(
            root / "small/v2",
            pid=2**22 + index,
            machine=machine if dead else "elsewhere",
        )
        return [path.relative_to(root).as_posix()]
    layout = Layout("small", index + 10)
    claim = Claim(
        dataset="small", version=layout.version, fingerprint=f"{index:064x}", meta={}
    )
    data = claim.turned("building" if kind == "damaged" else kind).to_bytes()  # pyright: ignore[reportArgumentType]
    store.put_new(layout.claim, data[:-3] if kind == "damaged" else data)
    store.put_new(layout.key("data/part"), b"part")
    store.put_new(layout.ledger(0), b"record")
    return [layout.claim, layout.key("data/part"), layout.ledger(0)]


# Names, spans, the command


def test_only_the_datasets_that_are_named(store: LocalStore, tmp_path: Path) -> None:
    for name in ("code", "prose"):
        unfinished(store, name)
        temporary(tmp_path / name / "v1")
    age(tmp_path, 8)
    assert {each.dataset for each in collect(store, ["prose"], grace=DAY).swept} == {
        "prose"
    }
    assert len(files(tmp_path / "code")) == 6
    with pytest.raises(NotFoundError, match="did you mean code"):
        tl.gc(tmp_path, ["cod"])
    assert len(tl.gc(tmp_path, grace="8d", dry_run=True).removed) == 5


def test_the_command(store: LocalStore, tmp_path: Path, capsys: Output) -> None:
    unfinished(store)
    unfinished(store, fingerprint=B)
    Catalog(store).claim("code", C, {})
    temporary(tmp_path / "code/v2")
    age(tmp_path, 8)
    age(tmp_path / "code/v2/claim.json", 3)
    arguments = ["gc", "--store", str(tmp_path)]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--dry-run"]) == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    assert rows == [
        ["what", "where", "files", "size"],
        ["unfinished", "build", "code@v1", "4", "79", "B"],
        ["never", "published", "code@v2", "1", "4", "B"],
        ["unfinished", "build", "code@v3", "0", "0", "B"],
        [],
        ["5", "files,", "83", "B", "would", "be", "removed"],
    ]
    assert captured.err == "kept code/v2: unfinished, and changed 3 days ago\n"
    assert main([*arguments, "--json"]) == 0
    real = json.loads(capsys.readouterr().out)
    assert real | {"dry_run": True} == dry
    assert main(arguments) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert main([*arguments, "--grace", "yes"]) == 2


def test_what_cannot_be_removed_is_told_and_the_rest_goes(
    store: LocalStore, tmp_path: Path, capsys: Output
) -> None:
    unfinished(store)
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "code/v1/link.txt").symlink_to(tmp_path / "elsewhere")
    age(tmp_path, 8)
    assert main(["gc", "--store", str(tmp_path)]) == 1
    assert "kept code/v1/link.txt: it could not be removed" in capsys.readouterr().err
    assert files(tmp_path / "code") == {"v1/claim.json", "v1/link.txt"}
    assert (tmp_path / "elsewhere").exists()


def test_a_store_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    report = tl.gc(tmp_path / "none")
    assert (report.removed, report.swept, report.kept) == ((), (), ())
    assert not (tmp_path / "none").exists()


def test_reuse_survives_the_loss_of_what_it_reuses(
    built: Path, tmp_path: Path, tokenizer_dir: Path
) -> None:
    """A unit of an unfinished version that vanishes while it is adopted is built
    instead.
    """
    copy = copy_store(built, tmp_path / "lake")
    shutil.rmtree(copy / "small/v1")
    store, layout = LocalStore(copy), Layout("small", 2)
    (copy / layout.manifest).unlink()
    # Gc deletes them after the ledger, which was read before.
    for path in (copy / "small/v2/data").iterdir():
        path.unlink()
    _, data = Catalog(store).stored_claim("small", 2)
    store.swap(
        layout.claim,
        Claim(dataset="small", version=2, fingerprint=A, meta={}).to_bytes(),
        data,
    )
    config = build_settings(built.parent, tokenizer_dir) | {
        "save": {"output_dir": str(copy)}
    }
    result = build_dataset(config, workers=1)
    assert (result.version, result.units_reused) == (3, 0)
    assert verify(store, "small", 3, deep=True).ok


def test_swept_numbers_are_taken_but_not_listed(
    store: LocalStore, tmp_path: Path
) -> None:
    unfinished(store)
    age(tmp_path, 8)
    week(store)
    catalog = Catalog(store)
    assert catalog.datasets() == []
    with pytest.raises(NotFoundError, match="no dataset 'code'"):
        catalog.versions("code")
    assert catalog.versions("code", swept=True) == [VersionInfo(1, False, swept=True)]
    with pytest.raises(
        NotFoundError,
        match=r"code@v1 .* was removed, by rm or as an unfinished build by gc",
    ):
        catalog.resolve("code@v1")
    assert claimed(catalog, A) == (2, "new")
    assert claimed(catalog, A) == (2, "resumed")
    assert catalog.versions("code") == [VersionInfo(2, False)]


def test_a_closed_number_is_no_damaged_version_and_the_other_way_round(
    lake: LocalStore,
) -> None:
    layout = Layout("small", 1)
    path = Path(lake.url) / layout.manifest
    smallest = min(
        len(Catalog(lake).manifest("small", version).to_bytes()) for version in (1, 2)
    )
    note = closing_note("x" * 64, 999_999_999)
    assert len(note) <= 400 < smallest
    note = closing_note("small", 1)
    false = note.replace(b"true", b"tru3")
    for data in (b"", note[:-1], note + b"\n", false, closing_note("small", 2)):
        path.write_bytes(data)
        assert Catalog(lake).versions("small")[0] == VersionInfo(1, True)
        with pytest.raises(IntegrityError):
            Catalog(lake).manifest("small", 1)


def test_old_versions_stay_as_they_are(lake: LocalStore) -> None:
    before = files(Path(lake.url))
    assert collect(lake, grace=0).removed == ()
    assert files(Path(lake.url)) == before
    assert Catalog(lake).read_claim("small", 1).state == "committing"
