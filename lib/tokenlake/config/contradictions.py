"""What a valid configuration still lacks for a build, and where its options contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenlake.column_types import RESERVED
from tokenlake.errors import ConfigError
from tokenlake.preference_columns import columns_for

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import MixStageConfig, TokenizerConfig, TokenizeStageConfig


def build_problems(config: PipelineConfig) -> list[str]:
    """Return what keeps a configuration from being a build, one message each."""
    problems = config.validate() + _nameless(config) + _idle_pack(config)
    if not config.is_text_build:
        return problems + _stored_problems(config)
    for dataset in config.datasets:
        problems += _missing_in(config, dataset)
        problems += output_problems(config, dataset, config.tokenizer_of(dataset))
    return problems + shard_problems(config) + truncation_problems(config) + preference_problems(config)


def raise_problems(kind: type[ConfigError], problems: list[str]) -> None:
    """Raise one error that lists all problems, if there is any."""
    if len(problems) == 1:
        raise kind(problems[0], problems=problems)
    if problems:
        listed = "\n".join(f"  {line}" for line in problems)
        raise kind(f"{len(problems)} problems in the configuration\n{listed}", problems=problems)


def _idle_pack(config: PipelineConfig) -> list[str]:
    written = sorted(config.pack.model_fields_set)
    if config.pack.enabled or "enabled" in written or not written:
        return []
    return [f"pack.{written[0]}: set, but packing is off; write pack.enabled: true, or false to say so"]


def _nameless(config: PipelineConfig) -> list[str]:
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
    if config.tokenizer_of(dataset) is None:
        problems.append(
            f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is "
            "set; write a Hub id, a directory or a tokenizer.json file"
        )
    if dataset.text_mode != "document" and dataset.type in ("jsonl", "parquet"):
        problems.append(
            f"{path}.text_mode: {dataset.text_mode!r} is for text files, but type is {dataset.type!r}"
        )
    return problems


def truncation_problems(config: PipelineConfig) -> list[str]:
    """Return where the policy contradicts itself, and options of truncation that would do nothing."""
    found = [problem for dataset in config.datasets for problem in _truncation_in(config, dataset)]
    if any(config.long_documents_of(dataset) == "truncate" for dataset in config.datasets):
        return found
    return found + _idle("tokenize", config.tokenize, "no dataset's documents are truncated")


def _truncation_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    policy, truncation = config.long_documents_of(dataset), config.truncation_of(dataset)
    found: list[str] = []
    if truncation is not None and truncation != (policy == "truncate"):
        where = f"{path}.long_documents" if dataset.long_documents else "tokenize.long_documents"
        found.append(
            f"{where}: {policy!r}, but the tokenizer of {dataset.name!r} has truncation: {str(truncation).lower()}; "
            "leave one of them out"
        )
    if policy != "truncate":
        found += _idle(path, dataset, f"its long documents are not truncated ({policy})")
    return found


def _idle(path: str, section: DatasetConfig | TokenizeStageConfig, why: str) -> list[str]:
    given = {
        "truncation_strategy": section.truncation_strategy,
        "truncation_side": section.truncation_side,
    }
    return [
        f"{path}.{name}: set, but {why}; write long_documents: truncate, or leave it out"
        for name, value in given.items()
        if value is not None
    ]


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


def preference_problems(config: PipelineConfig) -> list[str]:
    """Return what contradicts a preference section; nothing where no dataset has one."""
    asked = {dataset.name: dataset.preference for dataset in config.datasets}
    if not any(asked.values()):
        return []
    problems: list[str] = []
    if config.pack.enabled:
        problems.append(
            "pack.enabled: true, but a dataset has a section `preference`, whose rows are pairs, not one stretch of "
            "tokens; write pack.enabled: false"
        )
    kinds = {name: (each.method, each.trainer) if each else None for name, each in asked.items()}
    if len(set(kinds.values())) > 1:
        told = ", ".join(
            f"{name}: {' for '.join(kind) if kind else 'no preference'}" for name, kind in kinds.items()
        )
        problems.append(
            f"datasets: their rows would have different columns ({told}); all datasets of a build need the same "
            "preference.method and preference.trainer: make one build of each kind"
        )
    for dataset in config.datasets:
        problems += _preference_in(config, dataset)
    return problems


def _preference_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    if dataset.preference is None:
        return []
    problems: list[str] = []
    if (dataset.long_documents or config.tokenize.long_documents) == "split":
        problems.append(
            f"{path}.long_documents: split, but a pair cannot be cut into several; write keep, truncate (cuts the "
            "answers' ends) or drop"
        )
    for section, where in ((dataset, path), (config.tokenize, "tokenize")):
        given = {"truncation_strategy": "simple", "truncation_side": "right"}
        problems += [
            f"{where}.{name}: {getattr(section, name)}, but of preferences only the answers' ends are cut: leave it out"
            for name, usual in given.items()
            if getattr(section, name) not in (None, usual)
        ]
    taken = {column.name for column in columns_for(dataset.preference.method, dataset.preference.trainer)}
    problems += [
        f"{path}.additional_fields: {name!r} is a column that these rows have already; rename the field: "
        f"format_fields: {{{name}: another_name}}, and keep that"
        for name in dataset.additional_fields or ()
        if name.lower() in taken
    ]
    choice = config.tokenizer_of(dataset)
    if choice is not None and not isinstance(choice, str) and choice.padding in ("max_length", "longest"):
        problems.append(
            f"{path}.tokenizer.padding: {choice.padding!r}, but rows of preferences are not padded, their trainers do "
            "that; write padding: false"
        )
    return problems + [
        f"{path}.{other}: set beside `preference`; its conversations are rendered by the tokenizer's own chat "
        "template, and its fields are named in `preference`"
        for other in ("chat", "prompt")
        if getattr(dataset, other) is not None
    ]


def _stored_problems(config: PipelineConfig) -> list[str]:
    """Return what a build from stored datasets needs beyond a valid configuration."""
    problems = [
        f"datasets.{dataset.name}.data_files: is text; its tokens are made first, see tokenlake.config.steps"
        for dataset in config.datasets
        if dataset.dataset is None
    ]
    mix = config.mix
    if not config.mixes:
        return problems
    if mix.stop_strategy == "restart" and not (mix.total_rows or mix.total_tokens or mix.epochs):
        problems.append(
            "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs, or "
            "stop_strategy: first_exhausted or all_exhausted"
        )
    for path, weights in _weights(config, mix):
        absent = sorted({dataset.name or "" for dataset in config.datasets} - weights)
        if absent:
            problems.append(
                f"{path}: has no weight for {', '.join(absent)}; give every dataset one (0 leaves it out)"
            )
    return problems


def _weights(config: PipelineConfig, mix: MixStageConfig) -> list[tuple[str, set[str]]]:
    if mix.weight_schedule is not None:
        return [
            (f"mix.weight_schedule (step {point.step})", set(point.weights)) for point in mix.weight_schedule
        ]
    return [] if mix.weights is None else [("mix.weights", set(mix.weights))]
