"""The same bytes elsewhere: other versions that hold a file which is damaged here, well or damaged as well.

Versions share files (a unit that an older version built is linked, not built again), so a copy may be the quickest
mend, and damage to one may be damage to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import final

from tokenlake.catalog import Catalog
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.manifest import Manifest
from tokenlake.mending.damage import expected_hashes
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A file that a manifest says to hold certain bytes."""

    layout: Layout
    path: str

    @property
    def key(self) -> str:
        return self.layout.key(self.path)

    def __str__(self) -> str:
        return f"{self.layout.dataset}@v{self.layout.version}: {self.path}"


def places(store: ReadStore, hashes: Collection[str]) -> dict[str, list[Place]]:
    """Return sha256 -> every file of every committed version that should hold it; by what manifests say."""
    found: dict[str, list[Place]] = {sha256: [] for sha256 in hashes}
    for layout, manifest in manifests(store):
        for path, sha256 in expected_hashes(manifest).items():
            if sha256 in found:
                found[sha256].append(Place(layout, path))
    return found


def manifests(store: ReadStore) -> Iterator[tuple[Layout, Manifest]]:
    """Yield the manifest of every committed version of a store; a damaged one tells nothing, and is left out."""
    catalog = Catalog(store)
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            if not info.committed:
                continue
            try:
                manifest = catalog.manifest(dataset, info.version)
            except (IntegrityError, StoreError):
                continue
            yield Layout(dataset, info.version), manifest
