"""Places: each token's bytes are those of the offsets of `tokenizers`, and stretches
touch the right tokens.
"""

from __future__ import annotations

import functools
import json
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import ReferenceTokenizer, needs_offsets
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_mutations import FLAGS
from tokenlake.errors import EngineMismatchError
from tokenlake.etl.tokenizers import Encoder, Spans, TokenizerFiles
from tokenlake.etl.tokenizers.offsets import TokenSizes, touched

Place = tuple[int, int, int]
MARKUP = ("<s>", "</s>", "<|endoftext|>", "<tag>", "<unk>")
BLANKS = {"\u2581", "\u0120"}


def with_tag(files: TokenizerFiles) -> TokenizerFiles:
    """Return a tokenizer with one more added token, not special."""

    def change(spec: samples.Spec) -> None:
        tag = {"id": len(spec["model"]["vocab"]), "content": "<tag>", **FLAGS}
        spec["added_tokens"] = [*spec["added_tokens"], tag]

    return samples.changed(files, change)


FORMS = {name: with_tag(files) for name, files in samples.known().items()}


def expected(files: TokenizerFiles, text: str, *, literal: bool) -> list[Place]:
    """Return (id, first byte, end) of each token by the offsets of `tokenizers` alone.

    A blank put before a piece of text has the offsets of the character after it, which
    is not its own.
    """
    encoding = _untrimmed(files.json_bytes, literal).encode(
        text, add_special_tokens=False
    )
    size = [len(text[:place].encode()) for place in range(len(text) + 1)]
    found = [
        (i, size[a], size[b])
        for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
    for at, token in enumerate(encoding.tokens[:-1]):
        if token in BLANKS and found[at][1] == found[at + 1][1]:
            found[at] = (found[at][0], found[at][1], found[at][1])
    return found


@functools.lru_cache(maxsize=64)
def _untrimmed(tokenizer_json: bytes, literal: bool) -> ReferenceTokenizer:
    spec = json.loads(tokenizer_json) | {"post_processor": None}
    return samples.reference(json.dumps(spec).encode(), literal)


def places(encoder: Encoder, texts: list[str]) -> list[list[Place]]:
    encoded, start, stop = encoder.encode_places(samples.large(texts))
    flat = list(zip(encoded.ids.tolist(), start.tolist(), stop.tolist(), strict=True))
    return [flat[first:last] for first, last in pairwise(encoded.offsets.tolist())]


_ENCODERS: dict[tuple[str, str, str], Encoder] = {}


def encoder_of(name: str, mode: str, engine: str = "gigatoken") -> Encoder:
    key = name, mode, engine
    if key not in _ENCODERS:
        _ENCODERS[key] = Encoder(
            FORMS[name], engine=engine, special_tokens_in_text=mode
        )
    return _ENCODERS[key]


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *MARKUP,
            " ",
            "  ",
            "\u2581",
            "e\u0301",
            "\u4e16",
            "\U0001f600",
            "\n\n",
            "Hello",
            " x",
        ]
    ),
)
texts = st.lists(pieces, max_size=8).map("".join)


@needs_offsets
@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", sorted(FORMS))
@settings(max_examples=15)
@given(rows=st.lists(texts, max_size=6))
def test_places_equal_the_offsets_of_tokenizers(
    name: str, mode: str, rows: list[str]
) -> None:
    want = [expected(FORMS[name], text, literal=mode == "literal") for text in rows]
    assert places(encoder_of(name, mode), rows) == want


@needs_offsets
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "gigatoken") for name in sorted(FORMS)),
        *(
            (name, "tokenizers")
            for name in ("byte-level", "nfc", "sentencepiece", "metaspace-always-False")
        ),
    ],
)
def test_places_of_hard_texts_equal_the_offsets_of_tokenizers(
    name: str, engine: str
) -> None:
    marked = ("a</s>b</s> c </s></s>\u4e16<s>" * 3, "<tag>x<tag> <tag>", "\u2581" * 3)
    rows = [*samples.hard_texts()[::5], *marked]
    want = [expected(FORMS[name], text, literal=False) for text in rows]
    assert places(encoder_of(name, "encode", engine), rows) == want


def random_stretches(rng: random.Random, size: int) -> list[tuple[int, int]]:
    cuts = sorted(rng.sample(range(size + 1), min(size + 1, 2 * rng.randrange(5))))
    return list(zip(cuts[::2], cuts[1::2], strict=False))


def holds_loss(
    tokens: list[Place], stretches: list[tuple[int, int]], text: str
) -> list[bool]:
    """Say which tokens bear loss, by the words of the definition: a stretch widened
    to whole characters.
    """
    data, mask = text.encode(), [False] * len(tokens)
    for start, stop in stretches:
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        hit = [
            at
            for at, (_, a, b) in enumerate(tokens)
            if set(range(a, max(b, a + 1))) & set(range(start, stop))
        ]
        for at in hit:
            mask[at] = True
    return mask


