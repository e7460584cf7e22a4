"""What cannot be stopped from inside is ended from outside: a stuck worker is
killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.no_job import no_job
from tokenlake import Catalog
from tokenlake.errors import ConfigError, WorkerError
from tokenlake.etl import WorkerPool, build_dataset
from tokenlake.runtime.store import open_store

FUNCTIONS = """
import re

def astray(row):
    if row["text"] == "now":  # holds the interpreter's lock: nothing else of the process runs
        re.match(r"(a+)+$", "a" * 60 + "b")
    return row
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "lake_functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_function_that_never_returns(
    functions: Path,
    tmp_path: Path,
    tokenizer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Behind what planning looks at, which happens in the process that was asked to
    # plan.
    rows = [{"text": f"a lake {i} " * 20} for i in range(3000)] + [
        {"text": "now"},
        {"text": "a river"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "stuck",
        "datasets": [
            {
                "name": "pages",
                "data_files": str(tmp_path / "in.jsonl"),
                "transforms": [{"apply": "lake_functions:astray"}],
            }
        ],
        "default_tokenizer": str(tokenizer_dir),
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(tmp_path / "store")},
    }
    # Where the machine stood still, a worker may have been silent before it came so
    # far.
    for seconds in (4, 20, 90):
        monkeypatch.setenv("TOKENLAKE_WORKER_SECONDS", str(seconds))
        heard = (
            rf"was stuck and was killed: it gave no sign of life for {seconds} seconds"
        )
        with pytest.raises(WorkerError, match=heard) as caught:
            build_dataset(config, workers=1)
        if "beginning a job" not in str(caught.value):
            break
    assert re.search(
        r"It was preparing pages: in\.jsonl, records from \d+ to \d+\.",
        str(caught.value),
    )
    # Not WorkerDiedError, which would be tried again.
    assert type(caught.value) is WorkerError
    with pytest.raises(ProcessLookupError):
        os.kill(caught.value.details["pid"], 0)
    catalog = Catalog(open_store(tmp_path / "store"))
    assert not [info for info in catalog.versions("stuck") if info.committed]


def test_the_pool_lives_on_with_another_worker() -> None:
    with WorkerPool(1, seconds=0.05) as pool:
        before = pool.pids()
        os.kill(before[0], signal.SIGSTOP)  # so that it never answers
        with pytest.raises(WorkerError, match="It was beginning a job"):
            pool.run(no_job("nothing"))
        assert len(pool.pids()) == 1
        assert pool.pids() != before


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1e9"])
def test_a_time_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLAKE_WORKER_SECONDS", text)
    with pytest.raises(ConfigError, match="TOKENLAKE_WORKER_SECONDS"):
        WorkerPool(1)
