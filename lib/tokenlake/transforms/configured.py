"""The steps that a configuration asks for: callback, then renames, then transforms."""

from __future__ import annotations

from tokenlake.config.resolved_texts import ResolvedTexts
from tokenlake.errors import NotAvailableError
from tokenlake.transforms.base import ChainedTransform


def open_chain(texts: ResolvedTexts) -> ChainedTransform:
    """Return the steps before the text is made, maybe none.

    Raises:
        ConfigError: a step does not exist, or its arguments are wrong.
    """
    if texts.rows_change:
        raise NotAvailableError("format_callback, format_fields and transforms are not available yet")
    return ChainedTransform(())
