"""Facts in the address of a store before it is opened.

They are its scheme, and the store that is meant if none is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

# The store of commands and configurations that name none: the variable, else the folder.
STORE_VARIABLE: Final = "TOKENLAKE_STORE"
DEFAULT_STORE: Final = "./artifacts"

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs"})
"""Schemes of the object stores that a build can write to."""

# Parts of a URL: scheme, host or bucket, and path.
STORE_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/]*)(.*)", re.DOTALL)


_CUT_SCHEME: Final = re.compile(
    r"(s3a?|gs|gcs|hf|https?)(?::/?|//)(?!/)(.+)", re.DOTALL | re.IGNORECASE
)


def url_probably_meant(place: str) -> str:
    """Return the URL that is probably meant by a path that begins like one; "" for
    other paths.

    >>> url_probably_meant("s3:/bucket/lake"), url_probably_meant("gs//bucket")
    ('s3://bucket/lake', 'gs://bucket')
    >>> url_probably_meant("s3/bucket"), url_probably_meant("s3://bucket")
    ('', '')
    """
    match = _CUT_SCHEME.fullmatch(place)
    if match is None:
        return ""
    return f"{match[1].lower()}://{match[2]}"


def default_store(environ: Mapping[str, str] = os.environ) -> str:
    """Return the store of configurations and commands that name none."""
    return environ.get(STORE_VARIABLE) or DEFAULT_STORE


def is_local(store: str) -> bool:
    """Return whether a store is a folder of this machine."""
    return scheme_of(store) in ("", "file")


def scheme_of(store: str) -> str:
    """Return the scheme of a URL in lower case, "" for a path."""
    match = STORE_URL.match(store)
    if match is None:
        return ""
    return match[1].lower()
