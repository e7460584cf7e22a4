"""The engines: the reference, which is the `tokenizers` backend of a tokenizer.json, and gigatoken on Arrow buffers;
and how the two are compared.

What the backend returns is by definition right. Truncation and padding that a tokenizer.json carries are switched off:
lengths are the pipeline's business and accounted there.

A long document is cut without changing its ids, so that memory stays bounded: the backend needs about 120 bytes for
each byte of a text, 24 GB for a document of 200 MB. In the forms of the allow-list there is a place where no token can
reach across: one space between two ASCII letters. Byte-level pre-tokenizers put a word's space before the word and
never look back; SentencePiece forms mark it as the word's first character, and where no piece of the vocabulary has the
mark inside, no merge crosses it. Other tokenizers get their documents whole.

gigatoken takes many documents at once only as an awkward array, and returns one; both are views of plain buffers, so
nothing is copied on the way in, and out comes one flat uint32 array with row offsets. A few documents, or long
ones, are encoded one by one: awkward costs 0.5 to 2 ms a call, and documents of 8 KB take 15% less CPU (GPT-2; 10% with
Llama 2; those of 4 KB as much, those of 1 KB a third more). Invalid UTF-8 crashes the process inside its SentencePiece
backend: the caller validates.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise
from threading import Condition
from typing import Any, Final, Protocol, cast, final

import numpy as np
import orjson
import pyarrow as pa

from tokenlake.base.arrays import Int32, Int64, Ragged, blocks, offsets_of, string_buffers
from tokenlake.errors import EngineMismatchError, MissingExtraError, TokenizerError
from tokenlake.etl.tokenizers.alignment import Aligner
from tokenlake.etl.tokenizers.allowlist import objection
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.tokenizer_guard.adapter import Backend, open_backend
from tokenlake.runtime.tokenizer_guard.backend import deliberate

_BORDER: Final = re.compile(rb"[A-Za-z] [A-Za-z]")
_MARK_INSIDE: Final = re.compile("[^\u2581]\u2581")


@final
@dataclass(frozen=True, slots=True)
class CutRule:
    """Cut before the space of a border; drop it where the normalizer prepends one to every piece."""

    drop_space: bool

    def pieces(self, text: pa.Buffer, size: int) -> Iterator[str]:
        """Yield the pieces of a UTF-8 text, each `size` bytes or a little more."""
        view, start = memoryview(text), 0
        while start < len(view):
            found = _BORDER.search(view, start + size)
            stop = found.start() + 1 if found else len(view)
            yield str(view[start:stop], "utf-8")
            start = stop + (self.drop_space and found is not None)


def cut_rule(files: TokenizerFiles, *, literal: bool) -> CutRule | None:
    """Return how documents of a tokenizer can be cut, or None when they cannot."""
    spec = files.spec
    kept = files.matched_tokens(literal=literal)
    if objection(files, literal=literal) is not None or any(" " in content for content in kept):
        return None
    if not spec["model"].get("byte_fallback"):
        return CutRule(drop_space=False)
    pre_tokenizer: dict[str, Any] = spec.get("pre_tokenizer") or {}
    normalizer: dict[str, Any] = spec.get("normalizer") or {}
    if not pre_tokenizer.get("split") and any(_MARK_INSIDE.search(token) for token in spec["model"]["vocab"]):
        return None
    return CutRule(drop_space=normalizer.get("type") == "Sequence")


# Encodings need ~120 times the text in memory: a batch of texts is this long, and a longer text is cut.
BATCH_BYTES: Final = 1 << 20
_CONTINUES: Final = 0x80  # of the form 10xxxxxx: not the first byte of a character
Placed = tuple[Int32, Int64, Int64]
"""The ids of a text, and where each begins and ends (bytes)."""
_AFFIX_PROBES: Final = ("a", "Hello world", " two  spaces", "1")


@final
class ReferenceEngine:
    """The tokenizer of a tokenizer.json as the installed `tokenizers` runs it, with ids as numpy arrays.

    Args:
        files: the tokenizer.
        literal: special-token strings inside a text are plain text (`encode_special_tokens=True`); False lets
            them become their control ids, the default of `tokenizers`.
        threads: let the backend use all cores; before tokenizers 1.0 the process-wide `TOKENIZERS_PARALLELISM` wins
            if it is set.
        backend: The tokenizer, where it is loaded already.

    Raises:
        TokenizerError: the json cannot be loaded, or its ids would be random (BPE dropout).
    """

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        literal: bool = True,
        threads: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.files = files
        self.literal: Final = literal
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads else "false")
        if backend is None:
            # Loading one takes 0.1 to 2 CPU seconds.
            backend = open_backend(files.name, files.json_bytes, files.spec, threads=threads)
        self._backend = backend
        dropout = files.spec["model"].get("dropout")
        if dropout:
            raise TokenizerError(
                f"tokenizer {files.name!r}: model.dropout is {dropout}, so equal texts get different ids; "
                "expected null. Set it to null in tokenizer.json",
                tokenizer=files.name,
            )

    def with_mode(self, *, literal: bool) -> ReferenceEngine:
        """Return the same tokenizer with another meaning of special tokens in a text."""
        return ReferenceEngine(self.files, literal=literal, backend=self._backend)

    @property
    def backend(self) -> Backend:
        """The tokenizer itself."""
        return self._backend

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of every row, without anything the post-processor adds.

        Only one batch becomes Python strings at a time.
        """
        starts, _ = string_buffers(text)
        rows: list[Int32] = []
        for first, last in blocks(starts, BATCH_BYTES):
            if starts[last] - starts[first] > BATCH_BYTES and self.cuts is not None:
                pieces = self.cuts.pieces(text[first].as_buffer(), BATCH_BYTES)
                rows.append(np.concatenate([self.encode_piece(piece) for piece in pieces]))
                continue
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                rows += self._backend.encode(_strings(text, first, last), literal=self.literal)
        ids = np.concatenate([np.empty(0, np.int32), *rows])
        return Ragged(ids, offsets_of([len(row) for row in rows]))

    def encode_piece(self, text: str) -> Int32:
        """Return the ids of one text."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            (ids,) = self._backend.encode([text], literal=self.literal)
        return ids

    def normalized(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer changes it."""
        with deliberate(f"tokenizer {self.files.name!r}: normalizing"):
            return self._backend.normalize(text)

    def places(self, text: pa.LargeStringArray) -> list[Placed]:
        """Return (ids, start, stop) of every row: int32[k], int64[k], int64[k]; places are UTF-8 bytes.

        A blank that the tokenizer made up holds no byte: `tokenizers` gives it the character after it.
        """
        rows: list[Placed] = []
        for first, last in blocks(string_buffers(text)[0], BATCH_BYTES):
            texts = _strings(text, first, last)
            if not self._backend.has_places:
                with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                    all_ids = self._backend.encode(texts, literal=self.literal)
                rows += [self._aligner.place(value, ids) for value, ids in zip(texts, all_ids, strict=True)]
                continue
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                batch = self._untrimmed.encode_with_places(texts, literal=self.literal)
            for value, (ids, characters) in zip(texts, batch, strict=True):
                rows.append(self._placed(value, ids, characters))
        return rows

    def _placed(self, text: str, ids: Int32, places: Int64) -> Placed:
        if not text.isascii():
            data = np.frombuffer(text.encode(), np.uint8)
            places = np.append(np.flatnonzero(data & 0xC0 != _CONTINUES), len(data))[places]
        start, stop = places[:, 0].copy(), places[:, 1].copy()
        blanks = [blank for blank in map(self.files.token_id, ("\u2581", "\u0120")) if blank is not None]
        made_up = np.flatnonzero(np.isin(ids[:-1], blanks) & (start[:-1] == start[1:]))
        stop[made_up] = start[made_up]
        return ids, start, stop

    @cached_property
    def _untrimmed(self) -> Backend:
        """A backend whose post-processor does not trim blanks off the offsets, though they are the token's."""
        if not _trims(self.files.spec.get("post_processor")):
            return self._backend
        bare = json.dumps({**self.files.spec, "post_processor": None}).encode()
        return open_backend(self.files.name, bare)

    @cached_property
    def _aligner(self) -> Aligner:
        return Aligner(self.files, literal=self.literal, normalize=self.normalized)

    @cached_property
    def cuts(self) -> CutRule | None:
        """How documents can be cut; only long ones need it, and it costs a look at the whole vocabulary."""
        return cut_rule(self.files, literal=self.literal)

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of `ids`, special tokens included."""
        with deliberate(f"tokenizer {self.files.name!r}: decoding"):
            return self._backend.decode([int(i) for i in ids])

    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the post-processor puts before and after a document's own ids (BOS, EOS, CLS ...).

        Raises:
            TokenizerError: the post-processor does more than wrap a document.
        """
        possible: list[Affixes] | None = None
        for text in _AFFIX_PROBES:
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                (ids,) = self._backend.encode([text], literal=self.literal, add_special_tokens=True)
                (bare,) = self._backend.encode([text], literal=self.literal)
            if not len(bare) and not len(ids):  # nothing to learn from a text without ids
                continue
            around = _around(ids.tolist(), bare.tolist())
            if possible is not None:
                around = [affixes for affixes in possible if affixes in around]
            if not around:
                stage: dict[str, Any] = self.files.spec.get("post_processor") or {}
                raise TokenizerError(
                    f"tokenizer {self.files.name!r}: its post_processor ({stage.get('type')}) does more than put fixed "
                    f"ids around the ids of {text!r}; expected a prefix and a suffix. Use add_special_tokens: false",
                    tokenizer=self.files.name,
                )
            possible = around
        if possible is None:
            return (), ()
        return self._likeliest(possible)

    def _likeliest(self, possible: list[Affixes]) -> Affixes:
        """Return the affixes whose lengths are those that the post-processor names.

        The ids alone leave a choice only where all probes have equal ids, and these ids are in the affixes, too.
        """
        if len(possible) == 1:
            return possible[0]
        before = _template_lengths(self.files.spec.get("post_processor"))
        for affixes in possible:
            if len(affixes[0]) == before:
                return affixes
        return possible[0]


