"""Where each token lies in its text, and which tokens a stretch of the text touches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.ragged import offsets_of
from tokenlake.spans import Spans
from tokenlake.tokenizers.arrays import string_buffers
from tokenlake.tokenizers.reference import Reference, deliberate, in_batches
from tokenlake.tokenizers.unicode_guard import is_ascii

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Placed = tuple[Int32, Int64, Int64]

_CONTINUES: Final = 0x80  # of the form 10xxxxxx: not the first byte of a character
_LONGEST: Final = 3  # such bytes in a character


@final
class PlacingReference:
    """The reference engine with the place of every token, by the offsets of `tokenizers`.

    A blank that the tokenizer made up holds no byte: `tokenizers` gives it the character after it.
    """

    def __init__(self, reference: Reference, *, literal: bool) -> None:
        self._backend = _untrimmed(reference, literal)
        self.files = reference.files
        blanks = [reference.files.token_id(blank) for blank in ("\u2581", "\u0120")]
        self._blanks = [blank for blank in blanks if blank is not None]

    def encode(self, texts: Sequence[str]) -> list[Placed]:
        """Return (ids, start, stop) of every text: int32[k], int64[k], int64[k]; places are UTF-8 bytes."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            return [
                self._placed(text, encoding)
                for batch in in_batches(texts)
                for text, encoding in zip(
                    batch, self._backend.encode_batch(batch, add_special_tokens=False), strict=True
                )
            ]

    def _placed(self, text: str, encoding: Any) -> Placed:
        ids = np.array(encoding.ids, np.int32)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        if not text.isascii():
            places = _byte_places(text)[places]
        start, stop = places[:, 0].copy(), places[:, 1].copy()
        made_up = np.flatnonzero(np.isin(ids[:-1], self._blanks) & (start[:-1] == start[1:]))
        stop[made_up] = start[made_up]
        return ids, start, stop


def whole_characters(text: pa.LargeStringArray, start: Int64, stop: Int64) -> tuple[Int64, Int64]:
    """Widen stretches ``start:stop`` (int64[k], bytes of the array's own data) to whole characters."""
    starts, data = string_buffers(text)
    if is_ascii(text):
        return start, stop
    return _moved(start, data[: starts[-1]], -1), _moved(stop, data[: starts[-1]], 1)


def _moved(place: Int64, data: npt.NDArray[np.uint8], step: int) -> Int64:
    """Return places with those inside a character moved by single bytes to its border."""
    place, which = place.copy(), np.flatnonzero(data.take(place, mode="clip") & 0xC0 == _CONTINUES)
    for _ in range(_LONGEST):
        which = which[place[which] < len(data)]
        which = which[data[place[which]] & 0xC0 == _CONTINUES]
        place[which] += step
    return place


def touched(start: Int64, stop: Int64, offsets: Int64, spans: Spans, sizes: Int64) -> Bools:
    """Return which tokens hold a byte of a stretch.

    Args:
        start, stop: int64[total], bytes of each token in its own text.
        offsets: int64[n + 1], text i has tokens ``offsets[i]:offsets[i + 1]``.
        spans: stretches of the n texts.
        sizes: int64[n], bytes of each text.

    Returns:
        bool[total]. A token that holds no byte (a blank that the tokenizer made up) belongs to the byte after it: so
        whether that blank is a token of its own or part of the next one makes no difference.
    """
    base = offsets_of(sizes)[:-1]
    shift = np.repeat(base, np.diff(offsets))
    begin, end = start + shift, stop + shift
    if np.any(begin[1:] < begin[:-1]) or np.any(end[1:] < end[:-1]):
        return _touched_in_disorder(start, stop, offsets, spans)
    shift = np.repeat(base, np.diff(spans.offsets))
    return touched_in_order(begin, end, spans.start + shift, spans.stop + shift)


def touched_in_order(start: Int64, stop: Int64, first: Int64, last: Int64) -> Bools:
    """As :func:`touched`, for tokens one after the other and stretches ``first:last`` of all texts as one."""
    begin, end = np.searchsorted(stop, first, "right"), np.searchsorted(start, last, "left")
    before = np.append(np.where(start == stop, start, -1), -1)  # at -1: there is none before the first
    while (earlier := np.flatnonzero(before[begin - 1] == first)).size:
        begin[earlier] -= 1
    return _filled(len(start), begin, end)


def _filled(total: int, begin: Int64, end: Int64) -> Bools:
    """Return bool[total], True inside intervals whose borders ascend; they may overlap and be empty."""
    begin = np.maximum(begin, np.concatenate([np.zeros(1, np.int64), np.maximum.accumulate(end)[:-1]]))
    end = np.maximum(begin, end)
    edges = np.concatenate([np.zeros(1, np.int64), np.stack([begin, end], 1).ravel(), np.array([total])])
    inside = np.arange(len(edges) - 1) % 2 == 1
    return np.repeat(inside, np.diff(edges))


def _touched_in_disorder(start: Int64, stop: Int64, offsets: Int64, spans: Spans) -> Bools:
    """As :func:`touched`, stretch by stretch: a normalizer may have changed the order."""
    mask = np.zeros(len(start), np.bool_)
    for row, (first, last) in enumerate(pairwise(offsets.tolist())):
        begins, ends = start[first:last], stop[first:last]
        for at in range(int(spans.offsets[row]), int(spans.offsets[row + 1])):
            held = (ends > spans.start[at]) | ((begins == ends) & (begins == spans.start[at]))
            hit = (begins < spans.stop[at]) & held
            inside = np.flatnonzero(hit)
            if len(inside):
                mask[first + inside[0] : first + inside[-1] + 1] = True
    return mask


def _untrimmed(reference: Reference, literal: bool) -> Any:
    """Return a backend whose post-processor does not trim blanks off the offsets, though they are the token's."""
    spec = reference.files.spec
    if not _trims(spec.get("post_processor")):
        return reference.backend
    import tokenizers

    with deliberate(f"tokenizer {reference.files.name!r}: tokenizer.json cannot be loaded"):
        backend: Any = tokenizers.Tokenizer.from_str(json.dumps({**spec, "post_processor": None}))
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = literal
    return backend


def _trims(stage: dict[str, Any] | None) -> bool:
    return stage is not None and (
        stage.get("trim_offsets", False) or any(map(_trims, stage.get("processors", [])))
    )


def _byte_places(text: str) -> Int64:
    """int64[characters + 1]: at which byte each character begins."""
    data = np.frombuffer(text.encode(), np.uint8)
    return np.append(np.flatnonzero(data & 0xC0 != _CONTINUES), len(data))
