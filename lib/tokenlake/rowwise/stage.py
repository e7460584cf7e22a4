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
"""Places and secrets, what changes no row, and tokenizers, which are described by
what they are.
"""


@final
class PipelineContext:
    """What the stages of one pipeline know of it and of each other.

    Attributes:
        config: the configuration, with the sections that stages were called with in
            place of the pipeline's own.
        opened: name of a dataset to its rows, as :meth:`Pipeline.source` opened it.
        tokenizers: name of a source to its tokenizer, once :meth:`Pipeline.tokenize`
            was called.
        manager: loads tokenizers, each once.
        packed: whether rows are packed by a stage that was called.
        saved: what is to be written when the pipeline is built.
        push: uploads what was written; None: nothing is to be.
        stepped: tells the mixture how many rows a training step takes; None: nothing
            hangs on it.
        regrouped: whether rows were packed after they were mixed, so that a training
            step takes no fixed number.
        step, epoch: of training, as :meth:`update_step` and :meth:`update_epoch` were
            told; 0 at first.
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
        self.step = self.epoch = 0
        self._measured: dict[str, BaseStage] = {}
        self._recorded: dict[str, dict[str, Any]] = {}
        self._caches: dict[Path, TreeCacheManager] = {}

    @property
    def cache_manager(self) -> TreeCacheManager:
        """The cache that the section `cache` describes, which stages may use; empty
        where it is not enabled.
        """
        return self.cache_at(None)

    def cache_at(self, folder: str | Path | None) -> TreeCacheManager:
        """Return the cache in a folder, as the section `cache` describes it; None:
        in ``cache.cache_dir``.
        """
        section = self.config.cache
        path = Path(folder or section.cache_dir or default_folder() / "tokens")
        if path not in self._caches:
            self._caches[path] = TreeCacheManager(
                path,
                section.memory_cache_size if section.enabled else 0,
                section.disk_cache_expiry,
                section.compression,
                max_bytes=section.disk_cache_bytes,
                cache_type=section.cache_type if section.enabled else "memory",
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
        """Return the configuration of a pipeline that packs, or of one that does
        not.
        """
        pack = self.config.pack.model_copy(update={"enabled": packing})
        return self.config.model_copy(update={"pack": pack})

    def dataset(self, name: str) -> DatasetConfig | None:
        """Return the configuration of a dataset; None for a source that a stage
        made, such as ``mixed``.
        """
        return self.config.get_dataset_by_name(name)

    def origin(self, name: str) -> Callable[[], Origin]:
        """Return a function that describes the origin of a source's rows, as the stages
        so far have decided it.

        Args:
            name: Name of a dataset; any other name stands for all datasets.
        """
        config = self.config
        names = [name] if name in self.opened else list(self.opened)
        tokenizers = {
            dataset_name: self.tokenizers[dataset_name]
            for dataset_name in names
            if dataset_name in self.tokenizers
        }
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
            settings["datasets"] = [
                dataset
                for dataset in settings["datasets"]
                if dataset.get("name") in names
            ]
            inputs: list[dict[str, Any]] = []
            for dataset_name in names:
                inputs += _inputs_of(dataset_name, self.opened[dataset_name])
            described = {
                dataset_name: describe(loaded.files)
                for dataset_name, loaded in tokenizers.items()
            }

            files = {CONFIG: dump_yaml(config).encode()}
            # Rows of one stream have one tokenizer.
            for loaded in list(tokenizers.values())[:1]:
                for path, data in loaded.files.files.items():
                    files[f"{TOKENIZER}/{path}"] = data
            made_of = {"config": settings, "tokenizer": described, "inputs": inputs}
            return Origin(kind, made_of, beside=files)

        return origin

    def get_tokenizer(self, name_or_path: str) -> LoadedTokenizer:
        """Return a tokenizer by its Hub id or path; it is loaded once.

        Raises:
            SourceNotFoundError, TokenizerError: it cannot be loaded.
        """
        return self.manager.get_tokenizer(name_or_path)

    def update_step(self, step: int) -> None:
        """Say which training step it is."""
        self.step = step

    def update_epoch(self, epoch: int) -> None:
        """Say which epoch it is."""
        self.epoch = epoch

    def record_metric(self, stage: str, key: str, value: Any) -> None:
        """Keep a figure under the name of a stage."""
        self._recorded.setdefault(stage, {})[key] = value

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        """Return the figures of every stage so far, and the recorded ones, by the
        names of stages.
        """
        metrics = {name: stage.get_metrics() for name, stage in self._measured.items()}
        for name, recorded in self._recorded.items():
            metrics[name] = metrics.get(name, {}) | recorded
        return metrics

    def measure(self, stage: BaseStage, sources: Mapping[str, Any]) -> None:
        """Include a stage, and the rows drawn from its sources, in
        :meth:`get_metrics`.
        """
        stage.measure(sources)
        self._measured[stage.name] = stage


def _inputs_of(name: str, source: ShardedDataSource) -> list[dict[str, Any]]:
    """Return the files of a dataset by their paths below the common folder, which
    hide paths of the machine.
    """
    versions = source.versions
    folder = (
        commonpath([posixpath.dirname(path) for path, _, _ in versions])
        if versions
        else ""
    )
    inputs: list[dict[str, Any]] = []
    for path, size, token in versions:
        path_below = path[len(folder) :].lstrip("/")
        inputs.append(
            {"source": name, "path": path_below, "bytes": size, "version": token}
        )
    return inputs


class BaseStage(ABC):
    """A step from sources to sources, by the names of their datasets.

    A stage of your own defines `name` and `process`, and is given to
    :meth:`Pipeline.stage`. It should be lazy: make sources that wrap those it got, and
    read no rows.

    Attributes:
        config: whatever the stage was made with.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config

    # Made when asked for: a stage of a user may not call this class's __init__.
    @cached_property
    def _meter(self) -> RowMeter:
        return RowMeter()

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return {}

    @property
    @abstractmethod
    def name(self) -> str:
        """What :meth:`Pipeline.get_stages` calls the stage."""

    @abstractmethod
    def process(
        self, data: dict[str, ShardedDataSource], context: PipelineContext
    ) -> Mapping[str, Any]:
        """Return the new sources by name.

        Args:
            data: name to source.
            context: configuration and seed, and what earlier stages left for this one.
        """

    def validate_config(self, config: Any) -> bool:
        """Return whether the stage can be called with `config`; a stage of your own
        may look closer.
        """
        return True

    def get_metrics(self) -> dict[str, Any]:
        """Return the stage's figures: ``rows``, ``tokens`` and ``seconds`` of what was
        drawn from it so far.

        Seconds include those of the stages before it. Figures of :meth:`_update_metric`
        are added.
        """
        return {**self._meter.figures(), **self._metrics}

    def _update_metric(self, key: str, value: Any) -> None:
        """Set a figure of the stage's own."""
        self._metrics[key] = value

    def measure(self, sources: Mapping[str, Any]) -> None:
        """Count the rows drawn from the sources of this stage, unless a stage before
        it already counts them.
        """
        for source in sources.values():
            if (
                isinstance(source, NumberedSource | AsyncDataLoader)
                and source.meter is None
            ):
                source.meter = self._meter
