"""Compare cached words with `tokenizers` on random texts.

    python -m benchmarks.word_fuzz FOLDER [FOLDER ...] [--strings 20000] [--seed 0] [--texts FILE.parquet ...]

Each folder holds a tokenizer.json. Beside these, small tokenizers of the tests run with
random added tokens: overlapping ones, `normalized` ones, and ones that strip white
space or must be words by themselves. The texts are made of code points of all planes,
characters at which pre-tokenizers decide, compositions, added tokens and parts of them,
slices of real documents, and words of up to 20,000 characters.

A row of the table is a tokenizer: the strings that were compared, with special tokens
as plain text and as control tokens, the number of their ids, and the number of strings
that differ. The exit status is 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engine_gate import BORDERS
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
_POINTS: Final = 0x110000
_PLANE: Final = 0x10000
_SURROGATES: Final = range(0xD800, 0xE000)
_LONGEST: Final = 20_000
_MARKS: Final = [
    chr(point)
    for block in ((0x300, 0x370), (0x1AB0, 0x1AFF), (0x20D0, 0x20F0))
    for point in range(*block)
]
_JAMO: Final = [
    chr(point)
    for point in (
        *range(0x1100, 0x1113),
        *range(0x1161, 0x1176),
        *range(0x11A8, 0x11C3),
    )
]
_CHANGED: Final = 60  # small tokenizers with random added tokens
_FLAGS: Final = ("special", "normalized", "single_word", "lstrip", "rstrip")


class TextMaker:
    """Makes random texts for a tokenizer.

    Args:
        drawn: The source of all randomness.
        tokens: The strings of the added tokens.
        documents: Real documents, of which slices are taken.
    """

    def __init__(
        self, drawn: random.Random, tokens: Sequence[str], documents: Sequence[str]
    ) -> None:
        self._drawn = drawn
        self._tokens = tokens
        self._documents = documents
        self._kinds = [
            self._any_points,
            self._near_points,
            self._borders,
            self._borders,
            self._composed,
        ]
        if tokens:
            self._kinds.append(self._added)
        if documents:
            self._kinds += [self._real, self._real]

    def text(self) -> str:
        """Return a text of one kind, or of several side by side; rarely one with a
        very long word.
        """
        drawn = self._drawn
        if drawn.random() < 0.004:
            return self._long_word()
        return "".join(
            drawn.choice(self._kinds)() for _ in range(drawn.choice((1, 1, 1, 2, 3)))
        )

    def _any_points(self) -> str:
        points = [
            self._drawn.randrange(_POINTS) for _ in range(self._drawn.randint(0, 12))
        ]
        return "".join(chr(point) for point in points if point not in _SURROGATES)

    def _near_points(self) -> str:
        """Return characters of one script of the first planes, with spaces between
        some.
        """
        drawn = self._drawn
        first = drawn.randrange(drawn.choice((0x3000, _PLANE, 3 * _PLANE)))
        points = [first + drawn.randrange(96) for _ in range(drawn.randint(1, 20))]
        characters = [chr(point) for point in points if point not in _SURROGATES]
        return "".join(
            character + drawn.choice(("", "", "", " ")) for character in characters
        )

    def _borders(self) -> str:
        drawn = self._drawn
        return "".join(
            drawn.choice(drawn.choice((BORDERS, PARTS)))
            for _ in range(drawn.randint(1, 12))
        )

    def _composed(self) -> str:
        """Return letters with marks in any order, and Hangul in parts, with borders
        of words between them.
        """
        drawn = self._drawn
        pieces: list[str] = []
        for _ in range(drawn.randint(1, 6)):
            pieces.append(
                drawn.choice(
                    (
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
                )
            )
            pieces += drawn.choices(
                (*_MARKS, *_JAMO, "\u093c", "\u05b0", "\u3099"), k=drawn.randint(0, 3)
            )
            pieces.append(drawn.choice(("", " ", "'s", "\n\n")))
        return "".join(pieces)

    def _added(self) -> str:
        """Return added tokens, whole and in part, beside each other and beside white
        space.
        """
        drawn = self._drawn
        pieces: list[str] = []
        for _ in range(drawn.randint(1, 6)):
            token = drawn.choice(self._tokens)
            size = drawn.randint(0, len(token))
            pieces.append(
                drawn.choice(
                    (token, token, token[:size], token[size:], token[:size] + token)
                )
            )
            pieces.append(drawn.choice(("", "", " ", "\n", "x", "\u0301", "1")))
        return "".join(pieces)

    def _real(self) -> str:
        """Return a slice of a document, sometimes with characters put in."""
        drawn = self._drawn
        document = drawn.choice(self._documents)
        begin = drawn.randrange(len(document) + 1)
        text = document[begin : begin + drawn.randint(1, 200)]
        if drawn.random() < 0.3:
            place = drawn.randint(0, len(text))
            text = text[:place] + drawn.choice((*_MARKS[:20], *PARTS)) + text[place:]
        return text

    def _long_word(self) -> str:
        drawn = self._drawn
        unit = drawn.choice(
            ("a", "ab", "\u4f60", "1", " ", "\n", "-", "e\u0301", drawn.choice(PARTS))
        )
        size = drawn.choice(
            (drawn.randint(1, 40), drawn.randint(1, 600), drawn.randint(1, _LONGEST))
        )
        return (unit * size)[:_LONGEST]


def compare(
    files: TokenizerFiles, maker: TextMaker, strings: int
) -> Iterator[tuple[int, int, list[str]]]:
    """Compare random texts; yield for each mode the number of strings, of ids, and
    the texts that differ.
    """
    for literal in (True, False):
        if objection_to_words(files, literal=literal) is not None:
            continue
        engine = WordBackend(files, literal=literal)
        count = 0
        different: list[str] = []
        for first in range(0, strings, _BATCH):
            texts = [maker.text() for _ in range(min(_BATCH, strings - first))]
            made = engine.encode(pa.array(texts, pa.large_string())).rows()
            expected = samples.reference_ids(files, texts, literal=literal)
            for text, ids, right in zip(texts, made, expected, strict=True):
                count += len(right)
                if ids.tolist() != right:
                    different.append(text)
        yield strings, count, different


def changed_tokenizers(drawn: random.Random) -> Iterator[TokenizerFiles]:
    """Yield small tokenizers of all forms with random added tokens."""
    names = [*BYTE_LEVEL_FORMS, *SENTENCEPIECE_FORMS]
    for _ in range(_CHANGED):
        base = form(drawn.choice(names))
        spec = json.loads(base.json_bytes)
        vocab = spec["model"]["vocab"]
        number = (
            max(max(vocab.values()), *(token["id"] for token in spec["added_tokens"]))
            + 1
        )
        for content in drawn.sample(TOKENS, drawn.randint(1, 7)):
            given = base.token_id(content)
            if given is None:
                given = number
                number += 1
                vocab[content] = given
            # The last three flags send whole texts to the reference, so they are rare.
            flags = {
                flag: drawn.random() < (0.5 if flag in _FLAGS[:2] else 0.1)
                for flag in _FLAGS
            }
            spec["added_tokens"].append({"id": given, "content": content, **flags})
        yield samples.from_spec(spec, name=f"{base.name}, changed")


def main(arguments: list[str]) -> int:
    """Compare, print the table, and return 1 where a text differs."""
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
    options = parser.parse_args(arguments)
    documents: list[str] = []
    for path in options.texts:
        documents += [
            text
            for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
            if text
        ]
    drawn = random.Random(options.seed)
    tokenizers = [TokenizerFiles.read(folder) for folder in options.folders]
    changed = list(changed_tokenizers(drawn))
    groups = [(files.name, [files], options.strings) for files in tokenizers]
    groups.append(
        (f"{len(changed)} with random added tokens", changed, options.strings // 10)
    )
    total = 0
    failures = 0
    print("| tokenizer | strings | ids | differ |\n|---|---|---|---|", flush=True)
    for name, group, count in groups:
        strings = 0
        ids = 0
        different: list[str] = []
        for files in group:
            maker = TextMaker(
                drawn, [token["content"] for token in files.added_tokens], documents
            )
            for some_strings, some_ids, texts in compare(files, maker, count):
                strings += some_strings
                ids += some_ids
                different += texts
        total += strings
        failures += len(different)
        print(
            f"| {Path(name).name} | {strings:,} | {ids:,} | {len(different)} |",
            flush=True,
        )
        for text in different[:3]:
            print(f"    {text[:200]!a}", flush=True)
    print(f"\n{total:,} strings, {failures} differ", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
