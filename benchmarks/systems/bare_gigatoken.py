"""The floor: read JSON Lines, encode with gigatoken, write raw ids.

No checks, no packing, no compression, no hashes. Every choice is the cheapest in CPU
seconds of those measured: pyarrow's parser (against polars and orjson), one thread, ids
cast to uint16 where they fit (casting costs less than writing twice the bytes). It
writes `ids.bin` and `lengths.bin` (int64, ids per document).
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import gigatoken
import numpy as np
import pyarrow as pa

from benchmarks.systems.arguments import Arguments, parse
from benchmarks.systems.json_lines import read_texts


def main(job: Arguments) -> None:
    """Encodes every document of the job."""
    tokenizer = gigatoken.Tokenizer.from_json(
        (job.tokenizer / "tokenizer.json").read_bytes()
    )
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    with (
        (job.output / "ids.bin").open("wb") as ids,
        (job.output / "lengths.bin").open("wb") as lengths,
    ):
        for texts in read_texts(job.files):
            encoded: Any = tokenizer.encode_batch(
                _as_awkward(texts), parallel=False
            ).layout
            ids.write(encoded.content.data.astype(dtype))
            lengths.write(np.diff(encoded.offsets.data).astype(np.int64))


def _as_awkward(texts: pa.LargeStringArray) -> ak.Array:
    """The same memory as an awkward array of strings, which is what gigatoken takes
    without copying.
    """
    _, offsets, data = texts.buffers()
    characters = ak.contents.NumpyArray(
        np.frombuffer(data, np.uint8), parameters={"__array__": "char"}
    )
    starts = ak.index.Index64(np.frombuffer(offsets, np.int64)[: len(texts) + 1])
    return ak.Array(
        ak.contents.ListOffsetArray(
            starts, characters, parameters={"__array__": "string"}
        )
    )


if __name__ == "__main__":
    main(parse())
