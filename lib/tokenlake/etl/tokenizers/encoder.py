"""Encode Arrow text to token ids, by the reference or by a faster backend.

An analogy: the reference is the court interpreter whose word counts. A fast backend is
a much faster colleague who was examined before being hired
(:mod:`tokenlake.etl.tokenizers.gate`), who hands over the dialects that are known to
cause trouble (:mod:`tokenlake.etl.tokenizers.allowlist`), and who is checked on samples
while working (:class:`Sampler`). One mistake ends the job.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Protocol, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import (
    Bools,
    Int32,
    Int64,
    Ragged,
    is_ascii,
    offsets_of,
    select,
    string_buffers,
    taken,
    text_of_strings,
    values,
)
from tokenlake.base.checks import require_one_of
from tokenlake.base.lazy_names import load
from tokenlake.errors import ConfigError, TokenizerError
from tokenlake.etl.tokenizers.allowlist import UnicodeGuard
from tokenlake.etl.tokenizers.backends import (
    WINDOW,
    CutRule,
    IdBackend,
    ReferenceBackend,
    Sample,
    require_equal,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.offsets import Located, Locator, Spans


def column_of_texts(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return texts as large_string[n].

    Args:
        texts: Texts, n of them.

    Raises:
        ConfigError: An entry is not a text, or holds half of a surrogate pair.
    """
    if isinstance(texts, str):
        raise ConfigError(
            "texts: got one text, must be a list of texts; use tokenize_text for one"
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"texts[{index}]: got {type(text).__name__}, must be text"
            )
    # Half of a surrogate pair is a Python text, but no UTF-8.
    try:
        return pa.array(texts, pa.large_string())  # pyright: ignore[reportReturnType, reportArgumentType]
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"texts: one contains half of a surrogate pair, which is not valid text: {error}"
        ) from error


def _none() -> Int64:
    """Return no rows: int64[0]."""
    return np.empty(0, np.int64)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The ids of a batch of texts.

    Attributes:
        offsets: int64[n + 1] from 0; row i has ids[offsets[i]:offsets[i + 1]].
        ids: int32[total], contiguous, without BOS or EOS that are not in the text.
        special_docs: int64[k], ascending, the rows whose text holds the string of a
            special token.
        special_counts: int64[k], the number of these strings in each of them.
        sampled: Number of documents that were compared with the reference.
        guarded: Number of documents that the reference encoded because of their
            characters.
    """

    offsets: Int64
    ids: Int32
    special_docs: Int64 = field(default_factory=_none)
    special_counts: Int64 = field(default_factory=_none)
    sampled: int = 0
    guarded: int = 0

    @property
    def special_tokens(self) -> int:
        """Number of occurrences of special tokens' strings in all texts."""
        return int(self.special_counts.sum())

    def __len__(self) -> int:
        return len(self.offsets) - 1


def checked(text: pa.LargeStringArray, name: str) -> bool:
    """Check a batch, and return whether all of it is ASCII.

    Args:
        text: Batch, which must be valid large_string without nulls.
        name: Name of the tokenizer, for messages.

    Raises:
        TokenizerError: The type is another one, there are nulls, the offsets are
            broken, or a text is not UTF-8.
    """
    if text.type != pa.large_string() or text.null_count:
        raise TokenizerError(
            f"tokenizer {name!r}: got {text.type} with {text.null_count} nulls, "
            "expected large_string without nulls"
        )
    offsets, text_bytes = string_buffers(text)
    if (
        offsets[0] < 0
        or offsets[-1] > text_bytes.size
        or np.any(offsets[1:] < offsets[:-1])
    ):
        raise TokenizerError(
            f"tokenizer {name!r}: the text's offsets are broken; expected ascending offsets inside the data"
        )
    # ASCII is valid UTF-8, and the check for it is much cheaper.
    if is_ascii(text):
        return True
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise TokenizerError(
            f"tokenizer {name!r}: the text is not valid UTF-8: {error}"
        ) from error
    return False


# Characters of a special token that a text is searched for first if there are many
# tokens.
_BEGIN: Final = 3


