"""How Arrow's decoders get at bytes, and what becomes of their complaints."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pyarrow as pa

from tokenlake.reading.bombs import Pread
from tokenlake.sources.inputs import InputFile, damaged

__all__ = ["Pread", "reading"]


@contextmanager
def reading(file: InputFile, where: str) -> Generator[None]:
    """Turn what Arrow raises inside, or a ValueError of ours, into DamagedFileError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise damaged(file, f"{where} cannot be read ({error})", where=where) from error
