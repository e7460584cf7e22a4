"""Units of a mixture: their numbers of rows, and their fingerprints.

A unit takes neighbouring rows of each source from each lane. They begin inside a row
group and end inside one. So about one row group more than needed is decoded for each
lane and source. If the configuration leaves the rows of a unit open, it takes twelve
times the bytes of a row group of every source from each lane, and decodes 13/12 = 1.08
times its rows. A unit that is a whole stream is cut at the ends of its lanes only:
half of that is enough, which :func:`tokenlake.runtime.mixing.lane_count.choose_lanes`
respects. ::

    unit rows = 12 x lanes x (bytes of a row group, summed over the sources)
                / (bytes of a row), in whole batches

Rows that are left at the end go to the last unit where they are less than two thirds of
a unit: alone, they would decode much more than they take.

Nothing here depends on the number of workers. Another schedule may get other units.
With `mix.unit_rows` in the configuration, a longer mixture reuses the units before.

The fingerprint of a unit depends on its rows only. Where sources begin anew forever
(``stop_strategy: restart``), a mixture that becomes longer, or whose schedule gets
further points, perhaps with further sources, keeps the fingerprints of the units
before. Those are reused by a new version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from tokenlake.base.fingerprint import fingerprint
from tokenlake.config.resolve import pack_identity
from tokenlake.errors import ConfigError
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.plan import MixUnit
from tokenlake.etl.tokenizers.fingerprint import identity as tokenizer_identity
from tokenlake.runtime.mixing.lane_count import SourceSize, group_rows
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.schema import FORMAT_VERSION
from tokenlake.runtime.store.layout import MAX_UNIT
from tokenlake.runtime.store.ledger import MIXED, ShardEntry
from tokenlake.runtime.store.mixture import (
    Level,
    MixtureOrder,
    MixtureSpec,
    WeightPoint,
)

_GROUPS_PER_UNIT: Final = 12
"""Number of row groups of every source in a unit, for each lane."""

_LEAST_REST: Final = Fraction(2, 3)
"""Share of a unit below which the last rows are not a unit of their own."""

_LATEST_COUNT: Final = 16
"""Number of rows of a lane by which the time of a count may be later, for up to 28
sources.
"""

_NOT_MEANING: Final = ("folder", "append_eos")
"""Facts about a tokenizer in a manifest that do not change the meaning of its ids."""


def choose_unit_rows(
    sizes: Mapping[str, SourceSize],
    weights: Iterable[Mapping[str, float]],
    *,
    lanes: int,
    batch_size: int,
) -> int:
    """Return the number of rows of a unit, a multiple of the batch size.

    Args:
        sizes: Size of each source.
        weights: Weights per row at each point of the schedule.
        lanes: Number of lanes.
        batch_size: Number of rows of a batch.
    """
    # Whole batches, so that every unit begins with one.
    rows = lanes * _GROUPS_PER_UNIT * group_rows(sizes, weights)
    return math.ceil(rows / batch_size) * batch_size


def range_units(
    rows: int,
    unit_rows: int,
    row_bytes: Fraction,
    identity: Callable[[int, int], str],
    *,
    join_rest: bool,
) -> tuple[MixUnit, ...]:
    """Return the units of a mixture.

    Args:
        rows: Number of rows of the mixture.
        unit_rows: Number of rows of a unit.
        row_bytes: Mean stored bytes of a row.
        identity: Function that returns the fingerprint of the unit at positions ``start
            .. stop``.
        join_rest: Whether too few rows at the end are joined to the last unit.

    Raises:
        ConfigError: A version cannot have so many units.
    """
    # 1. The number of units. Few rows at the end join the last one.
    unit_count = -(-rows // unit_rows)
    # A unit's number is part of the names of its files.
    most_units = MAX_UNIT + 1
    if unit_count > most_units:
        raise ConfigError(
            f"mix.unit_rows: {unit_rows} makes {unit_count:,} units of {rows:,} rows; a version has at most "
            f"{most_units:,}. Set it to {-(-rows // most_units)} or more"
        )
    rows_left = rows - (unit_count - 1) * unit_rows
    if join_rest and unit_count > 1 and rows_left < _LEAST_REST * unit_rows:
        unit_count -= 1

    # 2. The units between the borders.
    borders = [*range(0, unit_count * unit_rows, unit_rows), rows]

    units: list[MixUnit] = []
    for start, stop in pairwise(borders):
        unit = MixUnit(
            index=len(units),
            source=MIXED,
            bytes=round(row_bytes * (stop - start)),
            fingerprint=identity(start, stop),
            start=start,
            stop=stop,
        )
        units.append(unit)
    return tuple(units)


def content_identity(parent: FoundParent) -> str:
    """Return the hash of all rows of a parent's split, and of their tokenizers.

    The order of the rows is part of it.
    """
    shard_identities = [[shard.path, *rows_of_shard(shard)] for shard in parent.shards]
    identity = {
        "split": parent.split,
        "seq_length": parent.width,
        "shards": shard_identities,
        "tokenizers": tokenizers_identity(parent),
    }
    return fingerprint(identity)


def rows_of_shard(shard: ShardEntry) -> tuple[int, list[int], dict[str, str]]:
    """Return the identity of a shard's rows.

    It is their number, their row groups and the hashes of their columns.
    """
    return shard.rows, list(shard.row_groups), shard.logical


def tokenizers_identity(parent: FoundParent) -> dict[str, Any]:
    """Return the identity of the tokenizer of each of a parent's sources."""
    identities: dict[str, Any] = {}
    for source, description in parent.manifest.tokenizer.items():
        # A folder, and the EOS that packing adds, say nothing about ids that are
        # stored.
        meaning = dict(description)
        for name in _NOT_MEANING:
            meaning.pop(name, None)
        identities[source] = tokenizer_identity(meaning)
    return identities


