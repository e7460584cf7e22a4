"""Compare token ids: of the chosen engine with the reference, and of the reference in
two versions of `tokenizers`.

    python benchmarks/check_ids.py engines DATA

compares the engine that a build chooses with `tokenizers` on every document of the
corpora. The reference of tokenizers 0.23 encodes a few MB per CPU second, so 65 MB take
about two minutes for each tokenizer and mode.

    python benchmarks/check_ids.py write DATA IDS.npz      # in each environment
    python benchmarks/check_ids.py compare OLD.npz NEW.npz

writes a hash of the ids of every document and of every made-up string, for all
tokenizers of DATA, as the installed `tokenizers` gives them; and counts where two such
files differ.

DATA holds `corpora/*.parquet` (column `text`), `hf/` (a Hub cache) and
`tokenizers/*/tokenizer.json.xz`.
"""

from __future__ import annotations

import argparse
import lzma
import os
import random
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenlake.base.arrays import UInt64, text_of_strings
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.backends import ReferenceBackend
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.etl.tokenizers.fingerprint import adversarial_texts
from tokenlake.etl.tokenizers.gate import choose_encoder

HUB_TOKENIZERS = ("openai-community/gpt2", "meta-llama/Llama-2-7b-hf")
ROWS = 50
RANDOM_STRINGS = 42_500
"""Made-up strings of each tokenizer."""
POINTS_IN_STRING = 24
"""Code points of a string that together hold every code point."""
ALPHABETS = (
    "abcXYZ 019.,'\n\t",
    "e\u0301\u0302\u0323 \u1100\u1161\u11a8q",
    " \u00a0\u3000\u2028\u200b\r\n\t\u0085",
    "\u4f60\u597d\u3002 \u3042\u30a2\uac00x1",
    "\U0001f600\u200d\ufe0f\U0001f1eb<>|_/-'\u2019sS",
    "\u2581 a<0x41></s>\u2581",
    "\u0661\u00b2\u01c5\u02b0\u0915\u093f\u0e01\u0e33 A",
)


