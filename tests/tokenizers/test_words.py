"""Cached words have the ids of `tokenizers`, for any splits, added tokens, text, and
state of the table.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.engine_builds import check_same_bytes
from tests.tokenizers.test_mutations import REFUSED
from tests.tokenizers.tokenizer_mutations import MUTATIONS
from tests.tokenizers.tokenizer_samples import SPACE, Spec, choose_engine
from tokenlake.base.cache import DiskCache
from tokenlake.errors import EngineMismatchError, TokenizerError
from tokenlake.etl.tokenizers import Encoder, TokenizerFiles, gate
from tokenlake.etl.tokenizers.offsets import TokenSizes
from tokenlake.etl.tokenizers.words import (
    LONGEST,
    LONGEST_MERGED,
    WordBackend,
    loops,
    objection_to_words,
)

# About an engine whose splits need character classes;
# tests/tokenizers/test_generations.py tests the others.
pytestmark = needs_stages

WORDS = "tokenlake.etl.tokenizers.words"


def asking_engine(files: TokenizerFiles) -> WordBackend:
    """Return an engine that asks the reference for the ids of every new word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            f"{WORDS}.merging.Merger.of", lambda *_arguments, **_options: None
        )
        return WordBackend(files)


def merges_words(files: TokenizerFiles, text: str = "some words") -> bool:
    """Whether an engine has the ids of new words without asking the reference."""
    questions: list[list[str]] = []
    encode_words = WordBackend.encode_words

    def note(engine: WordBackend, words: list[str]) -> Any:
        questions.append(words)
        return encode_words(engine, words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WordBackend, "encode_words", note)
        same_ids(WordBackend(files), [text])
    return questions == []


@pytest.fixture(scope="module", autouse=True)
def _cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what `tokenizers` says about classes for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENLAKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def split(regex: str, **changes: Any) -> Spec:
    return {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
        **changes,
    }


BYTES: Spec = {**samples.BYTE_LEVEL, "use_regex": False}
DEEPSEEK = (
    split(r"\p{N}{1,3}"),
    split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    split(
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
    ),
)
O200K = samples.SPLIT_REGEXES["o200k"]


def stages(*parts: Spec) -> Callable[[Spec], object]:
    return lambda spec: spec.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(parts)}
    )


BYTE_LEVEL_FORMS: dict[str, Callable[[Spec], object]] = {
    "gpt-2": lambda _spec: None,
    "llama-3": stages(split(samples.SPLIT_REGEXES["llama-3"]), BYTES),
    "o200k": stages(split(O200K), BYTES),
    "deepseek": stages(*DEEPSEEK, BYTES),
    "starcoder": stages(
        {"type": "Digits", "individual_digits": True}, samples.BYTE_LEVEL
    ),
    "digits together": stages(
        {"type": "Digits", "individual_digits": False}, samples.BYTE_LEVEL
    ),
    "punctuation": stages({"type": "Punctuation"}, samples.BYTE_LEVEL),
    "matches alone": stages(split(O200K, behavior="Removed", invert=True), BYTES),
    "inverted": stages(split(r"\s+", invert=True), BYTES),
    "a text": stages({**split(""), "pattern": {"String": "ab"}}, BYTES),
    "a space in front": lambda spec: spec.update(
        pre_tokenizer={**samples.BYTE_LEVEL, "add_prefix_space": True}
    ),
    "whole texts": lambda spec: spec.update(pre_tokenizer=BYTES),
    "no normalizers": lambda spec: spec.update(
        normalizer={"type": "Sequence", "normalizers": []}
    ),
    "nfc": lambda spec: spec.update(normalizer={"type": "NFC"}),
    "ignored merges": lambda spec: spec["model"].update(ignore_merges=True),
    "missing bytes": lambda spec: [
        spec["model"]["vocab"].pop(token) for token in "\u0100\u0101\xc2\xff"
    ],
}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
IDLE = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}


