"""Numpy batches as tensors, without a copy where the type is to stay."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from tokenlake.errors import ConfigError
from tokenlake.reading.arrays import BLOCKS

INTEGERS: Final = ("mixed", "int32", "int64")
_LOSS: Final = frozenset({"labels", "targets"})


def check_integers(integers: str) -> str:
    """Return a rule for integer types; ConfigError for another."""
    if integers not in INTEGERS:
        raise ConfigError(f"integers: got {integers!r}, must be one of {', '.join(INTEGERS)}")
    return integers


def tensors_of(batch: dict[str, Any], integers: str) -> dict[str, torch.Tensor]:
    """Return a batch as tensors; those that keep their type share the arrays' memory."""
    return {name: _tensor(name, array, integers) for name, array in batch.items()}


def _tensor(name: str, array: Any, integers: str) -> torch.Tensor:
    wide = integers == "int64" or (integers == "mixed" and name in _LOSS)
    if wide and array.dtype == np.int32:
        # Not tensor.long(): for so little work PyTorch's threads spend more time waiting than working.
        wider = BLOCKS.take(array.size * 8).view(np.int64).reshape(array.shape)
        np.copyto(wider, array)
        array = wider
    return torch.from_numpy(array)
