"""Why a record cannot be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be used: a stable code and a sentence."""

    reason: str
    detail: str


def too_long(size: int, max_record_bytes: int) -> Fault:
    """Return the fault of a line that is larger than the limit."""
    return Fault("line_too_long", f"the line has {size} bytes, max_record_bytes is {max_record_bytes}")
