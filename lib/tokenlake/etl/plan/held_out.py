"""Held-out documents: those of a source's `eval` set, which no version trains on.

Each document has a draw: a hash of its identity. It is held out if its draw is below
the source's threshold.

1. The first version whose configuration says ``eval: 500`` draws for every record of
   its inputs. Its threshold is the 500th smallest draw plus 1.
2. A later version takes the threshold over. A document that was held out once is
   therefore held out in every later version. Of documents that were added since, the
   same share is held out.
3. A larger number raises the threshold. A smaller number would return documents to
   training and is an error.

For example, with ``eval: 2`` the draws 31, 7, 90 and 12 give the threshold 13: those
with 7 and 12 are held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

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
    """Return the held-out documents of each source of a version of texts."""
    held_out: dict[str, ResolvedHeldOut] = {}
    for source_name, fields in manifest.config.get("sources", {}).items():
        if "eval" in fields:
            held_out[source_name] = converted(fields["eval"], ResolvedHeldOut)
    return held_out


@final
class EarlierSets:
    """Held-out documents of the earlier versions of a dataset.

    Args:
        address: Address of the store, which need not exist.
        dataset: Name of the dataset.
        before: Number of the version from which on versions do not count; None counts
            all.
    """

    def __init__(self, address: StoreAddress, dataset: str, before: int | None) -> None:
        self._address = address
        self._dataset = dataset
        self._before = before
        self._sets_of_versions: dict[int, dict[str, ResolvedHeldOut]] = {}

    @cached_property
    def _catalog(self) -> Catalog:
        """Catalog of the store, which is opened when it is first needed."""
        return Catalog(open_store(self._address))

    @cached_property
    def _versions(self) -> list[int]:
        """Numbers of the committed versions that count, newest first."""
        # The store, or the dataset in it, may not exist yet.
        try:
            infos = self._catalog.versions(self._dataset)
        except NotFoundError:
            return []
        versions: list[int] = []
        for info in reversed(infos):
            is_earlier = self._before is None or info.version < self._before
            if info.committed and is_earlier:
                versions.append(info.version)
        return versions

    def _sets_of(self, version: int) -> dict[str, ResolvedHeldOut]:
        """Return the sets of a version, whose manifest is read once."""
        if version not in self._sets_of_versions:
            manifest = self._catalog.manifest(self._dataset, version)
            self._sets_of_versions[version] = held_out_by(manifest)
        return self._sets_of_versions[version]

    def of(self, source: str) -> tuple[str, ResolvedHeldOut] | None:
        """Return the newest version that holds out documents of a source, with them.

        The result is None if no version does.

        Raises:
            IntegrityError: The manifest of a version that may hold out documents is
                damaged.
        """
        for version in self._versions:
            held_out = self._sets_of(version).get(source)
            if held_out is not None:
                return f"{self._dataset}@v{version}", held_out
        return None


def hold_out(
    source: ResolvedSource,
    requested: ResolvedHeldOut,
    parts: Sequence[Sequence[FileRange]],
    excluded: Positions,
    earlier: EarlierSets,
    *,
    threads: int = 2,
    on_progress: OnProgress | None = None,
) -> tuple[ResolvedHeldOut, str]:
    """Return the held-out documents of a source with their threshold, and a note.

    Args:
        source: Source of the documents.
        requested: Held-out documents of the configuration, without a threshold.
        parts: Ranges of each file of the source.
        excluded: Positions of documents that are left out, by file id.
        earlier: Held-out documents of earlier versions.
        threads: Number of threads that count records.
        on_progress: Function that receives the progress of the count.

    Raises:
        ConfigError: An earlier version holds out more, or the source has no other
            records.
        SourceError: An input cannot be read.
    """
    # 1. An earlier version: the threshold never falls.
    least_threshold = 0
    earlier_set = earlier.of(source.name)
    if earlier_set is not None:
        version, earlier_documents = earlier_set
        if earlier_documents.count > requested.count:
            raise ConfigError(
                f"datasets.{source.name}.eval: {requested.count}, but {version} holds out {earlier_documents.count}, "
                f"and a record that was held out is never trained on; expected {earlier_documents.count} or more",
                source=source.name,
                expected=earlier_documents.count,
                got=requested.count,
            )
        if earlier_documents.count == requested.count:
            return replace(requested, below=earlier_documents.below), (
                f"{source.name}: what {version} holds out stays held out ({requested.split}); the same share of the "
                "documents that were added since is held out, too"
            )
        least_threshold = earlier_documents.below or 0

    # 2. The draws of all records: as many as are requested lie below the threshold.
    draws = _draw_all(source, parts, excluded, requested.count, threads, on_progress)
    if draws.records <= requested.count:
        raise ConfigError(
            f"datasets.{source.name}.eval: {requested.count}, but the source has "
            f"{numbers.plural(draws.records, 'record')}; expected fewer, so that records are left to train on",
            source=source.name,
            expected=draws.records - 1,
            got=requested.count,
        )

    # 3. One more than the largest of these draws.
    threshold = max(int(draws.smallest.max()) + 1, least_threshold)
    note = (
        f"{source.name}: {requested.count} of {draws.records} records are held out ({requested.split}), in this "
        "and all later versions"
    )
    return replace(requested, below=threshold), note


@final
@dataclass(frozen=True, slots=True)
class _Draws:
    """Draws of some records.

    Attributes:
        records: Number of records.
        smallest: Their smallest draws, int64[<= count], in no order.
    """

    records: int
    smallest: Int64


def _draw_all(
    source: ResolvedSource,
    ranges_of_files: Sequence[Sequence[FileRange]],
    excluded: Positions,
    count: int,
    threads: int,
    on_progress: OnProgress | None,
) -> _Draws:
    """Return the `count` smallest draws of all records of a source."""
    # 1. Files are read in parallel. Their bytes are the progress.
    all_bytes = 0
    for ranges in ranges_of_files:
        all_bytes += _weight_of(ranges)
    meter = ProgressMeter("counting", len(ranges_of_files), all_bytes, on_progress)

    def draw_file(ranges: Sequence[FileRange]) -> _Draws:
        draws = _draw_file(source, ranges, excluded, count)
        meter.add(1, _weight_of(ranges))
        return draws

    # 2. The smallest of all are among the smallest of each file.
    records = 0
    smallest: Int64 = np.zeros(0, np.int64)
    files = [ranges for ranges in ranges_of_files if ranges]
    for draws in in_order(draw_file, files, threads):
        records += draws.records
        smallest = _smallest(np.concatenate([smallest, draws.smallest]), count)
    return _Draws(records, smallest)


def _weight_of(ranges: Sequence[FileRange]) -> int:
    """Return the weight of some ranges, in input bytes."""
    return sum(file_range.weight for file_range in ranges)


def _draw_file(
    source: ResolvedSource, ranges: Sequence[FileRange], excluded: Positions, count: int
) -> _Draws:
    """Return the `count` smallest draws of the records of a file.

    Args:
        source: Source of the file.
        ranges: Ranges of the file.
        excluded: Positions of documents that are left out, by file id.
        count: Largest number of draws that are returned.
    """
    # A plan without held-out documents does not import all that builds units.
    from tokenlake.etl.unit.splits import held_out_draws, kept

    # A draw is the hash of the file's id and the record's position in it.
    file_id = ranges[0].file.file_id
    excluded_positions = excluded.get(file_id)
    records = 0
    smallest: Int64 = np.zeros(0, np.int64)
    for positions in positions_of(ranges, source):
        if excluded_positions:
            positions = positions[kept(positions, excluded_positions)]
        draws = held_out_draws(np.full(len(positions), file_id, np.int64), positions)
        records += len(positions)
        smallest = _smallest(np.concatenate([smallest, draws]), count)
    return _Draws(records, smallest)


def _smallest(draws: Int64, count: int) -> Int64:
    """Return the `count` smallest of some draws, in no order."""
    if len(draws) <= count:
        return draws
    return np.partition(draws, count - 1)[:count]
