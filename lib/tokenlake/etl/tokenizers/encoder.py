"""The encoder: text in, token ids out, by either engine.

An analogy: the reference engine is the court interpreter whose word counts; gigatoken is a much faster colleague who
was examined before being hired (:mod:`tokenlake.etl.tokenizers.gate`), who hands over the dialects known to
give trouble (:mod:`tokenlake.etl.tokenizers.allowlist`), and who is checked on samples while working
(:class:`Sampler`). One mistake ends the job.
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
from tokenlake.etl.tokenizers.engines import (
    WINDOW,
    CutRule,
    IdEngine,
    ReferenceEngine,
    Sample,
    require_equal,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.offsets import Located, Locator, Spans


def column_of_texts(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return texts as large_string[n].

    Raises:
        ConfigError: one is no text, or holds half of a surrogate pair.
    """
    if isinstance(texts, str):
        raise ConfigError("texts: got one text, must be a list of texts; use tokenize_text for one")
    for place, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"texts[{place}]: got {type(text).__name__}, must be text")
    try:
        return pa.array(texts, pa.large_string())  # pyright: ignore[reportReturnType, reportArgumentType]
    except UnicodeEncodeError as error:
        raise ConfigError(f"texts: one holds half of a surrogate pair, which is no text: {error}") from error


def _none() -> Int64:
    return np.empty(0, np.int64)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The ids of a batch of texts.

    Attributes:
        offsets: int64[n + 1] from 0; row i has ids[offsets[i]:offsets[i + 1]].
        ids: int32[total], contiguous; never holds BOS or EOS that were not in the text.
        special_docs: int64[k], ascending: the rows whose text holds a special token's string.
        special_counts: int64[k]: how many each of them holds.
        sampled: documents compared between the engines.
        guarded: documents given to the reference because of their characters.
    """

    offsets: Int64
    ids: Int32
    special_docs: Int64 = field(default_factory=_none)
    special_counts: Int64 = field(default_factory=_none)
    sampled: int = 0
    guarded: int = 0

    @property
    def special_tokens(self) -> int:
        """Occurrences of special tokens' strings in all texts."""
        return int(self.special_counts.sum())

    def __len__(self) -> int:
        return len(self.offsets) - 1


def checked(text: pa.LargeStringArray, name: str) -> bool:
    """Return whether all text is ASCII; raise unless it is valid large_string without nulls."""
    if text.type != pa.large_string() or text.null_count:
        raise TokenizerError(
            f"tokenizer {name!r}: got {text.type} with {text.null_count} nulls, "
            "expected large_string without nulls"
        )
    offsets, data = string_buffers(text)
    if offsets[0] < 0 or offsets[-1] > data.size or np.any(offsets[1:] < offsets[:-1]):
        raise TokenizerError(
            f"tokenizer {name!r}: the text's offsets are broken; expected them to ascend inside the data"
        )
    if is_ascii(text):
        return True
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise TokenizerError(f"tokenizer {name!r}: the text is not valid UTF-8: {error}") from error
    return False


_BEGIN: Final = 3  # characters of a special token that are looked for first, where there are many


