"""A step over batches that Grain's processes do: each imports this module, and
should import little else.
"""

from __future__ import annotations

from typing import Any


def shifted(batch: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": batch["input_ids"] + 1}
