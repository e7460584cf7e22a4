"""The cosine in whole numbers, against the same by another way: decimals of 80
digits.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal, getcontext, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.runtime.mixing import easing as cosine

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)
spans = st.integers(1, 1 << 60).map(lambda half: 2 * half)


@pytest.fixture(autouse=True)
def _digits():
    with localcontext() as context:
        context.prec = 100
        yield


def sine(angle: Decimal) -> Decimal:
    """Of 0 to pi, by the series at a 32nd of the angle, doubled five times with its
    cosine.
    """
    small = angle / 32
    s = term = small
    for odd in range(3, 80, 2):
        term = -term * small * small / ((odd - 1) * odd)
        s += term
    c = (1 - s * s).sqrt()
    for _ in range(5):
        s, c = 2 * s * c, c * c - s * s
    return s


def area(done: int, span: int) -> Decimal:
    return Decimal(done) / 2 - Decimal(span) / (2 * PI) * sine(PI * done / span)


@given(spans, st.sampled_from([0, 40]), st.data())
def test_the_area_under_the_eased_step_is_the_exact_one_rounded_down(span, bits, data):
    assert getcontext().prec == 100
    done = data.draw(st.integers(0, span))
    exact = area(done, span) * 2**bits
    # Where it is whole, rounding noise decides.
    if abs(exact - exact.to_integral_value()) > Decimal("1e-50"):
        assert cosine.eased_area(done, span, bits) == int(
            exact.to_integral_value(ROUND_FLOOR)
        )


@given(spans, st.data())
def test_the_eased_part_is_the_cosine_to_all_bits_that_were_asked_for(span, data):
    done = data.draw(st.integers(0, span))
    exact = (
        1
        - (
            sine(PI / 2 - PI * done / span)
            if 2 * done <= span
            else -sine(PI * done / span - PI / 2)
        )
    ) / 2
    assert abs(
        Fraction(cosine.eased(done, span, 96), 1 << 96) - Fraction(exact)
    ) < Fraction(2, 1 << 96)


def test_an_answer_that_hangs_on_the_last_guard_bits_is_asked_again_with_more(
    monkeypatch,
):
    """With a single guard bit every first attempt is undecided; the answers stay the
    same.
    """
    want = [cosine.eased_area(done, 1 << 40, 3) for done in range(1, 1 << 40, 1 << 34)]
    monkeypatch.setattr(cosine, "_GUARD", 1)
    assert [
        cosine.eased_area(done, 1 << 40, 3) for done in range(1, 1 << 40, 1 << 34)
    ] == want
