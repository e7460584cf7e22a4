"""Two tokenizer backends and their comparison: the reference, and gigatoken.

**The reference** is the installed `tokenizers` with a tokenizer.json. Its ids are
correct by definition. Truncation and padding of a tokenizer.json are switched off,
because the pipeline decides lengths.

**Long documents** are cut without changing their ids, so that memory stays bounded: the
reference needs about 120 bytes for each byte of a text, 24 GB for a document of 200 MB.
In the forms of the allow-list no token reaches across one space between two ASCII
letters. Byte-level pre-tokenizers put the space before the word and never look back.
SentencePiece forms mark it as the first character of the word, and no merge crosses it
if no piece of the vocabulary has the mark inside. For example, "one two" is cut into
"one" and " two". Documents of other tokenizers are not cut.

**gigatoken** takes many documents at once only as an awkward array, and returns one.
Both are views of plain buffers: the input is not copied, and the result is one flat
uint32 array with row offsets. A few documents, or long ones, are encoded one by one:
awkward costs 0.5 to 2 ms per call, and documents of 8 KB take 15% less CPU (GPT-2; 10%
with Llama 2; those of 4 KB the same, those of 1 KB a third more). Invalid UTF-8 crashes
the process inside its SentencePiece backend, so the caller validates.
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

from tokenlake.base.arrays import (
    Int32,
    Int64,
    Ragged,
    blocks,
    offsets_of,
    string_buffers,
)
from tokenlake.errors import EngineMismatchError, MissingExtraError, TokenizerError
from tokenlake.etl.tokenizers.alignment import Aligner
from tokenlake.etl.tokenizers.allowlist import objection
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.tokenizer_guard.adapter import (
    LibraryTokenizer,
    open_library_tokenizer,
)
from tokenlake.runtime.tokenizer_guard.loading import deliberate

_BORDER: Final = re.compile(rb"[A-Za-z] [A-Za-z]")
# A token of SentencePiece's style with the mark after another character.
_MARK_INSIDE: Final = re.compile("[^\u2581]\u2581")


@final
@dataclass(frozen=True, slots=True)
class CutRule:
    """A rule that cuts a text before one space between two ASCII letters.

    Attributes:
        drop_space: Whether this space is left out, because the normalizer puts one
            before every piece.
    """

    drop_space: bool

    def pieces(self, text: pa.Buffer, size: int) -> Iterator[str]:
        """Yield the pieces of a UTF-8 text, each `size` bytes or a little more."""
        view = memoryview(text)
        start = 0
        while start < len(view):
            border = _BORDER.search(view, start + size)
            if border is None:
                yield str(view[start:], "utf-8")
                return
            space = border.start() + 1
            yield str(view[start:space], "utf-8")
            start = space
            if self.drop_space:
                start += 1


def cut_rule(files: TokenizerFiles, *, literal: bool) -> CutRule | None:
    """Return the rule that cuts documents of a tokenizer, or None for no rule.

    Args:
        files: Tokenizer.
        literal: Whether special tokens in a text are plain text.
    """
    spec = files.spec
    if objection(files, literal=literal) is not None:
        return None
    # An added token with a space would be cut in two.
    if any(" " in content for content in files.matched_tokens(literal=literal)):
        return None
    if not spec["model"].get("byte_fallback"):
        return CutRule(drop_space=False)
    pre_tokenizer: dict[str, Any] = spec.get("pre_tokenizer") or {}
    normalizer: dict[str, Any] = spec.get("normalizer") or {}
    # Without a split, merges may cross a space if a token holds one inside.
    if not pre_tokenizer.get("split"):
        vocab = spec["model"]["vocab"]
        if any(_MARK_INSIDE.search(token) for token in vocab):
            return None
    return CutRule(drop_space=normalizer.get("type") == "Sequence")


# Encodings need ~120 times the text in memory: a batch of texts is this long, and a
# longer text is cut.
BATCH_BYTES: Final = 1 << 20
# A byte of the form 10xxxxxx is not the first byte of a character.
_CONTINUES: Final = 0x80
Placed = tuple[Int32, Int64, Int64]
"""The ids of a text, and where each begins and ends (bytes)."""
# Texts of different ids. One may be empty for a tokenizer, or have the ids of its
# affixes.
_AFFIX_PROBES: Final = ("a", "Hello world", " two  spaces", "1")


@final
class ReferenceBackend:
    """Reference backend: the installed `tokenizers` with ids as numpy arrays.

    Args:
        files: Tokenizer.
        literal: Whether strings of special tokens in a text are plain text
            (`encode_special_tokens=True`). If False, they become control ids, the
            default of `tokenizers`.
        threads: Whether the library uses all cores. Before tokenizers 1.0 the
            environment variable `TOKENIZERS_PARALLELISM` comes first if it is set.
        library: Loaded tokenizer. Default: it is loaded now.

    Raises:
        TokenizerError: The file cannot be loaded, or its ids would be random (BPE
            dropout).
    """

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        literal: bool = True,
        threads: bool = False,
        library: LibraryTokenizer | None = None,
    ) -> None:
        self.files = files
        self.literal: Final = literal
        # Units run in processes, one for each core; threads inside would compete.
        parallelism = "false"
        if threads:
            parallelism = "true"
        os.environ.setdefault("TOKENIZERS_PARALLELISM", parallelism)
        if library is None:
            # Loading one takes 0.1 to 2 CPU seconds.
            library = open_library_tokenizer(
                files.name, files.json_bytes, files.spec, threads=threads
            )
        self._library = library
        dropout = files.spec["model"].get("dropout")
        if dropout:
            raise TokenizerError(
                f"tokenizer {files.name!r}: model.dropout is {dropout}, so equal texts get different ids; expected "
                "null. Set it to null in tokenizer.json",
                tokenizer=files.name,
            )

    def with_mode(self, *, literal: bool) -> ReferenceBackend:
        """Return the same tokenizer with another meaning of special tokens."""
        return ReferenceBackend(self.files, literal=literal, library=self._library)

    @property
    def library(self) -> LibraryTokenizer:
        """The tokenizer itself."""
        return self._library

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of every row, without those that the post-processor adds.

        Only one batch becomes Python strings at a time.
        """
        starts, _ = string_buffers(text)
        rows: list[Int32] = []
        for first_row, last_row in blocks(starts, BATCH_BYTES):
            # A batch of more bytes is one long document.
            batch_bytes = starts[last_row] - starts[first_row]
            if batch_bytes > BATCH_BYTES and self.cuts is not None:
                pieces = self.cuts.pieces(text[first_row].as_buffer(), BATCH_BYTES)
                piece_ids = [self.encode_piece(piece) for piece in pieces]
                rows.append(np.concatenate(piece_ids))
                continue
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                rows += self._library.encode(
                    _strings(text, first_row, last_row), literal=self.literal
                )
        flat_ids = np.concatenate([np.empty(0, np.int32), *rows])
        return Ragged(flat_ids, offsets_of([len(row) for row in rows]))

    def encode_piece(self, text: str) -> Int32:
        """Return the ids of one text."""
        with deliberate(f"tokenizer {self.files.name!r}: encoding"):
            (ids,) = self._library.encode([text], literal=self.literal)
        return ids

    def normalized(self, text: str) -> str:
        """Return a text as the tokenizer's normalizer changes it."""
        with deliberate(f"tokenizer {self.files.name!r}: normalizing"):
            return self._library.normalize(text)

    def places(self, text: pa.LargeStringArray) -> list[Placed]:
        """Return the ids of every row, and the first byte and the end of each.

        They are int32[k], int64[k] and int64[k]; places are UTF-8 bytes in the text of
        the row. A blank that the tokenizer inserts holds no byte, although `tokenizers`
        gives it the character after it.
        """
        rows: list[Placed] = []
        for first_row, last_row in blocks(string_buffers(text)[0], BATCH_BYTES):
            texts = _strings(text, first_row, last_row)
            # 1. tokenizers 1.0 gives no places; they follow from the ids.
            if not self._library.has_places:
                with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                    all_ids = self._library.encode(texts, literal=self.literal)
                for row_text, ids in zip(texts, all_ids, strict=True):
                    rows.append(self._aligner.place(row_text, ids))
                continue

            # 2. Older ones give places in characters.
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                batch = self._untrimmed.encode_with_places(texts, literal=self.literal)
            for row_text, (ids, characters) in zip(texts, batch, strict=True):
                rows.append(self._placed(row_text, ids, characters))
        return rows

    def _placed(self, text: str, ids: Int32, places: Int64) -> Placed:
        """Return the ids of a text and their bytes.

        Args:
            text: Text.
            ids: int32[k].
            places: int64[k, 2], first and last (exclusive) character of each id.
        """
        # 1. The byte offset of each character, and the end of the text.
        if not text.isascii():
            text_bytes = np.frombuffer(text.encode(), np.uint8)
            is_first_byte = text_bytes & 0xC0 != _CONTINUES
            offsets = np.append(np.flatnonzero(is_first_byte), len(text_bytes))
            places = offsets[places]
        start = places[:, 0].copy()
        stop = places[:, 1].copy()

        # 2. A blank that begins where the next token begins was inserted.
        blanks: list[int] = []
        for token in ("\u2581", "\u0120"):
            blank = self.files.token_id(token)
            if blank is not None:
                blanks.append(blank)
        inserted = np.flatnonzero(np.isin(ids[:-1], blanks) & (start[:-1] == start[1:]))
        stop[inserted] = start[inserted]
        return ids, start, stop

    @cached_property
    def _untrimmed(self) -> LibraryTokenizer:
        """Backend without a post-processor that trims blanks off the offsets.

        A token holds its blanks.
        """
        if not _trims(self.files.spec.get("post_processor")):
            return self._library
        bare = json.dumps({**self.files.spec, "post_processor": None}).encode()
        return open_library_tokenizer(self.files.name, bare)

    @cached_property
    def _aligner(self) -> Aligner:
        """Aligner that finds places where the library gives none."""
        return Aligner(self.files, literal=self.literal, normalize=self.normalized)

    @cached_property
    def cuts(self) -> CutRule | None:
        """Rule that cuts documents.

        Only long ones need it, and it takes a look at the whole vocabulary.
        """
        return cut_rule(self.files, literal=self.literal)

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of ids, including special tokens."""
        with deliberate(f"tokenizer {self.files.name!r}: decoding"):
            return self._library.decode([int(token_id) for token_id in ids])

    def affixes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that the post-processor puts before and after a document.

        They are BOS, EOS, CLS and the like.

        Raises:
            TokenizerError: The post-processor does more than put ids around a document.
        """
        # The affixes that explain the ids of every probe. One text may leave several:
        # its own ids may occur twice among all ids.
        possible: list[Affixes] | None = None
        for text in _AFFIX_PROBES:
            with deliberate(f"tokenizer {self.files.name!r}: encoding"):
                (all_ids,) = self._library.encode(
                    [text], literal=self.literal, add_special_tokens=True
                )
                (text_ids,) = self._library.encode([text], literal=self.literal)
            # A text without ids shows nothing.
            if not len(text_ids) and not len(all_ids):
                continue
            around = _around(all_ids.tolist(), text_ids.tolist())
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
        """Return the affixes with the number of ids that the post-processor names.

        The ids alone leave a choice only where all probes have equal ids, and these ids
        are in the affixes, too.
        """
        if len(possible) == 1:
            return possible[0]
        prefix_length = _template_lengths(self.files.spec.get("post_processor"))
        for affixes in possible:
            if len(affixes[0]) == prefix_length:
                return affixes
        return possible[0]


