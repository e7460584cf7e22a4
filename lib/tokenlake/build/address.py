"""The store of a build as workers open it: wherever they run, and with references to credentials left as they are."""

from __future__ import annotations

from pathlib import Path

from tokenlake.config.resolved import ResolvedBuild
from tokenlake.config.resolved_mix import ResolvedMix
from tokenlake.storage.address import StoreAddress


def store_address(build: ResolvedBuild | ResolvedMix) -> StoreAddress:
    """Return where a build writes; a path becomes one that does not depend on the current folder."""
    where = build.store
    if where and "://" not in where:
        where = str(Path(where).expanduser().absolute())
    return StoreAddress(where, build.store_options)
