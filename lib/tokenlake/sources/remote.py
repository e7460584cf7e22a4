"""Objects at a URL: S3, GCS, HTTP(S), the Hub, and what else fsspec has installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from tokenlake.errors import NotAvailableError
from tokenlake.sources.inputbytes import InputBytes
from tokenlake.sources.inputs import InputFile


@final
class RemoteBytes(InputBytes):
    """An object at a URL, read by ranges."""

    def __init__(self, file: InputFile, storage_options: Mapping[str, Any]) -> None:
        raise NotAvailableError(f"{file.url}: URLs cannot be read by this release; copy the file to a disk.")

    def read_into(self, view: memoryview, offset: int) -> int:
        raise NotImplementedError

    def for_arrow(self) -> Any:
        raise NotImplementedError

    def check_unchanged(self) -> None:
        """Raise InputChangedError unless the object is still the planned one."""

    def close(self) -> None:
        """Release what is open."""
