"""From URLs and URL globs to the objects there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.errors import NotAvailableError
from tokenlake.sources.inputs import InputFile

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


def list_remote(source: ResolvedSource) -> list[InputFile]:
    """List the objects that the URLs of a source stand for, sorted by path."""
    raise NotAvailableError("URLs cannot be read by this release; copy the files to a disk")
