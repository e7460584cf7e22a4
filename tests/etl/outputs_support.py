"""Small builds in this process, and their rows."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tokenlake
from tokenlake import Manifest, verify
from tokenlake.etl import BuildSession, InProcessPool
from tokenlake.runtime.store import open_store

Config = dict[str, Any]


class Built:
    """A committed version, verified deeply."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        report = verify(
            open_store(str(folder.parents[1])),
            manifest.dataset,
            manifest.version,
            deep=True,
            workers=1,
        )
        assert report.ok, report.problems

    def files(self, split: str = "train") -> list[Path]:
        return [
            self.folder / shard.path
            for shard in self.manifest.files
            if shard.split == split
        ]

    def table(self, split: str = "train") -> pa.Table:
        return pa.concat_tables(pq.read_table(path) for path in self.files(split))

    def rows(self, split: str = "train") -> list[dict[str, Any]]:
        return self.table(split).to_pylist()

    def sizes(self, split: str = "train") -> list[int]:
        return [shard.rows for shard in self.manifest.files if shard.split == split]


def build_here(config: Config) -> Built:
    """Build without worker processes, which take a second to start."""
    session = BuildSession.open(config)
    pool: Any = InProcessPool()
    for index in session.pending:
        session.run_unit(index, pool)
    manifest = session.commit()
    return Built(Path(session.path), manifest)


def documents_of(
    rows: Iterable[dict[str, Any]], column: str = "input_ids"
) -> dict[tuple[int, int], list[Any]]:
    """Put documents of packed rows together from their pieces, which must follow one
    another without gaps.
    """
    pieces: dict[tuple[int, int], list[tuple[int, list[Any]]]] = {}
    for row in rows:
        at = 0
        for length, origin in zip(
            row["segment_lengths"], row["documents"], strict=True
        ):
            key = origin["file"], origin["position"]
            pieces.setdefault(key, []).append(
                (origin["start"], row[column][at : at + length])
            )
            at += length
        assert at <= len(row["input_ids"])
    whole: dict[tuple[int, int], list[Any]] = {}
    for key, found in pieces.items():
        ids = whole[key] = []
        for start, part in sorted(found):
            assert start == len(ids)
            ids += part
    return whole


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def notes(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Records of different lengths."""
    return [
        {"text": f"note {i}: " + "the quick brown fox, été " * (i % 5), "id": i}
        for i in range(first, first + count)
    ]


def settings(root: Path, tokenizer: Path, data: object, **dataset: Any) -> Config:
    return {
        "name": "set",
        "datasets": [{"name": "s", "data_files": str(data), **dataset}],
        "default_tokenizer": str(tokenizer),
        "save": {"output_dir": str(root / "store")},
    }


def tree(folder: Path, *, skip: tuple[str, ...] = ("runs",)) -> dict[str, str]:
    """Hashes of all files that are identity."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in skip
    }


_UNTIL_A_UNIT = """
import json, os, signal, sys
from pathlib import Path
from tokenlake import build_dataset

def end(event):
    if any(Path(sys.argv[2]).glob("ledger/*.json")):
        os.killpg(0, signal.SIGKILL)

build_dataset(json.loads(sys.argv[1]), workers=1, on_event=end)
"""


def kill_after_a_unit(config: Config, version: Path) -> dict[Path, int]:
    """Build in a process of its own that ends itself and all its workers by kill -9
    once a unit is finished.

    Returns:
        the ledger records that it left, and their inodes.
    """
    env = os.environ | {"PYTHONPATH": str(Path(tokenlake.__file__).parents[1])}
    command = [sys.executable, "-c", _UNTIL_A_UNIT, json.dumps(config), str(version)]
    # The end of what they all write to is the end of its workers, too.
    ended = subprocess.run(
        command, env=env, start_new_session=True, stderr=subprocess.PIPE, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    finished = {path: path.stat().st_ino for path in version.glob("ledger/*.json")}
    assert finished
    return finished


def kill_once(true: Callable[[], bool], script: str, config: Config) -> None:
    """Run a script of Python; end it by kill -9 once something is true, and return
    when its workers have ended too.
    """
    env = os.environ | {"PYTHONPATH": str(Path(tokenlake.__file__).parents[1])}
    command = [sys.executable, "-c", script, json.dumps(config)]
    process = subprocess.Popen(
        command, env=env, start_new_session=True, stderr=subprocess.PIPE
    )
    # Its end is looked at and not taken: the group of a process that nobody waited for
    # can be killed.
    while (
        not true()
        and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        is None
    ):
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()  # the workers write there as well
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
