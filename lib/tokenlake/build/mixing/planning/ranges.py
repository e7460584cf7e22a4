"""Cutting a mixture into units: neighbouring positions, the same number in each, whoever builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final

from tokenlake.build.mixing.planning.identity import UnitIdentity
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.build.mixing.planning.planned import RangeUnit
from tokenlake.errors import ConfigError
from tokenlake.manifest import MIXED
from tokenlake.manifest.mixturelaw import Outcome
from tokenlake.storage.layout import MAX_UNIT

_LEAST_REST: Final = Fraction(2, 3)
"""Of a unit: what is less decodes much more than it takes, see :mod:`tokenlake.build.mixing.planning.lanes`."""


def range_units(
    rows: int, unit_rows: int, row_bytes: Fraction, identity: UnitIdentity, *, join_rest: bool
) -> tuple[RangeUnit, ...]:
    """Return the units of a mixture.

    Args:
        rows: of the mixture.
        unit_rows: of a unit.
        row_bytes: stored bytes of a row, in the mean.
        identity: of units.
        join_rest: whether rows that are too few for a unit go to the last one, instead of being one.

    Raises:
        ConfigError: there are more units than a version can have.
    """
    count = -(-rows // unit_rows)
    if count > MAX_UNIT + 1:
        raise ConfigError(
            f"mix.unit_rows: {unit_rows} makes {count:,} units of {rows:,} rows; a version has at most "
            f"{MAX_UNIT + 1:,}. Set it to {-(-rows // (MAX_UNIT + 1))} or more"
        )
    if join_rest and count > 1 and rows - (count - 1) * unit_rows < _LEAST_REST * unit_rows:
        count -= 1
    bounds = [*(unit_rows * index for index in range(count)), rows]
    return tuple(
        RangeUnit(
            index=index,
            source=MIXED,
            bytes=round(row_bytes * (stop - start)),
            fingerprint=identity.of(start, stop),
            start=start,
            stop=stop,
        )
        for index, (start, stop) in enumerate(pairwise(bounds))
    )


def mean_row_bytes(parents: Sequence[FoundParent], drawn: Mapping[str, Outcome]) -> Fraction:
    """Return about how many stored bytes of the parents a row of the mixture stands for."""
    total = sum(
        (Fraction(drawn[parent.name].rows * parent.totals.bytes, parent.rows) for parent in parents),
        Fraction(0),
    )
    return total / max(1, sum(outcome.rows for outcome in drawn.values()))
