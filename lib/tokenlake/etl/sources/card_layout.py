"""Subsets and splits that a dataset card declares: ``configs:`` in the front matter of ``README.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, cast

from tokenlake.base.yaml_file import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.layout import CARD, DEFAULT, TRAIN, FolderLayout, Splits, matches
from tokenlake.etl.sources.split_names import SPLIT_NAME, splits_by_name


def card_configs(card: str, repo: str, pattern: str | None = None) -> list[dict[str, Any]]:
    """Return the entries of ``configs:`` in a card's front matter; none without one.

    Args:
        card: the text of README.md.
        repo: id of the dataset on the Hub or name of the folder, for messages.
        pattern: what to write for `data_files` instead, for messages; None: files of the repository.

    Raises:
        ConfigError: the front matter is no YAML, or the entries are not of the Hub's form.
    """
    try:
        meta: object = parse_yaml(front_matter(card), CARD).data
    except ConfigError as error:
        why = " ".join(str(error).split())[:200]
        raise _bad_card(repo, f"its front matter is no YAML ({why})", pattern) from error
    entries = cast("dict[str, Any]", meta).get("configs") if isinstance(meta, dict) else None
    if not entries:
        return []
    if not isinstance(entries, list):
        raise _bad_card(repo, f"`configs` is a {type(entries).__name__}, expected a list", pattern)
    for entry in cast("list[object]", entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise _bad_card(repo, f"an entry of `configs` has no config_name: {entry!r:.200}", pattern)
    return cast("list[dict[str, Any]]", entries)


def front_matter(card: str) -> str:
    """Return the YAML between the two ``---`` lines a card begins with; "" without them."""
    lines = card.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return ""
    ends = [number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"]
    return "\n".join(lines[1 : ends[0]]) if ends else ""


def layout_by_card(
    configs: Sequence[Mapping[str, Any]], paths: Sequence[str], repo: str, pattern: str | None = None
) -> FolderLayout:
    """Return the layout that the entries of a card's ``configs:`` describe.

    Args:
        configs: as :func:`card_configs` returns them.
        paths: of all data below the card's folder.
        repo, pattern: as for :func:`card_configs`.

    Raises:
        ConfigError: an entry cannot be used.
    """
    subsets: dict[str, Splits] = {}
    defaults: list[str] = []
    for entry in configs:
        name = str(entry["config_name"])
        folder = str(entry.get("data_dir") or "").removeprefix("./").strip("/")
        prefix = f"{folder}/" if folder else ""
        inside = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        written = entry.get("data_files")
        if written is None:
            splits = splits_by_name(matches("**", inside))
        else:
            patterns = _written_patterns(written, repo, pattern)
            splits = {split: _all_matches(globs, inside) for split, globs in patterns.items()}
        subsets[name] = {split: [prefix + path for path in files] for split, files in splits.items()}
        if name == DEFAULT or entry.get("default") or len(configs) == 1:
            defaults.append(name)
    if len(defaults) > 1:
        raise _bad_card(repo, f"it has several default subsets: {', '.join(defaults)}", pattern)
    return FolderLayout(subsets, defaults[0] if defaults else None, "card")


def _all_matches(patterns: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the paths of all patterns, once each, sorted."""
    found: set[str] = set()
    for pattern in patterns:
        found.update(matches(pattern, paths))
    return sorted(found)


def _written_patterns(written: object, repo: str, pattern: str | None) -> dict[str, list[str]]:
    """Read ``data_files`` of a card: a pattern, a list of them, or a list of {split, path}."""
    items = cast("list[object]", written) if isinstance(written, list) else [written]
    if all(isinstance(item, str) for item in items):
        items = [{"split": TRAIN, "path": items}]
    splits: dict[str, list[str]] = {}
    for item in items:
        found = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        name, path = found.get("split"), found.get("path")
        every = cast("list[object]", path) if isinstance(path, list) else [path]
        patterns = [each for each in every if isinstance(each, str)]
        if not isinstance(name, str) or not SPLIT_NAME.fullmatch(name) or len(patterns) < len(every):
            raise _bad_card(repo, f"an entry of data_files is not {{split, path}}: {item!r:.200}", pattern)
        if name in splits:
            raise _bad_card(repo, f"split {name!r} stands twice in data_files of a subset", pattern)
        for each in patterns:
            if "://" in each or ".." in PurePosixPath(each).parts:
                told = f"it points outside the repository: {each!r}; name those files in data_files"
                raise _bad_card(repo, told, pattern)
        splits[name] = patterns
    return splits


def _bad_card(repo: str, what: str, pattern: str | None) -> ConfigError:
    return ConfigError(
        f"dataset {repo!r}: the card (README.md) cannot be used: {what}. Name the files themselves: "
        f"data_files: {pattern or f'hf://datasets/{repo}/PATTERN'}",
        repo=repo,
    )
