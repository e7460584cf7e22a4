"""What a configuration says of the rows and files that come out, and where it contradicts itself there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.column_types import RESERVED

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import TokenizerConfig


def has_attention_mask(tokenizer: TokenizerConfig | None) -> bool:
    """Whether unpacked rows get the column: where it is asked for by name, and where it tells padding from text."""
    if tokenizer is None or not tokenizer.return_attention_mask:
        return False
    asked = "return_attention_mask" in tokenizer.model_fields_set
    return asked or tokenizer.padding in ("max_length", "longest")


def output_problems(
    config: PipelineConfig, dataset: DatasetConfig, choice: str | TokenizerConfig | None
) -> list[str]:
    """Return what is wrong with a dataset's kept fields and padding."""
    path = f"datasets.{dataset.name}"
    problems = _kept_problems(config, dataset, f"{path}.additional_fields")
    if choice is not None and not isinstance(choice, str):
        problems += _padding_problems(config, choice, f"{path}.tokenizer")
    return problems


def _kept_problems(config: PipelineConfig, dataset: DatasetConfig, path: str) -> list[str]:
    fields = dataset.additional_fields or ()
    if fields and config.pack.enabled:
        return [
            f"{path}: {', '.join(map(repr, fields))} cannot be kept beside packed rows, which hold pieces of several "
            "documents; write pack.enabled: false, or find the record again by `documents.file` and `position`"
        ]
    problems = [
        f"{path}: {name!r} is a column that every row has already; rename the field: "
        f"format_fields: {{{name}: another_name}}, and keep that"
        for name in fields
        if name.lower() in RESERVED
    ]
    if len({name.lower() for name in fields}) < len(set(fields)):
        problems.append(f"{path}: two names differ in upper and lower case only, which SQL cannot tell apart")
    removed = [name for name in fields if name in (config.tokenize.remove_columns or ())]
    if removed:
        problems.append(f"{path}: {removed[0]!r} is to be kept, and tokenize.remove_columns says to drop it")
    return problems


def _padding_problems(config: PipelineConfig, tokenizer: TokenizerConfig, path: str) -> list[str]:
    padded = tokenizer.padding in ("max_length", "longest")
    if padded and config.pack.enabled:
        return [
            f"{path}.padding: {tokenizer.padding!r} is for unpacked documents; packing fills every row with "
            "documents and only the last one with padding, so write padding: false, or pack.enabled: false"
        ]
    if padded and not tokenizer.return_attention_mask:
        return [
            f"{path}.return_attention_mask: false, but rows are padded, and only the mask says what of a row is "
            "padding; leave it out"
        ]
    if tokenizer.padding_side is not None and not padded:
        return [
            f"{path}.padding_side: {tokenizer.padding_side!r}, but nothing is padded; set padding, or leave it out"
        ]
    return []


def shard_problems(config: PipelineConfig) -> list[str]:
    """Return what is wrong with the numbers of files of the whole and of the sources."""
    total = config.save.num_shards
    if total is None or not config.datasets:
        return []
    own = [dataset.num_shards for dataset in config.datasets if dataset.num_shards is not None]
    others = len(config.datasets) - len(own)
    if not others and sum(own) != total:
        return [
            f"save.num_shards: {total}, but the datasets' own num_shards come to {sum(own)}; "
            "leave one or the other out"
        ]
    if total - sum(own) < others:
        taken = f" beside the {sum(own)} of datasets with a number of their own" if own else ""
        return [
            f"save.num_shards: {total} is too few: {others} datasets{taken} need a file each, because a file holds "
            f"documents of one dataset; write at least {sum(own) + others}"
        ]
    return []


def only_in_builds(dataset: DatasetConfig) -> list[str]:
    """Return what is set of a dataset that says something of a build's files, but nothing of its rows."""
    instead = {
        "additional_fields": "a source yields whole rows; select fields of them with `select_fields`",
        "num_shards": "a source has the shards that its files make",
    }
    return [
        f"datasets.{dataset.name}.{field}: {getattr(dataset, field)!r} is not available yet for a source on its own; "
        f"today: {today}"
        for field, today in instead.items()
        if getattr(dataset, field)
    ]
