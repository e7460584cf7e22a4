"""The record that a build consumes: all options and sizes of a configuration.

Defaults are filled in, and options are inherited.

Plain frozen dataclasses of plain values, without pydantic, so that a worker process
imports them in no time. They are parts of the jobs of :mod:`tokenlake.etl.job`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tokenlake.base.columns import ColumnType, Method, Trainer
from tokenlake.config.formats import SourceType
from tokenlake.config.quality import QualityFilters

if TYPE_CHECKING:
    # A worker gets neither: both need pydantic.
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import MixStageConfig

MESSAGES_FIELDS: Final = ("messages", "conversations", "conversation")
"""Fields that hold a conversation, in the order in which they are looked for."""


_GENERATION: Final = re.compile(r"\{%[-+]?\s*generation\b")
"""Mark of a chat template around the text of the assistant."""

_TURNS: Final = 2
"""Version of the rules that find turns in the text of a template without such marks.
The first one put loss on some headers, so that units that it made are not used again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChat:
    """Conversations to text; see :class:`tokenlake.config.texts.ChatConfig`.

    Attributes:
        template: Text of the Jinja template; None until the plan took the tokenizer's.
        messages_field: Field of the messages; None until the plan found it.
    """

    template: str | None = None
    messages_field: str | None = None
    tools_field: str | None = "tools"
    role_mapping: Mapping[str, str] = field(default_factory=dict[str, str])
    loss: Literal["assistant", "all"] = "assistant"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    add_generation_prompt: bool = False
    mask_reasoning: bool = False
    learn_empty_reasoning: bool = False

    def identity(self) -> dict[str, Any]:
        """Return the identity, as values of canonical JSON.

        Newer options are part of it only if they are set.
        """
        options = asdict(self)
        # Newer options.
        for name in ("mask_reasoning", "learn_empty_reasoning"):
            if not options[name]:
                del options[name]
        # The rules that find turns decide ids only where a template does not mark them.
        is_marked = False
        if self.template is not None:
            is_marked = _GENERATION.search(self.template) is not None
        if self.loss == "assistant" and not is_marked:
            options["turns"] = _TURNS
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPrompt:
    """Columns to a prompt and its answer.

    See :class:`tokenlake.config.texts.PromptConfig`.

    Attributes:
        chat_template: Jinja text for the format ``chat``; None until the plan took the
            tokenizer's.
    """

    format_type: Literal["custom", "chat", "completion"] = "custom"
    template: str | None = None
    input_columns: tuple[str, ...] = ()
    label_column: str | None = None
    optional_columns: tuple[str, ...] = ()
    separator: str = "\n"
    mask_input: bool = True
    add_bos: bool = True
    add_eos: bool = True
    system_message: str | None = None
    examples: tuple[Mapping[str, Any], ...] = ()
    example_separator: str = "\n\n"
    chat_template: str | None = None

    @property
    def conversation(self) -> str | None:
        """The column of whole conversations; None where columns are turns or parts."""
        has_one_input = len(self.input_columns) == 1 and self.label_column is None
        if self.format_type == "chat" and has_one_input:
            return self.input_columns[0]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPreference:
    """Preferences; see :class:`tokenlake.config.texts.PreferenceConfig`.

    Attributes:
        chat_template: Jinja text for conversations; None until the plan took the
            tokenizer's.
    """

    method: Method
    trainer: Trainer = "easydel"
    prompt_field: str = "prompt"
    chosen_field: str = "chosen"
    rejected_field: str = "rejected"
    completion_field: str = "completion"
    label_field: str = "label"
    tools_field: str = "tools"
    chat_template: str | None = None


