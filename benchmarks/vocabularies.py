"""The two tokenizers of the comparison: a GPT-2-style byte-level BPE and a Llama-2-style BPE.

The real ones are used where the folder named by TOKENLAKE_TEST_DATA (default `../shared`) holds a
Hub cache with them; otherwise each is trained on the spot on a sample of the machine's text, with
the vocabulary size and every stage of its model, and kept in the work folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from benchmarks.inputs import InputMaker, documents

REAL: Final = {"gpt2": "models--openai-community--gpt2", "llama2": "models--meta-llama--Llama-2-7b-hf"}
SAMPLE: Final = 32_000_000  # characters trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer folder. `adds` is how many ids its own post-processor adds to every document."""

    name: str
    folder: str
    origin: str
    eos: str
    size: int
    adds: int


def obtain(name: str, work: Path, maker: InputMaker) -> Vocabulary:
    """The vocabulary `gpt2` or `llama2`."""
    real = _real(name)
    if real is not None:
        return _describe(name, real, f"the real {REAL[name].removeprefix('models--').replace('--', '/')}")
    folder = work / "tokenizers" / name
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = _sample(maker)
        trained = _train_gpt2_style(texts) if name == "gpt2" else _train_llama2_style(texts)
        _save(folder, trained, name)
    return _describe(name, folder, "trained on the spot")


def _real(name: str) -> Path | None:
    shared = Path(os.environ.get("TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"))
    found = sorted(shared.glob(f"hf/hub/{REAL[name]}/snapshots/*/tokenizer.json"))
    return found[0].parent.absolute() if found else None


def _describe(name: str, folder: Path, origin: str) -> Vocabulary:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Vocabulary(
        name=name,
        folder=str(folder),
        origin=origin,
        eos="<|endoftext|>" if name == "gpt2" else "</s>",
        size=tokenizer.get_vocab_size(),
        adds=len(tokenizer.encode("").ids),
    )


def _sample(maker: InputMaker) -> Iterator[str]:
    """Every other original document, up to :data:`SAMPLE` characters."""
    total = 0
    for _, text in islice(documents(maker.files()), 0, None, 2):
        yield text
        total += len(text)
        if total >= SAMPLE:
            return


def _train_gpt2_style(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=50257,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_llama2_style(texts: Iterator[str]) -> Tokenizer:
    """Trains as SentencePiece does (words begin with U+2581, letters, digits and the rest apart).

    Llama 2's tokenizer.json has no pre-tokenizer: the trained merges alone keep to the words, so the
    pre-tokenizer that is needed to train goes away afterwards.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\r\n]+"), "removed"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"▁+(?=▁)|▁?\p{L}+|▁?[^\p{L}▁]+|▁"), "isolated"),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=32000, special_tokens=special + fallback, limit_alphabet=2000, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return Tokenizer.from_str(json.dumps(_as_llama2(json.loads(tokenizer.to_str())), ensure_ascii=False))


def _as_llama2(trained: dict[str, Any]) -> dict[str, Any]:
    """The trained model in Llama 2's shape: byte tokens are ordinary entries, `<s>` opens a document."""
    added = [token for token in trained["added_tokens"] if token["content"] in ("<unk>", "<s>", "</s>")]
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = [{"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    processor = {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, *second],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return {**trained, "added_tokens": added, "pre_tokenizer": None, "post_processor": processor}


def _save(folder: Path, tokenizer: Tokenizer, name: str) -> None:
    if name == "gpt2":
        tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    else:
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**30, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))
