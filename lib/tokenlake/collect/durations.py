"""Spans of time as people write them: ``7d``, ``12h``, ``30m``, ``90s``, ``0``."""

from __future__ import annotations

import math
import re
from typing import Final

from tokenlake.errors import ConfigError

_DURATION: Final = re.compile(r" *([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhdw]) *", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(value: float | str) -> float:
    """Return a span in seconds; a bare number is in seconds and must be 0 where it is text.

    Raises:
        ConfigError: it is no span, is negative, or would have to be guessed (``"7"``).
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str):
        if value.strip() == "0":
            return 0.0
        if match := _DURATION.fullmatch(value):
            return float(match[1]) * _SECONDS[match[2]]
    raise ConfigError(
        f"got {value!r}: a span of time must be 0 or a number with a unit, such as 7d, 12h, 30m or 90s",
        got=value,
    )