def without_newline_byte(spec: Spec) -> None:
    """Leave a byte token out that no text needs, because its character has a token."""
    vocab = spec["model"]["vocab"]
    del vocab["<0x0A>"]
    vocab.setdefault("\n", 9000)
    spec.update(normalizer=REPLACE)


SENTENCEPIECE_FORMS: dict[str, Callable[[Spec], object]] = {
    "llama-2": lambda _spec: None,
    "gemma": lambda spec: spec.update(normalizer=REPLACE, pre_tokenizer=IDLE),
    "gemini": without_newline_byte,
    "metaspace": lambda spec: spec.update(
        normalizer=None,
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "first",
            "split": True,
        },
    ),
}


def form(name: str) -> TokenizerFiles:
    if name in BYTE_LEVEL_FORMS:
        return samples.changed(samples.byte_level(), BYTE_LEVEL_FORMS[name])
    return samples.changed(samples.sentencepiece(), SENTENCEPIECE_FORMS[name])


def same_ids(engine: WordBackend, texts: list[str], *, literal: bool = True) -> None:
    made = engine.encode(samples.large(texts))
    assert (
        made.offsets.dtype == np.int64
        and made.ids.dtype == np.int32
        and made.offsets[-1] == len(made.ids)
    )
    for text, ids, expected in zip(
        texts,
        made.rows(),
        samples.reference_ids(engine.files, texts, literal=literal),
        strict=True,
    ):
        assert ids.tolist() == expected, text


PARTS = (
    *(
        "a",
        "b",
        "ab",
        "th",
        "the",
        " the",
        "The",
        "ing",
        "s",
        "'s",
        "'S",
        "'ll",
        "\u2019s",
        "'",
        "1",
        "12",
        "1234",
    ),
    *(
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\x0b",
        "\x00",
        "\x1c",
        "\x85",
        "\xa0",
        "\u2003",
        "\u3000",
    ),
    *(
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u2028",
        "\u180e",
        ".",
        "...",
        "!?",
        "/",
        "//",
        "-",
        "_",
        "=",
        "<",
        ">",
        "#",
    ),
    *(
        "\xe9",
        "e\u0301",
        "\u0301",
        "\u0327\u0301",
        "\u0301\u0327",
        "\u212b",
        "\u1e9b\u0323",
        "\u017f",
        "\u212a",
    ),
    *(
        "\ufb01",
        "\u01c5",
        "\u02b0",
        "\u0661",
        "\xb2",
        "\u2167",
        "\u4f60\u597d",
        "\u9fa6",
        "\u3042",
        "\u30fc",
    ),
    *(
        "\ud55c",
        "\u1100",
        "\u1161",
        "\u11a8",
        "\u0e01\u0e47",
        "\u0928\u093f",
        "\u05e9\u05dc",
        "\u0639\u064b",
    ),
    *(
        "\U0001f468\u200d\U0001f469",
        "\U0001f1eb",
        "\ufe0f",
        "\U0001d518",
        "\U0001e900",
        "\uffff",
        "\u0378",
    ),
    *(
        SPACE,
        SPACE * 2,
        "\u0120",
        "<s>",
        "</s>",
        "<unk>",
        "<|endoftext|>",
        "<0x0A>",
        "<|end",
        "\U0010ffff",
    ),
)
TEXT = st.one_of(
    st.lists(
        st.one_of(st.sampled_from(PARTS), st.sampled_from(PARTS), st.text(max_size=3)),
        max_size=14,
    ).map("".join),
    st.tuples(st.sampled_from(PARTS), st.integers(1, 40)).map(
        lambda drawn: drawn[0] * drawn[1]
    ),
)
TEXTS = st.lists(TEXT, max_size=8)


