"""Cosine of a schedule and its integral, in whole numbers.

The numbers are the same on every machine.

The C library's sine differs between machines in its last bits, and one bit can move a
row. Here pi and the sine are computed with integers, with as many guard bits as an
answer needs: the number of guard bits is doubled until both ends of the remaining error
give the same answer (Ziv 1991, *Fast evaluation of elementary mathematical functions
with correctly rounded last bit*). That ends: the sine of a rational part of a turn is
algebraic, so that divided by pi it is no fraction, unless it is 0, and that case is
answered first.

Example: halfway (``done = 1``, ``span = 2``) the eased step is 1/2, and the area ``1 /
2 - 1 / pi = 0.1817``; in units of 2^-10, rounded down, ``eased_area(1, 2, 10)`` is 186.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Bits beyond those of the answer in the first attempt; one answer in 2^30 needs a
# second.
_GUARD: Final = 32
_ERROR: Final = 2  # largest error of `_sine_part`, in units of its last bit
_MARGIN: Final = 8  # further bits inside `_sine_part`


def eased_area(done: int, span: int, bits: int) -> int:
    """Return the area under the eased step from 0 to `done`.

    The eased step is ``(1 - cos(pi x / span)) / 2``.

    It is ``done / 2 - span / (2 pi) sin(pi done / span)``, in units of ``2**-bits``,
    rounded down exactly. Since the step lies between 0 and 1, the area grows by 0 to 1
    when `done` grows by 1, and so does its rounded value.

    Args:
        done: Progress, from 0 to `span`.
        span: Length of the curve, an even number above 0.
        bits: Number of bits of the answer after the point.
    """
    if done in (0, span):
        return done << bits >> 1
    guard = _GUARD
    while True:
        area = (done << (bits + guard - 1)) - _sine_part(done, span, bits + guard)
        low = (area - _ERROR) >> guard
        high = (area + _ERROR) >> guard
        if low == high:
            return low
        guard *= 2


def eased(done: int, span: int, bits: int) -> int:
    """Return the eased step at `done`, in units of ``2**-bits``.

    It is ``(1 - cos(pi done / span)) / 2`` with an error of less than two units.

    Since ``1 - cos(2 a) = 2 sin(a)^2``, it is a square and never negative.

    Args:
        done: Progress, from 0 to `span`.
        span: Length of the curve.
        bits: Number of bits of the answer after the point.
    """
    if done in (0, span):
        return (done // span) << bits
    precision = bits + 2 * _MARGIN
    if 2 * done > span:
        return (1 << bits) - eased(span - done, span, bits)
    sine = _sine(_pi(precision) * done // (2 * span), precision)
    return sine * sine >> (2 * precision - bits)


def _sine_part(done: int, span: int, guard: int) -> int:
    """Return ``span / (2 pi) sin(pi done / span)`` in units of ``2**-guard``.

    Its error is below `_ERROR`.
    """
    precision = span.bit_length() + guard + _MARGIN
    pi = _pi(precision)
    nearest_end = min(done, span - done)
    if 4 * nearest_end <= span:
        sine = _sine(pi * nearest_end // span, precision)
    else:
        sine = _cosine(pi * (span - 2 * nearest_end) // (2 * span), precision)
    return (span * sine << guard) // (2 * pi)


def _sine(angle: int, precision: int) -> int:
    """Return the sine of an angle, both in units of ``2**-precision``.

    The angle is from 0 to pi / 4; the error is below 40 units.
    """
    return _series(angle, angle, 2, precision)


def _cosine(angle: int, precision: int) -> int:
    """Return the cosine of an angle from 0 to pi / 4.

    Units and error are those of :func:`_sine`.
    """
    return _series(1 << precision, angle, 1, precision)


def _series(first: int, angle: int, divisor: int, precision: int) -> int:
    """Return the sum of a Taylor series.

    Each term is the one before, times ``-angle^2 / (divisor (divisor + 1))``. The
    divisor grows by 2 from term to term.

    Each of its terms is rounded down once, and the error of a term shrinks with the
    next ones.

    Args:
        first: First term.
        angle: Angle.
        divisor: Divisor of the second term: 2 for the sine, 1 for the cosine.
        precision: Number of bits after the point of all numbers.
    """
    square = angle * angle >> precision
    term = first
    total = first
    while term:
        term = (term * square >> precision) // (divisor * (divisor + 1))
        if divisor % 4 in (1, 2):
            total -= term
        else:
            total += term
        divisor += 2
    return total


@lru_cache(maxsize=64)
def _pi(precision: int) -> int:
    """Return pi in units of ``2**-precision``, to one unit.

    It is 16 atan(1/5) - 4 atan(1/239) (Machin 1706).
    """
    wide = precision + 16
    return (16 * _inverse_tangent(5, wide) - 4 * _inverse_tangent(239, wide)) >> 16


def _inverse_tangent(cotangent: int, precision: int) -> int:
    """Return the angle with tangent 1 / `cotangent`, in units of ``2**-precision``."""
    power = (1 << precision) // cotangent
    total = power
    odd = 1
    while power:
        power //= -cotangent * cotangent
        odd += 2
        total += power // odd
    return total
