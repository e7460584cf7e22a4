"""Caps of a mixture's sources: which rows are kept, what is allowed, and what is
missing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.errors import ConfigError
from tokenlake.runtime.mixing import SourceCaps, SourceMixture, constant, shortened

GROUPS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(GROUPS, st.integers(0, 1 << 64), st.data())
def test_a_larger_share_has_all_rows_of_a_smaller_one(
    groups: list[int], seed: int, data: st.DataObject
):
    group_rows = np.array(groups, np.int64)
    few = data.draw(st.integers(0, sum(groups)))
    many = data.draw(st.integers(few, sum(groups)))
    less, more = (
        shortened("code", group_rows, rows, seed=seed) for rows in (few, many)
    )
    assert int(less.sum()) == few and int(more.sum()) == many
    assert (less <= more).all() and (more <= group_rows).all()
    assert ((less > 0) & (less < group_rows)).sum() <= 1
    assert shortened("code", group_rows, None, seed=seed) is group_rows


def test_which_rows_are_kept_is_pinned():
    group_rows = np.full(8, 10)
    found = [
        shortened(name, group_rows, 25, seed=7).tolist() for name in ("code", "web")
    ]
    assert found == [[0, 0, 5, 10, 0, 10, 0, 0], [0, 0, 5, 10, 0, 0, 10, 0]]


@given(st.integers(1, 10**7), st.integers(1, 100), st.integers(1, 10**15))
def test_shares_are_the_decimal_numbers_that_are_written(
    rows: int, percent: int, budget: int
):
    caps = SourceCaps(max_fraction={"code": percent / 100})
    wanted = rows * percent // 100
    if percent == 100:
        assert caps.kept({"code": rows, "web": rows}) == {}
    elif wanted:
        assert caps.kept({"code": rows, "web": rows}) == {"code": wanted}
    both = SourceCaps(
        max_fraction=0.5, target_budget=4 * budget, experiment_budget=budget
    )
    if rows >= 8:
        assert both.kept({"code": rows}) == {"code": rows // 8}


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(1, 16)), min_size=1, max_size=5
    ),
    st.sampled_from([1, 2, 4]),
)
def test_epochs_of_each_source_are_what_a_mixture_draws(
    sources: list[tuple[int, int]], lanes: int
):
    """In quarters of an epoch."""
    rows = {str(at): each for at, (each, _) in enumerate(sources)}
    caps = SourceCaps(
        epochs={str(at): quarters / 4 for at, (_, quarters) in enumerate(sources)}
    )
    draws = caps.draws(rows)
    total = sum(draws.values())
    if min(rows.values()) < lanes or not total:
        return
    mixture = SourceMixture(
        rows,
        constant({name: drawn / total for name, drawn in draws.items()}),
        lanes=lanes,
        batch_size=lanes,
        rows=total,
        block_size=1000,
    )
    assert all(
        abs(draws[name] - Fraction(sources[int(name)][1], 4) * each) <= 0.5
        for name, each in rows.items()
    )
    drawn = dict(zip(mixture.names, mixture.drawn_before(total).tolist(), strict=True))
    # Counts are exact at the ends of batches; a stream that ends inside one has its
    # last rows of some lanes only.
    assert all(
        abs(drawn[name] - draws[name]) <= (lanes if lanes > 1 else 0) for name in rows
    )


def test_what_is_missing_is_said_source_by_source():
    caps = SourceCaps(max_repetitions={"code": 2, "web": 4})
    drawn, rows = (
        {"code": 3000, "web": 400, "math": 10**9},
        {"code": 1200, "web": 100, "math": 10},
    )
    means = dict.fromkeys(rows, Fraction(1000))
    line = "code: asked for 3.00 M tokens; 2 repetitions of 1.20 M tokens are 2.40 M, 600 k missing"
    assert caps.missing(drawn, rows, means) == [line]
    with pytest.raises(
        ConfigError, match=r"max_repetitions: code: asked for .* Give it less weight"
    ):
        caps.check(drawn, rows, means)
    SourceCaps(max_repetitions=2.5).check({"code": 3000}, {"code": 1200}, means)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_repetitions": 0}, "max_repetitions: got 0, must be a number above 0"),
        (
            {"max_repetitions": {"code": True}},
            r"max_repetitions\.code: got True, must be a number",
        ),
        (
            {"max_fraction": {"code": 1.5}},
            r"max_fraction\.code: got 1\.5, must be a share above 0, at most 1",
        ),
        (
            {"epochs": {"code": float("nan")}},
            r"epochs\.code: got nan, must be a number above 0",
        ),
        ({"target_budget": 10}, "experiment_budget: missing; both budgets together"),
        (
            {"target_budget": 10, "experiment_budget": 11},
            "got 11, more than the 10 of target_budget",
        ),
        (
            {"target_budget": 1.5, "experiment_budget": 1},
            "target_budget: got 1.5, must be a whole number",
        ),
    ],
)
def test_caps_that_cannot_be_are_refused(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        SourceCaps(**options)


def test_caps_are_of_the_sources():
    with pytest.raises(
        ConfigError, match="max_fraction: 'cod' is not a source; did you mean 'code'"
    ):
        SourceCaps(max_fraction={"cod": 0.5}).check_names({"code": 1, "web": 1})
    with pytest.raises(
        ConfigError,
        match="epochs: has no entry for web; expected a number for each source",
    ):
        SourceCaps(epochs={"code": 0.5}).check_names({"code": 1, "web": 1})
    with pytest.raises(
        ConfigError, match=r"code: a share of 0\.01 of its 99 rows is none"
    ):
        SourceCaps(max_fraction=0.01).kept({"code": 99})
