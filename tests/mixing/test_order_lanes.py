"""Lanes: exact stretches, and one stream of batches out of them that can be entered
anywhere.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mixing.support import position_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import LaneLayout, lane_bounds


@given(st.integers(0, 2**63 - 1), st.integers(1, 300))
def test_bounds_are_exact_for_any_number_of_rows(rows: int, lanes: int) -> None:
    assert lane_bounds(rows, lanes).tolist() == [
        int(Fraction(lane * rows, lanes)) for lane in range(lanes + 1)
    ]


def test_bounds_are_pinned() -> None:
    assert lane_bounds(10, 4).tolist() == [0, 2, 5, 7, 10]
    thirds = [0, 1537228672809129301, 3074457345618258603, 4611686018427387905]
    assert lane_bounds(2**62 + 1, 3).tolist() == thirds
    assert lane_bounds(2, 5).tolist() == [0, 0, 0, 1, 1, 2]


def _walk(lengths: list[int], width: int) -> list[tuple[int, int]]:
    """The obvious, slow order: batch after batch, in a batch lane after lane; then
    what is left, lane after lane.
    """
    even, found = min(lengths), []
    for first in range(0, even, width):
        for lane in range(len(lengths)):
            found += [(lane, place) for place in range(first, min(first + width, even))]
    return found + [
        (lane, place)
        for lane, length in enumerate(lengths)
        for place in range(even, length)
    ]


layouts = st.tuples(
    st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 9)
)


@given(layouts)
def test_the_stream_is_that_of_a_walk(layout: tuple[list[int], int]) -> None:
    lengths, width = layout
    found = LaneLayout(np.array(lengths, np.int64), len(lengths), width * len(lengths))
    expected = _walk(lengths, width)
    assert found.rows == len(expected)
    lane, place = found.locate(np.arange(len(expected)))
    assert list(zip(lane.tolist(), place.tolist(), strict=True)) == expected
    assert position_of(found, lane, place).tolist() == list(range(len(expected)))


@given(layouts)
def test_places_before_a_position_are_those_of_a_walk(
    layout: tuple[list[int], int],
) -> None:
    lengths, width = layout
    found, seen = (
        LaneLayout(np.array(lengths, np.int64), len(lengths), width * len(lengths)),
        [0] * len(lengths),
    )
    for position, (lane, _) in enumerate(_walk(lengths, width)):
        assert found.places_before(position).tolist() == seen
        seen[lane] += 1
    assert found.places_before(sum(lengths)).tolist() == seen == lengths


@given(st.integers(0, 2**62), st.sampled_from([1, 2, 8, 64]), st.integers(1, 5))
def test_endless_lanes_never_run_out(position: int, lanes: int, width: int) -> None:
    endless = LaneLayout(None, lanes, lanes * width)
    assert endless.rows is None
    lane, place = endless.locate(np.array([position]))
    assert position_of(endless, lane, place).tolist() == [position]
    before = endless.places_before(position)
    assert sum(before.tolist()) == position
    assert before[lane[0]] == place[0]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            (None, 3, 4),
            "a batch of 4 rows cannot take equally many from each of 3 lanes",
        ),
        ((None, 0, 4), "0 lanes"),
        ((np.array([1]), 2, 4), r"lane lengths \[1\]; expected 2 numbers"),
        ((np.array([1, -1]), 2, 4), "not negative"),
        ((np.array([2**62, 2**62]), 2, 4), "expected fewer than 2\\^63"),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    layout: tuple[Any, int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LaneLayout(*layout)


def test_places_outside_of_the_stream_are_refused() -> None:
    layout = LaneLayout(np.array([2, 3]), 2, 2)
    with pytest.raises(
        ConfigError, match="positions: 5 is not in the stream; expected 0 to 4"
    ):
        layout.locate(np.array([0, 5]))
    with pytest.raises(
        ConfigError, match="places: 2 is not in the stream; expected 0 to 1"
    ):
        position_of(layout, np.array([0]), np.array([2]))
    with pytest.raises(
        ConfigError, match="lanes: 2 is not in the stream; expected 0 to 1"
    ):
        position_of(layout, np.array([2]), np.array([0]))
    with pytest.raises(
        ConfigError, match="position 6 is not in the stream; expected 0 to 5"
    ):
        layout.places_before(6)
    with pytest.raises(
        ConfigError, match="positions: -1 is not in the stream; expected 0 or more"
    ):
        LaneLayout(None, 1, 1).locate(np.array([-1]))
    with pytest.raises(ConfigError, match="0 rows or more and 1 lane or more"):
        lane_bounds(-1, 2)
