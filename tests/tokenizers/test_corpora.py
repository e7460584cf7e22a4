"""Real tokenizers on real text: ids equal those of `tokenizers`. Needs shared data
(TOKENLAKE_TEST_DATA).

The suite takes a sample of every corpus; `benchmarks/check_ids.py` sweeps them whole.
"""

from __future__ import annotations

import lzma
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tokenizer_reference import needs_stages
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.tokenizer_samples import choose_engine
from tokenlake.etl.tokenizers import (
    Encoder,
    TokenizerFiles,
    gate,
    load_tokenizer,
    objection,
)

pytestmark = pytest.mark.corpora
TOKENIZERS = {"openai-community/gpt2": ((), ()), "meta-llama/Llama-2-7b-hf": ((1,), ())}
LONGEST = 6_000


@pytest.fixture(params=TOKENIZERS)
def files(
    request: pytest.FixtureRequest, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> TokenizerFiles:
    monkeypatch.setenv("HF_HOME", str(shared_data / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return load_tokenizer(request.param)


def documents(shared_data: Path) -> list[str]:
    """Return about 200 kB: from each file some documents, and of long ones a piece."""
    texts: list[str] = []
    for path in sorted((shared_data / "corpora").glob("*.parquet")):
        column = pq.read_table(path, columns=["text"])["text"].to_pylist()
        texts += [text[:LONGEST] for text in column[:: max(1, len(column) // 3)]]
    return texts


@needs_stages
@pytest.mark.parametrize("mode", ["literal", "encode"])
def test_ids_equal_the_reference(
    files: TokenizerFiles, mode: str, shared_data: Path
) -> None:
    texts = [*documents(shared_data), "a</s>b <s> <|endoftext|>x", ""]
    expected = samples.reference_ids(files, texts, literal=mode == "literal")
    for engine, size in (("gigatoken", 0), ("segments", gate.SEGMENTS_FROM)):
        if objection(files, engine, literal=mode == "literal") is None:
            assert choose_engine(files, "auto", mode, texts[:20], size).engine == engine
            encoder = Encoder(
                files, engine=engine, special_tokens_in_text=mode, sample_rate=0.01
            )
            encoded = encoder.encode(samples.large(texts))
            assert encoded.sampled > 0
            cuts = encoded.offsets.tolist()
            for row, (text, want) in enumerate(zip(texts, expected, strict=True)):
                assert encoded.ids[cuts[row] : cuts[row + 1]].tolist() == want, (
                    engine,
                    row,
                    text[:200],
                )


def test_affixes_and_named_tokens(files: TokenizerFiles) -> None:
    encoder = Encoder(files, engine="tokenizers")
    assert (encoder.prefix, encoder.suffix) == TOKENIZERS[files.name]
    assert (
        files.eos_id
        == {"openai-community/gpt2": 50256, "meta-llama/Llama-2-7b-hf": 2}[files.name]
    )
    assert files.vocab_size in (50257, 32000)


def test_decode_gives_real_text_back(files: TokenizerFiles, shared_data: Path) -> None:
    encoder = Encoder(files, engine="gigatoken")
    for text in documents(shared_data)[::40]:
        assert (
            encoder.decode(encoder.encode(pa.array([text], pa.large_string())).ids)
            == text
        )


SHARED = (
    "deepseek_v3",
    "deepseek_v4",
    "gemini",
    "gemma3",
    "gptoss",
    "llama3_1",
    "qwen3",
    "tekken",
)
"""Tokenizers of models that people train, in the folder `tokenizers` of the shared
data.
"""


@needs_stages
@pytest.mark.parametrize("name", SHARED)
def test_cached_words_equal_the_reference(name: str, shared_data: Path) -> None:
    packed = (shared_data / "tokenizers" / name / "tokenizer.json.xz").read_bytes()
    files = TokenizerFiles(name=name, files={"tokenizer.json": lzma.decompress(packed)})
    added = [token["content"] for token in files.added_tokens[::40]]
    texts = [
        *samples.hard_texts()[::5],
        *documents(shared_data)[::3],
        "".join(added),
        " ".join(added),
        "\n\n\n",
    ]
    for mode in ("literal", "encode"):
        encoder = Encoder(
            files, engine="words", special_tokens_in_text=mode, add_special_tokens=False
        )
        encoded = encoder.encode(samples.large(texts))
        expected = samples.reference_ids(files, texts, literal=mode == "literal")
        made = [
            encoded.ids[start:stop].tolist()
            for start, stop in pairwise(encoded.offsets.tolist())
        ]
        for text, ids, wanted in zip(texts, made, expected, strict=True):
            assert ids == wanted, text[:200]
