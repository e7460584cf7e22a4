"""Jobs that no worker knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _NoJob:
    op: str


def no_job(op: str) -> Any:
    """Return what a pool sends and a worker refuses."""
    return _NoJob(op)
