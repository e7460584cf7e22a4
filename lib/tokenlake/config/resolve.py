"""From what a person wrote to what a build consumes: inheritance, defaults, and nothing ignored silently.

The one function here is pure but for the environment. Its results are the dataclasses of
:mod:`tokenlake.config.resolved`, which a worker imports without paying for the models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tokenlake import config as config_models
from tokenlake.config.availability import RULES, unavailable
from tokenlake.config.callables import callable_name
from tokenlake.config.chat import ChatConfig
from tokenlake.config.identity import identity, source_identity
from tokenlake.config.lengths import contradictions, long_documents
from tokenlake.config.outputs import has_attention_mask, only_in_builds, output_problems, shard_problems
from tokenlake.config.preference import preference_problems
from tokenlake.config.resolved import (
    ResolvedBuild,
    ResolvedPack,
    ResolvedSource,
    ResolvedTokenizer,
    SourceType,
)
from tokenlake.config.resolved_mix import ResolvedMix
from tokenlake.config.resolved_texts import (
    MESSAGES_FIELDS,
    ResolvedChat,
    ResolvedPreference,
    ResolvedPrompt,
    ResolvedTexts,
)
from tokenlake.config.resolving_mix import mix_not_yet, mix_problems, resolved_mixture, resolved_parent
from tokenlake.config.secret import plain_options
from tokenlake.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.tokenizer import SpecialTokensInText, TokenizerConfig

__all__ = [
    "ResolvedBuild",
    "ResolvedPack",
    "ResolvedSource",
    "ResolvedTokenizer",
    "identity",
    "resolve",
    "resolve_dataset",
    "resolve_source",
    "source_identity",
]

STORE_VARIABLE: Final = "TOKENLAKE_STORE"
DEFAULT_FIELD: Final = "text"
"""Where the text is, unless a dataset says otherwise or its rows hold conversations instead."""
DEFAULT_STORE: Final = "./artifacts"

_TYPES: Final[dict[str, SourceType]] = {
    **{name: name for name in ("jsonl", "json", "parquet", "arrow", "csv")},
    "txt": "text",
    "huggingface": "hub",
    "hf": "hub",
}
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def resolve(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> ResolvedBuild:
    """Return the build that `config` asks for.

    Raises:
        ConfigError: something is missing or contradicts itself; the message lists everything.
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    _raise(ConfigError, config.validate() + _missing(config))
    _raise(NotAvailableError, _not_yet(config))
    save = config.save
    return ResolvedBuild(
        name=config.name or "",
        store=_store(config, environ),
        seed=config.seed,
        sources=tuple(_source(config, dataset) for dataset in config.datasets),
        pack=_pack(config),
        unit_size=config.source.unit_size,
        max_shard_size=save.max_shard_size,
        compression="zstd",
        hash_threads=config.source.hash_threads,
        num_shards=save.num_shards,
    )