@final
class SpecialScan:
    """Counts the occurrences of special tokens' strings, 20 GB/s of text per core.

    Args:
        tokens: the strings; overlapping ones count once, the longer first.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        longest_first = sorted({token for token in tokens if token}, key=lambda token: (-len(token), token))
        self.pattern: Final = "|".join(map(re.escape, longest_first))
        """A regular expression of them all, "" for none."""
        begins = {token[:_BEGIN] for token in longest_first}
        # Arrow compiles a pattern for every call: hundreds of tokens take 0.3 ms, and their few beginnings 10 us.
        self._begins = "|".join(map(re.escape, sorted(begins))) if 4 * len(begins) < len(tokens) else ""

    def count(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        """Return the rows that hold special tokens (int64[k], ascending) and how many each (int64[k])."""
        if not self.pattern or not len(text):
            return _none(), _none()
        if self._begins:
            some = np.flatnonzero(values(pc.count_substring_regex(text, self._begins)))
            if len(some) < len(text):
                rows, counts = self._counted(taken(text, some))
                return some[rows], counts
        return self._counted(text)

    def _counted(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        if not len(text):
            return _none(), _none()
        counts = values(pc.count_substring_regex(text, self.pattern))
        rows = np.flatnonzero(counts)
        return rows, counts[rows].astype(np.int64)

    def times(self, text: str) -> int:
        """Return how many special tokens a text holds."""
        return len(re.findall(self.pattern, text)) if self.pattern else 0

    def first(self, text: str) -> str:
        """Return the first special token in a text, "" where there is none."""
        found = re.search(self.pattern, text)
        return found[0] if found else ""


_MOST_DRAWS: Final = 1000  # in one batch
_LEAST_COST: Final = 32  # bytes that any sample costs, however short


@final
class Sampler:
    """Draws documents until their windows make up the share `rate` of the bytes seen, one at least.

    Which ones is pseudo-random but the same in every run. It has no influence on the ids. Of a long document a window
    of :data:`WINDOW` bytes somewhere in it is encoded by both engines: the reference is 30 times slower, and whole long
    documents would make 0.1% cost 5%.
    """

    def __init__(self, rate: float, engine: str) -> None:
        if not 0 <= rate <= 1:
            raise ConfigError(f"sample_rate is {rate}, expected a share from 0 to 1")
        self._rate, self._engine = rate, engine
        self._random = random.Random(20)
        self._budget = float(WINDOW) if rate else 0.0

    def check(
        self,
        text: pa.LargeStringArray,
        skip: Int64,
        made: Callable[[int], Sample],
        again: Callable[[pa.LargeStringArray], Sequence[Sample]],
        expected: Callable[[pa.LargeStringArray], Sequence[Sample]],
    ) -> int:
        """Compare a sample of a batch and return its size.

        Args:
            text: the batch.
            skip: rows (ascending) that are not the fast engine's.
            made: what the fast engine made of a row.
            again: what it makes of texts, for windows of long documents.
            expected: what the reference makes of texts.

        Raises:
            EngineMismatchError: with the text, the expected and the actual ids.
        """
        if not (rows := self._draw(text, skip)):
            return 0
        windows = {row: _window(text[row].as_buffer(), self._random) for row in rows}
        cut = [row for row, (_, whole) in windows.items() if not whole]
        of_cut = dict(zip(cut, again(text_of_strings([windows[row][0] for row in cut])), strict=True))
        wanted = expected(text_of_strings([window for window, _ in windows.values()]))
        for (row, (window, whole)), want in zip(windows.items(), wanted, strict=True):
            require_equal(self._engine, window, want, made(row) if whole else of_cut[row])
        return len(rows)

    def _draw(self, text: pa.LargeStringArray, skip: Int64) -> list[int]:
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


def _window(buffer: pa.Buffer, rng: random.Random) -> tuple[str, bool]:
    """Return a window of a UTF-8 text, cut between characters, and whether it is the whole text."""
    if buffer.size <= WINDOW:
        return buffer.to_pybytes().decode(), True
    start = rng.randrange(buffer.size - WINDOW)
    return buffer.slice(start, WINDOW).to_pybytes().decode(errors="ignore"), False


#: Bytes of a long document that are encoded at a time; the reference needs 120 times as much memory.
PIECE_BYTES: Final = 4 << 20

#: The share of the text that is compared with the reference, 30 to 60 times slower than the fast engine.
SAMPLE_RATE: Final = 0.0004

FAST_ENGINES: Final[Mapping[str, str]] = {
    "words": "tokenlake.etl.tokenizers.words.engine:open_engine",
    "segments": "tokenlake.etl.tokenizers.segments:open_engine",
    "gigatoken": "tokenlake.etl.tokenizers.engines:open_engine",
}
"""Fast engine -> its :class:`OpenEngine`, as ``module:name``, which is imported when the engine is first asked for."""

ENGINES: Final = (*FAST_ENGINES, "tokenizers")
SPECIAL_TOKENS_IN_TEXT: Final = ("literal", "encode", "fail")


class OpenEngine(Protocol):
    """A function that opens a fast engine. An engine uses the arguments that concern it."""

    def __call__(
        self, files: TokenizerFiles, *, literal: bool, threads: bool, reference: ReferenceEngine | None
    ) -> IdEngine: ...


def fast_engine(
    engine: str,
    files: TokenizerFiles,
    *,
    literal: bool,
    threads: bool = False,
    reference: ReferenceEngine | None = None,
) -> IdEngine:
    """Return a fast engine for a tokenizer that it supports.

    Args:
        engine: "words", "segments" or "gigatoken".
        files: The tokenizer.
        literal: Whether special tokens are plain text.
        threads: Whether one call may use all cores; gigatoken only.
        reference: The reference of the same tokenizer, where it is loaded already.
    """
    open_engine: OpenEngine = load(FAST_ENGINES[engine], f"tokenizer engine {engine!r}", "etl")
    return open_engine(files, literal=literal, threads=threads, reference=reference)


@final
class Encoder:
    """Encodes Arrow text; ids equal those of `tokenizers.Tokenizer.from_file(tokenizer.json)`.

    Args:
        files: the tokenizer.
        engine: "tokenizers", or "words", "segments" or "gigatoken" if the gate chose it.
        special_tokens_in_text: "literal": their strings are plain text; "encode": they become control ids;
            "fail": as literal, and the caller refuses the rows of `Encoded.special_docs`.
        add_special_tokens: whether :attr:`prefix` and :attr:`suffix` are what the post-processor adds; else
            they are empty.
        sample_rate: the share of the text that is compared with the reference; 0 switches it off.
        threads: let one call use all cores.
        loaded: the reference and, but for "tokenizers", the fast engine, where they are loaded already.
        locator: of these, where there is one already.

    Attributes:
        prefix, suffix: ids that belong around every document, never part of :class:`Encoded`.

    Raises:
        ConfigError: an unknown engine or mode.
        TokenizerError: the tokenizer cannot be used.
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
        loaded: tuple[ReferenceEngine, IdEngine | None] | None = None,
        locator: Locator | None = None,
    ) -> None:
        require_one_of("engine", engine, ENGINES)
        require_one_of("special_tokens_in_text", special_tokens_in_text, SPECIAL_TOKENS_IN_TEXT)
        literal = special_tokens_in_text != "encode"
        self.files = files
        self.engine = engine
        if loaded is None:
            reference = ReferenceEngine(files, literal=literal, threads=threads)
            fast = None
            if engine != "tokenizers":
                fast = fast_engine(engine, files, literal=literal, threads=threads, reference=reference)
            loaded = reference, fast
        self._reference, self._fast = loaded
        self._found_locator = locator
        self._literal = literal
        self._guard = UnicodeGuard(files, engine)
        self._sampler = Sampler(sample_rate, engine)
        self._specials = SpecialScan(files.special_tokens)
        affixes = self._reference.affixes() if add_special_tokens else ((), ())
        self.prefix: tuple[int, ...] = affixes[0]
        self.suffix: tuple[int, ...] = affixes[1]

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Encode a batch; a row's ids do not depend on the other rows.

        Raises:
            TokenizerError: nulls, or bytes that are not UTF-8 (never given to an engine).
            EngineMismatchError: the fast engine differs from the reference on a sampled text.
        """
        made, rows = self._encoded(text)
        docs, counts = self._specials.count(text)
        sampled = 0 if self._fast is None else self._sample(self._fast, text, made, rows)
        return Encoded(
            offsets=made.offsets,
            ids=made.ids,
            special_docs=docs,
            special_counts=counts,
            sampled=sampled,
            guarded=len(rows),
        )

    def special_tokens(self, text: pa.LargeStringArray) -> tuple[Int64, Int64]:
        """Return the rows that hold special tokens' strings (int64[k], ascending), and how many each: int64[k]."""
        return self._specials.count(text)

    def encode_spans(self, text: pa.LargeStringArray, spans: Spans) -> tuple[Encoded, Bools]:
        """Encode a batch, and say which ids hold a byte of the `spans` of the texts: bool[total].

        A token that holds no byte (a blank that the tokenizer made up) counts if the byte after it does.
        Special tokens are not looked for: who knows the spans of a text has written it.

        Raises:
            as :meth:`encode`; EngineMismatchError also if the tokens' places differ.
        """
        encoded, blocks = self._locate(text)
        masks, first = [np.empty(0, np.bool_)], 0
        for block in blocks:
            masks.append(block.touched(spans.slice(first, first + len(block.text))))
            first += len(block.text)
        return encoded, np.concatenate(masks)

    def encode_places(self, text: pa.LargeStringArray) -> tuple[Encoded, Int64, Int64]:
        """Encode a batch, and say where each token begins and ends: int64[total], int64[total].

        Places are UTF-8 bytes of the row's own text, whole characters, as the offsets of `tokenizers`: tokens
        that share a character all hold it. A blank that the tokenizer made up holds no byte.

        Raises:
            as :meth:`encode_spans`.
        """
        encoded, blocks = self._locate(text)
        places = [(_none(), _none()), *(block.places() for block in blocks)]
        return encoded, np.concatenate([a for a, _ in places]), np.concatenate([b for _, b in places])

    def _locate(self, text: pa.LargeStringArray) -> tuple[Encoded, Iterable[Located]]:
        """Return a batch's ids, and piece by piece where they lie."""
        if self._fast is None and self._locator.sizes is not None:
            encoded, _ = self._encoded(text)
            return Encoded(offsets=encoded.offsets, ids=encoded.ids), self._locator.by_ids(
                text, encoded, _none()
            )
        if self._fast is None:
            checked(text, self.files.name)
            located = list(self._locator.by_reference(text))
            lengths = np.concatenate([_none(), *(np.diff(part.offsets) for part in located)])
            ids = np.concatenate([np.empty(0, np.int32), *(part.ids for part in located)])
            return Encoded(offsets=offsets_of(lengths), ids=ids), located
        made, rows = self._encoded(text)
        sampled = self._sampler.check(
            text,
            rows,
            partial(self._locator.of_row, text, made),
            partial(self._locator.of_texts, self._fast),
            self._reference.places,
        )
        encoded = Encoded(offsets=made.offsets, ids=made.ids, sampled=sampled, guarded=len(rows))
        return encoded, self._locator.by_ids(text, made, rows)

    @cached_property
    def _locator(self) -> Locator:
        return self._found_locator or Locator(self._reference, self.engine)

    def _sample(self, fast: IdEngine, text: pa.LargeStringArray, made: Ragged, skip: Int64) -> int:
        def each(rows: Ragged) -> list[Sample]:
            return [(ids,) for ids in rows.rows()]

        return self._sampler.check(
            text,
            skip,
            lambda row: (made.ids[made.offsets[row] : made.offsets[row + 1]],),
            lambda texts: each(fast.encode(texts)),
            lambda texts: each(self._reference.encode(texts)),
        )

    def encode_long(self, text: pa.LargeStringArray) -> tuple[int, Iterator[Int32]] | None:
        """Encode one long document piece by piece, so that its ids never lie in memory together.

        Args:
            text: large_string[1].

        Returns:
            How many special tokens' strings the text holds, and arrays whose concatenation is its ids, drawn once; None
            where this tokenizer's documents cannot be cut exactly, or must be looked at whole.

        Raises:
            as :meth:`encode`; what the pieces raise, they raise while they are drawn.
        """
        if text.nbytes <= 2 * WINDOW or self._reference.cuts is None:
            return None
        ascii_only = checked(text, self.files.name)
        special_tokens = int(self._specials.count(text)[1].sum())
        fast = self._fast
        if fast is not None and not ascii_only and len(self._guard.rows(text)):
            fast = None
        if fast is not None:
            # A long document is sampled by a window, for which its own ids are not needed.
            self._sample(fast, text, Ragged(np.empty(0, np.int32), _none()), _none())
        return special_tokens, self._pieces(self._reference.cuts, text, fast)

    def _pieces(self, rule: CutRule, text: pa.LargeStringArray, fast: IdEngine | None) -> Iterator[Int32]:
        for piece in rule.pieces(text[0].as_buffer(), PIECE_BYTES):
            if fast is None:
                yield self._reference.encode_piece(piece)
            else:
                yield fast.encode(text_of_strings([piece])).ids

    def decode(self, ids: Sequence[int] | Int32) -> str:
        """Return the text of `ids` by the reference, special tokens included."""
        return self._reference.decode(ids)

    def _encoded(self, text: pa.LargeStringArray) -> tuple[Ragged, Int64]:
        """Return a batch's ids, and which rows (ascending) the reference made in the place of the fast engine."""
        ascii_only = checked(text, self.files.name)
        if self._fast is None:
            return self._reference.encode(text), _none()
        guarded = _none() if ascii_only else self._guard.rows(text)
        if not guarded.size:
            return self._fast.encode(text), guarded
        free = np.ones(len(text), np.bool_)
        free[guarded] = False
        rows = self._reference.encode(taken(text, guarded))
        return self._fast.encode(select(text, free)).inserted(rows, guarded), guarded