@pytest.mark.parametrize("name", [*BYTE_LEVEL_FORMS, *SENTENCEPIECE_FORMS])
def test_any_text(name: str) -> None:
    files = form(name)
    assert objection_to_words(files, literal=True) is None
    engine = WordBackend(files)
    asking = asking_engine(files)
    for some in (engine, asking):
        same_ids(some, list(samples.hard_texts()))

    @settings(max_examples=20)
    @given(TEXTS)
    def check(texts: list[str]) -> None:
        same_ids(engine, texts)
        same_ids(engine, texts[::-1])  # all words known
        same_ids(asking, texts)

    check()


MERGED = {
    **dict.fromkeys(BYTE_LEVEL_FORMS, True),
    **dict.fromkeys(SENTENCEPIECE_FORMS, True),
    "missing bytes": False,
}


@pytest.mark.parametrize("name", MERGED)
def test_words_are_merged_where_merges_decide_alone(name: str) -> None:
    assert merges_words(form(name)) == MERGED[name]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=60),
    st.lists(st.text("abcd", max_size=30), max_size=12),
    st.booleans(),
)
def test_any_merges(
    picks: list[tuple[int, int]], words: list[str], ignores_merges: bool
) -> None:
    """Draw merges of four letters by number; the reference and the merges here give
    the same ids.
    """
    tokens = list("abcd")
    merges: list[list[str]] = []
    for first, second in picks:
        pair = [tokens[first % len(tokens)], tokens[second % len(tokens)]]
        if pair not in merges:
            merges.append(pair)
            if "".join(pair) not in tokens:
                tokens.append("".join(pair))

    def change(spec: Spec) -> None:
        base = [token for token in spec["model"]["vocab"] if len(token) == 1]
        vocab = {
            token: number
            for number, token in enumerate(dict.fromkeys([*base, *tokens]))
        }
        spec["model"] |= {
            "vocab": vocab,
            "merges": merges,
            "ignore_merges": ignores_merges,
        }
        spec.update(pre_tokenizer=BYTES, added_tokens=[])

    files = samples.changed(samples.byte_level(), change)
    assert merges_words(files, " ".join(tokens))
    same_ids(WordBackend(files), [*words, *tokens])


def test_slices_of_arrays_and_empty_ones() -> None:
    engine = WordBackend(form("deepseek"))
    texts = ["", "one two", "", "three \u4f60\u597d 4567", ""]
    made = engine.encode(samples.large(["x", *texts, "y z"]).slice(1, len(texts)))
    assert [ids.tolist() for ids in made.rows()] == samples.reference_ids(
        engine.files, texts, literal=True
    )
    assert engine.encode(samples.large([])).offsets.tolist() == [0]
    assert engine.encode(samples.large(["", ""])).offsets.tolist() == [0, 0, 0]


