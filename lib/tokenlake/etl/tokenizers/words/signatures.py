"""The parameters and results of the compiled loops that are called from Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

NUMBER: Final = "int"
"""The type of a parameter that is a number."""


@final
@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters and results of a loop.

    Attributes:
        module: The module that defines it, below `tokenlake.etl.tokenizers`.
        parameters: "int", the dtype of an array, or "uint64x2" for an array of two
            columns.
        results: How many integers it returns.
    """

    module: str
    parameters: tuple[str, ...]
    results: int


def _signature(module: str, parameters: str, results: int = 0) -> Signature:
    return Signature(module, tuple(parameters.split()), results)


SIGNATURES: Final = {
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
    "find_unsure": _signature("words.kernels", "uint8 int64 uint8 uint8"),
    "find_added": _signature(
        "words.kernels",
        "uint8 int64 int64 uint8 uint64x2 int32 uint8 int64 int64 int64",
        1,
    ),
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
