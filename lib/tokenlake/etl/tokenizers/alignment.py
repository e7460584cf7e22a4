"""Places of the tokens of a text, from their ids alone, for one text at a time.

tokenizers 1.0 gives no places of tokens. :mod:`tokenlake.etl.tokenizers.offsets` finds
them for whole batches by adding up the sizes of tokens. This module serves the texts
for which a sum is not enough. For each stretch of text between added tokens it

1. writes down the bytes that the ids spell,
2. makes the same bytes from the text as the normalizer does, and remembers the
   characters that each byte comes from,
3. requires both to be equal, so that a place is never a guess.

Example, SentencePiece's style: the ids of "a b" spell the bytes of "\u2581a\u2581b".
The first mark was made up and lies nowhere, the second comes from the space.

Example, NFC: the ids of "e\u0301x" spell "\u00e9x". As in `tokenizers` before 1.0, the
composed letter comes from the "e" alone, and no token holds the accent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int32, Int64
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.allowlist import BYTE_TOKENS, flat
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.spelling import (
    objection_to_spelling,
    parting_tokens,
    prefix_rule,
)
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters
from tokenlake.runtime.tokenizer_guard.generation import OLDER

_MARK: Final = "\u2581"
# The characters that strip around an added token: Unicode's White_Space.
_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    + "".join(map(chr, range(0x2000, 0x200B)))
)
# Characters of a text in a message.
_SHOWN: Final = 60

PlacedIds = tuple[Int32, Int64, Int64]
"""The ids of a text, and where each begins and ends (bytes)."""


@final
@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of text without added tokens, as the model sees it.

    Attributes:
        spelled: The normalized bytes.
        begins: The character that each of these bytes comes from, -1 for a byte that
            was made up.
    """

    spelled: bytes
    begins: list[int]