FIM_ROOM: Final = 17
"""Room of a row beside an infilled piece of a document, in ids: up to four sentinels,
an EOS, and the additional ids of a text that is tokenized in parts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFim:
    """Fill-in-the-middle; see :class:`tokenlake.config.dataset.FimConfig`.

    Attributes:
        tokens: Sentinels of prefix, suffix and middle, and perhaps the one that ends
            the middle; None until the plan read the tokenizer.
        seed: Seed of all draws.
    """

    rate: float
    spm: float
    level: Literal["document", "context"]
    tokens: tuple[str, ...] | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTexts:
    """Steps from the rows of a source to its texts. All of it is identity.

    Attributes:
        format_callback: Function of a row, as ``module:function``, applied first.
        format_fields: Fields to rename after it, (old, new).
        transforms: Steps after that, in order, each ``{name: arguments}``.
        callables: Every function among them, (name, sha256 of the file that defines
            it); empty until the plan.
        chat, prompt, preference: Form of the text, at most one; without one it is the
            field `content_field`.
        fim: Fill-in-the-middle of plain texts.
        left_open: Options of the source at their defaults (``content_field``,
            ``special_tokens_in_text``), which the plan may choose by the rows that it
            finds; empty after that.
    """

    format_callback: str | None = None
    format_fields: tuple[tuple[str, str], ...] = ()
    transforms: tuple[Mapping[str, Any], ...] = ()
    callables: tuple[tuple[str, str], ...] = ()
    chat: ResolvedChat | None = None
    prompt: ResolvedPrompt | None = None
    preference: ResolvedPreference | None = None
    fim: ResolvedFim | None = None
    left_open: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the text is a field of the row, read as it is."""
        return not any((self.rows_change, self.chat, self.prompt, self.preference))

    @property
    def rows_change(self) -> bool:
        """Whether rows are changed before their text is made."""
        return bool(self.format_callback or self.format_fields or self.transforms)

    @property
    def masked(self) -> bool:
        """True if only a part of a document's tokens may count toward the loss."""
        return self.chat is not None or self.prompt is not None

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of all functions of rows, each once."""
        # Some steps are a function; others have one, or none, among their arguments.
        names: list[str | None] = [self.format_callback]
        for step in self.transforms:
            for step_name, arguments in step.items():
                if step_name in ("apply", "filter"):
                    names.append(arguments)
                elif step_name in ("map", "filter_by", "combine"):
                    names += [arguments.get("function"), arguments.get("combiner")]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def identity(self) -> dict[str, Any]:
        """Return the options that are set, as values of canonical JSON.

        The result is empty for plain text.
        """
        # `left_open` is no option: the plan has made its choices before the identity.
        options: dict[str, Any] = {}
        for name, value in asdict(self).items():
            if value and name != "left_open":
                options[name] = value
        if self.chat is not None:
            options["chat"] = self.chat.identity()
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTokenizer:
    """The tokenizer of one source.

    Attributes:
        name_or_path: Hub id, directory or file.
        max_length: Largest number of tokens of a document, special tokens included;
            unused if long documents are kept.
        long_documents: Policy for documents with more tokens.
        truncation_strategy, truncation_side: Place of the cut, for ``truncate``.
        special_tokens_in_text: Policy for special tokens in texts: ``literal``,
            ``encode`` or ``fail``.
        engine: Tokenizer backend: ``auto``, ``words``, ``segments``, ``gigatoken`` or
            ``tokenizers``; never changes the ids.
        padding: Length of padded, unpacked rows: `max_length`, or that of the longest
            of their row group.
        padding_side: Side of the padding; None until the plan read the tokenizer.
        attention_mask: True if unpacked rows have a mask of the ids that are not
            padding.
        special_tokens: Tokens that replace the tokenizer's own, (name, token); a part
            of its files, which are identity.
    """

    # The tokenizer itself.
    name_or_path: str
    add_special_tokens: bool
    max_length: int
    trust_remote_code: bool
    special_tokens_in_text: Literal["literal", "encode", "fail"]
    engine: Literal["auto", "words", "segments", "gigatoken", "tokenizers"]

    # Documents of more than `max_length` tokens.
    long_documents: Literal["keep", "truncate", "split", "drop"] = "keep"
    truncation_strategy: Literal["simple", "word", "sentence", "smart"] = "simple"
    truncation_side: Literal["right", "left"] = "right"

    # Unpacked rows.
    padding: Literal["none", "max_length", "longest"] = "none"
    padding_side: Literal["left", "right"] | None = None
    attention_mask: bool = False
    special_tokens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTokens:
    """Records of token ids; see :class:`tokenlake.config.tokens.TokensConfig`.

    Attributes:
        field: Field of the ids.
        eos: Treatment of EOS: ``keep``, ``split`` or ``none``; None until the plan
            knows the format of the files.
        eos_token_id: Id of EOS; None until the plan read the tokenizer, and where it
            has none.
        length: Ids of a record of a stream of ids; None where EOS ends it.
        dtype: Type of ids in files that do not state it; None until the plan looked at
            the first ids.
        loss_field: Field of the loss mask; None until the plan looked at the first
            records, and where there is none.
        mask_fields: Fields that mark padding and segments, in the order of their use;
            those that the records have.
        row_length: Ids of a record that is stored as a packed row; None to store
            documents.
        vocab_size: Number of ids of the tokenizer; 0 until the plan read it. Its files
            are identity, not this number.
    """

    field: str = "input_ids"
    eos: Literal["keep", "split", "none"] | None = None
    eos_token_id: int | None = None
    length: int | None = None
    dtype: Literal["uint16", "int32", "uint32", "int64"] | None = None
    loss_field: str | None = None
    mask_fields: tuple[str, ...] = ()
    row_length: int | None = None
    vocab_size: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """All fields that are read."""
        if self.loss_field is None:
            return (self.field, *self.mask_fields)
        return (self.field, self.loss_field, *self.mask_fields)

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the ids, as values of canonical JSON."""
        # An id of EOS may be 0, unlike all other options that are set. The files of the
        # tokenizer are identity, not their number of ids.
        options = {name: value for name, value in asdict(self).items() if value}
        options.pop("vocab_size", None)
        if self.eos_token_id is not None:
            options["eos_token_id"] = self.eos_token_id
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedHeldOut:
    """Documents that no training split gets. All of it is identity.

    Attributes:
        split: Name of their split.
        count: Number of records to hold out.
        below: Bound of the draws (:func:`tokenlake.etl.unit.splits.held_out_draws`): a
            document with a smaller one is held out. None until the plan chose it, once
            for all versions.
    """

    split: str
    count: int
    below: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSource:
    """One source of text.

    Attributes:
        data_files: Paths, globs and directories as they were written.
        type: Format of all files; None for the one that the extension of each names.
        max_record_bytes: Size above which a record is a bad record.
        max_expansion: Largest ratio of the unfolded to the stored bytes of a compressed
            file; changes no result.
        splits: Splits, (name, fraction of the documents), sorted by name; the fractions
            sum to 1.
        held_out: Documents that are held out of all of them; None for none.
        exclude: Parquet file of documents to leave out, or None.
        num_rows: Largest number of records to read, good or bad, in the order of the
            listing; None for all.
        where: SQL predicate that records must meet, or None.
        storage_options: Options of the file system. References to credentials
            (``{"env": NAME}``) are resolved only when a file is opened.
        remote_cache_bytes: Size of the cache of remote blocks on the reading machine;
            None for that of its environment.
        subset, split: Files to read, of a dataset on the Hub or of a folder.
        split_from: Origin of the split: nothing (``default``), the `option`, or the key
            of a `mapping` of `data_files`, whose entries `data_files` are.
        sibling_splits: Splits of the same `data_files` that other sources of the build
            read, so that no note calls their files unread; changes no result.
        delimiter: Text between the cells of CSV; None for that of the extension.
        texts: Steps from rows to texts.
        tokens: Records that hold token ids; None where they hold text.
        kept: Fields kept beside the tokens, (name, type), see
            :mod:`tokenlake.runtime.schema`; the type is None until the plan looked at
            the inputs.
        field_types: Kept fields whose types the configuration declares, (name, type),
            sorted.
        num_shards: Exact number of files for each split, of this source alone; None for
            that of the build.
        cache_enabled: True to reuse equal units of other versions.
    """

    # Rows: their files, and the part of them that is read.
    name: str
    data_files: tuple[str, ...]
    type: SourceType | None
    content_field: str
    text_mode: Literal["document", "lines"]
    on_bad_record: Literal["fail", "quarantine"]
    max_bad_fraction: float
    max_record_bytes: int
    splits: tuple[tuple[str, float], ...]
    exclude: str | None
    num_rows: int | None
    tokenizer: ResolvedTokenizer
    where: str | None = None
    storage_options: Mapping[str, Any] = field(
        default_factory=dict[str, Any], repr=False
    )
    remote_cache_bytes: int | None = None
    subset: str | None = None
    split: str = "train"
    split_from: Literal["default", "option", "mapping"] = "default"
    sibling_splits: tuple[str, ...] = ()
    delimiter: str | None = None
    max_expansion: float = 1000.0
    texts: ResolvedTexts = field(default_factory=ResolvedTexts)
    kept: tuple[tuple[str, ColumnType | None], ...] = ()
    field_types: tuple[tuple[str, ColumnType], ...] = ()
    num_shards: int | None = None
    cache_enabled: bool = True
    held_out: ResolvedHeldOut | None = None
    tokens: ResolvedTokens | None = None

    @property
    def is_finished(self) -> bool:
        """True if documents come with special tokens of their own.

        Then only those that they lack are added.
        """
        return self.texts.masked or self.tokens is not None

    @property
    def has_whole_rows(self) -> bool:
        """True if its records are packed rows already."""
        return self.tokens is not None and self.tokens.row_length is not None

    @property
    def masked(self) -> bool:
        """True if only a part of a document's tokens may count toward the loss."""
        has_marked_ids = self.tokens is not None and self.tokens.loss_field is not None
        return self.texts.masked or has_marked_ids

    @property
    def split_names(self) -> tuple[str, ...]:
        """All splits, that of held-out documents last."""
        names = [name for name, _ in self.splits]
        if self.held_out is not None:
            names.append(self.held_out.split)
        return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPack:
    """Packing of documents into rows.

    Attributes:
        width: Number of ids of a row.
        eos_token_id: Token after each document; None for the tokenizer's.
        pad_token_id: Token of unfilled places; None for the tokenizer's padding, or its
            EOS if it has none.
        strategy: Strategy, one of :data:`tokenlake.etl.packing.packer.STRATEGIES`.
        window_tokens: Number of tokens inside which documents and rows may be
            reordered.
        store_segment_ids: True to store a column of segment ids.
        include_segment_ids: True if readers yield segment ids.
        num_packers: Number of open rows of the strategy ``pool``.
        max_segments: Largest number of pieces in a row; None for any number.
        shuffle_seed: Seed of the shuffle of rows inside a window; None for no shuffle.
    """

    width: int
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    strategy: str = "greedy"
    window_tokens: int = 1 << 24
    store_segment_ids: bool = False
    include_segment_ids: bool = True
    num_packers: int = 4
    max_segments: int | None = None
    shuffle_seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBuild:
    """A whole build.

    Attributes:
        name: Name of the dataset in the store.
        store: URL or path of the store.
        seed: Seed of the configuration.
        sources: Sources of text, in the order of the configuration, which is the order
            of the units; empty in a build of stored datasets.
        pack: Packing; None for one row per document (kind ``tokens``).
        unit_size: Input bytes of a unit of work; None until the plan of a build of
            texts has chosen it.
        max_shard_size: Size in bytes at which an output file ends.
        compression: Compression of the pages.
        hash_threads: Number of threads that hash inputs; changes nothing in the result.
        parents: Stored datasets that rows are taken from, in the order of the
            configuration; empty in a build of texts.
        mixture: Mixture of the parents with its weights, seed and step; None for one
            parent after the other, in their own order.
        num_shards: Exact number of files for each split, of all sources together; None
            for those that units and `max_shard_size` give.
        store_options: Options of the store's file system; references are resolved as
            those of a source.
        card: Entries of the dataset card that are set.
        notes: Notes on options that are set and that the build does not use, because
            they only concern speed.
    """

    # The dataset, and the texts that it is built from.
    name: str
    store: str
    seed: int | None
    sources: tuple[ResolvedSource, ...]
    pack: ResolvedPack | None
    unit_size: int | None
    max_shard_size: int
    compression: Literal["zstd"]
    hash_threads: int

    # The stored datasets that it is built from instead.
    parents: tuple[DatasetConfig, ...] = ()
    mixture: MixStageConfig | None = None

    # Options of the store and of the version.
    num_shards: int | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    card: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["packed", "tokens", "preference"]:
        """Kind of the rows of the dataset."""
        if self.preference is not None:
            return "preference"
        if self.pack is not None:
            return "packed"
        return "tokens"

    @property
    def width(self) -> int:
        """Ids of a row that documents are packed into; 0 where they are not."""
        if self.pack is None:
            return 0
        return self.pack.width

    @property
    def preference(self) -> ResolvedPreference | None:
        """The preference of the first source; None if it has none.

        All sources have the same method and trainer, or none has one.
        """
        # A build of stored datasets has no sources.
        if not self.sources:
            return None
        return self.sources[0].texts.preference

    @property
    def loss_mask(self) -> bool:
        """True if rows have a mask of the tokens that count toward the loss."""
        return any(source.masked for source in self.sources)

    @property
    def attention_mask(self) -> bool:
        """True if unpacked rows have a mask of the ids that are not padding."""
        # Packed rows are full.
        if self.pack is not None:
            return False
        return any(source.tokenizer.attention_mask for source in self.sources)

    @property
    def kept(self) -> tuple[tuple[str, ColumnType], ...]:
        """(name, type) of the columns of kept fields.

        Those of the first source come first. The plan knows them.
        """
        # A field that several sources keep has one column; the plan unites its types.
        fields: dict[str, ColumnType | None] = {}
        for source in self.sources:
            fields.update(source.kept)
        return tuple((name, kind) for name, kind in fields.items() if kind is not None)


Normal: TypeAlias = Literal["folded", "text"]
"""Equality of texts: the same words in any case and white space, or the same
characters.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """The signatures of every document; with the inputs it decides those of a unit.

    Attributes:
        exact: Normal form of the hash by which equal documents are found.
        ngram, bands, rows, seed: Options of MinHash; 0 bands for none.
        filters: Quality filters.
        contamination: Length of n-grams, their smallest number and their smallest
            share; None without evaluation sets.
        evaluation: sha256 (hex) of the evaluation sets' n-grams.
    """

    exact: Normal
    ngram: int
    bands: int
    rows: int
    seed: int
    filters: QualityFilters
    contamination: tuple[int, int, float] | None = None
    evaluation: str = ""

    @property
    def comparable(self) -> Mapping[str, Any]:
        """Options that two signatures must have in common to be compared."""
        # Filters and evaluation sets concern one document, not two.
        names = ("exact", "ngram", "bands", "rows", "seed")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """Return all options, as values of canonical JSON."""
        return asdict(self)
