"""Figures of an order: exact over all permutations of a few rows, known for known
orders, telling for bad ones.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loader_quality import is_like_chance
from benchmarks.mixture_quality import forms_of, mixture_quality
from benchmarks.shuffle_quality import (
    ShuffleQuality,
    delivered_rows,
    quality_of,
    shuffle_quality,
)
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import (
    EpochOrder,
    LaneLayout,
    OrderForm,
    RowOrder,
    StrandOrder,
    UniformOrder,
)

ROWS, GROUP, LANES, BATCH = 100_000, 256, 64, 256
GROUP_ROWS = np.array([GROUP] * (ROWS // GROUP) + [ROWS % GROUP])

ABOUT = (
    "delivered_apart_median",
    "stored_apart_median",
    "batch_variance",
    "batch_groups",
)


@pytest.mark.parametrize(("rows", "batch_size"), [(4, 3), (5, 2), (6, 2), (6, 4)])
def test_means_and_deviations_are_those_of_all_permutations(
    rows: int, batch_size: int
) -> None:
    group_of = np.array([0, 0, 0, 1, 2, 2])[:rows]
    every = [
        quality_of(np.array(order), batch_size, group_of).figures()
        for order in permutations(range(rows))
    ]
    for name, figure in every[0].items():
        values = np.array([one[name].value for one in every])
        assert {(one[name].uniform, one[name].deviation) for one in every} == {
            (figure.uniform, figure.deviation)
        }
        if not name.endswith("median"):
            assert np.isclose(values.mean(), figure.uniform), name
        if name not in ABOUT:
            assert np.isclose(values.std(), figure.deviation), name
        if name == "batch_groups":
            assert values.std() <= figure.deviation


def _rows_of(order: EpochOrder, batch_size: int, epoch: int) -> list[tuple[int, int]]:
    layout = LaneLayout(order.lengths, order.lanes, batch_size)
    found: list[tuple[int, int]] = []
    for position in range(order.rows):
        group, row = order.at(epoch, *layout.locate(np.array([position])))
        found.append((int(group[0]), int(row[0])))
    return found


@given(
    st.lists(st.integers(0, 5), max_size=8),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_delivered_rows_are_those_of_the_loader(
    group_rows: list[int], lanes: int, share: int, epoch: int
) -> None:
    order = EpochOrder(np.array(group_rows, np.int64), lanes=lanes, seed=3)
    stored = [
        (group, row) for group, rows in enumerate(group_rows) for row in range(rows)
    ]
    delivered, group_of = delivered_rows(order, lanes * share, epoch)
    assert [stored[row] for row in delivered.tolist()] == _rows_of(
        order, lanes * share, epoch
    )
    assert group_of.tolist() == [group for group, _ in stored]


@pytest.mark.parametrize(
    "delivered", [[0, 1, 2, 2], [0, 1, 2, 4], [-1, 0, 1, 2], [1, 2, 3, 4]]
)
def test_what_is_no_permutation_is_refused(delivered: list[int]) -> None:
    with pytest.raises(ConfigError, match="expected 0 to 3, each once"):
        quality_of(np.array(delivered), 2)


def _qualities(order: RowOrder) -> list[ShuffleQuality]:
    """Return the figures of three epochs."""
    return [shuffle_quality(order, BATCH, epoch) for epoch in range(3)]


def test_a_dataset_that_fits_into_memory_is_shuffled_as_by_chance() -> None:
    for quality in _qualities(UniformOrder(GROUP_ROWS, lanes=LANES, seed=3)):
        assert is_like_chance(quality)


def test_strands_mix_better_than_a_window() -> None:
    """Goals of the default order: a batch variance of at most 1.2, and an
    autocorrelation of at most 0.2.
    """
    group_rows = np.full(1_600, 64)
    for quality in _qualities(StrandOrder(group_rows, lanes=LANES, seed=3, strands=12)):
        assert quality.batch_variance.value <= 1.2
        assert quality.autocorrelation[BATCH].value <= 0.2
        groups = quality.batch_groups
        assert groups is not None and groups.value > 0.95 * groups.uniform
        # The neighbours of a row are far away, but not as far as by chance.
        assert not is_like_chance(quality)
    window = shuffle_quality(EpochOrder(group_rows, lanes=LANES, seed=3), BATCH)
    assert window.autocorrelation[BATCH].value > 0.9
    assert not is_like_chance(window)


def test_the_sources_of_a_mixture_mix_better_than_one_by_one() -> None:
    """The goals of the default order, for sources of different sizes and weights."""
    group_rows = {
        "web": np.full(3_000, 64),
        "code": np.full(900, 64),
        "books": np.full(30, 64),
    }
    weights = {"web": 0.65, "code": 0.3, "books": 0.05}
    # 64 rows of 2,048 ids have 256 KiB: 1,536 row groups are open in 384 MiB.
    forms = forms_of(group_rows, weights, lanes=8)
    assert forms["books"] == OrderForm(window="all")
    default = mixture_quality(group_rows, weights, forms, lanes=8, batches=600)
    for quality in default.values():
        assert quality.batch_variance <= 1.2
        assert quality.autocorrelation <= 0.2
    one_by_one = mixture_quality(
        group_rows,
        weights,
        dict.fromkeys(weights, OrderForm()),
        lanes=8,
        batches=600,
    )
    for name in ("web", "code"):
        assert one_by_one[name].batch_variance > 3
        assert one_by_one[name].autocorrelation > 0.5
        assert default[name].batch_groups > 5 * one_by_one[name].batch_groups
