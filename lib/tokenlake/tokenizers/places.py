"""Where each token lies in its text, and which tokens a stretch of the text touches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tokenlake.spans import Spans
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.reference import deliberate

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@final
class PlacingReference:
    """The reference engine with the place of every token, by the offsets of `tokenizers`."""

    def __init__(self, files: TokenizerFiles, *, literal: bool) -> None:
        import tokenizers

        # A post-processor may trim blanks off the offsets, though they are the token's.
        spec = json.dumps({**files.spec, "post_processor": None})
        self._backend: Any = tokenizers.Tokenizer.from_str(spec)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = literal
        self._name = files.name

    def encode(self, texts: Sequence[str]) -> list[tuple[Int32, Int64, Int64]]:
        """Return (ids, start, stop) of every text: int32[k], int64[k], int64[k]; places are UTF-8 bytes."""
        found: list[tuple[Int32, Int64, Int64]] = []
        with deliberate(f"tokenizer {self._name!r}: encoding"):
            for text in texts:
                encoding = self._backend.encode(text, add_special_tokens=False)
                places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
                if not text.isascii():
                    places = _byte_places(text)[places]
                found.append((np.array(encoding.ids, np.int32), places[:, 0], places[:, 1]))
        return found


def touched(start: Int64, stop: Int64, offsets: Int64, spans: Spans) -> Bools:
    """Return which tokens hold a byte of a stretch.

    Args:
        start, stop: int64[total], bytes of each token in its own text.
        offsets: int64[n + 1], text i has tokens ``offsets[i]:offsets[i + 1]``.
        spans: stretches of the n texts.

    Returns:
        bool[total]. A token that holds no byte (a blank that the tokenizer made up) counts if the tokens on both
        of its sides are touched.
    """
    mask = np.zeros(len(start), np.bool_)
    for row in range(len(offsets) - 1):
        first, last = int(offsets[row]), int(offsets[row + 1])
        for at in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
            hit = (start[first:last] < spans.stop[at]) & (stop[first:last] > spans.start[at])
            mask[first:last] |= hit & (start[first:last] < stop[first:last])
            inside = np.flatnonzero(hit & (start[first:last] < stop[first:last]))
            if len(inside):
                mask[first + inside[0] : first + inside[-1] + 1] = True
    return mask


def _byte_places(text: str) -> Int64:
    """int64[characters + 1]: at which byte each character begins."""
    sizes = [len(character.encode()) for character in text]
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
