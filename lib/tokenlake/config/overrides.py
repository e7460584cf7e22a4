"""Overrides of single keys that commands write."""

from __future__ import annotations

import json

from tokenlake.runtime.store.schemes import is_local


def store_overrides(store: str) -> list[str]:
    """Return overrides that put another store in a configuration.

    A folder has no options of an object store.
    """
    overrides: list[str] = []
    if is_local(store):
        overrides.append("save.storage_options=null")
    # JSON is YAML, whatever characters a path has.
    overrides.append(f"save.output_dir={json.dumps(store)}")
    return overrides
