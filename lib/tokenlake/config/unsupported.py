"""Options that some readers of a configuration do not support, with the alternatives.

A configuration is read by builds of texts, by builds of stored datasets, by the row-wise
API, and by a source on its own. An option that is set is never ignored silently. It is
one of these:

- The reader acts on it.
- It describes another use, and its description says so (`load` is for trainers).
- It only affects speed: the value is accepted, and the plan has a note.
- :data:`UNSUPPORTED_OPTIONS` lists it: a value other than the default is an error that
  names the alternative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tokenlake.config.formats import ROW_FORMATS, TOKEN_TYPES, TYPES
from tokenlake.config.stages import KWARGS, CacheStageConfig
from tokenlake.runtime.store.schemes import scheme_of

if TYPE_CHECKING:
    from tokenlake.base.section import Section
    from tokenlake.config.pipeline import PipelineConfig

Reader: TypeAlias = Literal["build", "stored", "rows", "source"]
"""Reader of a configuration; :data:`READERS` has them in words."""

READERS: Final[dict[Reader, str]] = {
    "build": "a build",
    "stored": "a build of stored datasets",
    "rows": "the row-by-row API",
    "source": "a source on its own",
}


@dataclass(frozen=True, slots=True)
class UnsupportedOption:
    """An option that some readers do not support.

    Attributes:
        key: Dotted key ``section.field``; ``datasets.field`` stands for every dataset.
        build: Alternative in a build of texts; empty where the option acts or does no
            harm.
        stored: Alternative in a build of stored datasets; empty for that of `build`.
        rows: Alternative in the row-by-row API.
        source: Alternative in a source on its own; empty for that of `build`.
        also: Values that are accepted beside the default.
        keys: Keys of a mapping that act; the other keys are unsupported.
        is_speed: True if the option only concerns speed, so that another value is
            accepted with a note.
    """

    key: str
    build: str = ""
    stored: str = ""
    rows: str = ""
    source: str = ""
    also: tuple[Any, ...] = ()
    keys: Collection[str] = ()
    is_speed: bool = False

    def judged(self, value: Any) -> Any:
        """Return the part of a value that may be unsupported.

        Of a mapping these are the keys that do not act.
        """
        # Of the arguments of a tokenizer, some have an option here and act.
        if not self.keys or not value:
            return value
        return {key: value[key] for key in value if key not in self.keys}

    def instead(self, reader: Reader) -> str:
        """Return the alternative for a reader; empty if the reader supports the option.

        A build of stored datasets and a source share that of a build.
        """
        alternative: str = getattr(self, reader)
        if not alternative and reader in ("stored", "source"):
            return self.build
        return alternative

    def is_unsupported(self, value: object, default: object) -> bool:
        """Return whether a value is neither the default nor accepted beside it."""
        # Types count, because 1 and True are equal in Python.
        accepted = (default, *self.also)
        for accepted_value in accepted:
            if type(value) is type(accepted_value) and value == accepted_value:
                return False
        return True


# Alternatives that several options share, in the words of a message: "...; instead: ".
_BUILDS: Final = "it is an option of builds (`tokenlake run`, build_dataset)"
_READ: Final = "a source yields rows; save_dataset writes them"
_TOKENIZED: Final = (
    "a source yields rows, not tokens; it is an option of builds and pipelines"
)
_REUSE: Final = (
    "a build always reuses equal units of its store after it has checked them"
)
_PAIRS: Final = f"{_BUILDS}; PreferenceRows makes rows"
_STORED: Final = (
    "it is an option of builds; data_files: STORE/NAME/v1/data/*.parquet reads its rows"
)
_BY_VALUE: Final = f"{_BUILDS}, and in export_version"
_TEXT_TYPES: Final = tuple(name for name in TYPES if name not in TOKEN_TYPES)
_IDS: Final = f"{_BUILDS}; rows of files have their columns of ids as they are (create_source, pack_pre_tokenized)"
_TYPED: Final = (
    f"{_BUILDS}; save_dataset(schema=...) gives types to the columns of rows"
)
_TRAINERS: Final = f"{_BUILDS}; rows are parquet, arrow or jsonl"
_RETRIES: Final = "requests are retried with growing waits until TOKENLAKE_RETRY_SECONDS (120) pass without progress"
_NO_DASK: Final = "storage_options of each dataset; inputs are not read with Dask"
_AS_IS: Final = f"the tokenizer.json is used unchanged (use_fast: true); supported options: {', '.join(KWARGS)}"

# `datasets`: tokenizer and cache, output, records, rows of stored datasets, texts and
# ids. Then the other sections.
UNSUPPORTED_OPTIONS: Final = (
    UnsupportedOption(
        "datasets.tokenizer_kwargs",
        build=_AS_IS,
        rows=_AS_IS,
        also=({}, {"use_fast": True}),
        keys=KWARGS,
    ),
    UnsupportedOption(
        "datasets.cache_path", build="a build resumes and reuses from its store"
    ),
    UnsupportedOption(
        "datasets.cache_enabled",
        stored=_REUSE,
        source="a source on its own caches nothing",
    ),
    # Output. A source writes nothing, and rows have no format of a trainer.
    *(
        UnsupportedOption(f"datasets.{name}", source=_READ)
        for name in ("save_path", "save_format")
    ),
    UnsupportedOption("datasets.save_format", rows=_TRAINERS, also=ROW_FORMATS),
    UnsupportedOption("save.format", rows=_TRAINERS, also=ROW_FORMATS),
    UnsupportedOption("save.append_eos", rows=_TRAINERS),
    UnsupportedOption("datasets.shard_column", rows=_BY_VALUE, source=_BY_VALUE),
    # Records: which are left out, held out, or assigned to splits, and fields that are kept.
    UnsupportedOption("datasets.exclude", rows=_BUILDS, source=_BUILDS),
    UnsupportedOption(
        "datasets.splits", rows=_BUILDS, source=_BUILDS, also=({"train": 1.0},)
    ),
    UnsupportedOption("datasets.eval", rows=_BUILDS, source=_BUILDS),
    UnsupportedOption("datasets.max_bad_fraction", rows=_BUILDS, source=_BUILDS),
    UnsupportedOption("datasets.preference", rows=_PAIRS, source=_PAIRS),
    UnsupportedOption(
        "datasets.additional_fields",
        source="a source yields whole rows; `select_fields` selects fields",
    ),
    UnsupportedOption("datasets.field_types", rows=_TYPED, source=_TYPED),
    UnsupportedOption(
        "datasets.num_shards", source="the files of a source determine its shards"
    ),
    # Stored datasets.
    UnsupportedOption("datasets.dataset", rows=_STORED, source=_STORED),
    UnsupportedOption("datasets.retokenize", rows=_STORED, source=_STORED),
    # Forms of texts and their tokens, and records of ids.
    *(
        UnsupportedOption(f"datasets.{name}", source=_BUILDS)
        for name in ("chat", "prompt", "long_documents")
    ),
    *(
        UnsupportedOption(f"datasets.{name}", source=_TOKENIZED)
        for name in ("truncation_strategy", "truncation_side", "special_tokens_in_text")
    ),
    UnsupportedOption("datasets.fim", rows=_BUILDS, source=_BUILDS),
    UnsupportedOption("datasets.tokens", rows=_IDS, source=_IDS),
    UnsupportedOption("datasets.type", rows=_IDS, source=_IDS, also=_TEXT_TYPES),
    # Reading of the input.
    UnsupportedOption("source.splits", rows=_BUILDS),
    UnsupportedOption("source.max_bad_fraction", rows=_BUILDS),
    *(
        UnsupportedOption(f"source.{name}", build=_RETRIES, rows=_RETRIES)
        for name in ("cloud_max_retries", "cloud_retry_delay")
    ),
    UnsupportedOption(
        "source.dask_storage_options", build=_NO_DASK, rows=_NO_DASK, also=({},)
    ),
    # Speed only: another value is accepted, with a note.
    UnsupportedOption(
        "tokenize.batch_size",
        build="documents are encoded in blocks of at least 4 MiB",
        is_speed=True,
    ),
    UnsupportedOption(
        "tokenize.num_workers",
        build="`--workers N`, the flow's parameter or build_dataset(workers=N) sets the number of workers",
        is_speed=True,
    ),
    # A mixture of rows is drawn in one lane. Only a version has a dataset card.
    UnsupportedOption(
        "mix.lanes", rows="rows are drawn in one lane; it is an option of builds"
    ),
    UnsupportedOption(
        "mix.weights_by",
        rows="weights are of rows; weights by tokens are an option of builds",
    ),
    UnsupportedOption(
        "mix.order",
        rows="rows are drawn in one lane, in one order; it is an option of builds",
    ),
    UnsupportedOption(
        "mix.epochs", rows="total_rows, total_tokens or stop_strategy end a mixture"
    ),
    *(
        UnsupportedOption(f"card.{name}", rows=_BUILDS)
        for name in ("license", "language", "task_categories")
    ),
    *(
        UnsupportedOption(
            f"mix.{name}",
            rows="it is an option of builds and of tl.Mixture",
        )
        for name in (
            "max_repetitions",
            "max_fraction",
            "target_budget",
            "experiment_budget",
        )
    ),
    # Ray runs units, and the row-by-row API has none. A build caches in its store.
    *(
        UnsupportedOption(f"ray.{name}", rows="rows are processed in this process")
        for name in ("enabled", "use_gpu", "object_store_memory")
    ),
    *(
        UnsupportedOption(f"cache.{name}", build=_REUSE)
        for name in CacheStageConfig.model_fields
        if name != "remote_cache_bytes"
    ),
)
"""Options that some readers do not support, each once."""


def unsupported_options(
    config: PipelineConfig, reader: Reader, sections: Collection[str] | None = None
) -> list[str]:
    """Return a message for every option that is set and that a reader does not support.

    Args:
        config: Configuration to check.
        reader: Reader of the configuration.
        sections: Sections to check; None: all of them.
    """
    messages: list[str] = []
    for option in _unused_options(config, reader, sections):
        if not option.is_speed:
            messages.append(
                f"{option.path}: {option.shown} is not available in {READERS[reader]}; instead: {option.instead}"
            )
    # The list of takedowns is read on this machine, unlike all other inputs.
    if sections is None and reader in ("build", "source"):
        for dataset in config.datasets:
            scheme = scheme_of(dataset.exclude or "")
            if scheme:
                messages.append(
                    f"datasets.{dataset.name}.exclude: {scheme}:// is not available in a build; instead: the path of "
                    "a local file"
                )
    return messages


def speed_notes(config: PipelineConfig, reader: Reader) -> list[str]:
    """Return a note for every unused option that only affects speed."""
    notes: list[str] = []
    for option in _unused_options(config, reader, None):
        if option.is_speed:
            notes.append(
                f"{option.path}: {option.shown} is not used by {READERS[reader]} and changes no result; "
                f"{option.instead}"
            )
    return notes


@dataclass(frozen=True, slots=True)
class _UnusedOption:
    """An option with a value that a reader does not act on.

    Attributes:
        path: Key in the configuration, such as ``datasets.books.shard_column``.
        shown: Value as a message shows it. It holds no secret.
        instead: Alternative, or the option that decides.
        is_speed: True if the option only concerns speed.
    """

    path: str
    shown: str
    instead: str
    is_speed: bool


_SECTIONS: Final = (
    "datasets",
    "source",
    "tokenize",
    "mix",
    "save",
    "card",
    "ray",
    "cache",
)
"""Sections of a configuration with options in :data:`UNSUPPORTED_OPTIONS`."""


def _unused_options(
    config: PipelineConfig, reader: Reader, sections: Collection[str] | None
) -> Iterator[_UnusedOption]:
    """Yield the options of a configuration that a reader does not act on.

    Args:
        config: Configuration to check.
        reader: Reader of the configuration.
        sections: Sections to check; None for all of them.
    """
    # `datasets` is a list of sections, each other name one section.
    for name in _SECTIONS:
        if sections is not None and name not in sections:
            continue
        models: Sequence[Section] = [getattr(config, name)]
        if name == "datasets":
            models = config.datasets
        for model in models:
            yield from _unused_in(name, model, reader)


def _unused_in(section: str, model: Section, reader: Reader) -> Iterator[_UnusedOption]:
    """Yield the options of one section that a reader does not act on."""
    path = section
    if section == "datasets":
        path = f"datasets.{getattr(model, 'name', None)}"
    # Only options with another value than their default were set on purpose.
    for option in UNSUPPORTED_OPTIONS:
        owner, _, name = option.key.partition(".")
        instead = option.instead(reader)
        if owner != section or not instead:
            continue
        value = option.judged(getattr(model, name))
        default = type(model).model_fields[name].get_default()
        if not option.is_unsupported(value, default):
            continue
        # The values of a mapping may be secrets; the repr of a secret by itself is
        # masked.
        shown = f"{value!r:.200}"
        if isinstance(value, Mapping) and value:
            shown = f"a mapping with {', '.join(map(repr, value))}"
        yield _UnusedOption(f"{path}.{name}", shown, instead, option.is_speed)
