"""Whether the inputs of a source lie where the owner of a worker allows it; see :mod:`tokenlake.runtime.store.allowed`.

The check comes before any listing, so that nothing is asked for that is not allowed. What globs and links lead to is
checked again when the listing has found it (:mod:`tokenlake.etl.sources.listing`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenlake.etl.sources.formats import expand_braces
from tokenlake.runtime.store.allowed import AllowedPlaces, is_on_disk, path_of

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


def require_allowed_inputs(source: ResolvedSource, places: AllowedPlaces) -> None:
    """Refuse a source if an entry of its `data_files`, or its `exclude`, can stand for a place that is not allowed.

    Raises:
        ConfigError: The entry lies outside, or can lead out.
    """
    if not places.is_bounded:
        return
    what = f"data_files of {source.name!r}"
    for entry in source.data_files:
        patterns = expand_braces(entry)
        if is_on_disk(entry) and os.path.exists(os.path.expanduser(path_of(entry))):  # noqa: PTH110, PTH111
            patterns.append(entry)  # a listing takes it as it is written
        for pattern in patterns:
            is_dataset = source.type == "hub" and "://" not in pattern
            places.require_pattern(f"hf://datasets/{pattern}" if is_dataset else pattern, what)
    if source.exclude is not None:
        places.require(source.exclude, f"exclude of {source.name!r}")
