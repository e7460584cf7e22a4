"""Training of a small byte-level BPE tokenizer, for demos, examples and tests.

The trainer writes tokenizer.json itself, because `tokenizers` has no trainers from
version 1.0 on. It is plain Python: 6 MB of text and 8,192 tokens take about 3 seconds.

Byte-pair encoding is learned in four steps:

1. Text is split into words as GPT-2 splits it: a word takes the one space before it,
   and letters, digits and other characters are words apart. Equal words are counted
   once with their number.
2. Each word becomes a list of symbols, at first its UTF-8 bytes.
3. The pair of neighbouring symbols with the highest count becomes a new symbol, which
   replaces the pair in all words. Among pairs of the same count, the one with the lower
   ids goes first.
4. Step 3 is repeated until the vocabulary has the requested size or every word is one
   symbol.

For example, in the words ``low`` (5 times) and ``lower`` (2 times) the pairs ``l o``
and ``o w`` both occur 7 times. ``l o`` has the lower ids, so ``lo`` is the first new
token and ``low`` the second.
"""

from __future__ import annotations

import functools
import heapq
import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tokenlake.errors import ConfigError
from tokenlake.etl.tokenizers.files import TOKENIZER_JSON, TokenizerFiles
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters

END_OF_TEXT: Final = "<|endoftext|>"

_BYTES: Final = 256
_CONTRACTIONS: Final = "'s|'t|'re|'ve|'m|'ll|'d"
# Unicode's White_Space. `\s` of the module re also has the separators U+001C to U+001F.
_SPACES: Final = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

Pair = tuple[int, int]
"""Ids of two neighbouring symbols."""
Merge = tuple[str, str]
"""The two tokens that a merge joins."""


def train_bpe(
    texts: Iterable[str], vocab_size: int = 4096, *, name: str = "trained-bpe"
) -> TokenizerFiles:
    """Train a GPT-2-style byte-level BPE.

    Its one special token ``<|endoftext|>`` is BOS and EOS.

    Args:
        texts: Training text, consumed once.
        vocab_size: Number of tokens, at least 257. The result has fewer when the text
            has too few distinct words.
        name: Name of the tokenizer in messages.

    Returns:
        A tokenizer that every tokenizer implementation supports. Equal texts give equal
        files.

    Raises:
        ConfigError: `vocab_size` is too small.
    """
    if vocab_size <= _BYTES:
        raise ConfigError(
            f"vocab_size is {vocab_size}, expected at least {_BYTES + 1}: 256 bytes and {END_OF_TEXT}"
        )
    # Words in the letters of the byte alphabet, in which a tokenizer.json writes them.
    characters = byte_characters()
    words: Counter[str] = Counter()
    for word, word_count in count_words(texts).items():
        words["".join(characters[byte] for byte in word.encode())] += word_count
    tokens, merges = learn_merges(words, [END_OF_TEXT, *sorted(characters)], vocab_size)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        TOKENIZER_JSON: to_json(_byte_level_specification(tokens, merges)),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
    return TokenizerFiles(name=name, files=files)


def to_json(specification: Mapping[str, Any]) -> bytes:
    """Return a tokenizer.json in the compact form in which `tokenizers` writes it."""
    return json.dumps(specification, ensure_ascii=False, separators=(",", ":")).encode()


