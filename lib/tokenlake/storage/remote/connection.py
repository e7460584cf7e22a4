"""Where a store is and how it is reached, in every process that a trainer starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from tokenlake.storage.remote.asking import objects_on
from tokenlake.storage.remote.failures import OF_STORES
from tokenlake.storage.remote.filesystems import open_filesystem
from tokenlake.storage.remote.objects import Objects
from tokenlake.storage.remote.retries import patience
from tokenlake.storage.remote.urls import Url


@final
class Connection:
    """One storage, as one store reads it. It may be pickled, and used on both sides of a fork.

    Attributes:
        url: of the store's root; its path has no slash at its end.
        patience: with failing requests.
    """

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        self.url, self.patience = url, patience()
        self._options = dict(options)
        self._objects: tuple[Any, Objects] | None = None
        self.objects()  # a package that is missing and an unknown option are said at once

    def objects(self) -> Objects:
        """Return the storage, through sessions of this process."""
        filesystem = open_filesystem(self.url, self._options, OF_STORES)
        known = self._objects
        if known is None or known[0] is not filesystem:
            known = filesystem, objects_on(filesystem, self.url, self._options, OF_STORES)
            self._objects = known
        return known[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_objects": None}

    def __repr__(self) -> str:
        return f"Connection({str(self.url)!r})"  # options may hold secrets
