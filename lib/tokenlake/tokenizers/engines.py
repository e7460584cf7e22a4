"""The engines: the reference, which is the `tokenizers` backend of a tokenizer.json, and gigatoken on Arrow buffers;
how the two are compared; and a small BPE trained for demos and tests.

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
from collections.abc import Generator, Iterable, Iterator, Sequence
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

from tokenlake.arrays import Int32, Int64, Ragged, blocks, offsets_of, string_buffers
from tokenlake.errors import ConfigError, EngineMismatchError, MissingExtraError, TokenizerError
from tokenlake.tokenizer_guard.backend import deliberate, open_tokenizer
from tokenlake.tokenizers.allowlist import objection
from tokenlake.tokenizers.files import TOKENIZER_JSON, TokenizerFiles

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
    """`tokenizers.Tokenizer` of a tokenizer.json, with ids as numpy arrays.

    Args:
        files: the tokenizer.
        literal: special-token strings inside a text are plain text (`encode_special_tokens=True`); False lets
            them become their control ids, the default of `tokenizers`.
        threads: let the backend use all cores; the process-wide `TOKENIZERS_PARALLELISM` wins if it is set.

    Raises:
        TokenizerError: the json cannot be loaded, or its ids would be random (BPE dropout).
    """

    def __init__(self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False) -> None:
        self.files = files
        self.literal: Final = literal
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads else "false")
        self._backend: Any = load_backend(files.name, files.json_bytes, files.spec)
        dropout = files.spec["model"].get("dropout")
        if dropout:
            raise TokenizerError(
                f"tokenizer {files.name!r}: model.dropout is {dropout}, so equal texts get different ids; "
                "expected null. Set it to null in tokenizer.json",
                tokenizer=files.name,
            )
        self._backend.encode_special_tokens = literal

    @property
    def backend(self) -> Any:
        """The `tokenizers.Tokenizer` itself."""
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
                batch = self._backend.encode_batch_fast(_strings(text, first, last), add_special_tokens=False)
            rows += [np.array(encoding.ids, np.int32) for encoding in batch]
        ids = np.concatenate([np.empty(0, np.int32), *rows])
        return Ragged(ids, offsets_of([len(row) for row in rows]))

    def encode_piece(self, text: str) -> Int32:
        """Return the ids of one text."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, np.int32)

    def normalized(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer changes it."""
        normalizer: Any = self._backend.normalizer
        if normalizer is None:
            return text
        with deliberate(f"tokenizer {self.files.name!r}: normalizing"):
            return normalizer.normalize_str(text)

    def places(self, text: pa.LargeStringArray) -> list[Placed]:
        """Return (ids, start, stop) of every row: int32[k], int64[k], int64[k]; places are UTF-8 bytes.

        A blank that the tokenizer made up holds no byte: `tokenizers` gives it the character after it.
        """
        rows: list[Placed] = []
        for first, last in blocks(string_buffers(text)[0], BATCH_BYTES):
            texts = _strings(text, first, last)
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                batch = self._untrimmed.encode_batch(texts, add_special_tokens=False)
            rows += [self._placed(value, encoding) for value, encoding in zip(texts, batch, strict=True)]
        return rows

    def _placed(self, text: str, encoding: Any) -> Placed:
        ids = np.array(encoding.ids, np.int32)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        if not text.isascii():
            data = np.frombuffer(text.encode(), np.uint8)
            places = np.append(np.flatnonzero(data & 0xC0 != _CONTINUES), len(data))[places]
        start, stop = places[:, 0].copy(), places[:, 1].copy()
        blanks = [blank for blank in map(self.files.token_id, ("\u2581", "\u0120")) if blank is not None]
        made_up = np.flatnonzero(np.isin(ids[:-1], blanks) & (start[:-1] == start[1:]))
        stop[made_up] = start[made_up]
        return ids, start, stop

    @cached_property
    def _untrimmed(self) -> Any:
        """A backend whose post-processor does not trim blanks off the offsets, though they are the token's."""
        if not _trims(self.files.spec.get("post_processor")):
            return self._backend
        bare = json.dumps({**self.files.spec, "post_processor": None}).encode()
        backend = load_backend(self.files.name, bare)
        backend.encode_special_tokens = self.literal
        return backend

    @cached_property
    def cuts(self) -> CutRule | None:
        """How documents can be cut; only long ones need it, and it costs a look at the whole vocabulary."""
        return cut_rule(self.files, literal=self.literal)

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of `ids`, special tokens included."""
        with deliberate(f"tokenizer {self.files.name!r}: decoding"):
            return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what the post-processor puts before and after a document's own ids (BOS, EOS, CLS ...).

        Raises:
            TokenizerError: the post-processor does more than wrap a document.
        """
        found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        for text in _AFFIX_PROBES:
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                encoding = self._backend.encode(text, add_special_tokens=True)
                bare: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            if not bare and not encoding.ids:  # nothing to learn from a text without ids
                continue
            around = _around(encoding.ids, bare, encoding.special_tokens_mask)
            if around is None or around != (found or around):
                stage: dict[str, Any] = self.files.spec.get("post_processor") or {}
                raise TokenizerError(
                    f"tokenizer {self.files.name!r}: its post_processor ({stage.get('type')}) does more than put fixed "
                    f"ids around the ids of {text!r}; expected a prefix and a suffix. Use add_special_tokens: false",
                    tokenizer=self.files.name,
                )
            found = around
        return found or ((), ())


def load_backend(name: str, tokenizer_json: bytes, spec: dict[str, Any] | None = None) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json, which neither cuts nor pads.

    A tokenizer of an unusual form runs in a process of its own, with the same methods: see
    :func:`~tokenlake.tokenizer_guard.backend.open_tokenizer`.

    Args:
        name: name of the tokenizer, for messages.
        tokenizer_json: content of the file.
        spec: parsed and checked form of the same file, where the caller has it.
    """
    return open_tokenizer(name, tokenizer_json, spec)


def _trims(stage: dict[str, Any] | None) -> bool:
    return stage is not None and (
        stage.get("trim_offsets", False) or any(map(_trims, stage.get("processors", [])))
    )


def _strings(text: pa.LargeStringArray, first: int, last: int) -> list[str]:
    return cast("list[str]", text.slice(first, last - first).to_pylist())


def _around(
    ids: list[int], bare: list[int], mask: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return what lies before and after `bare` inside `ids`; `mask` is 1 for the post-processor's ids."""
    starts = range(len(ids) - len(bare) + 1) if bare else range(0)
    fits = [i for i in starts if ids[i : i + len(bare)] == bare]
    if not fits:
        return None
    start = next((i for i in fits if not any(mask[i : i + len(bare)])), fits[0])
    return tuple(ids[:start]), tuple(ids[start + len(bare) :])


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


END_OF_TEXT: Final = "<|endoftext|>"
_BYTES: Final = 256


def train_bpe(texts: Iterable[str], vocab_size: int = 4096, *, name: str = "trained-bpe") -> TokenizerFiles:
    """Train a GPT-2-style byte-level BPE with the special token ``<|endoftext|>`` (BOS and EOS).

    Args:
        texts: the training text, consumed once.
        vocab_size: at least 257; the result may be smaller when the text has too few distinct words.
        name: the tokenizer's name in messages.

    Returns:
        A tokenizer that every engine can run; equal texts give equal files.

    Raises:
        ConfigError: `vocab_size` is too small.
    """
    if vocab_size <= _BYTES:
        raise ConfigError(
            f"vocab_size is {vocab_size}, expected at least {_BYTES + 1}: 256 bytes and {END_OF_TEXT}"
        )
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    except ImportError as error:
        raise MissingExtraError(
            "training a tokenizer needs tokenizers: pip install 'tokenlake[etl]'"
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with deliberate("training a tokenizer"):
        tokenizer.train_from_iterator(iter(texts), trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        TOKENIZER_JSON: tokenizer.to_str().encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
    return TokenizerFiles(name=name, files=files)


def open_engine(
    files: TokenizerFiles, *, literal: bool, threads: bool, reference: ReferenceEngine | None
) -> GigatokenEngine:
    """Open gigatoken for a tokenizer; see :class:`tokenlake.tokenizers.encoder.OpenEngine`."""
    return GigatokenEngine(files, literal=literal, threads=threads)
