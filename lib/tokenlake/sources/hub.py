"""Datasets on the Hub: from an id, a subset and a split to files of one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.errors import NotAvailableError
from tokenlake.sources.inputs import InputFile

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


def list_hub(source: ResolvedSource) -> list[InputFile]:
    """List the files of a dataset on the Hub, at a commit that the tokens name."""
    raise NotAvailableError("datasets on the Hub cannot be read by this release")
