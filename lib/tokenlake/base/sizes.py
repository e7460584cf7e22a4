"""Sizes such as ``"500MB"``, and spans of time such as ``"7d"``.

All units of sizes are binary, with and without the ``i``: 1 KB = 1 KiB = 1024 bytes.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from tokenlake.errors import ConfigError

MIB: Final = 1 << 20

PATTERN: Final = r"^ *[0-9]+(\.[0-9]+)? *([kKmMgGtTpP][iI]?)?[bB]? *$"
"""The form of a size as a regular expression, in the part of the syntax that Python
and ECMA share.
"""

_LARGEST: Final = (1 << 63) - 1
_UNITS: Final = " kmgtp"
"""Letters of units; the index of a letter is the power of 1024."""
_SIZE: Final = re.compile(
    r" *([0-9]+(?:\.[0-9]+)?) *(?:([kmgtp])i?)?b? *", re.ASCII | re.IGNORECASE
)
_DURATION: Final = re.compile(r" *([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhdw]) *", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_size(value: int | str) -> int:
    """Return a size in bytes, at least 1; a fraction of a byte is cut off.

    Raises:
        ConfigError: `value` is not a size, or is below one byte or above 2**63 - 1
            bytes.
    """
    size: object = value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is not None:
            # Decimals are exact: 0.1 KB is 102 bytes on every machine.
            power = _UNITS.index((match[2] or " ").lower())
            size = int(Decimal(match[1]) * 1024**power)
    # A boolean is an int for Python, but no size.
    if not isinstance(size, int) or isinstance(size, bool):
        raise ConfigError(
            f"got {value!r}: a size must be a whole number of bytes or a text like '500MB', '1.5 GB' or "
            "'1GiB' (units B, KB, MB, GB, TB, PB, all powers of 1024)"
        )
    if not 1 <= size <= _LARGEST:
        raise ConfigError(
            f"got {value!r}: a size must be between 1 and {_LARGEST} bytes", got=value
        )
    return size


def parse_duration(value: float | str) -> float:
    """Return a span in seconds.

    A bare number is in seconds; a text without a unit must be 0.

    Raises:
        ConfigError: It is no span, is negative, or would have to be guessed (``"7"``).
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str):
        if value.strip() == "0":
            return 0.0
        match = _DURATION.fullmatch(value)
        if match is not None:
            return float(match[1]) * _SECONDS[match[2]]
    raise ConfigError(
        f"got {value!r}: a span of time must be 0 or a number with a unit, such as 7d, 12h, 30m or 90s",
        got=value,
    )
