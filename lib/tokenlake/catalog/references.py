"""How people name a version: ``NAME``, ``NAME@v3``, ``NAME@3`` or ``NAME@TAG``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self, final

from tokenlake.errors import StoreError
from tokenlake.storage.keys import TAG_NAME, check_dataset_name

_REFERENCE: Final = re.compile(
    rf"(?P<name>[^@]+)(?:@(?:v?(?P<version>[1-9][0-9]{{0,8}})|(?P<tag>{TAG_NAME.pattern})))?"
)


@final
@dataclass(frozen=True, slots=True)
class Reference:
    """A dataset, and a version or a tag of it; neither: its newest committed version."""

    dataset: str
    version: int | None = None
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference; StoreError if it is none."""
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise StoreError(f"{text!r} names no dataset; expected NAME, NAME@v3, NAME@3 or NAME@TAG")
        version = match["version"]
        return cls(check_dataset_name(match["name"]), None if version is None else int(version), match["tag"])
