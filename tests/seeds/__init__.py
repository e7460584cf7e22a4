"""The promises of the seed documents, and the mark of the tests that hold them.

``promises.tsv`` lists every promise once, by number. A test that shows one says so, wherever it lies::

    @promise(53)
    def test_a_step_of_a_schedule_is_a_training_step(): ...

``python -m tests.seeds`` prints the table: each promise with its tests, or with the
reason in ``docs/seeds.md`` why it is not kept.
"""

from __future__ import annotations

import pytest


def promise(*numbers: int) -> pytest.MarkDecorator:
    """Mark a test as what shows the promises of these numbers."""
    return pytest.mark.promise(*numbers)
