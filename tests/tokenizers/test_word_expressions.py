"""Expressions split a text where `tokenizers` splits it, or are refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.base.cache import DiskCache
from tokenlake.etl.tokenizers.words import (
    UnsupportedError,
    classes_of,
    compile_tree,
    literal,
    loops,
    parse,
    stage_class,
    symbols_of,
)

# About character classes, which are read from the parts of `tokenizers`.
pytestmark = needs_stages

# Few classes, so that their tables are asked for once.
CLASSES = (
    "a",
    "b",
    " ",
    r"\s",
    r"\S",
    "[ab]",
    "[^a]",
    r"\p{L}",
    r"\p{N}",
    "\u00e9",
    r"[^\s\p{L}]",
    "[\r\n]",
    "'",
)
LETTERS = "ab c1'\n\r\u00e9\u4e00\U0001f600"


@pytest.fixture(scope="module", autouse=True)
def _cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what `tokenizers` says about classes for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENLAKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def splitter_of(source: str) -> Any:
    """Compile an expression; all classes of these tests share one table."""
    tree = parse(source)
    wanted = classes_of(tree)
    known = [each for each in wanted if each not in CLASSES]
    sources = [*CLASSES, *known]
    return compile_tree(tree, sources, symbols_of(sources))


def pieces_of(splitter: Any, texts: list[str], block: int) -> list[list[str]]:
    """Return the pieces of texts, split in blocks of so many bytes."""
    encoded = [text.encode() for text in texts]
    edges = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    data = np.frombuffer(b"".join(encoded) + bytes(8), np.uint8)
    made: list[list[str]] = [[] for _ in texts]
    split = loops().split
    part = 0
    place = 0
    while part < len(texts):
        cuts = np.empty(2 * int(edges[-1]) + 2 * block + 2, np.int64)
        counts = np.zeros(len(edges), np.int64)
        part, place, count = split(
            data, edges, part, place, block, *splitter.tables, cuts, counts
        )
        for begin, end in zip(
            cuts[:count].tolist(), cuts[1 : count + 1].tolist(), strict=True
        ):
            row = int(np.searchsorted(edges, begin, "right")) - 1
            made[row].append(bytes(data[begin:end]).decode())
    return made


def expected(pattern: str, text: str, kind: str = "Regex") -> list[str]:
    """Return the pieces that `tokenizers` makes."""
    return [
        piece for piece, _ in pre_tokenizer_of(kind, pattern).pre_tokenize_str(text)
    ]


@functools.lru_cache(maxsize=4)
def pre_tokenizer_of(kind: str, pattern: str) -> Any:
    split = {
        "type": "Split",
        "pattern": {kind: pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return samples.backend_with(pre_tokenizer=split).pre_tokenizer


def repeated(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = (
        "",
        "",
        "",
        "*",
        "+",
        "?",
        "{1,3}",
        "{2}",
        "*?",
        "+?",
        "??",
        "++",
        "?+",
    )
    return st.tuples(part, st.sampled_from(quantifiers)).map("".join)


def branches(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(repeated(part), min_size=1, max_size=4).map("".join)
    look = st.sampled_from(("", "", "", r"(?!\S)", "(?!a)", "(?= )", "(?![ab])"))
    return st.lists(st.tuples(sequence, look).map("".join), min_size=1, max_size=4).map(
        "|".join
    )


ATOMS = st.sampled_from(CLASSES)
GROUPS = branches(ATOMS).map(lambda inside: f"(?:{inside})")
EXPRESSIONS = branches(st.one_of(ATOMS, ATOMS, ATOMS, GROUPS))
TEXTS = st.lists(st.text(LETTERS, max_size=25), min_size=1, max_size=4)


@needs_stages
@settings(max_examples=150)
@given(EXPRESSIONS, TEXTS, st.sampled_from((1, 3, 10, 1000)))
def test_any_expression_splits_as_tokenizers_does(
    source: str, texts: list[str], block: int
) -> None:
    try:
        splitter = splitter_of(source)
    except UnsupportedError:
        return
    made = pieces_of(splitter, texts, block)
    for text, pieces in zip(texts, made, strict=True):
        assert pieces == ([] if text == "" else expected(source, text)), (source, text)


SUPPORTED = (
    *samples.SPLIT_REGEXES.values(),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}&&[^\u4e00]]+|[^\p{Han}]",
    r"(?i:k|s)+",
    r"a(?-i:b)|\x41|\u0042|\x{1F600}|[[:alpha:]&&\p{L}]|\h",
    r"(a|ab)(c|bcd)",
    "a++(?!a)",
    "a++(?!b)b",
    "[^ab]++(?=a)(?!b)",
)
HARD = [
    *samples.hard_texts()[::9],
    "KkK\u212a S\u017f's 'S '\u017f 'LL \ufb06",
    "  \t\n  x \r\n\r\n  ",
    "abcd ab A B \U0001f600 1234567 \u4e00\u4e01\u9fa6\u3042\u30fc",
    "can't CAN'T don\u2019t .Net ,x\n\n//\n",
]


@needs_stages
@pytest.mark.parametrize("source", SUPPORTED)
def test_expressions_of_real_tokenizers(source: str) -> None:
    splitter = splitter_of(source)
    for block in (7, 1 << 20):
        made = pieces_of(splitter, HARD, block)
        assert made == [expected(source, text) if text else [] for text in HARD]


@needs_stages
def test_literal_texts_are_no_expressions() -> None:
    tree = literal("a.b|")
    sources = classes_of(tree)
    splitter = compile_tree(tree, sources, symbols_of(sources))
    text = "xa.b|a.ba.b|a|b"
    assert pieces_of(splitter, [text], 100) == [expected("a.b|", text, "String")]


REFUSED = {
    "^a": r"unsupported \^",
    "a$": r"unsupported \$",
    "a.": r"unsupported \.",
    r"\bword": r"unsupported \\b",
    "(?<=a)b": "unsupported group",
    "(?<name>a)": "unsupported group",
    "(?!ab)a": "further than one character",
    "(a*)*b": "can be empty",
    "a*": "matches the empty text",
    "(?:ab)++a": "possessively",
    "a++a": "possessively",
    "[^a]++(?!a)": "possessively",
    "[^a]?+(?:b|(?!a)(?=[ab]))": "possessively",
    "(?:ba?+)+a": "possessively inside",
    "a{1,2}+": "repeated repetition",
    "a{3000}": "above 64",
    "(?i:ff)": "ligature",
    "(?i:s+)": "ligature",
    "(?i:\u00df)": "more than ASCII",
    "(a": "without end",
    "a)": r"unmatched \)",
    "[a": "class without end",
    "[]a]": "beginning of a class",
    r"\xE9": "byte that is no character",
    r"\p{Nothing}": "does not accept a character class",
    r"(?:\p{L}{1,64}\p{N}){30}": "nodes",
    r"(?:\p{L}|a)+?(?:a[ab]{12}b)": "states",
}


@pytest.mark.parametrize("source", REFUSED)
def test_what_is_not_supported_is_refused_with_the_reason(source: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[source]):
        splitter_of(source)


def test_members_of_classes_are_those_of_tokenizers() -> None:
    symbols = symbols_of([r"\p{Lu}", r"[^\s]", "x"])
    letters = "Aax \u00c9\u00e9\u01c5\u2003\u4e00\U0001d504"
    for number, is_member in enumerate(
        (str.isupper, lambda text: not text.isspace(), lambda text: text == "x")
    ):
        made = [
            bool(symbols.members[symbols.of_point[ord(letter)], number])
            for letter in letters
        ]
        assert made == [is_member(letter) for letter in letters]
    assert len(symbols.of_point) == sys.maxunicode + 1


def test_classes_are_asked_for_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path)
    first = symbols_of([r"\p{L}", "[0-9]"], cache)
    monkeypatch.setattr("tokenlake.etl.tokenizers.words.classes._ask", None)
    again = symbols_of([r"\p{L}", "[0-9]"], cache)
    assert np.array_equal(first.of_point, again.of_point) and np.array_equal(
        first.members, again.members
    )
    # Another version of `tokenizers` may have other tables.
    monkeypatch.setattr(
        "tokenlake.etl.tokenizers.words.classes.tokenizers_version", lambda: "0.0"
    )
    with pytest.raises(TypeError):
        symbols_of([r"\p{L}", "[0-9]"], cache)


@needs_stages
@pytest.mark.parametrize(
    "stage", [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation"}]
)
def test_classes_of_other_pre_tokenizers(stage: dict[str, Any]) -> None:
    symbols = symbols_of([stage_class(stage)])
    text = "".join(map(chr, range(0x20, 0x3100))) + "\U0001d7ce\U00010ac8\U0001f600"
    members = {
        character
        for character in text
        if symbols.members[symbols.of_point[ord(character)], 0]
    }
    splitter: Any = samples.backend_with(pre_tokenizer=stage).pre_tokenizer
    for character in text:
        pieces = splitter.pre_tokenize_str(f"a{character}a")
        assert (len(pieces) == 3) == (character in members), character
    assert 10 < len(members) < len(text) - 10
