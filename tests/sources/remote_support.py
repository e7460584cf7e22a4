"""A corpus in every form, and shorthands for reading it from servers."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tests.servers.base import Fault, large
from tests.sources.support import Source
from tokenlake.etl.sources import InputFile, list_inputs, read_range, split_file

Row = tuple[str, int, str]
"""Path, position, text."""


def documents(count: int = 3000) -> list[str]:
    return [
        f"document {i}: " + "the quick brown fox, été, 日本 " * (i % 7)
        for i in range(count)
    ]


def jsonl(texts: list[str]) -> bytes:
    return "".join(
        json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)
    ).encode()


def parquet(texts: list[str], row_group_size: int = 500) -> bytes:
    sink = io.BytesIO()
    table = pa.table(
        {"id": range(len(texts)), "text": texts, "lang": ["en"] * len(texts)}
    )
    pq.write_table(table, sink, row_group_size=row_group_size, write_page_checksum=True)
    return sink.getvalue()


def corpus() -> dict[str, bytes]:
    """The same documents as JSON Lines, plain and compressed, as Parquet and as
    text.
    """
    texts = documents()
    plain = jsonl(texts)
    return {
        "a.jsonl": plain,
        "b/b.jsonl.gz": gzip.compress(
            plain[: len(plain) // 2].rpartition(b"\n")[0] + b"\n"
        ),
        "b/c.jsonl.zst": pa.compress(plain, codec="zstd", asbytes=True),
        "d.parquet": parquet(texts),
        "e.txt": "\n".join(texts).encode(),
    }


def listed(*urls: str, **options: Any) -> list[InputFile]:
    return list_inputs(cast("Any", Source(data_files=urls, **options)))


def read_rows_of(
    files: list[InputFile], unit_size: int = 60_000, **options: Any
) -> list[Row]:
    """Read files range by range."""
    source: Any = Source(**options)
    rows: list[Row] = []
    for file in files:
        for part in split_file(file, unit_size, source.storage_options):
            for batch in read_range(part, source):
                rows += zip(
                    [file.path] * len(batch.text),
                    batch.positions.tolist(),
                    batch.text.to_pylist(),
                    strict=True,
                )
    return rows


def everything(
    *urls: str, storage_options: Mapping[str, Any] | None = None, **options: Any
) -> list[Row]:
    """List and read."""
    given = dict(storage_options or {})
    return read_rows_of(
        listed(*urls, storage_options=given, **options),
        storage_options=given,
        **options,
    )


def require_same_as_local(
    folder: Path, *urls: str, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Fail unless every file of the corpus, served at some URLs, has the texts and
    positions of local files.
    """
    for name, data in corpus().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    local = everything(str(folder), text_mode="lines")
    assert len({path for path, _, _ in local}) == 5
    assert (
        everything(*urls, storage_options=storage_options, text_mode="lines") == local
    )


def require_resumed(
    server: Any, files: list[InputFile], texts: list[str], what: str, status: int
) -> None:
    """Fail unless reading goes on where a connection broke, and after an answer that
    is none.
    """
    server.log.clear()
    server.faults.extend(
        [Fault(after=300_000, applies=large), Fault(status=status), Fault(after=10)]
    )
    rows = read_rows_of(files, unit_size=1 << 30, storage_options=server.options())
    assert [row[2] for row in rows] == texts
    assert not server.faults
    starts = [
        request.range[0] for request in server.requests("GET", what) if request.range
    ]
    assert len(starts) == 5
    assert starts[0] < starts[1] < starts[2] == starts[3]


def bytes_asked_for(server: Any) -> list[int]:
    """Return the size of each range that was asked for, and forget the requests."""
    ranges = [request.range for request in server.requests("GET") if request.range]
    server.log.clear()
    return [last + 1 - first for first, last in ranges]
