"""Parents of mixed and repacked units, which stay open in a worker between jobs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from tokenlake.errors import IntegrityError
from tokenlake.etl.job import ParentVersion
from tokenlake.runtime.reading.version import StoredRows
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest

_MAX_OPEN: Final = 64
"""Parents that stay open between jobs."""


@final
class OpenedParents:
    """Manifests that were read, and files that are open, between jobs."""

    def __init__(self) -> None:
        # Store, sha256 of the manifest and split -> rows; the one used last is last.
        self._rows: OrderedDict[tuple[str, str, str], StoredRows] = OrderedDict()

    def open(
        self, store: Store, parent: ParentVersion, split: str | None = None
    ) -> StoredRows:
        """Return the rows of a parent's split.

        Args:
            store: Store of the parent.
            parent: Parent, as the build was planned with it.
            split: Name of the split; None: the parent's own.

        Raises:
            IntegrityError: The version in the store is not the one that was planned
                with.
            NotFoundError: There is no such version.
        """
        if split is None:
            split = parent.split
        # The hash of the manifest is the identity of a version: a name may be given
        # again.
        key = (store.url, parent.sha256, split)
        if key not in self._rows:
            self._rows[key] = StoredRows(store, self.manifest(store, parent), split)
        self._rows.move_to_end(key)
        # The one that was used last is at the end; the one unused for longest goes.
        while len(self._rows) > _MAX_OPEN:
            _, oldest = self._rows.popitem(last=False)
            oldest.close()
        return self._rows[key]

    def manifest(self, store: Store, parent: ParentVersion) -> Manifest:
        """Return the manifest of a parent; errors as of :meth:`open`."""
        # All splits of a version share its manifest.
        for (_, sha256, _), rows in self._rows.items():
            if sha256 == parent.sha256:
                return rows.manifest
        manifest = Catalog(store).manifest(parent.dataset, parent.version)
        if manifest.sha256 != parent.sha256:
            reference = f"{parent.dataset}@v{parent.version}"
            raise IntegrityError(
                f"source {parent.name!r}: the manifest of {reference} has sha256 {manifest.sha256}; expected "
                f"{parent.sha256}, as planned. It was replaced by another version: run `tokenlake verify "
                f"{reference}`, restore the planned version, or start a new build",
                expected=parent.sha256,
                got=manifest.sha256,
            )
        return manifest
