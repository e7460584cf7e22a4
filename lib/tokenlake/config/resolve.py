"""Resolve a configuration into the record that a build consumes.

Options are inherited, defaults filled in, and no option is ignored silently.

The functions are pure, apart from reading the environment. Their results are the
dataclasses of :mod:`tokenlake.config.resolved`, which a worker imports without
pydantic. The file has three parts:

    resolve             a configuration of one build -> its :class:`ResolvedBuild`
    first_steps, ...    a configuration that mixes text -> the configurations of its builds: the tokens of each source
                        first, then the mixture of these. The library runs them in a loop, a flow as flows of its own.
    identity, ...       a resolved build -> the options that decide its bytes

An option of a dataset overrides the one of its section, which overrides the default:
`datasets.0.splits` comes before `source.splits`, and `datasets.0.tokenizer.max_length`
before `tokenize.max_length`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tokenlake.base.section import DATASET_NAME, plain_options
from tokenlake.base.sizes import MIB
from tokenlake.config.contradictions import (
    build_problems,
    raise_problems,
    store_not_yet,
    store_problems,
)
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.field_types import parse_field_type
from tokenlake.config.formats import TYPES
from tokenlake.config.former_names import former_name_notes
from tokenlake.config.pipeline import (
    CardConfig,
    CleanConfig,
    MixStageConfig,
    PipelineConfig,
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
    ResolvedTokens,
    Signing,
)
from tokenlake.config.stages import (
    PackStageConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)
from tokenlake.config.texts import ChatConfig, callable_name
from tokenlake.config.unsupported import speed_notes, unsupported_options
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.runtime.store.schemes import default_store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tokenlake.base.section import Section

Resolved = TypeVar("Resolved", bound="DataclassInstance")
DEFAULT_FIELD: Final = "text"
"""Column of the text, unless a dataset names another one or its rows hold
conversations.
"""

_STORED_UNIT_SIZE: Final = 128 * MIB
"""Unit size in the identity of a build of stored rows, whose units do not depend on
it.
"""


def resolve(
    config: PipelineConfig, environ: Mapping[str, str] = os.environ
) -> ResolvedBuild:
    """Return the build that a configuration asks for, of texts or of stored datasets.

    Args:
        config: Configuration of one build.
        environ: Environment variables; TOKENLAKE_STORE names the default store.

    Raises:
        ConfigError: Options are missing or contradict each other; the message lists all
            of them.
        NotAvailableError: Options that such a build does not support; the message lists
            all of them.
    """
    # 1. Refuse contradictions, then options without effect. Both lists are complete, so
    #    that a user corrects all of them at once.
    store = store_of(config, environ)
    raise_problems(ConfigError, build_problems(config) + store_problems(config, store))
    is_text_build = config.is_text_build
    reader = "build" if is_text_build else "stored"
    raise_problems(
        NotAvailableError, unsupported_options(config, reader) + store_not_yet(store)
    )

    # 2. A build reads texts (sources) or stored datasets (parents), never both.
    unit_size = config.source.unit_size
    sources: tuple[ResolvedSource, ...] = ()
    parents: tuple[DatasetConfig, ...] = ()
    num_shards: int | None = None
    if is_text_build:
        sources = tuple(resolve_source(config, dataset) for dataset in config.datasets)
        # Of stored rows the number of shards is an option of the export.
        num_shards = config.save.num_shards
    else:
        parents = config.datasets
        unit_size = unit_size or _STORED_UNIT_SIZE

    # 3. Sections that are off are None in the record.
    mixture: MixStageConfig | None = None
    if config.mixes:
        mixture = _mixture(config)
    pack: ResolvedPack | None = None
    if config.pack.enabled:
        pack = _packing(config)
    card = config.card.model_dump(mode="json")
    return ResolvedBuild(
        name=config.name or "",
        store=store,
        seed=config.seed,
        sources=sources,
        parents=parents,
        mixture=mixture,
        pack=pack,
        unit_size=unit_size,
        max_shard_size=config.save.max_shard_size,
        compression="zstd",
        hash_threads=config.source.hash_threads,
        num_shards=num_shards,
        store_options=plain_options(config.save.storage_options or {}),
        card={name: value for name, value in card.items() if value},
        notes=(*former_name_notes(config), *speed_notes(config, reader)),
    )


def store_of(config: PipelineConfig, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path or URL of the store that a configuration's build writes to."""
    return config.save.output_dir or default_store(environ)


