"""Find the code points on which gigatoken and `tokenizers` split words differently.

    python benchmarks/unicode_sweep.py [SCHEME ...]

Every code point is put into short contexts and encoded by both engines with a tokenizer
made to show splits: its only merges glue an ASCII probe character, or the last byte of
a character, to the byte beside it, so two neighbours become one token exactly when no
split lies between them. Prints, for every scheme, the ranges that belong into
`tokenlake/etl/tokenizers/allowlist.py`; some minutes a scheme.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tokenlake.etl.tokenizers.allowlist import SPLIT_REGEXES
from tokenlake.etl.tokenizers.backends import GigatokenBackend, ReferenceBackend
from tokenlake.etl.tokenizers.files import TokenizerFiles

CODE_POINTS = [point for point in range(0x80, 0x110000) if not 0xD800 <= point < 0xE000]
ASCII = "aAsx1. \n'/\t"
CONTEXTS = (
    *(
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
    ),
    *("{}\u0301a", "a{}\u0301", " {}/\n"),
)
# Normalization: two marks of different combining classes show a class that only one
# engine knows.
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
BATCH = 50_000


def byte_alphabet() -> list[str]:
    """Return GPT-2's character for each byte value."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]


def glue_tokenizer(regex: str | None, *, nfc: bool = False) -> TokenizerFiles:
    """Return a byte-level tokenizer whose merges reveal where its pre-tokenizer
    splits.
    """
    alphabet = byte_alphabet()
    continuing, leading = range(0x80, 0xC0), range(0xC2, 0xF5)
    probes = [ord(char) for char in ASCII]
    pairs = [(left, right) for left in continuing for right in leading]
    pairs += [(probe, lead) for probe in probes for lead in leading]
    pairs += [(last, probe) for last in continuing for probe in probes]
    pairs += [(left, right) for left in probes for right in probes]
    merges = [[alphabet[left], alphabet[right]] for left, right in pairs]
    tokens = [*alphabet, *("".join(merge) for merge in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    split = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }
    sequence = {
        "type": "Sequence",
        "pretokenizers": [split, {**byte_level, "use_regex": False}],
    }
    spec = {
        "added_tokens": [],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {**byte_level, "use_regex": True}
        if regex is None
        else sequence,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return TokenizerFiles(
        name="glue",
        files={"tokenizer.json": json.dumps(spec, ensure_ascii=False).encode()},
    )


def differing(files: TokenizerFiles, contexts: Iterable[str]) -> dict[int, str]:
    """Return the code points that encode differently, each with the first context
    that showed it.
    """
    reference, fast = ReferenceBackend(files), GigatokenBackend(files)
    found: dict[int, str] = {}
    for context in contexts:
        for first in range(0, len(CODE_POINTS), BATCH):
            points = CODE_POINTS[first : first + BATCH]
            texts = [context.replace("{}", chr(point)) for point in points]
            column: pa.LargeStringArray = pa.array(texts, pa.large_string())
            pairs = zip(
                points,
                fast.encode(column).rows(),
                reference.encode(column).rows(),
                strict=True,
            )
            for point, made, expected in pairs:
                if not np.array_equal(made, expected):
                    found.setdefault(point, context)
    return found


def ranges(points: Iterable[int]) -> list[tuple[int, int]]:
    """Return the points as inclusive ranges."""
    made: list[tuple[int, int]] = []
    for point in sorted(points):
        if made and made[-1][1] == point - 1:
            made[-1] = (made[-1][0], point)
        else:
            made.append((point, point))
    return made


def main(names: list[str]) -> None:
    """Sweep the named schemes, or all."""
    schemes = {
        "byte-level": glue_tokenizer(None),
        "nfc": glue_tokenizer(SPLIT_REGEXES["qwen-2"], nfc=True),
    }
    schemes |= {name: glue_tokenizer(regex) for name, regex in SPLIT_REGEXES.items()}
    for name, files in schemes.items():
        if names and name not in names:
            continue
        started = time.perf_counter()
        found = differing(files, NFC_CONTEXTS if name == "nfc" else CONTEXTS)
        print(
            f"{name}: {len(found)} code points, {time.perf_counter() - started:.0f} s",
            flush=True,
        )
        for first, last in ranges(found):
            print(f"    (0x{first:X}, 0x{last:X}),  # {found[first]!r}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
