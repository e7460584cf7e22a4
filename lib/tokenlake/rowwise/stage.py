"""What a stage of a pipeline is, which may come after which, and which options no pipeline acts on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.rowwise.source import ShardedDataSource

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig
    from tokenlake.config.stages import TokenizerConfig
    from tokenlake.rowwise.save import SavedShardedSource
    from tokenlake.tokenizers.manager import LoadedTokenizer

STAGES: Final = ("source", "tokenize", "mix", "pack", "save", "load")

_AFTER: Final = {
    "tokenize": ("mix", "pack", "load"),
    "mix": ("pack", "load"),
    "pack": ("load",),
    "save": ("load",),
}
"""A stage to those that may not come before it; rows can be saved at any place."""

_BUILDS: Final = "it acts in builds (`tokenlake run`, build_dataset)"
_CACHES: Final = "it comes with the caches; today tokens are kept by tokenize.cache_tokenized"
_SILENT: Final = "a pipeline reports nothing"

_INSTEAD: Final[dict[str, dict[str, str]]] = {
    "datasets": {
        **dict.fromkeys(("exclude", "splits", "max_bad_fraction"), _BUILDS),
        "preference": f"{_BUILDS}; for rows there is PreferenceRows",
        "tokenizer_kwargs": "the tokenizer.json is used as it is",
        "shard_column": "rows are saved in their order, to files of save.num_shards or save.max_shard_size",
    },
    "source": dict.fromkeys(("splits", "max_bad_fraction"), _BUILDS),
    "mix": {
        "lanes": "rows are drawn in one lane; lanes act where a mixture is built",
        "weights_by": "rows; tokens act where a mixture is built",
        "order": "rows are drawn in one lane, in one order; it acts where a mixture is built",
        "epochs": "total_rows and total_tokens end a mixture, and stop_strategy does",
    },
    "save": {
        "push_to_hub": "build a version, and `tokenlake push` it",
        "storage_options": "files are saved to paths of this machine",
    },
    "cache": dict.fromkeys(
        (
            "enabled",
            "cache_type",
            "cache_dir",
            "memory_cache_size",
            "disk_cache_expiry",
            "compression",
            "hash_fn",
        ),
        _CACHES,
    ),
    "observability": dict.fromkeys(
        ("progress_enabled", "progress_type", "metrics_enabled", "log_level", "log_interval"), _SILENT
    ),
    "ray": {"enabled": "rows are made in this process"},
}
"""Options that a pipeline does not act on, by section, and what it does instead of what they ask for.

Options that change only the speed (`unit_size`, `engine` ...) are accepted, so that one file can configure a build
and a pipeline. Any other option acts, or a value beside its default is an error.
"""

_ALSO_FINE: Final[dict[str, tuple[Any, ...]]] = {
    "splits": ({"train": 1.0},),
    "tokenizer_kwargs": ({}, {"use_fast": True}),
    "storage_options": ({},),
}
"""Values beside the default that ask for what is done anyway."""


@final
@dataclass(frozen=True, slots=True)
class ChosenTokenizer:
    """The tokenizer of a source, and how it is used."""

    loaded: LoadedTokenizer
    options: TokenizerConfig


@final
class PipelineContext:
    """What the stages of one pipeline know of it and of each other.

    Attributes:
        config: the configuration, with the sections that stages were called with in place of the pipeline's own.
        opened: name of a dataset to its rows, as :meth:`Pipeline.source` opened it.
        tokenizers: name of a source to its tokenizer, once :meth:`Pipeline.tokenize` was called.
        packed: whether rows are packed by a stage that was called.
        saved: what is to be written when the pipeline is built.
        stepped: tells the mixture how many rows a training step takes; None: nothing hangs on it.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.opened: dict[str, ShardedDataSource] = {}
        self.tokenizers: dict[str, ChosenTokenizer] = {}
        self.packed = False
        self.saved: list[SavedShardedSource] = []
        self.stepped: Callable[[int], None] | None = None

    @property
    def seed(self) -> int | None:
        """The pipeline's seed, None where none is set."""
        return self.config.seed

    @property
    def packing(self) -> bool:
        """Whether rows are packed, or ``pack.enabled`` says that they will be.

        A stage before packing asks when rows are drawn, because :meth:`Pipeline.pack` may be called after it.
        """
        return self.packed or self.config.pack.enabled

    def config_with_packing(self, packing: bool) -> PipelineConfig:
        """Return the configuration of a pipeline that packs, or of one that does not."""
        pack = self.config.pack.model_copy(update={"enabled": packing})
        return self.config.model_copy(update={"pack": pack})

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage made, such as ``mixed``."""
        return self.config.get_dataset_by_name(name)


class BaseStage(ABC):
    """A step from sources to sources, by the names of their datasets.

    A stage of your own defines `name` and `process`, and is given to :meth:`Pipeline.stage`. It should be lazy: make
    sources that wrap those it got, and read no rows.

    Attributes:
        config: whatever the stage was made with.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @property
    @abstractmethod
    def name(self) -> str:
        """What :meth:`Pipeline.get_stages` calls the stage."""

    @abstractmethod
    def process(self, data: dict[str, ShardedDataSource], context: PipelineContext) -> Mapping[str, Any]:
        """Return the new sources by name.

        Args:
            data: name to source.
            context: configuration and seed, and what earlier stages left for this one.
        """


