"""Every promise of the seed documents is shown by a test, or docs/seeds.md says why
it is not kept.
"""

from __future__ import annotations

from tests.seeds.table import marked, refused, table


def test_no_promise_is_open() -> None:
    assert [(one.number, one.text) for one in table() if one.state == "open"] == []


def test_marks_and_reasons_are_of_promises_that_there_are() -> None:
    numbers = {one.number for one in table()}
    assert numbers == set(range(1, 343))
    assert set(marked()) <= numbers
    assert set(refused()) <= numbers


def test_what_is_kept_is_not_refused() -> None:
    assert set(marked()) & set(refused()) == set()