def resolve_mix(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> ResolvedMix:
    """Return the build from stored datasets that `config` asks for; see :mod:`tokenlake.config.steps`.

    Raises:
        ConfigError: something is missing or contradicts itself; the message lists everything.
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    _raise(ConfigError, config.validate() + _nameless(config) + mix_problems(config))
    _raise(NotAvailableError, _not_yet(config) + mix_not_yet(config))
    return ResolvedMix(
        name=config.name or "",
        store=_store(config, environ),
        parents=tuple(resolved_parent(dataset) for dataset in config.datasets),
        mixture=resolved_mixture(config) if config.mixes else None,
        pack=_pack(config),
        seed=config.seed,
        max_shard_size=config.save.max_shard_size,
        compression="zstd",
    )


def _stored(dataset: DatasetConfig) -> list[str]:
    if dataset.dataset is None:
        return []
    return [
        f"datasets.{dataset.name}.dataset: {dataset.dataset!r} is not available yet as a source of rows; "
        "today: builds take it; to read its rows use data_files: STORE/NAME/v1/data/*.parquet"
    ]


def _store(config: PipelineConfig, environ: Mapping[str, str]) -> str:
    return config.save.output_dir or environ.get(STORE_VARIABLE) or DEFAULT_STORE


def resolve_dataset(dataset: DatasetConfig) -> ResolvedSource:
    """Return the source of rows that a dataset asks for, on its own; a tokenizer need not be named.

    Raises:
        NotAvailableError: valid options that this release does not act on; the message lists everything.
    """
    pipeline = config_models.PipelineConfig(datasets=(dataset,))
    (named,) = pipeline.datasets
    _raise(
        NotAvailableError,
        unavailable("datasets", named, f"datasets.{named.name}") + only_in_builds(named) + _stored(named),
    )
    return _source(pipeline, named)


def resolve_source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a dataset of `config` with all that it inherits worked out; it is not checked."""
    return _source(config, dataset)


def _raise(kind: type[ConfigError], problems: list[str]) -> None:
    if problems:
        raise kind(_listed(problems), problems=problems)


def _listed(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems in the configuration\n" + "\n".join(f"  {line}" for line in problems)


def _missing(config: PipelineConfig) -> list[str]:
    """What a build needs beyond a valid configuration, and what is written but would do nothing."""
    problems = _nameless(config)
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
        problems += output_problems(config, dataset, _tokenizer_choice(config, dataset))
    return problems + shard_problems(config) + contradictions(config) + preference_problems(config)


def _nameless(config: PipelineConfig) -> list[str]:
    if config.name is not None:
        return []
    return [
        "name: missing. A build needs a name for its dataset: lower-case letters, digits, '.', '_', '-', "
        "at most 64. (The default is the stem of the configuration's file, where that is such a name.)"
    ]


def _missing_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems: list[str] = []
    if _tokenizer_choice(config, dataset) is None:
        problems.append(
            f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is "
            "set; write a Hub id, a directory or a tokenizer.json file"
        )
    if dataset.text_mode != "document" and dataset.type in ("jsonl", "parquet"):
        problems.append(
            f"{path}.text_mode: {dataset.text_mode!r} is for text files, but type is {dataset.type!r}"
        )
    return problems


def _not_yet(config: PipelineConfig) -> list[str]:
    problems = unavailable("", config, "")
    for dataset in config.datasets:
        problems += _not_yet_in(config, dataset)
    for section in RULES:
        if section not in ("", "datasets", "tokenizer"):
            problems += unavailable(section, getattr(config, section), section)
    problems += _remote("save.output_dir", config.save.output_dir or "")
    return problems


def _not_yet_in(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    problems = unavailable("datasets", dataset, path)
    if dataset.exclude is not None:
        problems += _remote(f"{path}.exclude", dataset.exclude)
    choice = _tokenizer_choice(config, dataset)
    if choice is not None and not isinstance(choice, str):
        problems += unavailable("tokenizer", choice, f"{path}.tokenizer")
    return problems


def _remote(path: str, url: str) -> list[str]:
    if not _URL.match(url):
        return []
    return [f"{path}: {url.split('://')[0]}:// is not available yet; today: plain paths of local files"]


def _source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    stage = config.source
    fraction = dataset.max_bad_fraction
    return ResolvedSource(
        name=dataset.name or "",
        data_files=_data_files(dataset),
        type=_TYPES[dataset.type] if dataset.type else None,
        content_field=dataset.content_field,
        text_mode=dataset.text_mode,
        on_bad_record=dataset.on_bad_record or stage.on_bad_record,
        max_bad_fraction=stage.max_bad_fraction if fraction is None else fraction,
        max_record_bytes=stage.max_record_bytes,
        max_expansion=stage.max_expansion,
        # Sorted, so that the order in which splits are written down does not move a document.
        splits=tuple(sorted((dataset.splits or stage.splits).items())),
        exclude=dataset.exclude,
        num_rows=dataset.num_rows,
        where=dataset.where,
        storage_options=plain_options(dataset.storage_options or {}),
        subset=dataset.subset,
        split=dataset.dataset_split_name or dataset.split,
        delimiter=dataset.delimiter,
        tokenizer=_tokenizer(config, dataset),
        texts=_texts(config, dataset),
        kept=tuple((field, None) for field in dict.fromkeys(dataset.additional_fields or ())),
        num_shards=dataset.num_shards,
    )


def _texts(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedTexts:
    callback = dataset.format_callback
    return ResolvedTexts(
        format_callback=None if callback is None else callable_name(callback),
        format_fields=tuple((dataset.format_fields or {}).items()),
        transforms=tuple(step.resolved() for step in dataset.transforms or ()),
        chat=_chat(dataset),
        prompt=None if dataset.prompt is None else ResolvedPrompt(**dataset.prompt.model_dump()),
        preference=None
        if dataset.preference is None
        else ResolvedPreference(**dataset.preference.model_dump()),
        left_open=_left_open(config, dataset),
    )


def _left_open(config: PipelineConfig, dataset: DatasetConfig) -> tuple[str, ...]:
    """Settings at their defaults, which depend on what the rows are."""
    chosen = dataset.special_tokens_in_text or config.tokenize.special_tokens_in_text
    as_usual = {"content_field": dataset.content_field == DEFAULT_FIELD}
    as_usual["special_tokens_in_text"] = dataset.special_tokens_in_text is None and chosen == "literal"
    return tuple(name for name, usual in as_usual.items() if usual)


def _chat(dataset: DatasetConfig) -> ResolvedChat | None:
    """A chat where it is configured, or where the content is the messages themselves."""
    chat = dataset.chat
    if chat is None and (
        dataset.content_field not in MESSAGES_FIELDS or dataset.prompt or dataset.preference
    ):
        return None
    chat = chat or ChatConfig()
    field = chat.messages_field
    if field is None and dataset.content_field != DEFAULT_FIELD:
        field = dataset.content_field
    return ResolvedChat(
        template=chat.template,
        messages_field=field,
        tools_field=chat.tools_field,
        role_mapping=chat.role_mapping or {},
        loss=chat.loss,
        template_kwargs=chat.template_kwargs or {},
        add_generation_prompt=chat.add_generation_prompt,
    )


def _data_files(dataset: DatasetConfig) -> tuple[str, ...]:
    files = dataset.data_files
    return (files,) if isinstance(files, str) else files or ()


def _tokenizer_choice(config: PipelineConfig, dataset: DatasetConfig) -> str | TokenizerConfig | None:
    return dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer


def _tokenizer(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedTokenizer:
    stage, choice = config.tokenize, _tokenizer_choice(config, dataset)
    options = None if isinstance(choice, str) else choice
    policy, strategy, side = long_documents(config, dataset)
    padding = options.padding if options else False
    return ResolvedTokenizer(
        name_or_path=choice if isinstance(choice, str) else choice.name_or_path if choice else "",
        add_special_tokens=options.add_special_tokens if options else True,
        max_length=(options.max_length if options else None) or stage.max_length,
        long_documents=policy,
        truncation_strategy=strategy,
        truncation_side=side,
        trust_remote_code=options.trust_remote_code if options else False,
        special_tokens_in_text=_special_tokens(config, dataset),
        engine=stage.engine,
        padding="none" if padding in (False, "do_not_pad") else padding,
        padding_side=options.padding_side if options and padding in ("max_length", "longest") else None,
        attention_mask=not config.pack.enabled and has_attention_mask(options),
    )


def _special_tokens(config: PipelineConfig, dataset: DatasetConfig) -> SpecialTokensInText:
    """Of raw text they are text by default; in a conversation they would forge a turn, so there they are refused."""
    asked = dataset.special_tokens_in_text
    if asked is not None:
        return asked
    stage = config.tokenize.special_tokens_in_text
    return "fail" if stage == "literal" and (_chat(dataset) or dataset.preference) else stage


def _pack(config: PipelineConfig) -> ResolvedPack | None:
    pack = config.pack
    if not pack.enabled:
        return None
    return ResolvedPack(
        seq_length=pack.seq_length,
        eos_token_id=pack.eos_token_id,
        pad_token_id=pack.pad_token_id,
        strategy=pack.strategy,
        window_tokens=pack.window_tokens,
        store_segment_ids=pack.store_segment_ids,
        include_segment_ids=pack.include_segment_ids,
        num_packers=pack.num_packers,
        max_segments=pack.max_segments,
        shuffle_seed=(config.seed or 0) if pack.shuffles else None,
    )
