"""What is in builds of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake import BuildResult

Row = dict[str, Any]
Document = tuple[list[int], list[bool]]
"""Its ids, and which of them are learned."""


def table(result: BuildResult) -> pa.Table:
    files = [Path(result.path) / entry.path for entry in result.manifest.files]
    return pa.concat_tables(
        [pq.read_table(name, page_checksum_verification=True) for name in files]
    )


def documents(result: BuildResult) -> list[Document]:
    """Return all documents in the order of the input; the pieces of packed ones put
    together again.
    """
    pieces: dict[tuple[int, int], list[tuple[int, list[int], list[bool]]]] = {}
    for row in table(result).to_pylist():
        at = 0
        origins = row.get("documents") or [
            {"file": row["file"], "position": row["position"], "start": 0}
        ]
        lengths = row.get("segment_lengths") or [len(row["input_ids"])]
        for length, origin in zip(lengths, origins, strict=True):
            part = (
                origin["start"],
                row["input_ids"][at : at + length],
                row["loss_mask"][at : at + length],
            )
            pieces.setdefault((origin["file"], origin["position"]), []).append(part)
            at += length
        assert not any(row["loss_mask"][at:])
    return [_joined(sorted(parts)) for _, parts in sorted(pieces.items())]


def _joined(parts: list[tuple[int, list[int], list[bool]]]) -> Document:
    return [i for _, ids, _ in parts for i in ids], [
        m for _, _, mask in parts for m in mask
    ]


def learned_texts(made: Any) -> list[list[str]]:
    """Return the stretches of each rendered text that are learned."""
    assert made.spans is not None
    found: list[list[str]] = []
    for row, text in enumerate(made.text.to_pylist()):
        data, places = str(text).encode(), made.spans.slice(row, row + 1)
        ends = zip(places.start.tolist(), places.stop.tolist(), strict=True)
        found.append([data[start:stop].decode() for start, stop in ends])
    return found
