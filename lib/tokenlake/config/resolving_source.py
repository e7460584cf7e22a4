"""One dataset of a configuration with everything that it inherits worked out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenlake.config.callables import callable_name
from tokenlake.config.chat import ChatConfig
from tokenlake.config.lengths import long_documents
from tokenlake.config.outputs import has_attention_mask
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer, SourceType
from tokenlake.config.resolved_texts import (
    MESSAGES_FIELDS,
    ResolvedChat,
    ResolvedPreference,
    ResolvedPrompt,
    ResolvedTexts,
)
from tokenlake.config.secret import plain_options

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.tokenizer import SpecialTokensInText, TokenizerConfig

DEFAULT_FIELD: Final = "text"
"""Where the text is, unless a dataset says otherwise or its rows hold conversations instead."""

_TYPES: Final[dict[str, SourceType]] = {
    **{name: name for name in ("jsonl", "json", "parquet", "arrow", "csv")},
    "txt": "text",
    "huggingface": "hub",
    "hf": "hub",
}


def resolve_source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a dataset of `config` with all that it inherits worked out; it is not checked."""
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


def tokenizer_choice(config: PipelineConfig, dataset: DatasetConfig) -> str | TokenizerConfig | None:
    """Return the tokenizer that counts for a dataset: its own, the stage's, the pipeline's."""
    return dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer


def _tokenizer(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedTokenizer:
    stage, choice = config.tokenize, tokenizer_choice(config, dataset)
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
