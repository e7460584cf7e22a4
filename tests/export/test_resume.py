"""An export that was interrupted anywhere resumes, and makes the bytes of one that was
not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds import Config
from tests.etl.remote_builds_support import bucket
from tests.export.interruptions import calls_of, interrupt, kill
from tests.servers.s3 import KEY, SECRET
from tokenlake import Catalog, export_version
from tokenlake.errors import ConfigError, StoreError
from tokenlake.etl import build_dataset
from tokenlake.etl.export import ExportProgress, FlatManifest
from tokenlake.runtime.store import open_store

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("parquet", "documents", {"max_shard_size": 6000}),
    ("parquet", "documents", {"num_shards": 4, "compression": "none"}),
    ("parquet", "documents", {"num_shards": 1, "compression": "none"}),
    ("parquet", "documents", {"num_shards": 2, "compression": "none"}),
    ("arrow", "documents", {"shard_column": "lang"}),
    ("parquet", "documents", {"shard_column": "lang", "max_shard_size": 6000}),
    ("arrow", "documents", {"max_shard_size": 20_000, "split": "train"}),
    ("jsonl", "documents", {"num_shards": 3, "compression": "gzip"}),
    ("jsonl", "documents", {"max_shard_size": 5000}),
    ("megatron", "documents", {"append_eos": True}),
    ("megatron", "packed", {"max_shard_size": 3000}),
    ("numpy", "documents", {"shard_column": "lang"}),
    ("numpy", "packed", {"num_shards": 3}),
    ("npy", "answers", {}),
    ("mds", "documents", {"max_shard_size": 4000}),
    ("mds", "packed", {"num_shards": 3}),
    ("litdata", "documents", {"max_shard_size": 4000}),
    ("array_record", "packed", {"num_shards": 5}),
)
"""Format, version and options of exports."""


def write_inputs(folder: Path) -> None:
    generator = random.Random(5)
    documents: list[str] = []
    questions: list[str] = []
    for number in range(50):
        text = f"document {number}: " + "a lake holds water. " * generator.randint(
            0, 60
        )
        lang = "en" if number % 3 else "de"
        documents.append(json.dumps({"text": text, "lang": lang}))
        answer = "water. " * generator.randint(1, 9)
        questions.append(json.dumps({"question": f"{number}?", "answer": answer}))
    (folder / "documents.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "questions.jsonl").write_text("\n".join(questions) + "\n")


def configs(folder: Path, tokenizer: Path) -> Iterator[Config]:
    documents: Config = {
        "name": "d",
        "data_files": str(folder / "documents.jsonl"),
    }
    questions: Config = {
        "name": "q",
        "data_files": str(folder / "questions.jsonl"),
        "prompt": {
            "template": "{question} {answer}",
            "input_columns": ["question"],
            "label_column": "answer",
        },
    }
    rest: Config = {
        "source": {"unit_size": 300},
        "save": {"output_dir": str(folder / "store")},
        "default_tokenizer": str(tokenizer),
    }
    split = {
        **documents,
        "additional_fields": ["lang"],
        "splits": {"train": 0.8, "val": 0.2},
    }
    yield {"name": "documents", "datasets": [split], **rest}
    yield {"name": "answers", "datasets": [questions], **rest}
    pack = {"enabled": True, "seq_length": 64}
    yield {"name": "packed", "datasets": [documents], "pack": pack, **rest}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    write_inputs(folder)
    for config in configs(folder, tokenizer_dir):
        build_dataset(config, workers=0)
    # An interruption inside a file needs more than one row group.
    for name in ("documents", "answers", "packed"):
        manifest = Catalog(open_store(folder / "store")).manifest(name, 1)
        row_groups = [len(file.row_groups) for file in manifest.files]
        assert sum(row_groups) > 4, name
    return folder / "store"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads write and hash as they do for large files."""
    trainers = "tokenlake.etl.export.trainers"
    rows = "tokenlake.etl.export.shard_files"
    monkeypatch.setattr(f"{rows}._GROUP_BYTES", 5000)
    monkeypatch.setattr(f"{rows}.GROWTH_BYTES", 900)
    monkeypatch.setattr(f"{trainers}.token_files.GROWTH_BYTES", 300)
    monkeypatch.setattr(f"{trainers}.block_file.BLOCK_BYTES", 100)
    monkeypatch.setattr(f"{trainers}.growing_hash.READ_BYTES", 100)
    monkeypatch.setattr(f"{trainers}.early_sync.STEP_BYTES", 100)


