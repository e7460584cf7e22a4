"""How much memory a query may take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tokenlake.config.sizes import parse_size
from tokenlake.errors import ConfigError

MEMORY_VARIABLE: Final = "TOKENLAKE_SQL_MEMORY"
"""Environment variable: how much memory a query may take, as ``8GB``; without it, a third of the machine's."""

_SHARE: Final = 3
_LEAST: Final = 64 << 20  # DuckDB does nothing useful with less


def memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a query may take.

    Raises:
        ConfigError: the variable is not a size, or is below 64 MB.
    """
    text = environ.get(MEMORY_VARIABLE)
    if not text:
        return max(_LEAST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE)
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"{MEMORY_VARIABLE}: {error}") from error
    if size < _LEAST:
        raise ConfigError(f"{MEMORY_VARIABLE} is {text!r}; expected 64MB or more")
    return size
