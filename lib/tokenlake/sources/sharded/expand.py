"""From patterns to files, without a word on what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.patterns import expand, is_url
from tokenlake.sources.sharded.options import DataFiles, file_list, wanted_source


def expand_data_files(data_files: DataFiles, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that entries stand for: absolute paths, or URLs.

    In the order of the entries, sorted within each, every file once. A directory stands for the files in it
    and below whose extensions are known.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        ConfigError: an argument is none of what is allowed.
    """
    found: dict[str, None] = {}
    for entry in file_list(data_files):
        found.update(dict.fromkeys(_found(entry, storage_options)))
    return list(found)


def _found(entry: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    if not is_url(entry):
        return sorted(str(path) for path in expand(entry, None)[1])
    source = wanted_source(None, entry, storage_options)
    return [file.url for file in list_inputs(source, hashed=False)]
