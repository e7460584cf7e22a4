"""What a valid configuration may still not ask: contradictions, and options that a road does not act on.

Nothing is ignored silently. An option either acts, or describes another side and says so in its description (`load` is
for trainers), or stands in :data:`REFUSALS`: then a value beside its default is refused by the roads that have a text
for it. Where the option only concerns speed, the value is accepted and the plan has a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tokenlake.base.columns import RESERVED, columns_for
from tokenlake.base.section import MAX_SPLIT_NAME
from tokenlake.base.section_file import problems_error
from tokenlake.config.stages import KWARGS, CacheStageConfig
from tokenlake.errors import ConfigError
from tokenlake.runtime.store.schemes import OBJECT_STORES, STORE_URL, is_local, scheme_of

if TYPE_CHECKING:
    from tokenlake.base.section import Section
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import TokenizerConfig, TokenizeStageConfig

Road: TypeAlias = Literal["build", "stored", "rows", "source"]
"""Who reads a configuration: builds of texts, builds of stored datasets, the row-by-row API, a source on its own."""

ROADS: Final[dict[Road, str]] = {
    "build": "a build",
    "stored": "a build of stored datasets",
    "rows": "the row-by-row API",
    "source": "a source on its own",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One option.

    Attributes:
        key: ``section.field``; ``datasets.field`` is of every dataset.
        build, stored, rows, source: what to use instead there; "" where the option acts or does no harm.
        also: values that are fine beside the default.
        keys: of a mapping, that act; what is beside them counts.
        is_speed: the option only concerns speed, so that another value is accepted with a note.
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
        """Return what counts of a value."""
        return {key: value[key] for key in value if key not in self.keys} if self.keys and value else value

    def instead(self, road: Road) -> str:
        """Return what to use on a road; a build of stored datasets and a source refuse what a build does, too."""
        own: str = getattr(self, road)
        return own or (self.build if road in ("stored", "source") else "")

    def refuses(self, value: object, default: object) -> bool:
        """Return whether a value is neither the default nor fine; 0 is not False here."""
        return not any(type(value) is type(fine) and value == fine for fine in (default, *self.also))


_BUILDS: Final = "it acts in builds (`tokenlake run`, build_dataset)"
_READ: Final = "a source yields rows; save_dataset writes them"
_TOKENIZED: Final = "a source yields rows, not tokens; builds and pipelines act on it"
_REUSE: Final = "a build always reuses equal units of its store, after checking them"
_PAIRS: Final = f"{_BUILDS}; PreferenceRows makes rows"
_STORED: Final = "builds take it; data_files: STORE/NAME/v1/data/*.parquet reads its rows"
_BY_VALUE: Final = f"{_BUILDS}, and in export_version"
_TYPED: Final = f"{_BUILDS}; save_dataset(schema=...) gives types to the columns of rows"
_RETRIES: Final = (
    "requests are tried again, with growing waits, for TOKENLAKE_RETRY_SECONDS without progress (120)"
)
_NO_DASK: Final = "storage_options of each dataset; nothing here reads by Dask"
_AS_IS: Final = f"the tokenizer.json is used as it is (use_fast: true), and these act: {', '.join(KWARGS)}"

REFUSALS: Final = (
    Refusal(
        "datasets.tokenizer_kwargs", build=_AS_IS, rows=_AS_IS, also=({}, {"use_fast": True}), keys=KWARGS
    ),
    Refusal("datasets.cache_path", build="a build resumes and reuses from its store"),
    Refusal("datasets.cache_enabled", stored=_REUSE, source="a source on its own keeps nothing"),
    *(Refusal(f"datasets.{name}", source=_READ) for name in ("save_path", "save_format")),
    Refusal("datasets.shard_column", rows=_BY_VALUE, source=_BY_VALUE),
    Refusal("datasets.exclude", rows=_BUILDS, source=_BUILDS),
    Refusal("datasets.splits", rows=_BUILDS, source=_BUILDS, also=({"train": 1.0},)),
    Refusal("datasets.eval", rows=_BUILDS, source=_BUILDS),
    Refusal("datasets.max_bad_fraction", rows=_BUILDS, source=_BUILDS),
    Refusal("datasets.preference", rows=_PAIRS, source=_PAIRS),
    Refusal(
        "datasets.additional_fields", source="a source yields whole rows; `select_fields` selects fields"
    ),
    Refusal("datasets.field_types", rows=_TYPED, source=_TYPED),
    Refusal("datasets.num_shards", source="a source has the shards that its files make"),
    Refusal("datasets.dataset", rows=_STORED, source=_STORED),
    Refusal("datasets.retokenize", rows=_STORED, source=_STORED),
    *(Refusal(f"datasets.{name}", source=_BUILDS) for name in ("chat", "prompt", "long_documents")),
    *(
        Refusal(f"datasets.{name}", source=_TOKENIZED)
        for name in ("truncation_strategy", "truncation_side", "special_tokens_in_text")
    ),
    Refusal("datasets.fim", rows=_BUILDS, source=_BUILDS),
    Refusal("source.splits", rows=_BUILDS),
    Refusal("source.max_bad_fraction", rows=_BUILDS),
    *(
        Refusal(f"source.{name}", build=_RETRIES, rows=_RETRIES)
        for name in ("cloud_max_retries", "cloud_retry_delay")
    ),
    Refusal("source.dask_storage_options", build=_NO_DASK, rows=_NO_DASK, also=({},)),
    Refusal("tokenize.batch_size", build="documents are encoded in blocks of at least 4 MiB", is_speed=True),
    Refusal(
        "tokenize.num_workers",
        build="`--workers N`, the flow's parameter or build_dataset(workers=N) sets the number of workers",
        is_speed=True,
    ),
    Refusal("mix.lanes", rows="rows are drawn in one lane; lanes act where a mixture is built"),
    Refusal("mix.weights_by", rows="weights are of rows; tokens act where a mixture is built"),
    Refusal("mix.order", rows="rows are drawn in one lane, in one order; it acts where a mixture is built"),
    Refusal("mix.epochs", rows="total_rows, total_tokens or stop_strategy end a mixture"),
    *(Refusal(f"card.{name}", rows=_BUILDS) for name in ("license", "language", "task_categories")),
    *(
        Refusal(
            f"mix.{name}",
            rows="rows are drawn as they come; it acts where a mixture is built, and in tl.Mixture",
        )
        for name in ("max_repetitions", "max_fraction", "target_budget", "experiment_budget")
    ),
    *(
        Refusal(f"ray.{name}", rows="rows are made in this process")
        for name in ("enabled", "use_gpu", "object_store_memory")
    ),
    *(
        Refusal(f"cache.{name}", build=_REUSE)
        for name in CacheStageConfig.model_fields
        if name != "remote_cache_bytes"
    ),
)
"""Every option that some road refuses, once."""


def refused(config: PipelineConfig, road: Road, sections: Collection[str] | None = None) -> list[str]:
    """Return a message for every option that is set and that a road refuses.

    Args:
        sections: look at these alone; None: at all.
    """
    messages = [
        f"{option.path}: {option.shown} is not available in {ROADS[road]}; instead: {option.instead}"
        for option in _unused_options(config, road, sections)
        if not option.is_speed
    ]
    if sections is None and road in ("build", "source"):
        messages.extend(
            f"datasets.{dataset.name}.exclude: {scheme}:// is not available in a build; instead: the path of a local "
            "file"
            for dataset in config.datasets
            if (scheme := scheme_of(dataset.exclude or ""))
        )
    return messages


def speed_notes(config: PipelineConfig, road: Road) -> list[str]:
    """Return a note for every option that is set, only concerns speed, and that a road does not use."""
    return [
        f"{option.path}: {option.shown} is not used by {ROADS[road]} and changes no result; {option.instead}"
        for option in _unused_options(config, road, None)
        if option.is_speed
    ]


@dataclass(frozen=True, slots=True)
class _UnusedOption:
    """An option with a value that a road does not act on.

    Attributes:
        path: Key in the configuration, such as ``datasets.books.shard_column``.
        shown: Value as a message shows it. It holds no secret.
        instead: Text that says what to use, or what decides.
        is_speed: Whether the option only concerns speed.
    """

    path: str
    shown: str
    instead: str
    is_speed: bool


def _unused_options(
    config: PipelineConfig, road: Road, sections: Collection[str] | None
) -> Iterator[_UnusedOption]:
    for name in ("datasets", "source", "tokenize", "mix", "save", "card", "ray", "cache"):
        if sections is None or name in sections:
            models: Sequence[Section] = config.datasets if name == "datasets" else [getattr(config, name)]
            for model in models:
                yield from _unused_in(name, model, road)


def _unused_in(section: str, model: Section, road: Road) -> Iterator[_UnusedOption]:
    path = f"datasets.{getattr(model, 'name', None)}" if section == "datasets" else section
    for refusal in REFUSALS:
        owner, _, name = refusal.key.partition(".")
        if owner != section or not (instead := refusal.instead(road)):
            continue
        value = refusal.judged(getattr(model, name))
        if refusal.refuses(value, type(model).model_fields[name].get_default()):
            # What options hold may be a secret; a secret's own repr is masked.
            keys = f"a mapping with {', '.join(map(repr, value))}" if isinstance(value, Mapping) else ""
            yield _UnusedOption(f"{path}.{name}", keys or f"{value!r:.200}", instead, refusal.is_speed)


def raise_problems(kind: type[ConfigError], problems: list[str]) -> None:
    """Raise one error that lists all problems, if there is any."""
    if problems:
        raise problems_error(kind, problems)


def build_problems(config: PipelineConfig) -> list[str]:
    """Return what keeps a configuration from being a build, one message each."""
    problems = config.validate()
    if config.name is None:
        problems.append(
            "name: missing. A build needs a name for its dataset: lower-case letters, digits, '.', '_', '-', "
            "at most 64. (The default is the stem of the configuration's file, where that is such a name.)"
        )
    written = sorted(config.pack.model_fields_set)
    if written and not config.pack.enabled and "enabled" not in written:
        problems.append(
            f"pack.{written[0]}: set, but packing is off; write pack.enabled: true, or false to say so"
        )
    if not config.is_text_build:
        return [*problems, *_stored_problems(config)]
    for dataset in config.datasets:
        path, mode, form = f"datasets.{dataset.name}", dataset.text_mode, dataset.save_format
        if config.tokenizer_of(dataset) is None:
            problems.append(
                f"{path}.tokenizer: missing, and neither tokenize.default_tokenizer nor default_tokenizer is set; "
                "write a Hub id, a directory or a tokenizer.json file"
            )
        if mode != "document" and dataset.type in ("jsonl", "parquet"):
            problems.append(f"{path}.text_mode: {mode!r} is for text files, but type is {dataset.type!r}")
        if form not in (None, config.save.format) and not dataset.save_path:
            problems.append(
                f"{path}.save_format: {form!r}, but there is no save_path; a build writes a source's rows alone there: "
                "set it, or leave both out"
            )
        problems += output_problems(config, dataset, config.tokenizer_of(dataset))
    total = config.save.num_shards
    own = [each.num_shards for each in config.datasets if each.num_shards is not None]
    others = len(config.datasets) - len(own)
    needed = sum(own) + others
    if total is not None and (total < needed if others else total != needed):
        problems.append(
            f"save.num_shards: {total}, but the datasets need {'at least' if others else 'exactly'} {needed}: their "
            f"own num_shards come to {sum(own)}, and each of the {others} without a number needs a file of its own"
        )
    problems += [*_eval_problems(config), *_fim_problems(config)]
    return [*problems, *truncation_problems(config), *_preference_problems(config)]


def truncation_problems(config: PipelineConfig) -> list[str]:
    """Return where the policy contradicts itself, and options of truncation that would do nothing."""
    found: list[str] = []
    for dataset in config.datasets:
        path = f"datasets.{dataset.name}"
        policy, truncation = config.long_documents_of(dataset), config.truncation_of(dataset)
        if truncation is not None and truncation != (policy == "truncate"):
            found.append(
                f"{path if dataset.long_documents else 'tokenize'}.long_documents: {policy!r}, but the tokenizer of "
                f"{dataset.name!r} has truncation: {str(truncation).lower()}; leave one of them out"
            )
        if policy != "truncate":
            found += _idle(path, dataset, f"its long documents are not truncated ({policy})")
    if any(config.long_documents_of(dataset) == "truncate" for dataset in config.datasets):
        return found
    return found + _idle("tokenize", config.tokenize, "no dataset's documents are truncated")


def _idle(path: str, section: DatasetConfig | TokenizeStageConfig, why: str) -> list[str]:
    return [
        f"{path}.{name}: set, but {why}; write long_documents: truncate, or leave it out"
        for name in ("truncation_strategy", "truncation_side")
        if getattr(section, name) is not None
    ]


def output_problems(
    config: PipelineConfig, dataset: DatasetConfig, choice: str | TokenizerConfig | None
) -> list[str]:
    """Return what is wrong with a dataset's kept fields and padding."""
    path = f"datasets.{dataset.name}"
    problems = list(_kept_problems(config, dataset, f"{path}.additional_fields"))
    if choice is None or isinstance(choice, str):
        return problems
    padded, side = choice.padding in ("max_length", "longest"), choice.padding_side
    if padded and (config.pack.enabled or dataset.preference):
        problems.append(
            f"{path}.tokenizer.padding: {choice.padding!r} is for unpacked documents; packed rows are full, and the "
            "trainers of preferences pad rows themselves: write padding: false"
        )
    elif padded and not choice.return_attention_mask:
        problems.append(
            f"{path}.tokenizer.return_attention_mask: false, but rows are padded, and only the mask says what of a row "
            "is padding; leave it out"
        )
    elif side is not None and not padded:
        why = f"{side!r}, but nothing is padded; set padding, or leave it out"
        problems.append(f"{path}.tokenizer.padding_side: {why}")
    return problems


