"""Damaged stores: whatever reads them says so, or gives what is right; it never
gives anything else, dies or hangs.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.conftest import Cases
from tests.faults.readers import GROUPS, READERS, rebuild
from tests.reading.shards import OURS
from tests.reading.support import build_lake
from tests.store.support import copy_store
from tokenlake import Catalog, Manifest
from tokenlake.runtime.store import Layout, open_store

_OTHERS: tuple[dict[str, Any], ...] = (
    {"compression": "none"},
    {"compression": "snappy", "data_page_version": "2.0"},
    {"use_dictionary": True},
)


def build(root: Path) -> Path:
    """Build it below a folder, and return where it is."""
    store = copy_store(Path(build_lake(root / "lake").url), root / "store")
    rebuild(store, "mixed", mixed=True)
    _rewritten(store)
    catalog = Catalog(open_store(store))
    for name in ("plain", "texts"):
        catalog.set_tag(name, "prod", 1)
    catalog.set_tag("plain", "next", 1)
    for path in store.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return store


def _rewritten(store: Path) -> None:
    """``foreign``: the rows of ``learned``, each shard as another writer lays it
    out.
    """
    source, target = Layout("learned", 1), Layout("foreign", 1)
    manifest = Catalog(open_store(store)).manifest("learned", 1)
    shards = []
    for number, shard in enumerate(manifest.files):
        table = pq.read_table(store / source.key(shard.path))
        sink = io.BytesIO()
        group = max(1, table.num_rows // 2)
        pq.write_table(
            table,
            sink,
            row_group_size=group,
            **{**OURS, **_OTHERS[number % len(_OTHERS)]},
        )
        path = store / target.key(shard.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sink.getvalue())
        sha256 = hashlib.sha256(sink.getvalue()).hexdigest()
        starts = tuple(range(0, table.num_rows, group))
        shards.append(
            replace(shard, bytes=len(sink.getvalue()), sha256=sha256, row_groups=starts)
        )
    made: Manifest = replace(
        manifest, dataset="foreign", files=tuple(shards), other_files={}
    )
    (store / target.manifest).write_bytes(made.to_bytes())


_SAMPLE = 0.1  # of the cases
# Seconds without a word from a process: on a busy machine imports alone take minutes.
_PATIENCE = 400.0
_ROOT = Path(__file__).resolve().parents[2]
Case = tuple[str, int]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("corruption"))


def chosen(group: str, cases: Cases) -> list[Case]:
    """The cases of the readers of a group."""
    found: list[Case] = []
    for name, reader in READERS.items():
        if reader.group == group:
            every = [(name, seed) for seed in range(reader.cases)]
            found += cases.choose(every, sample=max(4, int(_SAMPLE * reader.cases)))
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_no_reader_gives_what_is_wrong(
    group: str, store: Path, tmp_path: Path, cases: Cases
) -> None:
    outcomes = Counter[tuple[str, str]]()
    for (name, seed), outcome, note in read_all(store, tmp_path, chosen(group, cases)):
        good = outcome in ("error", "right")
        outcomes[name, outcome] += 1
        again = "" if good else f"seed {seed}: {outcome}: {note}"
        cases.add(
            f"corruption: {name}",
            survived=good,
            silent=int(outcome == "silent"),
            note=again,
        )
    for name in dict.fromkeys(name for name, _ in outcomes):
        assert (
            outcomes[name, "error"] or outcomes[name, "silent"] or READERS[name].cached
        ), outcomes


def read_all(
    store: Path, folder: Path, left: list[Case]
) -> Iterator[tuple[Case, str, str]]:
    """Do cases in processes: one, and another where it died or hung, for the cases
    that are left.
    """
    while left:
        done = 0
        for case, outcome, note in _outcomes(store, folder, left):
            yield case, outcome, note
            done += outcome != "memory"
        assert done, "a process did nothing"
        left = left[done:]


def _outcomes(
    store: Path, folder: Path, left: list[Case]
) -> Iterator[tuple[Case, str, str]]:
    told = folder / "outcomes"
    told.unlink(missing_ok=True)
    code, errors = _run(store, folder, told, left)
    case: Any = None
    for line in told.read_text().splitlines() if told.exists() else ():
        fields = json.loads(line)
        if "case" in fields:
            case = fields["case"]
        else:
            yield tuple(case), fields["outcome"], fields["note"]
            case = None
    if case is not None:
        what = "hung" if code is None else f"ended with {code}"
        yield tuple(case), "died", f"the process {what}: {errors}"
    else:
        assert code == 0, f"{code}: {errors}"


def _run(
    store: Path, folder: Path, told: Path, left: list[Case]
) -> tuple[int | None, str]:
    """Run one process; return its exit code, None where it gave no sign of life for
    too long, and its last words.
    """
    given, errors = folder / "cases", folder / "errors"
    given.write_text(json.dumps(left))
    path = os.pathsep.join([str(_ROOT / "lib"), str(_ROOT)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    with given.open("rb") as source, errors.open("wb") as sink:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.faults.corruption_child",
                str(store),
                str(folder),
            ],
            stdin=source,
            stdout=sink,
            stderr=sink,
            cwd=_ROOT,
            env=environment,
        )
        try:
            code = _watched(process, told)
        finally:
            process.kill()
            process.wait()
    return code, errors.read_text(errors="replace")[-1500:]


def _watched(process: subprocess.Popen[bytes], told: Path) -> int | None:
    heard, size = time.monotonic(), -1
    while (code := process.poll()) is None:
        time.sleep(0.05)
        if (now := told.stat().st_size if told.exists() else -1) != size:
            heard, size = time.monotonic(), now
        elif time.monotonic() - heard > _PATIENCE:
            return None
    return code
