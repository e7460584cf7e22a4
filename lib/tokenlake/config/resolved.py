"""What a build consumes: a configuration with every default, inheritance and size worked out.

Plain frozen dataclasses of plain values, without pydantic, so that a worker process imports them in no time. They are
parts of the jobs of :mod:`tokenlake.etl.job`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tokenlake.base.columns import ColumnType, Method, Trainer
from tokenlake.config.formats import SourceType
from tokenlake.config.quality import QualityFilters

if TYPE_CHECKING:  # a worker gets neither
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import MixStageConfig

MESSAGES_FIELDS: Final = ("messages", "conversations", "conversation")
"""Fields that hold a conversation, in the order in which they are looked for."""


_GENERATION: Final = re.compile(r"\{%[-+]?\s*generation\b")
"""What a chat template writes around the words of the assistant."""

_TURNS: Final = 2
"""Version of the rules that find turns in the text of a template without such marks. The first one put loss on some
headers, so that units that it made are not used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChat:
    """Conversations to text; see :class:`tokenlake.config.texts.ChatConfig`.

    Attributes:
        template: the Jinja text itself; None until the plan took the tokenizer's.
        messages_field: None until the plan found it.
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
        """Return what of it counts as identity, JSON-able; options of later releases count only where they are set."""
        options = asdict(self)
        for name in ("mask_reasoning", "learn_empty_reasoning"):
            if not options[name]:
                del options[name]
        is_marked = self.template is not None and _GENERATION.search(self.template) is not None
        if self.loss == "assistant" and not is_marked:
            options["turns"] = _TURNS
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPrompt:
    """Columns to a prompt and its answer; see :class:`tokenlake.config.texts.PromptConfig`.

    Attributes:
        chat_template: for the format ``chat``: the Jinja text; None until the plan took the tokenizer's.
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
        """The column whose values are whole conversations; None where columns are turns or parts of a text."""
        chat = self.format_type == "chat" and len(self.input_columns) == 1 and self.label_column is None
        return self.input_columns[0] if chat else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPreference:
    """Preferences; see :class:`tokenlake.config.texts.PreferenceConfig`.

    Attributes:
        chat_template: for conversations: the Jinja text; None until the plan took the tokenizer's.
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
"""Ids that a row has beyond a piece of a document that may be infilled: up to four sentinels, an EOS, and what the
parts of a text come to more than the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFim:
    """Fill-in-the-middle; see :class:`tokenlake.config.dataset.FimConfig`.

    Attributes:
        tokens: sentinels of prefix, suffix and middle, and perhaps the one that ends the middle; None until the plan
            asked the tokenizer.
        seed: of all draws.
    """

    rate: float
    spm: float
    level: Literal["document", "context"]
    tokens: tuple[str, ...] | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTexts:
    """What is done to the rows of a source before they are tokenized. All of it is identity.

    Attributes:
        format_callback: ``module:function`` of a row, applied first.
        format_fields: fields to rename after it, (old, new).
        transforms: applied in order after that, each ``{name: arguments}``.
        callables: (name, sha256 of the file that defines it) of every function among them, once the plan looked.
        chat, prompt, preference: at most one; without one the text is the field `content_field`.
        fim: of plain texts: some are put in another order.
        left_open: settings of the source that nobody wrote (``content_field``, ``special_tokens_in_text``), which the
            plan may decide from what the rows are; empty once it has.
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
        """Whether only a part of a document's tokens may bear loss."""
        return self.chat is not None or self.prompt is not None

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of all functions that rows are given to, each once."""
        found = [self.format_callback]
        for kind, arguments in (item for step in self.transforms for item in step.items()):
            if kind in ("apply", "filter"):
                found.append(arguments)
            elif kind in ("map", "filter_by", "combine"):
                found += [arguments.get("function"), arguments.get("combiner")]
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def identity(self) -> dict[str, Any]:
        """Return what of it is set, JSON-able; nothing for plain text."""
        parts = {key: value for key, value in asdict(self).items() if value and key != "left_open"}
        if self.chat is not None:
            parts["chat"] = self.chat.identity()
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTokenizer:
    """The tokenizer of one source.

    Attributes:
        name_or_path: Hub id, directory or file.
        max_length: most tokens of a document, special tokens included; acts unless long documents are kept.
        long_documents: what becomes of a document that has more.
        truncation_strategy, truncation_side: where a document is cut, for ``truncate``.
        special_tokens_in_text: ``literal``, ``encode`` or ``fail``.
        engine: ``auto``, ``words``, ``segments``, ``gigatoken`` or ``tokenizers``; never changes the ids.
        padding: of unpacked rows: to `max_length`, or to the longest of their row group.
        padding_side: None until the plan asked the tokenizer.
        attention_mask: whether unpacked rows say which of their ids are not padding.
        special_tokens: (name, token) in the place of the tokenizer's own; a part of its files, which are identity.
    """

    name_or_path: str
    add_special_tokens: bool
    max_length: int
    trust_remote_code: bool
    special_tokens_in_text: Literal["literal", "encode", "fail"]
    engine: Literal["auto", "words", "segments", "gigatoken", "tokenizers"]
    long_documents: Literal["keep", "truncate", "split", "drop"] = "keep"
    truncation_strategy: Literal["simple", "word", "sentence", "smart"] = "simple"
    truncation_side: Literal["right", "left"] = "right"
    padding: Literal["none", "max_length", "longest"] = "none"
    padding_side: Literal["left", "right"] | None = None
    attention_mask: bool = False
    special_tokens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedHeldOut:
    """Documents that no training split gets. All of it is identity.

    Attributes:
        split: what they are called.
        count: how many records were asked for.
        below: a document is held out where its draw is below (:func:`tokenlake.etl.unit.text.held_out_draws`); None
            until the plan found it, once for all versions.
    """

    split: str
    count: int
    below: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSource:
    """One source of text.

    Attributes:
        data_files: paths, globs and directories as they were written.
        type: format of all files, or None: by the extension of each.
        max_record_bytes: a longer record is a bad record.
        max_expansion: how many times its stored bytes a compressed file may unfold to; changes no result.
        splits: (split, fraction of the documents), sorted by split; the fractions sum to 1.
        held_out: what is held out of all of them; None: nothing.
        exclude: Parquet file of documents to leave out, or None.
        num_rows: read at most so many records, good or bad, in the order of the listing; None for all.
        where: SQL predicate that records must meet, or None.
        storage_options: of the file system; references to credentials stay references (``{"env": NAME}``),
            which whoever opens a file resolves.
        remote_cache_bytes: of blocks of remote inputs that the reading machine keeps; None: as its environment says.
        subset, split: which files are read, of a dataset on the Hub or of a folder.
        split_from: what says the split: nothing (``default``), the `option`, or the key of a `mapping` of
            `data_files`, whose entries `data_files` are.
        delimiter: between the cells of CSV, None for what the extension says.
        texts: what makes texts of the rows.
        kept: (name, type) of the fields kept beside the tokens, see :mod:`tokenlake.runtime.schema`; the type is None
            until the plan looked at the inputs.
        field_types: (name, type) of those kept fields whose types the configuration declares, sorted.
        num_shards: write exactly so many files for each split, of this source alone; None: see the build's.
        cache_enabled: take equal units over from other versions.
    """

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
    storage_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    remote_cache_bytes: int | None = None
    subset: str | None = None
    split: str = "train"
    split_from: Literal["default", "option", "mapping"] = "default"
    delimiter: str | None = None
    max_expansion: float = 1000.0
    texts: ResolvedTexts = field(default_factory=ResolvedTexts)
    kept: tuple[tuple[str, ColumnType | None], ...] = ()
    field_types: tuple[tuple[str, ColumnType], ...] = ()
    num_shards: int | None = None
    cache_enabled: bool = True
    held_out: ResolvedHeldOut | None = None

    @property
    def split_names(self) -> tuple[str, ...]:
        """All splits, that of held-out documents last."""
        held_out = () if self.held_out is None else (self.held_out.split,)
        return (*(name for name, _ in self.splits), *held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPack:
    """How documents become rows.

    Attributes:
        width: ids of a row.
        eos_token_id: token after each document, or None: the tokenizer's.
        pad_token_id: token of unfilled slots, or None: the tokenizer's padding, else EOS.
        strategy: one of :data:`tokenlake.etl.packing.packer.STRATEGIES`.
        window_tokens: tokens inside which documents and rows may be reordered.
        num_packers: open rows of the strategy ``pool``.
        max_segments: at most so many pieces in a row; None: any number.
        shuffle_seed: of the shuffle of rows inside a window; None: they are not shuffled.
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
        name: the dataset's name in the store.
        store: URL or path of the store.
        store_options: of its file system; references stay references, as those of a source.
        sources: of texts, in configuration order, which is the order of the units; none in a build of stored datasets.
        parents: stored datasets that rows are taken from, in configuration order; none in a build of texts.
        mixture: how the parents are mixed, its weights, seed and step filled in; None: one after the other, every row
            where it is.
        pack: how to pack, or None: one row per document (kind ``tokens``).
        unit_size: input bytes of a unit of work; None until the plan of a build of texts has chosen it.
        max_shard_size: bytes past which an output file ends.
        hash_threads: threads that hash inputs; changes nothing in the result.
        num_shards: write exactly so many files for each split, of all sources together; None: as units and
            `max_shard_size` make them.
        card: what the dataset card says beside what is counted, as far as anything is set.
        notes: Notes on options that are set and that the build does not use, because they only concern speed.
    """

    name: str
    store: str
    seed: int | None
    sources: tuple[ResolvedSource, ...]
    pack: ResolvedPack | None
    unit_size: int | None
    max_shard_size: int
    compression: Literal["zstd"]
    hash_threads: int
    parents: tuple[DatasetConfig, ...] = ()
    mixture: MixStageConfig | None = None
    num_shards: int | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    card: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["packed", "tokens", "preference"]:
        """What the rows of the dataset are."""
        if self.preference is not None:
            return "preference"
        return "tokens" if self.pack is None else "packed"

    @property
    def width(self) -> int:
        """Ids of a row that documents are packed into; 0 where they are not."""
        return 0 if self.pack is None else self.pack.width

    @property
    def preference(self) -> ResolvedPreference | None:
        """The preference of the first source; all sources have the same method and trainer, or none has one."""
        return self.sources[0].texts.preference if self.sources else None

    @property
    def loss_mask(self) -> bool:
        """Whether rows say which of their tokens bear loss."""
        return any(source.texts.masked for source in self.sources)

    @property
    def attention_mask(self) -> bool:
        """Whether unpacked rows say which of their ids are not padding."""
        return self.pack is None and any(source.tokenizer.attention_mask for source in self.sources)

    @property
    def kept(self) -> tuple[tuple[str, ColumnType], ...]:
        """(name, type) of the columns of kept fields, those of the first source first; the plan knows them."""
        fields = {name: kind for source in self.sources for name, kind in source.kept}
        return tuple((name, kind) for name, kind in fields.items() if kind is not None)


Normal: TypeAlias = Literal["folded", "text"]
"""Of which texts are equal: of the same words, whatever their case and white space, or of the same characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What is made of every document; with the inputs it decides a unit's signatures.

    Attributes:
        exact: normal form of the hash by which equal documents are found.
        ngram, bands, rows, seed: of MinHash; no bands: none is made.
        filters: of quality.
        contamination: (n-gram, least n-grams, least share); None without evaluation sets.
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
        """What two signatures must have in common to be compared."""
        return {name: getattr(self, name) for name in ("exact", "ngram", "bands", "rows", "seed")}

    def identity(self) -> dict[str, Any]:
        """Return all of it, JSON-able."""
        return asdict(self)
