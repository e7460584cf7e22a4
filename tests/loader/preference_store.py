"""Small preference datasets that several tests read."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.etl.outputs_support import build_here, settings, write_jsonl
from tests.tokenizers.tokenizer_samples import sentencepiece

PAIRS = [
    {
        "prompt": f"say {i} " * (i % 3 + 1),
        "chosen": f"yes {i}" * (i % 4 + 1),
        "rejected": "no" * (i % 5 + 1),
    }
    for i in range(40)
]
JUDGED = [
    {"prompt": f"say {i}", "completion": f"yes {i}", "label": i % 3 == 0}
    for i in range(20)
]


def preference_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the datasets METHOD-TRAINER of all methods and trainers, built
    once for a test process.
    """
    return _build(tmp_path_factory.getbasetemp() / "preferences")


@functools.cache
def _build(root: Path) -> Path:
    (root / "tokenizer").mkdir(parents=True)
    for name, data in sentencepiece().files.items():
        (root / "tokenizer" / name).write_bytes(data)
    for method in ("dpo", "orpo", "reward", "kto", "grpo"):
        for trainer in ("trl", "easydel"):
            data = write_jsonl(
                root / f"{method}.jsonl", JUDGED if method == "kto" else PAIRS
            )
            preference = {"method": method, "trainer": trainer}
            config = settings(root, root / "tokenizer", data, preference=preference)
            build_here(
                config | {"name": f"{method}-{trainer}", "pack": {"enabled": False}}
            )
    return root / "store"
