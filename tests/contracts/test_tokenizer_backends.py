"""The contract of a tokenizer implementation: the ids of `tokenizers`, whatever the
text, its mode and its batch.

Each entry of :data:`tokenlake.etl.tokenizers.ENGINES` runs it, with every sample
tokenizer that it supports.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_files import train_unigram, train_word_piece
from tests.tokenizer_reference import HAS_STAGES
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import BACKENDS, Encoder, TokenizerFiles, choose_encoder


@cache
def tokenizers() -> dict[str, TokenizerFiles]:
    """Return name -> tokenizer: all models of which there are builds."""
    # tokenizers 1.0 does not load GPT-2's expression as a Split; Tokenlake writes it in
    # another way.
    known = {
        name: files
        for name, files in samples.known().items()
        if HAS_STAGES or name != "gpt-2"
    }
    for name, train, unknown in (
        ("word-piece", train_word_piece, "[UNK]"),
        ("unigram", train_unigram, "<unk>"),
    ):
        spec = train(samples.training_texts(), 800)
        known[name] = samples.from_spec(spec, name=name, config={"unk_token": unknown})
    return known


NAMES = (
    "byte-level",
    "gpt-2",
    "llama-3",
    "nfc",
    "sentencepiece",
    "unigram",
    "word-piece",
)


@cache
def encoder_of(engine: str, name: str, mode: str) -> Encoder | None:
    """Return an encoder, or None where an implementation refuses a tokenizer that it
    does not support.
    """
    if name not in tokenizers():
        return None
    try:
        _, encoder = choose_encoder(tokenizers()[name], engine, mode)
    except TokenizerError as error:
        assert engine != "tokenizers", "the reference encodes with every tokenizer"
        assert "tokenizer_backend: auto" in str(error)
        return None
    assert encoder.engine == engine
    return encoder


def ids_of(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text."""
    return samples.rows_of(encoder.encode(samples.large(texts)))


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("mode", ["literal", "encode"])
def test_ids_are_those_of_the_reference_for_every_tokenizer_that_it_supports(
    engine: str, mode: str
) -> None:
    texts = list(samples.hard_texts()[::3])
    supported = 0
    for name in NAMES:
        encoder = encoder_of(engine, name, mode)
        if encoder is None:
            continue
        supported += 1
        expected = samples.reference_ids(
            tokenizers()[name], texts, literal=mode == "literal"
        )
        assert ids_of(encoder, texts) == expected, name
    assert supported > 0, "no sample tokenizer shows what this implementation does"


@settings(max_examples=20)
@given(data=st.data(), texts=st.lists(st.text(max_size=60), max_size=6))
def test_ids_of_any_text_do_not_depend_on_its_batch(
    data: st.DataObject, texts: list[str]
) -> None:
    engine = data.draw(st.sampled_from(BACKENDS))
    name = data.draw(st.sampled_from(NAMES))
    encoder = encoder_of(engine, name, "literal")
    if encoder is None:
        return
    together = ids_of(encoder, texts)
    assert together == samples.reference_ids(tokenizers()[name], texts, literal=True)
    assert together == [ids_of(encoder, [text])[0] for text in texts]


def test_a_slice_has_its_own_ids_in_arrays_of_the_same_types_from_zero(
    engine: str,
) -> None:
    for name in NAMES:
        encoder = encoder_of(engine, name, "literal")
        if encoder is None:
            continue
        texts = ["one two", "", "drei \u00e4"]
        sliced = samples.large(["left out", *texts, "left out, too"]).slice(1, 3)
        encoded = encoder.encode(sliced)
        assert samples.rows_of(encoded) == samples.reference_ids(
            tokenizers()[name], texts, literal=True
        ), name
        assert encoded.ids.dtype == np.int32
        assert encoded.ids.flags.c_contiguous
        assert encoded.offsets.dtype == np.int64
        assert encoded.offsets[0] == 0
        assert encoded.offsets[-1] == len(encoded.ids)
        assert len(encoded) == 3


def test_special_tokens_in_text_are_counted_in_every_mode(engine: str) -> None:
    for name in ("byte-level", "sentencepiece", "word-piece"):
        special = {
            "byte-level": "<|endoftext|>",
            "sentencepiece": "</s>",
            "word-piece": "[SEP]",
        }[name]
        texts = samples.large([f"a{special}b", "no markup", f"{special}{special}"])
        for mode in ("literal", "encode", "fail"):
            encoder = encoder_of(engine, name, mode)
            if encoder is None:
                continue
            encoded = encoder.encode(texts)
            assert encoded.special_docs.tolist() == [0, 2]
            assert encoded.special_counts.tolist() == [1, 2]
