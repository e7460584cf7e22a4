"""Added tokens: where they lie in a text, and the parts of the text between them.

`tokenizers` searches a text for added tokens before anything else: first the text as it
is, for those that are not `normalized`; then what lies between them, normalized, for
the others. In each search the leftmost token wins, and of several that begin at the
same place the longest. Special tokens take part even where their text is to be plain
text (`encode_special_tokens`): they are found and then left alone, but no other token
is found inside them.

Here both searches look at the text as it is. This is the same where normalizing changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int32, Int64, UInt8, offsets_of
from tokenlake.etl.tokenizers.files import TokenizerFiles

_FLAGS: Final = ("single_word", "lstrip", "rstrip")
_FIRST_ROOM: Final = 1024


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of texts between added tokens.

    Attributes:
        begins, stops: int64[parts], where the parts lie; a part may be empty.
        after: int32[parts], the id of the added token behind a part, -1 at the end of a
            text.
        first: int64[texts + 1], the first part of each text.
    """

    begins: Int64
    stops: Int64
    after: Int32
    first: Int64


@final
class AddedTokens:
    """The searches for the added tokens of a tokenizer.

    Args:
        loops: From :func:`tokenlake.etl.tokenizers.words.native.loops`.
        files: The tokenizer.
        literal: Whether special tokens are plain text.
    """

    def __init__(self, loops: Any, files: TokenizerFiles, *, literal: bool) -> None:
        self._searches: list[_TokenSearch] = []
        for is_normalized in (False, True):
            tokens = [
                token
                for token in files.added_tokens
                if bool(token.get("normalized")) == is_normalized
            ]
            search = _TokenSearch(loops, files, tokens, literal=literal)
            if search.finds_any:
                self._searches.append(search)

    def find(self, data: UInt8, offsets: Int64) -> tuple[Parts, Int64]:
        """Return the parts of texts, and the texts that hold a token with a rule of its
        own.

        Args:
            data: The texts.
            offsets: int64[n + 1], where they lie.

        Returns:
            The parts; and int64[k], ascending, the texts with a token that strips white
            space or must be a word.
        """
        count = len(offsets) - 1
        # Copies, so that each compiled loop has one form.
        parts = Parts(
            begins=offsets[:-1].copy(),
            stops=offsets[1:].copy(),
            after=np.full(count, -1, np.int32),
            first=np.arange(count + 1),
        )
        ruled = np.empty(0, np.int64)
        for search in self._searches:
            places, within, tokens = search.find(data, parts)
            if not len(places):
                continue
            has_rule = search.has_rule[tokens]
            if has_rule.any():
                texts = np.searchsorted(parts.first, within[has_rule], "right") - 1
                ruled = np.union1d(ruled, texts)
            parts = _cut(
                parts, places, within, search.sizes[tokens], search.ids[tokens]
            )
        return parts, ruled


def _cut(parts: Parts, places: Int64, within: Int64, sizes: Int64, ids: Int32) -> Parts:
    """Cut parts at tokens.

    Args:
        parts: The parts.
        places: int64[k], where each token begins, ascending.
        within: int64[k], the part that holds it.
        sizes: int64[k], its size in bytes.
        ids: int32[k], its id.
    """
    # A part with k tokens becomes k + 1 parts. Both borders ascend, so sorting pairs
    # them.
    begins = np.sort(np.concatenate([parts.begins, places + sizes]))
    stops = np.sort(np.concatenate([parts.stops, places]))
    tokens_before = np.searchsorted(within, np.arange(len(parts.begins) + 1))
    after = np.empty(len(begins), np.int32)
    after[within + np.arange(len(places))] = ids
    after[np.arange(len(parts.begins)) + tokens_before[1:]] = parts.after
    return Parts(begins, stops, after, parts.first + tokens_before[parts.first])


@final
class _TokenSearch:
    """A search for some added tokens.

    Attributes:
        finds_any: Whether a token can be found.
        ids, sizes: int32[k] and int64[k], of the tokens.
        has_rule: bool[k], whether a token strips white space or must be a word by
            itself.
    """

    def __init__(
        self,
        loops: Any,
        files: TokenizerFiles,
        tokens: Sequence[dict[str, Any]],
        *,
        literal: bool,
    ) -> None:
        self._loops = loops
        spelled = [token["content"].encode() for token in tokens]
        skipped = [literal and bool(token.get("special")) for token in tokens]
        self.finds_any = not all(skipped)
        self.ids = np.array(
            [files.token_id(token["content"]) for token in tokens], np.int32
        )
        self.sizes: Int64 = np.array([len(token) for token in spelled], np.int64)
        self.has_rule: Bools = np.zeros(len(tokens), np.bool_)
        for number, token in enumerate(tokens):
            self.has_rule[number] = any(token.get(flag) for flag in _FLAGS)
        self._skipped = np.array(skipped, np.uint8)
        self._firsts: UInt8 = np.zeros(256, np.uint8)
        self._firsts[[token[0] for token in spelled]] = 1
        # The tree of the tokens' bytes.
        edges = offsets_of([len(token) for token in spelled])
        size = int(edges[-1])
        self._branches = np.zeros((1 << (2 * size + 2).bit_length(), 2), np.uint64)
        self._leaves = np.full(size + 1, -1, np.int32)
        data = np.frombuffer(bytearray(b"".join(spelled)), np.uint8)
        loops.add_pieces(self._branches, data, edges, self._leaves)
        self._room = _FIRST_ROOM

    def find(self, data: UInt8, parts: Parts) -> tuple[Int64, Int64, Int64]:
        """Return where tokens begin, the part that holds each, and its number:
        int64[k] each.
        """
        while True:
            places, within, tokens = np.empty((3, self._room), np.int64)
            count: int = self._loops.find_added(
                data,
                parts.begins,
                parts.stops,
                self._firsts,
                self._branches,
                self._leaves,
                self._skipped,
                places,
                within,
                tokens,
            )
            if count <= self._room:
                return places[:count], within[:count], tokens[:count]
            self._room = 2 * count