@final
class SpecialScan:
    """Count the occurrences of special tokens' strings, at 20 GB/s of text per core.

    Args:
        tokens: Strings. Of several that begin at the same place the longest counts.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        # An alternative that comes first wins, so a longer token stands before those
        # that it begins with.
        distinct = {token for token in tokens if token}
        longest_first = sorted(distinct, key=lambda token: (-len(token), token))
        self.pattern: Final = "|".join(re.escape(token) for token in longest_first)
        """Regular expression of all strings, "" for none."""
        # Arrow compiles a pattern for every call: hundreds of tokens take 0.3 ms, and
        # their few beginnings 10 us.
        begins = {token[:_BEGIN] for token in longest_first}
        self._begins = ""
        if 4 * len(begins) < len(tokens):
            self._begins = "|".join(re.escape(begin) for begin in sorted(begins))

    def count(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        """Return the rows that hold special tokens, and the number of tokens in each.

        Returns:
            int64[k], ascending, and int64[k].
        """
        if not self.pattern or not len(text):
            return _none(), _none()
        # Rows with the beginning of a token are candidates; only these are searched for
        # whole tokens.
        if self._begins:
            begin_counts = values(pc.count_substring_regex(text, self._begins))
            candidates = np.flatnonzero(begin_counts)
            if len(candidates) < len(text):
                rows, counts = self._counted(taken(text, candidates))
                return candidates[rows], counts
        return self._counted(text)

    def _counted(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        """Return the same by a search for whole tokens in all rows."""
        if not len(text):
            return _none(), _none()
        counts = values(pc.count_substring_regex(text, self.pattern))
        rows = np.flatnonzero(counts)
        return rows, counts[rows].astype(np.int64)

    def times(self, text: str) -> int:
        """Return the number of special tokens in a text."""
        if not self.pattern:
            return 0
        return len(re.findall(self.pattern, text))

    def first(self, text: str) -> str:
        """Return the first special token in a text, "" if there is none."""
        match = re.search(self.pattern, text)
        if match is None:
            return ""
        return match[0]


_MOST_DRAWS: Final = 1000
"""Largest number of documents that are drawn from one batch."""
_LEAST_COST: Final = 32
"""Bytes that the budget is charged for a sample that is shorter."""


@final
class Sampler:
    """Compare samples of the text with the reference.

    Documents are drawn until their windows make up the share `rate` of the bytes seen
    so far, at least one document. The draws are pseudo-random and the same in every
    run. They do not change the ids. A long document is compared in a window of
    :data:`WINDOW` bytes only: the reference is 30 times slower, and with whole long
    documents a share of 0.1% would cost 5% of the time.

    Args:
        rate: Share of the bytes, 0 to 1; 0 for no samples.
        engine: Name of the fast backend, for messages.

    Raises:
        ConfigError: The share is not from 0 to 1.
    """

    def __init__(self, rate: float, engine: str) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"sample_rate is {rate}, expected a share from 0 to 1")
        self._rate = rate
        self._backend = engine
        # A fixed seed: each run of a build compares the same documents.
        self._random = random.Random(20)
        # Bytes that may still be compared. The first batch has one sample at least.
        self._budget = 0.0
        if rate:
            self._budget = float(WINDOW)

    def check(
        self,
        text: pa.LargeStringArray,
        skip: Int64,
        result_of_row: Callable[[int], Sample],
        encode: Callable[[pa.LargeStringArray], Sequence[Sample]],
        expected: Callable[[pa.LargeStringArray], Sequence[Sample]],
    ) -> int:
        """Compare a sample of a batch and return its size.

        Args:
            text: Batch.
            skip: Rows (ascending) that the reference encoded already.
            result_of_row: Function that returns the result of the fast backend for a
                row of the batch.
            encode: The fast backend, for windows of long documents.
            expected: The reference.

        Raises:
            EngineMismatchError: The results differ. The error has the text, the
                expected and the actual ids.
        """
        rows = self._draw(text, skip)
        if not rows:
            return 0

        # 1. Cut a window out of each document.
        windows: list[str] = []
        cut_rows: list[int] = []
        cut_windows: list[str] = []
        for row in rows:
            window, is_whole = _window(text[row].as_buffer(), self._random)
            windows.append(window)
            if not is_whole:
                cut_rows.append(row)
                cut_windows.append(window)

        # 2. Encode the windows of long documents by the fast backend, and all windows
        #    by the reference.
        cut_results = encode(text_of_strings(cut_windows))
        results = dict(zip(cut_rows, cut_results, strict=True))
        expected_results = expected(text_of_strings(windows))

        # 3. Compare. A whole document has a result in the batch already.
        for row, window, expected_result in zip(
            rows, windows, expected_results, strict=True
        ):
            if row in results:
                result = results[row]
            else:
                result = result_of_row(row)
            require_equal(self._backend, window, expected_result, result)
        return len(rows)

    def _draw(self, text: pa.LargeStringArray, skip: Int64) -> list[int]:
        """Return rows of a batch until the budget is used up."""
        if not self._rate or not len(text):
            return []
        starts, _ = string_buffers(text)
        total_bytes = float(starts[-1] - starts[0])
        self._budget += self._rate * total_bytes
        skipped_rows = set(skip.tolist())

        # 1. Twice the draws that documents of the usual size would take.
        usual_cost = max(_LEAST_COST, min(WINDOW, total_bytes / len(text)))
        draw_count = min(
            len(text), _MOST_DRAWS, max(0, int(2 * self._budget / usual_cost)) + 8
        )

        # 2. Charge the budget for each. What is left of it, or a debt, goes to the next
        #    batch.
        rows: list[int] = []
        for row in self._random.sample(range(len(text)), draw_count):
            if self._budget <= 0:
                break
            if row not in skipped_rows:
                rows.append(row)
                row_bytes = int(starts[row + 1] - starts[row])
                self._budget -= max(_LEAST_COST, min(WINDOW, row_bytes))
        return rows


def _window(buffer: pa.Buffer, random_numbers: random.Random) -> tuple[str, bool]:
    """Return a window of a UTF-8 text, and whether it is the whole text.

    The window is cut between characters.
    """
    if buffer.size <= WINDOW:
        return buffer.to_pybytes().decode(), True
    # Bytes of a character that is cut at a border are left out.
    start = random_numbers.randrange(buffer.size - WINDOW)
    return buffer.slice(start, WINDOW).to_pybytes().decode(errors="ignore"), False


PIECE_BYTES: Final = 4 << 20
"""Bytes of a long document that are encoded at a time. The reference needs 120 times
as much memory.
"""

SAMPLE_RATE: Final = 0.0004
"""Share of the text that is compared with the reference, which is 30 to 60 times
slower than the fast backend.
"""

FAST_BACKENDS: Final[Mapping[str, str]] = {
    "words": "tokenlake.etl.tokenizers.words.backend:open_backend",
    "segments": "tokenlake.etl.tokenizers.segments:open_backend",
    "gigatoken": "tokenlake.etl.tokenizers.backends:open_backend",
}
"""Fast backend -> its :class:`OpenBackend`, as ``module:name``, which is imported
when the backend is first used.
"""

BACKENDS: Final = (*FAST_BACKENDS, "tokenizers")
SPECIAL_TOKENS_IN_TEXT: Final = ("literal", "encode", "fail")


class OpenBackend(Protocol):
    """Function that opens a fast backend.

    A backend uses the arguments that concern it.
    """

    def __call__(
        self,
        files: TokenizerFiles,
        *,
        literal: bool,
        threads: bool,
        reference: ReferenceBackend | None,
    ) -> IdBackend: ...


def open_fast_backend(
    backend: str,
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool = False,
    reference: ReferenceBackend | None = None,
) -> IdBackend:
    """Return a fast backend for a tokenizer that it supports.

    Args:
        backend: "words", "segments" or "gigatoken".
        files: Tokenizer.
        literal: Whether special tokens are plain text.
        threads: Whether one call may use all cores; gigatoken only.
        reference: Loaded reference of the same tokenizer, if there is one.
    """
    open_backend: OpenBackend = load(
        FAST_BACKENDS[backend], f"tokenizer backend {backend!r}", "etl"
    )
    return open_backend(files, literal=literal, threads=threads, reference=reference)


@final
class Encoder:
    """Encode Arrow text.

    The ids equal those of `tokenizers.Tokenizer.from_file(tokenizer.json)`.

    Args:
        files: Tokenizer.
        engine: Name of the backend: "tokenizers", or "words", "segments" or "gigatoken"
            if the gate chose it.
        special_tokens_in_text: Meaning of special tokens' strings in a text. "literal":
            plain text. "encode": control ids. "fail": plain text, and the caller
            refuses the rows of `Encoded.special_docs`.
        add_special_tokens: Whether :attr:`prefix` and :attr:`suffix` are those of the
            post-processor. If False, they are empty.
        sample_rate: Share of the text that is compared with the reference, 0 for none.
        threads: Whether one call uses all cores.
        loaded: Loaded reference and fast backend (None for "tokenizers"), if there are
            any.
        locator: Locator of the loaded backends, if there is one.

    Attributes:
        prefix: Ids that belong before every document. They are never part of
            :class:`Encoded`.
        suffix: Ids that belong after every document, likewise.

    Raises:
        ConfigError: The backend or the mode is unknown.
        TokenizerError: The tokenizer cannot be used.
    """

    def __init__(
        self,
        files: TokenizerFiles,
        *,
        engine: str,
        special_tokens_in_text: str = "literal",
        add_special_tokens: bool = True,
        sample_rate: float = SAMPLE_RATE,
        threads: bool = False,
        loaded: tuple[ReferenceBackend, IdBackend | None] | None = None,
        locator: Locator | None = None,
    ) -> None:
        require_one_of("engine", engine, BACKENDS)
        require_one_of(
            "special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT
        )

        # 1. The reference, and the fast backend unless the reference does all.
        literal = special_tokens_in_text != "encode"
        self.files = files
        self.engine = engine
        if loaded is None:
            reference = ReferenceBackend(files, literal=literal, threads=threads)
            fast_backend = None
            if engine != "tokenizers":
                fast_backend = open_fast_backend(
                    engine, files, literal=literal, threads=threads, reference=reference
                )
            loaded = (reference, fast_backend)
        self._reference, self._fast = loaded

        # 2. The checks around them.
        self._shared_locator = locator
        self._literal = literal
        self._guard = UnicodeGuard(files, engine)
        self._sampler = Sampler(sample_rate, engine)
        self._specials = SpecialScan(files.special_tokens)

        # 3. The ids around a document.
        self.prefix: tuple[int, ...] = ()
        self.suffix: tuple[int, ...] = ()
        if add_special_tokens:
            self.prefix, self.suffix = self._reference.affixes()

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Encode a batch. The ids of a row do not depend on the other rows.

        Args:
            text: large_string[n], no nulls.

        Raises:
            TokenizerError: There are nulls, or bytes that are not UTF-8. No backend
                gets these.
            EngineMismatchError: The fast backend differs from the reference on a
                sampled text.
        """
        encoded_ids, guarded = self._encoded(text)
        special_docs, special_counts = self._specials.count(text)
        sampled = 0
        if self._fast is not None:
            sampled = self._sample(self._fast, text, encoded_ids, guarded)
        return Encoded(
            offsets=encoded_ids.offsets,
            ids=encoded_ids.ids,
            special_docs=special_docs,
            special_counts=special_counts,
            sampled=sampled,
            guarded=len(guarded),
        )

    def special_tokens(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        """Return the rows with special tokens' strings, and the numbers of these.

        Returns:
            int64[k], ascending, and int64[k].
        """
        return self._specials.count(text)

    def encode_spans(
        self, text: pa.LargeStringArray, spans: Spans
    ) -> tuple[Encoded, Bools]:
        """Encode a batch, and return which ids hold a byte of spans: bool[total].

        A token that holds no byte (a blank that the tokenizer inserts) counts if the
        byte after it does. Special tokens are not counted, because the caller that
        knows the spans of a text has written it.

        Args:
            text: large_string[n], no nulls.
            spans: Spans of each text, in bytes.

        Raises:
            TokenizerError: There are nulls, or bytes that are not UTF-8.
            EngineMismatchError: The fast backend differs from the reference in ids or
                places of a sampled text.
        """
        encoded, blocks = self._locate(text)
        masks = [np.empty(0, np.bool_)]
        first_row = 0
        for block in blocks:
            masks.append(
                block.touched(spans.slice(first_row, first_row + len(block.text)))
            )
            first_row += len(block.text)
        return encoded, np.concatenate(masks)

    def encode_places(self, text: pa.LargeStringArray) -> tuple[Encoded, Int64, Int64]:
        """Encode a batch, and return the beginning and the end of each token.

        They are int64[total] each: UTF-8 bytes in the text of the row. As in the
        offsets of `tokenizers` they are whole characters: tokens that share a character
        all hold it. A blank that the tokenizer inserts holds no byte.

        Args:
            text: large_string[n], no nulls.

        Raises:
            TokenizerError: There are nulls, or bytes that are not UTF-8.
            EngineMismatchError: The fast backend differs from the reference in ids or
                places of a sampled text.
        """
        encoded, blocks = self._locate(text)
        starts = [_none()]
        stops = [_none()]
        for block in blocks:
            start, stop = block.places()
            starts.append(start)
            stops.append(stop)
        return encoded, np.concatenate(starts), np.concatenate(stops)

    def _locate(self, text: pa.LargeStringArray) -> tuple[Encoded, Iterable[Located]]:
        """Return the ids of a batch and, piece by piece, their places."""
        # 1. The reference alone: places follow from the ids if these spell the text.
        if self._fast is None and self._locator.sizes is not None:
            encoded, _ = self._encoded(text)
            plain = Encoded(offsets=encoded.offsets, ids=encoded.ids)
            return plain, self._locator.by_ids(text, encoded, _none())

        # 2. The reference alone, which gives the places with the ids.
        if self._fast is None:
            checked(text, self.files.name)
            located = list(self._locator.by_reference(text))
            lengths = [_none()]
            block_ids = [np.empty(0, np.int32)]
            for block in located:
                lengths.append(np.diff(block.offsets))
                block_ids.append(block.ids)
            offsets = offsets_of(np.concatenate(lengths))
            return Encoded(offsets=offsets, ids=np.concatenate(block_ids)), located

        # 3. A fast backend, whose ids and places are compared on a sample.
        rows, guarded = self._encoded(text)
        sampled = self._sampler.check(
            text,
            guarded,
            partial(self._locator.of_row, text, rows),
            partial(self._locator.of_texts, self._fast),
            self._reference.places,
        )
        encoded = Encoded(
            offsets=rows.offsets, ids=rows.ids, sampled=sampled, guarded=len(guarded)
        )
        return encoded, self._locator.by_ids(text, rows, guarded)

    @cached_property
    def _locator(self) -> Locator:
        """Locator of the loaded backends. It looks at the whole vocabulary."""
        return self._shared_locator or Locator(self._reference, self.engine)

    def _sample(
        self, fast: IdBackend, text: pa.LargeStringArray, encoded: Ragged, skip: Int64
    ) -> int:
        """Compare ids of a sample with the reference, and return its size."""

        def encoded_row(row: int) -> Sample:
            return (encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]],)

        def samples_by(backend: IdBackend, texts: pa.LargeStringArray) -> list[Sample]:
            return [(ids,) for ids in backend.encode(texts).rows()]

        return self._sampler.check(
            text,
            skip,
            encoded_row,
            partial(samples_by, fast),
            partial(samples_by, self._reference),
        )

    def encode_long(
        self, text: pa.LargeStringArray
    ) -> tuple[int, Iterator[Int32]] | None:
        """Encode one long document piece by piece, to save memory.

        Args:
            text: large_string[1], no nulls.

        Returns:
            Number of special tokens' strings in the text, and an iterator over arrays
            whose concatenation is the ids of the text. None if documents of this
            tokenizer cannot be cut exactly, or the text is too short.

        Raises:
            TokenizerError: The text is null or not UTF-8. The iterator raises it if a
                piece cannot be encoded.
            EngineMismatchError: The fast backend differs from the reference on a
                sample.
        """
        if text.nbytes <= 2 * WINDOW or self._reference.cuts is None:
            return None
        is_all_ascii = checked(text, self.files.name)
        # A piece is not guarded by itself, so a guarded document goes to the reference
        # as a whole.
        special_tokens = int(self._specials.count(text)[1].sum())
        fast_backend = self._fast
        if (
            fast_backend is not None
            and not is_all_ascii
            and len(self._guard.rows(text))
        ):
            fast_backend = None
        if fast_backend is not None:
            # The sample of a long document is a window, which does not need the ids of
            # the whole.
            self._sample(
                fast_backend, text, Ragged(np.empty(0, np.int32), _none()), _none()
            )
        return special_tokens, self._pieces(self._reference.cuts, text, fast_backend)

    def _pieces(
        self, rule: CutRule, text: pa.LargeStringArray, fast: IdBackend | None
    ) -> Iterator[Int32]:
        """Yield the ids of each piece of a long document."""
        for piece in rule.pieces(text[0].as_buffer(), PIECE_BYTES):
            if fast is None:
                yield self._reference.encode_piece(piece)
            else:
                yield fast.encode(text_of_strings([piece])).ids

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of ids by the reference, including special tokens."""
        return self._reference.decode(ids)

    def _encoded(self, text: pa.LargeStringArray) -> tuple[Ragged, Int64]:
        """Return the ids of a batch, and the rows that were guarded.

        Returns:
            Ids of all rows; and int64[k], ascending, the rows that the reference
            encoded in the place of the fast backend.
        """
        is_all_ascii = checked(text, self.files.name)
        if self._fast is None:
            return self._reference.encode(text), _none()
        # No code point of ASCII is guarded.
        guarded = _none()
        if not is_all_ascii:
            guarded = self._guard.rows(text)
        if not guarded.size:
            return self._fast.encode(text), guarded
        is_free = np.ones(len(text), np.bool_)
        is_free[guarded] = False
        guarded_rows = self._reference.encode(taken(text, guarded))
        free_rows = self._fast.encode(select(text, is_free))
        return free_rows.inserted(guarded_rows, guarded), guarded
