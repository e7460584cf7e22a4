"""Compare the chosen engine with `tokenizers` on every document of the corpora.

    python benchmarks/check_ids.py DATA

DATA holds `corpora/*.parquet` (column `text`) and `hf/` (a Hub cache). The reference encodes a few MB per CPU
second, so 65 MB take about two minutes for each of the two tokenizers and two modes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import load_tokenizer
from tokenlake.tokenizers.gate import choose_encoder

TOKENIZERS = ("openai-community/gpt2", "meta-llama/Llama-2-7b-hf")
ROWS = 50


def main(data: Path) -> int:
    """Print a line per tokenizer and mode; return the number of documents that differ."""
    os.environ |= {"HF_HOME": str(data / "hf"), "HF_HUB_OFFLINE": "1"}
    paths = sorted((data / "corpora").glob("*.parquet"))
    text = pa.concat_tables([pq.read_table(path, columns=["text"]) for path in paths])["text"]
    batches = text.cast(pa.large_string()).combine_chunks()
    array = batches if isinstance(batches, pa.Array) else batches.chunk(0)
    return sum(compare(name, mode, array) for name in TOKENIZERS for mode in ("literal", "encode"))


def compare(name: str, mode: str, text: pa.LargeStringArray) -> int:
    """Encode every document with both engines and return how many differ."""
    files = load_tokenizer(name)
    choice, _ = choose_encoder(files, "auto", mode, add_special_tokens=False)
    chosen = Encoder(files, engine=choice.engine, special_tokens_in_text=mode)
    reference = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)
    seconds, tokens, differing = [0.0, 0.0], 0, 0
    for first in range(0, len(text), ROWS):
        batch = text.slice(first, ROWS)
        started = time.process_time()
        got = chosen.encode(batch)
        middle = time.process_time()
        want = reference.encode(batch)
        seconds[0] += middle - started
        seconds[1] += time.process_time() - middle
        tokens += len(want.ids)
        if not (np.array_equal(got.offsets, want.offsets) and np.array_equal(got.ids, want.ids)):
            rows = zip(got.offsets[:-1], got.offsets[1:], want.offsets[:-1], want.offsets[1:], strict=True)
            differing += sum(not np.array_equal(got.ids[a:b], want.ids[c:d]) for a, b, c, d in rows)
    print(
        f"{name} {mode}: {choice.engine}, {len(text)} documents, {tokens} tokens, {differing} differ; "
        f"CPU {seconds[0]:.1f} s against {seconds[1]:.1f} s",
        flush=True,
    )
    return differing


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1]))))