SPANNED = (
    "byte-level",
    "sentencepiece",
    "llama-3",
    "nfc",
    "metaspace-first-True",
    "metaspace-always-False",
)


@needs_offsets
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("name", SPANNED)
@settings(max_examples=15)
@given(rows=st.lists(texts, max_size=6), seed=st.integers(0, 1 << 30))
def test_a_token_that_holds_a_byte_of_a_stretch_bears_loss(
    name: str, engine: str, rows: list[str], seed: int
) -> None:
    rng = random.Random(seed)
    stretches = [random_stretches(rng, len(text.encode())) for text in rows]
    encoded, mask = encoder_of(name, "encode", engine).encode_spans(
        samples.large(rows), Spans.of(stretches)
    )
    want = [
        holds_loss(expected(FORMS[name], text, literal=False), some, text)
        for text, some in zip(rows, stretches, strict=True)
    ]
    assert mask.tolist() == [value for row in want for value in row]
    assert mask.dtype == np.bool_ and len(mask) == len(encoded.ids)


@needs_offsets
def test_a_made_up_blank_bears_loss_with_the_byte_after_it() -> None:
    text = "a</s>\u4e29b"
    tokens = expected(FORMS["sentencepiece"], text, literal=False)
    at = next(i for i, (_, a, b) in enumerate(tokens) if a == b)
    encoder = encoder_of("sentencepiece", "encode")
    for stretch, bears in (
        ((0, 9), True),
        ((5, 9), True),
        ((0, 5), False),
        ((1, 8), True),
    ):
        _, mask = encoder.encode_spans(samples.large([text]), Spans.of([[stretch]]))
        assert bool(mask[at]) is bears, stretch


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=10),
        min_size=1,
        max_size=5,
    ),
    ordered=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_touched_follows_its_definition(
    rows: list[list[tuple[int, int]]], ordered: bool, seed: int
) -> None:
    rng = random.Random(seed)
    if ordered:
        ends = [sorted(a + size for a, size in row) for row in rows]
        rows = [
            [
                (a, max(0, b - a))
                for a, b in zip(sorted(a for a, _ in row), end, strict=True)
            ]
            for row, end in zip(rows, ends, strict=True)
        ]
    tokens = [[(0, a, a + size) for a, size in row] for row in rows]
    stretches = [random_stretches(rng, 16) for _ in rows]
    flat = np.array([place[1:] for row in tokens for place in row], np.int64).reshape(
        -1, 2
    )
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    shift = np.repeat(16 * np.arange(len(rows)), np.diff(offsets))
    spans = Spans.of(
        [
            [(a + 16 * at, b + 16 * at) for a, b in row]
            for at, row in enumerate(stretches)
        ]
    )
    mask = touched(flat[:, 0] + shift, flat[:, 1] + shift, offsets, spans)
    want = [filled(row, some) for row, some in zip(tokens, stretches, strict=True)]
    assert mask.tolist() == [value for row in want for value in row]


def filled(tokens: list[Place], stretches: list[tuple[int, int]]) -> list[bool]:
    mask = [False] * len(tokens)
    for start, stop in stretches:
        hit = [
            at
            for at, (_, a, b) in enumerate(tokens)
            if max(a, start) < min(max(b, a + 1), stop)
        ]
        for at in range(hit[0], hit[-1] + 1) if hit else ():
            mask[at] = True
    return mask


