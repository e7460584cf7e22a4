"""The fluent pipeline: stages called one after the other, rows drawn in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast, final

from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.load import ConfigSource, load_config
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.stages import (
    LoadStageConfig,
    PackStageConfig,
    SaveStageConfig,
    SourceStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)
from tokenlake.config.values import expected
from tokenlake.errors import ConfigError
from tokenlake.observability.build import observed_batches
from tokenlake.rowwise.stage import BaseStage, PipelineContext, check_order
from tokenlake.rowwise.stages import LoadStage, MixStage, PackStage, SaveStage, SourceStage, TokenizeStage


@final
class Pipeline:
    """Stages from files to batches::

        for batch in Pipeline.from_config(config).source().tokenize().pack().load().build():
            ...

    Every stage takes its section of the configuration, which then goes in the place of the pipeline's own (as a whole),
    and returns the pipeline. Stages go in the order source, tokenize, mix, pack, save, load; each can be left out but
    `source` (rows that hold ``input_ids`` need no tokenize), `pack` may come before `mix`, `save` anywhere before
    `load`, and stages of your own may come in between (:meth:`stage`). A stage lists files or loads a tokenizer; rows
    are read when somebody draws them, or when :meth:`build` saves them.
    """

    def __init__(self, config: PipelineConfig) -> None:
        """Take a configuration; :meth:`from_config` also takes a mapping or a file."""
        self._context = PipelineContext(config)
        self._data: dict[str, Any] = {}
        self._stages: list[str] = []

    @classmethod
    def from_config(cls, config: ConfigSource) -> Pipeline:
        """Return a pipeline.

        Args:
            config: a PipelineConfig, a mapping of its keys, or the path of a YAML file. What is wrong between the
                sections of a PipelineConfig is said by its `validate()`, and raised by :meth:`source`.

        Raises:
            ConfigError: a mapping or a file is wrong; the message lists everything.
        """
        if isinstance(config, PipelineConfig):
            return cls(config)
        return cls(load_config(config))

    def source(self, config: SourceStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Open every dataset: files are listed, no row is read.

        Raises:
            RuntimeError: it was called already.
            ConfigError, NotAvailableError, SourceNotFoundError: as :meth:`SourceStage.process`.
        """
        return self._apply(SourceStage(config))

    def tokenize(self, config: TokenizeStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Tokenize every dataset by its own tokenizer, its stage's, or the pipeline's; only the tokenizers are loaded.

        Documents above `max_length` are cut, unless packing follows: then an explicit ``truncation=True`` alone cuts.

        Raises:
            RuntimeError: it comes too late, or twice.
            ConfigError, NotAvailableError, SourceError, TokenizerError: as :meth:`TokenizeStage.process`.
        """
        return self._apply(TokenizeStage(config))

    def mix(self, config: MixStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Mix all datasets to one stream, ``mixed``, by weights: of documents, or of packed rows after :meth:`pack`.

        A single dataset is mixed only where the section says more than defaults; else it stays as it is.

        Raises:
            RuntimeError: it comes too late, or twice.
            ConfigError: as :meth:`MixStage.process`.
        """
        return self._apply(MixStage(config))

    def pack(self, config: PackStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Pack documents into rows of one length: those of each dataset, or those of the mixture after :meth:`mix`.

        To call it is to ask for it; only where the configuration says ``enabled: false`` in so many words do rows stay
        as they are.

        Raises:
            RuntimeError: it comes too late, or twice.
            ConfigError: as :meth:`PackStage.process`. A row without ``input_ids`` is a BadRecordError when it is drawn.
        """
        return self._apply(PackStage(config))

    def save(self, config: SaveStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Write rows to flat directories, once, and go on with what was written.

        They are written when :meth:`build` is called, or when the first row is drawn. To call it is to ask for it, as
        with :meth:`pack`.

        Raises:
            RuntimeError: it comes after load, or twice.
            ConfigError, NotAvailableError: as :meth:`SaveStage.process`.
        """
        return self._apply(SaveStage(config))

    def load(self, config: LoadStageConfig | Mapping[str, Any] | None = None) -> Pipeline:
        """Make batches of rows: an :class:`AsyncDataLoader` for each dataset.

        Raises:
            RuntimeError: it was called already.
            NotAvailableError: as :meth:`LoadStage.process`.
        """
        return self._apply(LoadStage(config))

    def stage(self, stage: BaseStage) -> Pipeline:
        """Apply a stage of your own.

        Raises:
            RuntimeError: `source` was not called before it, or `load` was.
            ConfigError: it is no stage, or returns something else than sources by name.
        """
        if not isinstance(stage, BaseStage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise expected("stage", stage, "a BaseStage, made by its class")
        return self._apply(stage)

    def build(self) -> Iterator[Any]:
        """Return an iterator over all datasets, one after the other: batches after `load`, else rows.

        Whatever is to be saved has been saved when it returns, and is on the Hub where it is to be pushed. Where the
        configuration has a section `observability`, progress is shown on standard error.

        Raises:
            RuntimeError: `source` was not called.
            as :func:`save_dataset`, where something is saved.
        """
        check_order("build", self._stages)
        for saved in self._context.saved:
            saved.save()
        if self._context.push is not None:
            self._context.push()
        rows = chain.from_iterable(list(self._data.values()))
        return observed_batches(rows, self._context.config, batched="load" in self._stages)

    def get_data(self) -> dict[str, Any]:
        """Return the sources (after `load` the loaders) by name, as the stages so far have made them."""
        return dict(self._data)

    def get_context(self) -> PipelineContext:
        """Return what stages know of the pipeline: its configuration, its seed."""
        return self._context

    def get_stages(self) -> list[str]:
        """Return the names of the stages so far, in order."""
        return list(self._stages)

    def _apply(self, stage: BaseStage) -> Pipeline:
        check_order(stage.name, self._stages)
        if not stage.validate_config(stage.config):
            why = f"validate_config refused its configuration, {stage.config!r:.200}"
            raise ConfigError(f"stage {stage.name!r}: {why}")
        before = self._context.config
        try:
            made: Any = stage.process(self._data, self._context)
            named = isinstance(made, Mapping) and made
            if not named or not all(isinstance(item, Iterable) for item in cast("Any", made).values()):
                got = f"a mapping of {len(made)}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
                why = f"process returned {got}, must be a mapping of name to source"
                raise ConfigError(f"stage {stage.name!r}: {why}")
            self._data = dict(made)
        except BaseException:
            self._context.config = before
            raise
        self._context.measure(stage, self._data)
        self._stages.append(stage.name)
        return self


def create_pipeline(
    datasets: Sequence[DatasetConfig | Mapping[str, Any]],
    default_tokenizer: str | TokenizerConfig | Mapping[str, Any] | None = None,
    streaming: bool = True,
    **sections: Any,
) -> Pipeline:
    """Return a pipeline of datasets.

    Args:
        datasets: at least one, each a DatasetConfig or a mapping of its keys.
        default_tokenizer: of the datasets that name none.
        streaming: False downloads datasets of the Hub before they are read.
        sections: other keys of PipelineConfig: ``seed``, ``tokenize``, ``mix``, ``pack`` ...

    Raises:
        ConfigError: something is wrong; the message lists everything.
    """
    given = {"datasets": datasets, "default_tokenizer": default_tokenizer, "streaming": streaming, **sections}
    return Pipeline.from_config(given)
