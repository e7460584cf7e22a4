"""Size of a unit where the configuration leaves it open.

The first version of a dataset chooses it from the total size of its inputs, and every
later version keeps it: an added file then disturbs only the unit that it falls into,
however much the dataset has grown. The size is part of a version's identity and stands
in its manifest.
"""

from __future__ import annotations

from typing import Final

from tokenlake.base.sizes import MIB
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest

SMALLEST: Final = 8 * MIB
"""Bytes of the smallest unit. The cost of a unit itself grows with their number."""
LARGEST: Final = 128 * MIB
"""Bytes of the largest unit, which is the work that a killed worker loses."""
WORKERS: Final = 64
"""Number of workers that should all have a unit to build, where the inputs are large
enough for it.
"""


def choose_unit_size(total: int) -> int:
    """Return the largest unit size that gives each of :data:`WORKERS` workers a unit.

    It is a power of two from 8 to 128 MiB. For example, 735 MB are cut into units of 8
    MiB, 2 GiB into units of 32 MiB, 8 GiB and more into units of 128 MiB.

    Args:
        total: Number of bytes of all inputs.
    """
    size = LARGEST
    while size > SMALLEST and size * WORKERS > total:
        size //= 2
    return size


def unit_size_of(manifest: Manifest) -> int | None:
    """Return the unit size that a version was built with.

    None for a manifest that does not have it.
    """
    size = manifest.config.get("build", {}).get("unit_size")
    if not isinstance(size, int):
        return None
    return size


def first_unit_size(address: StoreAddress, dataset: str) -> int | None:
    """Return the unit size of the earliest committed version, None without one.

    Args:
        address: Address of the store, which need not exist.
        dataset: Name of the dataset.
    """
    catalog = Catalog(open_store(address))
    try:
        versions = catalog.versions(dataset)
    except NotFoundError:
        return None
    for version in versions:
        if not version.committed:
            continue
        try:
            size = unit_size_of(catalog.manifest(dataset, version.version))
        except IntegrityError:
            # `verify` reports a damaged manifest; the next version has the same unit
            # size.
            continue
        if size is not None:
            return size
    return None
