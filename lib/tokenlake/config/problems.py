"""What a build of texts needs beyond a valid configuration, and what this release does not act on yet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tokenlake.config.availability import RULES, unavailable
from tokenlake.config.lengths import contradictions
from tokenlake.config.outputs import only_in_builds, output_problems, shard_problems
from tokenlake.config.preference import preference_problems
from tokenlake.config.resolving_source import tokenizer_choice

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def text_problems(config: PipelineConfig) -> list[str]:
    """Return what a build needs beyond a valid configuration, and what is written but would do nothing."""
    problems = nameless(config)
    if config.mixes or any(dataset.dataset is not None for dataset in config.datasets):
        problems.append("mix: stored datasets and mixtures are no build of texts; see tokenlake.config.steps")
    if not config.pack.enabled and "enabled" not in config.pack.model_fields_set:
        written = sorted(config.pack.model_fields_set)
        if written:
            problems.append(
                f"pack.{written[0]}: set, but packing is off; write pack.enabled: true, or false to say so"
            )
    for dataset in config.datasets:
        problems += _missing_in(config, dataset)
        problems += output_problems(config, dataset, tokenizer_choice(config, dataset))
    return problems + shard_problems(config) + contradictions(config) + preference_problems(config)


def nameless(config: PipelineConfig) -> list[str]:
    """Return what is wrong where the result has no name."""
    if config.name is not None:
        return []
    return [
        "name: missing. A build needs a name for its dataset: lower-case letters, digits, '.', '_', '-', "
        "at most 64. (The default is the stem of the configuration's file, where that is such a name.)"
    ]


def _missing_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems: list[str] = []
    if tokenizer_choice(config, dataset) is None:
        problems.append(
            f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is "
            "set; write a Hub id, a directory or a tokenizer.json file"
        )
    if dataset.text_mode != "document" and dataset.type in ("jsonl", "parquet"):
        problems.append(
            f"{path}.text_mode: {dataset.text_mode!r} is for text files, but type is {dataset.type!r}"
        )
    return problems


def not_yet(config: PipelineConfig) -> list[str]:
    """Return a message for every option that is set and that no build acts on."""
    problems = unavailable("", config, "")
    for dataset in config.datasets:
        problems += _not_yet_in(config, dataset)
    for section in RULES:
        if section not in ("", "datasets", "tokenizer"):
            problems += unavailable(section, getattr(config, section), section)
    return problems


def _not_yet_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems = unavailable("datasets", dataset, path)
    if dataset.exclude is not None:
        problems += _remote(f"{path}.exclude", dataset.exclude)
    choice = tokenizer_choice(config, dataset)
    if choice is not None and not isinstance(choice, str):
        problems += unavailable("tokenizer", choice, f"{path}.tokenizer")
    return problems


def _remote(path: str, url: str) -> list[str]:
    if not _URL.match(url):
        return []
    return [f"{path}: {url.split('://')[0]}:// is not available yet; today: plain paths of local files"]


def source_not_yet(dataset: DatasetConfig) -> list[str]:
    """Return a message for every option of a dataset that does nothing for a source of rows on its own."""
    found = unavailable("datasets", dataset, f"datasets.{dataset.name}") + only_in_builds(dataset)
    if dataset.dataset is not None:
        found.append(
            f"datasets.{dataset.name}.dataset: {dataset.dataset!r} is not available yet as a source of rows; "
            "today: builds take it; to read its rows use data_files: STORE/NAME/v1/data/*.parquet"
        )
    return found