TOKENS = (
    "\n\n",
    "\n",
    "\n\n\n",
    "ab",
    "bc",
    "abc",
    "<x>",
    "<x",
    " the",
    "\u4f60",
    "\xe9",
    SPACE * 2,
    "q",
    "1",
)
FLAGS = st.fixed_dictionaries(
    {
        "special": st.booleans(),
        "normalized": st.booleans(),
        "single_word": st.integers(0, 9).map(lambda drawn: drawn == 0),
        "lstrip": st.integers(0, 9).map(lambda drawn: drawn == 0),
        "rstrip": st.integers(0, 9).map(lambda drawn: drawn == 0),
    }
)
PLAIN = {"special": False, "single_word": False, "lstrip": False, "rstrip": False}
NAMES = (
    "gpt-2",
    "deepseek",
    "nfc",
    "a space in front",
    "llama-2",
    "gemma",
    "metaspace",
)
TOKEN_TEXT = st.lists(
    st.sampled_from(
        [*TOKENS, "a", "b", "c", " ", "\n", "x", "e\u0301", "word", "\u0301", "<"]
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(
    st.sampled_from(NAMES),
    st.dictionaries(st.sampled_from(TOKENS), FLAGS, min_size=1, max_size=6),
    st.lists(TOKEN_TEXT.map("".join), max_size=6),
    st.booleans(),
)
def test_added_tokens(
    name: str, tokens: dict[str, Spec], texts: list[str], literal: bool
) -> None:
    base = form(name)

    def add(spec: Spec) -> None:
        vocab = spec["model"]["vocab"]
        number = (
            max(max(vocab.values()), *(token["id"] for token in spec["added_tokens"]))
            + 1
        )
        for content, flags in tokens.items():
            given = base.token_id(content)
            if given is None:
                given, number = number, number + 1
                vocab[content] = given
            spec["added_tokens"].append({"id": given, "content": content, **flags})

    files = samples.changed(base, add)
    if objection_to_words(files, literal=literal) is None:
        same_ids(WordBackend(files, literal=literal), texts, literal=literal)


def test_tokens_of_raw_text_come_before_those_of_normalized_text() -> None:
    def add(spec: Spec) -> None:
        for number, (content, is_normalized) in enumerate(
            (("ab", True), ("bc", False)), 9000
        ):
            spec["model"]["vocab"][content] = number
            spec["added_tokens"].append(
                {"id": number, "content": content, "normalized": is_normalized, **PLAIN}
            )

    files = samples.changed(form("gpt-2"), add)
    engine = WordBackend(files)
    same_ids(engine, ["abc", "xabcx", "ab bc abbc"])
    assert 9001 in engine.encode(samples.large(["abc"])).ids


def test_a_pair_that_is_there_twice_has_no_rank_of_its_own() -> None:
    twice = samples.changed(
        form("gpt-2"),
        lambda spec: spec["model"].update(
            merges=[*spec["model"]["merges"], spec["model"]["merges"][0]]
        ),
    )
    assert not merges_words(twice)


@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in REFUSED])
def test_changed_tokenizers_are_exact_or_refused(name: str, mode: str) -> None:
    make, change = MUTATIONS[name]
    files = samples.changed(make(), change)
    literal = mode == "literal"
    if objection_to_words(files, literal=literal) is not None:
        with pytest.raises(TokenizerError):
            choose_engine(files, "words", mode)
        return
    expected = samples.reference_ids(files, CHANGED_TEXTS, literal=literal)
    made = WordBackend(files, literal=literal).encode(samples.large(CHANGED_TEXTS))
    assert [ids.tolist() for ids in made.rows()] == expected


CHANGED_TEXTS = (
    *samples.hard_texts()[::6],
    "a <tag> b<tag>",
    "word words sword  word",
    "aaba baab abababa two words twowords",
    "<|a|><|a|>",
    "endof <|endoftext|> endoftext",
    "x\nyz\ttab A\u030a \u212b ; \u037e",
    "UPPER lower MiXed the</s>the",
    "## </w> caf\u00e9 \u4e16\u754c <reserved_7><reserved_8>",
)
KINDS = {
    "regex: llama-3": None,
    "normalizer: nfc": None,
    "model: an empty prefix": None,
    "pre-tokenizer: null": "must end with ByteLevel",
    "split llama-3: MergedWithNext": "Split is MergedWithNext",
    "split llama-3: Removed": "Split is Removed",
    "model of pieces: a merge of a byte": "a merge uses a byte token",
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_supported(name: str) -> None:
    make, change = MUTATIONS[name]
    reason = objection_to_words(samples.changed(make(), change), literal=True)
    assert str(KINDS[name]) in str(reason)


@pytest.mark.parametrize("name", ["deepseek", "gemma", "whole texts"])
def test_texts_of_many_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORDS}.backend.BLOCK_BYTES", 32)
    engine = WordBackend(form(name))
    long = "\n".join(samples.hard_texts()[::3])
    same_ids(engine, [long, "", long[:100], "", "x" * 300, "1" * 300, "\u4f60" * 100])


