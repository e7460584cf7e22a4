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

# Rules of an added token about the text around it.
_RULES: Final = ("single_word", "lstrip", "rstrip")
# Number of tokens that a batch has room for at first; it doubles when there are more.
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
        loops: Compiled loops, see :func:`tokenlake.etl.tokenizers.words.native.loops`.
        files: Tokenizer.
        literal: Whether special tokens are plain text.
    """

    def __init__(self, loops: Any, files: TokenizerFiles, *, literal: bool) -> None:
        self._searches: list[_TokenSearch] = []
        # Tokens that are not normalized are searched first, as `tokenizers` does.
        for is_normalized in (False, True):
            tokens: list[dict[str, Any]] = []
            for token in files.added_tokens:
                if bool(token.get("normalized")) == is_normalized:
                    tokens.append(token)
            search = _TokenSearch(loops, files, tokens, literal=literal)
            if search.finds_any:
                self._searches.append(search)

    def find(self, data: UInt8, offsets: Int64) -> tuple[Parts, Int64]:
        """Return the parts of texts between added tokens.

        Args:
            data: uint8, the texts.
            offsets: int64[n + 1], byte offsets of the texts.

        Returns:
            The parts; and int64[k], ascending, the texts with a token that strips white
            space or must be a word. Their parts are not exact.
        """
        # At first each text is one part. Copies, so that each compiled loop has one
        # form.
        text_count = len(offsets) - 1
        parts = Parts(
            begins=offsets[:-1].copy(),
            stops=offsets[1:].copy(),
            after=np.full(text_count, -1, np.int32),
            first=np.arange(text_count + 1),
        )
        ruled_texts = np.empty(0, np.int64)

        # Each search cuts the parts that the one before has left.
        for search in self._searches:
            places, within, tokens = search.find(data, parts)
            if not len(places):
                continue
            has_rule = search.has_rule[tokens]
            if has_rule.any():
                texts = np.searchsorted(parts.first, within[has_rule], "right") - 1
                ruled_texts = np.union1d(ruled_texts, texts)
            parts = _cut(
                parts, places, within, search.sizes[tokens], search.ids[tokens]
            )
        return parts, ruled_texts


def _cut(parts: Parts, places: Int64, within: Int64, sizes: Int64, ids: Int32) -> Parts:
    """Cut parts at tokens.

    Args:
        parts: Parts that hold the tokens.
        places: int64[k], byte offset of each token, ascending.
        within: int64[k], number of the part that holds it.
        sizes: int64[k], its size in bytes.
        ids: int32[k], its id.
    """
    # 1. A part with k tokens becomes k + 1 parts. Both borders ascend, so sorting pairs
    #    them.
    begins = np.sort(np.concatenate([parts.begins, places + sizes]))
    stops = np.sort(np.concatenate([parts.stops, places]))

    # 2. A token follows the part before it; the last part of the k + 1 is followed as
    #    the whole was.
    tokens_before = np.searchsorted(within, np.arange(len(parts.begins) + 1))
    ids_after = np.empty(len(begins), np.int32)
    ids_after[within + np.arange(len(places))] = ids
    ids_after[np.arange(len(parts.begins)) + tokens_before[1:]] = parts.after
    return Parts(begins, stops, ids_after, parts.first + tokens_before[parts.first])


@final
class _TokenSearch:
    """A search for some added tokens.

    Attributes:
        finds_any: Whether a token can be found.
        ids, sizes: int32[k] and int64[k], id and size in bytes of each token.
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
        # 1. The tokens.
        contents: list[bytes] = []
        token_ids: list[int | None] = []
        self.sizes: Int64 = np.empty(len(tokens), np.int64)
        self.has_rule: Bools = np.zeros(len(tokens), np.bool_)
        self._skipped = np.zeros(len(tokens), np.uint8)
        self._first_bytes: UInt8 = np.zeros(256, np.uint8)
        for number, token in enumerate(tokens):
            content: bytes = token["content"].encode()
            contents.append(content)
            token_ids.append(files.token_id(token["content"]))
            self.sizes[number] = len(content)
            self.has_rule[number] = any(token.get(rule) for rule in _RULES)
            self._skipped[number] = literal and bool(token.get("special"))
            self._first_bytes[content[0]] = 1
        self.ids: Int32 = np.array(token_ids, np.int32)
        self.finds_any = not self._skipped.all()

        # 2. The tree of their bytes.
        edges = offsets_of(self.sizes.tolist())
        total_size = int(edges[-1])
        self._branches = np.zeros(
            (1 << (2 * total_size + 2).bit_length(), 2), np.uint64
        )
        self._leaves = np.full(total_size + 1, -1, np.int32)
        token_bytes = np.frombuffer(bytearray(b"".join(contents)), np.uint8)
        loops.add_pieces(self._branches, token_bytes, edges, self._leaves)
        self._room = _FIRST_ROOM

    def find(self, data: UInt8, parts: Parts) -> tuple[Int64, Int64, Int64]:
        """Return the tokens in parts of texts: int64[k] each.

        Returns:
            Byte offset of each token, ascending; number of the part that holds it; and
            its number among the tokens.
        """
        while True:
            places, within, tokens = np.empty((3, self._room), np.int64)
            count: int = self._loops.find_added(
                data,
                parts.begins,
                parts.stops,
                self._first_bytes,
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
