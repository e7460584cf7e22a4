"""Every version of `tokenizers` gives a tokenizer the ids of tokenizers 0.23, or
refuses it with the remedy.

`pinned_ids.json` holds a hash of the ids that tokenizers 0.23 gives to the hard texts,
for every small tokenizer and every changed one. ``python -m
tests.tokenizers.test_generations`` writes it, with a version before 1.0.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.test_models import MODELS, trained
from tests.tokenizers.tokenizer_mutations import MUTATIONS
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import (
    Encoder,
    ReferenceBackend,
    TokenizerFiles,
    choose_encoder,
    gate,
)
from tokenlake.runtime.tokenizer_guard import (
    BoundedTokenizer,
    exports_parts,
    open_library_tokenizer,
    why_not_fast,
)

PINNED = Path(__file__).with_name("pinned_ids.json")
REFUSED = "refused"


@functools.cache
def pinned() -> dict[str, str]:
    return json.loads(PINNED.read_text("utf-8"))


def tokenizer_of(name: str) -> TokenizerFiles:
    if name in MODELS:
        return trained(name)
    if name in MUTATIONS:
        make, change = MUTATIONS[name]
        return samples.changed(make(), change)
    return samples.known()[name]


def ids_hash(files: TokenizerFiles) -> str:
    """Return a hash of the ids of the hard texts in both modes, and of the texts
    that they are decoded to.
    """
    digest = hashlib.sha256()
    texts = samples.large(list(samples.hard_texts()))
    for literal in (True, False):
        reference = ReferenceBackend(files, literal=literal)
        rows = reference.encode(texts)
        digest.update(
            rows.offsets.astype(np.int64).tobytes()
            + rows.ids.astype(np.int32).tobytes()
        )
        for ids in rows.rows()[:100]:
            digest.update(reference.decode(ids).encode())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", sorted({*samples.known(), *MUTATIONS, *MODELS}))
def test_ids_and_texts_are_those_of_earlier_versions_or_refused(name: str) -> None:
    expected = pinned()[name]
    try:
        got = ids_hash(tokenizer_of(name))
    except TokenizerError as error:
        if exports_parts():
            assert expected == REFUSED, error
        return
    assert expected in (got, REFUSED)


def test_real_forms_are_not_refused() -> None:
    for name in (
        "byte-level",
        "llama-3",
        "qwen-2",
        "o200k",
        "nfc",
        "sentencepiece",
        "metaspace-first-True",
    ):
        assert why_not_fast(samples.known()[name].spec) is None
        ids_hash(samples.known()[name])


@pytest.mark.parametrize(
    "name",
    [
        "regex: llama-3 of two digits",
        "model: a prefix",
        "model: a suffix",
        "decoder: null",
        "model: an id twice",
        "added: a letter of two bytes",
    ],
)
def test_what_tokenizers_1_takes_for_something_else_is_refused(name: str) -> None:
    files = tokenizer_of(name)
    assert why_not_fast(files.spec) is not None
    if not exports_parts():
        with pytest.raises(
            TokenizerError,
            match=r"may return ids that differ.*pip install 'tokenizers>=0\.22,<1'",
        ):
            ReferenceBackend(files)


def test_a_bounded_process_gives_the_same_ids() -> None:
    files = samples.sentencepiece()
    bounded = BoundedTokenizer("mine", files.json_bytes, "a test asks for it")
    backend = open_library_tokenizer("mine", files.json_bytes)
    texts = ["a word</s>", "", "caf\u00e9 \u4f60"]
    for literal in (True, False):
        bounded.encode_special_tokens = literal
        got = [
            encoding.ids
            for encoding in bounded.encode_batch_fast(texts, add_special_tokens=False)
        ]
        assert got == [ids.tolist() for ids in backend.encode(texts, literal=literal)]
    assert bounded.decode([1, 300], skip_special_tokens=False) == backend.decode(
        [1, 300]
    )
    assert bounded.token_to_id("</s>") == backend.token_to_id("</s>") == 2
    assert (
        bounded.token_to_id("no token") is None
        and backend.token_to_id("no token") is None
    )
    assert bounded.id_to_token(1) == "<s>"
    assert bounded.get_vocab_size() == files.vocab_size
    bounded.close()


@pytest.mark.parametrize(
    "name", ["sentencepiece", "metaspace-first-True", "metaspace-always-False"]
)
def test_cached_words_of_sentencepiece_style_equal_the_reference(name: str) -> None:
    files = samples.known()[name]
    texts = samples.large(list(samples.hard_texts()))
    for mode in ("literal", "encode"):
        words = Encoder(files, engine="words", special_tokens_in_text=mode).encode(
            texts
        )
        reference = Encoder(
            files, engine="tokenizers", special_tokens_in_text=mode
        ).encode(texts)
        assert np.array_equal(words.ids, reference.ids)
        assert np.array_equal(words.offsets, reference.offsets)


def test_beside_the_fast_generation_only_words_of_sentencepiece_style_are_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokenlake.etl.tokenizers.gate.exports_parts", lambda: False)
    large = gate.WORDS_BESIDE_FAST_FROM
    cases = [("byte-level", large, "tokenizers"), ("sentencepiece", large, "words")]
    cases += [
        ("sentencepiece", large - 1, "tokenizers"),
        ("llama-3", 1 << 40, "tokenizers"),
    ]
    for name, size, engine in cases:
        choice, _ = choose_encoder(samples.known()[name], size=size)
        assert choice.engine == engine, choice.reason


@pytest.mark.skipif(exports_parts(), reason="about tokenizers from 1.0 on")
@pytest.mark.parametrize("name", MODELS)
def test_places_that_do_not_follow_from_ids_are_refused(name: str) -> None:
    encoder = Encoder(trained(name), engine="tokenizers")
    with pytest.raises(
        TokenizerError, match=r"the model is .*pip install 'tokenizers>=0\.22,<1'"
    ):
        encoder.encode_places(samples.large(["Hello"]))


def write_pinned() -> None:
    """Write the hashes of the installed version."""
    hashes: dict[str, str] = {}
    for name in sorted({*samples.known(), *MUTATIONS, *MODELS}):
        try:
            hashes[name] = ids_hash(tokenizer_of(name))
        except TokenizerError:
            hashes[name] = REFUSED
    PINNED.write_text(json.dumps(hashes, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    assert exports_parts(), "needs tokenizers before 1.0"
    write_pinned()
