"""Searches for rows, whose lookups in permutations are done together.

A lookup of a few numbers takes some hundred calls of numpy, however few the numbers
are. A batch of a mixture has a few rows of each of many sources. Therefore the search
for the rows of a source is a generator: it yields the lookups that it needs, one after
the other, and receives the numbers. :func:`search_together` advances all searches side
by side and joins their lookups into one.

Example: 64 sources need two lookups each, first for their row groups, then for the rows
in these. Together they take two lookups, not 128.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar, final

import numpy as np

from tokenlake.base.arrays import Int64, offsets_of
from tokenlake.runtime.mixing.random import Permutation, UInt64

Result = TypeVar("Result")

# Numbers of a lookup that is joined with others. Larger ones gain nothing: a size and a
# key for each number cost more than the calls.
_MOST_JOINED: Final = 512


@final
@dataclass(frozen=True, slots=True)
class Lookup:
    """Numbers of permutations to look up.

    Attributes:
        index: Index of each number, int64[n].
        size: Size of each permutation, int64[n], or one for all.
        key: Key of each permutation, uint64[n], or one for all, uint64[1].
    """

    index: Int64
    size: int | Int64
    key: UInt64

    @property
    def is_small(self) -> bool:
        """Whether it is joined with others."""
        return len(self.index) <= _MOST_JOINED

    def numbers(self) -> Int64:
        """Return the numbers, int64[n]."""
        return Permutation(self.size, self.key).at(self.index)


Search = Generator[Lookup, Int64, Result]
"""A search that yields lookups, receives their numbers and returns its result."""


def search_alone(search: Search[Result]) -> Result:
    """Return the result of one search."""
    return search_together([search])[0]


def search_together(searches: Sequence[Search[Result]]) -> list[Result]:
    """Return the results of searches, in their order."""
    results: dict[int, Result] = {}
    # Numbers that each search waits for; none at its start.
    numbers: dict[int, Int64 | None] = dict.fromkeys(range(len(searches)))
    while numbers:
        # 1. Each search advances to its next lookup, or to its end.
        lookups: dict[int, Lookup] = {}
        for index, numbers_of_search in numbers.items():
            try:
                lookups[index] = _next_lookup(searches[index], numbers_of_search)
            except StopIteration as end:
                results[index] = end.value
        # 2. All lookups are done.
        numbers = dict(zip(lookups, _look_up(list(lookups.values())), strict=True))
    return [results[index] for index in range(len(searches))]


def _next_lookup(search: Search[Any], numbers: Int64 | None) -> Lookup:
    """Return the next lookup of a search.

    Args:
        search: Search.
        numbers: Numbers of its last lookup; None at its start.

    Raises:
        StopIteration: The search has ended; the exception carries its result.
    """
    if numbers is None:
        return next(search)
    return search.send(numbers)


def _look_up(lookups: Sequence[Lookup]) -> list[Int64]:
    """Return the numbers of each lookup."""
    # Small lookups are joined; their numbers come in the order of the lookups.
    joined = _joined([lookup for lookup in lookups if lookup.is_small])
    numbers: list[Int64] = []
    for lookup in lookups:
        if lookup.is_small:
            numbers.append(next(joined))
        else:
            numbers.append(lookup.numbers())
    return numbers


def _joined(lookups: Sequence[Lookup]) -> Iterator[Int64]:
    """Yield the numbers of each lookup; all are looked up at the same time."""
    if len(lookups) == 1:
        yield lookups[0].numbers()
    if len(lookups) <= 1:
        return
    borders = offsets_of(np.array([len(lookup.index) for lookup in lookups])).tolist()
    size = np.empty(borders[-1], np.int64)
    key = np.empty(borders[-1], np.uint64)
    for lookup, (begin, end) in zip(lookups, pairwise(borders), strict=True):
        size[begin:end] = lookup.size
        key[begin:end] = lookup.key
    index = np.concatenate([lookup.index for lookup in lookups])
    numbers = Lookup(index, size, key).numbers()
    for begin, end in pairwise(borders):
        yield numbers[begin:end]
