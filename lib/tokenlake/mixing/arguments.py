"""What a mixture can be asked for: which names, sizes and ends fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Literal, get_args

import numpy as np

from tokenlake.errors import ConfigError
from tokenlake.mixing.schedule import WeightScheduler
from tokenlake.order import lane_bounds
from tokenlake.order.random import Int64

Stop = Literal["restart", "first_exhausted", "all_exhausted"]
ORDERS: Final = (2, 3)
STOPS: Final[tuple[str, ...]] = get_args(Stop)


def check_names(lengths: Mapping[str, int | None], scheduler: WeightScheduler) -> None:
    """Raise ConfigError unless both name the same sources, none with fewer than 0 rows."""
    if set(lengths) != set(scheduler.names):
        raise ConfigError(
            f"sources {sorted(lengths)} are mixed by the weights of {sorted(scheduler.names)}; "
            "expected the same names in both",
            expected=sorted(lengths),
            got=sorted(scheduler.names),
        )
    for name, rows in lengths.items():
        if rows is not None and rows < 0:
            raise ConfigError(f"source {name!r} has {rows} rows; expected 0 or more, or none for unknown")


def check_sizes(**sizes: int) -> None:
    """Raise ConfigError unless all are at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} is {size}; expected 1 or more")


def check_order(order: int) -> None:
    """Raise ConfigError unless there is such a version of the order."""
    if order not in ORDERS:
        raise ConfigError(f"order {order!r} of a mixture; expected one of {ORDERS}: a later release wrote it")


def check_stop(stop: str) -> None:
    """Raise ConfigError unless there is such a stop strategy."""
    if stop not in STOPS:
        near = get_close_matches(stop, STOPS, n=1, cutoff=0.4)
        raise ConfigError(
            f"stop {stop!r}; expected one of {', '.join(STOPS)}"
            + (f". Did you mean {near[0]!r}?" if near else ""),
            expected=list(STOPS),
            got=stop,
        )


def check_ends(
    names: Sequence[str],
    lengths: Sequence[int | None],
    rows_of: Int64,
    stop: str,
    ceiling: Callable[[int], int | None],
) -> None:
    """Raise ConfigError where a source has too few rows to go on, or too little weight ever to end.

    Args:
        names: of the sources.
        lengths: rows of each; None: unknown.
        rows_of: rows of each source in each lane, int64[lanes, J].
        stop: the stop strategy.
        ceiling: of a source: rows of it that each lane gets at least in all of time; None: there is no end to it.
    """
    lanes = len(rows_of)
    for at, (name, rows) in enumerate(zip(names, lengths, strict=True)):
        if rows is None:
            continue
        if stop != "all_exhausted" and rows < lanes:
            raise ConfigError(
                f"source {name!r} has {rows} rows for {lanes} lanes, so that a lane has none; expected at least a row "
                f"for each lane with stop {stop!r} (fewer lanes, or no such source)"
            )
        most = ceiling(at)
        if stop == "all_exhausted" and most is not None and most < int(rows_of[:, at].max()):
            raise ConfigError(
                f"source {name!r} can never be exhausted: of its {rows} rows in {lanes} lanes the schedule takes "
                f"{most} of each lane before its weight stays 0; expected a weight above 0 at the end of the "
                "schedule, another stop strategy, or no such source"
            )


def check_cut(rows: int | None, there: int | None, stop: str) -> None:
    """Raise ConfigError where a stream of `there` rows (None: endless) cannot be cut after `rows` (None: it is not)."""
    if rows is None:
        return
    if rows < 0:
        raise ConfigError(f"a mixture cut at {rows} rows; expected 0 or more")
    if there is not None and there < rows:
        raise ConfigError(
            f"a mixture of {rows} rows was asked for; its sources end after {there} rows with stop {stop!r}: "
            f"expected at most {there}, or stop 'restart'",
            expected=there,
            got=rows,
        )


def rows_by_lane(names: Sequence[str], lengths: Sequence[int | None], lanes: int) -> Int64:
    """Return the rows of each source in each lane, int64[lanes, J]; -1 where they are unknown.

    Raises:
        ConfigError: they are unknown and there are several lanes.
    """
    if lanes > 1 and None in lengths:
        raise ConfigError(
            f"source {names[lengths.index(None)]!r} has an unknown number of rows and cannot be cut into {lanes} "
            "lanes; expected lanes=1, or the length of every source"
        )
    columns = [np.full(lanes, -1) if rows is None else np.diff(lane_bounds(rows, lanes)) for rows in lengths]
    return np.stack(columns, axis=1).astype(np.int64)