@needs_offsets
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_batches_may_be_empty_slices_and_many_pieces(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenlake.etl.tokenizers.offsets._BLOCK", 7)
    monkeypatch.setattr("tokenlake.etl.tokenizers.offsets.BATCH_BYTES", 30)
    encoder = encoder_of("sentencepiece", "encode", engine)
    rows = [
        "zero \u00e4",
        "",
        "one</s>two \u4e16\u754c",
        "\u2581odd",
        "",
        "four and some more words",
        "<s>",
    ]
    want = [expected(FORMS["sentencepiece"], text, literal=False) for text in rows]
    assert places(encoder, rows) == want
    sliced, start, stop = encoder.encode_places(samples.large(rows).slice(2, 3))
    flat = list(zip(sliced.ids.tolist(), start.tolist(), stop.tolist(), strict=True))
    assert flat == [place for row in want[2:5] for place in row]
    spans = [[(0, len(text.encode()))] if text else [] for text in rows]
    _, mask = encoder.encode_spans(samples.large(rows), Spans.of(spans))
    lone = [
        at
        for at, (_, a, b) in enumerate(place for row in want for place in row)
        if a == b
    ]
    assert set(np.flatnonzero(~mask).tolist()) <= set(lone)
    for nothing in ([], [""], ["", ""]):
        empty, start, stop = encoder.encode_places(samples.large(nothing))
        assert len(empty) == len(nothing) and not len(start) and not len(stop)
        assert not len(
            encoder.encode_spans(samples.large(nothing), Spans.of([[]] * len(nothing)))[
                1
            ]
        )


def odd_rows(encoder: Encoder, rows: list[str]) -> list[int]:
    """Rows whose places the ids alone do not tell."""
    text = samples.large(rows)
    encoded = encoder.encode(text)
    sizes = encoder._locator.sizes
    assert sizes is not None
    return sizes.places(text, encoded.offsets, encoded.ids)[2].tolist()


@pytest.mark.parametrize("name", sorted(FORMS))
def test_ordinary_texts_need_no_reference(name: str) -> None:
    encoder = encoder_of(name, "encode")
    rows = [
        "A row of a chat</s> <s>and its answer\n",
        " caf\u00e9 \u4f60\u597d \U0001f600",
        "",
        "</s>",
    ]
    assert odd_rows(encoder, rows) == []


def test_a_text_with_the_mark_of_a_blank_is_the_references() -> None:
    rows = ["plain", "\u2581 marked", "x\u2581y"]
    assert odd_rows(encoder_of("sentencepiece", "literal"), rows) == [1, 2]


def test_a_text_that_nfc_changes_is_the_references() -> None:
    # The marks change places, so the number of bytes stays.
    rows = ["plain", "q\u0301\u0316", "q\u0316\u0301", "e\u0301"]
    assert odd_rows(encoder_of("nfc", "literal"), rows) == [1, 3]


@needs_offsets
def test_an_added_token_whose_id_is_also_text_of_another_size_leaves_places_to_the_reference() -> (
    None
):
    def change(spec: samples.Spec) -> None:
        spec["added_tokens"].append(
            {"id": spec["model"]["vocab"]["\u00e9"], "content": "\u00e9", **FLAGS}
        )

    files = samples.changed(samples.byte_level(), change)
    assert TokenSizes.of(samples.byte_level(), literal=False) is not None
    assert TokenSizes.of(files, literal=False) is None
    rows = ["caf\u00e9", "\u4e29 \u00e9\u00e9", "plain"]
    encoder = Encoder(files, engine="gigatoken", special_tokens_in_text="encode")
    assert places(encoder, rows) == [
        expected(files, text, literal=False) for text in rows
    ]


def test_offsets_that_a_post_processor_would_trim_are_whole() -> None:
    trimming = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    files = samples.changed(
        samples.byte_level(), lambda spec: spec.update(post_processor=trimming)
    )
    for engine in ("gigatoken", "tokenizers"):
        _, start, stop = Encoder(files, engine=engine).encode_places(
            samples.large(["a the  b"])
        )
        assert (
            start[0] == 0 and stop[-1] == 8 and start[1:].tolist() == stop[:-1].tolist()
        )


class Shifted:
    """Sizes of tokens that are wrong though they add up: a byte of one token is
    given to the one before it.
    """

    def __init__(self, sizes: TokenSizes, word: bytes) -> None:
        self._right, self._word = sizes, word

    def places(self, text: pa.LargeStringArray, offsets: Any, ids: Any) -> Any:
        start, stop, odd = (
            part.copy() for part in self._right.places(text, offsets, ids)
        )
        for row, value in enumerate(text.to_pylist()):
            if self._word in value.encode() and offsets[row + 1] - offsets[row] > 1:
                start[offsets[row] + 1] += 1
                stop[offsets[row]] += 1
        return start, stop, odd


def test_one_wrong_place_in_a_sampled_row_condemns_the_engine() -> None:
    encoder = Encoder(samples.byte_level(), engine="gigatoken")
    rows = samples.large(["some words of a row"] * 50)
    encoder.encode_places(rows)
    encoder._locator.sizes = Shifted(encoder._locator.sizes, b"words")
    encoder._sampler = type(encoder._sampler)(0.001, "gigatoken")
    with pytest.raises(
        EngineMismatchError, match="from the first byte of id 1 on: expected"
    ):
        encoder.encode_spans(rows, Spans.of([[(0, 4)]] * 50))


def test_other_ids_in_a_row_that_the_reference_looks_at_condemn_the_engine() -> None:
    encoder = Encoder(samples.sentencepiece(), engine="gigatoken", sample_rate=0)
    right = encoder._fast

    class Wrong:
        def encode(self, text: pa.LargeStringArray) -> Any:
            made = right.encode(text)
            made.ids[-1:] = made.ids[-1:] + 1
            return made

    encoder._fast = Wrong()
    with pytest.raises(EngineMismatchError, match="differs from the reference"):
        encoder.encode_places(samples.large(["\u2581 marked"]))