def _kept_problems(config: PipelineConfig, dataset: DatasetConfig, path: str) -> Iterator[str]:
    fields, preference = dataset.additional_fields or (), dataset.preference
    for name in dataset.field_types or ():
        if name not in fields:
            kept = ", ".join(map(repr, fields)) or "none"
            yield (
                f"datasets.{dataset.name}.field_types: {name!r} is no kept field (additional_fields: {kept}); add it "
                "there, or leave it out here"
            )
    if fields and config.pack.enabled:
        yield (
            f"{path}: {', '.join(map(repr, fields))} cannot be kept beside packed rows, which hold pieces of several "
            "documents; write pack.enabled: false, or find the record again by `documents.file` and `position`"
        )
        return
    taken = set(RESERVED)
    if preference is not None:
        taken |= {column.name for column in columns_for(preference.method, preference.trainer)}
    for name in fields:
        if name.lower() in taken:
            yield (
                f"{path}: {name!r} is a column that every row has already; rename the field: "
                f"format_fields: {{{name}: another_name}}, and keep that"
            )
        elif name in (config.tokenize.remove_columns or ()):
            yield f"{path}: {name!r} is to be kept, and tokenize.remove_columns says to drop it"
    if len({name.lower() for name in fields}) < len(set(fields)):
        yield f"{path}: two names differ in upper and lower case only, which SQL cannot tell apart"


