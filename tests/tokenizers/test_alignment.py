"""Places that are found from ids alone are the offsets of `tokenizers` before 1.0,
in every kind of text.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_reference import needs_offsets
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.test_places import FORMS, expected, texts
from tests.tokenizers.tokenizer_mutations import FLAGS
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import ReferenceBackend, TokenizerFiles
from tokenlake.etl.tokenizers.alignment import Aligner, compose

# Letters that compose, decompose, and marks of several classes, in and out of order.
MARKED = (
    "e\u0301",
    "q\u0301\u0323",
    "a\u0323\u0302",
    "\u0344",
    "\u212b",
    "\u1100\u1161\u11a8",
    "\ufb1d",
)
MARKED += (
    "\u0958",
    "\uac00\u11a8",
    "\u0301",
    "\u0301e",
    "<tag>\u0301",
    "x\u0302<tag>",
    "\u2581e\u0301",
)


def with_token(files: TokenizerFiles, **flags: bool) -> TokenizerFiles:
    """Return a tokenizer with one more added token, "<tag>"."""

    def change(spec: samples.Spec) -> None:
        tag = {"id": len(spec["model"]["vocab"]), "content": "<tag>", **FLAGS, **flags}
        spec["added_tokens"] = [*spec["added_tokens"], tag]

    return samples.changed(files, change)


def aligned(
    files: TokenizerFiles, text: str, *, literal: bool
) -> list[tuple[int, int, int]]:
    reference = ReferenceBackend(files, literal=literal)
    aligner = Aligner(files, literal=literal, normalize=reference.normalized)
    ids, start, stop = aligner.place(text, reference.encode_piece(text))
    return list(zip(ids.tolist(), start.tolist(), stop.tolist(), strict=True))


@needs_offsets
@pytest.mark.parametrize("mode", ["literal", "encode"])
@pytest.mark.parametrize("name", sorted(FORMS))
@settings(max_examples=15)
@given(pieces=st.lists(st.one_of(texts, st.sampled_from(MARKED)), max_size=6))
def test_places_from_ids_are_the_offsets_of_tokenizers(
    name: str, mode: str, pieces: list[str]
) -> None:
    text = "".join(pieces)
    literal = mode == "literal"
    assert aligned(FORMS[name], text, literal=literal) == expected(
        FORMS[name], text, literal=literal
    )


@needs_offsets
@pytest.mark.parametrize(
    "name", ["byte-level", "nfc", "sentencepiece", "metaspace-first-True"]
)
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_an_added_token_holds_the_white_space_that_it_strips(
    name: str, flag: str
) -> None:
    files = with_token(samples.known()[name], **{flag: True})
    for text in (
        "a <tag> b",
        "a  <tag>\n\tb<tag>",
        "<tag>",
        " <tag> <tag>\u3000x",
        "a<tag>b <tag>, <tag>b",
    ):
        assert aligned(files, text, literal=True) == expected(files, text, literal=True)


@given(
    st.text(
        alphabet=st.sampled_from(
            "aeq <\u0301\u0302\u0323\u0344\u212b\u1100\u1161\u11a8\uac00\ufb1d"
        ),
        max_size=9,
    )
)
def test_composing_gives_the_same_text_as_python(text: str) -> None:
    composed, origins = compose(text)
    assert composed == unicodedata.normalize("NFC", text)
    assert len(origins) == len(composed)
    assert origins == sorted(origins)


def test_ids_of_another_text_are_refused() -> None:
    files = samples.byte_level()
    reference = ReferenceBackend(files)
    aligner = Aligner(files, literal=True, normalize=reference.normalized)
    with pytest.raises(
        TokenizerError, match=r"do not spell the text.*tokenizers>=0\.22,<1"
    ):
        aligner.place("another", reference.encode_piece("one text"))


def test_a_tokenizer_whose_ids_do_not_spell_the_text_is_refused() -> None:
    def lower(spec: dict[str, Any]) -> None:
        spec["normalizer"] = {"type": "Lowercase"}

    files = samples.changed(samples.byte_level(), lower)
    aligner = Aligner(files, literal=True, normalize=str.lower)
    with pytest.raises(
        TokenizerError, match=r"the normalizer is Lowercase.*tokenizers>=0\.22,<1"
    ):
        aligner.place("A", np.array([1], np.int32))
