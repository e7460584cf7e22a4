"""Sizes as people write them: ``"500MB"``, ``"1.5 GB"``, ``"100kb"``, ``"5M"``, ``"1GiB"``, plain bytes.

All units are binary, with and without the ``i``: 1 KB = 1 KiB = 1024 bytes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tokenlake.errors import ConfigError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PATTERN: Final = r"^ *[0-9]+(\.[0-9]+)? *([kKmMgGtTpP][iI]?)?[bB]? *$"
"""The form of a size as a regular expression, in the part of the syntax that Python and ECMA share."""

_LARGEST: Final = (1 << 63) - 1
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r" *([0-9]+(?:\.[0-9]+)?) *(?:([kmgtp])i?)?b? *", re.ASCII | re.IGNORECASE)


def parse_size(value: int | str) -> int:
    """Return a size in bytes, at least 1; a fraction of a byte is cut off.

    Raises:
        ConfigError: `value` is not a size, or is below one byte or above 2**63 - 1 bytes.
    """
    size = _bytes_of(value)
    if not 1 <= size <= _LARGEST:
        raise ConfigError(f"got {value!r}: a size must be between 1 and {_LARGEST} bytes", got=value)
    return size


def _bytes_of(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(
            f"got {value!r}: a size must be a whole number of bytes or a text like '500MB', '1.5 GB' or "
            "'1GiB' (units B, KB, MB, GB, TB, PB, all powers of 1024)"
        )
    number, unit = match.group(1), (match.group(2) or "").lower()
    return int(Decimal(number) * 1024 ** _POWERS[unit])
