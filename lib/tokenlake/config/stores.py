"""The store of a build: which one it is, and what cannot be one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tokenlake.config.pipeline import PipelineConfig

STORE_VARIABLE: Final = "TOKENLAKE_STORE"
DEFAULT_STORE: Final = "./artifacts"

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs"})
"""Schemes of the object stores that a build can write to."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/]*)(.*)", re.DOTALL)


def default_store(environ: Mapping[str, str] = os.environ) -> str:
    """Return the store of configurations and commands that name none."""
    return environ.get(STORE_VARIABLE) or DEFAULT_STORE


def store_of(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path or URL of the store that a configuration's build writes to."""
    return config.save.output_dir or default_store(environ)


def is_local(store: str) -> bool:
    """Whether a store is a folder of this machine."""
    return scheme_of(store) in ("", "file")


def store_problems(config: PipelineConfig, store: str) -> list[str]:
    """Return what cannot be: credentials in the store's URL, which is written down, and options without a use."""
    found = _URL.match(store)
    if found and ("@" in found[2] or "?" in found[3]):
        what = "a user name or password" if "@" in found[2] else "a query"
        return [
            f"save.output_dir: {scheme_of(store)}://... has {what} in it (not shown); write the URL without it, and "
            "save.storage_options: {key: {env: VARIABLE}, ...}"
        ]
    if config.save.storage_options and is_local(store):
        return [f"save.storage_options: the store {store} is local and takes none; leave them out"]
    return []


def store_not_yet(store: str) -> list[str]:
    """Return a message for a store that no build writes to."""
    if is_local(store) or scheme_of(store) in OBJECT_STORES:
        return []
    return [
        f"save.output_dir: {scheme_of(store)}:// is not available yet for a build; today: a path, s3://bucket/prefix "
        "or gs://bucket/prefix"
    ]


def store_overrides(store: str) -> list[str]:
    """Return overrides that put another store in a configuration; options of an object store are no folder's."""
    options = ["save.storage_options=null"] if is_local(store) else []
    return [*options, f"save.output_dir={json.dumps(store)}"]


def scheme_of(store: str) -> str:
    """Return the scheme of a URL in lower case, "" for a path."""
    found = _URL.match(store)
    return found[1].lower() if found else ""
