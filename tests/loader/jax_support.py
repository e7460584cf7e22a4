"""Runs a case in processes of its own: how many devices JAX has is settled when it is
imported.

A case is a module with ``main(facts)``, whose answer is JSON; see
:mod:`tests.loader.jax_worker`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.etl.outputs_support import build_here, notes, settings, write_jsonl
from tests.reading.support import small_row_groups
from tests.tokenizers.tokenizer_samples import sentencepiece

LENGTH = 32
_SECONDS = 120  # a worker takes a few; this ends what hangs, on any machine


def packed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the packed datasets ``large``, ``small``, ``learned`` (with a loss
    mask) and ``held`` (some of it held out), rows of 32 ids.
    """
    return _build(tmp_path_factory.getbasetemp() / "packed")


def run(
    case: str, *, processes: int = 1, devices: int = 8, quiet: bool = True, **facts: Any
) -> list[Any]:
    """Run a case in processes that JAX knows of each other, and return what each
    answered.

    Args:
        case: module, as ``tests.loader.jax_meshes``.
        devices: of each process.
        quiet: alone, it has nothing to say; several always say how they found each
            other.
        facts: for the case, JSON-able.
    """
    address = f"127.0.0.1:{_free_port()}" if processes > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        started = [
            _Worker(
                Path(folder) / str(index),
                case,
                {"index": index, "processes": processes, "address": address},
            )
            for index in range(processes)
        ]
        try:
            for worker in started:
                worker.start(devices, facts)
            return _answers(case, started, quiet and processes == 1)
        finally:
            for worker in started:
                worker.kill()


class _Worker:
    def __init__(self, folder: Path, case: str, place: dict[str, Any]) -> None:
        folder.mkdir()
        self._folder, self._case, self._place = folder, case, place
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, devices: int, facts: dict[str, Any]) -> None:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}",
            "JAX_COMPILATION_CACHE_DIR": str(_compiled()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        answer = str(self._folder / "answer.json")
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.loader.jax_worker",
            self._case,
            answer,
        ]
        command.append(
            json.dumps(self._place | {"facts": facts, "seconds": _SECONDS - 10})
        )
        with (self._folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdout=errors, stderr=errors
            )

    def code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def errors(self) -> str:
        return (self._folder / "errors").read_text(errors="replace")

    def answer(self) -> Any:
        return json.loads((self._folder / "answer.json").read_text())


@functools.cache
def _compiled() -> Path:
    """Where cases keep what JAX compiles, for other processes and for later cases."""
    folder = Path(tempfile.mkdtemp(prefix="tokenlake-jax-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _answers(case: str, workers: list[_Worker], quiet: bool) -> list[Any]:
    deadline = time.monotonic() + _SECONDS
    while any(worker.code() is None for worker in workers):
        failed = [worker for worker in workers if worker.code()]
        if failed or time.monotonic() > deadline:
            what = "failed" if failed else f"hung for {_SECONDS} s"
            shown = "\n".join(worker.errors()[-4000:] for worker in failed or workers)
            pytest.fail(f"{case} {what}, {len(workers)} process(es):\n{shown}")
        time.sleep(0.02)
    for worker in workers:
        said = worker.errors()
        if worker.code() or "Traceback" in said or (said and quiet):
            pytest.fail(f"{case} ended with {worker.code()}:\n{said[-4000:]}")
    return [worker.answer() for worker in workers]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def _build(root: Path) -> Path:
    tokenizer = root / "tokenizer"
    tokenizer.mkdir(parents=True)
    for name, data in sentencepiece().files.items():
        (tokenizer / name).write_bytes(data)
    asked = [
        {"question": f"what is {i}", "answer": f"it is {i} " * (i % 3 + 1)}
        for i in range(300)
    ]
    prompt = {
        "template": "{question} {answer}",
        "input_columns": ["question"],
        "label_column": "answer",
    }
    with small_row_groups():
        for name, records, options in (
            ("large", notes(700), {}),
            ("small", notes(150), {}),
            ("learned", asked, {"prompt": prompt}),
            ("held", notes(150), {"eval": 40}),
        ):
            data = write_jsonl(root / f"{name}.jsonl", records)
            config = settings(root, tokenizer, data, **options)
            build_here(
                config | {"name": name, "pack": {"enabled": True, "seq_length": LENGTH}}
            )
    return root / "store"
