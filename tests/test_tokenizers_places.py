"""Places: each token's bytes are those of the offsets of `tokenizers`, and stretches touch the right tokens."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.tokenizer_samples as samples
from tokenlake.errors import EngineMismatchError
from tokenlake.spans import Spans
from tokenlake.tokenizers import Encoder, TokenizerFiles
from tokenlake.tokenizers.places import touched
from tokenlake.tokenizers.sizes import TokenSizes

Place = tuple[int, int, int]
MARKUP = ("<s>", "</s>", "<|endoftext|>", "<tag>", "<unk>")
BLANKS = {"\u2581", "\u0120"}


def with_tag(files: TokenizerFiles) -> TokenizerFiles:
    """Return a tokenizer with one more added token, not special."""

    def change(spec: samples.Spec) -> None:
        tag = {"id": len(spec["model"]["vocab"]), "content": "<tag>", "special": False, "normalized": False}
        flags = {"single_word": False, "lstrip": False, "rstrip": False}
        spec["added_tokens"] = [*spec["added_tokens"], {**tag, **flags}]

    return samples.changed(files, change)


FORMS = {name: with_tag(files) for name, files in samples.known().items()}


def expected(files: TokenizerFiles, text: str, *, literal: bool) -> list[Place]:
    """Return (id, first byte, end) of each token by the offsets of `tokenizers` alone.

    A blank put before a piece of text has the offsets of the character after it, which is not its own.
    """
    spec = samples.changed(files, lambda spec: spec.update(post_processor=None))
    encoding = samples._backend(spec.json_bytes, literal).encode(text, add_special_tokens=False)
    size = [len(text[:place].encode()) for place in range(len(text) + 1)]
    found = [(i, size[a], size[b]) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)]
    for at, token in enumerate(encoding.tokens[:-1]):
        if token in BLANKS and found[at][1] == found[at + 1][1]:
            found[at] = (found[at][0], found[at][1], found[at][1])
    return found


def places(encoder: Encoder, texts: list[str]) -> list[list[Place]]:
    encoded, start, stop = encoder.encode_places(samples.large(texts))
    flat = list(zip(encoded.ids.tolist(), start.tolist(), stop.tolist(), strict=True))
    return [flat[first:last] for first, last in pairwise(encoded.offsets.tolist())]


_ENCODERS: dict[tuple[str, str, str], Encoder] = {}


def encoder_of(name: str, mode: str, engine: str = "gigatoken") -> Encoder:
    key = name, mode, engine
    if key not in _ENCODERS:
        _ENCODERS[key] = Encoder(FORMS[name], engine=engine, special_tokens_in_text=mode)
    return _ENCODERS[key]


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*MARKUP, " ", "  ", "\u2581", "e\u0301", "\u4e16", "\U0001f600", "\n\n", "Hello", " x"]),
)
texts = st.lists(pieces, max_size=8).map("".join)


@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", sorted(FORMS))
@settings(max_examples=25)
@given(rows=st.lists(texts, max_size=6))
def test_places_equal_the_offsets_of_tokenizers(name: str, mode: str, rows: list[str]) -> None:
    want = [expected(FORMS[name], text, literal=mode == "literal") for text in rows]
    assert places(encoder_of(name, mode), rows) == want


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_places_of_hard_texts_equal_the_offsets_of_tokenizers(name: str, engine: str) -> None:
    rows = [*samples.hard_texts()[::5], "a</s>b</s> c </s></s>\u4e16<s>" * 3, "<tag>x<tag> <tag>", "\u2581" * 3]
    want = [expected(FORMS[name], text, literal=False) for text in rows]
    assert places(encoder_of(name, "encode", engine), rows) == want
