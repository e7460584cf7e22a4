"""Check that the inputs of a source lie where the owner of a worker allows it.

The places are those of :mod:`tokenlake.runtime.store.allowed`.

The check comes before any listing, so that no request is made that is not allowed.
Files that globs and links lead to are checked again when the listing has found them
(:mod:`tokenlake.etl.sources.listing`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenlake.etl.sources.formats import expand_braces
from tokenlake.runtime.store.allowed import AllowedPlaces, is_on_disk, path_of

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedSource


def require_allowed_inputs(source: ResolvedSource, places: AllowedPlaces) -> None:
    """Refuse a source whose `data_files` or `exclude` can lead to another place.

    Raises:
        ConfigError: An entry lies outside of the allowed places, or can lead out.
    """
    # Only a worker whose owner named allowed places is bounded.
    if not places.is_bounded:
        return
    setting = f"data_files of {source.name!r}"
    for entry in source.data_files:
        patterns = expand_braces(entry)
        if is_on_disk(entry) and os.path.exists(os.path.expanduser(path_of(entry))):  # noqa: PTH110, PTH111
            # A listing takes the name of an existing file as it is written.
            patterns.append(entry)
        for pattern in patterns:
            # An entry of a Hub source is the id of a repository, written without a
            # scheme.
            if source.type == "hub" and "://" not in pattern:
                pattern = f"hf://datasets/{pattern}"
            places.require_pattern(pattern, setting)
    if source.exclude is not None:
        places.require(source.exclude, f"exclude of {source.name!r}")
