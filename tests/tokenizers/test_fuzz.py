"""A small fixed part of the long fuzz of `benchmarks/engine_gate.py`: the same strings in every run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from benchmarks.engine_gate import Pair, fuzz
from tests.tokenizers import tokenizer_samples as samples

STRINGS = 80


@pytest.mark.parametrize("name", sorted(samples.known()))
def test_ids_and_places_of_drawn_strings_equal_the_references(name: str) -> None:
    result = fuzz(samples.known()[name], STRINGS, first_seed=2026)
    assert result.strings >= STRINGS and result.tokens > 10 * STRINGS
    assert result.located > result.strings / 2


def test_the_fuzz_finds_an_engine_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Pair.__init__

    class Wrong:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def encode(self, text: pa.LargeStringArray) -> Any:
            offsets, ids = self._engine.encode(text)
            ids = ids.copy()
            for row, value in enumerate(text.to_pylist()):
                if "'" in value:
                    ids[offsets[row]] += 1
            return offsets, ids

    def sabotaged(self: Pair, files: Any, mode: str) -> None:
        right(self, files, mode)
        self._fast._fast = Wrong(self._fast._fast)

    monkeypatch.setattr(Pair, "__init__", sabotaged)
    with pytest.raises(AssertionError, match="the engines differ on"):
        fuzz(samples.byte_level(), STRINGS, first_seed=2026, shrink=False)
