"""Overrides of single keys that commands write."""

from __future__ import annotations

import json

from tokenlake.runtime.store.schemes import is_local


def store_overrides(store: str) -> list[str]:
    """Return overrides that put another store in a configuration.

    A folder has no options of an object store.
    """
    options = ["save.storage_options=null"] if is_local(store) else []
    return [*options, f"save.output_dir={json.dumps(store)}"]