@pytest.mark.parametrize("name", ["gpt-2", "gemma", "whole texts"])
def test_long_words(name: str) -> None:
    drawn = random.Random(3)
    texts = [
        "".join(drawn.choices("ab", (9, 1), k=LONGEST + extra))
        for extra in (-1, 0, 1, 5000)
    ]
    sizes = (
        7,
        8,
        9,
        15,
        16,
        17,
        LONGEST_MERGED,
        LONGEST_MERGED + 1,
        LONGEST,
        LONGEST + 1,
    )
    texts += ["a" * size for size in sizes]
    engine = WordBackend(form(name))
    same_ids(engine, [*texts, "ab", *texts])
    same_ids(engine, texts)


def test_words_that_are_alike() -> None:
    same_ids(
        WordBackend(form("gpt-2")),
        ["a", "a\0", "a\0\0", "abcdefgh", "abcdefghi", "abcdefgh" * 2, "abcdefghi" * 2],
    )


def test_a_full_table_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORDS}.backend.BLOCK_BYTES", 256)
    monkeypatch.setattr(f"{WORDS}.table._FIRST_CAPACITY", 16)
    monkeypatch.setattr(f"{WORDS}.table._MOST_CAPACITY", 2048)
    drawn = random.Random(4)
    words = [
        "".join(drawn.choices("abcdefghijklmnop", k=drawn.randint(1, 19)))
        for _ in range(4000)
    ]
    texts = [" ".join(words[at : at + 50]) for at in range(0, len(words), 50)]
    engine = WordBackend(form("gpt-2"))
    same_ids(engine, texts)
    same_ids(engine, texts)
    monkeypatch.setattr(f"{WORDS}.table._MOST_POOL_ENTRIES", 64)
    same_ids(engine, texts)


def test_words_whose_ids_never_came_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = WordBackend.encode_words
    failures = ["no ids"]

    def fail_once(self: WordBackend, words: list[str]) -> Any:
        if failures:
            raise TokenizerError(failures.pop())
        return encode(self, words)

    monkeypatch.setattr(WordBackend, "encode_words", fail_once)
    engine = asking_engine(form("gpt-2"))
    with pytest.raises(TokenizerError, match="no ids"):
        engine.encode(samples.large(["some words"]))
    same_ids(engine, ["some words", "words"])


def test_threads_may_share_an_engine() -> None:
    shared = WordBackend(form("deepseek"))
    texts = [list(samples.hard_texts()[at::97]) for at in range(8)]
    with ThreadPoolExecutor(4) as threads:
        made = list(
            threads.map(
                lambda some: shared.encode(samples.large(some)).rows(), texts * 5
            )
        )
    expected = [
        samples.reference_ids(shared.files, some, literal=True) for some in texts
    ] * 5
    assert [[ids.tolist() for ids in rows] for rows in made] == expected


def test_a_machine_that_has_not_compiled_it_waits_for_larger_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "is_compiled", lambda: False)
    files = form("deepseek")
    small = choose_engine(files, size=gate.UNCOMPILED_WORDS_FROM - 1)
    assert small.engine == "tokenizers"
    assert "words are cached from 8 MiB of text on until compiled" in small.reason
    assert choose_engine(files, size=gate.UNCOMPILED_WORDS_FROM).engine == "words"


def test_large_texts_of_other_tokenizers_get_it() -> None:
    loops()
    files = form("deepseek")
    large = gate.CACHED_WORDS_FROM
    small = choose_engine(files, size=large - 1)
    assert (
        small.engine == "tokenizers"
        and "words are cached from 512 KiB of text on" in small.reason
    )
    chosen = choose_engine(files, size=large)
    assert chosen.engine == "words" and "equal to the reference on" in chosen.reason
    assert choose_engine(files, "words").engine == "words"
    assert choose_engine(samples.byte_level(), size=large).engine == "gigatoken"
    refused = choose_engine(
        samples.changed(files, stages(split("^a"), BYTES)), size=large
    )
    assert refused.engine == "tokenizers"
    assert (
        "not for gigatoken" in refused.reason
        and r"not for words: the expression '^a' has" in refused.reason
    )


