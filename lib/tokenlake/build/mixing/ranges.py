"""Cutting a mixture into units: neighbouring positions, the same number in each, whoever builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from tokenlake.build.mixing.identity import UnitIdentity
from tokenlake.build.mixing.parents import FoundParent
from tokenlake.build.mixing.planned import RangeUnit
from tokenlake.errors import ConfigError
from tokenlake.manifest import MIXED
from tokenlake.manifest.mixturelaw import Outcome
from tokenlake.storage.layout import MAX_UNIT


def range_units(
    rows: int, unit_rows: int, row_bytes: Fraction, identity: UnitIdentity
) -> tuple[RangeUnit, ...]:
    """Return the units of a mixture.

    Args:
        rows: of the mixture.
        unit_rows: of a unit; the last may have fewer.
        row_bytes: stored bytes of a row, in the mean.
        identity: of units.

    Raises:
        ConfigError: there are more units than a version can have.
    """
    count = -(-rows // unit_rows)
    if count > MAX_UNIT + 1:
        raise ConfigError(
            f"mix.unit_rows: {unit_rows} makes {count:,} units of {rows:,} rows; a version has at most "
            f"{MAX_UNIT + 1:,}. Set it to {-(-rows // (MAX_UNIT + 1))} or more"
        )
    return tuple(
        RangeUnit(
            index=index,
            source=MIXED,
            bytes=round(row_bytes * (stop - start)),
            fingerprint=identity.of(start, stop),
            start=start,
            stop=stop,
        )
        for index, start in enumerate(range(0, rows, unit_rows))
        for stop in (min(start + unit_rows, rows),)
    )


def mean_row_bytes(parents: Sequence[FoundParent], drawn: Mapping[str, Outcome]) -> Fraction:
    """Return about how many stored bytes of the parents a row of the mixture stands for."""
    total = sum(
        (Fraction(drawn[parent.name].rows * parent.totals.bytes, parent.rows) for parent in parents),
        Fraction(0),
    )
    return total / max(1, sum(outcome.rows for outcome in drawn.values()))
