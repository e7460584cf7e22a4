"""Where a store is and how it is reached, as configurations, jobs and processes hand it on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, final


def _no_options() -> dict[str, Any]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store that :func:`tokenlake.storage.open_store` and ``open_read_store`` open.

    Attributes:
        url: a path or a URL, without credentials.
        options: of its file system; references (``{"env": NAME}``) stay references, and never show in a repr.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=_no_options, repr=False)

    @classmethod
    def of(cls, where: str | os.PathLike[str] | StoreAddress) -> StoreAddress:
        """Return an address as it is, a path or URL as one without options."""
        return where if isinstance(where, StoreAddress) else cls(os.fspath(where))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, for the job of a worker."""
        return {"url": self.url, "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_json` gave."""
        return cls(data["url"], dict(data["options"]))

    def __str__(self) -> str:
        return self.url
