"""A flat directory appears whole or not at all, and is replaced whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.seeds import promise
from tokenlake.errors import ConfigError, NotAvailableError, StoreError
from tokenlake.etl.export import FlatManifest
from tokenlake.rowwise import (
    JsonShardedSource,
    ParquetShardedSource,
    create_writer,
    save_dataset,
)

ROWS = [{"id": i} for i in range(10)]
OTHER = [{"id": i} for i in range(100, 104)]


def listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@promise(80)
def test_a_directory_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path):
    out = tmp_path / "out"
    save_dataset(ROWS, out)
    before = listing(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"is not empty \(it holds rows that Tokenlake saved, in format parquet\); nothing",
    ):
        save_dataset(OTHER, out)
    assert listing(tmp_path) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"'notes\.txt'"):
        create_writer(tmp_path / "mine")


def test_an_empty_directory_and_a_missing_one_are_fine(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        save_dataset(ROWS, target)
        assert list(ParquetShardedSource(f"{target}/*.parquet")) == ROWS


@promise(80)
def test_overwrite_replaces_data_files_and_leaves_notes(tmp_path: Path):
    out = tmp_path / "out"
    save_dataset(ROWS, out, num_shards=3)
    (out / "metadata.json").write_text("{}")
    (out / "README.md").write_text("mine")
    (out / "stray.parquet").write_bytes(b"old data of somebody's")
    save_dataset(OTHER, out, "jsonl", overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "_tokenlake",
        "train-00000-of-00001.jsonl",
    ]
    assert (out / "README.md").read_text() == "mine"
    assert list(JsonShardedSource(f"{out}/*.jsonl")) == OTHER
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_overwrite_never_deletes_folders(tmp_path: Path):
    (tmp_path / "out" / "precious").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds 'precious', which is not a file"):
        save_dataset(ROWS, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "precious").is_dir()


def test_a_failed_replacement_leaves_the_old(tmp_path: Path):
    out = tmp_path / "out"
    save_dataset(ROWS, out)
    before = listing(tmp_path)
    with pytest.raises(ZeroDivisionError), create_writer(out, overwrite=True) as writer:
        writer.add({"id": 1})
        raise ZeroDivisionError
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("", ConfigError, "must be the path of a directory"),
        ("/", ConfigError, "root of the file system"),
        ("ftp://host/out", NotAvailableError, "ftp:// is not available"),
        ("s3://user:word@bucket/out", ConfigError, "contains a password"),
    ],
)
def test_impossible_targets(target: str, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        save_dataset(ROWS, target)


def test_a_file_is_no_target(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        save_dataset(ROWS, tmp_path / "file", overwrite=True)


def test_a_link_to_a_directory_means_that_directory(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_dataset(ROWS, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert FlatManifest.of(tmp_path / "real").rows == 10


def test_two_writers_of_one_target_do_not_mix(tmp_path: Path):
    with create_writer(tmp_path / "out") as writer:
        writer.add({"id": 7})
        with pytest.raises(StoreError, match="another process is writing"):
            save_dataset(ROWS, tmp_path / "out")
    assert [row["id"] for row in ParquetShardedSource(str(tmp_path / "out"))] == [7]


def test_files_can_be_read_by_whom_the_folder_can(tmp_path: Path):
    stats = save_dataset(ROWS, tmp_path / "out")
    assert (
        Path(stats.output_paths[0]).stat().st_mode & 0o777
        == (tmp_path / "out").stat().st_mode & 0o666
    )


_CRASHES = textwrap.dedent("""
    import hashlib, os, shutil, sys
    from pathlib import Path
    from tokenlake.etl.export.directory import FlatManifest
    from tokenlake.rowwise.save import save_dataset

    os.fsync = lambda descriptor: None  # what a killed process wrote is there without it
    root = Path(sys.argv[1])
    old, new = [{"id": i} for i in range(10)], [{"id": i} for i in range(100, 104)]
    steps = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "shutil.copyfile", "os.chmod"}

    def save(target, rows):
        save_dataset(rows, target, "jsonl", overwrite=True)

    def crashing(target, rows, step):
        pid = os.fork()
        if pid == 0:
            left = [step]
            def hook(event, args):
                if event in steps:
                    left[0] -= 1
                    if left[0] < 0:
                        os._exit(9)
            sys.addaudithook(hook)
            save(target, rows)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def state(target):
        if not target.exists():
            return "missing"
        manifest = FlatManifest.of(target)
        for file in manifest.files:
            assert hashlib.sha256((target / file.path).read_bytes()).hexdigest() == file.sha256
        assert {p.name for p in target.iterdir()} == {f.path for f in manifest.files} | {"_tokenlake", "notes.txt"}
        return {10: "old", 4: "new"}[manifest.rows]

    seen = []
    for crash_at in range(200):
        folder = root / str(crash_at)
        folder.mkdir()
        target = folder / "out"
        save(target, old)
        (target / "notes.txt").write_text("mine")
        code = crashing(target, new, crash_at)
        found = state(target)
        seen.append(found)
        if found == "missing":
            assert state(folder / ".out.tokenlake" / "old") == "old"
            assert state(folder / ".out.tokenlake" / "new") == "new"
        if code == 0:
            break
        assert code == 9
        save(target, new)
        assert state(target) == "new"
        assert [p.name for p in folder.iterdir()] == ["out"]
    print(*dict.fromkeys(seen), len(seen))
""")


def test_a_crash_at_any_step_leaves_old_or_new_and_the_next_run_mends(tmp_path: Path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _CRASHES, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["old", "missing", "new"]
    assert int(done.stdout.split()[3]) > 10
