"""The list of places that a worker's owner allows for inputs: how it is written, and what lies in it.

Folders and URLs, separated like ``PATH``::

    TOKENLAKE_ALLOWED_INPUTS=/data/raw:s3://corpora/raw:https://data.example.org:8443/sets:hf://datasets/our-org
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from tokenlake.storage.remote.urls import Url

INPUTS: Final = "TOKENLAKE_ALLOWED_INPUTS"
"""Environment variable with the list."""

# A colon separates entries, but not a scheme or a host from what follows it.
_ENTRY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/:]*(?::\d+(?=[/:]|$))?[^:]*|[^:]+")


def entries_of(allowed: str | None) -> list[str] | None:
    """Return the entries of a list; None, for everything, where there is none."""
    return None if allowed is None else _ENTRY.findall(allowed)


def lies_below(url: Url, above: Url) -> bool:
    """Say whether a URL, up to its first wildcard, is `above` or in it."""
    if url.root.lower() != above.root.lower():
        return False
    folder = above.path.strip("/")
    static = re.split(r"[*?\[]", url.path, maxsplit=1)[0]
    return not folder or url.path.rstrip("/") == folder or static.startswith(f"{folder}/")


def is_odd(path: str) -> bool:
    """Say whether a server may take the path for another one than it looks like."""
    plain = unquote(unquote(path)).replace("\\", "/")
    return any(part in (".", "..") for part in plain.split("/")) or "\\" in unquote(unquote(path))