def check_order(stage: str, applied: Sequence[str]) -> None:
    """Raise RuntimeError unless `stage` may follow the stages `applied`.

    Args:
        stage: one of :data:`STAGES`, ``build``, or the name of a stage of the user's own.
        applied: names of the stages so far, in order.
    """
    if stage == "source":
        if "source" in applied:
            raise RuntimeError("source() has already been called")
        return
    if "source" not in applied:
        raise RuntimeError("Call source() before other pipeline stages")
    if stage == "build":
        return
    if stage in STAGES and stage in applied:
        raise RuntimeError(f"{stage}() has already been called")
    before = next((name for name in _AFTER.get(stage, ("load",)) if name in applied), None)
    if before is not None:
        raise RuntimeError(
            f"{stage}() cannot come after {before}(); stages go {', '.join(STAGES)}, and save also earlier"
        )
    # A stage of the user's own may make tokens, too.
    if stage == "pack" and "tokenize" not in applied and all(name in STAGES for name in applied):
        raise RuntimeError(
            "Call tokenize() before pack(): packing needs tokens. (Rows that hold input_ids already are packed by "
            "PackedShardedSource.)"
        )


def check_pipeline(config: PipelineConfig) -> None:
    """Check a whole configuration, before anything is read.

    Raises:
        ConfigError: it contradicts itself; the message lists everything.
        NotAvailableError: an option that a pipeline does not act on is set.
    """
    datasets = [(dataset, "datasets", f"datasets.{dataset.name}") for dataset in config.datasets]
    sections = [(getattr(config, name), name, name) for name in ("source", "cache", "observability", "ray")]
    _check(config, [*datasets, *sections])


def check_stage(config: PipelineConfig, section: str) -> None:
    """Check the section of a stage that was called; raises as :func:`check_pipeline`."""
    _check(config, [(getattr(config, section), section, section)])


def _check(config: PipelineConfig, sections: Sequence[tuple[Any, str, str]]) -> None:
    refuse(config.validate())
    refuse([line for given in sections for line in _idle(*given)], NotAvailableError)


def _idle(section: Any, kind: str, path: str) -> list[str]:
    found: list[str] = []
    for field, instead in _INSTEAD.get(kind, {}).items():
        value = getattr(section, field)
        fine = (
            type(section).model_fields[field].get_default(call_default_factory=True),
            *_ALSO_FINE.get(field, ()),
        )
        if not any(type(value) is type(each) and value == each for each in fine):
            # What options hold may be a secret.
            shown = f"a {type(value).__name__}" if isinstance(value, Mapping) else repr(value)
            found.append(f"{path}.{field}: {shown:.200} does not act in a pipeline yet; today: {instead}")
    return found


def refuse(problems: list[str], kind: type[ConfigError] = ConfigError) -> None:
    """Raise an error that lists all `problems`, if there is one."""
    if problems:
        listed = "\n".join(f"  {line}" for line in problems)
        many = f"{len(problems)} problems in the configuration\n{listed}"
        raise kind(problems[0] if len(problems) == 1 else many, problems=problems)
