"""What the tests of rows share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.rowwise import pipeline_support
from tokenlake.etl.tokenizers import gate

_KNOWN: dict[Any, int] = {}


# Not for the whole session: tests of other packages check that the probe notices a
# wrong engine.
@pytest.fixture(scope="package", autouse=True)
def probes_are_remembered() -> Iterator[None]:
    """Probe an engine of a tokenizer once for the same texts: hundreds of these
    tests ask for the same.
    """
    probe = gate.probe

    def remembering(
        engine: str, fast: Any, reference: Any, sample_texts: Sequence[str] = ()
    ) -> int:
        key = (
            type(fast),
            reference.files.json_bytes,
            reference.literal,
            tuple(sample_texts),
        )
        if key not in _KNOWN:
            _KNOWN[key] = probe(engine, fast, reference, sample_texts)
        return _KNOWN[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "probe", remembering)
        yield


@pytest.fixture(autouse=True)
def threads_of_others() -> None:
    pipeline_support.OTHERS = set(threading.enumerate())
