"""Files of a folder that describe a dataset, and are not a part of its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenlake.etl.sources.card_layout import front_matter
from tokenlake.etl.sources.layout import CARD, DESCRIPTIONS
from tokenlake.etl.sources.saved_layout import STATE, ReadText, is_saved, saved_files


def without_descriptions(
    paths: Sequence[str], every: Iterable[str], read: ReadText
) -> list[str]:
    """Return the paths that are data.

    Files that describe a dataset, and files beside saved rows, are no data.

    Args:
        paths: Paths of files whose names say that they are data.
        every: Paths of all files of the folder.
        read: Function that returns the text of a small file.

    Raises:
        ConfigError: A saved dataset cannot be used.
    """
    # Names of the files in each folder, by which a saved dataset is recognized.
    names_of_folder: dict[str, set[str]] = {}
    for path in every:
        folder, _, file_name = path.rpartition("/")
        names_of_folder.setdefault(folder, set()).add(file_name)
    # Folders that `datasets` saved, with the names of the files that hold their rows.
    row_files_of_folder: dict[str, set[str]] = {}
    for folder, names in names_of_folder.items():
        if is_saved(names):
            state_path = f"{folder}/{STATE}".lstrip("/")
            row_files_of_folder[folder] = set(saved_files(read(state_path), state_path))
    data_paths: list[str] = []
    # A README.md may be a document of a corpus. It describes a dataset only if it has
    # front matter.
    for path in paths:
        folder, _, file_name = path.rpartition("/")
        if (
            folder in row_files_of_folder
            and file_name not in row_files_of_folder[folder]
        ):
            continue
        is_card = file_name == CARD and front_matter(read(path)) != ""
        if file_name not in DESCRIPTIONS and not is_card:
            data_paths.append(path)
    return data_paths
