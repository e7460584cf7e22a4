"""Training of a byte-level BPE: the words, the merges, and the tokenizer that comes
out.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer_files import train_sentencepiece, train_unigram, train_word_piece
from tests.tokenizer_reference import ReferenceTokenizer, needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import choose_engine
from tokenlake.errors import ConfigError
from tokenlake.etl.tokenizers import learn_merges, train_bpe
from tokenlake.etl.tokenizers.training import count_words
from tokenlake.runtime.tokenizer_guard import byte_characters

TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab_'s 1\u00bd\u0663\t\n\r\x1c\x85\u2003\u4e00\u4e8c\u0301-"),
        # What this Python's Unicode does not assign yet may be letters to `tokenizers`.
        st.characters(exclude_categories=["Cs", "Cn"]),
    ),
    max_size=40,
)


@needs_stages
@given(TEXTS)
def test_words_are_those_of_the_pre_tokenizer(text: str) -> None:
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": True,
    }
    pre_tokenizer = samples.backend_with(pre_tokenizer=level).pre_tokenizer
    characters = byte_characters()
    expected: Counter[str] = Counter(
        piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)
    )
    words = count_words([text])
    assert (
        Counter(
            {
                "".join(characters[byte] for byte in word.encode()): words[word]
                for word in words
            }
        )
        == expected
    )


@given(TEXTS)
def test_no_character_of_a_text_is_in_no_word(text: str) -> None:
    characters: Counter[str] = Counter()
    for word, count in count_words([text]).items():
        for character in word:
            characters[character] += count
    assert characters == Counter(text)


def learn_slowly(
    words: dict[str, int], alphabet: str, vocab_size: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn by counting all pairs anew for each merge."""
    tokens = list(alphabet)
    merges: list[tuple[str, str]] = []
    split = {word: [alphabet.index(character) for character in word] for word in words}
    while len(tokens) < vocab_size:
        counts: Counter[tuple[int, int]] = Counter()
        for word, symbols in split.items():
            for pair in pairwise(symbols):
                counts[pair] += words[word]
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append((tokens[best[0]], tokens[best[1]]))
        joined = tokens[best[0]] + tokens[best[1]]
        if joined not in tokens:
            tokens.append(joined)
        for symbols in split.values():
            place = 0
            while place < len(symbols) - 1:
                if (symbols[place], symbols[place + 1]) == best:
                    symbols[place : place + 2] = [tokens.index(joined)]
                place += 1
    return tokens, merges


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=12), st.integers(1, 9), max_size=8
    ),
    st.integers(3, 30),
)
def test_merges_are_those_of_the_most_frequent_pairs(
    words: dict[str, int], vocab_size: int
) -> None:
    assert learn_merges(words, "abc", vocab_size) == learn_slowly(
        words, "abc", vocab_size
    )


def test_the_example_of_the_documentation() -> None:
    tokens, merges = learn_merges({"low": 5, "lower": 2}, "elorw", 7)
    assert tokens[5:] == ["lo", "low"]
    assert merges == [("l", "o"), ("lo", "w")]


def test_a_trained_tokenizer_is_repeatable_and_runs_on_gigatoken() -> None:
    texts = samples.training_texts()
    first, second = train_bpe(iter(texts), 400), train_bpe(list(texts), 400)
    assert first.files == second.files
    assert (
        first.vocab_size == 400
        and first.eos_token == "<|endoftext|>"
        and first.eos_id == first.bos_id == 0
    )
    assert (
        choose_engine(first, "gigatoken", "literal", texts[:50]).engine == "gigatoken"
    )


def test_training_on_nothing_gives_bytes() -> None:
    assert train_bpe([], 300).vocab_size == 257


def test_training_needs_room_for_the_bytes() -> None:
    with pytest.raises(ConfigError, match="at least 257"):
        train_bpe(["a"], 256)


def test_a_trained_tokenizer_decodes_what_it_encodes() -> None:
    """Each word of the training text is one token where the vocabulary has room for
    it.
    """
    tokenizer = ReferenceTokenizer(train_bpe(["low lower low"], 300).json_bytes)
    assert len(tokenizer.encode("low lower").ids) == 2
    for text in samples.hard_texts()[::7]:
        assert (
            tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
            == text
        )


@pytest.mark.parametrize(
    "train", [train_sentencepiece, train_word_piece, train_unigram]
)
def test_tokenizers_for_tests_are_the_same_each_time(train) -> None:
    texts = samples.training_texts()[:60]
    first = train(texts, 400)
    assert first == train(list(texts), 400)
    assert (
        ReferenceTokenizer(samples.from_spec(first).json_bytes)
        .encode("Hello world")
        .ids
    )
