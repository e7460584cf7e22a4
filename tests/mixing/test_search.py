"""Searches whose lookups are joined, against searches that are done alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.runtime.mixing import (
    EpochOrder,
    Int64,
    OrderForm,
    Search,
    ShuffledOrder,
    search_together,
)

Orders = Callable[[], ShuffledOrder]
"""Makes an order of a few row groups in 2 lanes, which remembers no layout."""

FORMS = (
    OrderForm(),
    OrderForm(window=3),
    OrderForm(window="all"),
    OrderForm(interleave=1),
    OrderForm(interleave=4),
)


@st.composite
def orders(draw: st.DrawFn) -> Orders:
    group_rows = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    form = draw(st.sampled_from(FORMS))
    return partial(
        form.order,
        np.array([*group_rows, 2], np.int64),
        lanes=2,
        seed=draw(st.integers(0, 3)),
    )


def places(order: ShuffledOrder, epochs: list[int]) -> tuple[Int64, Int64, Int64]:
    """Return epochs, lanes and places of one row of each lane in each epoch."""
    lane = np.tile(np.arange(2), len(epochs))
    epoch = np.repeat(np.array(epochs, np.int64), 2)
    place = (epoch * 7 + 3) % order.lengths[lane]
    return epoch, lane, place


@given(
    st.lists(
        st.tuples(orders(), st.lists(st.integers(0, 9), max_size=5), st.booleans()),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None)
def test_searches_together_find_the_rows_of_searches_alone(
    requests: list[tuple[Orders, list[int], bool]],
) -> None:
    """Sizes and keys differ, some orders remember a layout, some searches are empty."""
    searches: list[Search[tuple[Int64, Int64]]] = []
    for make_order, epochs, remembers in requests:
        order = make_order()
        if remembers and epochs:
            order.at(*places(order, epochs[:1]))
        searches.append(order.search(*places(order, epochs)))
    found = search_together(searches)
    assert len(found) == len(requests)
    for (group, row), (make_order, epochs, _) in zip(found, requests, strict=True):
        order = make_order()
        expected_group, expected_row = order.at(*places(order, epochs))
        assert group.tolist() == expected_group.tolist()
        assert row.tolist() == expected_row.tolist()


def test_large_lookups_beside_small_ones_find_the_same_rows() -> None:
    sizes = [[5, 30, 9], [700, 900], [5, 30, 9]]
    orders = [EpochOrder(np.array(rows), lanes=1, seed=1) for rows in sizes]
    found = search_together(
        [order.search(2, 0, np.arange(order.rows)) for order in orders]
    )
    for rows, (group, row) in zip(sizes, found, strict=True):
        order = EpochOrder(np.array(rows), lanes=1, seed=1)
        expected_group, expected_row = order.at(2, 0, np.arange(order.rows))
        assert np.array_equal(group, expected_group)
        assert np.array_equal(row, expected_row)


def test_no_searches_have_no_results() -> None:
    assert search_together([]) == []
