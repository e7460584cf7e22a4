"""Subsets and splits that a dataset card declares.

They stand under ``configs:`` in the front matter of ``README.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, cast

from tokenlake.base.yaml_file import parse_yaml
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.layout import (
    CARD,
    DEFAULT,
    TRAIN,
    FolderLayout,
    Splits,
    matches,
)
from tokenlake.etl.sources.split_names import SPLIT_NAME, splits_by_name

_FENCE: Final = "---"
_SHOWN_CHARACTERS: Final = 200


def card_configs(
    card: str, repo: str, pattern: str | None = None
) -> list[dict[str, Any]]:
    """Return the entries of ``configs:`` in a card's front matter, [] without any.

    Args:
        card: Text of README.md.
        repo: Id of the dataset on the Hub or name of the folder, for messages.
        pattern: Pattern that could be written for `data_files` instead, for messages;
            None for files of the repository.

    Raises:
        ConfigError: The front matter is no YAML, or the entries do not have the Hub's
            form.
    """
    # Cards are written by people: each way in which the front matter can be wrong has a
    # message of its own.
    try:
        front_matter_data: object = parse_yaml(front_matter(card), CARD).data
    except ConfigError as error:
        reason = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
        raise _bad_card(
            repo, f"its front matter is not YAML ({reason})", pattern
        ) from error
    if not isinstance(front_matter_data, dict):
        return []
    entries: object = cast("dict[str, Any]", front_matter_data).get("configs")
    if not entries:
        return []
    if not isinstance(entries, list):
        raise _bad_card(
            repo, f"`configs` is a {type(entries).__name__}, expected a list", pattern
        )
    for entry in cast("list[object]", entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise _bad_card(
                repo,
                f"an entry of `configs` has no config_name: {entry!r:.200}",
                pattern,
            )
    return cast("list[dict[str, Any]]", entries)


def front_matter(card: str) -> str:
    """Return the YAML between the two ``---`` lines at the beginning of a card.

    It is "" for a card without them.
    """
    # A byte order mark may stand in front of the first line.
    lines = card.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return ""
    for line_number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            return "\n".join(lines[1:line_number])
    return ""


def layout_by_card(
    configs: Sequence[Mapping[str, Any]],
    paths: Sequence[str],
    repo: str,
    pattern: str | None = None,
) -> FolderLayout:
    """Return the layout that the entries of a card's ``configs:`` describe.

    Args:
        configs: Entries as :func:`card_configs` returns them.
        paths: Paths of all data below the card's folder.
        repo: Id of the dataset on the Hub or name of the folder, for messages.
        pattern: Pattern that could be written for `data_files` instead, as for
            :func:`card_configs`.

    Raises:
        ConfigError: An entry cannot be used.
    """
    subsets: dict[str, Splits] = {}
    defaults: list[str] = []
    for entry in configs:
        # 1. Paths of a subset are relative to its folder, which `data_dir` may name.
        subset_name = str(entry["config_name"])
        folder = str(entry.get("data_dir") or "").removeprefix("./").strip("/")
        prefix = f"{folder}/" if folder else ""
        paths_inside: list[str] = []
        for path in paths:
            if path.startswith(prefix):
                paths_inside.append(path.removeprefix(prefix))

        # 2. Its splits, with paths below the card's folder again.
        splits = _splits_of_entry(entry.get("data_files"), paths_inside, repo, pattern)
        paths_of_split: dict[str, list[str]] = {}
        for split, files in splits.items():
            paths_of_split[split] = [prefix + path for path in files]
        subsets[subset_name] = paths_of_split

        # 3. A subset is the default one by its name, by ``default: true``, or because
        #    it is the only one.
        if subset_name == DEFAULT or entry.get("default") or len(configs) == 1:
            defaults.append(subset_name)
    if len(defaults) > 1:
        raise _bad_card(
            repo, f"it has several default subsets: {', '.join(defaults)}", pattern
        )
    default = defaults[0] if defaults else None
    return FolderLayout(subsets, default, "card")


def _splits_of_entry(
    data_files: object, paths: Sequence[str], repo: str, pattern: str | None
) -> dict[str, list[str]]:
    """Return the splits of a subset: by its ``data_files``, else by names of files."""
    if data_files is None:
        return splits_by_name(matches("**", paths))
    splits: dict[str, list[str]] = {}
    for split, globs in _patterns_of_splits(data_files, repo, pattern).items():
        splits[split] = _all_matches(globs, paths)
    return splits


def _all_matches(patterns: Iterable[str], paths: Sequence[str]) -> list[str]:
    """Return the paths that any of the patterns matches, once each, sorted."""
    matching: set[str] = set()
    for pattern in patterns:
        matching.update(matches(pattern, paths))
    return sorted(matching)


def _patterns_of_splits(
    data_files: object, repo: str, pattern: str | None
) -> dict[str, list[str]]:
    """Read ``data_files`` of a card.

    Its value is a pattern, a list of patterns, or a list of {split, path}.

    Raises:
        ConfigError: The value has another form, names a split twice, or points outside
            of the repository.
    """
    # Patterns without a split are those of train.
    items: list[object] = [data_files]
    if isinstance(data_files, list):
        items = cast("list[object]", data_files)
    if all(isinstance(item, str) for item in items):
        items = [{"split": TRAIN, "path": items}]
    patterns_of_split: dict[str, list[str]] = {}
    for item in items:
        # Each item is {split: NAME, path: pattern or list of patterns}.
        split_entry: dict[str, object] = {}
        if isinstance(item, dict):
            split_entry = cast("dict[str, object]", item)
        split = split_entry.get("split")
        patterns = _texts_of(split_entry.get("path"))
        is_split = isinstance(split, str) and SPLIT_NAME.fullmatch(split) is not None
        if not isinstance(split, str) or not is_split or patterns is None:
            problem = f"an entry of data_files is not {{split, path}}: {item!r:.200}"
            raise _bad_card(repo, problem, pattern)
        if split in patterns_of_split:
            raise _bad_card(
                repo, f"split {split!r} occurs twice in data_files of a subset", pattern
            )
        # A card describes its own repository. Another place would not be fixed by the
        # commit.
        for path in patterns:
            if "://" in path or ".." in PurePosixPath(path).parts:
                problem = f"it points outside the repository: {path!r}; name those files in data_files"
                raise _bad_card(repo, problem, pattern)
        patterns_of_split[split] = patterns
    return patterns_of_split


def _texts_of(value: object) -> list[str] | None:
    """Return a text or a list of texts as a list; None for anything else."""
    items: list[object] = [value]
    if isinstance(value, list):
        items = cast("list[object]", value)
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else None


def _bad_card(repo: str, problem: str, pattern: str | None) -> ConfigError:
    """Return the error for a card that cannot be used."""
    if not pattern:
        pattern = f"hf://datasets/{repo}/PATTERN"
    return ConfigError(
        f"dataset {repo!r}: the card (README.md) cannot be used: {problem}. List the files: data_files: {pattern}",
        repo=repo,
    )
