"""Parameters and results of the compiled loops that are called from Python.

Machine code does not check its arguments. So the callers check them against this table
before a call, and the compiler builds its functions from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

NUMBER: Final = "int"
"""The type of a parameter that is a number."""


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters and results of a loop.

    Attributes:
        module: Module that defines the loop, below `tokenlake.etl.tokenizers`.
        parameters: Types of its parameters, in order: "int", the dtype of an array, or
            "uint64x2" for an array of two columns.
        results: Number of integers that it returns.
    """

    module: str
    parameters: tuple[str, ...]
    results: int


def _signature(module: str, parameters: str, results: int = 0) -> Signature:
    """Return the signature of parameters that are written in one string."""
    return Signature(module, tuple(parameters.split()), results)


SIGNATURES: Final = {
    # Loops of the segment cache that the words use as well.
    "lay_out": _signature(
        "segment_kernels", "uint8 int64 int64 uint8 int int uint8 int64", 1
    ),
    "cut": _signature(
        "segment_kernels",
        "uint8 int64 int int int uint8 uint64 uint8 int int32 int32",
        3,
    ),
    "add_pairs": _signature("segment_kernels", "uint64 int64 int64"),
    "add_pieces": _signature("unigram_kernels", "uint64x2 uint8 int64 int32"),
    # Splitting and looking up, in the order in which a block passes them.
    "split": _signature(
        "words.kernels",
        "uint8 int64 int int int uint16 uint16 uint8 int uint8 uint8 int64 int64",
        3,
    ),
    "look_up": _signature(
        "words.kernels",
        "uint8 int64 int int uint64x2 int uint8 int32 uint64 int64 int",
        2,
    ),
    "add_words": _signature(
        "words.kernels",
        "uint8 int64 int64 int int64 int32 uint64x2 uint8 int32 int uint64",
        1,
    ),
    "move_words": _signature("words.kernels", "uint64x2 uint64x2"),
    "settle": _signature("words.kernels", "uint64 int uint64", 1),
    "write_ids": _signature(
        "words.kernels", "uint64 int int32 int int int64 int32 int int64", 1
    ),
    # The texts and the added tokens, before anything is split.
    "find_unsure": _signature("words.kernels", "uint8 int64 uint8 uint8"),
    "find_added": _signature(
        "words.kernels",
        "uint8 int64 int64 uint8 uint64x2 int32 uint8 int64 int64 int64",
        1,
    ),
    # Byte pair encoding of new words.
    "add_whole_words": _signature("words.kernels", "uint8 int64 int32"),
    "add_merges": _signature("words.kernels", "uint64x2 uint64 int32 int32 int32"),
    "fill_byte_pairs": _signature("words.kernels", "uint64x2 uint64 int32 int64"),
    "merge_words": _signature(
        "words.kernels",
        "uint8 int64 int64 uint8 int64 int32 int32 int32 int32 int64 uint64x2 uint64 int64 int64 int32",
        1,
    ),
}
"""The loops that are called from Python."""


def symbol_of(name: str) -> str:
    """Return the name of a loop's function in the object file."""
    return f"tokenlake_{name}"
