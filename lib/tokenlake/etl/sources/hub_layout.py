"""Subsets and splits of a repository on the Hub: by its card, else by the names of its files."""

from __future__ import annotations

from collections.abc import Sequence

from tokenlake.etl.sources.card_layout import card_configs, layout_by_card
from tokenlake.etl.sources.formats import format_of
from tokenlake.etl.sources.layout import DEFAULT, FolderLayout, foreign, matches
from tokenlake.etl.sources.split_names import splits_by_name


def layout_of(paths: Sequence[str], card: str | None, repo: str) -> FolderLayout | None:
    """Find the subsets and splits of a repository on the Hub; None where no file of it is data.

    Args:
        paths: of all files.
        card: the text of README.md, None without one.
        repo: id of the dataset, for messages.

    Raises:
        ConfigError: the card is of no use.
    """
    data = [path for path in paths if format_of(path) is not None or foreign(path)]
    configs = card_configs(card or "", repo)
    if configs:
        return layout_by_card(configs, data, repo)
    splits = splits_by_name(matches("**", data))
    if not splits:
        return None
    # Beside tables a text file is a licence or a list of requirements; a card's own pattern may still name it.
    tables = {name: [path for path in files if format_of(path) != "text"] for name, files in splits.items()}
    return FolderLayout({DEFAULT: {name: tables[name] or files for name, files in splits.items()}}, DEFAULT)