@final
class Aligner:
    """Finds where the tokens of single texts lie.

    Args:
        files: Tokenizer.
        literal: Whether special tokens are plain text.
        normalize: Function that returns a text as the tokenizer's normalizer changes
            it.
    """

    def __init__(
        self, files: TokenizerFiles, *, literal: bool, normalize: Callable[[str], str]
    ) -> None:
        self._files = files
        self._normalize = normalize
        self._objection = objection_to_spelling(files, literal=literal)
        self._composes = flat(files.spec.get("normalizer"), "normalizers") == [
            {"type": "NFC"}
        ]
        self._has_marks = bool(files.spec["model"].get("byte_fallback"))

        # The rules of a tokenizer with an objection are never used; they may not exist.
        self._prefix = "never"
        parting: set[str] = set()
        if self._objection is None:
            self._prefix = prefix_rule(files)
            parting.update(parting_tokens(files, literal=literal))
        self._added: dict[int, dict[str, Any]] = {}
        for token in files.added_tokens:
            token_id = files.token_id(token["content"])
            if token["content"] in parting and token_id is not None:
                self._added[token_id] = token
        self._bytes: dict[int, bytes] | None = None

    def place(self, text: str, ids: Int32) -> PlacedIds:
        """Return the ids of a text with the byte offsets at which each begins and ends.

        Places are whole characters. A blank that the tokenizer inserted lies at the
        character after it and holds no byte.

        Raises:
            TokenizerError: The places do not follow from the ids.
        """
        if self._objection is not None:
            raise self._error(self._objection)
        spans: list[tuple[int, int]] = []
        text_index = 0
        # 1. Characters: run by run, with the added token after each.
        for run, added_id in self._runs(ids.tolist()):
            stretch, begin, end = self._find(text, text_index, run, added_id)
            run_bytes = [self._spelled[token_id] for token_id in run]
            spans += _placed(stretch, text_index, run_bytes)
            if added_id is not None:
                spans.append((begin, end))
            text_index = end

        # 2. Bytes: the offset of each character.
        places = np.array(spans, np.int64).reshape(-1, 2)
        if not text.isascii():
            sizes = np.array([len(character.encode()) for character in text], np.int64)
            places = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[places]
        return ids, places[:, 0].copy(), places[:, 1].copy()

    def _runs(self, ids: list[int]) -> Iterator[tuple[list[int], int | None]]:
        """Yield the ids between added tokens, and the added token after them.

        The last run has None after it.
        """
        run: list[int] = []
        for token_id in ids:
            if token_id in self._added:
                yield run, token_id
                run = []
            else:
                run.append(token_id)
        yield run, None

    def _find(
        self, text: str, text_index: int, run: list[int], added_id: int | None
    ) -> tuple[_Stretch, int, int]:
        """Return the stretch of text that a run of ids spells.

        Args:
            text: Text.
            text_index: Character at which the stretch begins.
            run: Ids of the stretch.
            added_id: Id of the added token after the run; None at the end of the text.

        Returns:
            The stretch, and the first and the last (exclusive) character of the added
            token.

        Raises:
            TokenizerError: The ids do not spell the text.
        """
        unknown_ids = [token_id for token_id in run if token_id not in self._spelled]
        if unknown_ids:
            raise self._error(f"the id {unknown_ids[0]} does not belong to a text")
        run_bytes = b"".join(self._spelled[token_id] for token_id in run)
        # The text of an added token may also lie in the stretch, as text.
        for begin, end in self._occurrences(text, text_index, added_id):
            stretch = self._stretch(text[text_index:begin], is_first=text_index == 0)
            if stretch.spelled == run_bytes:
                return stretch, begin, end
        raise self._error(
            f"the ids do not spell the text from {text[text_index : text_index + _SHOWN]!r} on"
        )

    def _occurrences(
        self, text: str, text_index: int, added_id: int | None
    ) -> Iterator[tuple[int, int]]:
        """Yield the places at which an added token may lie, from a character on.

        Without an added token that is only the end of the text.
        """
        if added_id is None:
            yield len(text), len(text)
            return
        token = self._added[added_id]
        content: str = token["content"]
        content_start = text.find(content, text_index)
        while content_start >= 0:
            begin = content_start
            end = content_start + len(content)
            # A token that strips holds the white space around it.
            if token.get("lstrip"):
                begin = text_index + len(
                    text[text_index:content_start].rstrip(_WHITE_SPACE)
                )
            if token.get("rstrip"):
                end = len(text) - len(text[end:].lstrip(_WHITE_SPACE))
            yield begin, end
            content_start = text.find(content, content_start + 1)

    def _stretch(self, text: str, *, is_first: bool) -> _Stretch:
        """Return a stretch of text as the model sees it.

        Args:
            text: Text of the stretch.
            is_first: Whether the stretch begins the text.
        """
        # 1. Byte-level BPE: the bytes of the text, normalized.
        if not self._has_marks:
            if self._composes:
                return self._composed(text)
            return _bytes_of(text, range(len(text)))

        # 2. SentencePiece's style: spaces become marks, and one may be put in front,
        #    which comes from no character (-1).
        marked = text.replace(" ", _MARK)
        rule = self._prefix
        has_prefix = rule in ("every", "missing") or (rule == "first" and is_first)
        if rule != "every" and marked.startswith(_MARK):
            has_prefix = False
        if not (has_prefix and text):
            return _bytes_of(marked, range(len(text)))
        return _bytes_of(_MARK + marked, range(-1, len(text)))

    def _composed(self, text: str) -> _Stretch:
        """Return a stretch of text in NFC.

        It is normalized block by block. Nothing composes across the border of a block.
        """
        spelled = bytearray()
        begins: list[int] = []
        block_start = 0
        for block in _BLOCKS.findall(text):
            normalized = block
            origins = list(range(len(block)))
            if not block.isascii():
                normalized = self._normalize(block)
            # The normalizer gives no origins. They are computed, and serve only if the
            # text is the same.
            if normalized != block:
                composed, origins = compose(block)
                if composed != normalized:
                    raise self._error(
                        f"NFC changes {block[:_SHOWN]!r} in an unknown way"
                    )
            stretch = _bytes_of(
                normalized, [block_start + origin for origin in origins]
            )
            spelled += stretch.spelled
            begins += stretch.begins
            block_start += len(block)
        return _Stretch(bytes(spelled), begins)

    @property
    def _spelled(self) -> dict[int, bytes]:
        """Bytes that each id of the vocabulary spells; others are missing."""
        if self._bytes is None:
            self._bytes = dict(self._spellings())
        return self._bytes

    def _spellings(self) -> Iterator[tuple[int, bytes]]:
        """Yield the ids of the vocabulary with the bytes that they spell."""
        model = self._files.spec["model"]
        byte_of = {letter: byte for byte, letter in enumerate(byte_characters())}
        unknown_token = model.get("unk_token")
        for token, token_id in model["vocab"].items():
            # It replaces text of any kind.
            if token == unknown_token:
                continue
            if self._has_marks and token in BYTE_TOKENS:
                # "<0xE4>"
                yield token_id, bytes([int(token[3:5], 16)])
            elif self._has_marks:
                yield token_id, token.encode()
            elif all(letter in byte_of for letter in token):
                yield token_id, bytes(byte_of[letter] for letter in token)

    def _error(self, reason: str) -> TokenizerError:
        """Return the error for a text whose places do not follow from its ids."""
        return TokenizerError(
            f"tokenizer {self._files.name!r}: the offsets of its tokens cannot be derived from their ids, because "
            f"{reason}, and the installed version of tokenizers reports no token offsets. Loss masks and provenance "
            f"need the generation before 1.0: {OLDER}",
            tokenizer=self._files.name,
            reason=reason,
        )


