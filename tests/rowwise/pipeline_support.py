"""Small tokenizers on disk, files of rows, and pipelines over them."""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rowwise.sharded_support import Plain
from tests.tokenizers.tokenizer_samples import byte_level, sentencepiece
from tokenlake.etl.tokenizers import LoadedTokenizer, TokenizerFiles, TokenizerManager
from tokenlake.rowwise import Row, ShardedDataSource


def written(files: TokenizerFiles, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.files.items():
        (folder / name).write_bytes(data)
    return str(folder)


@functools.cache
def llama() -> LoadedTokenizer:
    return TokenizerManager().get_tokenizer(sentencepiece())


@functools.cache
def gpt() -> LoadedTokenizer:
    return TokenizerManager().get_tokenizer(byte_level())


def texts(count: int, word: str = "word") -> list[Row]:
    return [
        {"text": f"{word} number {i} " + "and more " * (i % 7), "id": i}
        for i in range(count)
    ]


def write_jsonl(path: Path, rows: Iterable[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokens(lengths: Iterable[int], **more: Any) -> Plain:
    """Rows of ids: document d holds d * 100, d * 100 + 1, ..."""
    rows = [
        {"input_ids": [100 * d + i for i in range(n)], **more}
        for d, n in enumerate(lengths, start=1)
    ]
    return Plain({"a": rows})


class Counted(ShardedDataSource):
    """Another source that counts the rows drawn from it."""

    def __init__(self, source: ShardedDataSource) -> None:
        self.source, self.drawn = source, 0

    @property
    def shard_names(self) -> Any:
        return self.source.shard_names

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        for row in self.source.open_shard(shard_name):
            self.drawn += 1
            yield row


class Endless(ShardedDataSource):
    """Rows without end."""

    def __init__(self, make: Callable[[int], Row]) -> None:
        self.make, self.drawn = make, 0

    @property
    def shard_names(self) -> Any:
        return ("endless",)

    @property
    def endless(self) -> bool:
        return True

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        for number in range(1 << 62):
            self.drawn += 1
            yield self.make(number)


OTHERS: set[threading.Thread] = set()
"""Threads of tests before this one, which `conftest` notes: what they left alive,
such as a loader of a fixture.
"""


def prefetching_threads() -> list[threading.Thread]:
    """Threads that were started in this test and run ahead of somebody."""
    own = set(threading.enumerate()) - OTHERS
    return [thread for thread in own if thread.name.startswith("tokenlake-prefetch")]


def require_no_threads() -> None:
    until = time.monotonic() + 120
    while prefetching_threads() and time.monotonic() < until:
        time.sleep(0.01)
    if left := prefetching_threads():
        pytest.fail(f"threads are left: {left}")


def printed(name: str) -> dict[str, str]:
    """Return the snippets of a document by their headings, as they are printed."""
    text = (Path(__file__).parent / "snippets" / name).read_text()
    return dict(
        re.findall(
            r"^## (\w+)\n\n```python\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL
        )
    )
