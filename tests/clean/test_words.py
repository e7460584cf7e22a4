"""Words, n-grams and signatures: the compiled loops beside plain Python and the
formula in NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlake.config import PipelineConfig
from tokenlake.config.resolve import signing_of
from tokenlake.etl.clean import (
    EvaluationNgrams,
    Signer,
    WordBuffer,
    compiled_loops,
    exact_hashes,
    ngram_hashes,
    words_of,
)

PRIME = (1 << 61) - 1
WORDS = st.text("abé 0.,'\n漢한", max_size=80)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 3.14, NOT 3,14!", "it s 0 not 0"),
        ("Crème brûlée — naïve", "creme brulee naive"),
        ("٣٫١٤ and １２", "0 and 0"),
        ("漢字 kanji", "漢 字 kanji"),
        ("  \n\t_ ", ""),
        ("snake_case v2.0beta", "snake case v0beta"),
    ],
)
def test_what_people_call_the_same_text_is_the_same_words(
    text: str, words: str
) -> None:
    assert words_of(text).decode() == words


@given(WORDS)
def test_words_of_words_are_these_words_in_any_case(text: str) -> None:
    words = words_of(text).decode()
    assert words_of(words).decode() == words_of(text.upper()).decode() == words
    assert words == " ".join(words.split())


@given(st.binary(max_size=100))
def test_the_hash_is_xxh64(data: bytes) -> None:
    assert int(
        compiled_loops().xxh64(np.frombuffer(data, np.uint8), 0, len(data))
    ) == xxhash.xxh64_intdigest(data)


@settings(max_examples=50)
@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(1, 4))
def test_every_ngram_is_hashed_once_in_order(texts: list[str], n: int) -> None:
    words = [words_of(text).split() for text in texts]
    grams = [
        [b" ".join(each[i : i + n]) for i in range(len(each) - n + 1)] for each in words
    ]
    hashes, counts = ngram_hashes(WordBuffer.of(texts), n)
    assert counts.tolist() == [len(each) for each in grams]
    assert hashes.tolist() == [
        xxhash.xxh64_intdigest(gram) for each in grams for gram in each
    ]


def test_bands_are_hashes_of_the_least_values_of_each_permutation() -> None:
    """The formula, in NumPy: it is the one that datatrove has, with the same
    numbers.
    """
    minhash = {"bands": 3, "rows": 2, "ngram": 2}
    config = PipelineConfig.model_validate(
        {"datasets": [{"data_files": "x"}], "clean": {"minhash": minhash}}
    )
    signing = signing_of(config.clean)
    text = "one two three four five six one two"
    grams = ["one two", "two three", "three four", "four five", "five six", "six one"]
    draw = np.random.RandomState(1)
    factors = draw.randint(1, PRIME, dtype=np.uint64, size=(1, 6))
    terms = draw.randint(0, PRIME, dtype=np.uint64, size=(1, 6))
    hashes = np.array([[xxhash.xxh64_intdigest(gram)] for gram in grams], np.uint64)
    least = ((hashes * factors + terms) % np.uint64(PRIME)).min(axis=0)
    wanted = [
        xxhash.xxh64_intdigest(least[band : band + 2].tobytes()) for band in (0, 2, 4)
    ]
    batch = Signer(signing).sign(
        [text, "too short"[:3]], np.zeros(2, np.int64), np.arange(2)
    )
    assert [batch[f"band_00{band}"][0].as_py() for band in range(3)] == wanted
    assert batch["ngrams"].to_pylist() == [7, 0]


def test_equal_documents_are_those_of_the_same_text_or_of_the_same_words() -> None:
    texts = ["A b\n", "a  B", "a b", "a b!"]
    folded, exact = exact_hashes(texts, "folded"), exact_hashes(texts, "text")
    assert [row.tolist() == folded[2].tolist() for row in folded] == [
        True,
        True,
        True,
        False,
    ]
    assert len({tuple(row) for row in exact.tolist()}) == 4


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=30))
def test_sets_end_at_their_first_document(keys: list[list[int]]) -> None:
    """Documents with a key in common in any band, and those linked by others, are
    one set.
    """
    parents = np.arange(len(keys))
    for band in range(3):
        column = np.array([key[band] for key in keys], np.uint64)
        order = np.argsort(column, kind="stable")
        compiled_loops().unite(parents, column[order], order)
    compiled_loops().settle(parents)
    wanted = list(range(len(keys)))
    for _ in keys:  # the slow way: until nothing changes
        for a, first in enumerate(keys):
            for b, second in enumerate(keys):
                if any(x == y for x, y in zip(first, second, strict=True)):
                    wanted[a] = wanted[b] = min(wanted[a], wanted[b])
    assert parents.tolist() == wanted


def test_evaluation_ngrams_belong_to_the_first_set_and_survive_their_file() -> None:
    sets = {"one": [["a b c d", "short"]], "two": [["x a b c y z"]]}
    found = EvaluationNgrams.from_bytes(EvaluationNgrams.of(sets, 3).data)
    assert [
        (each.documents, each.too_short, each.ngrams) for each in found.counts.values()
    ] == [
        (2, 1, 2),
        (1, 0, 3),
    ]
    words = WordBuffer.of(
        ["so A, b: c!", "x a b", "nothing of it", "b c", "q x a b c d y z q"]
    )
    assert found.find(words, 1, 0.0) == ["one", "two", None, None, "two"]
    assert found.find(words, 2, 0.0) == [None, None, None, None, "two"]
    assert found.find(words, 1, 0.6) == [None, "two", None, None, None]
    assert found.sha256 == EvaluationNgrams.of(sets, 3).sha256
