"""The gate on changed tokenizer.json files: the chosen engine's ids are always those of
`tokenizers`.

Which of them run on the fast engine is a golden list, so that the gate neither trusts
too much nor refuses all.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_mutations import MUTATIONS
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers import (
    Encoder,
    TokenizerFiles,
    choose_encoder,
    load_tokenizer,
)

# About which engine a changed tokenizer gets beside `tokenizers` before 1.0.
pytestmark = needs_stages


def named(table: str) -> frozenset[str]:
    """Return the mutations of a table with lines `kind: one | another`."""
    kinds = (line.partition(": ") for line in table.strip().splitlines())
    return frozenset(
        f"{kind}: {name}" for kind, _, names in kinds for name in names.split(" | ")
    )


FAST = named("""
pre-tokenizer: trimmed offsets
regex: gpt-2 | llama-3 | qwen-2 | o200k
normalizer: nfc
normalizer of pieces: replace only
metaspace: first, split True | first, split False | always, split True | always, split False
metaspace: never, split True | never, split False
model: unchanged | no type | no dropout key | dropout of nothing | an unknown token | fused unknown tokens
model: ignored merges | ignored merges, fewer of them | fewer merges | no merges | merges as strings
model: merges reversed | merges in turns | an empty prefix | an empty suffix | ids not in merge order
model: a gap in the ids | foreign text in the vocabulary
model of pieces: unchanged | unknown tokens apart | no unknown token | fewer merges | merges as strings
model of pieces: words of two
added special: normalized | none
added special to pieces: none
added plain: normalized | none
added plain to pieces: none
added: two | words of the vocabulary | a blank inside | a line end | another script | the mark of a blank
added: a letter of two bytes | many | none
added to pieces: two | a blank inside | the mark of a blank | another script | many
added to nfc: a tag
added to metaspace: a tag
around: truncation | truncation on the left | padding | padding on the left | truncation and padding
around: no post-processor | an end | trimmed offsets | bert | roberta | several
decoder: null | pieces | word pieces | suffixes | fused
""")
"""Run on gigatoken, special tokens literal or not."""

FAST_IF_LITERAL = named("""
added special: single_word | lstrip | rstrip
added special to pieces: single_word | lstrip | rstrip | normalized
""")
"""Special tokens that no text is searched for may have any flags."""

REFUSED = named("""
model: dropout | a merge of nothing known | a foreign type | an unknown key outside
model of pieces: a merge of a byte
added: null
around: another version
""")
"""`tokenizers` does not load them, or their ids would be random."""


TEXTS = (
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
CASES = [(name, "literal") for name in MUTATIONS] + [
    (name, "encode")
    for name in MUTATIONS
    if "added" in name or "nfc" in name or ": unchanged" in name
]


def engine_of(name: str, mode: str) -> str:
    return (
        "gigatoken"
        if name in FAST or (name in FAST_IF_LITERAL and mode == "literal")
        else "tokenizers"
    )


def require_exact(
    files: TokenizerFiles, mode: str, engine: str, texts: tuple[str, ...]
) -> None:
    """Choose the engine, and compare its ids, and those made with their places, with
    the reference's.
    """
    choice, encoder = choose_encoder(files, "auto", mode, add_special_tokens=False)
    assert choice.engine == engine, choice.reason
    encoded = encoder.encode(samples.large(texts))
    got = [
        encoded.ids[start:stop].tolist()
        for start, stop in pairwise(encoded.offsets.tolist())
    ]
    assert got == samples.reference_ids(files, texts, literal=mode == "literal")
    if engine == "gigatoken":
        placed, start, stop = encoder.encode_places(samples.large(texts))
        slow = Encoder(
            files,
            engine="tokenizers",
            special_tokens_in_text=mode,
            add_special_tokens=False,
        )
        expected, first, last = slow.encode_places(samples.large(texts))
        assert np.array_equal(placed.ids, encoded.ids) and np.array_equal(
            expected.ids, encoded.ids
        )
        assert np.array_equal(start, first) and np.array_equal(stop, last)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_chosen_engine_equals_the_reference(name: str, mode: str) -> None:
    make, change = MUTATIONS[name]
    files = samples.changed(make(), change)
    if name in REFUSED:
        with pytest.raises(TokenizerError):
            choose_encoder(files, "auto", mode)
        with pytest.raises(TokenizerError):
            Encoder(files, engine="tokenizers")
        return
    require_exact(files, mode, engine_of(name, mode), TEXTS)


def test_the_golden_list_names_a_good_part_of_a_large_corpus() -> None:
    assert (
        len(MUTATIONS) >= 200 and MUTATIONS.keys() >= FAST | FAST_IF_LITERAL | REFUSED
    )
    assert not FAST & (FAST_IF_LITERAL | REFUSED) and not FAST_IF_LITERAL & REFUSED
    assert (
        len(FAST) >= 70
        and len(MUTATIONS) - len(FAST | FAST_IF_LITERAL | REFUSED) >= 120
    )


REAL = {
    "openai-community/gpt2": (
        *(
            "model: unchanged",
            "model: ignored merges",
            "pre-tokenizer: null",
            "normalizer: nfc",
        ),
        *("split llama-3: Removed", "regex: cl100k"),
    ),
    "meta-llama/Llama-2-7b-hf": (
        *(
            "model of pieces: unchanged",
            "normalizer of pieces: null",
            "metaspace: first, split False",
        ),
        *("added to pieces: two", "added plain to pieces: normalized"),
    ),
}


@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "mutation"), [(name, each) for name, all_ in REAL.items() for each in all_]
)
def test_changed_real_tokenizers_are_judged_alike(
    name: str, mutation: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(shared_data / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    files = samples.changed(load_tokenizer(name), MUTATIONS[mutation][1])
    # Its one added token may be matched in normalized text.
    engine = (
        "tokenizers"
        if (name, mutation) == ("openai-community/gpt2", "normalizer: nfc")
        else None
    )
    require_exact(files, "encode", engine or engine_of(mutation, "encode"), TEXTS)
