"""Where a store is and how it is reached, in every process that a trainer or a build starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from tokenlake.store.remote.asking import objects_on
from tokenlake.store.remote.filesystems import open_filesystem, tried_out
from tokenlake.store.remote.gcswrites import GcsWrites
from tokenlake.store.remote.objects import Objects
from tokenlake.store.remote.retry import OF_STORES, Failures, patience
from tokenlake.store.remote.s3writes import S3Writes
from tokenlake.store.remote.url import Url
from tokenlake.store.remote.writes import Writes


@final
class Connection:
    """One storage, as one store uses it. It may be pickled, and used on both sides of a fork.

    Attributes:
        url: of the store's root; its path has no slash at its end.
        patience: with failing requests.
    """

    def __init__(self, url: Url, options: Mapping[str, Any], failures: Failures = OF_STORES) -> None:
        self.url, self.patience = url, patience()
        self._options, self._failures = dict(options), failures
        self._objects: tuple[Any, Objects] | None = None
        self.objects()  # a package that is missing and an unknown option are said at once

    def objects(self) -> Objects:
        """Return the storage, through sessions of this process."""
        return self._opened()[1]

    def writes(self) -> Writes:
        """Return the storage to write to, on S3 or GCS, through sessions of this process."""
        filesystem, objects = self._opened()
        kind = S3Writes if self.url.scheme == "s3" else GcsWrites
        return kind(filesystem, objects, self.patience)

    @property
    def tried(self) -> bool:
        """Whether this process has tried out what writing here rests on."""
        return str(self.url) in self._trials

    def set_tried(self) -> None:
        """Remember that it has."""
        self._trials[str(self.url)] = True

    @property
    def whole_copies(self) -> bool | None:
        """Whether copies in one request keep conditions here; None: this process has not tried it out."""
        return self._trials.get(f"{self.url} copies")

    def set_whole_copies(self, kept: bool) -> None:
        """Remember what a trial of them showed."""
        self._trials[f"{self.url} copies"] = kept

    @property
    def _trials(self) -> dict[str, bool]:
        return tried_out(self.url, self._options)

    def _opened(self) -> tuple[Any, Objects]:
        filesystem = open_filesystem(self.url, self._options, self._failures)
        known = self._objects
        if known is None or known[0] is not filesystem:
            known = filesystem, objects_on(filesystem, self.url, self._options, self._failures)
            self._objects = known
        return known

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_objects": None}

    def __repr__(self) -> str:
        return f"Connection({str(self.url)!r})"  # options may hold secrets
