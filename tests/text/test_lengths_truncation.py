"""Where texts are cut: at most the budget, the longest that the rule allows, and
never through a character.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizers import tokenizer_samples as samples
from tokenlake.errors import ConfigError
from tokenlake.etl.text import (
    SIDES,
    STRATEGIES,
    is_word_boundary,
    sentence_breaks,
    truncate,
)
from tokenlake.etl.tokenizers import ReferenceBackend

Places = tuple[list[int], list[int]]

SMART_SHARE = 0.8
"""Of the budget that ``smart`` keeps at least, where it looks for a nicer end."""

_PIECES = (
    "word Dr. J. e.g. don't 3.14 Ende. end! why?) \u201cyes.\u201d 他走了。 再见 ไทย नमस्ते। "
    "été e\u0301 👩\u200d👩\u200d👧 👍🏽 🇩🇪🇫🇷 x_y ."
)
PIECES = st.sampled_from([*_PIECES.split(), " ", "  ", "\n", "\n\n", "\r\n", "\t"])
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=30)


def by_character(text: str) -> Places:
    """A tokenizer with a token for each character."""
    ends = np.cumsum([len(character.encode()) for character in text]).tolist()
    return [0, *ends[:-1]] if ends else [], ends


def by_byte(text: str) -> Places:
    """A tokenizer with a token for each byte, which tells where its character lies."""
    start, stop = by_character(text)
    sizes = [b - a for a, b in zip(start, stop, strict=True)]
    return np.repeat(start, sizes).tolist(), np.repeat(stop, sizes).tolist()


def by_true_byte(text: str) -> Places:
    """A tokenizer with a token for each byte, which tells where the byte lies."""
    size = len(text.encode())
    return list(range(size)), list(range(1, size + 1))


def without_blanks(text: str) -> Places:
    """A tokenizer that drops blanks."""
    start, stop = by_character(text)
    kept = [
        (a, b)
        for a, b, character in zip(start, stop, text, strict=True)
        if not character.isspace()
    ]
    return [a for a, _ in kept], [b for _, b in kept]


def trained(text: str) -> Places:
    (_, start, stop), *_ = PLACING.places(samples.large([text]))
    return start.tolist(), stop.tolist()


PLACING = ReferenceBackend(samples.byte_level())
TOKENIZERS = st.sampled_from(
    [by_character, by_byte, by_true_byte, without_blanks, trained]
)
CASE = {
    "text": TEXTS,
    "places": TOKENIZERS,
    "budget": st.integers(0, 30),
    "side": st.sampled_from(SIDES),
}


def cut_of(text: str, places: Places, budget: int, strategy: Any, side: Any) -> Any:
    start, stop = places
    return truncate(
        text,
        np.array(start, np.int64),
        np.array(stop, np.int64),
        budget,
        strategy,
        side,
    )


def clean(text: str, places: Places) -> dict[int, tuple[int, int]]:
    """Every cut that goes through no character: token to (end before it, begin after
    it), in characters.
    """
    start, stop = places
    characters = {0: 0}
    for index, end in enumerate(by_character(text)[1]):
        characters[end] = index + 1
    found: dict[int, tuple[int, int]] = {}
    for cut in range(len(start) + 1):
        low, high = (
            max(stop[:cut], default=0),
            min(start[cut:], default=len(text.encode())),
        )
        if low <= high and low in characters and high in characters:
            found[cut] = characters[low], characters[high]
    return found


def expected(text: str, places: Places, budget: int, strategy: Any, side: Any) -> int:
    """The cut by the definition, looked for among all cuts."""
    cuts = clean(text, places)
    count = len(places[0])

    def kept(cut: int) -> int:
        return cut if side == "right" else count - cut

    def longest(allowed: Callable[[int, int], bool], least: float) -> int | None:
        fits = [
            cut
            for cut, (low, high) in cuts.items()
            if least <= kept(cut) <= budget
            and low > 0
            and high < len(text)
            and allowed(low, high)
        ]
        return max(fits, key=kept, default=None)

    ends, begins = (values.tolist() for values in sentence_breaks(text))

    def sentence(low: int, high: int) -> bool:
        return any(
            end <= high and begin >= low
            for end, begin in zip(ends, begins, strict=True)
        )

    def word(low: int, high: int) -> bool:
        return any(is_word_boundary(text, at) for at in range(low, high + 1))

    least = SMART_SHARE * budget if strategy == "smart" else 1
    found = longest(sentence, least) if strategy in ("sentence", "smart") else None
    if found is None and strategy != "simple":
        found = longest(word, least)
    return (
        max((cut for cut in cuts if kept(cut) <= budget), key=kept)
        if found is None
        else found
    )


@given(**CASE, strategy=st.sampled_from(STRATEGIES[1:]))
@settings(max_examples=40, deadline=None)
def test_a_cut_is_the_longest_that_the_rule_allows(
    text: str, places: Callable[[str], Places], budget: int, side: Any, strategy: Any
):
    found = places(text)
    cut = cut_of(text, found, budget, strategy, side)
    if len(found[0]) <= budget:
        assert (cut.first, cut.last, cut.by) == (0, len(found[0]), "none")
    else:
        wanted = expected(text, found, budget, strategy, side)
        assert (cut.first, cut.last) == (
            (0, wanted) if side == "right" else (wanted, len(found[0]))
        )
    assert len(cut) <= budget
    text.encode()[cut.start : cut.stop].decode()  # whole characters


@given(**CASE, strategy=st.sampled_from(STRATEGIES))
@settings(max_examples=50, deadline=None)
def test_what_is_kept_holds_the_bytes_of_its_tokens_and_no_others(
    text: str, places: Callable[[str], Places], budget: int, side: Any, strategy: Any
):
    start, stop = places(text)
    cut = cut_of(text, (start, stop), budget, strategy, side)
    for token in range(len(start)):
        inside = start[token] >= cut.start and stop[token] <= cut.stop
        outside = stop[token] <= cut.start or start[token] >= cut.stop
        assert inside if cut.first <= token < cut.last else outside


@given(
    text=TEXTS,
    places=TOKENIZERS,
    budget=st.integers(-1, 5),
    side=st.sampled_from(SIDES),
)
def test_none_never_cuts(
    text: str, places: Callable[[str], Places], budget: int, side: Any
):
    found = places(text)
    cut = cut_of(text, found, budget, "none", side)
    assert (cut.first, cut.last, cut.start, cut.stop) == (
        0,
        len(found[0]),
        0,
        len(text.encode()),
    )


@given(
    text=TEXTS,
    places=TOKENIZERS,
    budget=st.integers(1, 30),
    side=st.sampled_from(SIDES),
)
def test_a_nicer_end_never_keeps_more_and_smart_gives_up_at_most_a_fifth(
    text: str, places: Callable[[str], Places], budget: int, side: Any
):
    found = places(text)
    simple, word, sentence, smart = (
        len(cut_of(text, found, budget, strategy, side)) for strategy in STRATEGIES[1:]
    )
    assert word <= simple and sentence <= simple and smart <= simple
    assert smart >= min(simple, SMART_SHARE * budget)


TEXT = "Dr. Smith saw 3.14 cats. Then he left! Why not?"


@pytest.mark.parametrize(
    ("strategy", "side", "kept"),
    [
        ("simple", "right", "Dr. Smith saw 3.14 cats. Then he l"),
        ("word", "right", "Dr. Smith saw 3.14 cats. Then he "),
        ("sentence", "right", "Dr. Smith saw 3.14 cats. "),
        ("smart", "right", "Dr. Smith saw 3.14 cats. Then he "),
        ("simple", "left", "w 3.14 cats. Then he left! Why not?"[1:]),
        ("word", "left", " 3.14 cats. Then he left! Why not?"),
        ("sentence", "left", " Then he left! Why not?"),
        ("smart", "left", " 3.14 cats. Then he left! Why not?"),
    ],
)
def test_an_english_text(strategy: Any, side: Any, kept: str):
    cut = cut_of(TEXT, by_character(TEXT), 34, strategy, side)
    assert TEXT[cut.start : cut.stop] == kept


def sentences(text: str) -> list[str]:
    ends, _ = sentence_breaks(text)
    edges = [0, *dict.fromkeys(ends.tolist()), len(text)]
    return [text[a:b].strip() for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    "expected_sentences",
    [
        ["He met Mr. J. R. Smith of Acme Inc. in Jan. at noon.", "They talked."],
        [
            "It costs 3.50 (i.e. too much).",
            "“No.”",
            "She left!!",
            "Why?!",
            "Well…",
            "So it goes.",
        ],
        ["We wrote it, e.g. here, etc. and so on.", "Then etc.", "Next."],
        ["他走了。", "真的吗？！", "「好。」", "再见"],
        ["यह सच है।", "हाँ"],
        ["A heading without a full stop", "A paragraph."],
        ["See www.example.com/a.b?c=d for more.", "Bye"],
    ],
)
def test_sentences_are_told_apart(expected_sentences: list[str]):
    joined = "".join(
        sentence
        + (
            ""
            if sentence[-1] in "。！？」"
            else "\n\n"
            if sentence[-1].isalpha()
            else " "
        )
        for sentence in expected_sentences
    )
    assert sentences(joined.strip()) == expected_sentences


@pytest.mark.parametrize(
    "words",
    [
        ["don't", " ", "well-known", " ", "3.14", ",", " ", "12:30", "!"],
        ["他", "走", "了", "ok", "。"],
        ["नमस्ते", " ", "e\u0301te\u0301"],
        ["👩‍👩‍👧", "👍🏽", "🇩🇪", " ", "a\u0327"],
        ["x_y", "(", "z", ")", "\r\n", "q"],
    ],
)
def test_words_are_told_apart(words: list[str]):
    text = "".join(words)
    edges = np.cumsum([0, *map(len, words)]).tolist()
    assert [at for at in range(len(text) + 1) if is_word_boundary(text, at)] == edges


@pytest.mark.parametrize(
    "text",
    [
        "." * 300_000,
        ". " * 100_000,
        "\n" * 300_000,
        "a\n \n" * 50_000,
        "!." * 100_000,
        "\u0301" * 100_000,
    ],
)
def test_no_text_makes_the_search_for_sentences_slow(text: str):
    begun = time.process_time()
    sentence_breaks(text)
    # It takes about 0.2; anything quadratic takes minutes.
    assert time.process_time() - begun < 3


def test_a_wrong_strategy_or_side_is_named():
    with pytest.raises(
        ConfigError, match="strategy is 'wrod', expected one of 'none', 'simple'"
    ):
        cut_of("", ([], []), 1, "wrod", "right")
    with pytest.raises(
        ConfigError, match="side is 'middle', expected one of 'left', 'right'"
    ):
        cut_of("", ([], []), 1, "word", "middle")
