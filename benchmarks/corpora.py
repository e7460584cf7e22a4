"""An input of prose, code and many languages, made from real corpora and large enough
for long runs.

The corpora are Parquet files `text-*`, `code-*` and `multilingual-*` with a column
`text`, in `corpora/` of the folder named by TOKENLAKE_TEST_DATA (default `../shared`).
An input is made of them in these steps, always in the same way:

1. Documents with the string of a special token of any compared tokenizer are left out,
   because systems disagree about them. So equal hashes of ids show that all systems did
   the same work.
2. The documents of all corpora come once, in the order of their hashes.
3. Where more text is wanted, the same documents follow in further passes. In each pass,
   a document is cut at line ends, and longer lines at the ends of sentences; its pieces
   are shuffled and joined to new documents. A text that was written before is left out,
   so that no document occurs twice.

Further passes have no new words. A system that remembers words or pieces of text is
faster on this input than on real text of the same size. The description of an input
therefore says how many words it has, and which share is distinct.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson
import pyarrow.parquet as pq

from benchmarks.inputs import Input, finish, load_input, write_parts
from benchmarks.vocabularies import shared_folder
from tokenlake.etl.tokenizers.training import count_words

KINDS: Final = ("text", "code", "multilingual")
LONG_LINE: Final = 400
"""Characters from which a line is cut at the ends of its sentences."""
_SENTENCE: Final = re.compile(r"(?<=[.!?] )|(?<=[\u3002\uff01\uff1f])")
# Nearly all special tokens have one of these forms, so few texts must be searched for
# each token.
_BRACKETED: Final = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]")


def corpus_files() -> list[Path]:
    """Return the files of all corpora, an empty list where there are none."""
    folder = shared_folder() / "corpora"
    return [path for kind in KINDS for path in sorted(folder.glob(f"{kind}-*.parquet"))]


def make_input(work: Path, megabytes: float, special_tokens: Sequence[str]) -> Input:
    """Return the input of this size: the one made before where it is whole, else a new
    one.

    Args:
        work: Folder below which inputs are kept.
        megabytes: Text in 10^6 bytes.
        special_tokens: Tokens that no document may contain.
    """
    excluded = hashlib.sha256("\0".join(sorted(special_tokens)).encode()).hexdigest()[
        :8
    ]
    folder = work / "inputs" / f"corpora-{megabytes:g}MB-{excluded}"
    made = load_input(folder)
    if made is not None:
        return made
    fresh = folder.with_name(folder.name + ".making")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    counts = write_parts(
        fresh, documents(corpus_files(), special_tokens), int(megabytes * 1e6)
    )
    words = count_words(_texts_of(fresh))
    counts |= {"words": words.total(), "distinct_words": len(words)}
    return finish(fresh, folder, counts)


def documents(
    files: Sequence[Path], special_tokens: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) without end: the documents themselves, then pass after pass
    of new ones of their pieces.
    """
    originals: list[tuple[bytes, str, str]] = []
    has_special = _SpecialTokenTest(special_tokens)
    for path in files:
        kind = path.name.partition("-")[0]
        texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
        originals.extend(
            (hashlib.sha256(text.encode()).digest(), kind, text)
            for text in texts
            if text and not has_special(text)
        )
    originals.sort()

    written: set[bytes] = set()
    for digest, kind, text in originals:
        if digest not in written:
            written.add(digest)
            yield kind, text
    for turn in range(1, 1 << 30):
        count = len(written)
        for digest, _, text in originals:
            for new_text in recombine(text, digest, turn):
                new_digest = hashlib.sha256(new_text.encode()).digest()
                if new_digest not in written:
                    written.add(new_digest)
                    yield "repeated", new_text
        if len(written) == count:
            raise RuntimeError(
                f"the corpora are too small: pass {turn} has no document that was not there before"
            )


def recombine(text: str, digest: bytes, turn: int) -> Iterator[str]:
    """Yield new documents of the pieces of a text, in an order fixed by (digest,
    turn).
    """
    order = random.Random(digest + turn.to_bytes(4, "little"))
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        pieces.extend(_SENTENCE.split(line) if len(line) > LONG_LINE else [line])
    order.shuffle(pieces)
    start = 0
    while start < len(pieces):
        stop = start + order.randint(20, 400)
        yield "".join(pieces[start:stop])
        start = stop


class _SpecialTokenTest:
    """Whether a text contains the string of a special token."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        self._bracketed: set[str] = set()
        self._others: list[str] = []
        for token in special_tokens:
            if _BRACKETED.fullmatch(token):
                self._bracketed.add(token)
            else:
                self._others.append(token)

    def __call__(self, text: str) -> bool:
        if any(token in text for token in self._others):
            return True
        return any(match in self._bracketed for match in _BRACKETED.findall(text))


def _texts_of(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                yield orjson.loads(line)["text"]
