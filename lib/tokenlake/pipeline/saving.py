"""The stage `save`: rows to flat directories."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tokenlake.errors import ConfigError
from tokenlake.flat.directory import check_target, local_target
from tokenlake.flat.form import Form
from tokenlake.flat.manifest import Origin
from tokenlake.pipeline.acting import check_stage
from tokenlake.pipeline.context import PipelineContext
from tokenlake.pipeline.saved import SavedShardedSource, SaveTarget
from tokenlake.pipeline.stage import BaseStage
from tokenlake.sources.sharded.base import ShardedDataSource
from tokenlake.tokenizers.fingerprint import describe

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.save_stage import SaveStageConfig

DEFAULT_OUTPUT: Final = "./output"

_NO_SETTING: Final[Any] = {
    **dict.fromkeys(("load", "save", "cache", "ray", "observability", "default_tokenizer"), True),
    "datasets": {
        "__all__": {"data_files", "storage_options", "save_path", "cache_path", "tokenizer", "exclude"}
    },
    "tokenize": {"default_tokenizer", "num_workers", "engine", "cache_tokenized"},
}
"""Places and secrets, what changes no row, and tokenizers, which are described by what they are."""


@final
class SaveStage(BaseStage):
    """Wraps every source in a :class:`SavedShardedSource`."""

    @property
    def name(self) -> str:
        return "save"

    def process(self, data: Mapping[str, Any], context: PipelineContext) -> Mapping[str, ShardedDataSource]:
        """Return the sources, each to be written to a directory of its own and read back from there.

        A dataset's directory is its `save_path`; else `output_dir` where there is one source, and ``output_dir/name``
        where there are several. Where ``enabled: false`` is written out, the sources stay as they are.

        Raises:
            ConfigError: a target may not be written, two are the same, one holds an input, or a source is endless.
            NotAvailableError: an option that a pipeline does not act on is set.
        """
        config = context.config
        if "enabled" in config.save.model_fields_set and not config.save.enabled:
            return dict(data)
        check_stage(config, "save")
        _require_own(data, context)
        targets = {name: _target(name, context, alone=len(data) == 1) for name in data}
        _check(targets, context)
        for name, source in data.items():
            _require_end(name, source)
        made = {
            name: SavedShardedSource(source, targets[name], _Origin(name, context))
            for name, source in data.items()
        }
        context.saved += made.values()
        return made


@final
class _Origin:
    """What the manifest of a saved source says of where its rows come from, as the stages before have decided it.

    Of inputs it names what lies below the folder that all of them are in: no path of the machine.
    """

    def __init__(self, name: str, context: PipelineContext) -> None:
        self._config, self._context = context.config, context
        self._names = [name] if name in context.opened else list(context.opened)
        self._tokenizers = {
            each: context.tokenizers[each] for each in self._names if each in context.tokenizers
        }
        self._kind = "packed" if context.packed else "tokens" if self._tokenizers else "rows"

    def __call__(self) -> Origin:
        tokenizers = {name: describe(chosen.loaded.files) for name, chosen in self._tokenizers.items()}
        inputs = [entry for name in self._names for entry in self._inputs(name)]
        return Origin(self._kind, {"config": self._settings(), "tokenizer": tokenizers, "inputs": inputs})

    def _settings(self) -> dict[str, Any]:
        """The configuration as it was written, but for places and what decides no row."""
        decided = self._config.model_dump(mode="json", exclude_unset=True, exclude=_NO_SETTING)
        decided["datasets"] = [each for each in decided["datasets"] if each.get("name") in self._names]
        return decided

    def _inputs(self, name: str) -> list[dict[str, Any]]:
        versions = self._context.opened[name].versions
        folder = commonpath([posixpath.dirname(path) for path, _, _ in versions]) if versions else ""
        return [
            {"source": name, "path": path[len(folder) :].lstrip("/"), "bytes": size, "version": token}
            for path, size, token in versions
        ]


def _require_own(data: Mapping[str, Any], context: PipelineContext) -> None:
    """Raise ConfigError if a dataset is to be saved in its own way, and is none of the sources any more."""
    for dataset in context.config.datasets:
        own = [field for field in ("save_path", "save_format", "num_shards") if getattr(dataset, field)]
        if own and dataset.name not in data:
            raise ConfigError(
                f"datasets.{dataset.name}.{own[0]}: set, but what is saved is {', '.join(map(repr, data))}; save the "
                "datasets before they are mixed, or leave it out"
            )


def _target(name: str, context: PipelineContext, *, alone: bool) -> SaveTarget:
    save, dataset = context.config.save, context.dataset(name)
    own_path = None if dataset is None else dataset.save_path
    own_format = None if dataset is None else dataset.save_format
    own_shards = None if dataset is None else dataset.num_shards
    # As text: a path object would make a path of a URL, which is none.
    folder = save.output_dir or DEFAULT_OUTPUT
    path = own_path or (folder if alone else f"{folder}/{name}")
    num_shards = own_shards or save.num_shards
    form = Form.of(own_format or save.format, _compression(save, own_format))
    target = SaveTarget(
        path=local_target(path),
        format=form.format,
        compression=form.compression,
        num_shards=num_shards,
        max_shard_size=None if num_shards else save.max_shard_size,
        overwrite=save.overwrite,
    )
    check_target(target.path, overwrite=target.overwrite)
    return target


def _compression(save: SaveStageConfig, own_format: str | None) -> str | None:
    """Return the stage's compression, which is that of its format: a dataset of another one has the usual."""
    return save.compression if own_format in (None, save.format) else None


def _check(targets: Mapping[str, SaveTarget], context: PipelineContext) -> None:
    seen: dict[Path, str] = {}
    for name, target in targets.items():
        for path, other in seen.items():
            if path == target.path or path in target.path.parents or target.path in path.parents:
                raise ConfigError(
                    f"save: {name!r} would be written to {target.path} and {other!r} to {path}, one in the other; give "
                    "each dataset a save_path of its own"
                )
        seen[target.path] = name
        for dataset in context.config.datasets:
            _require_apart(dataset, target.path)


def _require_apart(dataset: DatasetConfig, target: Path) -> None:
    files = dataset.data_files
    for entry in (files,) if isinstance(files, str) else files or ():
        if "://" not in entry and Path(entry).expanduser().absolute().is_relative_to(target):
            raise ConfigError(
                f"save: {target} holds the input {entry!r} of {dataset.name!r}, which it would replace; give a "
                "directory of its own"
            )


def _require_end(name: str, source: ShardedDataSource) -> None:
    if source.endless:
        raise ConfigError(
            f"save: {name!r} never ends, because mix.stop_strategy 'restart' starts exhausted sources again; set "
            "mix.total_rows, mix.total_tokens, or another stop_strategy"
        )
