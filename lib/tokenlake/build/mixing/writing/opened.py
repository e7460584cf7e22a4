"""The parents of a build as a worker holds them: opened once, and the very versions that the plan saw."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from tokenlake.build.mixing.job import ParentVersion
from tokenlake.catalog import Catalog
from tokenlake.errors import IntegrityError
from tokenlake.manifest import Manifest
from tokenlake.reading import StoredRows
from tokenlake.storage import Store

_KEPT: Final = 64  # parents that stay open between jobs

_Key = tuple[str, str, int, str]


@final
class OpenedParents:
    """Manifests that were read, and files that are open, between jobs."""

    def __init__(self) -> None:
        self._rows: OrderedDict[_Key, StoredRows] = OrderedDict()

    def open(self, store: Store, parent: ParentVersion, split: str | None = None) -> StoredRows:
        """Return the rows of a parent's split.

        Args:
            split: another one than the parent's.

        Raises:
            IntegrityError: the version there is not the one that was planned with.
            NotFoundError: there is none.
        """
        name = parent.split if split is None else split
        key = (store.url, parent.dataset, parent.version, name)
        known = self._rows.get(key)
        if known is None or known.manifest.sha256 != parent.sha256:
            known = self._rows[key] = StoredRows(store, self.manifest(store, parent), name)
        self._rows.move_to_end(key)
        while len(self._rows) > _KEPT:
            self._rows.popitem(last=False)[1].close()
        return known

    def manifest(self, store: Store, parent: ParentVersion) -> Manifest:
        """Return the manifest of a parent; errors are those of :meth:`open`."""
        for rows in reversed(self._rows.values()):
            if rows.manifest.sha256 == parent.sha256:
                return rows.manifest
        found = Catalog(store).manifest(parent.dataset, parent.version)
        if found.sha256 != parent.sha256:
            reference = f"{parent.dataset}@v{parent.version}"
            raise IntegrityError(
                f"source {parent.name!r}: the manifest of {reference} has sha256 {found.sha256}; expected "
                f"{parent.sha256}, with which this build was planned. Somebody put another version in its place: run "
                f"`tokenlake verify {reference}`, restore what was there, or start the build anew",
                expected=parent.sha256,
                got=found.sha256,
            )
        return found