# A character of ASCII begins a block, because nothing composes with it from the left;
# what follows it may.
_BLOCKS: Final = re.compile("[\x00-\x7f][^\x00-\x7f]*|[^\x00-\x7f]+")


def _bytes_of(text: str, origins: Any) -> _Stretch:
    """Return the bytes of a text, and for each of them the origin of its character."""
    begins: list[int] = []
    for character, origin in zip(text, origins, strict=True):
        begins += [origin] * len(character.encode())
    return _Stretch(text.encode(), begins)


def _placed(
    stretch: _Stretch, first_character: int, tokens: list[bytes]
) -> list[tuple[int, int]]:
    """Return the first and the last (exclusive) character of each token of a stretch.

    Args:
        stretch: Stretch.
        first_character: Character of the text at which the stretch begins.
        tokens: Bytes of each token, in order.
    """
    places: list[tuple[int, int]] = []
    byte_offset = 0
    for token in tokens:
        token_origins = stretch.begins[byte_offset : byte_offset + len(token)]
        origins = [origin for origin in token_origins if origin >= 0]
        byte_offset += len(token)
        if origins:
            begin = first_character + origins[0]
            end = first_character + origins[-1] + 1
            places.append((begin, end))
        else:
            # An inserted blank holds no character.
            places.append((first_character, first_character))
    return places


def compose(text: str) -> tuple[str, list[int]]:
    r"""Return the NFC form of a text, and the origin of each of its characters.

    1. Every character is decomposed; its first part has the count 1, the other parts
       have 0.
    2. Marks are sorted by their combining class. Each keeps its count.
    3. Where characters join, their counts are added.
    4. The characters of the result take their counts from the text, from left to right.
       A character with the count 0 comes from the character before it.

    Example: "q\u0301\u0323" becomes "q\u0323\u0301", with the origins 0, 1, 2: places
    are counted, although the marks changed theirs.
    """
    # 1. Decompose. A part is (character, combining class, count).
    parts: list[tuple[str, int, int]] = []
    for character in text:
        for index, part in enumerate(unicodedata.normalize("NFD", character)):
            parts.append((part, unicodedata.combining(part), int(index == 0)))

    # 2. Sort the marks between two characters of class 0. A last part of that class
    #    ends the text.
    ordered: list[tuple[str, int, int]] = []
    marks: list[tuple[str, int, int]] = []
    for part in [*parts, ("", 0, 0)]:
        if part[1]:
            marks.append(part)
            continue
        ordered += sorted(marks, key=lambda mark: mark[1])
        marks = []
        if part[0]:
            ordered.append(part)

    # 3. Join a character to the last one of class 0, unless a mark of the same or of a
    #    higher class stands between them.
    joined: list[tuple[str, int, int]] = []
    starter = -1
    for character, combining_class, count in ordered:
        has_mark_between = bool(joined) and starter != len(joined) - 1
        is_blocked = has_mark_between and joined[-1][1] >= combining_class
        if starter >= 0 and not is_blocked:
            pair = unicodedata.normalize("NFC", joined[starter][0] + character)
            if len(pair) == 1:
                joined[starter] = (pair, 0, joined[starter][2] + count)
                continue
        joined.append((character, combining_class, count))
        if combining_class == 0:
            starter = len(joined) - 1

    # 4. Count the characters of the text off.
    origins: list[int] = []
    counted = 0
    for _, _, count in joined:
        if count:
            origins.append(counted)
        else:
            origins.append(max(0, counted - 1))
        counted += count
    return "".join(character for character, _, _ in joined), origins
