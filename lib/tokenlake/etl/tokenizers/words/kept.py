"""Tables that follow from a tokenizer.json, kept on disk.

A large vocabulary takes 0.3 to 0.8 CPU seconds to look through, and each process of a
build needs the result. It is stored in the cache folder of the user, under the hash of
the tokenizer.json and of the code that makes the tables.
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

# Modules on whose code the tables depend.
_MAKERS: Final = ("backend.py", "kept.py", "merging.py")
# Cached bytes on disk before the oldest tables are removed.
_MOST_BYTES: Final = 256 << 20


def kept_tables(
    files: TokenizerFiles, table_name: str, make_tables: Callable[[], Tables | None]
) -> Tables | None:
    """Return tables of a tokenizer, made now or by an earlier process.

    Args:
        files: The tokenizer.
        table_name: Name of the tables.
        make_tables: Makes the tables; None if the tokenizer has none, which is not
            kept.
    """
    # The key holds everything that the tables depend on.
    disk_cache = DiskCache(default_folder() / "vocabularies", max_bytes=_MOST_BYTES)
    digest = hashlib.sha256(_code())
    digest.update(table_name.encode() + b"\n")
    digest.update(files.json_bytes)
    cache_key = digest.hexdigest()
    hit = disk_cache.get(cache_key)
    if hit is not None:
        return hit[0]
    tables = make_tables()
    if tables is not None:
        disk_cache.put(cache_key, tables)
    return tables


@cache
def _code() -> bytes:
    """Return the version and the code of the modules that make tables.

    The code changes while the version stays, during development.
    """
    folder = Path(__file__).parent
    code = [__version__.encode()]
    for module_file in _MAKERS:
        code.append((folder / module_file).read_bytes())
    return b"".join(code)
