"""The gate on changed tokenizer.json files: the chosen engine's ids are always those of `tokenizers`.

Which of them run on the fast engine is a golden list, so that the gate neither trusts too much nor refuses all.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_mutations import MUTATIONS
from tokenlake.errors import TokenizerError
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.tokenizers.gate import choose_engine

FAST = frozenset(
    """
pre-tokenizer: trimmed offsets
regex: gpt-2
regex: llama-3
regex: qwen-2
regex: o200k
normalizer: nfc
normalizer of pieces: replace only
metaspace: first, split True
metaspace: first, split False
metaspace: always, split True
metaspace: always, split False
metaspace: never, split True
metaspace: never, split False
model: unchanged
model: no type
model: no dropout key
model: dropout of nothing
model: an unknown token
model: fused unknown tokens
model: ignored merges
model: ignored merges, fewer of them
model: fewer merges
model: no merges
model: merges as strings
model: merges reversed
model: merges in turns
model: an empty prefix
model: an empty suffix
model: ids not in merge order
model: a gap in the ids
model: foreign text in the vocabulary
model of pieces: unchanged
model of pieces: unknown tokens apart
model of pieces: no unknown token
model of pieces: fewer merges
model of pieces: merges as strings
model of pieces: words of two
added special: normalized
added special: none
added special to pieces: none
added plain: normalized
added plain: none
added plain to pieces: none
added: two
added: words of the vocabulary
added: a blank inside
added: a line end
added: another script
added: the mark of a blank
added: a letter of two bytes
added: many
added to pieces: two
added to pieces: a blank inside
added to pieces: the mark of a blank
added to pieces: another script
added to pieces: many
added: none
added to nfc: a tag
added to metaspace: a tag
around: truncation
around: truncation on the left
around: padding
around: padding on the left
around: truncation and padding
around: no post-processor
around: an end
around: trimmed offsets
around: bert
around: roberta
around: several
decoder: null
decoder: pieces
decoder: word pieces
decoder: suffixes
decoder: fused
""".strip().splitlines()
)
"""Run on gigatoken, special tokens literal or not."""

FAST_IF_LITERAL = frozenset(
    """
added special: single_word
added special to pieces: single_word
added special: lstrip
added special to pieces: lstrip
added special: rstrip
added special to pieces: rstrip
added special to pieces: normalized
""".strip().splitlines()
)
"""Special tokens that no text is searched for may have any flags."""

REFUSED = frozenset(
    """
model: dropout
model: a merge of nothing known
model: a foreign type
model: an unknown key outside
model of pieces: a merge of a byte
added: null
around: another version
""".strip().splitlines()
)
"""`tokenizers` does not load them, or their ids would be random."""


TEXTS = (
    *samples.hard_texts()[::4],
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
    (name, "encode") for name in MUTATIONS if "added" in name or "nfc" in name or ": unchanged" in name
]


def engine_of(name: str, mode: str) -> str:
    return "gigatoken" if name in FAST or (name in FAST_IF_LITERAL and mode == "literal") else "tokenizers"


def require_exact(files: TokenizerFiles, mode: str, engine: str, texts: tuple[str, ...]) -> None:
    """Choose the engine, and compare its ids, and those made with their places, with the reference's."""
    choice = choose_engine(files, "auto", mode)
    assert choice.engine == engine, choice.reason
    encoder = Encoder(files, engine=engine, special_tokens_in_text=mode, add_special_tokens=False)
    encoded = encoder.encode(samples.large(texts))
    got = [encoded.ids[start:stop].tolist() for start, stop in pairwise(encoded.offsets.tolist())]
    assert got == samples.reference_ids(files, texts, literal=mode == "literal")
    if engine == "gigatoken":
        placed, start, stop = encoder.encode_places(samples.large(texts))
        slow = Encoder(files, engine="tokenizers", special_tokens_in_text=mode, add_special_tokens=False)
        expected, first, last = slow.encode_places(samples.large(texts))
        assert np.array_equal(placed.ids, encoded.ids) and np.array_equal(expected.ids, encoded.ids)
        assert np.array_equal(start, first) and np.array_equal(stop, last)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_chosen_engine_equals_the_reference(name: str, mode: str) -> None:
    make, change = MUTATIONS[name]
    files = samples.changed(make(), change)
    if name in REFUSED:
        with pytest.raises(TokenizerError):
            choose_engine(files, "auto", mode)
        with pytest.raises(TokenizerError):
            Encoder(files, engine="tokenizers")
        return
    require_exact(files, mode, engine_of(name, mode), TEXTS)


def test_the_golden_list_names_a_good_part_of_a_large_corpus() -> None:
    assert len(MUTATIONS) >= 200 and MUTATIONS.keys() >= FAST | FAST_IF_LITERAL | REFUSED
    assert not FAST & (FAST_IF_LITERAL | REFUSED) and not FAST_IF_LITERAL & REFUSED
    assert len(FAST) >= 70 and len(MUTATIONS) - len(FAST | FAST_IF_LITERAL | REFUSED) >= 120


REAL = {
    "openai-community/gpt2": (
        *("model: unchanged", "model: ignored merges", "pre-tokenizer: null", "normalizer: nfc"),
        *("split llama-3: Removed", "regex: cl100k"),
    ),
    "meta-llama/Llama-2-7b-hf": (
        *("model of pieces: unchanged", "normalizer of pieces: null", "metaspace: first, split False"),
        *("added to pieces: two", "added plain to pieces: normalized"),
    ),
}


@pytest.mark.corpora
@pytest.mark.parametrize(("name", "mutation"), [(name, each) for name, all_ in REAL.items() for each in all_])
def test_changed_real_tokenizers_are_judged_alike(
    name: str, mutation: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(shared_data / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    files = samples.changed(load_tokenizer(name), MUTATIONS[mutation][1])
    # Its one added token may be matched in normalized text.
    engine = "tokenizers" if (name, mutation) == ("openai-community/gpt2", "normalizer: nfc") else None
    require_exact(files, "encode", engine or engine_of(mutation, "encode"), TEXTS)
