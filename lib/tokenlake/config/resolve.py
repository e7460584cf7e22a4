"""From what a person wrote to what a build consumes: inheritance, defaults, and nothing ignored silently.

The functions here are pure but for the environment. Their results are the dataclasses of
:mod:`tokenlake.config.resolved`, which a worker imports without paying for the models.

A configuration that mixes text is several builds: the tokens of each source first, then the mixture of these. Both are
configurations like any other, so whoever can run one can run the steps: the library in a loop, a flow as flows of its
own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tokenlake.base.section import DATASET_NAME, plain_options
from tokenlake.base.sizes import MIB
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.field_types import parse_field_type
from tokenlake.config.formats import TYPES
from tokenlake.config.pipeline import CardConfig, CleanConfig, MixStageConfig, PipelineConfig
from tokenlake.config.refusals import (
    build_problems,
    raise_problems,
    refused,
    speed_notes,
    store_not_yet,
    store_problems,
)
from tokenlake.config.resolved import (
    FIM_ROOM,
    MESSAGES_FIELDS,
    ResolvedBuild,
    ResolvedChat,
    ResolvedFim,
    ResolvedHeldOut,
    ResolvedPack,
    ResolvedPreference,
    ResolvedPrompt,
    ResolvedSource,
    ResolvedTexts,
    ResolvedTokenizer,
    Signing,
)
from tokenlake.config.stages import PackStageConfig, SaveStageConfig, TokenizerConfig, TokenizeStageConfig
from tokenlake.config.texts import ChatConfig, callable_name
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.runtime.store.schemes import default_store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tokenlake.base.section import Section
from dataclasses import asdict

Resolved = TypeVar("Resolved", bound="DataclassInstance")
DEFAULT_FIELD: Final = "text"
"""Where the text is, unless a dataset says otherwise or its rows hold conversations instead."""


def resolve(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> ResolvedBuild:
    """Return the build that `config` asks for, of texts or of stored datasets.

    Raises:
        ConfigError: something is missing or contradicts itself; the message lists everything.
        NotAvailableError: options that such a build does not act on; the message lists everything.
    """
    store, save = store_of(config, environ), config.save
    raise_problems(ConfigError, build_problems(config) + store_problems(config, store))
    texts, pack = config.is_text_build, config.pack
    road = "build" if texts else "stored"
    raise_problems(NotAvailableError, refused(config, road) + store_not_yet(store))
    shuffle_seed = (config.seed or 0) if pack.shuffles else None
    return ResolvedBuild(
        name=config.name or "",
        store=store,
        seed=config.seed,
        sources=tuple(resolve_source(config, dataset) for dataset in config.datasets) if texts else (),
        parents=() if texts else config.datasets,
        mixture=_mixture(config) if config.mixes else None,
        pack=_copied(ResolvedPack, pack, width=pack.seq_length, shuffle_seed=shuffle_seed)
        if pack.enabled
        else None,
        unit_size=config.source.unit_size or (None if texts else _STORED_UNIT_SIZE),
        max_shard_size=save.max_shard_size,
        compression="zstd",
        hash_threads=config.source.hash_threads,
        num_shards=save.num_shards if texts else None,  # of stored rows they are an export
        store_options=plain_options(save.storage_options or {}),
        card={name: value for name, value in config.card.model_dump(mode="json").items() if value},
        notes=tuple(speed_notes(config, road)),
    )


_STORED_UNIT_SIZE: Final = 128 * MIB
"""What the identity of a build of stored rows says; it cuts nothing."""


def store_of(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path or URL of the store that a configuration's build writes to."""
    return config.save.output_dir or default_store(environ)


