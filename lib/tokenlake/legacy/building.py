"""One name for two things: a dataset version made in a store, and the rows of a mixture."""

from __future__ import annotations

from typing import overload

from tokenlake.build.events import Watcher, ignore
from tokenlake.build.projects import Configuration
from tokenlake.build.runner import BuildResult
from tokenlake.build.runner import build_dataset as build_version
from tokenlake.errors import ConfigError
from tokenlake.legacy.mixture import DatasetMixture, open_mixture
from tokenlake.sources.sharded.base import ShardedDataSource


@overload
def build_dataset(config: DatasetMixture) -> ShardedDataSource: ...


@overload
def build_dataset(
    config: Configuration, *, workers: int | None = None, on_event: Watcher = ignore, retries: int = 2
) -> BuildResult: ...


def build_dataset(
    config: Configuration | DatasetMixture,
    *,
    workers: int | None = None,
    on_event: Watcher = ignore,
    retries: int = 2,
) -> BuildResult | ShardedDataSource:
    """Build a dataset version on this machine; or, of a :class:`DatasetMixture`, return its rows.

    Args:
        config: a configuration, a mapping of one, or the path of a YAML file: a version is built. A DatasetMixture:
            nothing is written, and a source of its rows is returned, which reads as it is iterated.
        workers: worker processes; default: the processors this process may use.
        on_event: told of everything that happens, from several threads.
        retries: how often a unit is tried again after an error worth a retry.

    Returns:
        The committed version (when an equal one existed, that one); or the rows of a mixture, as dicts.

    Raises:
        TokenlakeError: see :mod:`tokenlake.errors`; finished units stay and a rerun resumes.
    """
    if not isinstance(config, DatasetMixture):
        return build_version(config, workers=workers, on_event=on_event, retries=retries)
    if workers is not None or on_event is not ignore or retries != 2:
        raise ConfigError(
            "build_dataset: workers, on_event and retries are of building a version; the rows of a DatasetMixture "
            "are read as they are iterated, by this process. Leave them out"
        )
    return open_mixture(config)
