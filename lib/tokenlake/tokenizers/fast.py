"""The fast engine, gigatoken on Arrow buffers, and how what it makes is compared with the reference.

gigatoken takes many documents at once only as an awkward array, and returns one; both are views of plain buffers, so
nothing is copied on the way in, and out comes one flat uint32 array with row offsets. A few documents, or long
ones, are encoded one by one: awkward costs 0.5 to 2 ms a call, and documents of 8 KB take 15% less CPU (GPT-2; 10% with
Llama 2; those of 4 KB as much, those of 1 KB a third more). Invalid UTF-8 crashes the process inside its SentencePiece
backend: the caller validates.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from threading import Condition
from typing import Any, Final, Protocol, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.arrays import Int32, Int64, Ragged, offsets_of, string_buffers
from tokenlake.errors import EngineMismatchError, MissingExtraError
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.reference import deliberate


class IdEngine(Protocol):
    """What makes ids of texts: the reference, or the fast engine behind the gate."""

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of valid UTF-8 without nulls, contiguous, from 0."""
        ...


@final
class GigatokenEngine:
    """gigatoken on one tokenizer.json.

    Args:
        files: the tokenizer; must have passed the gate.
        literal: leave the special=true added tokens out, so that their strings are plain text.
        threads: use all cores for one call (never in a forked child: it hangs there).

    Raises:
        TokenizerError: gigatoken refuses the json.
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False) -> None:
        self.files = files
        self._threads = threads
        self._free, self._users = Condition(), 0  # threads that encode; -1: one alone
        try:
            from gigatoken.gigatoken_rs import load_hf_json
        except ImportError as error:
            raise _missing() from error
        if find_spec("awkward") is None:
            raise _missing()
        with deliberate(f"tokenizer {files.name!r}: gigatoken cannot load tokenizer.json"):
            data = files.json_bytes
            if literal:
                kept = [token for token in files.added_tokens if not token.get("special")]
                bare = {**files.spec, "added_tokens": kept}
                try:
                    data = orjson.dumps(bare)
                except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
                    data = json.dumps(bare).encode()
            self._backend: Any = load_hf_json(data)

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of all rows."""
        if len(text) == 0:
            return Ragged(np.empty(0, np.int32), np.zeros(1, np.int64))
        with deliberate(f"tokenizer {self.files.name!r}: encoding with gigatoken"), self._turn(text) as alone:
            if alone:
                starts, data = string_buffers(text)
                rows = [self._backend.encode(data[a:b].tobytes()) for a, b in pairwise(starts.tolist())]
                return Ragged(np.concatenate(rows).view(np.int32), offsets_of([len(row) for row in rows]))
            layout = self._backend.encode_batch(self._array(text), parallel=self._threads).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data).view(np.int32)
        return Ragged(ids[offsets[0] : offsets[-1]], offsets - offsets[0] if offsets[0] else offsets)

    @contextmanager
    def _turn(self, text: pa.LargeStringArray) -> Generator[bool]:
        """Wait until the backend may be used; say whether alone, which encoding documents one by one must be."""
        with self._free:
            self._free.wait_for(lambda: self._users >= 0)
            offsets, _ = string_buffers(text)
            few = len(text) <= FEW or int(offsets[-1] - offsets[0]) >= _LONG * len(text)
            alone = few and not self._threads and not self._users
            self._users = -1 if alone else self._users + 1
        try:
            yield alone
        finally:
            with self._free:
                self._users = 0 if alone else self._users - 1
                self._free.notify_all()

    def _array(self, text: pa.LargeStringArray) -> Any:
        # Not before it is needed, which is not for long documents: it takes 0.25 CPU seconds.
        import awkward  # pyright: ignore[reportMissingTypeStubs]

        ak: Any = awkward
        offsets, data = string_buffers(text)
        chars = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets), chars, parameters={"__array__": "string"}
        )
        return ak.Array(layout)


def _missing() -> MissingExtraError:
    return MissingExtraError("engine 'gigatoken' needs its packages: pip install 'tokenlake[etl]'")


FEW: Final = 256
"""Documents that are encoded one by one, however short they are."""
_LONG: Final = 6 << 10  # bytes of a document, in the mean, from which on all are
WINDOW: Final = 4096
"""Bytes of a text that are compared."""
_SHOWN_TEXT: Final = 200
_SHOWN_IDS: Final = 20
_PARTS: Final = ("id", "the first byte of id", "the end of id")

Sample = tuple[Int32] | tuple[Int32, Int64, Int64]
"""The ids of a text, and where each begins and ends (bytes) where that is wanted."""


def require_equal(engine: str, text: str, expected: Sample, got: Sample) -> None:
    """Raise EngineMismatchError unless the ids that `engine` made, and the places if there are some, are equal."""
    for what, want, have in zip(_PARTS, expected, got, strict=False):
        if np.array_equal(want, have):
            continue
        same = min(len(want), len(have))
        differ = np.flatnonzero(want[:same] != have[:same])
        first = int(differ[0]) if differ.size else same
        shown = slice(max(0, first - 2), first + _SHOWN_IDS)
        wanted, found = want[shown].tolist(), have[shown].tolist()
        raise EngineMismatchError(
            f"engine {engine!r} differs from the reference 'tokenizers' from {what} {first} on: expected {wanted}, got "
            f"{found}, in the text {text[:_SHOWN_TEXT]!r}; this build must use engine: tokenizers",
            engine=engine,
            text=text[:WINDOW],
            first_difference=first,
            expected=wanted,
            got=found,
        )