def resolve_source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a dataset of `config` with all that it inherits worked out; it is not checked."""
    stage, chat = config.source, _chat(dataset)
    fraction = dataset.max_bad_fraction
    return _copied(
        ResolvedSource,
        dataset,
        name=dataset.name or "",
        data_files=dataset.files_to_read,
        type=TYPES[dataset.type] if dataset.type else None,
        on_bad_record=dataset.on_bad_record or stage.on_bad_record,
        max_bad_fraction=stage.max_bad_fraction if fraction is None else fraction,
        max_record_bytes=stage.max_record_bytes,
        max_expansion=stage.max_expansion,
        # Sorted, so that the order in which splits are written down does not move a document.
        splits=tuple(sorted((dataset.splits or stage.splits).items())),
        held_out=dataset.eval and ResolvedHeldOut(split=dataset.eval_split, count=dataset.eval),
        storage_options=plain_options(dataset.storage_options or {}),
        remote_cache_bytes=config.cache.remote_cache_bytes,
        split=dataset.split_to_read,
        split_from=dataset.split_from,
        tokenizer=_resolved_tokenizer(config, dataset, chat),
        texts=_texts(config, dataset, chat),
        kept=tuple((field, None) for field in dict.fromkeys(dataset.additional_fields or ())),
        field_types=tuple(
            (name, parse_field_type(text)) for name, text in sorted((dataset.field_types or {}).items())
        ),
    )


def _copied(kind: type[Resolved], model: Section, **worked_out: Any) -> Resolved:
    """Return a resolved form: what is worked out, and all other fields as the model has them."""
    return kind(
        **{field.name: getattr(model, field.name) for field in fields(kind) if field.name not in worked_out},
        **worked_out,
    )


def _texts(config: PipelineConfig, dataset: DatasetConfig, chat: ResolvedChat | None) -> ResolvedTexts:
    callback, prompt, preference = dataset.format_callback, dataset.prompt, dataset.preference
    # Settings at their defaults, which depend on what the rows are.
    asked = dataset.special_tokens_in_text or config.tokenize.special_tokens_in_text
    usual = {
        "content_field": dataset.content_field == DEFAULT_FIELD,
        "special_tokens_in_text": dataset.special_tokens_in_text is None and asked == "literal",
    }
    return ResolvedTexts(
        format_callback=None if callback is None else callable_name(callback),
        format_fields=tuple((dataset.format_fields or {}).items()),
        transforms=tuple(step.resolved() for step in dataset.transforms or ()),
        chat=chat,
        prompt=None if prompt is None or prompt.conversation else ResolvedPrompt(**prompt.model_dump()),
        preference=None if preference is None else ResolvedPreference(**preference.model_dump()),
        fim=None if dataset.fim is None else ResolvedFim(**dataset.fim.model_dump(), seed=config.seed or 0),
        left_open=tuple(name for name, is_usual in usual.items() if is_usual),
    )


def _chat(dataset: DatasetConfig) -> ResolvedChat | None:
    """A chat where it is configured, or where the content is the messages themselves."""
    chat, prompt = dataset.chat, dataset.prompt
    if prompt is not None and prompt.conversation:
        loss = "assistant" if prompt.mask_input else "all"
        chat = ChatConfig(messages_field=prompt.conversation, loss=loss)
    elif chat is None and dataset.content_field in MESSAGES_FIELDS and not prompt and not dataset.preference:
        chat = ChatConfig()
    if chat is None:
        return None
    field = chat.messages_field
    if field is None and dataset.content_field != DEFAULT_FIELD:
        field = dataset.content_field
    return _copied(
        ResolvedChat,
        chat,
        messages_field=field,
        role_mapping=chat.role_mapping or {},
        template_kwargs=chat.template_kwargs or {},
    )


def _resolved_tokenizer(
    config: PipelineConfig, dataset: DatasetConfig, chat: ResolvedChat | None
) -> ResolvedTokenizer:
    stage, choice = config.tokenize, config.tokenizer_of(dataset)
    if choice is None or isinstance(choice, str):
        choice = TokenizerConfig.model_construct(name_or_path=choice or "")
    padded = choice.padding in ("max_length", "longest")
    # Unpacked rows get the mask where it is asked for by name, and where it tells padding from text.
    masked = choice.return_attention_mask and (padded or "return_attention_mask" in choice.model_fields_set)
    # Infilled pieces are those of `split`, no longer than a row has room for.
    pieces = dataset.fim is not None and dataset.fim.level == "context"
    longest = config.pack.seq_length - FIM_ROOM if pieces else choice.max_length or stage.max_length
    # Special tokens of raw text are text by default; in a conversation they would forge a turn: there they are refused.
    special = stage.special_tokens_in_text
    if special == "literal" and (chat or dataset.preference):
        special = "fail"
    return _copied(
        ResolvedTokenizer,
        choice,
        max_length=longest,
        long_documents="split" if pieces else config.long_documents_of(dataset),
        truncation_strategy=dataset.truncation_strategy or stage.truncation_strategy or "simple",
        truncation_side=dataset.truncation_side or stage.truncation_side or "right",
        special_tokens_in_text=dataset.special_tokens_in_text or special,
        engine=stage.engine,
        padding=choice.padding if padded else "none",
        padding_side=choice.padding_side if padded else None,
        attention_mask=masked and not config.pack.enabled,
        special_tokens=tuple(sorted((choice.special_tokens or {}).items())),
    )


def _mixture(config: PipelineConfig) -> MixStageConfig:
    """Return the mixture of a configuration that has one; weights that are not given are equal."""
    mix, names = config.mix, [dataset.name for dataset in config.datasets]
    return mix.model_copy(
        update={
            "weights": mix.weights or {name: 1 / len(names) for name in names},
            "seed": mix.seed if mix.seed is not None else config.seed or 0,
            "step_rows": mix.step_rows or mix.batch_size,
        }
    )


TOKENS: Final = "tokens"
"""The last part of the name of a dataset of tokens that are made for a mixture."""
_SPLIT: Final[str] = DatasetConfig.model_fields["split"].get_default()


def first_steps(config: PipelineConfig) -> dict[str, PipelineConfig]:
    """Return source -> the configuration that makes its `tokens` dataset, for every source that is text still.

    Raises:
        ConfigError: a source's name makes no name of a dataset, or packing without a mixture is asked of text and
            stored tokens at once.
        NotAvailableError: the tokens are not to be kept.
    """
    if config.is_text_build or config.retokenized is not None:
        return {}
    texts = [dataset for dataset in config.datasets if dataset.dataset is None or dataset.retokenize]
    if len(texts) < len(config.datasets) and texts and not config.mixes:
        raise ConfigError(
            f"datasets.{texts[0].name}: is text, and other datasets are stored ones: without a mixture they are not "
            "one build. Add a section mix, or build the text first and name the result as `dataset`"
        )
    if texts and config.tokenize.cache_tokenized is False:
        raise NotAvailableError(
            "tokenize.cache_tokenized: False is not available yet where text is mixed; today: the tokens of each "
            "source are kept as {name}.{source}.tokens, from which any other mixture is made without tokenizing again"
        )
    if config.mixes:
        _require_train(config, texts)
    usual = SaveStageConfig()
    exports = ("num_shards", "format", "compression", "push_to_hub", "hub_repo_id", "hub_token")
    found: dict[str, PipelineConfig] = {}
    for dataset in texts:
        # The same source, alone and unpacked; exports are of the whole: they are made when everything is committed.
        update: dict[str, Any] = {"name": tokens_name(config, dataset)}
        update |= {"mix": MixStageConfig(), "pack": PackStageConfig(), "card": CardConfig()}
        update["save"] = config.save.model_copy(update={name: getattr(usual, name) for name in exports})
        changed: dict[str, Any] = {"save_path": None, "save_format": None, "shard_column": None}
        # Options of speed that no build uses; the last step has a note on them.
        tokenize: dict[str, Any] = {
            name: TokenizeStageConfig.model_fields[name].get_default()
            for name in ("batch_size", "num_workers")
        }
        if config.long_documents_of(dataset) == "keep":  # where packing, which comes later, keeps them
            tokenize["long_documents"] = "keep"
            changed["long_documents"] = None
        update["tokenize"] = config.tokenize.model_copy(update=tokenize)
        if dataset.retokenize:  # all of its splits; the mixture takes one
            changed["split"] = _SPLIT
        update["datasets"] = (dataset.model_copy(update=changed),)
        found[dataset.name or ""] = config.model_copy(update=update)
    return found


def _require_train(config: PipelineConfig, texts: Iterable[DatasetConfig]) -> None:
    """Raise ConfigError unless all texts have the split that a mixture takes; it is said before tokens are made."""
    for dataset in texts:
        if dataset.retokenize:
            continue
        splits = dataset.splits or config.source.splits
        if _SPLIT not in splits:
            key = f"datasets.{dataset.name}.splits" if dataset.splits else "source.splits"
            raise ConfigError(
                f"{key}: names {', '.join(splits)}, but a mixture takes the split {_SPLIT!r} of each source; call the "
                f"split to mix {_SPLIT}. A mixture of another split is one of stored datasets: datasets: [{{dataset: "
                f"{tokens_name(config, dataset)}, split: {next(iter(splits))}}}]"
            )


def last_step(config: PipelineConfig, stored: Mapping[str, str]) -> PipelineConfig:
    """Return the configuration of the rest, once the first steps are done.

    Args:
        stored: Source -> its tokens, as ``mix.code.tokens@v1``. The dataset may have the name of another configuration.
    """
    datasets = tuple(
        DatasetConfig(
            name=dataset.name,
            dataset=stored[dataset.name or ""],
            # Of text it says what to read of a dataset of the Hub.
            split=dataset.split if dataset.retokenize else _SPLIT,
        )
        if dataset.name in stored
        else dataset
        for dataset in config.datasets
    )
    return config.model_copy(update={"datasets": datasets})


def foreseen(config: PipelineConfig) -> ResolvedBuild:
    """Return the last step as it will be, before the first ones are done: what is wrong with a mixture must not be said
    after hours of tokens. Their versions are not known yet and stand there as 1.

    Raises:
        ConfigError, NotAvailableError: as of :func:`first_steps` and :func:`tokenlake.config.resolve.resolve`.
    """
    return resolve(
        last_step(config, {source: f"{step.name}@v1" for source, step in first_steps(config).items()})
    )


def tokens_name(config: PipelineConfig, dataset: DatasetConfig) -> str:
    """Return the name of the `tokens` dataset of one source: ``{name}.{source}.tokens``."""
    if config.name is None:
        raise ConfigError("name: missing. A mixture needs a name, from which the names of its parts are made")
    name = f"{config.name}.{(dataset.name or '').lower()}.{TOKENS}"
    if not re.fullmatch(DATASET_NAME, name):
        raise ConfigError(
            f"datasets.{dataset.name}.name: makes {name!r} the name of its tokens in the store, which is too long or "
            "has letters that no dataset's name may have; at most 64 of a-z, 0-9, '.', '_' and '-'. Shorten `name` "
            "or the source's"
        )
    return name


def is_tokens_of(dataset: str, source: str) -> bool:
    """Whether a dataset's name is that of the tokens of a source, which a configuration of any name made."""
    return dataset.endswith(f".{source.lower()}.{TOKENS}")


