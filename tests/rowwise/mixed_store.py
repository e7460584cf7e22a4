"""A small real store with mixtures in it, for tests of what reads stores; built once
for all of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.store.support import linked_copy
from tokenlake.etl import build_dataset

SEQ_LENGTH = 64


def settings(root: Path, tokenizer: Path) -> dict[str, Any]:
    """Two small sources of text, their files written below `root`, and a packed
    mixture of their documents.
    """
    for name, many in (("code", 30), ("web", 90)):
        texts = [
            json.dumps({"text": f"{name} {i} " + "flows to the sea. " * (i % 7 + 1)})
            for i in range(many)
        ]
        (root / f"{name}.jsonl").write_text("\n".join(texts) + "\n")
    return {
        "name": "pile",
        "datasets": [
            {"name": name, "data_files": str(root / f"{name}.jsonl")}
            for name in ("code", "web")
        ],
        "default_tokenizer": str(tokenizer),
        "mix": {
            "weights": {"code": 0.5, "web": 0.5},
            "epochs": 1,
            "seed": 0,
            "lanes": 2,
            "batch_size": 4,
            "block_size": 10,
        },
        "pack": {"enabled": True, "seq_length": SEQ_LENGTH},
        "save": {"output_dir": str(root / "store")},
    }


def build_mixtures(root: Path, tokenizer: Path) -> Path:
    """Build ``pile`` (packed documents), ``loose`` (documents under other names) and
    ``rows`` (packed rows).

    Returns:
        The store.
    """
    linked_copy(_built(tokenizer.parent / "pile", tokenizer), root)
    return root / "store"


@functools.cache
def _built(root: Path, tokenizer: Path) -> Path:
    root.mkdir()
    chosen = settings(root, tokenizer)
    build_dataset(chosen, workers=1)
    for config in _of_stored(chosen):
        build_dataset({**config, "save": chosen["save"]}, workers=1)
    return root


def _of_stored(chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names = {"py": "pile.code.tokens", "docs": "pile.web.tokens"}
    yield {
        "name": "loose",
        "datasets": [
            {"name": name, "dataset": dataset} for name, dataset in names.items()
        ],
        "mix": chosen["mix"]
        | {"weights": {"py": 0.25, "docs": 0.75}, "weights_by": "tokens"},
    }
    for name in ("code", "web"):
        source = {"name": name, "dataset": f"pile.{name}.tokens"}
        yield {"name": f"{name}-rows", "datasets": [source], "pack": chosen["pack"]}
    points = [
        {"step": 0, "weights": {"code": 0.9, "web": 0.1}},
        {"step": 4, "weights": {"code": 0, "web": 1}},
    ]
    yield {
        "name": "rows",
        "datasets": [
            {"name": name, "dataset": f"{name}-rows@v1"} for name in ("code", "web")
        ],
        "mix": {
            "weight_schedule": points,
            "weight_schedule_type": "linear",
            "total_rows": 24,
            "lanes": 1,
            "batch_size": 4,
            "block_size": 4,
        },
    }
