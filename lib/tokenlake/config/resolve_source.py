"""One dataset of a configuration with everything that it inherits worked out.

What a configuration wants done with documents of more than `max_length` tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tokenlake.config.callables import callable_name
from tokenlake.config.outputs import has_attention_mask
from tokenlake.config.resolved import (
    MESSAGES_FIELDS,
    ResolvedChat,
    ResolvedPreference,
    ResolvedPrompt,
    ResolvedSource,
    ResolvedTexts,
    ResolvedTokenizer,
    SourceType,
)
from tokenlake.config.secret import plain_options
from tokenlake.config.texts import ChatConfig

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import (
        LongDocuments,
        SpecialTokensInText,
        TokenizerConfig,
        TokenizeStageConfig,
        TruncationSide,
        TruncationStrategy,
    )


def long_documents(
    config: PipelineConfig, dataset: DatasetConfig
) -> tuple[LongDocuments, TruncationStrategy, TruncationSide]:
    """Return the policy of a source, and for `truncate` where documents are cut."""
    stage = config.tokenize
    return (
        _policy(config, dataset),
        dataset.truncation_strategy or stage.truncation_strategy or "simple",
        dataset.truncation_side or stage.truncation_side or "right",
    )


def contradictions(config: PipelineConfig) -> list[str]:
    """Return where the policy contradicts itself, and options of truncation that would do nothing."""
    found = [problem for dataset in config.datasets for problem in _in_dataset(config, dataset)]
    if any(_policy(config, dataset) == "truncate" for dataset in config.datasets):
        return found
    return found + _idle("tokenize", config.tokenize, "no dataset's documents are truncated")


def _in_dataset(config: PipelineConfig, dataset: DatasetConfig) -> list[str]:
    path = f"datasets.{dataset.name}"
    policy, truncation = _policy(config, dataset), _truncation(config, dataset)
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


def _policy(config: PipelineConfig, dataset: DatasetConfig) -> LongDocuments:
    if asked := dataset.long_documents or config.tokenize.long_documents:
        return asked
    truncation = _truncation(config, dataset)
    # Packing cuts documents itself and loses nothing, so only an explicit True truncates before it.
    return "truncate" if (not config.pack.enabled if truncation is None else truncation) else "keep"


def _truncation(config: PipelineConfig, dataset: DatasetConfig) -> bool | None:
    choice = dataset.tokenizer or config.tokenize.default_tokenizer or config.default_tokenizer
    return None if choice is None or isinstance(choice, str) else choice.truncation


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
