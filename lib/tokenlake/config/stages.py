"""Sections of a configuration, and the published filters of quality.

The sections are reading, tokenizing, caching, packing, loading, saving, Ray and
reports. `clean` and the transforms of rows name the filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from annotated_types import Ge
from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    Strict,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from tokenlake.base.checks import did_you_mean
from tokenlake.base.section import (
    Count,
    Length,
    Options,
    Path,
    Positive,
    Secret,
    Section,
    Share,
    Size,
    Splits,
    Switch,
    Text,
    TokenId,
    as_text,
    problem,
    shown,
)
from tokenlake.base.sizes import MIB
from tokenlake.config.formats import SaveFormat
from tokenlake.config.quality import CONSTANTS, QualityFilters

SpecialTokensInText = Literal["literal", "encode", "fail"]
"""Policy for the text of a special token inside a document: plain text, the token, or
a bad record.
"""

LongDocuments = Literal["keep", "truncate", "split", "drop"]
"""Policy for a document of more than `max_length` tokens."""

TruncationStrategy = Literal["simple", "word", "sentence", "smart"]
"""Where a document is cut: at a token, or between words or sentences; smart: the
nicest that keeps 80% of the room.
"""

TruncationSide = Literal["right", "left"]
"""The side of a document that is cut away."""

Padding = Annotated[
    Literal[False, "max_length", "longest", "do_not_pad"],
    BeforeValidator(lambda value: "longest" if value is True else value),
]
SpecialTokenName = Literal[
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "cls_token",
    "sep_token",
    "mask_token",
]

DEFAULT_MAX_LENGTH: Final = 2048

KWARGS: Final = {
    "model_max_length": "max_length",
    "max_length": "max_length",
    "padding": "padding",
    "padding_side": "padding_side",
    "truncation": "truncation",
    "add_special_tokens": "add_special_tokens",
    "return_attention_mask": "return_attention_mask",
    "trust_remote_code": "trust_remote_code",
}
"""Arguments of transformers' tokenizers that act here, to the option of
:class:`TokenizerConfig` that they are.
"""


class TokenizerConfig(Section):
    """A tokenizer and its options.

    A plain text instead of this section is its `name_or_path`.
    """

    name_or_path: Path
    """Hub id, directory, or tokenizer.json file."""

    max_length: Length | None = None
    """Largest number of tokens of a document, special tokens included, unless long
    documents are kept; null: `tokenize.max_length`.
    """

    truncation: Switch | None = None
    """Cut documents to `max_length`, which the audit counts; null: yes, unless rows
    are packed.
    """

    padding: Padding = False
    """Pad unpacked rows to `max_length`, or to the longest row of their row group
    (longest or true). Packed rows are full.
    """

    padding_side: Literal["left", "right"] | None = None
    """Side of the padding; null: the side in tokenizer_config.json, otherwise right."""

    add_special_tokens: Switch = True
    """Add the BOS and EOS tokens of the tokenizer to every document."""

    special_tokens: dict[SpecialTokenName, Text] | None = None
    """Special tokens that replace those of tokenizer_config.json, such as {pad_token:
    <unk>}; they must be in the vocabulary.
    """

    return_attention_mask: Switch = True
    """Store `attention_mask` (1: document, 0: padding) in unpacked rows, if this is
    set or rows are padded.
    """

    trust_remote_code: Switch = False
    """Allow code of the tokenizer's repository to run. A build only reads
    tokenizer.json and never runs code.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name: values of JSON."""
        return self.model_dump(mode="json")


def _tokenizer(value: object, _handler: object) -> str | TokenizerConfig:
    """Accept a section, its mapping, or the name of a tokenizer."""
    # A union of pydantic would list the errors of both forms, also for a mapping.
    if isinstance(value, TokenizerConfig):
        return value
    if isinstance(value, Mapping):
        return TokenizerConfig.model_validate(dict(cast("Mapping[str, Any]", value)))
    text = as_text(value)
    if isinstance(text, str) and text and "\x00" not in text:
        return text
    raise problem(
        f"got {shown(value)}, must be a Hub id, a path, or a mapping with `name_or_path`"
    )


TokenizerChoice = Annotated[str | TokenizerConfig, WrapValidator(_tokenizer)]
"""A Hub id or path, or a whole :class:`TokenizerConfig`."""


BadRecordPolicy = Literal["fail", "quarantine"]


class SourceStageConfig(Section):
    """Section `source`: reading of records, for all datasets.

    A dataset can override `on_bad_record`, `max_bad_fraction` and `splits`.
    """

    # Reading.
    unit_size: Size | None = None
    """Input bytes per unit of a build. Units are resumed and reused as a whole. null: 8
    to 128 MiB, chosen by the size of the inputs of the first version so that 64 workers
    have work; later versions keep it.
    """

    max_record_bytes: Size = 256 * MIB
    """Largest size of a record; a longer record is a bad record."""

    max_expansion: Positive = 1000.0
    """Largest compression ratio. A compressed file that exceeds it and has more than
    256 MiB when decompressed is treated as damaged.
    """

    # Bad records.
    on_bad_record: BadRecordPolicy = "fail"
    """fail: a bad record fails the build. quarantine: bad records are kept
    separately and counted.
    """

    max_bad_fraction: Share = 0.001
    """Share of bad records above which the build fails, with quarantine."""

    splits: Splits = {"train": 1.0}  # noqa: RUF012 (pydantic copies defaults)
    """Split name -> fraction of the documents, assigned by a hash of their identity;
    stable when data is added.
    """

    hash_threads: Count = 2
    """Number of threads that hash the input files. It does not change the result."""

    # Options of the row-wise API and of other systems.
    streaming: Switch = True
    """false: download files of the Hub before they are read, like `streaming` of the
    pipeline. Not used by a build.
    """

    cloud_max_retries: Count | None = None
    """Not supported: TOKENLAKE_RETRY_SECONDS limits the retries of requests."""

    cloud_retry_delay: Positive | None = None
    """Not supported: waits between retries grow automatically."""

    dask_storage_options: Options | None = None
    """Not supported: `datasets.storage_options` has the options of every reader."""


class TokenizeStageConfig(Section):
    """Section `tokenize`."""

    # Tokenizer and length.
    default_tokenizer: TokenizerChoice | None = None
    """Tokenizer of datasets without one; takes precedence over `default_tokenizer`
    of the pipeline.
    """

    max_length: Length = DEFAULT_MAX_LENGTH
    """Largest number of tokens of a document, unless long documents are kept;
    `max_length` of a tokenizer takes precedence.
    """

    # Speed and storage; they do not change the ids.
    batch_size: Count = 1000
    """Number of documents per call in the row-wise API. It only affects speed. A build
    works on blocks of bytes, accepts any value and notes that it does not use it.
    """

    num_workers: Count = 4
    """Number of threads that tokenize ahead in the row-wise API; 1 for none. It only
    affects speed. A build accepts any value and notes that it does not use it: its
    workers are an option of the run.
    """

    cache_tokenized: Switch | None = None
    """Store the tokens of each source, in a build as a separate dataset, from which
    rows are mixed or packed; null: only when mixing.
    """

    remove_columns: tuple[Text, ...] | None = None
    """Columns to drop after tokenizing. A build keeps only `additional_fields`, and
    refuses a column that is in both.
    """

    tokenizer_backend: Literal[
        "auto", "words", "segments", "gigatoken", "tokenizers"
    ] = "auto"
    """Tokenizer implementation. auto: the fastest one that returns the ids of the
    reference for this tokenizer (words and segments for large inputs), otherwise the
    reference, tokenizers. It never changes the ids.
    """

    engine: Annotated[str | None, Field(exclude=True)] = None
    """Former name of `tokenizer_backend`, which takes precedence. Works in this
    release only.
    """

    # Special tokens, and documents that are too long.
    special_tokens_in_text: SpecialTokensInText = "literal"
    """Text of a special token inside a document. literal: plain text (in conversations:
    fail). encode: the special token. fail: a bad record.
    """

    long_documents: LongDocuments | None = None
    """Policy for documents above max_length: keep, truncate, split or drop; null: as
    `truncation` determines (keep when packing).
    """

    truncation_strategy: TruncationStrategy | None = None
    """Place of the cut: simple (at a token), word, sentence, or smart (at a sentence or
    word, if that keeps 80%); null: simple.
    """

    truncation_side: TruncationSide | None = None
    """Side that truncation removes: right (the end of a document) or left (its
    beginning); null: right.
    """

    @model_validator(mode="before")
    @classmethod
    def _take_former_name(cls, value: Any) -> Any:
        """Give the value of `engine` to `tokenizer_backend`, unless that is set."""
        if not isinstance(value, Mapping):
            return value
        # The new name wins, so that a file with both reads alike in the next release.
        options = cast("Mapping[str, Any]", value)
        backend = options.get("engine")
        if backend is None or "tokenizer_backend" in options:
            return options
        return {**options, "tokenizer_backend": backend}


class CacheStageConfig(Section):
    """Section `cache`: tokens of the row-wise API, and blocks of remote inputs.

    A build reuses finished units in its store, and refuses the options for tokens.
    """

    enabled: Switch = True
    """Cache tokens in the row-wise API: those of datasets with a `cache_path`, or of
    all datasets if another option for tokens or `tokenize.cache_tokenized` is set.
    """

    cache_type: Literal["memory", "disk", "hierarchical"] = "hierarchical"
    """Layers: in memory, on disk, or in memory before disk."""

    cache_dir: Path | None = None
    """Directory of the disk cache; null: the user's cache directory. `cache_path` of
    a dataset takes precedence.
    """

    memory_cache_size: Count = 100
    """Largest number of entries in memory, of about 4 MiB each."""

    disk_cache_expiry: Count | None = 86400
    """Seconds after which an entry expires; null: never."""

    disk_cache_bytes: Size | None = None
    """Largest size on disk; the entries used least recently are removed. null: no
    limit.
    """

    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    """Compression of entries on disk."""

    hash_fn: Literal["content", "path", "combined"] = "combined"
    """Identity of an input. content: its sha256, wherever it is stored. path: its path,
    size and times, without reading it. combined: both.
    """

    remote_cache_bytes: Size | None = None
    """Largest size of cached blocks of remote inputs in this machine's cache directory;
    null: TOKENLAKE_REMOTE_CACHE, otherwise none. It does not change the result.
    """

    @property
    def keeps_tokens(self) -> bool:
        """True if an option about tokens is set explicitly."""
        return bool(self.model_fields_set - {"remote_cache_bytes"})


class PackStageConfig(Section):
    """Section `pack`."""

    enabled: Switch = False
    """Pack documents into rows of `seq_length` tokens; false: one row per document."""

    seq_length: Length = 2048
    """Number of tokens per row."""

    eos_token_id: TokenId | None = None
    """Token after each document; null: the tokenizer's EOS."""

    pad_token_id: TokenId | None = None
    """Token that pads rows; null: the padding token of the tokenizer, otherwise EOS."""

    # Strategy.
    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] = "greedy"
    """greedy: documents in their order; a document continues in the next row; no
    padding. pool: each document goes into the open row that it fills best, and is cut
    if it fits into none. first_fit and best_fit never cut a document that fits into a
    row. A longer one becomes full rows and a remainder, and best_fit may cut a
    remainder once more to fill gaps. No strategy loses a token.
    """

    num_packers: Count = 4
    """Number of open rows of the strategy `pool`."""

    max_segments: Count | None = None
    """Largest number of pieces of documents per row; the rest of the row is padded.
    null: no limit.
    """

    # Columns and order of rows.
    include_segment_ids: Switch = True
    """Yield `segment_ids` to readers (1, 2, 3, ... for the documents of a row, 0 for
    padding).
    """

    shuffle_packed: Switch | None = None
    """Shuffle the rows of each packing window, by the seed of the pipeline (null: 0).
    null: yes for strategies that reorder documents, no for `greedy`, whose rows keep
    the order of the input.
    """

    shuffle_buffer_factor: Count = 10
    """In the row-wise API, `shuffle_packed` shuffles `shuffle_buffer_factor *
    num_packers` rows at a time. Not used by a build, which shuffles whole windows.
    """

    window_tokens: Count = 2**24
    """Size of the packing window, in tokens: documents, and shuffled rows, are
    reordered only inside a window. It changes the rows. If a unit writes several files
    at a time (`save.num_shards`), they share the window.
    """

    store_segment_ids: Switch = False
    """Also write `segment_ids` as a column. Readers derive them without it, and the
    column costs 20% more CPU.
    """

    @property
    def shuffles(self) -> bool:
        """True if rows are shuffled."""
        # By default `greedy` keeps the order of documents; other strategies lose it
        # anyway.
        if self.shuffle_packed is None:
            return self.strategy != "greedy"
        return self.shuffle_packed

    @model_validator(mode="after")
    def _window_holds_a_row(self) -> Self:
        """Refuse a window that is shorter than a row."""
        if self.window_tokens < self.seq_length:
            raise problem(
                f"window_tokens ({self.window_tokens}) is below seq_length ({self.seq_length}): "
                "a window must hold at least one row"
            )
        return self