# What decides output bytes. Left out on purpose: paths and names of stores, worker and thread counts, the engine (its
# ids equal the reference's or the build fails), names of tokenizers (their files and behaviour are hashed instead),
# and `max_bad_fraction`, which decides whether a build may be committed but not a byte of it.


def identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of a build, without that of its sources."""
    return {
        "kind": build.kind,
        "pack": None if build.pack is None else pack_identity(build.pack),
        "unit_size": build.unit_size,
        "max_shard_size": build.max_shard_size,
        "compression": build.compression,
        **({"loss_mask": True} if build.loss_mask else {}),
        **({"attention_mask": True} if build.attention_mask else {}),
        **({"kept": [[name, kind] for name, kind in build.kept]} if build.kept else {}),
        **({} if build.num_shards is None else {"num_shards": build.num_shards}),
    }


def card_identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the part of a version's identity that no unit has: what its card says, where it says anything."""
    return {"card": dict(build.card)} if build.card else {}


def source_identity(source: ResolvedSource) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of a source.

    The inputs (`data_files` listed and hashed), the content of `exclude` and the tokenizer's files are
    identity too; whoever reads them adds them.
    """
    # Options that most sources lack count only where they are set, so that a new one of them does not give
    # every older dataset another identity.
    options: dict[str, Any] = {
        "where": source.where,
        "delimiter": source.delimiter,
        "texts": source.texts.identity() or None,
        "additional_fields": [name for name, _ in source.kept] or None,
        "field_types": [[name, kind] for name, kind in source.field_types] or None,
        "num_shards": source.num_shards,
        "eval": None if source.held_out is None else asdict(source.held_out),
    }
    return {
        "name": source.name,
        "type": source.type,
        "content_field": source.content_field,
        "text_mode": source.text_mode,
        "on_bad_record": source.on_bad_record,
        "max_record_bytes": source.max_record_bytes,
        "splits": [[name, part] for name, part in source.splits],
        **{name: value for name, value in options.items() if value is not None},
        "tokenizer": _tokenizer(source.tokenizer),
    }


def pack_identity(pack: ResolvedPack) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of packing."""
    # `include_segment_ids` is about readers: the column is stored only with `store_segment_ids`.
    return {
        "seq_length": pack.width,
        "eos_token_id": pack.eos_token_id,
        "pad_token_id": pack.pad_token_id,
        "strategy": pack.strategy,
        "window_tokens": pack.window_tokens,
        "store_segment_ids": pack.store_segment_ids,
        **({"num_packers": pack.num_packers} if pack.strategy == "pool" else {}),
        **({} if pack.max_segments is None else {"max_segments": pack.max_segments}),
        **({} if pack.shuffle_seed is None else {"shuffle_seed": pack.shuffle_seed}),
    }