Affixes = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids that the post-processor puts before and after those of a text."""


def _template_lengths(stage: dict[str, Any] | None) -> int:
    """Return the number of ids that a post-processor puts before a text."""
    if stage is None:
        return 0
    if stage.get("type") == "Sequence":
        return sum(_template_lengths(member) for member in stage["processors"])
    if stage.get("type") in ("BertProcessing", "RobertaProcessing"):
        return 1
    id_count = 0
    for template_piece in stage.get("single", ()):
        if "Sequence" in template_piece:
            return id_count
        token = template_piece["SpecialToken"]["id"]
        id_count += len(stage["special_tokens"][token]["ids"])
    return id_count


def _trims(stage: dict[str, Any] | None) -> bool:
    """Whether a post-processor trims blanks off the offsets of tokens."""
    if stage is None:
        return False
    if stage.get("trim_offsets", False):
        return True
    return any(_trims(member) for member in stage.get("processors", []))


def _strings(text: pa.LargeStringArray, first: int, last: int) -> list[str]:
    """Return rows of a batch as Python strings."""
    return cast("list[str]", text.slice(first, last - first).to_pylist())


def _around(ids: list[int], text_ids: list[int]) -> list[Affixes]:
    """Return the ids before and after each occurrence of `text_ids` in `ids`."""
    pairs: list[Affixes] = []
    if not text_ids:
        return pairs
    for text_start in range(len(ids) - len(text_ids) + 1):
        text_end = text_start + len(text_ids)
        if ids[text_start:text_end] == text_ids:
            pairs.append((tuple(ids[:text_start]), tuple(ids[text_end:])))
    return pairs


class IdBackend(Protocol):
    """Tokenizer backend: the reference, or a fast one that passed the gate."""

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of valid UTF-8 without nulls, contiguous, from 0."""
        ...