def resolve_source(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedSource:
    """Return a dataset of a configuration with all options that it inherits.

    Nothing is checked.
    """
    # An option of the dataset overrides the one of the section `source`. 0 is a value of
    # `max_bad_fraction`, so that only None inherits.
    stage = config.source
    chat = _chat(dataset)
    max_bad_fraction = dataset.max_bad_fraction
    if max_bad_fraction is None:
        max_bad_fraction = stage.max_bad_fraction
    held_out = None
    if dataset.eval:
        held_out = ResolvedHeldOut(split=dataset.eval_split, count=dataset.eval)
    # Splits and types are sorted: the order in which they are written down must not
    # move a document.
    splits = sorted((dataset.splits or stage.splits).items())
    field_types = sorted((dataset.field_types or {}).items())
    # The files state the types of kept fields; the plan reads them.
    kept_fields = dict.fromkeys(dataset.additional_fields or ())
    return _copied(
        ResolvedSource,
        dataset,
        name=dataset.name or "",
        data_files=dataset.files_to_read,
        type=TYPES[dataset.type] if dataset.type else None,
        on_bad_record=dataset.on_bad_record or stage.on_bad_record,
        max_bad_fraction=max_bad_fraction,
        max_record_bytes=stage.max_record_bytes,
        max_expansion=stage.max_expansion,
        splits=tuple(splits),
        held_out=held_out,
        storage_options=plain_options(dataset.storage_options or {}),
        remote_cache_bytes=config.cache.remote_cache_bytes,
        split=dataset.split_to_read,
        split_from=dataset.split_from,
        sibling_splits=_sibling_splits(config, dataset),
        tokenizer=_resolved_tokenizer(config, dataset, chat),
        texts=_texts(config, dataset, chat),
        tokens=_tokens(config, dataset),
        kept=tuple((field, None) for field in kept_fields),
        field_types=tuple((name, parse_field_type(text)) for name, text in field_types),
    )


def _sibling_splits(config: PipelineConfig, dataset: DatasetConfig) -> tuple[str, ...]:
    """Return the splits that other datasets read of the files of a dataset."""
    siblings: list[str] = []
    for other in config.datasets:
        has_same_files = other.files_to_read == dataset.files_to_read
        if other.name == dataset.name or not has_same_files:
            continue
        if other.subset == dataset.subset:
            siblings.append(other.split_to_read)
    return tuple(siblings)


def _copied(kind: type[Resolved], model: Section, **resolved: Any) -> Resolved:
    """Return the resolved form of a section.

    Args:
        kind: Class of the resolved form.
        model: Section, whose options fill the fields of the same name.
        **resolved: Values of the other fields.
    """
    values = dict(resolved)
    for field in fields(kind):
        if field.name not in resolved:
            values[field.name] = getattr(model, field.name)
    return kind(**values)


def _packing(config: PipelineConfig) -> ResolvedPack:
    """Return the packing of a configuration; only a shuffle has a seed."""
    pack = config.pack
    shuffle_seed = (config.seed or 0) if pack.shuffles else None
    return _copied(ResolvedPack, pack, width=pack.seq_length, shuffle_seed=shuffle_seed)


def _texts(
    config: PipelineConfig, dataset: DatasetConfig, chat: ResolvedChat | None
) -> ResolvedTexts:
    """Return how the rows of a dataset become texts."""
    # Forms of the text. A prompt of whole conversations is a chat instead.
    prompt = None
    if dataset.prompt is not None and not dataset.prompt.conversation:
        prompt = ResolvedPrompt(**dataset.prompt.model_dump())
    preference = None
    if dataset.preference is not None:
        preference = ResolvedPreference(**dataset.preference.model_dump())
    infilling = None
    if dataset.fim is not None:
        infilling = ResolvedFim(**dataset.fim.model_dump(), seed=config.seed or 0)

    # Options at their defaults; the plan chooses by the rows that it finds.
    left_open: list[str] = []
    if dataset.content_field == DEFAULT_FIELD:
        left_open.append("content_field")
    special_tokens = (
        dataset.special_tokens_in_text or config.tokenize.special_tokens_in_text
    )
    if dataset.special_tokens_in_text is None and special_tokens == "literal":
        left_open.append("special_tokens_in_text")

    callback = dataset.format_callback
    return ResolvedTexts(
        format_callback=None if callback is None else callable_name(callback),
        format_fields=tuple((dataset.format_fields or {}).items()),
        transforms=tuple(step.resolved() for step in dataset.transforms or ()),
        chat=chat,
        prompt=prompt,
        preference=preference,
        fim=infilling,
        left_open=tuple(left_open),
    )


def _tokens(config: PipelineConfig, dataset: DatasetConfig) -> ResolvedTokens | None:
    """Return how the ids of a dataset are read; None where its records hold text."""
    section = dataset.ids
    if section is None:
        return None
    row_length = None
    if section.rows:
        row_length = config.pack.seq_length
    # The plan finds the rest in the files and the tokenizer.
    return _copied(
        ResolvedTokens, section, row_length=row_length, mask_fields=(), vocab_size=0
    )


def _chat(dataset: DatasetConfig) -> ResolvedChat | None:
    """Return the chat of a dataset; None if it has none.

    A chat is configured, or is a prompt of messages or a content of messages.
    """
    # A content field other than the default is that of the messages.
    chat = _chat_section(dataset)
    if chat is None:
        return None
    messages_field = chat.messages_field
    if messages_field is None and dataset.content_field != DEFAULT_FIELD:
        messages_field = dataset.content_field
    return _copied(
        ResolvedChat,
        chat,
        messages_field=messages_field,
        role_mapping=chat.role_mapping or {},
        template_kwargs=chat.template_kwargs or {},
    )


def _chat_section(dataset: DatasetConfig) -> ChatConfig | None:
    """Return the section `chat` of a dataset, or its equivalent in other options."""
    # 1. A prompt whose one column holds the conversation.
    prompt = dataset.prompt
    if prompt is not None and prompt.conversation:
        loss = "assistant" if prompt.mask_input else "all"
        return ChatConfig(messages_field=prompt.conversation, loss=loss)
    # 2. The section.
    if dataset.chat is not None:
        return dataset.chat
    # 3. A content field with a usual name of messages, unless another form reads it.
    holds_messages = dataset.content_field in MESSAGES_FIELDS
    if holds_messages and prompt is None and dataset.preference is None:
        return ChatConfig()
    return None


def _resolved_tokenizer(
    config: PipelineConfig, dataset: DatasetConfig, chat: ResolvedChat | None
) -> ResolvedTokenizer:
    """Return the tokenizer of a dataset with the options of the section `tokenize`."""
    # A name alone has the default options. Its model is not validated, because the name
    # is empty where no tokenizer is set.
    stage = config.tokenize
    choice = config.tokenizer_of(dataset)
    if choice is None or isinstance(choice, str):
        choice = TokenizerConfig.model_construct(name_or_path=choice or "")

    # Unpacked rows get the mask if it is set explicitly, or if it separates padding
    # from text.
    is_padded = choice.padding in ("max_length", "longest")
    sets_mask = is_padded or "return_attention_mask" in choice.model_fields_set
    has_mask = choice.return_attention_mask and sets_mask and not config.pack.enabled

    # Infilled pieces are those of the policy `split`, so long that a row has room for
    # their marks.
    infills_pieces = dataset.fim is not None and dataset.fim.level == "context"
    if infills_pieces:
        max_length = config.pack.seq_length - FIM_ROOM
        long_documents = "split"
    else:
        max_length = choice.max_length or stage.max_length
        long_documents = config.long_documents_of(dataset)

    # Ids that are imported have the special tokens that they should have.
    adds_special_tokens = choice.add_special_tokens and dataset.ids is None

    # Special tokens in raw text are text by default. In a conversation they could forge
    # a turn and are refused.
    special_tokens_in_text = stage.special_tokens_in_text
    if special_tokens_in_text == "literal" and (chat or dataset.preference):
        special_tokens_in_text = "fail"

    # The dataset's option comes before the one of the section `tokenize`.
    truncation_strategy = dataset.truncation_strategy or stage.truncation_strategy
    truncation_side = dataset.truncation_side or stage.truncation_side
    return _copied(
        ResolvedTokenizer,
        choice,
        add_special_tokens=adds_special_tokens,
        max_length=max_length,
        long_documents=long_documents,
        truncation_strategy=truncation_strategy or "simple",
        truncation_side=truncation_side or "right",
        special_tokens_in_text=dataset.special_tokens_in_text or special_tokens_in_text,
        engine=stage.tokenizer_backend,
        padding=choice.padding if is_padded else "none",
        padding_side=choice.padding_side if is_padded else None,
        attention_mask=has_mask,
        special_tokens=tuple(sorted((choice.special_tokens or {}).items())),
    )


def _mixture(config: PipelineConfig) -> MixStageConfig:
    """Return the mixture of a configuration that has one; missing weights are equal."""
    # Fill in the defaults that depend on other options.
    mix = config.mix
    weights = mix.weights
    if not weights:
        equal_share = 1 / len(config.datasets)
        weights = {dataset.name: equal_share for dataset in config.datasets}
    seed = mix.seed
    if seed is None:
        seed = config.seed or 0
    # A step of the schedule is a batch, unless it has a length of its own.
    step_rows = mix.step_rows or mix.batch_size
    return mix.model_copy(
        update={"weights": weights, "seed": seed, "step_rows": step_rows}
    )


# The builds of a configuration that mixes text


TOKENS: Final = "tokens"
"""Last part of the name of a dataset of tokens that is built for a mixture."""

_SPLIT: Final[str] = DatasetConfig.model_fields["split"].get_default()
"""Split of the token datasets that a mixture reads."""

_EXPORTS: Final = (
    "num_shards",
    "format",
    "compression",
    "push_to_hub",
    "hub_repo_id",
    "hub_token",
)
"""Options of `save` about exports, which are made of the last build only."""

_SPEED: Final = ("batch_size", "num_workers")
"""Options of `tokenize` that no build uses. The notes of the last build name them."""


def first_steps(config: PipelineConfig) -> dict[str, PipelineConfig]:
    """Return the configurations that build the tokens of each source that is text.

    Args:
        config: Configuration of any build; the result is empty unless it mixes text or
            stored text.

    Returns:
        Source -> configuration that builds its dataset of tokens.

    Raises:
        ConfigError: The name of a source cannot be part of a dataset's name, or packing
            without a mixture names both text and stored tokens.
        NotAvailableError: The configuration says not to keep the tokens.
    """
    # One build is enough for plain text, and for one stored dataset to tokenize again.
    if config.is_text_build or config.retokenized is not None:
        return {}
    texts: list[DatasetConfig] = []
    for dataset in config.datasets:
        if dataset.dataset is None or dataset.retokenize:
            texts.append(dataset)
    if not texts:
        return {}
    # Errors that would otherwise appear after the first step.
    if not config.mixes and len(texts) < len(config.datasets):
        raise ConfigError(
            f"datasets.{texts[0].name}: is text, and other datasets are stored ones: without a mixture they are not "
            "one build. Add a section mix, or build the text first and name the result as `dataset`"
        )
    if config.tokenize.cache_tokenized is False:
        raise NotAvailableError(
            "tokenize.cache_tokenized: False is not available yet where text is mixed; today: the tokens of each "
            "source are kept as {name}.{source}.tokens, from which any other mixture is made without tokenizing again"
        )
    if config.mixes:
        _require_train(config, texts)
    return {dataset.name or "": _tokens_config(config, dataset) for dataset in texts}


def _tokens_config(config: PipelineConfig, dataset: DatasetConfig) -> PipelineConfig:
    """Return the configuration that builds the tokens of one source.

    It has this source alone, without packing and exports.
    """
    # Exports are made of the last build, whose notes name the options of speed.
    default_save = SaveStageConfig()
    save = {name: getattr(default_save, name) for name in _EXPORTS}
    tokenize: dict[str, Any] = {}
    for name in _SPEED:
        tokenize[name] = TokenizeStageConfig.model_fields[name].get_default()
    source: dict[str, Any] = {
        "save_path": None,
        "save_format": None,
        "shard_column": None,
    }
    if config.long_documents_of(dataset) == "keep":
        # Packing keeps long documents, and comes later.
        tokenize["long_documents"] = "keep"
        source["long_documents"] = None
    if dataset.retokenize:
        # All splits are tokenized again; the mixture takes one.
        source["split"] = _SPLIT
    # Everything that the mixture decides is left out: the same tokens then serve any
    # other mixture.
    return config.model_copy(
        update={
            "name": tokens_name(config, dataset),
            "mix": MixStageConfig(),
            "pack": PackStageConfig(),
            "card": CardConfig(),
            "save": config.save.model_copy(update=save),
            "tokenize": config.tokenize.model_copy(update=tokenize),
            "datasets": (dataset.model_copy(update=source),),
        }
    )


def _require_train(config: PipelineConfig, texts: Iterable[DatasetConfig]) -> None:
    """Check that all texts have the split that a mixture reads.

    The check comes before tokens are built.

    Raises:
        ConfigError: A text has other splits only.
    """
    # A stored dataset has the splits of its version, so that only texts are checked.
    for dataset in texts:
        splits = dataset.splits or config.source.splits
        if dataset.retokenize or _SPLIT in splits:
            continue
        key = f"datasets.{dataset.name}.splits" if dataset.splits else "source.splits"
        raise ConfigError(
            f"{key}: names {', '.join(splits)}, but a mixture takes the split {_SPLIT!r} of each source; call the "
            f"split to mix {_SPLIT}. A mixture of another split is one of stored datasets: datasets: [{{dataset: "
            f"{tokens_name(config, dataset)}, split: {next(iter(splits))}}}]"
        )


def last_step(config: PipelineConfig, stored: Mapping[str, str]) -> PipelineConfig:
    """Return the configuration of the last build, once the first steps are done.

    Args:
        config: Configuration of all steps.
        stored: Source -> its tokens, as ``mix.code.tokens@v1``. The dataset may have
            the name of another configuration.
    """
    datasets: list[DatasetConfig] = []
    for dataset in config.datasets:
        tokens = stored.get(dataset.name or "")
        if tokens is None:
            datasets.append(dataset)
            continue
        # The option `split` of a text is about the input: it names a split of a dataset
        # of the Hub.
        split = dataset.split if dataset.retokenize else _SPLIT
        datasets.append(DatasetConfig(name=dataset.name, dataset=tokens, split=split))
    return config.model_copy(update={"datasets": tuple(datasets)})


def foreseen(config: PipelineConfig) -> ResolvedBuild:
    """Return the last build before the first steps are done.

    Errors of a mixture must be found before hours of work.

    The versions of the tokens are not known yet; they are 1 in the result.

    Raises:
        ConfigError: As of :func:`first_steps` and :func:`resolve`.
        NotAvailableError: As of :func:`first_steps` and :func:`resolve`.
    """
    tokens = {source: f"{step.name}@v1" for source, step in first_steps(config).items()}
    return resolve(last_step(config, tokens))


def tokens_name(config: PipelineConfig, dataset: DatasetConfig) -> str:
    """Return ``{name}.{source}.tokens``, the dataset of tokens of one source."""
    # Names of sources may have capital letters, names of datasets may not.
    if config.name is None:
        raise ConfigError(
            "name: missing. A mixture needs a name, from which the names of its parts are made"
        )
    name = f"{config.name}.{(dataset.name or '').lower()}.{TOKENS}"
    if not re.fullmatch(DATASET_NAME, name):
        raise ConfigError(
            f"datasets.{dataset.name}.name: makes {name!r} the name of its tokens in the store, which is too long or "
            "has letters that no dataset's name may have; at most 64 of a-z, 0-9, '.', '_' and '-'. Shorten `name` "
            "or the source's"
        )
    return name


def is_tokens_of(dataset: str, source: str) -> bool:
    """Return whether a dataset has the name of the tokens of a source.

    The configuration may have any name.
    """
    return dataset.endswith(f".{source.lower()}.{TOKENS}")


# The identity of a build: the options that decide its bytes. It leaves out paths and
# names of stores, the numbers of workers and threads, the tokenizer backend (its ids
# equal the reference's or the build fails), names of tokenizers (their files and
# behaviour are hashed instead), and `max_bad_fraction`, which decides whether a build
# may be committed but not its bytes. An option that is newer than a stored version
# appears only if it is set: the identity of older versions must not change.


def identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the identity of a build without that of its sources.

    It consists of values of canonical JSON.
    """
    pack: dict[str, Any] | None = None
    if build.pack is not None:
        pack = pack_identity(build.pack)
    record: dict[str, Any] = {
        "kind": build.kind,
        "pack": pack,
        "unit_size": build.unit_size,
        "max_shard_size": build.max_shard_size,
        "compression": build.compression,
    }
    # Newer options.
    if build.loss_mask:
        record["loss_mask"] = True
    if build.attention_mask:
        record["attention_mask"] = True
    if build.kept:
        record["kept"] = [[name, kind] for name, kind in build.kept]
    if build.num_shards is not None:
        record["num_shards"] = build.num_shards
    return record


def card_identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the part of a version's identity that its units do not have.

    It has the entries of the dataset card, if there are any.
    """
    if not build.card:
        return {}
    return {"card": dict(build.card)}


def source_identity(source: ResolvedSource) -> dict[str, Any]:
    """Return the identity of a source, as values of canonical JSON.

    The caller adds the inputs (`data_files` listed and hashed), the content of
    `exclude` and the tokenizer's files.
    """
    record: dict[str, Any] = {
        "name": source.name,
        "type": source.type,
        "content_field": source.content_field,
        "text_mode": source.text_mode,
        "on_bad_record": source.on_bad_record,
        "max_record_bytes": source.max_record_bytes,
        "splits": [[name, part] for name, part in source.splits],
    }
    # Options of later releases appear only if they are set.
    held_out: dict[str, Any] | None = None
    if source.held_out is not None:
        held_out = asdict(source.held_out)
    tokens: dict[str, Any] | None = None
    if source.tokens is not None:
        tokens = source.tokens.identity()
    later_options: dict[str, Any] = {
        "where": source.where,
        "delimiter": source.delimiter,
        "texts": source.texts.identity() or None,
        "additional_fields": [name for name, _ in source.kept] or None,
        "field_types": [[name, kind] for name, kind in source.field_types] or None,
        "num_shards": source.num_shards,
        "eval": held_out,
        "tokens": tokens,
    }
    for name, value in later_options.items():
        if value is not None:
            record[name] = value
    record["tokenizer"] = _tokenizer_identity(source.tokenizer)
    return record


def pack_identity(pack: ResolvedPack) -> dict[str, Any]:
    """Return the identity of packing, as values of canonical JSON.

    `include_segment_ids` is missing: it is about readers, and the column is stored only
    with `store_segment_ids`.
    """
    record: dict[str, Any] = {
        "seq_length": pack.width,
        "eos_token_id": pack.eos_token_id,
        "pad_token_id": pack.pad_token_id,
        "strategy": pack.strategy,
        "window_tokens": pack.window_tokens,
        "store_segment_ids": pack.store_segment_ids,
    }
    # Newer options, and those that have an effect with one strategy only.
    if pack.strategy == "pool":
        record["num_packers"] = pack.num_packers
    if pack.max_segments is not None:
        record["max_segments"] = pack.max_segments
    if pack.shuffle_seed is not None:
        record["shuffle_seed"] = pack.shuffle_seed
    return record


def _tokenizer_identity(tokenizer: ResolvedTokenizer) -> dict[str, Any]:
    """Return the identity of a tokenizer's options."""
    policy = tokenizer.long_documents
    padding = tokenizer.padding
    # `max_length` has no effect where long documents are kept: it must not make two
    # equal results differ.
    uses_max_length = policy != "keep" or padding == "max_length"
    record: dict[str, Any] = {
        "add_special_tokens": tokenizer.add_special_tokens,
        "max_length": tokenizer.max_length if uses_max_length else None,
        "special_tokens_in_text": tokenizer.special_tokens_in_text,
    }
    if policy == "truncate":
        # The way of cutting is named: the first releases cut through characters, and
        # gave other ids.
        record["truncation"] = [
            tokenizer.truncation_strategy,
            tokenizer.truncation_side,
        ]
    elif policy != "keep":
        record["long_documents"] = policy
    if padding != "none":
        record["padding"] = padding
        record["padding_side"] = tokenizer.padding_side
    return record


def signing_of(clean: CleanConfig, evaluation: str = "") -> Signing:
    """Return the signatures that cleaning makes of every document.

    Args:
        clean: Section `clean` of a configuration.
        evaluation: sha256 of the evaluation sets' n-grams; empty where there are no
            sets.
    """
    # Exact duplicates are signed even where they are not searched for. `bands` is 0 if
    # near duplicates are not.
    minhash = clean.minhash
    contamination = None
    if clean.contamination is not None:
        sets = clean.contamination
        contamination = (sets.ngram, sets.min_ngrams, sets.min_fraction)
    return Signing(
        exact="folded" if clean.exact == "none" else clean.exact,
        ngram=minhash.ngram,
        bands=minhash.bands if minhash.enabled else 0,
        rows=minhash.rows,
        seed=minhash.seed,
        filters=clean.filters,
        contamination=contamination,
        evaluation=evaluation,
    )
