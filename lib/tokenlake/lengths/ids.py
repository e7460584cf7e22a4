"""Cutting ids where no text is needed: at a token, between characters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def cut_before(goes_on: Bools, least: Int64, at: Int64) -> Int64:
    """Return the last cut at or before each of `at` that goes through no character, but none before `least`.

    Args:
        goes_on: bool[total], which tokens begin in the midst of a character.
        least, at: int64[n], places among the tokens; ``least <= at <= total``.
    """
    found = at.copy()
    while True:
        wrong = np.flatnonzero((found > least) & (found < len(goes_on)))
        wrong = wrong[goes_on[found[wrong]]]
        if not len(wrong):
            return found
        found[wrong] -= 1


def cut_after(goes_on: Bools, at: Int64, most: Int64) -> Int64:
    """Return the first cut at or after each of `at` that goes through no character, but none after `most`."""
    found = at.copy()
    while True:
        wrong = np.flatnonzero(found < most)
        wrong = wrong[goes_on[found[wrong]]]
        if not len(wrong):
            return found
        found[wrong] += 1


def pieces(goes_on: Bools, begin: int, end: int, most: int) -> Int64:
    """Return where the pieces of the tokens ``begin:end`` begin, int64[k], none longer than `most` tokens.

    A piece ends before a character that does not fit any more; a character of more than `most` tokens is cut, for
    here nothing may be lost.
    """
    cuts = np.arange(begin, end, most)
    if not goes_on[cuts[1:]].any():
        return cuts
    found = [begin]
    while found[-1] + most < end:
        at = found[-1] + most
        while at > found[-1] and goes_on[at]:
            at -= 1
        found.append(at if at > found[-1] else found[-1] + most)
    return np.array(found, np.int64)
