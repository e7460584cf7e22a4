"""Held-out documents: those of a source's `eval` set, which no version trains on.

Each document has a draw: a hash of its identity. It is held out if its draw is below the source's threshold.

1. The first version whose configuration says ``eval: 500`` draws for every record of its inputs. Its threshold is the
   500th smallest draw plus 1.
2. A later version takes the threshold over. A document that was held out once is therefore held out in every later
   version. Of documents that were added since, the same share is held out.
3. A larger number raises the threshold. A smaller number would return documents to training and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, final

import numpy as np

from tokenlake.base import numbers
from tokenlake.base.arrays import Int64
from tokenlake.base.threads import in_order
from tokenlake.base.typed_json import converted
from tokenlake.config.resolved import ResolvedHeldOut, ResolvedSource
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.etl.plan.exclusions import Positions
from tokenlake.etl.sources.inputs import FileRange
from tokenlake.etl.sources.listing_progress import OnProgress, ProgressMeter
from tokenlake.etl.sources.record_limit import positions_of
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.manifest import Manifest


def held_out_by(manifest: Manifest) -> dict[str, ResolvedHeldOut]:
    """Return what the texts that a version was made of hold out: source to documents."""
    sources: Mapping[str, Any] = manifest.config.get("sources", {})
    stated = {name: source["eval"] for name, source in sources.items() if "eval" in source}
    return {name: converted(facts, ResolvedHeldOut) for name, facts in stated.items()}


@final
class EarlierSets:
    """What the versions of a dataset hold out, the newest ones first.

    Args:
        dataset: in a store at this address, which need not be there.
        before: versions from there on do not count; None: all do.
    """

    def __init__(self, address: StoreAddress, dataset: str, before: int | None) -> None:
        self._address, self._dataset, self._before = address, dataset, before

    @cached_property
    def _stated(self) -> Callable[[int], dict[str, ResolvedHeldOut]]:
        """What a version says; each manifest is read once."""
        catalog = Catalog(open_store(self._address))
        return cache(lambda version: held_out_by(catalog.manifest(self._dataset, version)))

    @cached_property
    def _versions(self) -> list[int]:
        with suppress(NotFoundError):
            infos = Catalog(open_store(self._address)).versions(self._dataset)
            return [
                info.version
                for info in reversed(infos)
                if info.committed and (self._before is None or info.version < self._before)
            ]
        return []

    def of(self, source: str) -> tuple[str, ResolvedHeldOut] | None:
        """Return the newest version that holds out documents of a source, and which; None where none does.

        Raises:
            IntegrityError: the manifest of a version that may say so is damaged.
        """
        stated = ((version, self._stated(version).get(source)) for version in self._versions)
        named = ((f"{self._dataset}@v{version}", found) for version, found in stated if found is not None)
        return next(named, None)


def hold_out(
    source: ResolvedSource,
    asked: ResolvedHeldOut,
    parts: Sequence[Sequence[FileRange]],
    excluded: Positions,
    earlier: EarlierSets,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> tuple[ResolvedHeldOut, str]:
    """Return what is held out of a source, with its threshold, and a note on it.

    Args:
        parts: the ranges of each of its files.
        excluded: file to the positions of documents that are left out.

    Raises:
        ConfigError: an earlier version holds out more, or there are no records but these.
        SourceError: an input cannot be read.
    """
    version, before = earlier.of(source.name) or ("", None)
    if before is not None and before.count > asked.count:
        raise ConfigError(
            f"datasets.{source.name}.eval: {asked.count}, but {version} holds out {before.count}, and what was held "
            f"out once is never trained on; expected {before.count} or more",
            source=source.name,
            expected=before.count,
            got=asked.count,
        )
    if before is not None and before.count == asked.count:
        return replace(asked, below=before.below), (
            f"{source.name}: what {version} holds out stays held out ({asked.split}); of documents that were added "
            "since, a like share joins it"
        )
    meter = ProgressMeter("counting", len(parts), sum(p.weight for each in parts for p in each), on_progress)

    def least_of(whole: Sequence[FileRange]) -> tuple[int, Int64]:
        found = _least(source, whole, excluded, asked.count)
        meter.add(1, sum(part.weight for part in whole))
        return found

    total, draws = 0, np.zeros(0, np.int64)
    for records, some in in_order(least_of, [whole for whole in parts if whole], threads):
        total, draws = total + records, _smallest(np.concatenate([draws, some]), asked.count)
    if total <= asked.count:
        raise ConfigError(
            f"datasets.{source.name}.eval: {asked.count}, but the source has {numbers.plural(total, 'record')}; "
            "expected fewer than that, so that something is left to train on",
            source=source.name,
            expected=total - 1,
            got=asked.count,
        )
    below = max(int(draws.max()) + 1, 0 if before is None else before.below or 0)
    note = f"{source.name}: {asked.count} of {total} records are held out ({asked.split}), in all versions from here on"
    return replace(asked, below=below), note


def _least(
    source: ResolvedSource, whole: Sequence[FileRange], excluded: Positions, count: int
) -> tuple[int, Int64]:
    """Return how many records a file has, and the `count` smallest of their draws, int64[<= count]."""
    from tokenlake.etl.unit.splits import held_out_draws, kept

    total, draws, file = 0, np.zeros(0, np.int64), whole[0].file.file_id
    for positions in positions_of(whole, source):
        if gone := excluded.get(file):
            positions = positions[kept(positions, gone)]
        some = held_out_draws(np.full(len(positions), file, np.int64), positions)
        total, draws = total + len(positions), _smallest(np.concatenate([draws, some]), count)
    return total, draws


def _smallest(draws: Int64, count: int) -> Int64:
    return draws if len(draws) <= count else np.partition(draws, count - 1)[:count]
