"""Which kinds of storage a URL may name: an allow-list, because fsspec opens much that nobody meant.

Among its file systems are shells on other machines, caches that unpickle what lies in a folder, and ways round the
rules for local paths. What is not on the list is refused before anything of fsspec is asked.
"""

from __future__ import annotations

import difflib
import os
from typing import Final

from tokenlake.errors import ConfigError

VARIABLE: Final = "TOKENLAKE_ALLOWED_SCHEMES"
"""Environment variable: further schemes that may be opened, separated by commas, such as ``sftp,oss``."""

USUAL: Final = ("s3", "gs", "http", "https", "hf", "file", "az", "abfs", "abfss", "adl")
"""What may be opened without being asked for; ``s3a`` and ``gcs`` are other names of the first two."""

# Whatever the variable says: they go round the rules for local paths, open other addresses in turn, or keep copies
# that are read back unchecked.
_NEVER: Final = frozenset(
    {
        "local",
        "simplecache",
        "filecache",
        "blockcache",
        "cached",
        "reference",
        "generic",
        "dir",
        "zip",
        "tar",
        "libarchive",
    }
)


def check_scheme(scheme: str, option: str) -> None:
    """Refuse a scheme that is not allowed.

    Args:
        scheme: in lower case, without aliases.
        option: what holds the URL, for the message.

    Raises:
        ConfigError: it is not on the list; the message says how to allow it.
    """
    if scheme in USUAL:
        return
    asked = {name.strip().lower() for name in os.environ.get(VARIABLE, "").split(",")}
    if scheme in asked and scheme not in _NEVER:
        return
    near = difflib.get_close_matches(scheme, (*USUAL, "s3a", "gcs", "sftp", "ftp"), 1)
    guess = f"; did you mean {near[0]}?" if near else ""
    allow = (
        "it goes round the rules for addresses, and cannot be allowed"
        if scheme in _NEVER
        else f"to allow it, set {VARIABLE}={scheme} in the environment"
    )
    raise ConfigError(
        f"{option}: {scheme}:// is no scheme that may be read; expected one of {', '.join(USUAL)}{guess} ({allow})",
        got=scheme,
    )
