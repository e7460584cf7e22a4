"""Compare the tokenizer backend of cached words with `tokenizers` on random texts.

    python -m benchmarks.word_fuzz FOLDER [FOLDER ...] [--strings 20000] [--seed 0] [--texts FILE.parquet ...]

Each folder holds a tokenizer.json. In addition, small tokenizers of the tests run with
random added tokens: overlapping ones, `normalized` ones, and ones that strip white
space or match whole words only. The texts are made of code points of all planes,
characters at which pre-tokenizers split, compositions, added tokens and parts of them,
slices of real documents, and words of up to 20,000 characters.

Each row of the table has a tokenizer, the number of compared strings (with special
tokens as text and as control tokens), the number of their ids, and the number of
strings that differ. The exit status is 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.engine_gate import BORDERS
from benchmarks.text import parquet_texts
from tests.tokenizers import tokenizer_samples as samples
from tests.tokenizers.test_words import (
    BYTE_LEVEL_FORMS,
    PARTS,
    SENTENCEPIECE_FORMS,
    TOKENS,
    form,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.words.backend import WordBackend
from tokenlake.etl.tokenizers.words.rules import objection_to_words

_BATCH: Final = 500
"""Number of texts per call."""

_CODE_POINTS: Final = 0x110000
_PLANE: Final = 0x10000
_SURROGATES: Final = range(0xD800, 0xE000)

_LONGEST: Final = 20_000
"""Largest number of characters of a word."""

_CHANGED: Final = 60
"""Number of small tokenizers with random added tokens."""

_COMMON_FLAGS: Final = ("special", "normalized")
_RARE_FLAGS: Final = ("single_word", "lstrip", "rstrip")
"""Flags of added tokens. The rare ones make the backend send whole texts to the
reference.
"""


def _characters(*blocks: tuple[int, int]) -> list[str]:
    """Return the characters of blocks (first code point, end)."""
    characters: list[str] = []
    for first, end in blocks:
        characters += [chr(point) for point in range(first, end)]
    return characters


_MARKS: Final = _characters((0x300, 0x370), (0x1AB0, 0x1AFF), (0x20D0, 0x20F0))
"""Combining marks."""

_JAMO: Final = _characters((0x1100, 0x1113), (0x1161, 0x1176), (0x11A8, 0x11C3))
"""Parts of Hangul syllables."""

_BASES: Final = (
    "a",
    "E",
    "o",
    "\u0928",
    "\u05e9",
    " ",
    "1",
    "\n",
    "\uac00",
    *_JAMO[:3],
)
"""Characters to which marks are added."""

_COMBINING: Final = (*_MARKS, *_JAMO, "\u093c", "\u05b0", "\u3099")


class TextMaker:
    """Maker of random texts for a tokenizer.

    Args:
        generator: Source of all randomness.
        tokens: Added tokens.
        documents: Real documents, of which slices are taken.
    """

    def __init__(
        self, generator: random.Random, tokens: Sequence[str], documents: Sequence[str]
    ) -> None:
        self._generator = generator
        self._tokens = tokens
        self._documents = documents
        # Functions of which one is drawn for each text. Some occur twice.
        self._kinds: list[Callable[[], str]] = [
            self._any_points,
            self._near_points,
            self._borders,
            self._borders,
            self._composed,
        ]
        if tokens:
            self._kinds.append(self._added_tokens)
        if documents:
            self._kinds += [self._slice, self._slice]

    def text(self) -> str:
        """Return a text of one kind, or of several; rarely a very long word."""
        generator = self._generator
        if generator.random() < 0.004:
            return self._long_word()
        count = generator.choice((1, 1, 1, 2, 3))
        return "".join(generator.choice(self._kinds)() for _ in range(count))

    def _any_points(self) -> str:
        """Return characters of all planes."""
        count = self._generator.randint(0, 12)
        points = [self._generator.randrange(_CODE_POINTS) for _ in range(count)]
        return "".join(chr(point) for point in points if point not in _SURROGATES)

    def _near_points(self) -> str:
        """Return characters of one script of the first planes, and some spaces."""
        generator = self._generator
        # A script mostly has neighbouring code points.
        first = generator.randrange(generator.choice((0x3000, _PLANE, 3 * _PLANE)))
        count = generator.randint(1, 20)
        points = [first + generator.randrange(96) for _ in range(count)]
        pieces: list[str] = []
        for point in points:
            if point not in _SURROGATES:
                pieces.append(chr(point) + generator.choice(("", "", "", " ")))
        return "".join(pieces)

    def _borders(self) -> str:
        """Return strings at which pre-tokenizers split."""
        generator = self._generator
        pieces: list[str] = []
        for _ in range(generator.randint(1, 12)):
            strings = generator.choice((BORDERS, PARTS))
            pieces.append(generator.choice(strings))
        return "".join(pieces)

    def _composed(self) -> str:
        """Return letters with marks in any order, and Hangul syllables in parts."""
        generator = self._generator
        pieces: list[str] = []
        for _ in range(generator.randint(1, 6)):
            # A letter, up to three marks or parts of a syllable, and perhaps a border.
            pieces.append(generator.choice(_BASES))
            pieces += generator.choices(_COMBINING, k=generator.randint(0, 3))
            pieces.append(generator.choice(("", " ", "'s", "\n\n")))
        return "".join(pieces)

    def _added_tokens(self) -> str:
        """Return added tokens and parts of them, next to each other or to spaces."""
        generator = self._generator
        pieces: list[str] = []
        for _ in range(generator.randint(1, 6)):
            token = generator.choice(self._tokens)
            size = generator.randint(0, len(token))
            # Cut the token at a random place.
            head = token[:size]
            tail = token[size:]
            pieces.append(generator.choice((token, token, head, tail, head + token)))
            pieces.append(generator.choice(("", "", " ", "\n", "x", "\u0301", "1")))
        return "".join(pieces)

    def _slice(self) -> str:
        """Return a slice of a document, sometimes with an inserted string."""
        generator = self._generator
        document = generator.choice(self._documents)
        # Up to 200 characters, from any place on.
        begin = generator.randrange(len(document) + 1)
        text = document[begin : begin + generator.randint(1, 200)]
        if generator.random() < 0.3:
            place = generator.randint(0, len(text))
            inserted = generator.choice((*_MARKS[:20], *PARTS))
            text = text[:place] + inserted + text[place:]
        return text

    def _long_word(self) -> str:
        """Return a repeated string of up to 20,000 characters."""
        generator = self._generator
        unit = generator.choice(
            (
                "a",
                "ab",
                "\u4f60",
                "1",
                " ",
                "\n",
                "-",
                "e\u0301",
                generator.choice(PARTS),
            )
        )
        count = generator.choice(
            (
                generator.randint(1, 40),
                generator.randint(1, 600),
                generator.randint(1, _LONGEST),
            )
        )
        return (unit * count)[:_LONGEST]


@dataclass(slots=True)
class Comparison:
    """Counts of compared texts.

    Attributes:
        strings: Number of strings.
        ids: Number of ids.
        differing: Texts whose ids differ.
    """

    strings: int
    ids: int
    differing: list[str]


def compare(
    files: TokenizerFiles, maker: TextMaker, strings: int
) -> Iterator[Comparison]:
    """Compare random texts in each mode that the backend supports.

    Args:
        files: Tokenizer.
        maker: Source of the texts.
        strings: Number of texts per mode.
    """
    for literal in (True, False):
        # The backend does not support every tokenizer in every mode.
        if objection_to_words(files, literal=literal) is not None:
            continue
        backend = WordBackend(files, literal=literal)
        # Encode batches by both, and compare them row by row.
        comparison = Comparison(strings, 0, [])
        for first_text in range(0, strings, _BATCH):
            texts = [maker.text() for _ in range(min(_BATCH, strings - first_text))]
            all_ids = backend.encode(pa.array(texts, pa.large_string())).rows()
            all_expected = samples.reference_ids(files, texts, literal=literal)
            for text, ids, expected in zip(texts, all_ids, all_expected, strict=True):
                comparison.ids += len(expected)
                if ids.tolist() != expected:
                    comparison.differing.append(text)
        yield comparison


def changed_tokenizers(generator: random.Random) -> Iterator[TokenizerFiles]:
    """Yield small tokenizers of all forms with random added tokens."""
    names = [*BYTE_LEVEL_FORMS, *SENTENCEPIECE_FORMS]
    for _ in range(_CHANGED):
        # 1. A tokenizer of a form of the tests.
        base = form(generator.choice(names))
        specification = json.loads(base.json_bytes)
        vocabulary = specification["model"]["vocab"]
        added_tokens = specification["added_tokens"]
        added_ids = [token["id"] for token in added_tokens]
        next_id = max(*vocabulary.values(), *added_ids) + 1
        # 2. One to seven added tokens.
        for content in generator.sample(TOKENS, generator.randint(1, 7)):
            # A token of the vocabulary keeps its id.
            token_id = base.token_id(content)
            if token_id is None:
                token_id = next_id
                next_id += 1
                vocabulary[content] = token_id
            token = {"id": token_id, "content": content}
            for flag in _COMMON_FLAGS:
                token[flag] = generator.random() < 0.5
            for flag in _RARE_FLAGS:
                token[flag] = generator.random() < 0.1
            added_tokens.append(token)
        yield samples.from_spec(specification, name=f"{base.name}, changed")


def main(arguments: Sequence[str]) -> int:
    """Compare all tokenizers and print the table; return 1 if a text differs."""
    options = _parse(arguments)
    documents: list[str] = []
    for path in options.texts:
        documents += parquet_texts(Path(path))
    # 1. The rows of the table: a real tokenizer each, and all changed ones in one.
    generator = random.Random(options.seed)
    groups: list[tuple[str, list[TokenizerFiles], int]] = []
    for folder in options.folders:
        files = TokenizerFiles.read(folder)
        groups.append((files.name, [files], options.strings))
    changed = list(changed_tokenizers(generator))
    changed_name = f"{len(changed)} with random added tokens"
    groups.append((changed_name, changed, options.strings // 10))
    # 2. The comparison of each row.
    total_strings = 0
    total_differing = 0
    print("| tokenizer | strings | ids | differ |\n|---|---|---|---|", flush=True)
    for tokenizer_name, group, strings in groups:
        sums = Comparison(0, 0, [])
        for files in group:
            added_tokens = [token["content"] for token in files.added_tokens]
            maker = TextMaker(generator, added_tokens, documents)
            for comparison in compare(files, maker, strings):
                sums.strings += comparison.strings
                sums.ids += comparison.ids
                sums.differing += comparison.differing
        total_strings += sums.strings
        total_differing += len(sums.differing)
        label = Path(tokenizer_name).name
        print(
            f"| {label} | {sums.strings:,} | {sums.ids:,} | {len(sums.differing)} |",
            flush=True,
        )
        # Examples of differences.
        for text in sums.differing[:3]:
            print(f"    {text[:200]!a}", flush=True)
    print(f"\n{total_strings:,} strings, {total_differing} differ", flush=True)
    return 1 if total_differing else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, help="folders with a tokenizer.json"
    )
    parser.add_argument(
        "--strings",
        type=int,
        default=20_000,
        help="strings for each tokenizer and mode",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--texts", nargs="*", default=[], help="Parquet files with a column text"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