@final
class GigatokenBackend:
    """gigatoken on one tokenizer.json.

    Args:
        files: Tokenizer, which must have passed the gate.
        literal: Whether special added tokens are left out, so that their strings are
            plain text.
        threads: Whether one call uses all cores. It hangs in a forked child.

    Raises:
        TokenizerError: gigatoken refuses the file.
        MissingExtraError: gigatoken or awkward is not installed.
    """

    def __init__(
        self, files: TokenizerFiles, *, literal: bool = True, threads: bool = False
    ) -> None:
        self.files = files
        self._threads = threads
        self._is_free = Condition()
        # Number of threads that encode; -1 for one that must be alone.
        self._users = 0
        try:
            from gigatoken.gigatoken_rs import load_hf_json
        except ImportError as error:
            raise _missing() from error
        if find_spec("awkward") is None:
            raise _missing()
        with deliberate(
            f"tokenizer {files.name!r}: gigatoken cannot load tokenizer.json"
        ):
            tokenizer_json = files.json_bytes
            if literal:
                # gigatoken has no switch for this; it cannot find tokens that it lacks.
                tokenizer_json = _without_special_tokens(files)
            self._library: Any = load_hf_json(tokenizer_json)

    def encode(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of all rows."""
        if len(text) == 0:
            return Ragged(np.empty(0, np.int32), np.zeros(1, np.int64))
        with (
            deliberate(f"tokenizer {self.files.name!r}: encoding with gigatoken"),
            self._turn(text) as is_alone,
        ):
            if is_alone:
                return self._encode_one_by_one(text)
            layout = self._library.encode_batch(
                self._array(text), parallel=self._threads
            ).layout
        # Views of the result's buffers: the array is not converted to Python objects.
        offsets = np.asarray(layout.offsets.data, np.int64)
        flat_ids = np.asarray(layout.content.data).view(np.int32)[
            offsets[0] : offsets[-1]
        ]
        if offsets[0]:
            offsets = offsets - offsets[0]
        return Ragged(flat_ids, offsets)

    def _encode_one_by_one(self, text: pa.LargeStringArray) -> Ragged:
        """Return the ids of all rows, without awkward."""
        starts, text_bytes = string_buffers(text)
        rows: list[Any] = []
        for row_start, row_end in pairwise(starts.tolist()):
            rows.append(self._library.encode(text_bytes[row_start:row_end].tobytes()))
        offsets = offsets_of([len(row) for row in rows])
        return Ragged(np.concatenate(rows).view(np.int32), offsets)

    @contextmanager
    def _turn(self, text: pa.LargeStringArray) -> Generator[bool]:
        """Wait until the library may be used, and yield whether this thread is alone.

        Only a thread that is alone may encode documents one by one.
        """
        with self._is_free:
            self._is_free.wait_for(lambda: self._users >= 0)
            offsets, _ = string_buffers(text)
            is_long = int(offsets[-1] - offsets[0]) >= _LONG * len(text)
            is_quicker = len(text) <= FEW or is_long
            is_alone = is_quicker and not self._threads and self._users == 0
            if is_alone:
                self._users = -1
            else:
                self._users += 1
        try:
            yield is_alone
        finally:
            with self._is_free:
                if is_alone:
                    self._users = 0
                else:
                    self._users -= 1
                self._is_free.notify_all()

    def _array(self, text: pa.LargeStringArray) -> Any:
        """Return a batch as an awkward array over the same buffers."""
        # Long documents do not need awkward, whose import takes 0.25 CPU seconds.
        import awkward  # pyright: ignore[reportMissingTypeStubs]

        ak: Any = awkward
        offsets, text_bytes = string_buffers(text)
        chars = ak.contents.NumpyArray(text_bytes, parameters={"__array__": "char"})
        layout = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets), chars, parameters={"__array__": "string"}
        )
        return ak.Array(layout)


def _without_special_tokens(files: TokenizerFiles) -> bytes:
    """Return the tokenizer.json without its special added tokens."""
    plain_tokens = [token for token in files.added_tokens if not token.get("special")]
    spec = {**files.spec, "added_tokens": plain_tokens}
    try:
        return orjson.dumps(spec)
    except TypeError:
        # Half of a surrogate pair, or an integer of more than 64 bits.
        return json.dumps(spec).encode()


def _missing() -> MissingExtraError:
    """Return the error for a package of gigatoken that is not installed."""
    return MissingExtraError(
        "tokenizer backend 'gigatoken' needs its packages: pip install 'tokenlake[etl]'"
    )


FEW: Final = 256
"""Largest number of documents in a batch that are encoded one by one, whatever their
length.
"""
_LONG: Final = 6 << 10
"""Mean bytes of the documents in a batch from which on all are encoded one by one."""
WINDOW: Final = 4096
"""Largest number of bytes of a text that are compared."""
# Characters of a text, and ids, in a message.
_SHOWN_TEXT: Final = 200
_SHOWN_IDS: Final = 20
# Names of the entries of a sample, for a message.
_PARTS: Final = ("id", "the first byte of id", "the end of id")

Sample = tuple[Int32] | tuple[Int32, Int64, Int64]
"""The ids of a text, alone or with the first byte and the end of each."""


def require_equal(backend: str, text: str, expected: Sample, got: Sample) -> None:
    """Check that a backend gives the ids of the reference, and the places if compared.

    Args:
        backend: Name of the backend.
        text: Text, for the message.
        expected: Result of the reference.
        got: Result of the backend.

    Raises:
        EngineMismatchError: The results differ.
    """
    for part_name, expected_values, got_values in zip(
        _PARTS, expected, got, strict=False
    ):
        if np.array_equal(expected_values, got_values):
            continue
        # The first difference; of lists of different lengths it may be the end of the
        # shorter one.
        common_size = min(len(expected_values), len(got_values))
        first_difference = common_size
        differences = np.flatnonzero(
            expected_values[:common_size] != got_values[:common_size]
        )
        if differences.size:
            first_difference = int(differences[0])

        # The message shows the values around the first difference.
        shown = slice(max(0, first_difference - 2), first_difference + _SHOWN_IDS)
        expected_shown = expected_values[shown].tolist()
        got_shown = got_values[shown].tolist()
        raise EngineMismatchError(
            f"tokenizer backend {backend!r} differs from the reference 'tokenizers' from {part_name} "
            f"{first_difference} on: expected {expected_shown}, got {got_shown}, in the text {text[:_SHOWN_TEXT]!r}; "
            "this build must use tokenizer_backend: tokenizers",
            engine=backend,
            text=text[:WINDOW],
            first_difference=first_difference,
            expected=expected_shown,
            got=got_shown,
        )


def open_backend(
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool,
    reference: ReferenceBackend | None,
) -> GigatokenBackend:
    """Open gigatoken for a tokenizer.

    See :class:`tokenlake.etl.tokenizers.encoder.OpenBackend`.
    """
    return GigatokenBackend(files, literal=literal, threads=threads)
