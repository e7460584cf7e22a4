"""Every strategy places each token of each document exactly once, and says where
from lengths alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.config import ResolvedPack
from tokenlake.etl.packing import (
    STRATEGIES,
    Segments,
    assign_best_fit_decreasing,
    assign_exact_fit,
    assign_first_fit,
    plan_segments,
)

Int64 = npt.NDArray[np.int64]
Fit = Callable[[Int64, int, int | None], Int64]

LIMITS = st.sampled_from([None, 1, 2, 3, 7])
DOCUMENTS = st.one_of(
    st.lists(st.integers(1, 60), max_size=60),
    st.lists(st.sampled_from([3, 5, 8, 200]), max_size=60),
)


def planned(
    strategy: str, lengths: Int64, seq_length: int, **settings_: Any
) -> Segments:
    return plan_segments(
        lengths, ResolvedPack(width=seq_length, strategy=strategy, **settings_)
    )


def rows_of(cut: Segments) -> list[list[tuple[int, int, int]]]:
    """(document, start, length) of each row's pieces."""
    pieces = list(
        zip(cut.document.tolist(), cut.start.tolist(), cut.length.tolist(), strict=True)
    )
    return [
        pieces[a:b]
        for a, b in zip(cut.row_offsets[:-1], cut.row_offsets[1:], strict=True)
    ]


def used(cut: Segments) -> Int64:
    return np.diff(np.concatenate([[0], np.cumsum(cut.length)])[cut.row_offsets])


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    lengths=DOCUMENTS,
    seq_length=st.integers(1, 40),
    limit=LIMITS,
    packers=st.integers(1, 5),
)
@settings(max_examples=40)
def test_each_token_is_placed_exactly_once_in_rows_that_are_not_too_long(
    strategy: str, lengths: list[int], seq_length: int, limit: int | None, packers: int
) -> None:
    given_lengths = np.array(lengths, np.int64)
    cut = planned(
        strategy, given_lengths, seq_length, num_packers=packers, max_segments=limit
    )
    placed: dict[int, list[int]] = {}
    for document, start, length in sorted(
        piece for row in rows_of(cut) for piece in row
    ):
        assert length > 0
        placed.setdefault(document, []).extend(range(start, start + length))
    assert placed == {
        document: list(range(length)) for document, length in enumerate(lengths)
    }
    assert ((used(cut) > 0) & (used(cut) <= seq_length)).all()
    assert limit is None or (np.diff(cut.row_offsets) <= limit).all()
    again = planned(
        strategy, given_lengths, seq_length, num_packers=packers, max_segments=limit
    )
    assert rows_of(again) == rows_of(cut)


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit"])
@given(lengths=DOCUMENTS, seq_length=st.integers(1, 40), limit=LIMITS)
def test_a_document_that_fits_a_row_is_never_cut(
    strategy: str, lengths: list[int], seq_length: int, limit: int | None
) -> None:
    cut = planned(strategy, np.array(lengths, np.int64), seq_length, max_segments=limit)
    pieces = np.bincount(cut.document, minlength=len(lengths))
    assert all(
        count == 1
        for count, length in zip(pieces, lengths, strict=True)
        if length <= seq_length
    )


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit"])
@given(lengths=DOCUMENTS, seq_length=st.integers(1, 40))
def test_rows_come_in_the_order_of_their_first_tokens_and_pieces_in_the_order_of_documents(
    strategy: str, lengths: list[int], seq_length: int
) -> None:
    rows = rows_of(planned(strategy, np.array(lengths, np.int64), seq_length))
    assert [row[0][:2] for row in rows] == sorted(row[0][:2] for row in rows)
    assert all(row == sorted(row) for row in rows)


def by_the_book(
    sizes: Int64, capacity: int, most: int | None, *, decreasing: bool
) -> list[int]:
    """Best-fit decreasing, or first fit, item by item."""
    order = (
        sorted(range(len(sizes)), key=lambda i: -sizes[i])
        if decreasing
        else range(len(sizes))
    )
    bins: list[list[int]] = []  # room, items, since when
    found = [0] * len(sizes)
    for moment, item in enumerate(order):
        fits = [
            (room, 0 if most is None else -items, since, at)
            if decreasing
            else (at, 0, 0, at)
            for at, (room, items, since) in enumerate(bins)
            if room >= sizes[item] and (most is None or items < most)
        ]
        at = min(fits)[-1] if fits else len(bins)
        bins += [] if fits else [[capacity, 0, 0]]
        bins[at] = [bins[at][0] - int(sizes[item]), bins[at][1] + 1, moment]
        found[item] = at
    return found


SIZES = st.tuples(st.integers(1, 30), st.lists(st.integers(1, 30), max_size=60), LIMITS)


@given(SIZES)
@settings(max_examples=100)
def test_best_fit_decreasing_and_first_fit_equal_the_walk_item_by_item(
    problem: tuple[int, list[int], int | None],
) -> None:
    capacity, given_sizes, most = problem
    sizes = np.array([size for size in given_sizes if size <= capacity], np.int64)
    assert assign_best_fit_decreasing(sizes, capacity, most).tolist() == by_the_book(
        sizes, capacity, most, decreasing=True
    )
    assert assign_first_fit(sizes, capacity, most).tolist() == by_the_book(
        sizes, capacity, most, decreasing=False
    )