def _tokenizer(tokenizer: ResolvedTokenizer) -> dict[str, Any]:
    policy, padding = tokenizer.long_documents, tokenizer.padding
    found: dict[str, Any] = {
        "add_special_tokens": tokenizer.add_special_tokens,
        # Where long documents are kept, `max_length` does nothing, so it must not make two equal results differ.
        "max_length": None if policy == "keep" and padding != "max_length" else tokenizer.max_length,
        "special_tokens_in_text": tokenizer.special_tokens_in_text,
    }
    if policy == "truncate":  # it says where it cuts: at first it cut through characters, and gave other ids
        found["truncation"] = [tokenizer.truncation_strategy, tokenizer.truncation_side]
    elif policy != "keep":
        found["long_documents"] = policy
    if padding != "none":
        found |= {"padding": padding, "padding_side": tokenizer.padding_side}
    return found


def signing_of(clean: CleanConfig, evaluation: str = "") -> Signing:
    """Return what a configuration has made of every document.

    Args:
        evaluation: sha256 of the evaluation sets' n-grams, where there are any.
    """
    minhash, sets = clean.minhash, clean.contamination
    return Signing(
        exact="folded" if clean.exact == "none" else clean.exact,
        ngram=minhash.ngram,
        bands=minhash.bands if minhash.enabled else 0,
        rows=minhash.rows,
        seed=minhash.seed,
        filters=clean.filters,
        contamination=None if sets is None else (sets.ngram, sets.min_ngrams, sets.min_fraction),
        evaluation=evaluation,
    )