Affixes = tuple[tuple[int, ...], tuple[int, ...]]
"""What the post-processor puts before and after the ids of a text."""


def _template_lengths(stage: dict[str, Any] | None) -> int:
    """Return how many ids a post-processor puts before a text."""
    if stage is None:
        return 0
    if stage.get("type") == "Sequence":
        return sum(_template_lengths(member) for member in stage["processors"])
    if stage.get("type") in ("BertProcessing", "RobertaProcessing"):
        return 1
    count = 0
    for piece in stage.get("single", ()):
        if "Sequence" in piece:
            return count
        token = piece["SpecialToken"]["id"]
        count += len(stage["special_tokens"][token]["ids"])
    return count


def _trims(stage: dict[str, Any] | None) -> bool:
    return stage is not None and (
        stage.get("trim_offsets", False) or any(map(_trims, stage.get("processors", [])))
    )


def _strings(text: pa.LargeStringArray, first: int, last: int) -> list[str]:
    return cast("list[str]", text.slice(first, last - first).to_pylist())


def _around(ids: list[int], bare: list[int]) -> list[Affixes]:
    """Return all pairs of what lies before and after `bare` inside `ids`."""
    pairs: list[Affixes] = []
    if not bare:
        return pairs
    for start in range(len(ids) - len(bare) + 1):
        stop = start + len(bare)
        if ids[start:stop] == bare:
            pairs.append((tuple(ids[:start]), tuple(ids[stop:])))
    return pairs


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


def open_engine(
    files: TokenizerFiles, *, literal: bool, threads: bool, reference: ReferenceEngine | None
) -> GigatokenEngine:
    """Open gigatoken for a tokenizer; see :class:`tokenlake.etl.tokenizers.encoder.OpenEngine`."""
    return GigatokenEngine(files, literal=literal, threads=threads)
