"""Stages of a pipeline, and the context that they share."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from os.path import commonpath
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base.cache.disk import default_folder
from tokenlake.base.cache.manager import TreeCacheManager
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig, dump_yaml
from tokenlake.etl.export.flat_manifest import Origin
from tokenlake.etl.tokenizers.fingerprint import describe
from tokenlake.etl.tokenizers.manager import LoadedTokenizer, TokenizerManager
from tokenlake.rowwise.loader import AsyncDataLoader
from tokenlake.rowwise.save import SavedShardedSource
from tokenlake.rowwise.shards import RowMeter
from tokenlake.rowwise.source import NumberedSource, ShardedDataSource
from tokenlake.runtime.store.layout import CONFIG, TOKENIZER

_NO_SETTING: Final[Any] = {
    **dict.fromkeys(
        ("load", "save", "cache", "ray", "observability", "default_tokenizer"), True
    ),
    "datasets": {
        "__all__": {
            "data_files",
            "storage_options",
            "save_path",
            "cache_path",
            "tokenizer",
            "exclude",
        }
    },
    "tokenize": {
        "default_tokenizer",
        "num_workers",
        "tokenizer_backend",
        "cache_tokenized",
    },
}
"""Settings that do not identify rows.

They are places, secrets, settings that change no row, and tokenizers, which are
described by their content.
"""


@final
class PipelineContext:
    """State that the stages of one pipeline share.

    Attributes:
        config: Configuration, with the sections that stages were called with in place
            of the pipeline's own.
        opened: Rows of each dataset, as :meth:`Pipeline.source` opened them.
        tokenizers: Tokenizer of each source, once :meth:`Pipeline.tokenize` was called.
        manager: Manager that loads each tokenizer once.
        packed: Whether rows are packed by a stage that was called.
        saved: Sources that are written when the pipeline is built.
        push: Function that uploads the written files; None for no upload.
        stepped: Function that sets the rows of a training step in the mixture; None if
            no weights depend on steps.
        regrouped: Whether rows were packed after they were mixed, so that a training
            step takes no fixed number of mixed rows.
        step: Training step, set by :meth:`update_step`; 0 at first.
        epoch: Epoch of training, set by :meth:`update_epoch`; 0 at first.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.opened: dict[str, ShardedDataSource] = {}
        self.tokenizers: dict[str, LoadedTokenizer] = {}
        self.manager = TokenizerManager()
        self.packed = False
        self.saved: list[SavedShardedSource] = []
        self.push: Callable[[], str] | None = None
        self.stepped: Callable[[int], None] | None = None
        self.regrouped = False
        self.step = 0
        self.epoch = 0
        # Stages and figures by the names of stages, and caches by folder.
        self._measured: dict[str, BaseStage] = {}
        self._recorded: dict[str, dict[str, Any]] = {}
        self._caches: dict[Path, TreeCacheManager] = {}

    @property
    def cache_manager(self) -> TreeCacheManager:
        """Cache that the section `cache` describes, which stages may use.

        It is empty if the section is not enabled.
        """
        return self.cache_at(None)

    def cache_at(self, folder: str | Path | None) -> TreeCacheManager:
        """Return the cache in a folder, as the section `cache` describes it.

        The default is ``cache.cache_dir``.
        """
        section = self.config.cache
        path = Path(folder or section.cache_dir or default_folder() / "tokens")
        # One object for each folder: stages that share a folder share its memory.
        if path not in self._caches:
            # A section that is not enabled gives a cache that holds nothing.
            memory_size = 0
            cache_type = "memory"
            if section.enabled:
                memory_size = section.memory_cache_size
                cache_type = section.cache_type
            self._caches[path] = TreeCacheManager(
                path,
                memory_size,
                section.disk_cache_expiry,
                section.compression,
                max_bytes=section.disk_cache_bytes,
                cache_type=cache_type,
            )
        return self._caches[path]

    @property
    def seed(self) -> int | None:
        """The pipeline's seed, None where none is set."""
        return self.config.seed

    @property
    def packing(self) -> bool:
        """Whether rows are packed, or ``pack.enabled`` says that they will be.

        A stage before packing asks when rows are drawn, because :meth:`Pipeline.pack`
        may be called after it.
        """
        return self.packed or self.config.pack.enabled

    def config_with_packing(self, packing: bool) -> PipelineConfig:
        """Return the configuration of a pipeline that packs, or that does not."""
        pack = self.config.pack.model_copy(update={"enabled": packing})
        return self.config.model_copy(update={"pack": pack})

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage made.

        Such a source is ``mixed``, for example.
        """
        return self.config.get_dataset_by_name(name)

    def origin(self, name: str) -> Callable[[], Origin]:
        """Return a function that describes the origin of a source's rows.

        The description is that of the stages so far.

        Args:
            name: Name of a dataset; any other name stands for all datasets.
        """
        config = self.config
        names = [name] if name in self.opened else list(self.opened)
        tokenizers: dict[str, LoadedTokenizer] = {}
        for dataset_name in names:
            if dataset_name in self.tokenizers:
                tokenizers[dataset_name] = self.tokenizers[dataset_name]
        # The last stage that changed the rows decides their kind.
        if self.packed:
            kind = "packed"
        elif tokenizers:
            kind = "tokens"
        else:
            kind = "rows"

        def origin() -> Origin:
            # The settings as they were written, without paths and without those that
            # decide no row.
            settings = config.model_dump(
                mode="json", exclude_unset=True, exclude=_NO_SETTING
            )
            datasets: list[dict[str, Any]] = []
            for dataset in settings["datasets"]:
                if dataset.get("name") in names:
                    datasets.append(dataset)
            settings["datasets"] = datasets
            # Inputs and tokenizers of these datasets.
            inputs: list[dict[str, Any]] = []
            for dataset_name in names:
                inputs += _inputs_of(dataset_name, self.opened[dataset_name])
            described = {
                dataset_name: describe(tokenizer.files)
                for dataset_name, tokenizer in tokenizers.items()
            }

            attached_files = {CONFIG: dump_yaml(config).encode()}
            # Rows of one stream have one tokenizer.
            for tokenizer in list(tokenizers.values())[:1]:
                for path, data in tokenizer.files.files.items():
                    attached_files[f"{TOKENIZER}/{path}"] = data
            made_of = {"config": settings, "tokenizer": described, "inputs": inputs}
            return Origin(kind, made_of, beside=attached_files)

        return origin

    def get_tokenizer(self, name_or_path: str) -> LoadedTokenizer:
        """Return a tokenizer by its Hub id or path; it is loaded once.

        Raises:
            SourceNotFoundError, TokenizerError: It cannot be loaded.
        """
        return self.manager.get_tokenizer(name_or_path)

    def update_step(self, step: int) -> None:
        """Set the training step."""
        self.step = step

    def update_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch

    def record_metric(self, stage: str, key: str, value: Any) -> None:
        """Keep a figure under the name of a stage."""
        self._recorded.setdefault(stage, {})[key] = value

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        """Return the figures of every stage so far, by the names of stages.

        Recorded figures are among them.
        """
        metrics = {
            stage_name: stage.get_metrics()
            for stage_name, stage in self._measured.items()
        }
        for stage_name, recorded_figures in self._recorded.items():
            metrics[stage_name] = metrics.get(stage_name, {}) | recorded_figures
        return metrics

    def measure(self, stage: BaseStage, sources: Mapping[str, Any]) -> None:
        """Include a stage and the rows of its sources in :meth:`get_metrics`."""
        stage.measure(sources)
        self._measured[stage.name] = stage


def _inputs_of(name: str, source: ShardedDataSource) -> list[dict[str, Any]]:
    """Return the files of a dataset by their paths below the common folder.

    The paths hide those of the machine.
    """
    # Paths below the common folder are the same on every machine.
    versions = source.versions
    common_folder = ""
    if versions:
        common_folder = commonpath([posixpath.dirname(path) for path, _, _ in versions])
    inputs: list[dict[str, Any]] = []
    for path, file_bytes, token in versions:
        path_below = path[len(common_folder) :].lstrip("/")
        inputs.append(
            {"source": name, "path": path_below, "bytes": file_bytes, "version": token}
        )
    return inputs


class BaseStage(ABC):
    """Step from sources to sources, by the names of their datasets.

    A custom stage defines `name` and `process`, and is given to :meth:`Pipeline.stage`.
    It should be lazy: return sources that wrap those it got, and read no rows.

    Attributes:
        config: Argument that the stage was created with.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    # Created at the first use: a custom stage may not call this class's __init__.
    @cached_property
    def _meter(self) -> RowMeter:
        return RowMeter()

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return {}

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the stage in :meth:`Pipeline.get_stages`."""

    @abstractmethod
    def process(
        self, data: dict[str, ShardedDataSource], context: PipelineContext
    ) -> Mapping[str, Any]:
        """Return the new sources by name.

        Args:
            data: Source of each name.
            context: Configuration and seed, and results of earlier stages.
        """

    def validate_config(self, config: Any) -> bool:
        """Return whether the stage can be called with `config`.

        A custom stage may look closer.
        """
        return True

    def get_metrics(self) -> dict[str, Any]:
        """Return the stage's figures: ``rows``, ``tokens`` and ``seconds`` so far.

        Seconds include those of the stages before it. Figures of :meth:`_update_metric`
        are added.
        """
        return {**self._meter.figures(), **self._metrics}

    def _update_metric(self, key: str, value: Any) -> None:
        """Set a figure of the stage itself."""
        self._metrics[key] = value

    def measure(self, sources: Mapping[str, Any]) -> None:
        """Count the rows drawn from the sources of this stage.

        A source that an earlier stage counts already is left out.
        """
        for source in sources.values():
            can_count = isinstance(source, NumberedSource | AsyncDataLoader)
            if can_count and source.meter is None:
                source.meter = self._meter
