"""The way of one document through a worker: `python -m benchmarks.house --walk`.

A line of JSON becomes a row of Parquet in a fresh worker's memory; counted are the
files of the library whose functions are called, and how often the next call is of
another file than the one before.
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
from typing import Any

import tokenlake
from tokenlake.etl.in_process_pool import InProcessPool
from tokenlake.etl.session import BuildSession
from tokenlake.etl.tokenizers.training import train_bpe
from tokenlake.runtime.store.layout import Layout

_ROOT = Path(tokenlake.__file__).parent


def walk() -> list[str]:
    """Return the file of every call, in order, while a worker builds a unit of one
    document.
    """
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT):
            calls.append(str(path.relative_to(_ROOT)))

    with tempfile.TemporaryDirectory() as folder:
        session = BuildSession.open(_config(Path(folder)))
        layout = Layout(session.dataset, session.version)
        (unit,) = session.plan.units
        chooser: Any = InProcessPool()
        engine = session.backends.choose(unit, chooser)
        job = session.plan.job(unit, session.plan.store, layout, engine)
        pool = InProcessPool()
        sys.setprofile(note)
        try:
            pool.run(job)
        finally:
            sys.setprofile(None)
    return calls


def _config(folder: Path) -> dict[str, Any]:
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    texts = [inspect.getsource(module) for module in (argparse, textwrap)]
    for name, data in train_bpe(texts, vocab_size=600).files.items():
        (tokenizer / name).write_bytes(data)
    (folder / "one.jsonl").write_text(
        json.dumps({"text": "One document on its way."}) + "\n"
    )
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
    """Return the lines of the table."""
    way = [name for name, _ in groupby(calls)]
    visits = Counter(way)
    yield f"calls            {len(calls)}"
    yield f"files            {len(visits)}"
    yield f"changes of file  {len(way)}"
    yield from (f"{count:6} {name}" for name, count in visits.most_common())
