"""The same build, whatever the machine is like: same bytes in everything but ``runs/``.

Places, worker counts and interrupted runs are in ``test_build.py``; here is the rest of
what must not matter.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import tokenlake
from tokenlake.etl import BuildSession, WorkerPool, build_dataset

YEARS: Final = 11
LIBRARY: Final = Path(tokenlake.__file__).parents[1]

SCRIPT: Final = """
import json, os, sys
os.umask(int(sys.argv[1], 8))
from tokenlake import build_dataset
build_dataset(json.loads(sys.argv[2]), workers=1)
"""

#: Tells a time some years later than it is; what only measures time is left alone.
CLOCK: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static const time_t LATER = %d;

int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += LATER;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(at, zone);
    if (!failed && at) at->tv_sec += LATER;
    return failed;
}
"""

Config = dict[str, Any]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Config:
    """Two sources, two splits, bad records, kept fields; four units."""
    folder = tmp_path_factory.mktemp("in")
    for source, many in (("fleuve", 3), ("web", 1)):
        (folder / source).mkdir()
        for unit in range(many):
            texts = [
                {
                    "text": f"{source} été {unit}-{i}: "
                    + "the quick brown fox, 日本 " * (i % 5)
                }
                for i in range(40)
            ]
            lines = [json.dumps(text, ensure_ascii=False) for text in texts]
            lines.insert(7, '{"text": 7}')
            (folder / source / f"{unit}.jsonl").write_text(
                "\n".join(lines) + "\n", encoding="utf-8"
            )
    return {
        "name": "set",
        "datasets": [
            {"name": "a", "data_files": str(folder / "fleuve")},
            {"name": "b", "data_files": str(folder / "web")},
        ],
        "default_tokenizer": str(tokenizer_dir),
        "source": {
            "unit_size": 4000,
            "on_bad_record": "quarantine",
            "max_bad_fraction": 0.1,
            "splits": {"train": 0.8, "validation": 0.2},
        },
        "pack": {"enabled": True, "seq_length": 32},
    }


@pytest.fixture(scope="module")
def usual(config: Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("usual") / "store"
    assert build_dataset(into(config, store), workers=1).units_built == 4
    return tree(store)


def into(config: Config, store: Path) -> Config:
    return copy.deepcopy(config) | {"save": {"output_dir": str(store)}}


def tree(store: Path) -> dict[str, str]:
    """Mode and hash of every file outside ``runs/``."""
    found: dict[str, str] = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store)
        if path.is_file() and "runs" not in name.parts:
            mode = stat.S_IMODE(path.stat().st_mode)
            found[str(name)] = (
                f"{mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            )
    return found


def built_apart(
    config: Config, store: Path, environment: dict[str, str], umask: str = "022"
) -> Path:
    """Build in a process of its own and return the store."""
    command = [sys.executable, "-c", SCRIPT, umask, json.dumps(into(config, store))]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG"))
    }
    done = subprocess.run(
        command,
        env=kept | {"PYTHONPATH": str(LIBRARY)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return store


def test_four_workers_in_a_deep_folder_with_spaces_and_letters_of_all_kinds(
    config: Config, usual: dict[str, str], tmp_path: Path
) -> None:
    deep = tmp_path.joinpath(*(f"{level} ein Ordner ü 湖" for level in range(8)))
    given = copy.deepcopy(config)
    for dataset in given["datasets"]:
        moved = deep / "Eingabe – été" / dataset["name"]
        shutil.copytree(dataset["data_files"], moved)
        dataset["data_files"] = str(moved)
    build_dataset(into(given, deep / "See 湖"), workers=4)
    assert tree(deep / "See 湖") == usual


def test_units_in_another_order(
    config: Config, usual: dict[str, str], tmp_path: Path
) -> None:
    with WorkerPool(1) as pool:
        session = BuildSession.open(into(config, tmp_path / "store"))
        for index in reversed(session.pending):
            session.run_unit(index, pool)
        session.commit()
    assert tree(tmp_path / "store") == usual


def test_another_hash_seed_time_zone_locale_and_umask(
    config: Config, usual: dict[str, str], tmp_path: Path
) -> None:
    # A locale without letters beyond ASCII, and no help from Python: what opens text
    # must say how it is encoded.
    environment = {
        "PYTHONHASHSEED": "12345",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "POSIX",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "COLUMNS": "41",
        "NO_COLOR": "1",
    }
    assert (
        tree(built_apart(config, tmp_path / "store", environment, umask="077")) == usual
    )


def test_another_clock(config: Config, usual: dict[str, str], tmp_path: Path) -> None:
    store = built_apart(config, tmp_path / "store", later(tmp_path))
    assert tree(store) == usual
    logs = (
        path
        for path in store.glob("set/v1/runs/*.json")
        if path.name != "manifest-copy.json"
    )
    log = min(logs, key=lambda path: len(path.name))  # beside how it was asked
    assert (
        int(json.loads(log.read_text())["begin"][:4]) >= datetime.now(UTC).year + YEARS
    )


def later(folder: Path) -> dict[str, str]:
    """The environment of a process that believes it is years later, and of its
    children.
    """
    (folder / "clock.c").write_text(CLOCK % (YEARS * 366 * 86400))
    library = folder / "clock.so"
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: the clock is shifted by a small preloaded library")
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(folder / "clock.c"),
        "-ldl",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}
