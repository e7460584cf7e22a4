"""Tokenizers of the comparison.

The GPT-2 and Llama 2 tokenizers are taken from a Hub cache below the folder named by
TOKENLAKE_TEST_DATA (default `../shared`). If they are missing, a tokenizer of the same
kind is trained on a sample of the text of this machine, with the same vocabulary size
and the same stages, and cached in the work folder.

Tokenizers of newer models are `tokenizers/NAME/tokenizer.json.xz` in the same folder.
They are optional.
"""

from __future__ import annotations

import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from benchmarks.inputs import InputMaker, documents
from tests.tokenizer_files import SPACE, sentencepiece_specification
from tokenlake.etl.tokenizers.files import load_tokenizer
from tokenlake.etl.tokenizers.training import learn_merges, to_json, train_bpe

REAL: Final = {
    "gpt2": "models--openai-community--gpt2",
    "llama2": "models--meta-llama--Llama-2-7b-hf",
}
"""Name of a tokenizer -> folder of its repository in the Hub cache."""

SAMPLE: Final = 32_000_000
"""Number of characters for training."""

GPT2_SIZE: Final = 50_257
LLAMA2_SIZE: Final = 32_000
LLAMA2_ALPHABET: Final = 2_000
"""Number of the most frequent characters, each of which is a token."""

# Letters with the space before them, digits one by one, other characters, and spaces
# before spaces.
_LLAMA2_WORDS: Final = re.compile(
    rf"{SPACE}+(?={SPACE})|{SPACE}?[^\W\d_]+|{SPACE}?\d|{SPACE}?[^\w{SPACE}\r\n]+|{SPACE}?_|{SPACE}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokenizer of the comparison.

    Attributes:
        name: Name in options and reports.
        folder: Folder with tokenizer.json.
        origin: Description of the source of the tokenizer, for the report.
        eos: End-of-sequence token; empty if the tokenizer has none.
        size: Number of tokens.
        adds: Number of ids that the post-processor adds to each document.
    """

    name: str
    folder: str
    origin: str
    eos: str
    size: int
    adds: int

    @property
    def id_bytes(self) -> int:
        """Bytes per id in raw output."""
        return 2 if self.size <= 1 << 16 else 4


def obtain(name: str, work: Path, maker: InputMaker) -> Vocabulary:
    """Return the vocabulary `gpt2` or `llama2`.

    The real tokenizer is preferred. Otherwise one is trained, unless the work folder
    has it.

    Args:
        name: Name of the vocabulary, a key of :data:`REAL`.
        work: Work folder of the benchmark.
        maker: Source of the text for training.
    """
    folder = real_folder(name)
    if folder is not None:
        return _describe(name, folder, f"the real {_repository(name)}")
    # Training is slow, so a trained tokenizer is kept.
    folder = work / "tokenizers" / name
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        train = {"gpt2": _train_gpt2_style, "llama2": _train_llama2_style}[name]
        _save(folder, train(_sample(maker)), name)
    return _describe(name, folder, "trained on the spot")


def real_vocabularies(work: Path) -> list[Vocabulary]:
    """Return all real tokenizers of this machine; an empty list if there are none.

    Args:
        work: Work folder, below which tokenizers of newer models are unpacked.
    """
    vocabularies: list[Vocabulary] = []
    # 1. GPT-2 and Llama 2, from the Hub cache.
    for tokenizer_name in REAL:
        folder = real_folder(tokenizer_name)
        if folder is not None:
            origin = f"the real {_repository(tokenizer_name)}"
            vocabularies.append(_describe(tokenizer_name, folder, origin))
    # 2. Newer models, unpacked from compressed files.
    for archive in sorted((shared_folder() / "tokenizers").glob("*/tokenizer.json.xz")):
        tokenizer_name = archive.parent.name
        folder = work / "tokenizers" / tokenizer_name
        folder.mkdir(parents=True, exist_ok=True)
        for path in archive.parent.iterdir():
            content = path.read_bytes()
            if path.suffix == ".xz":
                (folder / path.stem).write_bytes(lzma.decompress(content))
            else:
                (folder / path.name).write_bytes(content)
        vocabularies.append(
            _describe(tokenizer_name, folder, f"the real {tokenizer_name}")
        )
    return vocabularies


def special_tokens(vocabularies: Iterable[Vocabulary]) -> list[str]:
    """Return the special tokens of all vocabularies, sorted."""
    tokens: set[str] = set()
    for vocabulary in vocabularies:
        tokens.update(load_tokenizer(vocabulary.folder).special_tokens)
    return sorted(tokens)


def shared_folder() -> Path:
    """Return the folder of real corpora and tokenizers. It may be missing."""
    default = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("TOKENLAKE_TEST_DATA", default))


def _repository(name: str) -> str:
    """Return the Hub repository of a real tokenizer, as ``owner/name``."""
    return REAL[name].removeprefix("models--").replace("--", "/")


def real_folder(name: str) -> Path | None:
    """Return the folder of a real tokenizer in the Hub cache; None if it is missing."""
    pattern = f"hf/hub/{REAL[name]}/snapshots/*/tokenizer.json"
    paths = sorted(shared_folder().glob(pattern))
    if not paths:
        return None
    return paths[0].parent.absolute()


def _describe(name: str, folder: Path, origin: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer folder."""
    # The package `tokenizers` runs the post-processor, which shows the added ids.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    files = load_tokenizer(folder)
    return Vocabulary(
        name=name,
        folder=str(folder),
        origin=origin,
        eos=files.eos_token or "",
        size=files.vocab_size,
        adds=len(tokenizer.encode("").ids),
    )


def _sample(maker: InputMaker) -> Iterator[str]:
    """Yield every second document, until :data:`SAMPLE` characters are reached."""
    character_count = 0
    for _, text in islice(documents(maker.files()), 0, None, 2):
        yield text
        character_count += len(text)
        if character_count >= SAMPLE:
            return


def _train_gpt2_style(texts: Iterable[str]) -> bytes:
    """Return the tokenizer.json of a byte-level BPE."""
    return train_bpe(texts, GPT2_SIZE).json_bytes


def _train_llama2_style(texts: Iterable[str]) -> bytes:
    """Return a tokenizer.json trained as SentencePiece does it.

    Letters, digits and other characters are separate words. Llama 2's tokenizer.json
    has no pre-tokenizer: only the trained merges respect the borders of words.
    """
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for text in texts:
        # SentencePiece marks spaces, and puts one before the text.
        marked_text = SPACE + text.replace(" ", SPACE)
        words.update(_LLAMA2_WORDS.findall(marked_text))
        characters.update(marked_text)
    # Rare characters are spelled in bytes.
    frequent = characters.most_common(LLAMA2_ALPHABET)
    alphabet = sorted(character for character, _ in frequent)
    special_and_bytes = 3 + 256
    tokens, merges = learn_merges(words, alphabet, LLAMA2_SIZE - special_and_bytes)
    return to_json(sentencepiece_specification(tokens, merges))


def _save(folder: Path, tokenizer_json: bytes, name: str) -> None:
    """Write the files of a trained tokenizer, in the form of transformers."""
    # GPT-2 has one special token for all purposes.
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if name == "gpt2":
        special = dict.fromkeys(special, "<|endoftext|>")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10**30,
        **special,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_bytes(tokenizer_json)
