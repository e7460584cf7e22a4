"""Bare loop of gigatoken: read JSON Lines, encode, write raw ids.

It is a lower bound of the costs of a build: it does not check, pack, compress or hash.
Every step is done in the cheapest measured way: pyarrow's parser (compared with polars
and orjson), one thread, and ids as uint16 if they fit, since casting costs less than
writing twice as many bytes.

The output is `ids.bin` and `lengths.bin` (int64, number of ids of each document).
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa

from benchmarks.systems.arguments import Arguments, parse
from benchmarks.systems.json_lines import read_texts


def main(arguments: Arguments) -> None:
    """Encode every document of the input."""
    tokenizer_json = (arguments.tokenizer / "tokenizer.json").read_bytes()
    tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json)
    # 2 bytes per id if all ids fit.
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    with (
        (arguments.output / "ids.bin").open("wb") as ids,
        (arguments.output / "lengths.bin").open("wb") as lengths,
    ):
        for texts in read_texts(arguments.files):
            encoded = tokenizer.encode_batch(_as_awkward(texts), parallel=False)
            layout: Any = encoded.layout
            ids.write(layout.content.data.astype(dtype))
            lengths.write(np.diff(layout.offsets.data).astype(np.int64))


def _as_awkward(texts: pa.LargeStringArray) -> ak.Array:
    """Return texts as an awkward array, which shares their memory.

    gigatoken takes awkward arrays of strings without a copy.
    """
    _, offsets, data = texts.buffers()
    characters = ak.contents.NumpyArray(
        np.frombuffer(data, np.uint8), parameters={"__array__": "char"}
    )
    bounds = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
    strings = ak.contents.ListOffsetArray(
        ak.index.Index64(bounds), characters, parameters={"__array__": "string"}
    )
    return ak.Array(strings)


if __name__ == "__main__":
    main(parse())
