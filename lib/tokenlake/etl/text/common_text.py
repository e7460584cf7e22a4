"""Lengths of the beginnings and the ends that two texts share.

They are found by halving: texts may be long, and a comparison of slices is a call of C
code where one of characters is a loop. Of "abcd" and "abxd" the first two characters are
equal; "cd" and "xd" differ, "c" and "x" too, so that the shared beginning has length 2.
"""

from __future__ import annotations


def shared_length(left: str, right: str) -> int:
    """Return the number of characters that two texts begin with."""
    shared = 0
    limit = min(len(left), len(right))
    # The first `shared` characters are equal, and those behind `limit` are not compared
    # any more.
    while shared < limit:
        middle = (shared + limit + 1) // 2
        if left[shared:middle] == right[shared:middle]:
            shared = middle
        else:
            limit = middle - 1
    return shared


def shared_end_length(left: str, right: str) -> int:
    """Return the number of characters that two texts end with."""
    shared = 0
    limit = min(len(left), len(right))
    # The last `shared` characters are equal, and those before `limit` are not compared
    # any more.
    while shared < limit:
        middle = (shared + limit + 1) // 2
        left_slice = left[len(left) - middle : len(left) - shared]
        right_slice = right[len(right) - middle : len(right) - shared]
        if left_slice == right_slice:
            shared = middle
        else:
            limit = middle - 1
    return shared