class LoadStageConfig(Section):
    """Section `load`: reading the result. Not used by a build."""

    batch_size: Count = 8
    """Number of rows per batch; not used by a build."""

    prefetch_enabled: Switch = True
    """Prepare batches ahead; not used by a build."""

    prefetch_workers: Count = 2
    """Number of threads that prepare batches; not used by a build."""

    prefetch_buffer_size: Count = 4
    """Number of batches prepared ahead; not used by a build."""

    shuffle_buffer_size: Count | None = None
    """Number of rows in the shuffle buffer; null: no shuffling. Not used by a build."""

    drop_last: Switch = True
    """Leave out the last batch if it is not full; not used by a build."""

    prefetch_to_device: Switch = False
    """Move prefetched batches to the devices; not used by a build."""


class SaveStageConfig(Section):
    """Section `save`."""

    hidden_values = frozenset({"hub_token", "storage_options"})

    enabled: Switch = False
    """Write files in the row-wise API. Not used by a build, which always writes to
    its store.
    """

    output_dir: Path | None = None
    """Store of a build: a path, s3:// or gs://; null: $TOKENLAKE_STORE, otherwise
    ./artifacts (row-wise API: ./output).
    """

    storage_options: Options | None = None
    """Options of the store's file system; credentials as {env: NAME}; null:
    $TOKENLAKE_STORE_OPTIONS.
    """

    format: SaveFormat = "parquet"
    """Format of the files: of rows (parquet, arrow, jsonl), or of a trainer
    (howto/export_formats.md), which only builds write. The store of a build contains
    Parquet with zstd; another format or `compression` is exported to
    output_dir/_exports/NAME/vN.
    """

    num_shards: Count | None = None
    """Number of files for each split; takes precedence over `max_shard_size`. null:
    determined by `max_shard_size`.
    """

    compression: Literal["none", "gzip", "lz4", "zstd"] | None = None
    """Compression of the files; null: zstd for Parquet, otherwise none."""

    max_shard_size: Size = 500 * MIB
    """Largest size of a file; not used with `num_shards`. In the store of a build, a
    file ends with the first row group that exceeds it.
    """

    append_eos: Switch = False
    """End each document with EOS in exports that have a format of a trainer; packed
    rows have EOS already.
    """

    overwrite: Switch = False
    """Replace existing data files at the output of the row-wise API or at a
    `save_path`; versions are never overwritten.
    """

    push_to_hub: Switch = False
    """Upload the result to the Hugging Face Hub: the version of a build, or the
    saved files of the row-wise API.
    """

    hub_repo_id: Text | None = None
    """Repository on the Hub, org/name; requires `push_to_hub`."""

    hub_private: Switch = True
    """Create a private repository; requires `push_to_hub`."""

    hub_token: Secret | None = None
    """Token for the Hub; requires `push_to_hub`. In files {env: NAME} or {block:
    NAME}, never the token itself.
    """