@pytest.mark.parametrize(
    "fit", [assign_best_fit_decreasing, assign_first_fit, assign_exact_fit]
)
@given(problem=SIZES)
def test_bins_hold_no_more_than_they_can_and_are_numbered_without_gaps(
    fit: Fit, problem: tuple[int, list[int], int | None]
) -> None:
    capacity, given_sizes, most = problem
    sizes = np.array([size for size in given_sizes if size <= capacity], np.int64)
    bins = fit(sizes, capacity, most)
    assert len(bins) == len(sizes)
    assert np.array_equal(np.unique(bins), np.arange(len(np.unique(bins))))
    if len(sizes):
        assert np.bincount(bins, sizes).max() <= capacity
        assert most is None or np.bincount(bins).max() <= most


GOLDEN = np.array([5, 3, 8, 2, 7, 1, 4, 19, 6, 2], np.int64)


def test_greedy_places_are_pinned() -> None:
    assert rows_of(planned("greedy", GOLDEN, 8)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (4, 0, 6)],
        [(4, 6, 1), (5, 0, 1), (6, 0, 4), (7, 0, 2)],
        [(7, 2, 8)],
        [(7, 10, 8)],
        [(7, 18, 1), (8, 0, 6), (9, 0, 1)],
        [(9, 1, 1)],
    ]
    assert rows_of(planned("greedy", GOLDEN, 8, max_segments=2)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (4, 0, 6)],
        [(4, 6, 1), (5, 0, 1)],
        [(6, 0, 4), (7, 0, 4)],
        [(7, 4, 8)],
        [(7, 12, 7), (8, 0, 1)],
        [(8, 1, 5), (9, 0, 2)],
    ]


def test_pool_places_are_pinned() -> None:
    assert rows_of(planned("pool", GOLDEN, 8, num_packers=2)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (6, 0, 4), (7, 0, 2)],
        [(4, 0, 7), (5, 0, 1)],
        [(7, 2, 8)],
        [(7, 10, 8)],
        [(7, 18, 1), (8, 0, 6)],
        [(9, 0, 2)],
    ]


def test_first_fit_places_are_pinned() -> None:
    assert rows_of(planned("first_fit", GOLDEN, 8)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (5, 0, 1), (6, 0, 4)],
        [(4, 0, 7)],
        [(7, 0, 8)],
        [(7, 8, 8)],
        [(7, 16, 3), (9, 0, 2)],
        [(8, 0, 6)],
    ]


def test_best_fit_places_are_pinned() -> None:
    assert rows_of(planned("best_fit", GOLDEN, 8)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (8, 0, 6)],
        [(4, 0, 7), (5, 0, 1)],
        [(6, 0, 4), (7, 16, 3)],
        [(7, 0, 8)],
        [(7, 8, 8)],
        [(9, 0, 2)],
    ]
    assert rows_of(planned("best_fit", GOLDEN, 8, max_segments=2)) == [
        [(0, 0, 5), (1, 0, 3)],
        [(2, 0, 8)],
        [(3, 0, 2), (8, 0, 6)],
        [(4, 0, 7), (5, 0, 1)],
        [(6, 0, 4), (7, 16, 3)],
        [(7, 0, 8)],
        [(7, 8, 8)],
        [(9, 0, 2)],
    ]


@pytest.mark.parametrize(
    ("limit", "rows", "rest"), [(3, 6, [(1, 20, 6), (1, 26, 1)]), (2, 7, [(1, 20, 7)])]
)
def test_a_row_takes_parts_of_a_rest_only_where_two_more_segments_may_come(
    limit: int, rows: int, rest: list[tuple[int, int, int]]
) -> None:
    """Two rests may meet in one gap, so a row with room for a single segment is left
    as it is.
    """
    cut = planned("best_fit", np.array([4, 27, 29]), 10, max_segments=limit)
    assert cut.rows == rows
    pieces = [piece for row in rows_of(cut) for piece in row]
    assert [piece for piece in pieces if piece[0] == 1 and piece[1] >= 20] == rest


def lognormal(middle: float, spread: float, count: int) -> Int64:
    return np.maximum(
        2, np.random.default_rng(7).lognormal(middle, spread, count)
    ).astype(np.int64)


def excess(lengths: Int64, cut: Segments, seq_length: int) -> int:
    """Rows more than the tokens need."""
    return cut.rows - -(-int(lengths.sum()) // seq_length)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param(lognormal(5.2, 0.8, 40_000), id="conversations"),
        pytest.param(
            lognormal(5.7, 0.3, 20_000).clip(150, 700),
            id="conversations of much the same length",
        ),
        pytest.param(lognormal(8.2, 1.0, 3_000), id="long documents"),
        pytest.param(lognormal(9.0, 1.2, 800), id="very long documents"),
    ],
)
def test_best_fit_leaves_one_slot_in_a_thousand_empty_at_most(lengths: Int64) -> None:
    cut = planned("best_fit", lengths, 2048)
    fill = int(lengths.sum()) / (cut.rows * 2048)
    assert fill >= 0.999 or excess(lengths, cut, 2048) <= 1
    # Documents that are cut anyway may be cut once more for it, but hardly any are.
    assert len(cut.document) <= int((-(-lengths // 2048)).sum()) * 1.02


def test_rests_of_cut_documents_fill_gaps_and_whole_documents_stay_whole() -> None:
    # Every rest is 5 of 8: two do not share a row. Whole documents of 5 leave gaps that
    # only rests can fill.
    lengths = np.array([13] * 200 + [5] * 200, np.int64)
    cut = planned("best_fit", lengths, 8)
    assert excess(lengths, cut, 8) <= 1
    assert np.bincount(cut.document)[200:].tolist() == [1] * 200
