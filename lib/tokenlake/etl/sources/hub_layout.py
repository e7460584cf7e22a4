"""Subsets and splits of a repository on the Hub, by its card or names of files."""

from __future__ import annotations

from collections.abc import Sequence

from tokenlake.etl.sources.card_layout import card_configs, layout_by_card
from tokenlake.etl.sources.formats import format_of
from tokenlake.etl.sources.layout import DEFAULT, FolderLayout, foreign, matches
from tokenlake.etl.sources.split_names import splits_by_name


def layout_of(paths: Sequence[str], card: str | None, repo: str) -> FolderLayout | None:
    """Find the subsets and splits of a repository; None where no file of it is data.

    Args:
        paths: Paths of all files.
        card: Text of README.md, None if there is none.
        repo: Id of the dataset, for messages.

    Raises:
        ConfigError: The card cannot be used.
    """
    data_paths: list[str] = []
    for path in paths:
        if format_of(path) is not None or foreign(path):
            data_paths.append(path)
    # A card's entries count first. Without them the rules of the Hub's viewer apply to
    # the names.
    configs = card_configs(card or "", repo)
    if configs:
        return layout_by_card(configs, data_paths, repo)
    splits = splits_by_name(matches("**", data_paths))
    if not splits:
        return None
    # Beside tables a text file is a licence or a list of requirements, and is left out,
    # unless a card's own pattern names it. A split of text files alone keeps them.
    files_of_split: dict[str, list[str]] = {}
    for split, files in splits.items():
        tables = [path for path in files if format_of(path) != "text"]
        files_of_split[split] = tables or files
    return FolderLayout({DEFAULT: files_of_split}, DEFAULT)