class RayConfig(Section):
    """Section `ray`."""

    enabled: Switch = False
    """Run the units of a build on Ray, like `--executor ray`."""

    num_workers: Count = 4
    """Number of workers on the cluster; requires `enabled`."""

    resources_per_worker: dict[Text, Annotated[float, Strict(), Ge(0.0)]] | None = None
    """Resources that each worker reserves, such as {CPU: 2}; requires `enabled`."""

    use_gpu: Switch = False
    """Reserve a GPU for each worker; requires `enabled`."""

    object_store_memory: Size | None = None
    """Size of the object store of a cluster that the build starts, in bytes; null: the
    default of Ray. Requires `enabled`.
    """


class ObservabilityConfig(Section):
    """Section `observability`: display, log and metrics of a run.

    It does not change the result.
    """

    progress_enabled: Switch = True
    """Show progress. Builds and pipelines that a Python program runs show it only if
    this section is present.
    """

    progress_type: Literal["rich", "tqdm", "json", "none"] = "rich"
    """Form of the progress: bars on a terminal and lines elsewhere (auto), a tqdm bar,
    one JSON object per line, or messages only.
    """

    metrics_enabled: Switch = True
    """Export the figures of a run, as `metrics_file` or `opentelemetry` specifies."""

    metrics_file: Path | None = None
    """File to which the figures are written every 15 seconds, in the text format of
    Prometheus; usually named *.prom.
    """

    opentelemetry: Switch = False
    """Report the figures to the meter provider of OpenTelemetry that the program has
    set up.
    """

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the messages shown; finished units are DEBUG, retries are
    WARNING.
    """

    log_interval: Count = 100
    """Number of units, or batches, between two progress lines. A line is also
    printed every 10 seconds.
    """


def _filters(value: object) -> object:
    """Return (name, constants) of each filter.

    A text alone is a filter as it was published.
    """
    # One filter may be written without a list.
    entries: list[object] = [value]
    if isinstance(value, list | tuple):
        entries = list(cast("list[object]", value))
    filters: dict[str, tuple[tuple[str, float], ...]] = {}
    for entry in entries:
        # An entry is a name, or {name: constants}.
        constants: object = {}
        if isinstance(entry, str):
            name = entry
        elif isinstance(entry, Mapping) and len(cast("Any", entry)) == 1:
            [(name, constants)] = cast("Mapping[str, object]", entry).items()
        else:
            raise problem(
                f"got {shown(entry)}, must be the name of a filter, or a mapping of one to its constants"
            )
        # Names and constants must be known ones, and numbers at least 0.
        if not isinstance(constants, Mapping):
            raise problem(
                f"{name}: got {shown(constants)}, must be a mapping of constants to numbers"
            )
        _require_known("unknown filter", name, CONSTANTS)
        for key, number in cast("Mapping[str, Any]", constants).items():
            _require_known(f"{name}: unknown constant", key, CONSTANTS[name])
            if not isinstance(number, int | float) or not 0 <= number < float("inf"):
                raise problem(
                    f"{name}.{key}: got {shown(number)}, must be a number, at least 0"
                )
        if name in filters:
            raise problem(f"the filter {name!r} is named twice")
        # Constants are sorted: their order must not change the identity of a build.
        numbers: list[tuple[str, float]] = []
        for key, number in sorted(cast("Mapping[str, float]", constants).items()):
            numbers.append((key, float(number)))
        filters[name] = tuple(numbers)
    return tuple(filters.items())


def _require_known(message: str, name: str, names: Mapping[str, object]) -> None:
    """Raise a problem, with the nearest match, unless a name is one of several.

    Args:
        message: Beginning of the message.
        name: Name to check.
        names: Known names.
    """
    if name not in names:
        raise problem(
            f"{message} {name!r}{did_you_mean(name, names)} (known here: {', '.join(names)})"
        )


def _written_filters(value: QualityFilters) -> list[str | dict[str, dict[str, float]]]:
    """Return filters as a configuration has them."""
    written: list[str | dict[str, dict[str, float]]] = []
    for name, constants in value:
        if constants:
            written.append({name: dict(constants)})
        else:
            written.append(name)
    return written


# The JSON Schema of filters: a name, or a mapping of one name to its constants.
_FILTER_NAMES: Final[dict[str, Any]] = {"type": "string", "enum": list(CONSTANTS)}
_OWN_CONSTANTS: Final[dict[str, Any]] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"type": "number", "minimum": 0} for key in constants},
        }
        for name, constants in CONSTANTS.items()
    },
}

Quality = Annotated[
    QualityFilters,
    BeforeValidator(_filters),
    PlainSerializer(_written_filters),
    WithJsonSchema(
        {
            "anyOf": [
                _FILTER_NAMES,
                {"type": "array", "items": {"anyOf": [_FILTER_NAMES, _OWN_CONSTANTS]}},
            ]
        }
    ),
]
"""One name of a filter, or a list of names and of {name: {constant: another value}}."""
