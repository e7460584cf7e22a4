"""The tokenizers of the comparison: a GPT-2-style byte-level BPE, a Llama-2-style BPE,
and those of newer models.

The real ones are used where the folder named by TOKENLAKE_TEST_DATA (default
`../shared`) holds a Hub cache with them; otherwise each is trained on the spot on a
sample of the machine's text, with the vocabulary size and every stage of its model, and
kept in the work folder.

Those of newer models are `tokenizers/NAME/tokenizer.json.xz` in the same folder; they
are measured where they are.
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
SAMPLE: Final = 32_000_000  # characters trained on
GPT2_SIZE: Final = 50_257
LLAMA2_SIZE: Final = 32_000
# Most frequent characters, which are tokens of their own.
LLAMA2_ALPHABET: Final = 2_000
# Letters with the space before them, digits one by one, other characters, and spaces
# before spaces.
_LLAMA2_WORDS: Final = re.compile(
    rf"{SPACE}+(?={SPACE})|{SPACE}?[^\W\d_]+|{SPACE}?\d|{SPACE}?[^\w{SPACE}\r\n]+|{SPACE}?_|{SPACE}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer folder. `adds` is how many ids its own post-processor adds to
    every document.
    """

    name: str
    folder: str
    origin: str
    eos: str
    size: int
    adds: int

    @property
    def id_bytes(self) -> int:
        """Bytes of an id in raw output."""
        return 2 if self.size <= 1 << 16 else 4


def obtain(name: str, work: Path, maker: InputMaker) -> Vocabulary:
    """The vocabulary `gpt2` or `llama2`."""
    real = _real(name)
    if real is not None:
        return _describe(
            name,
            real,
            f"the real {REAL[name].removeprefix('models--').replace('--', '/')}",
        )
    folder = work / "tokenizers" / name
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = _sample(maker)
        train = {"gpt2": _train_gpt2_style, "llama2": _train_llama2_style}[name]
        _save(folder, train(texts), name)
    return _describe(name, folder, "trained on the spot")


def real_vocabularies(work: Path) -> list[Vocabulary]:
    """All real tokenizers of this machine, those of newer models unpacked below
    `work`; an empty list for none.
    """
    vocabularies: list[Vocabulary] = []
    for name, repository in REAL.items():
        real = _real(name)
        if real is not None:
            origin = repository.removeprefix("models--").replace("--", "/")
            vocabularies.append(_describe(name, real, f"the real {origin}"))
    for packed in sorted((shared_folder() / "tokenizers").glob("*/tokenizer.json.xz")):
        name = packed.parent.name
        folder = work / "tokenizers" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in packed.parent.iterdir():
            content = path.read_bytes()
            if path.suffix == ".xz":
                (folder / path.stem).write_bytes(lzma.decompress(content))
            else:
                (folder / path.name).write_bytes(content)
        vocabularies.append(_describe(name, folder, f"the real {name}"))
    return vocabularies


def special_tokens(vocabularies: Iterable[Vocabulary]) -> list[str]:
    """Return the special tokens of all these tokenizers."""
    tokens: set[str] = set()
    for vocabulary in vocabularies:
        tokens.update(load_tokenizer(vocabulary.folder).special_tokens)
    return sorted(tokens)


def shared_folder() -> Path:
    """Return the folder with real corpora and tokenizers, which need not exist."""
    return Path(
        os.environ.get(
            "TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"
        )
    )


def _real(name: str) -> Path | None:
    found = sorted(
        shared_folder().glob(f"hf/hub/{REAL[name]}/snapshots/*/tokenizer.json")
    )
    return found[0].parent.absolute() if found else None


def _describe(name: str, folder: Path, origin: str) -> Vocabulary:
    # The package reads the file, so that its post-processor says what it adds.
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
    """Every other original document, up to :data:`SAMPLE` characters."""
    total = 0
    for _, text in islice(documents(maker.files()), 0, None, 2):
        yield text
        total += len(text)
        if total >= SAMPLE:
            return


def _train_gpt2_style(texts: Iterable[str]) -> bytes:
    return train_bpe(texts, GPT2_SIZE).json_bytes


def _train_llama2_style(texts: Iterable[str]) -> bytes:
    """Return a tokenizer.json trained as SentencePiece does: letters, digits and the
    rest are words apart.

    Llama 2's tokenizer.json has no pre-tokenizer: the trained merges alone keep to the
    words.
    """
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for text in texts:
        marked = SPACE + text.replace(" ", SPACE)
        words.update(_LLAMA2_WORDS.findall(marked))
        characters.update(marked)
    alphabet = sorted(
        character for character, _ in characters.most_common(LLAMA2_ALPHABET)
    )
    special_and_bytes = 3 + 256
    tokens, merges = learn_merges(words, alphabet, LLAMA2_SIZE - special_and_bytes)
    return to_json(sentencepiece_specification(tokens, merges))


def _save(folder: Path, content: bytes, name: str) -> None:
    if name == "gpt2":
        tokens = {
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
        }
    else:
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10**30,
        **tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_bytes(content)
