"""Files of a folder that describe a dataset, and are not a part of its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenlake.etl.sources.card_layout import front_matter
from tokenlake.etl.sources.layout import CARD, DESCRIPTIONS
from tokenlake.etl.sources.saved_layout import STATE, ReadText, is_saved, saved_files


def without_descriptions(
    paths: Sequence[str], every: Iterable[str], read: ReadText
) -> list[str]:
    """Return the paths that are data: not those of files that describe a dataset, nor
    of files beside saved rows.

    Args:
        paths: Paths of files whose names say that they are data.
        every: Paths of all files of the folder.
        read: Function that returns the text of a small file.

    Raises:
        ConfigError: A saved dataset cannot be used.
    """
    names_of_folder: dict[str, set[str]] = {}
    for path in every:
        folder, _, name = path.rpartition("/")
        names_of_folder.setdefault(folder, set()).add(name)
    # Folders that `datasets` saved, with the names of the files that hold their rows.
    row_files_of_folder: dict[str, set[str]] = {}
    for folder, names in names_of_folder.items():
        if is_saved(names):
            state = f"{folder}/{STATE}".lstrip("/")
            row_files_of_folder[folder] = set(saved_files(read(state), state))
    data_paths: list[str] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder in row_files_of_folder and name not in row_files_of_folder[folder]:
            continue
        is_card = name == CARD and front_matter(read(path)) != ""
        if name not in DESCRIPTIONS and not is_card:
            data_paths.append(path)
    return data_paths
