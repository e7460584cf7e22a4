"""The sections of a configuration: reading, tokenizing, caching, packing, loading, saving, Ray and reports; and the
published filters of quality, which `clean` and the transforms of rows name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, cast

from annotated_types import Ge
from pydantic import BeforeValidator, PlainSerializer, Strict, WithJsonSchema, WrapValidator, model_validator

from tokenlake.base.checks import did_you_mean
from tokenlake.base.section import (
    Count,
    Fraction,
    Length,
    Options,
    Path,
    Positive,
    Secret,
    Section,
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
"""What the text of a special token inside a document becomes: plain text, the token, or a bad record."""

LongDocuments = Literal["keep", "truncate", "split", "drop"]
"""What becomes of a document of more than `max_length` tokens."""

TruncationStrategy = Literal["simple", "word", "sentence", "smart"]
"""Where a document is cut: at a token, or between words or sentences; smart: the nicest that keeps 80% of the room."""

TruncationSide = Literal["right", "left"]
"""The side of a document that is cut away."""

Padding = Annotated[
    Literal[False, "max_length", "longest", "do_not_pad"],
    BeforeValidator(lambda value: "longest" if value is True else value),
]
SpecialTokenName = Literal[
    "bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"
]

DEFAULT_MAX_LENGTH: Final = 2048

KWARGS: Final = {"model_max_length": "max_length"} | {
    name: name
    for name in (
        "max_length",
        "padding",
        "padding_side",
        "truncation",
        "add_special_tokens",
        "return_attention_mask",
        "trust_remote_code",
    )
}
"""Arguments of transformers' tokenizers that act here, to the option of :class:`TokenizerConfig` that they are."""


class TokenizerConfig(Section):
    """A tokenizer and its options. A plain text in the place of this section is its `name_or_path`."""

    name_or_path: Path
    """Hub id, directory, or tokenizer.json file."""

    max_length: Length | None = None
    """Most tokens of a document, special ones too, unless long ones are kept; null: `tokenize.max_length`."""

    truncation: Switch | None = None
    """Cut documents to `max_length` (accounted); null: no when packing follows, else yes."""

    padding: Padding = False
    """Pad unpacked rows to `max_length`, or to the longest of their row group (also: true); packed rows are full."""

    padding_side: Literal["left", "right"] | None = None
    """Side of the padding; null: as tokenizer_config.json says, else right."""

    add_special_tokens: Switch = True
    """Put the tokenizer's own BOS/EOS around every document."""

    special_tokens: dict[SpecialTokenName, Text] | None = None
    """Other named tokens than tokenizer_config.json has, such as {pad_token: <unk>}; tokens of the vocabulary."""

    return_attention_mask: Switch = True
    """Store `attention_mask` (1 document, 0 padding) in unpacked rows, where this is written out or rows are padded."""

    trust_remote_code: Switch = False
    """Allow code of the tokenizer's repository to run; a build reads tokenizer.json and never runs any."""

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name: values of JSON."""
        return self.model_dump(mode="json")


def _tokenizer(value: object, _handler: object) -> str | TokenizerConfig:
    if isinstance(value, TokenizerConfig):
        return value
    if isinstance(value, Mapping):
        return TokenizerConfig.model_validate(dict(cast("Mapping[str, Any]", value)))
    text = as_text(value)
    if isinstance(text, str) and text and "\x00" not in text:
        return text
    raise problem(f"got {shown(value)}, must be a Hub id, a path, or a mapping with `name_or_path`")


TokenizerChoice = Annotated[str | TokenizerConfig, WrapValidator(_tokenizer)]
"""A Hub id or path, or a whole :class:`TokenizerConfig`."""


BadRecordPolicy = Literal["fail", "quarantine"]


class SourceStageConfig(Section):
    """Section `source`. A dataset can override `on_bad_record`, `max_bad_fraction` and `splits`."""

    unit_size: Size | None = None
    """Input bytes of one unit of work of a build, the grain of resuming and of reuse; null: the first version of a
    dataset chooses 8 to 128 MiB by the size of its inputs, so that 64 workers have work, and later versions keep it."""

    max_record_bytes: Size = 256 * MIB
    """A longer record is a bad record."""

    max_expansion: Positive = 1000.0
    """A compressed file that unfolds to more than 256 MiB and to more than so many times its own bytes is damaged."""

    on_bad_record: BadRecordPolicy = "fail"
    """fail: the first bad record ends the build. quarantine: set it aside and count it."""

    max_bad_fraction: Fraction = 0.001
    """With quarantine, the share of bad records above which the build fails after all."""

    splits: Splits = {"train": 1.0}  # noqa: RUF012 (pydantic copies defaults)
    """Split name to fraction of the documents, by a hash of its identity; stable when data is added."""

    hash_threads: Count = 2
    """Threads that hash the input files; changes nothing in the result."""

    streaming: Switch = True
    """Off: download files of the Hub before they are read, as the pipeline's own `streaming`; not used by a build."""

    cloud_max_retries: Count | None = None
    """Refused: requests are tried again as long as TOKENLAKE_RETRY_SECONDS says."""

    cloud_retry_delay: Positive | None = None
    """Refused: waits between tries grow by themselves."""

    dask_storage_options: Options | None = None
    """Refused: `datasets.storage_options` are those of all who read."""


