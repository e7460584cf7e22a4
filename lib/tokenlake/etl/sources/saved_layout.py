"""Splits of a dataset that ``save_to_disk`` of the `datasets` library wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

from tokenlake.errors import ConfigError
from tokenlake.etl.sources.layout import DEFAULT, FolderLayout

STATE: Final = "state.json"
"""Name of the file that lists the files with the rows of a saved dataset, and names
its split.
"""
_INFO: Final = "dataset_info.json"
_SPLIT_NAMES: Final = "dataset_dict.json"

ReadText: TypeAlias = Callable[[str], str]
"""Function that returns the text of a small file, by its path relative to the
folder.
"""


def is_saved(names: Iterable[str]) -> bool:
    """Say whether ``Dataset.save_to_disk`` wrote a folder that holds these names."""
    return {STATE, _INFO} <= set(names)


def saved_files(state: str, shown: str) -> list[str]:
    """Return the names of the files that hold the rows of a saved dataset.

    Other Arrow files of its folder, such as ``cache-*.arrow``, hold results of ``map``,
    not its rows.

    Args:
        state: Text of its ``state.json``.
        shown: Path of that file, for messages.

    Raises:
        ConfigError: The text does not list files, or rows are chosen by an index beside
            them.
    """
    fields = _load_object(state, shown)
    entries: object = fields.get("_data_files")
    # A text that lists nothing is refused like one with a bad entry.
    listed_files: list[object] = [None]
    if isinstance(entries, list):
        listed_files = cast("list[object]", entries)
    names: list[str] = []
    for entry in listed_files:
        file_name: object = None
        if isinstance(entry, dict):
            file_name = cast("dict[str, object]", entry).get("filename")
        # A name must lie in the folder itself: the file is read, whatever wrote the
        # text.
        is_name = isinstance(file_name, str) and file_name not in ("", ".", "..")
        if not isinstance(file_name, str) or not is_name or "/" in file_name:
            raise ConfigError(
                f"{shown}: `_data_files` of a saved dataset must be a list of {{filename: NAME}}; got {entry!r:.80}. "
                "Save it again, or name the Arrow files in data_files",
                file=shown,
            )
        names.append(file_name)
    if fields.get("_indices_files") or fields.get("_indices_data_files"):
        raise ConfigError(
            f"{shown}: an old release of `datasets` saved this dataset with a list of row indices, which is not read; "
            "load it with `datasets.load_from_disk` and save it again",
            file=shown,
        )
    return names


def saved_split(state: str, shown: str) -> str | None:
    """Return the split of a saved dataset, None if its ``state.json`` names none.

    Args:
        state: Text of ``state.json``.
        shown: Path of that file, for messages.
    """
    # The split may be a slice: ``train[:10%]`` is of train.
    split = _load_object(state, shown).get("_split")
    return split.partition("[")[0] if isinstance(split, str) else None


def saved_splits(text: str, shown: str) -> list[str]:
    """Return the splits that ``dataset_dict.json`` names, each a folder beside it.

    Args:
        text: Text of ``dataset_dict.json``.
        shown: Path of that file, for messages.

    Raises:
        ConfigError: The file names no splits.
    """
    names = _load_object(text, shown).get("splits")
    all_names: list[object] = []
    if isinstance(names, list):
        all_names = cast("list[object]", names)
    splits = [name for name in all_names if isinstance(name, str)]
    if not splits or len(splits) < len(all_names):
        raise ConfigError(
            f'{shown}: expected {{"splits": [names]}}, as DatasetDict.save_to_disk writes it; got {names!r:.80}. '
            "Save it again, or name the folder of a split in data_files",
            file=shown,
        )
    return splits


def _load_object(text: str, shown: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ConfigError: The text is something else.
    """
    try:
        parsed: object = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{shown}: it is not JSON ({error}); a folder that `datasets` saved needs it. Save the dataset again, or "
            "name its Arrow files in data_files",
            file=shown,
        ) from error
    if not isinstance(parsed, dict):
        raise ConfigError(
            f"{shown}: expected a JSON object, got a {type(parsed).__name__}",
            file=shown,
        )
    return cast("dict[str, Any]", parsed)


def saved_layout(
    paths: Sequence[str], every: Iterable[str], read: ReadText
) -> FolderLayout | None:
    """Return the layout of a folder that ``DatasetDict.save_to_disk`` wrote.

    It is None for any other folder.

    Args:
        paths: Paths of data in the folder.
        every: Paths of all files of the folder.
        read: Function that returns the text of a small file.
    """
    if _SPLIT_NAMES not in every:
        return None
    splits: dict[str, list[str]] = {}
    for split in saved_splits(read(_SPLIT_NAMES), _SPLIT_NAMES):
        splits[split] = [path for path in paths if path.startswith(f"{split}/")]
    return FolderLayout({DEFAULT: splits}, DEFAULT, "saved")