def _eval_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield what keeps held-out documents from being a split of their own."""
    taken = dict.fromkeys(config.source.splits, "source.splits")
    for dataset in config.datasets:
        taken |= dict.fromkeys(dataset.splits or (), f"datasets.{dataset.name}.splits")
    for dataset in config.datasets:
        if dataset.eval is None:
            continue
        path, split = f"datasets.{dataset.name}.eval", dataset.eval_split
        if len(split) > MAX_SPLIT_NAME:
            yield (
                f"{path}: its split would be called {split!r}, of {len(split)} letters; expected at most "
                f"{MAX_SPLIT_NAME}: shorten the name of the dataset"
            )
        if split in taken:
            yield f"{path}: its split {split!r} is called like one of {taken[split]}; rename one of them"
        taken[split] = path


_LEAST_CONTEXT: Final = 64  # ids of a row of which pieces that are infilled leave something


def _fim_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield what contradicts a section `fim`."""
    for dataset in config.datasets:
        if dataset.fim is None:
            continue
        path, pack, policy = f"datasets.{dataset.name}", config.pack, config.long_documents_of(dataset)
        others = [name for name in ("chat", "prompt", "preference") if getattr(dataset, name) is not None]
        if others:
            yield f"{path}.fim: set beside `{others[0]}`, but only plain texts can be infilled; leave one of them out"
        if dataset.fim.level == "document":
            if policy != "keep":
                yield (
                    f"{path}.fim.level: document, but long documents are not kept whole ({policy}); write "
                    "long_documents: keep"
                )
        elif not pack.enabled or pack.strategy not in ("first_fit", "best_fit"):
            yield (
                f"{path}.fim.level: context, but no rows are made here that hold pieces whole; write pack: {{enabled: "
                "true, strategy: best_fit}} (or first_fit), or level: document, also where a mixture packs later"
            )
        elif policy != "keep":
            yield (
                f"{path}.long_documents: {policy}, but fim.level: context cuts documents into pieces that fit into a "
                "row; leave it out"
            )
        elif pack.seq_length < _LEAST_CONTEXT:
            yield (
                f"pack.seq_length: {pack.seq_length}; expected at least {_LEAST_CONTEXT} with fim.level: context of "
                f"datasets.{dataset.name}"
            )