def tree(folder: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def times(folder: Path) -> set[int]:
    """Return the times at which the files of a folder were written last."""
    return {path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def times_of_finished(folder: Path) -> set[int]:
    """Return the times at which finished shards were written, by their record."""
    written: set[int] = set()
    for line in (folder / "finished.jsonl").read_text().splitlines()[1:]:
        shard = json.loads(line)
        for part in shard["parts"]:
            if shard.get("is_complete", True):
                name = f"{shard['series']}~{shard['index']}{part['suffix']}"
                written.add((folder / name).stat().st_mtime_ns)
    return written


_WHOLE: dict[int, tuple[dict[str, bytes], int]] = {}
"""Number of a case -> files of its uninterrupted export, and number of its calls."""


def whole(store: Path, case: int) -> tuple[dict[str, bytes], int]:
    if case not in _WHOLE:
        format, name, options = CASES[case]
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "out"
            calls = calls_of(
                lambda: export_version(store / name, target, format, **options)
            )
            _WHOLE[case] = tree(target), calls
    return _WHOLE[case]


@given(data=st.data())
def test_an_interrupted_export_resumes_to_equal_bytes(store: Path, data: st.DataObject):
    case = data.draw(st.integers(0, len(CASES) - 1), label="case")
    files, calls = whole(store, case)
    format, name, options = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        place.mkdir()

        def export() -> object:
            return export_version(store / name, place / "out", format, **options)

        # Twice: an export that resumes can be interrupted, too.
        for _ in range(data.draw(st.integers(1, 2), label="interruptions")):
            call = data.draw(st.integers(0, calls - 1), label="call")
            way = data.draw(st.sampled_from(["kill", "Ctrl-C", "full disk"]))
            if way == "kill":
                kill(export, call, place)
            elif way == "Ctrl-C":
                interrupt(export, call, KeyboardInterrupt())
            else:
                interrupt(export, call, OSError(28, "No space left on device"))
        export()
        assert tree(place / "out") == files
        assert [path.name for path in place.iterdir()] == ["out"]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_finished_shards_are_not_written_again(store: Path, tmp_path: Path, case: int):
    files, calls = whole(store, case)
    format, name, options = CASES[case]
    progress: list[ExportProgress] = []

    def export() -> object:
        return export_version(
            store / name,
            tmp_path / "place" / "out",
            format,
            on_progress=progress.append,
            **options,
        )

    (tmp_path / "place").mkdir()
    kill(export, calls * 4 // 5, tmp_path / "place")
    before = progress[-1]
    progress.clear()
    finished_times = times_of_finished(tmp_path / "place" / ".out.tokenlake" / "shards")
    export()
    assert finished_times <= times(tmp_path / "place" / "out")
    resumed = progress[0]
    assert resumed.is_resumed
    assert (resumed.shards, resumed.rows) == (before.shards, before.rows)
    assert 0 < resumed.rows <= resumed.rows_total
    if "num_shards" in options:
        splits = {"documents": 2}.get(name, 1)
        assert resumed.shards_total == options["num_shards"] * splits
    assert not any(later.is_resumed for later in progress[1:])
    assert tree(tmp_path / "place" / "out") == files


@pytest.mark.parametrize(
    ("format", "name", "options"),
    [
        ("megatron", "packed", {}),
        ("numpy", "packed", {}),
        ("npy", "answers", {}),
        ("parquet", "documents", {"num_shards": 1}),
        ("parquet", "packed", {"num_shards": 1, "compression": "none"}),
    ],
)
@pytest.mark.parametrize("events", [1, 3])
def test_a_file_of_a_whole_split_is_continued(
    store: Path,
    tmp_path: Path,
    format: str,
    name: str,
    options: dict[str, Any],
    events: int,
):
    progress: list[ExportProgress] = []

    def stop(current: ExportProgress) -> None:
        progress.append(current)
        if len(progress) == events:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_version(
            store / name, tmp_path / "out", format, on_progress=stop, **options
        )
    assert progress[-1].shards == 0
    resumed: list[ExportProgress] = []
    export_version(
        store / name, tmp_path / "out", format, on_progress=resumed.append, **options
    )
    assert resumed[0].is_resumed
    assert 0 < resumed[0].rows == progress[-1].rows < resumed[0].rows_total
    export_version(store / name, tmp_path / "whole", format, **options)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def interrupted(store: Path, folder: Path) -> Path:
    """Return the target of an interrupted export with finished shards."""

    def export() -> object:
        return export_version(
            store / "documents", folder / "out", "mds", max_shard_size=4000
        )

    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "out"
        calls = calls_of(
            lambda: export_version(
                store / "documents", target, "mds", max_shard_size=4000
            )
        )
    interrupt(export, calls // 2, KeyboardInterrupt())
    assert any((folder / ".out.tokenlake" / "shards").glob("train~*"))
    return folder / "out"


@pytest.mark.parametrize(
    ("name", "format", "options", "message"),
    [
        ("documents", "mds", {"max_shard_size": 5000}, "max_shard_size 4000, now 5000"),
        ("documents", "litdata", {"max_shard_size": 4000}, "'mds', now 'litdata'"),
        (
            "packed",
            "mds",
            {"max_shard_size": 4000},
            "dataset 'documents', now 'packed'",
        ),
    ],
)
def test_another_export_in_the_same_folder_is_refused(
    store: Path,
    tmp_path: Path,
    name: str,
    format: str,
    options: dict[str, Any],
    message: str,
):
    target = interrupted(store, tmp_path)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        export_version(store / name, target, format, **options)
    assert "overwrite=True, --overwrite" in str(raised.value)
    assert tree(tmp_path) == before
    export_version(store / name, target, format, overwrite=True, **options)
    export_version(store / name, tmp_path / "whole", format, **options)
    assert tree(target) == tree(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


def test_damaged_shards_are_written_again(store: Path, tmp_path: Path):
    target = interrupted(store, tmp_path)
    shards = sorted((tmp_path / ".out.tokenlake" / "shards").glob("train~*"))
    content = bytearray(shards[0].read_bytes())
    content[-1] ^= 1
    shards[0].write_bytes(content)
    shards[-1].unlink()
    export_version(store / "documents", target, "mds", max_shard_size=4000)
    export_version(store / "documents", tmp_path / "whole", "mds", max_shard_size=4000)
    assert tree(target) == tree(tmp_path / "whole")


def test_a_damaged_record_begins_again(store: Path, tmp_path: Path):
    target = interrupted(store, tmp_path)
    record = tmp_path / ".out.tokenlake" / "shards" / "finished.jsonl"
    record.write_bytes(b"{" + record.read_bytes())
    export_version(store / "documents", target, "mds", max_shard_size=4000)
    export_version(store / "documents", tmp_path / "whole", "mds", max_shard_size=4000)
    assert tree(target) == tree(tmp_path / "whole")


def test_an_export_that_cannot_be_repeated_leaves_nothing(store: Path, tmp_path: Path):
    """Without this, its files would stand in the way of every other export."""
    with pytest.raises(ConfigError, match="num_shards"):
        export_version(store / "documents", tmp_path / "out", "mds", num_shards=30)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_process_that_died_at_the_end_are_removed(
    store: Path, tmp_path: Path
):
    def export() -> object:
        return export_version(store / "documents", tmp_path / "a" / "out", "mds")

    (tmp_path / "a").mkdir()
    for call in range(calls_of(export) - 1, 0, -1):
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        kill(export, call, tmp_path / "a")
        if (tmp_path / "a" / "out").exists():
            break
    assert (tmp_path / "a" / ".out.tokenlake").exists()
    export()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_an_export_to_a_bucket_resumes(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    with bucket(kind) as served:
        monkeypatch.setenv("TOKENLAKE_SCRATCH", str(tmp_path / "scratch"))
        monkeypatch.setenv("LAKE_KEY", KEY)
        monkeypatch.setenv("LAKE_SECRET", SECRET)

        def export(prefix: str) -> object:
            return export_version(
                store / "documents",
                served.address(prefix).url,
                "mds",
                max_shard_size=4000,
                output_options=dict(served.address(prefix).options),
            )

        (tmp_path / "scratch").mkdir()
        calls = calls_of(lambda: export("whole"))
        files = {
            name: data
            for name, data in served.everything("whole").items()
            if not name.startswith("_probe")
        }
        assert len(files) > 6
        for call in (calls // 3, calls * 3 // 4, calls - 5):
            prefix = f"at-{call}"
            kill(lambda prefix=prefix: export(prefix), call, tmp_path / "scratch")
            if call < calls * 4 // 5:
                assert "_tokenlake/manifest.json" not in served.everything(prefix)
            assert calls_of(lambda prefix=prefix: export(prefix)) < calls
            assert {
                name: data
                for name, data in served.everything(prefix).items()
                if not name.startswith("_probe")
            } == files


def test_a_killed_command_resumes(store: Path, tmp_path: Path):
    """SIGKILL of the command itself, at any moment after its first shard."""
    command = [sys.executable, "-m", "tokenlake", "export", "documents", "out"]
    command += ["--format", "mds", "--max-shard-size", "4000", "--store", str(store)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    record = tmp_path / ".out.tokenlake" / "shards" / "finished.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if record.exists() and record.read_bytes().count(b"\n") > 1:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    is_finished = (tmp_path / "out").exists()
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    if not is_finished:
        assert "resumes: " in again.stderr
    export_version(store / "documents", tmp_path / "whole", "mds", max_shard_size=4000)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


def test_a_full_disk_names_the_way(store: Path, tmp_path: Path):
    with (
        pytest.raises(StoreError, match="finished work is kept"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "write", _full)
        export_version(store / "documents", tmp_path / "out", "mds")


def _full(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("format", ["megatron", "npy", "mds", "litdata"])
@pytest.mark.parametrize("allowed_writes", [0, 5, 20])
def test_an_error_of_a_thread_is_raised_and_the_threads_end(
    store: Path, tmp_path: Path, format: str, allowed_writes: int
):
    write = os.write
    calls_left = allowed_writes

    def write_until_full(descriptor: int, data: bytes) -> int:
        nonlocal calls_left
        if threading.current_thread() is threading.main_thread():
            return write(descriptor, data)
        calls_left -= 1
        if calls_left < 0:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    def export() -> object:
        return export_version(
            store / "documents", tmp_path / "out", format, max_shard_size=4000
        )

    with (
        pytest.raises(StoreError, match=r"No space left .* finished work is kept"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "write", write_until_full)
        export()
    assert not any(
        thread.name.startswith("tokenlake-") for thread in threading.enumerate()
    )
    export()
    export_version(store / "documents", tmp_path / "whole", format, max_shard_size=4000)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("format", ["numpy", "mds", "array_record"])
def test_recorded_hashes_are_those_of_the_files(
    store: Path, tmp_path: Path, format: str
):
    export_version(store / "packed", tmp_path / "out", format)
    manifest = FlatManifest.of(tmp_path / "out")
    for file in manifest.files:
        content = (tmp_path / "out" / file.path).read_bytes()
        assert (file.bytes, file.sha256) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
    assert not any(
        thread.name.startswith("tokenlake-") for thread in threading.enumerate()
    )


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="files are synced by fsync")
@pytest.mark.parametrize("format", ["numpy", "npy", "mds", "litdata", "array_record"])
@pytest.mark.parametrize("allowed_syncs", [0, 1, 4])
def test_an_early_sync_that_fails_is_an_error_and_the_threads_end(
    store: Path, tmp_path: Path, format: str, allowed_syncs: int
):
    sync = os.fdatasync
    calls = 0

    def sync_until_broken(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > allowed_syncs:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    def export() -> object:
        return export_version(
            store / "documents", tmp_path / "out", format, max_shard_size=4000
        )

    with (
        pytest.raises(StoreError, match="Input/output error"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "fdatasync", sync_until_broken)
        export()
    assert calls > allowed_syncs
    assert not any(
        thread.name.startswith("tokenlake-") for thread in threading.enumerate()
    )
    export()
    export_version(store / "documents", tmp_path / "whole", format, max_shard_size=4000)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
