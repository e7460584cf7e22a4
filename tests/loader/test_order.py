"""The order of a pass: every row in every epoch exactly once, and the inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mixing.support import position_of
from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import EpochOrder, EpochStream, Int64, LaneLayout

GROUPS = st.lists(st.integers(0, 7), min_size=1, max_size=12).filter(
    lambda groups: sum(groups) > 0
)


@settings(max_examples=40)
@given(GROUPS, st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(0, 2))
def test_positions_are_the_inverse(
    groups: list[int], lanes: int, epochs: int, first: int
):
    group_rows = np.array(groups, np.int64)
    order = EpochStream(
        EpochOrder(group_rows, lanes=lanes, seed=3),
        epochs=epochs,
        first=first,
        batch_size=8,
    )
    position = np.arange(order.length or 0)
    got = order.at(position // 8 * 8, np.full(len(position), 8), position % 8)
    for epoch in range(first + epochs + 1):
        there = got.epoch == epoch
        lane, place = order.place_of(0, epoch, got.group, got.row)
        assert ((place >= 0) == (first <= epoch < first + epochs)).all()
        assert (
            position_of(order.layout, lane[there], place[there]) == position[there]
        ).all()


def test_a_row_that_is_not_there_is_refused():
    layout = LaneLayout(np.array([2, 2], np.int64), 2, 2)
    with pytest.raises(
        ConfigError, match="positions: 4 is not in the stream; expected 0 to 3"
    ):
        layout.locate_in(*(np.array([value], np.int64) for value in (4, 2, 0)))


def at(order: EpochStream, rows: Int64) -> list[int]:
    return order.at(rows // 8 * 8, np.full(len(rows), 8), rows % 8).group.tolist()


def test_endless_lanes_go_on_with_the_next_epoch_each_for_itself():
    """Positions far away are computed like those nearby, and each lane's epochs are
    whole.
    """
    order = EpochStream(
        EpochOrder(np.array([3, 4, 3]), lanes=4, seed=1),
        epochs=None,
        first=0,
        batch_size=8,
    )
    assert order.length is None
    far = 8 * 10**12
    rows = np.arange(8)
    got = order.at(np.full(8, far), np.full(8, 8), rows)
    lengths = EpochOrder(np.array([3, 4, 3]), lanes=4, seed=1).lengths
    assert got.epoch.tolist() == [
        (2 * 10**12 + row % 2) // int(lengths[row // 2]) for row in range(8)
    ]


def test_the_order_is_pinned():
    order = EpochStream(
        EpochOrder(np.full(6, 5), lanes=4, seed=0), epochs=1, batch_size=8
    )
    assert at(order, np.arange(30)) == PINNED


PINNED = [
    2,
    2,
    4,
    4,
    1,
    1,
    5,
    5,
    2,
    2,
    4,
    0,
    1,
    1,
    5,
    3,
    2,
    4,
    0,
    0,
    1,
    5,
    3,
    3,
    4,
    0,
    5,
    3,
    0,
    3,
]
"""Row groups, place by place."""


@pytest.mark.parametrize("hosts", [64, 256, 512])
def test_many_hosts_share_no_row_groups(hosts: int):
    """Each decodes what it delivers, and little more."""
    batch, groups = 2048, np.full(8000, 16)
    order = EpochOrder(groups, lanes=512, seed=1)
    stream = EpochStream(order, epochs=1, first=0, batch_size=batch)
    batches, own = int(groups.sum()) // batch, batch // hosts
    for host in (0, hosts // 3, hosts - 1):
        start = np.repeat(np.arange(batches) * batch, own)
        rows = np.tile(np.arange(own * host, own * (host + 1)), batches)
        found = stream.at(start, np.full(len(start), batch), rows)
        assert 16 * len(np.unique(found.group)) <= 1.3 * len(rows)