def _preference_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield what contradicts a preference section; nothing where no dataset has one."""
    asked = {dataset.name: dataset.preference for dataset in config.datasets}
    if any(asked.values()) and config.pack.enabled:
        yield (
            "pack.enabled: true, but a dataset has a section `preference`, whose rows are pairs, not one stretch of "
            "tokens; write pack.enabled: false"
        )
    kinds = {
        name: f"{each.method} for {each.trainer}" if each else "no preference" for name, each in asked.items()
    }
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        yield (
            f"datasets: their rows would have different columns ({told}); all datasets of a build need the same "
            "preference.method and preference.trainer: make one build of each kind"
        )
    for dataset in (dataset for dataset in config.datasets if dataset.preference is not None):
        path = f"datasets.{dataset.name}"
        if (dataset.long_documents or config.tokenize.long_documents) == "split":
            yield (
                f"{path}.long_documents: split, but a pair cannot be cut into several; write keep, truncate (cuts the "
                "answers' ends) or drop"
            )
        for where, section in ((path, dataset), ("tokenize", config.tokenize)):
            for name, usual in (("truncation_strategy", "simple"), ("truncation_side", "right")):
                if (value := getattr(section, name)) not in (None, usual):
                    yield f"{where}.{name}: {value}, but of preferences only the answers' ends are cut: leave it out"
        for other in (name for name in ("chat", "prompt") if getattr(dataset, name) is not None):
            yield (
                f"{path}.{other}: set beside `preference`; its conversations are rendered by the tokenizer's own chat "
                "template, and its fields are named in `preference`"
            )


def _stored_problems(config: PipelineConfig) -> Iterator[str]:
    """Yield what a build from stored datasets needs beyond a valid configuration."""
    for dataset in config.datasets:
        path = f"datasets.{dataset.name}"
        if dataset.dataset is None:
            yield f"{path}.data_files: is text, which is tokenized first, see tokenlake.config.resolve"
        elif dataset.retokenize and config.tokenizer_of(dataset) is None:
            yield f"{path}.retokenize: true, but there is no tokenizer: set it, or default_tokenizer"
    mix = config.mix
    if (
        config.mixes
        and mix.stop_strategy == "restart"
        and not (mix.total_rows or mix.total_tokens or mix.epochs)
    ):
        yield (
            "mix.stop_strategy: restart never ends; set mix.total_tokens, mix.total_rows or mix.epochs, or "
            "stop_strategy: first_exhausted or all_exhausted"
        )
    weighed = {
        f"mix.weight_schedule (step {point.step})": point.weights for point in mix.weight_schedule or ()
    }
    if not weighed and mix.weights is not None:
        weighed = {"mix.weights": mix.weights}
    for path, weights in weighed.items():
        if absent := sorted({dataset.name or "" for dataset in config.datasets} - weights.keys()):
            yield f"{path}: has no weight for {', '.join(absent)}; give every dataset one (0 leaves it out)"


def store_problems(config: PipelineConfig, store: str) -> list[str]:
    """Return what cannot be: credentials in the store's URL, which is written down, and options without a use."""
    found = STORE_URL.match(store)
    if found and ("@" in found[2] or "?" in found[3]):
        what = "a user name or password" if "@" in found[2] else "a query"
        return [
            f"save.output_dir: {scheme_of(store)}://... has {what} in it (not shown); write the URL without it, and "
            "save.storage_options: {key: {env: VARIABLE}, ...}"
        ]
    if config.save.storage_options and is_local(store):
        return [f"save.storage_options: the store {store} is local and takes none; leave them out"]
    return []


def store_not_yet(store: str) -> list[str]:
    """Return a message for a store that no build writes to."""
    if is_local(store) or scheme_of(store) in OBJECT_STORES:
        return []
    return [
        f"save.output_dir: {scheme_of(store)}:// is not available yet for a build; today: a path, s3://bucket/prefix "
        "or gs://bucket/prefix"
    ]