class TokenizeStageConfig(Section):
    """Section `tokenize`."""

    default_tokenizer: TokenizerChoice | None = None
    """Tokenizer of the datasets that name none; before the pipeline's `default_tokenizer`."""

    max_length: Length = DEFAULT_MAX_LENGTH
    """Most tokens of a document, unless long ones are kept; a tokenizer's own `max_length` goes first."""

    batch_size: Count = 1000
    """Documents per call in the row-wise API. It only concerns speed: a build works on blocks of bytes, accepts any
    value and says in a note that it does not use it."""

    num_workers: Count = 4
    """Threads of the row-wise API that tokenize ahead, 1 for none. It only concerns speed: a build accepts any value
    and says in a note that it does not use it, because its workers are an option of the run."""

    cache_tokenized: Switch | None = None
    """Keep the tokens of each source, in a build as a dataset of its own, from which rows are mixed or packed; null:
    only when mixing."""

    remove_columns: tuple[Text, ...] | None = None
    """Columns to drop after tokenizing; a build keeps none but `additional_fields`, and refuses one in both."""

    engine: Literal["auto", "words", "segments", "gigatoken", "tokenizers"] = "auto"
    """auto: the fastest engine that is proven exact for the tokenizer (words and segments for large inputs), else the
    reference, tokenizers. Never changes the ids."""

    special_tokens_in_text: SpecialTokensInText = "literal"
    """A special token's text in a document: literal (plain text; in conversations fail), encode (the token), fail (a
    bad record)."""

    long_documents: LongDocuments | None = None
    """Documents above max_length: keep, truncate, split, drop; null: as `truncation` says (keep when packing)."""

    truncation_strategy: TruncationStrategy | None = None
    """Place of the cut: simple (at a token), word, sentence, smart (the nicest that keeps 80%); null: simple."""

    truncation_side: TruncationSide | None = None
    """The side that truncation cuts away: right (the end of a document) or left (its beginning); null: right."""


class CacheStageConfig(Section):
    """Section `cache`: tokens that the row-wise API keeps, and blocks of remote inputs that all keep. A build keeps and
    reuses what it made in its store, and refuses the options about tokens."""

    enabled: Switch = True
    """Let the row-wise API keep tokens: those of datasets with a `cache_path`, and of all where another option about
    them or `tokenize.cache_tokenized` is written out."""

    cache_type: Literal["memory", "disk", "hierarchical"] = "hierarchical"
    """Layers: in memory, on disk, or in memory before disk."""

    cache_dir: Path | None = None
    """Directory of the disk cache; null: the user's cache directory. A dataset's `cache_path` goes before it."""

    memory_cache_size: Count = 100
    """Most entries kept in memory, of about 4 MiB each."""

    disk_cache_expiry: Count | None = 86400
    """Seconds after which an entry is made anew; null: never."""

    disk_cache_bytes: Size | None = None
    """Most bytes kept on disk, those used last; null: any number."""

    compression: Literal["none", "gzip", "lz4", "zstd"] = "none"
    """Compression of entries on disk."""

    hash_fn: Literal["content", "path", "combined"] = "combined"
    """What tells that an input is the same: `content`, its sha256, wherever it lies; `path`, its path with its size and
    times, without reading it; `combined`, both."""

    remote_cache_bytes: Size | None = None
    """Most bytes of blocks of remote inputs that this machine keeps, in its cache directory, on every road; null: as
    TOKENLAKE_REMOTE_CACHE says, else none. It changes no byte of what is made."""

    @property
    def keeps_tokens(self) -> bool:
        """True if an option about tokens is set explicitly."""
        return bool(self.model_fields_set - {"remote_cache_bytes"})


