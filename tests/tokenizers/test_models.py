"""WordPiece and Unigram run through `tokenizers`, ids and places; the BPE families
on the fast engine.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_files import train_unigram, train_word_piece
from tests.tokenizer_reference import needs_offsets, needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import choose_engine
from tokenlake.etl.tokenizers import Encoder, Spans, TokenizerFiles

CONFIG = {
    "word-piece": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "eos_token": "[SEP]",
        "pad_token": "[PAD]",
    },
    "unigram": {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"},
}


@functools.cache
def trained(name: str) -> TokenizerFiles:
    """Return a BERT-style or a T5-style tokenizer."""
    train = {"word-piece": train_word_piece, "unigram": train_unigram}[name]
    return samples.from_spec(
        train(samples.training_texts(), 800), name=name, config=CONFIG[name]
    )


@functools.cache
def encoder_of(name: str) -> Encoder:
    return Encoder(trained(name), engine="tokenizers")


MODELS = ("word-piece", "unigram")
texts = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            [
                "Hello ",
                "\u00c9t\u00e9",
                "  ",
                "\ufb01ne",
                "e\u0301",
                "\u4e16",
                "[SEP]",
                "</s>",
                "1\u00bd",
            ]
        ),
    ),
    max_size=8,
).map("".join)


@needs_stages
@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", MODELS)
def test_other_models_run_through_the_reference(name: str, mode: str) -> None:
    files, rows = trained(name), samples.hard_texts()[::4]
    choice = choose_engine(files, "auto", mode)
    assert choice.engine == "tokenizers" and "only BPE" in choice.reason
    encoder = Encoder(files, engine=choice.engine, special_tokens_in_text=mode)
    encoded = encoder.encode(samples.large(rows))
    got = [
        encoded.ids[start:stop].tolist()
        for start, stop in pairwise(encoded.offsets.tolist())
    ]
    assert got == samples.reference_ids(files, rows, literal=mode == "literal")
    assert (encoder.prefix, encoder.suffix) == {
        "word-piece": ((2,), (3,)),
        "unigram": ((), (1,)),
    }[name]
    located, _, _ = encoder.encode_places(samples.large(rows))
    assert np.array_equal(located.ids, encoded.ids) and np.array_equal(
        located.offsets, encoded.offsets
    )


@needs_offsets
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=40)
@given(rows=st.lists(texts, max_size=4))
def test_places_refer_to_the_text_before_it_was_normalized(
    name: str, rows: list[str]
) -> None:
    encoded, start, stop = encoder_of(name).encode_places(samples.large(rows))
    backend = samples.reference(trained(name).json_bytes, literal=True)
    for row, text in enumerate(rows):
        mine = slice(encoded.offsets[row], encoded.offsets[row + 1])
        want = backend.encode(text, add_special_tokens=False)
        sizes = [len(text[:place].encode()) for place in range(len(text) + 1)]
        assert encoded.ids[mine].tolist() == want.ids
        assert start[mine].tolist() == [sizes[a] for a, _ in want.offsets]
        for token, (a, b), end in zip(
            want.tokens, want.offsets, stop[mine].tolist(), strict=True
        ):
            assert end == sizes[b] or (token == samples.SPACE and end == sizes[a])


@needs_stages
def test_a_stretch_finds_its_word_in_a_text_that_is_normalized() -> None:
    text = "Hello  \u00c9COLE, \ufb01ne"
    begin = len(b"Hello  ")
    stretch = (begin, begin + len("\u00c9COLE".encode()))
    for name in MODELS:
        encoder = encoder_of(name)
        encoded, mask = encoder.encode_spans(
            samples.large([text]), Spans.of([[stretch]])
        )
        _, start, stop = encoder.encode_places(samples.large([text]))
        data = text.encode()
        learned = [
            data[a:b].decode() for a, b in zip(start[mask], stop[mask], strict=True)
        ]
        assert "".join(learned).strip() == "\u00c9COLE" and 0 < mask.sum() < len(
            encoded.ids
        ), name
