"""Options that a configuration may hold and that one of the roads does not act on: what it refuses, and what instead.

Nothing is ignored silently. An option either acts, or describes another side and says so in its description (`load` is
for trainers), or stands here: then a value beside its default is refused by the roads that have a text for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.section import Section

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
    """One option, or all options of a section.

    Attributes:
        key: ``section.field`` or ``section.*``; ``datasets.field`` is of every dataset.
        build, stored, rows, source: what to use instead there; "" where the option acts or does no harm.
        also: values that are fine beside the default.
    """

    key: str
    build: str = ""
    stored: str = ""
    rows: str = ""
    source: str = ""
    also: tuple[Any, ...] = ()

    def instead(self, road: Road) -> str:
        """Return what to use on a road; a build of stored datasets and a source refuse what a build does, too."""
        own: str = getattr(self, road)
        return own or (self.build if road in ("stored", "source") else "")

    def refuses(self, value: object, default: object) -> bool:
        """Return whether a value is neither the default nor fine; 0 is not False here."""
        return not any(type(value) is type(fine) and value == fine for fine in (default, *self.also))


_BUILDS: Final = "it acts in builds (`tokenlake run`, build_dataset)"
_REUSE: Final = "a build always reuses equal units of its store, after checking them"
_CACHES: Final = "tokenize.cache_tokenized keeps tokens"
_SHARDS: Final = "files end at save.max_shard_size, or there are exactly save.num_shards"
_AS_IS: Final = "the tokenizer.json is used as it is, which is {use_fast: true}"

REFUSALS: Final = (
    Refusal("datasets.tokenizer_kwargs", build=_AS_IS, rows=_AS_IS, also=({}, {"use_fast": True})),
    Refusal("datasets.cache_path", build="a build resumes and reuses from its store"),
    Refusal("datasets.cache_enabled", build=_REUSE),
    Refusal("datasets.save_path", build="a build writes one dataset to the store save.output_dir"),
    Refusal("datasets.save_format", build="Parquet", also=("parquet",)),
    Refusal("datasets.shard_column", build=_SHARDS, rows=_SHARDS),
    Refusal("datasets.exclude", rows=_BUILDS),
    Refusal("datasets.splits", rows=_BUILDS, also=({"train": 1.0},)),
    Refusal("datasets.max_bad_fraction", rows=_BUILDS),
    Refusal("datasets.preference", rows=f"{_BUILDS}; PreferenceRows makes rows"),
    Refusal(
        "datasets.additional_fields", source="a source yields whole rows; `select_fields` selects fields"
    ),
    Refusal("datasets.num_shards", source="a source has the shards that its files make"),
    Refusal(
        "datasets.dataset", source="builds take it; data_files: STORE/NAME/v1/data/*.parquet reads its rows"
    ),
    Refusal("source.splits", rows=_BUILDS),
    Refusal("source.max_bad_fraction", rows=_BUILDS),
    Refusal("tokenize.batch_size", build="documents are encoded in blocks of at least 4 MiB"),
    Refusal("tokenize.num_workers", build="`--workers N`, the flow's parameter or build_dataset(workers=N)"),
    Refusal(
        "tokenize.cache_tokenized",
        build="the tokens of each source are kept as {name}.{source}.tokens where sources are mixed",
        also=(False,),
    ),
    Refusal("mix.lanes", rows="rows are drawn in one lane; lanes act where a mixture is built"),
    Refusal("mix.weights_by", rows="weights are of rows; tokens act where a mixture is built"),
    Refusal("mix.order", rows="rows are drawn in one lane, in one order; it acts where a mixture is built"),
    Refusal("mix.epochs", rows="total_rows, total_tokens or stop_strategy end a mixture"),
    Refusal("save.format", build="Parquet"),
    Refusal(
        "save.num_shards", stored="mix.unit_rows and save.max_shard_size decide how many files there are"
    ),
    Refusal("save.compression", build="zstd", also=("zstd",)),
    Refusal("save.overwrite", build="a build never overwrites, it adds a version"),
    Refusal(
        "save.push_to_hub",
        build="`tokenlake push NAME --repo org/name` after the build, or tl.push_to_hub",
        rows="build a version, and `tokenlake push` it",
    ),
    Refusal("save.storage_options", rows="files are saved to paths of this machine", also=({},)),
    Refusal("ray.enabled", build="this machine's workers", rows="rows are made in this process"),
    Refusal("cache.*", build=_REUSE, rows=_CACHES),
    Refusal(
        "observability.log_level",
        build="PREFECT_LOGGING_LEVEL sets the level of a flow's log",
        rows="the row-by-row API reports nothing",
    ),
    Refusal(
        "observability.*",
        build="progress goes to a terminal as bars and to a file as lines, and figures to runs/",
        rows="the row-by-row API reports nothing",
    ),
)
"""Every option that some road refuses, once."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def refused(config: PipelineConfig, road: Road, sections: Collection[str] | None = None) -> list[str]:
    """Return a message for every option that is set and that a road refuses.

    Args:
        sections: look at these alone; None: at all.
    """
    found: list[str] = []
    for name in ("datasets", "source", "tokenize", "mix", "save", "ray", "cache", "observability"):
        if sections is None or name in sections:
            models = config.datasets if name == "datasets" else [getattr(config, name)]
            for model in models:
                path = f"datasets.{model.name}" if name == "datasets" else name
                found += _refused_in(name, model, path, road)
    if sections is None and road in ("build", "source"):
        found += [line for dataset in config.datasets for line in _remote_list(dataset)]
    return found


def _refused_in(section: str, model: Section, path: str, road: Road) -> Iterator[str]:
    done: set[str] = set()
    for refusal in REFUSALS:
        owner, _, name = refusal.key.partition(".")
        if owner != section or not (instead := refusal.instead(road)):
            continue
        fields = type(model).model_fields
        for field in [name] if name != "*" else [each for each in fields if each not in done]:
            done.add(field)
            value = getattr(model, field)
            if refusal.refuses(value, fields[field].get_default()):
                yield f"{path}.{field}: {_shown(value)} is not available in {ROADS[road]}; instead: {instead}"


def _shown(value: object) -> str:
    # What options hold may be a secret; a secret's own repr is masked.
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, value))}"
    return f"{value!r:.200}"


def _remote_list(dataset: DatasetConfig) -> Iterator[str]:
    found = _URL.match(dataset.exclude or "")
    if found:
        yield (
            f"datasets.{dataset.name}.exclude: {found[1]}:// is not available in a build; instead: the path of a "
            "local file"
        )