class PackStageConfig(Section):
    """Section `pack`."""

    enabled: Switch = False
    """Pack documents into rows of `seq_length` tokens; off: one row per document."""

    seq_length: Length = 2048
    """Tokens of a row."""

    eos_token_id: TokenId | None = None
    """Token after each document; null: the tokenizer's EOS."""

    pad_token_id: TokenId | None = None
    """Token in unfilled slots; null: the tokenizer's padding, else EOS."""

    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] = "greedy"
    """greedy: in order, a document goes on in the next row; no padding. pool: each document goes to the open row that
    it fills best, and is cut where it fits none. first_fit and best_fit never cut a document that fits a row; a longer
    one is whole rows and a rest, and best_fit may cut a rest once more to fill gaps. No strategy loses a token."""

    num_packers: Count = 4
    """Open rows of the strategy `pool`."""

    max_segments: Count | None = None
    """At most so many pieces of documents in a row, which is padded then; null: any number."""

    include_segment_ids: Switch = True
    """Have readers yield `segment_ids` (1, 2, 3, ... per document of a row, 0 for padding)."""

    shuffle_packed: Switch | None = None
    """Shuffle whole rows inside each window, by the pipeline's seed (null: 0). null: yes where the strategy reorders
    documents anyway, no for `greedy`, whose rows come in the order of the input."""

    shuffle_buffer_factor: Count = 10
    """In the row-wise API `shuffle_packed` acts on `shuffle_buffer_factor * num_packers` rows at a time; not used by a
    build, which shuffles whole windows."""

    window_tokens: Count = 2**24
    """Tokens inside which documents, and rows where they are shuffled, may be reordered; part of the result's identity.
    Where a unit writes several files at a time (`save.num_shards`), they share it."""

    store_segment_ids: Switch = False
    """Write `segment_ids` as a column too; readers derive them anyway, and the column costs 20% more CPU."""

    @property
    def shuffles(self) -> bool:
        """True if rows are shuffled."""
        return self.strategy != "greedy" if self.shuffle_packed is None else self.shuffle_packed

    @model_validator(mode="after")
    def _window_holds_a_row(self) -> Self:
        if self.window_tokens < self.seq_length:
            raise problem(
                f"window_tokens ({self.window_tokens}) is below seq_length ({self.seq_length}): "
                "a window must hold at least one row"
            )
        return self


class LoadStageConfig(Section):
    """Section `load`; it configures the reading side and is not used by a build."""

    batch_size: Count = 8
    """Rows of a batch; not used by a build."""

    prefetch_enabled: Switch = True
    """Prepare batches ahead; not used by a build."""

    prefetch_workers: Count = 2
    """Threads that prepare batches; not used by a build."""

    prefetch_buffer_size: Count = 4
    """Batches kept ready; not used by a build."""

    shuffle_buffer_size: Count | None = None
    """Rows of a shuffle buffer; null: no shuffle; not used by a build."""

    drop_last: Switch = True
    """Leave out a last batch that is not full; not used by a build."""

    prefetch_to_device: Switch = False
    """Move prefetched batches to the devices; not used by a build."""


class SaveStageConfig(Section):
    """Section `save`."""

    hidden_values = frozenset({"hub_token", "storage_options"})

    enabled: Switch = False
    """Have the row-wise API write files; not used by a build, which always writes its store."""

    output_dir: Path | None = None
    """Store of a build, a path or s3:// or gs://; null: $TOKENLAKE_STORE, else ./artifacts (row-wise API: ./output)."""

    storage_options: Options | None = None
    """Options of the store's file system; credentials as {env: NAME}; null: $TOKENLAKE_STORE_OPTIONS."""

    format: SaveFormat = "parquet"
    """Format of the files: of rows (parquet, arrow, jsonl), or in builds of a trainer (howto/export_formats.md). A
    build's store holds zstd Parquet; another format or `compression` is an export beside it, in
    output_dir/_exports/NAME/vN."""

    num_shards: Count | None = None
    """Exactly this many files for each split, whatever `max_shard_size` says; null: as many as that makes."""

    compression: Literal["none", "gzip", "lz4", "zstd"] | None = None
    """Compression of the files; null: zstd in Parquet, else none."""

    max_shard_size: Size = 500 * MIB
    """Most bytes of a file; with `num_shards` no file is ended by its size. In a build's store a file ends at the first
    row group past it."""

    append_eos: Switch = False
    """End each document with EOS in exports that have a format of a trainer; packed rows have EOS already."""

    overwrite: Switch = False
    """Replace data files that lie where the row-wise API saves, or at a `save_path`; versions are never overwritten."""

    push_to_hub: Switch = False
    """Upload the result to the Hugging Face Hub: of a build the version, of the row-wise API the saved files."""

    hub_repo_id: Text | None = None
    """Repository on the Hub, org/name; acts with `push_to_hub`."""

    hub_private: Switch = True
    """Create the repository as a private one; acts with `push_to_hub`."""

    hub_token: Secret | None = None
    """Token for the Hub; acts with `push_to_hub`. In files {env: NAME} or {block: NAME}, never the token."""


