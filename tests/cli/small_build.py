"""A small build of texts, for tests of commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEXTS = [{"text": f"A lake {n}. " + "It holds water. " * (n % 9)} for n in range(80)]
"""Texts of different lengths."""


def write_lines(path: Path, records: Iterable[object] = TEXTS) -> Path:
    """Write records as JSON Lines; texts are written as they are."""
    lines: list[str] = []
    for record in records:
        line = record if isinstance(record, str) else json.dumps(record)
        lines.append(f"{line}\n")
    path.write_text("".join(lines))
    return path


def write_config(
    folder: Path, tokenizer: Path, data: str = "*.jsonl", **sections: Any
) -> Path:
    """Write the configuration of the dataset `small`, in the store ``store``.

    Args:
        folder: Folder of the data, the configuration and the store.
        tokenizer: Folder of the tokenizer.
        data: Pattern of the data files in the folder.
        sections: Sections of the configuration, besides the usual ones.
    """
    dataset = {"name": "texts", "data_files": str(folder / data)}
    config: dict[str, Any] = {
        "name": "small",
        "datasets": [dataset | sections.pop("dataset", {})],
        "default_tokenizer": str(tokenizer),
        "pack": {"enabled": True, "seq_length": 64},
        "save": {"output_dir": str(folder / "store")},
    }
    path = folder / "small.json"
    path.write_text(json.dumps(config | sections))
    return path