class WrongOnOneWord:
    """The engine, which takes one word for another."""

    def __init__(self, files: TokenizerFiles, **options: Any) -> None:
        self._backend = WordBackend(files, **options)

    def encode(self, text: pa.LargeStringArray) -> Any:
        return self._backend.encode(pc.replace_substring(text, "the", "teh"))


def test_a_wrong_word_condemns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{WORDS}.backend.WordBackend", WrongOnOneWord)
    documents = samples.training_texts()
    with pytest.raises(EngineMismatchError, match="tokenizer backend 'words' differs"):
        choose_engine(form("deepseek"), "words", "literal", documents)
    choice = choose_engine(
        form("deepseek"), "auto", "literal", documents, gate.CACHED_WORDS_FROM
    )
    assert choice.engine == "tokenizers"
    assert "words failed" in choice.reason


def test_wrong_merges_condemn_every_build_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing that a right engine left behind in this process hides a wrong one, and
    the other way round.
    """
    files = form("deepseek")
    assert choose_engine(files, "words").engine == "words"
    merge_words = loops().merge_words

    def wrong(*arguments: Any) -> Any:
        count = merge_words(*arguments)
        ids = arguments[-1][:count]
        ids[ids == ids[0]] += 1
        return count

    with monkeypatch.context() as patch:
        patch.setattr(loops(), "merge_words", wrong)
        for _ in range(2):
            with pytest.raises(
                EngineMismatchError, match="tokenizer backend 'words' differs"
            ):
                choose_engine(files, "words")
    assert choose_engine(files, "words").engine == "words"


def test_wrong_tables_on_disk_condemn_every_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = form("deepseek")
    assert choose_engine(files, "words").engine == "words"

    get = DiskCache.get

    def get_wrong(cache: DiskCache, key: str, *options: Any) -> Any:
        hit = get(cache, key, *options)
        if hit is not None and "joined" in hit[0]:
            hit[0]["joined"] = np.roll(hit[0]["joined"], 1)
        return hit

    monkeypatch.setattr(DiskCache, "get", get_wrong)
    for _ in range(2):
        with pytest.raises(
            EngineMismatchError, match="tokenizer backend 'words' differs"
        ):
            choose_engine(files, "words")


PLACED = (
    "gpt-2",
    "deepseek",
    "starcoder",
    "nfc",
    "no normalizers",
    "missing bytes",
    "gemma",
    "gemini",
    "metaspace",
)


@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", PLACED)
def test_places_follow_from_ids(name: str, mode: str) -> None:
    files = form(name)
    assert TokenSizes.of(files, literal=mode == "literal") is not None
    texts = samples.large(
        [
            *samples.hard_texts()[::4],
            "e\u0301 \u212b",
            SPACE * 3,
            "a</s>b <s>",
            "\x00\xff",
        ]
    )
    fast, slow = (
        Encoder(
            files, engine=engine, add_special_tokens=False, special_tokens_in_text=mode
        )
        for engine in ("words", "tokenizers")
    )
    for made, expected in zip(
        fast.encode_places(texts)[1:], slow.encode_places(texts)[1:], strict=True
    ):
        assert np.array_equal(made, expected)


def test_places_do_not_follow_from_ids_where_a_space_is_made_up() -> None:
    assert TokenSizes.of(form("a space in front"), literal=True) is None


@pytest.mark.parametrize("name", ["gpt-2", "deepseek", "gemma"])
def test_long_documents(name: str) -> None:
    files = form(name)
    fast = Encoder(files, engine="words", add_special_tokens=False)
    long = pa.array(["\n\n".join(samples.hard_texts())], pa.large_string())
    pieces = fast.encode_long(long)
    if pieces is not None:
        ids = np.concatenate(list(pieces[1]))
        assert (
            ids.tolist()
            == samples.reference_ids(files, [long[0].as_py()], literal=True)[0]
        )


def test_a_build_with_it_has_the_bytes_of_one_with_the_reference(
    tmp_path: Path,
) -> None:
    check_same_bytes("words", form("deepseek"), tmp_path)
