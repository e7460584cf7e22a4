"""Where a build writes."""

from __future__ import annotations

from tokenlake.config.resolved import ResolvedBuild
from tokenlake.runtime.store.address import StoreAddress, absolute_address


def address_of_build(build: ResolvedBuild) -> StoreAddress:
    """Return the address of the store that a build writes to.

    A path is made absolute, because workers may run in another folder.
    """
    return absolute_address(build.store, build.store_options)