def _byte_level_specification(
    tokens: Sequence[str], merges: Sequence[Merge]
) -> dict[str, Any]:
    """Return the tokenizer.json of a byte-level BPE.

    Args:
        tokens: Tokens by id. The first one is the special token.
        merges: Merges by rank.
    """
    # `tokenizers` writes every key, so this file looks like one that it has written.
    stage = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    special = {
        "id": 0,
        "content": tokens[0],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: token_id for token_id, token in enumerate(tokens)},
        "merges": [list(merge) for merge in merges],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {**stage, "add_prefix_space": False},
        "post_processor": {**stage, "trim_offsets": False},
        "decoder": stage,
        "model": model,
    }


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Return the number of occurrences of each word in texts.

    Words are those of GPT-2's expression.
    """
    find_words = _word_expression().findall
    words: Counter[str] = Counter()
    for text in texts:
        words.update(find_words(text))
    return words


@functools.cache
def _word_expression() -> re.Pattern[str]:
    r"""Return GPT-2's expression for words, in the syntax of the module re.

    It is ``'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
    ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+``. The module re has no classes of Unicode
    categories. ``\w`` is the letters, the numbers and the underscore, so all three
    classes can be written with it and the list of the numbers.
    """
    numbers = _numbers()
    letter = rf"[^\W_{numbers}]"
    number = f"[{numbers}]"
    other = rf"(?:[^\w{_SPACES}]|_)"
    space = f"[{_SPACES}]"
    runs = f" ?{letter}+| ?{number}+| ?{other}+"
    return re.compile(rf"{_CONTRACTIONS}|{runs}|{space}+(?![^{_SPACES}])|{space}+")


def _numbers() -> str:
    """Return the characters that are numbers, as ranges for the inside of ``[...]``."""
    ranges: list[list[int]] = []
    for code_point in range(sys.maxunicode + 1):
        character = chr(code_point)
        # The quick test is true for all numbers, and for some letters.
        if not character.isnumeric() or unicodedata.category(character)[0] != "N":
            continue
        if ranges and ranges[-1][1] == code_point - 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def learn_merges(
    words: Mapping[str, int], alphabet: Sequence[str], vocab_size: int
) -> tuple[list[str], list[Merge]]:
    """Learn the tokens and merges of a byte-pair encoding.

    Args:
        words: Number of occurrences of each word. Characters that are not in `alphabet`
            are left out.
        alphabet: The first tokens, by id: special tokens and all single characters.
        vocab_size: Number of tokens to learn, those of `alphabet` included.

    Returns:
        All tokens by id, and the merges by rank.
    """
    tokens = list(alphabet)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    corpus = _Corpus(words, ids)

    # The heap has the most frequent pair first. An entry whose count is no longer true
    # is put back with the true one.
    heap = [(-pair_count, pair) for pair, pair_count in corpus.pair_counts.items()]
    heapq.heapify(heap)
    merges: list[Merge] = []
    while len(tokens) < vocab_size and heap:
        negative_count, pair = heapq.heappop(heap)
        pair_count = corpus.pair_counts[pair]
        if pair_count <= 0:
            continue
        if -negative_count != pair_count:
            heapq.heappush(heap, (-pair_count, pair))
            continue
        left = tokens[pair[0]]
        right = tokens[pair[1]]
        # Two pairs can spell one token: "ab" + "c" and "a" + "bc".
        token_id = ids.setdefault(left + right, len(tokens))
        if token_id == len(tokens):
            tokens.append(left + right)
        merges.append((left, right))
        # Sorted, because the order of a set is not the same in every run.
        for new_pair in sorted(corpus.merge(pair, token_id)):
            heapq.heappush(heap, (-corpus.pair_counts[new_pair], new_pair))
    return tokens, merges


class _Corpus:
    """Distinct words as lists of symbols, and the counts of all pairs of neighbours.

    Attributes:
        pair_counts: Occurrences of each pair in the training text.
    """

    def __init__(self, words: Mapping[str, int], ids: Mapping[str, int]) -> None:
        self.pair_counts: Counter[Pair] = Counter()
        self._counts = list(words.values())
        self._symbols: list[list[int]] = []
        # Words that had the pair when it was last formed in them. Some have lost it
        # since, so a merge looks at each word.
        self._words_with: defaultdict[Pair, set[int]] = defaultdict(set)
        for word_index, (word, word_count) in enumerate(words.items()):
            symbols = [ids[character] for character in word if character in ids]
            self._symbols.append(symbols)
            for pair in pairwise(symbols):
                self.pair_counts[pair] += word_count
                self._words_with[pair].add(word_index)

    def merge(self, pair: Pair, token_id: int) -> set[Pair]:
        """Replace a pair by one symbol in all words.

        Returns:
            The pairs that became more frequent by that.
        """
        left, right = pair
        new_pairs: set[Pair] = set()
        for word_index in self._words_with.pop(pair):
            symbols = self._symbols[word_index]
            word_count = self._counts[word_index]
            symbol_index = 0
            while symbol_index < len(symbols) - 1:
                if symbols[symbol_index] != left or symbols[symbol_index + 1] != right:
                    symbol_index += 1
                    continue
                symbols[symbol_index : symbol_index + 2] = [token_id]
                # The pair's neighbours lose their pairs with it and get pairs with the
                # new symbol.
                if symbol_index > 0:
                    left_symbol = symbols[symbol_index - 1]
                    self.pair_counts[left_symbol, left] -= word_count
                    self._add((left_symbol, token_id), word_index, new_pairs)
                if symbol_index < len(symbols) - 1:
                    right_symbol = symbols[symbol_index + 1]
                    self.pair_counts[right, right_symbol] -= word_count
                    self._add((token_id, right_symbol), word_index, new_pairs)
                symbol_index += 1
        del self.pair_counts[pair]
        return new_pairs

    def _add(self, pair: Pair, word_index: int, new_pairs: set[Pair]) -> None:
        """Count a new occurrence of a pair in a word."""
        self.pair_counts[pair] += self._counts[word_index]
        self._words_with[pair].add(word_index)
        new_pairs.add(pair)
