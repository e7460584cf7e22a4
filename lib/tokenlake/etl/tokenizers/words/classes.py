"""Members of character classes, as the installed `tokenizers` sees them.

The Unicode tables of a regular expression engine change with its version. So the
members of a class are not computed here. `tokenizers` splits one text of all code
points, first at every change of membership in any of the classes:

1. A sequence of splits at ``(class)+``, one per class, parts the text into runs. Within
   a run all code points belong to the same classes.
2. For each class, removing its members from the text of the runs' first code points
   shows which runs belong to it.

Example: the classes ``[a-y]`` and ``[c-z]`` part "abcdyz" into the runs "ab", "cdy" and
"z"; removing the first class from "acz" leaves "z", removing the second leaves "a".

Runs that belong to the same classes share a *symbol*, a small number that the automaton
reads in the place of the code point. All of it takes 0.3 CPU seconds and is kept on
disk for each version of `tokenizers`.

tokenizers 1.0 splits by the expressions of some models only. There the classes cannot
be read, and the reference, which is as fast as cached words then, encodes all text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Bools, Int64, UInt8
from tokenlake.base.cache.disk import DiskCache, default_folder
from tokenlake.etl.tokenizers.words.expressions import UnsupportedError
from tokenlake.runtime.tokenizer_guard.generation import (
    exports_parts,
    load_raw,
    tokenizers_version,
)

POINTS: Final = 0x110000
"""Number of code points."""
_SURROGATES: Final = range(0xD800, 0xE000)
# Code points that are split at a time: the cost grows with the square of a text's
# length.
_PIECE: Final = 4096
_CACHE_BYTES: Final = 64 << 20
# A symbol is a uint8.
_MOST_SYMBOLS: Final = 250
# Begins the source of a class that is not a regular expression.
_STAGE: Final = "\0"


@final
@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of some classes.

    Attributes:
        of_point: uint8[0x110000], the symbol of each code point.
        members: bool[symbols, classes], whether the code points of a symbol belong to a
            class.
    """

    of_point: UInt8
    members: Bools


def symbols_of(sources: Sequence[str], cached: DiskCache | None = None) -> Symbols:
    """Return the symbols of character classes.

    Args:
        sources: Regular expressions that match one character each.
        cached: Cache of earlier results; None for the cache folder of the user.

    Raises:
        UnsupportedError: `tokenizers` does not accept a class, or does not split by
            classes at all (from 1.0 on), or there are too many symbols.
    """
    if not exports_parts():
        # It knows the expressions of some models as a whole, and no others.
        raise UnsupportedError(
            f"tokenizers {tokenizers_version()} does not show the members of character classes"
        )
    if cached is None:
        cached = DiskCache(default_folder() / "characters", max_bytes=_CACHE_BYTES)
    # The members depend on the expressions and on the version of `tokenizers` alone.
    identity = json.dumps([tokenizers_version(), *sources])
    cache_key = hashlib.sha256(identity.encode()).hexdigest()
    hit = cached.get(cache_key)
    if hit is None:
        starts, symbols, members = _ask(sources)
        cached.put(
            cache_key, {"starts": starts, "symbols": symbols, "members": members}
        )
    else:
        cached_arrays: dict[str, Any] = hit[0]
        starts = cached_arrays["starts"]
        symbols = cached_arrays["symbols"]
        members = cached_arrays["members"]
    # A run reaches to the beginning of the next one.
    of_point = np.repeat(symbols, np.diff(np.append(starts, POINTS)))
    return Symbols(of_point, members.astype(np.bool_))


def _ask(sources: Sequence[str]) -> tuple[Int64, UInt8, UInt8]:
    """Return the runs of code points, their symbols and the members of the classes.

    Returns:
        int64[runs], first code point of each run; uint8[runs], its symbol; and
        uint8[symbols, classes], 1 for a symbol whose code points belong to a class.
    """
    starts = _runs(sources)
    # Without surrogates, which no text holds; they share the symbol of the run before
    # them.
    points = starts.tolist()
    run_starts = "".join(map(chr, points))
    members = np.zeros((len(points), len(sources)), np.uint8)
    for class_number, source in enumerate(sources):
        remaining = set(_without(source, run_starts))
        members[:, class_number] = [
            character not in remaining for character in run_starts
        ]
    # Runs with the same row of members share a symbol.
    distinct, symbols = np.unique(members, axis=0, return_inverse=True)
    if len(distinct) > _MOST_SYMBOLS:
        raise UnsupportedError(
            f"its classes distinguish {len(distinct)} kinds of characters"
        )
    return starts, symbols.reshape(-1).astype(np.uint8), np.ascontiguousarray(distinct)


def stage_class(stage: dict[str, Any]) -> str:
    """Return the source of the class of the characters that a pre-tokenizer isolates.

    Args:
        stage: A stage of a tokenizer.json that makes each character of a class a piece
            of its own, such as Digits. Its Unicode tables are not those of the
            expressions.
    """
    return _STAGE + json.dumps(stage)


def _runs(sources: Sequence[str]) -> Int64:
    """Return the first code point of each run with the same classes: int64[runs]."""
    stages: list[dict[str, Any]] = []
    for source in sources:
        if source.startswith(_STAGE):
            stages.append(json.loads(source.removeprefix(_STAGE)))
        else:
            stages.append(_split(f"(?:{source})+", "Isolated"))
    splitter = _splitter(stages)
    starts = np.zeros(POINTS, np.bool_)
    for characters in _all_characters():
        for _, (piece_start, _) in splitter.pre_tokenize_str(characters):
            starts[ord(characters[piece_start])] = True
    return np.flatnonzero(starts)


def _without(source: str, text: str) -> str:
    """Return a text without the members of a class."""
    if source.startswith(_STAGE):
        # A character that is not isolated stays with the letter in front of it. So a
        # piece is "axayaz" or an isolated character, of which every second is taken.
        splitter = _splitter([json.loads(source.removeprefix(_STAGE))])
        spaced_text = "".join(f"a{character}" for character in text)
        remaining: list[str] = []
        for piece, _ in splitter.pre_tokenize_str(spaced_text):
            remaining.append(piece[1::2])
        return "".join(remaining)
    splitter = _splitter([_split(source, "Removed")])
    pieces = splitter.pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


def _all_characters() -> list[str]:
    """Return texts that together hold every code point but surrogates."""
    texts: list[str] = []
    for begin in range(0, POINTS, _PIECE):
        characters: list[str] = []
        for point in range(begin, begin + _PIECE):
            if point not in _SURROGATES:
                characters.append(chr(point))
        if characters:
            texts.append("".join(characters))
    return texts


def _split(expression: str, behavior: str) -> dict[str, Any]:
    """Return the stage of a tokenizer.json that splits by an expression."""
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": behavior,
        "invert": False,
    }


def _splitter(stages: Sequence[dict[str, Any]]) -> Any:
    """Return the pre-tokenizer of `tokenizers` for stages of a tokenizer.json."""
    # A tokenizer.json needs a model, which this one never runs.
    spec = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(stages)},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        tokenizer = load_raw(json.dumps(spec).encode(), spec)
    except Exception as error:
        # `tokenizers` raises bare Exception for an expression that its engine refuses.
        raise UnsupportedError(
            f"`tokenizers` does not accept a character class: {error}"
        ) from error
    return tokenizer.pre_tokenizer
