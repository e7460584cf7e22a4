"""Small packed datasets and mixtures, read by a loader; built once for all tests of
a process.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenlake as tl
from tests.reading.support import lake_of
from tests.rowwise.mixed_store import build_mixtures
from tests.tokenizers.tokenizer_samples import byte_level

LENGTH = 32
Batch = dict[str, Any]


def plain(tmp_path_factory: pytest.TempPathFactory, name: str = "plain") -> tl.Dataset:
    """A packed dataset of several shards, its row groups of 6 rows of 32 ids;
    ``learned`` has a loss mask.
    """
    return tl.open(lake_of(tmp_path_factory).url, name, split="train")


def mixtures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of :func:`tests.rowwise.mixed_store.build_mixtures`."""
    return _mixtures(tmp_path_factory.getbasetemp() / "mixtures")


@functools.cache
def _mixtures(root: Path) -> str:
    (root / "tokenizer").mkdir(parents=True)
    for name, data in byte_level().files.items():
        (root / "tokenizer" / name).write_bytes(data)
    return str(build_mixtures(root, root / "tokenizer"))


def ids(batches: Any) -> list[np.ndarray[Any, Any]]:
    """The input_ids of batches, copied, so that nothing depends on what becomes of
    the batches.
    """
    return [batch["input_ids"].copy() for batch in batches]


def same(ours: list[np.ndarray[Any, Any]], theirs: list[np.ndarray[Any, Any]]) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )
