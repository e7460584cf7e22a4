"""Inputs of prose, code and many languages, made from real corpora.

The corpora are Parquet files `text-*`, `code-*` and `multilingual-*` with a column
`text`, in `corpora/` of the folder named by TOKENLAKE_TEST_DATA (default `../shared`).
An input is made of them in three reproducible steps:

1. Documents with a special token of any compared tokenizer are left out, because
   systems disagree about them. Equal hashes of ids then show that all systems did the
   same work.
2. The documents of all corpora follow each other in the order of their hashes.
3. If more text is needed, further passes over the same documents follow. A pass cuts a
   document at line ends, and long lines at the ends of sentences. The pieces are
   shuffled and joined to new documents. No document occurs twice.

Further passes have no new words. A system that caches words or pieces of text is faster
on this input than on real text of the same size. The description of an input therefore
has the number of words and the share of distinct ones.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import orjson

from benchmarks.inputs import REPEATED, Input, finish, load_input, write_parts
from benchmarks.text import parquet_texts
from benchmarks.vocabularies import shared_folder
from tokenlake.etl.tokenizers.training import count_words

KINDS: Final = ("text", "code", "multilingual")
LONG_LINE: Final = 400
"""Length in characters above which a line is cut at the ends of its sentences."""

_SENTENCE: Final = re.compile(r"(?<=[.!?] )|(?<=[\u3002\uff01\uff1f])")
# Nearly all special tokens have one of these forms.
_BRACKETED: Final = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]")


def corpus_files() -> list[Path]:
    """Return the files of all corpora; an empty list if there are none."""
    folder = shared_folder() / "corpora"
    paths: list[Path] = []
    for kind in KINDS:
        paths += sorted(folder.glob(f"{kind}-*.parquet"))
    return paths


def make_input(work: Path, megabytes: float, special_tokens: Sequence[str]) -> Input:
    """Return the input of a size: the cached one if it is complete, or a new one.

    Args:
        work: Folder below which inputs are cached.
        megabytes: Text in 10^6 bytes.
        special_tokens: Tokens that no document may contain.
    """
    # 1. Look for a cached input with the same excluded tokens.
    token_list = "\0".join(sorted(special_tokens))
    token_hash = hashlib.sha256(token_list.encode()).hexdigest()[:8]
    folder = work / "inputs" / f"corpora-{megabytes:g}MB-{token_hash}"
    cached = load_input(folder)
    if cached is not None:
        return cached
    # 2. Write to a temporary folder, so that an interrupted run leaves no input.
    new_folder = folder.with_name(folder.name + ".making")
    shutil.rmtree(new_folder, ignore_errors=True)
    new_folder.mkdir(parents=True)
    source = documents(corpus_files(), special_tokens)
    counts = write_parts(new_folder, source, int(megabytes * 1e6))
    # 3. Count the words of the written texts.
    words = count_words(_texts_of(new_folder))
    counts |= {"words": words.total(), "distinct_words": len(words)}
    return finish(new_folder, folder, counts)


def documents(
    files: Sequence[Path], special_tokens: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) without end.

    The documents of the files come first. Passes of :func:`recombine` over them follow.

    Args:
        files: Parquet files of the corpora.
        special_tokens: Tokens that no document may contain.

    Raises:
        RuntimeError: A pass yields no new document.
    """
    # 1. The documents in the order of their hashes.
    originals: list[tuple[bytes, str, str]] = []
    has_special_token = _SpecialTokenTest(special_tokens)
    for path in files:
        kind = path.name.partition("-")[0]
        for text in parquet_texts(path):
            if not has_special_token(text):
                originals.append((_digest(text), kind, text))
    originals.sort()
    # 2. Each distinct document once.
    written: set[bytes] = set()
    for digest, kind, text in originals:
        if digest not in written:
            written.add(digest)
            yield kind, text
    # 3. New documents of their pieces, pass after pass.
    for turn in count(1):
        count_before = len(written)
        for digest, _, text in originals:
            for new_text in recombine(text, digest, turn):
                new_digest = _digest(new_text)
                if new_digest not in written:
                    written.add(new_digest)
                    yield REPEATED, new_text
        if len(written) == count_before:
            raise RuntimeError(
                f"the corpora are too small: pass {turn} has no document that was not there before"
            )


def recombine(text: str, digest: bytes, turn: int) -> Iterator[str]:
    """Yield new documents of the pieces of a text, of 20 to 400 pieces each.

    Args:
        text: Text to cut into lines, and long lines into sentences.
        digest: Hash of the text. With the turn it determines the order.
        turn: Number of the pass over all texts.
    """
    generator = random.Random(digest + turn.to_bytes(4, "little"))
    # 1. Cut the text into lines, and long lines into sentences.
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        if len(line) > LONG_LINE:
            pieces += _SENTENCE.split(line)
        else:
            pieces.append(line)
    # 2. Shuffle the pieces, and join 20 to 400 of them to a document.
    generator.shuffle(pieces)
    start = 0
    while start < len(pieces):
        stop = start + generator.randint(20, 400)
        yield "".join(pieces[start:stop])
        start = stop


class _SpecialTokenTest:
    """Test for texts that contain a special token.

    Tokens in brackets are matched by one regular expression. Only the other ones are
    searched one by one.

    Args:
        special_tokens: Tokens to look for.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        self._bracketed: set[str] = set()
        self._unbracketed: list[str] = []
        for token in special_tokens:
            if _BRACKETED.fullmatch(token):
                self._bracketed.add(token)
            else:
                self._unbracketed.append(token)

    def __call__(self, text: str) -> bool:
        # Few tokens have no brackets.
        if any(token in text for token in self._unbracketed):
            return True
        return any(match in self._bracketed for match in _BRACKETED.findall(text))


def _digest(text: str) -> bytes:
    """Return the sha256 of a text."""
    return hashlib.sha256(text.encode()).digest()


def _texts_of(folder: Path) -> Iterator[str]:
    """Yield the texts of an input that was written."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)["text"]
