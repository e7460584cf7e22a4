"""Padding: rows come back as they were, and everything else is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.preference_columns import IGNORED
from tokenlake.ragged import Ragged
from tokenlake.text.lengths import pad
from tokenlake.text.truncation import SIDES, Side

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12)
HOW = st.sampled_from(
    [
        {"strategy": "none"},
        {"strategy": "longest"},
        {"strategy": "max_length", "max_length": 12},
        {"strategy": "buckets", "boundaries": [1, 4, 5, 12]},
    ]
)


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(
        np.array([token for row in rows for token in row], np.int32), np.cumsum([0, *map(len, rows)])
    )


@given(ROWS, HOW, st.sampled_from(SIDES), st.integers(0, 9), st.randoms(use_true_random=False))
def test_every_row_comes_back_once(rows: list[list[int]], how: Any, side: Side, pad_id: int, random: Any):
    given_rows = ragged(rows)
    learned = np.array([random.random() < 0.5 for _ in given_rows.ids], np.bool_)
    made = pad(given_rows, pad_id=pad_id, side=side, loss=learned, **how)
    seen: list[int] = []
    for rectangle in made:
        assert rectangle.input_ids.shape == rectangle.attention_mask.shape == rectangle.labels.shape
        assert {rectangle.input_ids.dtype, rectangle.labels.dtype} == {np.dtype(np.int32)}
        seen += rectangle.rows.tolist()
        for at, row in enumerate(rectangle.rows.tolist()):
            size = len(rows[row])
            inside = slice(0, size) if side == "right" else slice(rectangle.width - size, None)
            mask = np.zeros(rectangle.width, np.int32)
            mask[inside] = 1
            assert rectangle.attention_mask[at].tolist() == mask.tolist()
            assert rectangle.input_ids[at][mask == 1].tolist() == rows[row]
            assert set(rectangle.input_ids[at][mask == 0].tolist()) <= {pad_id}
            own = learned[given_rows.offsets[row] : given_rows.offsets[row + 1]]
            assert rectangle.labels[at][mask == 1].tolist() == np.where(own, rows[row], IGNORED).tolist()
            assert set(rectangle.labels[at][mask == 0].tolist()) <= {IGNORED}
    assert sorted(seen) == list(range(len(rows)))
    assert [each.rows.tolist() for each in made] == [sorted(each.rows.tolist()) for each in made]


@given(ROWS.filter(bool))
def test_widths(rows: list[list[int]]):
    longest = max(map(len, rows))

    def widths(**how: Any) -> list[int]:
        return [each.width for each in pad(ragged(rows), pad_id=0, **how)]

    assert widths(strategy="longest") == [longest]
    assert widths(strategy="max_length", max_length=20) == [20]
    assert widths(strategy="none") == sorted(set(map(len, rows)))
    boundaries = [4, 9, 12]
    assert widths(strategy="buckets", boundaries=boundaries) == sorted(
        {next(edge for edge in boundaries if len(row) <= edge) for row in rows}
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"strategy": "max_length", "max_length": 2}, "row 1 has 3 tokens, the widest rectangle holds 2"),
        ({"strategy": "buckets", "boundaries": [1, 2]}, "row 1 has 3 tokens, the widest rectangle holds 2"),
        ({"strategy": "buckets", "boundaries": [4, 3]}, "expected ascending numbers"),
        ({"strategy": "buckets", "boundaries": []}, "expected ascending numbers"),
        ({"strategy": "most"}, "strategy is 'most'"),
        ({"side": "top"}, "side is 'top'"),
    ],
)
def test_what_cannot_be_padded_is_an_error(how: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        pad(ragged([[1], [2, 3, 4]]), pad_id=0, **how)
