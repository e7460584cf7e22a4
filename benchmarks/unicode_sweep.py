"""Find the code points at which gigatoken and `tokenizers` split words differently.

    python benchmarks/unicode_sweep.py [SCHEME ...]

Every code point is put into short contexts and encoded by both backends. The tokenizer
of this sweep shows where text is split: its merges join an ASCII probe character, or
the last byte of a character, with the next byte. Two neighbours become one token if and
only if no split is between them.

The program prints the differing ranges of each scheme, for
`tokenlake/etl/tokenizers/allowlist.py`. A scheme takes some minutes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from tokenlake.etl.tokenizers.allowlist import SPLIT_REGEXES
from tokenlake.etl.tokenizers.backends import GigatokenBackend, ReferenceBackend
from tokenlake.etl.tokenizers.files import TokenizerFiles

_SURROGATES = range(0xD800, 0xE000)
CODE_POINTS = [point for point in range(0x80, 0x110000) if point not in _SURROGATES]
"""Code points to test."""

ASCII = "aAsx1. \n'/\t"
"""Probe characters."""

CONTEXTS = (
    "a{}",
    "{}a",
    "A{}a",
    "1{}",
    "{}1",
    "x.{}",
    "{}.",
    "x\n{}",
    "{}\n\nx",
    "{}{}",
    "'{}a",
    "'l{}a",
    "{}'s",
    "{}\u0301a",
    "a{}\u0301",
    " {}/\n",
)
"""Texts in which ``{}`` is replaced by a code point."""

# Two marks of different combining classes show a class that only one backend knows.
NFC_CONTEXTS = (
    "a{}\u0316",
    "{}\u0316a",
    "a{}\u0301",
    "{}\u0301a",
    "a\u0316{}",
    "a\u0345{}\u0334",
    "{}{}",
    "a{}",
)
"""Contexts that show differences of the normalization."""

BATCH = 50_000
"""Number of texts per call."""

_CONTINUATION_BYTES = range(0x80, 0xC0)
_LEAD_BYTES = range(0xC2, 0xF5)
"""Bytes of UTF-8 that end a character of several bytes, and that begin one."""


def byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte value.

    Printable characters stand for themselves. The other bytes have the characters from
    U+0100 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    next_point = 256
    alphabet: list[str] = []
    for byte in range(256):
        # Printable bytes keep their character.
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(next_point))
            next_point += 1
    return alphabet


def glue_tokenizer(regex: str | None, *, nfc: bool = False) -> TokenizerFiles:
    """Return a byte-level tokenizer whose tokens show where the text is split.

    Args:
        regex: Regular expression of the pre-tokenizer; None: that of GPT-2.
        nfc: True for NFC normalization.
    """
    # 1. The pairs of bytes that are merged unless they are split.
    probes = [ord(character) for character in ASCII]
    byte_pairs = [
        *product(_CONTINUATION_BYTES, _LEAD_BYTES),
        *product(probes, _LEAD_BYTES),
        *product(_CONTINUATION_BYTES, probes),
        *product(probes, probes),
    ]
    alphabet = byte_alphabet()
    merges = [[alphabet[left], alphabet[right]] for left, right in byte_pairs]
    tokens = [*alphabet, *("".join(merge) for merge in merges)]
    # 2. The pre-tokenizer.
    pre_tokenizer: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": True,
    }
    if regex is not None:
        split = {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
        byte_level = {**pre_tokenizer, "use_regex": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    # 3. The tokenizer.
    specification = {
        "added_tokens": [],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": pre_tokenizer,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    tokenizer_json = json.dumps(specification, ensure_ascii=False).encode()
    return TokenizerFiles(name="glue", files={"tokenizer.json": tokenizer_json})


def differing_points(files: TokenizerFiles, contexts: Iterable[str]) -> dict[int, str]:
    """Return the code points that the backends encode differently.

    Args:
        files: Tokenizer.
        contexts: Texts in which ``{}`` is replaced by a code point.

    Returns:
        Code point -> first context that shows the difference.
    """
    reference = ReferenceBackend(files)
    gigatoken = GigatokenBackend(files)
    differing: dict[int, str] = {}
    for context in contexts:
        # A text tests a single code point, so that a difference is due to it.
        for first_index in range(0, len(CODE_POINTS), BATCH):
            points = CODE_POINTS[first_index : first_index + BATCH]
            texts = [context.replace("{}", chr(point)) for point in points]
            column: pa.LargeStringArray = pa.array(texts, pa.large_string())
            # Both backends encode the same texts.
            all_ids = gigatoken.encode(column).rows()
            all_expected = reference.encode(column).rows()
            for point, ids, expected in zip(points, all_ids, all_expected, strict=True):
                if not np.array_equal(ids, expected):
                    differing.setdefault(point, context)
    return differing


def ranges(points: Iterable[int]) -> list[tuple[int, int]]:
    """Return code points as ranges (first, last)."""
    point_ranges: list[tuple[int, int]] = []
    for point in sorted(points):
        # Extend the last range, or begin a new one.
        if point_ranges and point_ranges[-1][1] == point - 1:
            first, _ = point_ranges[-1]
            point_ranges[-1] = (first, point)
        else:
            point_ranges.append((point, point))
    return point_ranges


def main(names: list[str]) -> None:
    """Test schemes and print the ranges of their differences.

    Args:
        names: Names of the schemes; empty: all.
    """
    schemes = {
        "byte-level": glue_tokenizer(None),
        "nfc": glue_tokenizer(SPLIT_REGEXES["qwen-2"], nfc=True),
    }
    for scheme, regex in SPLIT_REGEXES.items():
        schemes[scheme] = glue_tokenizer(regex)
    for scheme, files in schemes.items():
        if names and scheme not in names:
            continue
        start_time = time.perf_counter()
        # Normalization has its own contexts.
        contexts = NFC_CONTEXTS if scheme == "nfc" else CONTEXTS
        differing = differing_points(files, contexts)
        seconds = time.perf_counter() - start_time
        print(f"{scheme}: {len(differing)} code points, {seconds:.0f} s", flush=True)
        for first, last in ranges(differing):
            print(f"    (0x{first:X}, 0x{last:X}),  # {differing[first]!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