class RayConfig(Section):
    """Section `ray`."""

    enabled: Switch = False
    """Run the units of a build on Ray, as `--engine ray` does."""

    num_workers: Count = 4
    """Workers on the cluster; acts with `enabled`."""

    resources_per_worker: dict[Text, Annotated[float, Strict(), Ge(0.0)]] | None = None
    """Resources that each worker reserves, such as {CPU: 2}; acts with `enabled`."""

    use_gpu: Switch = False
    """Reserve a GPU for each worker; acts with `enabled`."""

    object_store_memory: Size | None = None
    """Bytes of the object store of a cluster that the build starts; null: as Ray decides. Acts with `enabled`."""


class ObservabilityConfig(Section):
    """Section `observability`: display, log lines and metrics of running work. It changes no byte of the result."""

    progress_enabled: Switch = True
    """Show progress. A program's own build or pipeline shows it where this section is written at all."""

    progress_type: Literal["rich", "tqdm", "json", "none"] = "rich"
    """Form of it: bars on a terminal and lines elsewhere, a bar of tqdm, a JSON object a line, or messages alone."""

    metrics_enabled: Switch = True
    """Export the figures of a run, where `metrics_file` or `opentelemetry` says so."""

    metrics_file: Path | None = None
    """File that gets the figures every 15 seconds, in Prometheus' text format; its name ends in .prom, usually."""

    opentelemetry: Switch = False
    """Hand the figures to OpenTelemetry's meter provider, which the program has set up."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe message that is shown; units that finish are DEBUG, retries WARNING."""

    log_interval: Count = 100
    """Units of a build, or batches, between two lines of progress, of which there is one every 10 seconds anyway."""


def _filters(value: object) -> object:
    """Return (name, constants) of each filter; a text alone is a filter as it was published."""
    filters: dict[str, tuple[tuple[str, float], ...]] = {}
    for entry in cast("list[object]", value if isinstance(value, list | tuple) else [value]):
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
            raise problem(f"{name}: got {shown(constants)}, must be a mapping of constants to numbers")
        _require_known("unknown filter", name, CONSTANTS)
        for key, number in cast("Mapping[str, Any]", constants).items():
            _require_known(f"{name}: unknown constant", key, CONSTANTS[name])
            if not isinstance(number, int | float) or not 0 <= number < float("inf"):
                raise problem(f"{name}.{key}: got {shown(number)}, must be a number, at least 0")
        if name in filters:
            raise problem(f"the filter {name!r} is named twice")
        numbers = cast("Mapping[str, float]", constants)
        filters[name] = tuple(sorted((key, float(number)) for key, number in numbers.items()))
    return tuple(filters.items())


def _require_known(message: str, name: str, names: Mapping[str, object]) -> None:
    """Raise a problem, with the nearest match, unless a name is one of several.

    Args:
        message: Beginning of the message.
        name: Name to check.
        names: Known names.
    """
    if name not in names:
        raise problem(f"{message} {name!r}{did_you_mean(name, names)} (known here: {', '.join(names)})")


def _written_filters(value: QualityFilters) -> list[str | dict[str, dict[str, float]]]:
    """Return filters as a configuration has them."""
    return [{name: dict(constants)} if constants else name for name, constants in value]


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
        {"anyOf": [_FILTER_NAMES, {"type": "array", "items": {"anyOf": [_FILTER_NAMES, _OWN_CONSTANTS]}}]}
    ),
]
"""One name of a filter, or a list of names and of {name: {constant: another value}}."""