def main() -> int:
    """Run a command; return 1 where ids differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    engines = commands.add_parser("engines")
    engines.add_argument("data", type=Path)
    write = commands.add_parser("write")
    write.add_argument("data", type=Path)
    write.add_argument("ids", type=Path)
    write.add_argument(
        "--every", type=int, default=1, help="take every n-th document of the corpora"
    )
    comparison = commands.add_parser("compare")
    comparison.add_argument("old", type=Path)
    comparison.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "engines":
        return min(1, compare_engines(arguments.data))
    if arguments.command == "write":
        write_hashes(arguments.data, arguments.ids, arguments.every)
        return 0
    return min(1, compare_versions(arguments.old, arguments.new))


def corpus(data: Path) -> pa.LargeStringArray:
    """Return all documents of the corpora."""
    paths = sorted((data / "corpora").glob("*.parquet"))
    text = pa.concat_tables([pq.read_table(path, columns=["text"]) for path in paths])[
        "text"
    ]
    batches = text.cast(pa.large_string()).combine_chunks()
    return batches if isinstance(batches, pa.Array) else batches.chunk(0)


def tokenizers_of(data: Path) -> Iterator[TokenizerFiles]:
    """Yield the tokenizers of a folder of data, each unpacked when it is needed."""
    os.environ |= {"HF_HOME": str(data / "hf"), "HF_HUB_OFFLINE": "1"}
    for name in HUB_TOKENIZERS:
        yield load_tokenizer(name)
    for path in sorted((data / "tokenizers").glob("*/tokenizer.json.xz")):
        with lzma.open(path) as file:
            tokenizer_json = file.read()
        yield TokenizerFiles(
            name=path.parent.name, files={"tokenizer.json": tokenizer_json}
        )


def write_hashes(data: Path, target: Path, every: int) -> None:
    """Write hashes of the ids of all texts by the installed `tokenizers`:
    uint64[texts] for each tokenizer and mode.
    """
    documents = corpus(data).take(pa.array(range(0, len(corpus(data)), every)))
    hashes: dict[str, UInt64] = {}
    for files in tokenizers_of(data):
        strings = text_of_strings([*made_up_strings(files), *strings_of_all_points()])
        for mode in ("literal", "encode"):
            started = time.process_time()
            try:
                reference = ReferenceBackend(files, literal=mode == "literal")
            except TokenizerError as error:
                print(f"{files.name} {mode}: {error}", flush=True)
                continue
            hashes[f"{files.name} {mode} strings"] = hashes_of(reference, strings)
            if mode == "literal":
                hashes[f"{files.name} {mode} documents"] = hashes_of(
                    reference, documents
                )
            print(
                f"{files.name} {mode}: {time.process_time() - started:.1f} CPU s",
                flush=True,
            )
    np.savez(target, version=np.array(version("tokenizers")), **hashes)


def made_up_strings(files: TokenizerFiles) -> list[str]:
    """Return strings around the borders where tokenizers decide differently, the
    same in every run.
    """
    generator = random.Random(34)
    added = [token["content"] for token in files.added_tokens]
    strings = [*adversarial_texts(), *(f"a{token}b {token}" for token in added)]
    while len(strings) < RANDOM_STRINGS:
        alphabet = generator.choice(ALPHABETS)
        pieces = [generator.choice(alphabet) for _ in range(generator.randrange(1, 40))]
        if added and generator.random() < 0.2:
            pieces.insert(generator.randrange(len(pieces)), generator.choice(added))
        if generator.random() < 0.3:
            pieces.insert(0, chr(generator.randrange(0xE000, 0x110000)))
        strings.append("".join(pieces))
    return strings


def strings_of_all_points() -> Iterator[str]:
    """Yield strings that together hold every code point, each after a letter, a
    digit and a space.
    """
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    for first in range(0, len(points), POINTS_IN_STRING):
        characters = map(chr, points[first : first + POINTS_IN_STRING])
        yield "".join(
            f"a{character}1{character} {character}" for character in characters
        )


def hashes_of(reference: ReferenceBackend, text: pa.LargeStringArray) -> UInt64:
    """Return a hash of the ids of every text: uint64[n]."""
    hashes: list[int] = []
    for first in range(0, len(text), ROWS):
        rows = reference.encode(text.slice(first, ROWS)).rows()
        hashes += [xxhash.xxh3_64_intdigest(ids.tobytes()) for ids in rows]
    return np.array(hashes, np.uint64)


def compare_versions(old: Path, new: Path) -> int:
    """Print how many texts have other ids in another version; return how many."""
    before = np.load(old)
    after = np.load(new)
    print(
        f"tokenizers {before['version']} and {after['version']}: texts with other ids"
    )
    total = 0
    for name in before.files:
        if name == "version":
            continue
        if name not in after.files:
            print(f"{name}: {len(before[name]):,}, refused by {after['version']}")
            continue
        differing = np.flatnonzero(before[name] != after[name])
        print(
            f"{name}: {len(before[name]):,}, {len(differing)} differ {differing[:5].tolist() or ''}"
        )
        total += len(differing)
    return total


def compare_engines(data: Path) -> int:
    """Print a line per tokenizer and mode; return the number of documents that
    differ.
    """
    text = corpus(data)
    return sum(
        compare(files, mode, text)
        for files in tokenizers_of(data)
        for mode in ("literal", "encode")
    )


def compare(files: TokenizerFiles, mode: str, text: pa.LargeStringArray) -> int:
    """Encode every document with both engines and return how many differ."""
    choice, _ = choose_encoder(
        files, "auto", mode, size=text.nbytes, add_special_tokens=False
    )
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
        if not (
            np.array_equal(got.offsets, want.offsets)
            and np.array_equal(got.ids, want.ids)
        ):
            rows = zip(
                got.offsets[:-1],
                got.offsets[1:],
                want.offsets[:-1],
                want.offsets[1:],
                strict=True,
            )
            differing += sum(
                not np.array_equal(got.ids[a:b], want.ids[c:d]) for a, b, c, d in rows
            )
    print(
        f"{files.name} {mode}: {choice.engine}, {len(text)} documents, {tokens} tokens, {differing} differ; "
        f"CPU {seconds[0]:.1f} s against {seconds[1]:.1f} s",
        flush=True,
    )
    return differing


if __name__ == "__main__":
    sys.exit(main())
