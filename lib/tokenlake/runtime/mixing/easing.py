"""The cosine of a schedule and its integral, in whole numbers: the same on every machine.

The C library's sine differs between machines in its last bits, and one bit can move a row. Here pi and the sine are
computed with integers to as many bits as a question needs: twice, if need be, until both ends of the remaining error
give the same answer (Ziv 1991, *Fast evaluation of elementary mathematical functions with correctly rounded last bit*).
That ends: the sine of a rational part of a turn is algebraic, so that divided by pi it is no fraction, unless it is 0,
and that case is answered first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_GUARD: Final = 32  # bits beyond the answer's at the first attempt; one in 2^30 needs a second
_ERROR: Final = 2  # of the last guard bit, by which `_sine_part` is off at most
_MARGIN: Final = 8


def eased_area(done: int, span: int, bits: int) -> int:
    """Return the area under the eased step, the integral of ``(1 - cos(pi x / span)) / 2`` from 0 to `done`.

    It is ``done / 2 - span / (2 pi) sin(pi done / span)``, in units of ``2**-bits``, rounded down exactly. Since the
    step lies between 0 and 1, the area grows by 0 to 1 when `done` grows by 1, and so does its rounded value.

    Args:
        done: 0 to `span`.
        span: an even number above 0.
        bits: of the answer behind the point.
    """
    if done in (0, span):
        return done << bits >> 1
    guard = _GUARD
    while True:
        area = (done << (bits + guard - 1)) - _sine_part(done, span, bits + guard)
        low, high = (area - _ERROR) >> guard, (area + _ERROR) >> guard
        if low == high:
            return low
        guard *= 2


def eased(done: int, span: int, bits: int) -> int:
    """Return ``(1 - cos(pi done / span)) / 2`` in units of ``2**-bits``, off by less than two of them.

    Since ``1 - cos(2 a) = 2 sin(a)^2``, it is a square and never negative.
    """
    if done in (0, span):
        return (done // span) << bits
    precision = bits + 2 * _MARGIN
    if 2 * done > span:
        return (1 << bits) - eased(span - done, span, bits)
    sine = _sine(_pi(precision) * done // (2 * span), precision)
    return sine * sine >> (2 * precision - bits)


def _sine_part(done: int, span: int, guard: int) -> int:
    """``span / (2 pi) sin(pi done / span)`` in units of ``2**-guard``, off by less than `_ERROR`."""
    precision = span.bit_length() + guard + _MARGIN
    pi = _pi(precision)
    near = min(done, span - done)
    if 4 * near <= span:
        sine = _sine(pi * near // span, precision)
    else:
        sine = _cosine(pi * (span - 2 * near) // (2 * span), precision)
    return (span * sine << guard) // (2 * pi)


def _sine(angle: int, precision: int) -> int:
    """The sine of an angle of 0 to pi / 4, both in units of ``2**-precision``; off by fewer than 40 units."""
    return _series(angle, angle, 2, precision)


def _cosine(angle: int, precision: int) -> int:
    """The cosine of an angle of 0 to pi / 4, as :func:`_sine`."""
    return _series(1 << precision, angle, 1, precision)


def _series(first: int, angle: int, divisor: int, precision: int) -> int:
    """Taylor's series: each term is the one before, times ``-angle^2 / (divisor (divisor + 1))``.

    Each of its terms is rounded down once, and the error of a term shrinks with the next ones.
    """
    square = angle * angle >> precision
    total = term = first
    while term:
        term = (term * square >> precision) // (divisor * (divisor + 1))
        total += -term if divisor % 4 in (1, 2) else term
        divisor += 2
    return total


@lru_cache(maxsize=64)
def _pi(precision: int) -> int:
    """Pi in units of ``2**-precision``, rounded down but for one unit: 16 atan(1/5) - 4 atan(1/239) (Machin 1706)."""
    spare = precision + 16
    return (16 * _inverse_tangent(5, spare) - 4 * _inverse_tangent(239, spare)) >> 16


def _inverse_tangent(of: int, precision: int) -> int:
    """The angle whose tangent is 1 / `of`, in units of ``2**-precision``."""
    power = (1 << precision) // of
    total, odd = power, 1
    while power:
        power //= -of * of
        odd += 2
        total += power // odd
    return total
