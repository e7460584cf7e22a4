"""Files of the library that process one document: `python -m benchmarks.house --walk`.

A worker turns one line of JSON into a row of Parquet, in memory and in this process.
Its calls are recorded. The table counts the files whose functions are called, and how
often the next call is in another file than the one before.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final

import tokenlake
from tokenlake.etl.in_process_pool import InProcessPool
from tokenlake.etl.session import BuildSession
from tokenlake.etl.tokenizers.training import train_bpe
from tokenlake.runtime.store.layout import Layout

_ROOT: Final = Path(tokenlake.__file__).parent


def walk() -> list[str]:
    """Return the file of every call of a worker that builds a unit of one document.

    Calls are in their order, and files are relative to the library.
    """
    calls: list[str] = []

    def record_call(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT):
            calls.append(str(path.relative_to(_ROOT)))

    with tempfile.TemporaryDirectory() as folder:
        # 1. Plan a build of one unit, and choose its tokenizer backend.
        session = BuildSession.open(_config(Path(folder)))
        layout = Layout(session.dataset, session.version)
        (build_unit,) = session.plan.units
        # The choice of a tokenizer backend is not part of the worker's calls, and has a
        # pool of its own.
        backend_pool: Any = InProcessPool()
        backend = session.backends.choose(build_unit, backend_pool)
        job = session.plan.job(build_unit, session.plan.store, layout, backend)

        # 2. Build the unit, as a fresh worker does, and record all calls.
        pool = InProcessPool()
        sys.setprofile(record_call)
        try:
            pool.run(job)
        finally:
            sys.setprofile(None)
    return calls


def _config(folder: Path) -> dict[str, Any]:
    """Write a document and a tokenizer, and return the configuration of a build."""
    # A tokenizer, trained on some source code.
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    texts = [inspect.getsource(argparse), inspect.getsource(textwrap)]
    for file_name, content in train_bpe(texts, vocab_size=600).files.items():
        (tokenizer / file_name).write_bytes(content)
    # The document.
    document = {"text": "One document on its way."}
    (folder / "one.jsonl").write_text(json.dumps(document) + "\n")
    return {
        "name": "walk",
        "datasets": [
            {
                "name": "one",
                "data_files": str(folder / "one.jsonl"),
                "tokenizer": str(tokenizer),
            }
        ],
        "pack": {"enabled": True, "seq_length": 128},
        "save": {"output_dir": str(folder / "store")},
    }


def summary(calls: list[str]) -> Iterator[str]:
    """Yield the lines of the table.

    Args:
        calls: File of every call, in order.
    """
    files = [file_name for file_name, _ in groupby(calls)]
    visits = Counter(files)
    yield f"calls            {len(calls)}"
    yield f"files            {len(visits)}"
    yield f"changes of file  {len(files)}"
    for file_name, count in visits.most_common():
        yield f"{count:6} {file_name}"
