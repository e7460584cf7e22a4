"""Compare the engines on a small sample while a build runs.

Samples are bounded: of a long document a window of :data:`WINDOW` bytes somewhere in it, encoded by both
engines, because the reference is 30 times slower and whole long documents would make 0.1% cost 5%.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.errors import ConfigError, EngineMismatchError
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.fast import GigatokenEngine
from tokenlake.tokenizers.reference import Reference

if TYPE_CHECKING:
    import numpy.typing as npt

WINDOW: Final = 4096
_MOST_DRAWS: Final = 1000  # in one batch
_LEAST_COST: Final = 32  # bytes that any sample costs, however short
_SHOWN_TEXT: Final = 200
_SHOWN_IDS: Final = 20


@final
class Sampler:
    """Draws documents until their windows make up the share `rate` of the bytes seen, one at least.

    Which ones is pseudo-random but the same in every run. It has no influence on the ids.
    """

    def __init__(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"sample_rate is {rate}, expected a share from 0 to 1")
        self._rate = rate
        self._random = random.Random(20)
        self._budget = float(WINDOW) if rate else 0.0

    def check(
        self,
        text: pa.LargeStringArray,
        offsets: npt.NDArray[np.int64],
        ids: npt.NDArray[np.int32],
        skip: npt.NDArray[np.int64],
        fast: GigatokenEngine,
        reference: Reference,
    ) -> int:
        """Compare a sample of a batch and return its size; rows of `skip` are the reference's own.

        Args:
            text: the batch.
            offsets, ids: what the fast engine made of it.
            skip: rows (ascending) that are not the fast engine's.

        Raises:
            EngineMismatchError: with the text, the expected and the actual ids.
        """
        rows = self._draw(text, skip)
        windows = {row: _window(text[row].as_buffer(), self._random) for row in rows}
        cut = [row for row, (_, whole) in windows.items() if not whole]
        made = dict(zip(cut, _encode_texts(fast, [windows[row][0] for row in cut]), strict=True))
        expected = reference.encode([window for window, _ in windows.values()])
        for (row, (window, whole)), want in zip(windows.items(), expected, strict=True):
            got = ids[offsets[row] : offsets[row + 1]] if whole else made[row]
            require_equal(window, want, got)
        return len(rows)

    def _draw(self, text: pa.LargeStringArray, skip: npt.NDArray[np.int64]) -> list[int]:
        if not self._rate or not len(text):
            return []
        starts, _ = string_buffers(text)
        total = float(starts[-1] - starts[0])
        self._budget += self._rate * total
        skipped = set(skip.tolist())
        # Twice the draws that documents of the usual size would take.
        usual = max(_LEAST_COST, min(WINDOW, total / len(text)))
        draws = min(len(text), _MOST_DRAWS, max(0, int(2 * self._budget / usual)) + 8)
        rows: list[int] = []
        for row in self._random.sample(range(len(text)), draws):
            if self._budget <= 0:
                break
            if row not in skipped:
                rows.append(row)
                self._budget -= max(_LEAST_COST, min(WINDOW, int(starts[row + 1] - starts[row])))
        return rows


def require_equal(text: str, expected: npt.NDArray[np.int32], got: npt.NDArray[np.int32]) -> None:
    """Raise EngineMismatchError unless the ids are equal."""
    if np.array_equal(expected, got):
        return
    same = min(len(expected), len(got))
    differ = np.flatnonzero(expected[:same] != got[:same])
    first = int(differ[0]) if differ.size else same
    shown = slice(max(0, first - 2), first + _SHOWN_IDS)
    raise EngineMismatchError(
        f"engine 'gigatoken' differs from the reference 'tokenizers' from id {first} on: expected "
        f"{expected[shown].tolist()}, got {got[shown].tolist()}, in the text {text[:_SHOWN_TEXT]!r}; "
        "this build must use engine: tokenizers",
        engine="gigatoken",
        text=text[:WINDOW],
        first_difference=first,
        expected=expected[shown].tolist(),
        got=got[shown].tolist(),
    )


def _window(buffer: pa.Buffer, rng: random.Random) -> tuple[str, bool]:
    """Return a window of a UTF-8 text, cut between characters, and whether it is the whole text."""
    if buffer.size <= WINDOW:
        return buffer.to_pybytes().decode(), True
    start = rng.randrange(buffer.size - WINDOW)
    return buffer.slice(start, WINDOW).to_pybytes().decode(errors="ignore"), False


def _encode_texts(fast: GigatokenEngine, texts: list[str]) -> list[npt.NDArray[np.int32]]:
    offsets, ids = fast.encode(pa.array(texts, pa.large_string()))
    return [ids[start:stop] for start, stop in pairwise(offsets)]