def rows_identity(out: RowsOut) -> dict[str, Any]:
    """Return the identity of the format of new rows."""
    pack = None
    if out.pack is not None:
        pack = pack_identity(out.pack)
    identity: dict[str, Any] = {
        "pack": pack,
        "seq_length": out.width,
        "prefix": list(out.prefix),
        "suffix": list(out.suffix),
        "whole": list(out.whole),
        "eos_id": out.eos_id,
        "pad_id": out.pad_id,
        "append_eos": out.append_eos,
        "max_shard_size": out.max_shard_size,
        "compression": "zstd",
    }
    # Without a mask the identity is that of versions before there were masks.
    if out.loss_mask:
        identity["loss_mask"] = True
    return identity


def unit_identity(
    level: Level,
    content: Mapping[str, str],
    spec: MixtureSpec,
    mixture: SourceMixture,
    out: RowsOut,
) -> Callable[[int, int], str]:
    """Return the function that computes the fingerprint of a unit from its positions.

    Its arguments are the first position of the unit and the one after the last.

    Args:
        level: Kind of row that is mixed.
        content: Hash of each source's rows, see :func:`content_identity`.
        spec: Order of the mixture.
        mixture: Open mixture.
        out: Format of the new rows.
    """

    def identity(start: int, stop: int) -> str:
        beginning = _beginning_until(stop, spec, mixture)
        # A source that is not in the beginning decides nothing about the unit.
        whole_sources = tuple(name for name in out.whole if name in beginning.lengths)
        members = {
            "format_version": FORMAT_VERSION,
            "order_version": spec.order.version,
            "level": level,
            "content": [content[name] for name in beginning.lengths],
            "order": beginning.order.identity(beginning.lengths),
            "out": rows_identity(replace(out, whole=whole_sources)),
            "start": start,
            "stop": stop,
        }
        return fingerprint(members)

    return identity


def _beginning_until(
    stop: int, spec: MixtureSpec, mixture: SourceMixture
) -> MixtureSpec:
    """Return the part of a mixture on which the rows before a position depend.

    It is the schedule up to that position, with the sources that have a weight there: a
    source without weight takes no place from the others. Where sources do not begin
    anew, the end of a lane depends on the whole mixture.
    """
    # 1. The points of the schedule that matter, and the sources with a weight there.
    order = spec.order
    if order.stop != "restart":
        return spec
    step = _first_step_without_influence(stop, spec, mixture)
    points = _points_before(order, step)

    names: list[str] = []
    for source_name in spec.lengths:
        if any(point.weights[source_name] for point in points):
            names.append(source_name)

    # 2. The order and the lengths of these alone. A single point has constant weights,
    #    whatever the interpolation.
    interpolation = order.interpolation
    if len(points) == 1:
        interpolation = "step"
    beginning_points: list[WeightPoint] = []
    for point in points:
        weights = {source_name: point.weights[source_name] for source_name in names}
        beginning_points.append(WeightPoint(point.step, weights))
    used_rows = dict(order.kept)
    for source_name in order.kept.keys() - set(names):
        del used_rows[source_name]
    beginning = replace(
        order,
        kept=used_rows,
        points=tuple(beginning_points),
        interpolation=interpolation,
    )
    lengths = {source_name: spec.lengths[source_name] for source_name in names}
    return MixtureSpec(lengths=lengths, order=beginning)


def _first_step_without_influence(
    stop: int, spec: MixtureSpec, mixture: SourceMixture
) -> int:
    """Return a step from which on no weight puts a row before a position.

    1. In a lane, the row groups that hold the places before the position are decided by
       counts at their ends.
    2. A count of n rows is that of a time later than n by at most half a row for each
       source, see :mod:`tokenlake.runtime.mixing.counts`. It is rounded up, so that one
       source more changes nothing here.
    """
    order = spec.order
    # Everything is rounded up: a later step only costs a new fingerprint.
    places = int(mixture.layout.places_before(stop).max())
    groups = -(-places // mixture.group_slots)
    latest_count = max(_LATEST_COUNT, len(spec.lengths) // 2 + 2)
    rows = (groups * mixture.group_slots + latest_count) * order.lanes
    return -(-rows // order.step_rows)


def _points_before(order: MixtureOrder, step: int) -> tuple[WeightPoint, ...]:
    """Return the points of a schedule that decide the weights before a step.

    These are the points before it and, where weights move towards the next point, that
    one too.
    """
    point_count = 0
    for point in order.points:
        if point.step < step:
            point_count += 1
    if point_count > 0 and order.interpolation != "step":
        point_count += 1
    return order.points[: max(1, point_count)]
