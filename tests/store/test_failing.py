"""A local store on a disk that refuses: what was published stands, errors are not
hidden by others, folders last.
"""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenlake
from tests.builds import config_of
from tokenlake.errors import StoreError
from tokenlake.etl import BuildSession, InProcessPool, build_dataset
from tokenlake.runtime.store import HashingFile, LocalStore, new_temp_name

POOL: Any = InProcessPool()


def failing(code: int, *, after: int = 0) -> Callable[..., None]:
    """A system call that fails, the first ``after`` times apart."""
    left = [after]

    def call(*arguments: object, **_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code), str(arguments[0]))

    return call


def temporary(store: LocalStore) -> list[str]:
    return [path.name for path in Path(store.url).rglob(".tmp*")]


def test_a_temporary_name_that_stays_fails_no_publish_and_is_swept_later(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    assert store.put_new("d/v1/x", b"x") == "created"
    assert store.put_new("d/v1/x", b"x") == "equal"
    assert store.swap("d/v1/x", b"y", b"x") == "replaced"
    monkeypatch.undo()
    # What is there already needs no file.
    assert (store.read("d/v1/x"), len(temporary(store))) == (b"y", 1)
    assert [left.dead for left in store.leftovers("")] == [False]  # of this process


def test_it_hides_no_error_either(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC, after=4))
    with pytest.raises(StoreError, match=r"publish d/v1/x: No space left.*Free space"):
        store.put_new("d/v1/x", b"x")


def test_a_sweep_that_fails_says_where(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(store.temp("d/v1").parent)
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    with pytest.raises(
        StoreError, match=r"remove d/v1/.*: Input/output error.*The disk failed"
    ):
        store.sweep_temp("d/v1")


def orphan(folder: Path) -> Path:
    """A temporary file of a process that is no more."""
    name = new_temp_name().replace(f"-{os.getpid()}-", f"-{2**22 + 5}-")
    (folder / name).touch()
    return folder / name


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(),
    reason="needs /proc to tell a descriptor's folder",
)
def test_every_folder_that_is_made_is_durable_in_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    LocalStore(tmp_path / "a" / "b" / "lake").temp("d/v1")
    lake = tmp_path / "a/b/lake"
    # The store itself first to see that its file system can: then its entry, which is
    # the first in it.
    above = [tmp_path, tmp_path / "a", tmp_path / "a/b", lake, lake, lake / "d"]
    assert synced == [str(folder) for folder in above]


@pytest.fixture
def config(tmp_path: Path, tokenizer_dir: Path) -> dict[str, Any]:
    """A build of one unit with one bad record, which is put into quarantine."""
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": null}\n')
    plain = config_of(tmp_path, tmp_path / "in.jsonl", tokenizer_dir)
    return plain | {"source": {"on_bad_record": "quarantine", "max_bad_fraction": 0.5}}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".tmp*")]


@pytest.mark.parametrize("before", [0, 1], ids=["a shard", "the file of bad records"])
def test_a_file_that_cannot_be_opened_leaves_no_temporary_name(
    before: int, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = os.open, list[str]()

    def refused(path: str | Path, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_TRUNC and ".tmp-" in str(path):
            opened.append(str(path))
            if len(opened) > before:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, mode, **more)

    session = BuildSession.open(config)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(
        StoreError, match=r"cannot open .*: Input/output error\. The disk failed"
    ):
        session.run_unit(0, POOL)
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs /proc to tell a descriptor's file"
)
def test_a_part_is_given_up_on_a_disk_that_stays_full(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    begun: set[str] = set()

    def full(descriptor: int, data: Any) -> int:
        """Fail on the second write to a Parquet file of the store."""
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path in begun:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if path.startswith(str(tmp_path)) and bytes(data[:4]) == b"PAR1":
            begun.add(path)
        return real(descriptor, data)

    session = BuildSession.open(config)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        StoreError, match=r"No space left on device after \d+ bytes\. Free space"
    ):
        session.run_unit(0, POOL)
    assert leftovers(tmp_path) == []


def test_a_file_size_limit_names_its_remedy(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal of it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with (
            HashingFile(tmp_path / "f") as sink,
            pytest.raises(StoreError, match=r"after 10 bytes.*ulimit -f"),
        ):
            sink.write(b"x" * 11)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_a_run_that_was_killed_after_its_commit_left_is_swept_by_the_next(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    config = config_of(tmp_path, tmp_path / "in.jsonl", tokenizer_dir)
    version = Path(build_dataset(config, workers=1).path)
    left = orphan(version)
    before = (version / "manifest.json").read_bytes()
    assert build_dataset(config, workers=1).status == "exists"
    assert not left.exists()
    assert (version / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        (
            "flock",
            "ENOLCK",
            r"store: its file system has no flock \(No locks available\)",
        ),
        (
            "fsync",
            "EINVAL",
            r"its file system has no fsync of a folder \(Invalid argument\)",
        ),
    ],
)
def test_a_file_system_that_lacks_a_call_is_refused_before_any_work(
    call: str, code: str, said: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is missing: no call can be made to fail")
    (tmp_path / "in.jsonl").write_text('{"text": "a lake holds water"}\n' * 40)
    config = tmp_path / "lake.json"
    config.write_text(
        json.dumps(config_of(tmp_path, tmp_path / "in.jsonl", tokenizer_dir))
    )
    trace = ["strace", "-f", "-qq", "-o", os.devnull]
    trace += ["-e", f"trace={call}", "-e", f"inject={call}:error={code}"]
    command = [
        sys.executable,
        "-P",
        "-m",
        "tokenlake",
        "run",
        "--no-prefect",
        str(config),
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(tokenlake.__file__).parents[1])}
    done = subprocess.run(
        [*trace, *command], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.search(rf"{said}, which safe writes need\. Use a folder", error)
    assert "Traceback" not in done.stderr and not [
        *tmp_path.rglob("claim.json"),
        *tmp_path.rglob(".tmp*"),
    ]
