"""Files of a folder that describe a dataset, and are not a part of its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenlake.etl.sources.card_layout import front_matter
from tokenlake.etl.sources.layout import CARD, DESCRIPTIONS
from tokenlake.etl.sources.saved_layout import STATE, ReadText, is_saved, saved_files


def without_descriptions(paths: Sequence[str], every: Iterable[str], read: ReadText) -> list[str]:
    """Return the paths that are data: not those of files which describe a dataset, nor what is beside saved rows.

    Args:
        paths: of files whose names say that they are data.
        every: paths of all files of the folder.
        read: returns the text of a small file.

    Raises:
        ConfigError: a saved dataset cannot be used.
    """
    names_of_folder: dict[str, set[str]] = {}
    for path in every:
        folder, _, name = path.rpartition("/")
        names_of_folder.setdefault(folder, set()).add(name)
    rows: dict[str, set[str]] = {}
    for folder, names in names_of_folder.items():
        if is_saved(names):
            state = f"{folder}/{STATE}".lstrip("/")
            rows[folder] = set(saved_files(read(state), state))
    found: list[str] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder in rows and name not in rows[folder]:
            continue
        is_card = name == CARD and front_matter(read(path)) != ""
        if name not in DESCRIPTIONS and not is_card:
            found.append(path)
    return found
