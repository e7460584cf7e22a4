"""Tables that follow from a tokenizer.json, kept on disk.

A large vocabulary takes 0.3 to 0.8 CPU seconds to look through, and each process of a
build needs the result. It is kept in the cache folder of the user, under the hash of
the tokenizer.json and of the code that made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenlake._version import __version__
from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.etl.tokenizers.files import TokenizerFiles

Tables = dict[str, Any]
"""Arrays by name."""

_MAKERS: Final = ("engine.py", "kept.py", "merging.py")
_MOST_BYTES: Final = 256 << 20


def kept_tables(
    files: TokenizerFiles, name: str, make: Callable[[], Tables | None]
) -> Tables | None:
    """Return tables of a tokenizer, made now or by an earlier process.

    Args:
        files: The tokenizer.
        name: Name of the tables.
        make: Makes the tables; None if the tokenizer has none, which is not kept.
    """
    kept = DiskCache(default_folder() / "vocabularies", max_bytes=_MOST_BYTES)
    digest = hashlib.sha256(_code())
    digest.update(name.encode() + b"\n")
    digest.update(files.json_bytes)
    key = digest.hexdigest()
    hit = kept.get(key)
    if hit is not None:
        return hit[0]
    tables = make()
    if tables is not None:
        kept.put(key, tables)
    return tables


@cache
def _code() -> bytes:
    """Return the version, and the code, which changes while the version stays."""
    folder = Path(__file__).parent
    return __version__.encode() + b"".join(
        (folder / name).read_bytes() for name in _MAKERS
    )
