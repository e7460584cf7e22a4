"""Compare the token ids of tokenizer backends, or of two versions of `tokenizers`.

    python benchmarks/check_ids.py engines DATA

compares the backend that a build chooses with `tokenizers`, on every document of the
corpora. `tokenizers` 0.23 encodes a few MB per CPU second: 65 MB take about two minutes
for each tokenizer and mode.

    python benchmarks/check_ids.py write DATA IDS.npz      # in each environment
    python benchmarks/check_ids.py compare OLD.npz NEW.npz

`write` stores a hash of the ids of each document and of each random string, for all
tokenizers of DATA, by the installed `tokenizers`. `compare` counts the differences of
two such files.

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

from tokenlake.base.arrays import Int32, UInt64, text_of_strings
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.backends import ReferenceBackend
from tokenlake.etl.tokenizers.encoder import Encoded, Encoder
from tokenlake.etl.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.etl.tokenizers.fingerprint import adversarial_texts
from tokenlake.etl.tokenizers.gate import choose_encoder

HUB_TOKENIZERS = ("openai-community/gpt2", "meta-llama/Llama-2-7b-hf")
MODES = ("literal", "encode")
"""Treatments of special tokens in text: as plain text, or as control tokens."""

ROWS = 50
"""Number of texts per call."""

RANDOM_STRINGS = 42_500
"""Number of strings for each tokenizer, apart from those of all code points."""

POINTS_IN_STRING = 24
"""Number of code points per string, in the strings that cover all code points."""

_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_FIRST_PRIVATE = 0xE000
"""First code point of those that rarely occur in text: private use and other planes."""

ALPHABETS = (
    "abcXYZ 019.,'\n\t",
    "e\u0301\u0302\u0323 \u1100\u1161\u11a8q",
    " \u00a0\u3000\u2028\u200b\r\n\t\u0085",
    "\u4f60\u597d\u3002 \u3042\u30a2\uac00x1",
    "\U0001f600\u200d\ufe0f\U0001f1eb<>|_/-'\u2019sS",
    "\u2581 a<0x41></s>\u2581",
    "\u0661\u00b2\u01c5\u02b0\u0915\u093f\u0e01\u0e33 A",
)
"""Characters of random strings. A string takes all characters from one alphabet."""


def main() -> int:
    """Run the command of the command line; return 1 if ids differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # 1. Parse the command line.
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
    options = parser.parse_args()
    # 2. Run the command.
    if options.command == "write":
        write_hashes(options.data, options.ids, options.every)
        return 0
    if options.command == "engines":
        differing = compare_backends(options.data)
    else:
        differing = compare_versions(options.old, options.new)
    return 1 if differing else 0


def corpus(data: Path) -> pa.LargeStringArray:
    """Return all documents of the corpora."""
    paths = sorted((data / "corpora").glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(path, columns=["text"]) for path in paths])
    text = table["text"].cast(pa.large_string()).combine_chunks()
    # Some releases of pyarrow return an array, others a chunked array.
    return text if isinstance(text, pa.Array) else text.chunk(0)


def tokenizers_of(data: Path) -> Iterator[TokenizerFiles]:
    """Yield the tokenizers of a folder of data. They are decompressed one by one."""
    os.environ |= {"HF_HOME": str(data / "hf"), "HF_HUB_OFFLINE": "1"}
    for tokenizer_name in HUB_TOKENIZERS:
        yield load_tokenizer(tokenizer_name)
    for path in sorted((data / "tokenizers").glob("*/tokenizer.json.xz")):
        with lzma.open(path) as compressed_file:
            tokenizer_json = compressed_file.read()
        yield TokenizerFiles(
            name=path.parent.name, files={"tokenizer.json": tokenizer_json}
        )


def write_hashes(data: Path, target: Path, every: int) -> None:
    """Write hashes of the ids of all texts by the installed `tokenizers`.

    The file has an array uint64[texts] for each tokenizer and mode.

    Args:
        data: Folder of the corpora and tokenizers.
        target: File to write.
        every: Step between the documents that are hashed; 1: all.
    """
    all_documents = corpus(data)
    documents = all_documents.take(pa.array(range(0, len(all_documents), every)))
    hashes: dict[str, UInt64] = {}
    for files in tokenizers_of(data):
        # The strings depend on the added tokens of the tokenizer.
        strings = text_of_strings([*random_strings(files), *strings_of_all_points()])
        for mode in MODES:
            start_time = time.process_time()
            try:
                reference = ReferenceBackend(files, literal=mode == "literal")
            except TokenizerError as error:
                print(f"{files.name} {mode}: {error}", flush=True)
                continue
            hashes[f"{files.name} {mode} strings"] = hashes_of(reference, strings)
            # Documents are hashed in one mode only.
            if mode == "literal":
                hashes[f"{files.name} {mode} documents"] = hashes_of(
                    reference, documents
                )
            seconds = time.process_time() - start_time
            print(f"{files.name} {mode}: {seconds:.1f} CPU s", flush=True)
    np.savez(target, version=np.array(version("tokenizers")), **hashes)


def random_strings(files: TokenizerFiles) -> list[str]:
    """Return strings on which tokenizers are likely to differ.

    They are the same in every run.
    """
    generator = random.Random(34)
    added_tokens = [token["content"] for token in files.added_tokens]
    strings = adversarial_texts()
    # Every added token occurs inside a word and after a space.
    strings = [*strings, *(f"a{token}b {token}" for token in added_tokens)]
    # Characters of one alphabet, sometimes with an added token, and sometimes after a
    # rare character.
    while len(strings) < RANDOM_STRINGS:
        alphabet = generator.choice(ALPHABETS)
        pieces = [generator.choice(alphabet) for _ in range(generator.randrange(1, 40))]
        if added_tokens and generator.random() < 0.2:
            place = generator.randrange(len(pieces))
            pieces.insert(place, generator.choice(added_tokens))
        if generator.random() < 0.3:
            point = generator.randrange(_FIRST_PRIVATE, _CODE_POINTS)
            pieces.insert(0, chr(point))
        strings.append("".join(pieces))
    return strings


def strings_of_all_points() -> Iterator[str]:
    """Yield strings that together hold every code point.

    Each code point follows a letter, a digit and a space.
    """
    points = [point for point in range(_CODE_POINTS) if point not in _SURROGATES]
    for first_index in range(0, len(points), POINTS_IN_STRING):
        pieces: list[str] = []
        # 24 code points fit into a string of moderate length.
        for point in points[first_index : first_index + POINTS_IN_STRING]:
            character = chr(point)
            pieces.append(f"a{character}1{character} {character}")
        yield "".join(pieces)


def hashes_of(reference: ReferenceBackend, text: pa.LargeStringArray) -> UInt64:
    """Return a hash of the ids of each text, uint64[n]."""
    hashes: list[int] = []
    for first_row in range(0, len(text), ROWS):
        for ids in reference.encode(text.slice(first_row, ROWS)).rows():
            hashes.append(xxhash.xxh3_64_intdigest(ids.tobytes()))
    return np.array(hashes, np.uint64)


def compare_versions(old: Path, new: Path) -> int:
    """Print and return the number of texts with other ids in another version.

    Args:
        old: Hashes of one version of `tokenizers`.
        new: Hashes of another version.
    """
    old_hashes = np.load(old)
    new_hashes = np.load(new)
    # The files also hold the version of `tokenizers`.
    old_version = old_hashes["version"]
    new_version = new_hashes["version"]
    print(f"tokenizers {old_version} and {new_version}: texts with other ids")
    total = 0
    for array_name in old_hashes.files:
        if array_name == "version":
            continue
        old_array = old_hashes[array_name]
        if array_name not in new_hashes.files:
            print(f"{array_name}: {len(old_array):,}, refused by {new_version}")
            continue
        # Hashes are in the order of the texts. The first differing texts are named.
        differing = np.flatnonzero(old_array != new_hashes[array_name])
        examples = differing[:5].tolist() or ""
        print(f"{array_name}: {len(old_array):,}, {len(differing)} differ {examples}")
        total += len(differing)
    return total


def compare_backends(data: Path) -> int:
    """Compare backends with all tokenizers; return the number of documents that differ.

    A line is printed for each tokenizer and mode.
    """
    text = corpus(data)
    differing = 0
    for files in tokenizers_of(data):
        for mode in MODES:
            differing += compare(files, mode, text)
    return differing


def compare(files: TokenizerFiles, mode: str, text: pa.LargeStringArray) -> int:
    """Encode each document with both backends; return the number of differences.

    Args:
        files: Tokenizer.
        mode: Treatment of special tokens, one of :data:`MODES`.
        text: Documents.
    """
    # 1. Load the backend that a build of this size chooses, and the reference.
    choice, _ = choose_encoder(
        files, "auto", mode, size=text.nbytes, add_special_tokens=False
    )
    chosen = Encoder(files, engine=choice.engine, special_tokens_in_text=mode)
    reference = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)
    # 2. Encode the documents in batches by both, and count the differences.
    chosen_seconds = 0.0
    reference_seconds = 0.0
    token_count = 0
    differing = 0
    for first_row in range(0, len(text), ROWS):
        batch = text.slice(first_row, ROWS)
        start_time = time.process_time()
        encoded = chosen.encode(batch)
        middle = time.process_time()
        expected = reference.encode(batch)
        chosen_seconds += middle - start_time
        reference_seconds += time.process_time() - middle
        token_count += len(expected.ids)
        differing += _count_differing(encoded, expected)
    print(
        f"{files.name} {mode}: {choice.engine}, {len(text)} documents, {token_count} tokens, {differing} differ; "
        f"CPU {chosen_seconds:.1f} s against {reference_seconds:.1f} s",
        flush=True,
    )
    return differing


def _count_differing(encoded: Encoded, expected: Encoded) -> int:
    """Return the number of rows with different ids."""
    # Compare all rows at once, since nearly all batches are equal.
    if np.array_equal(encoded.offsets, expected.offsets) and np.array_equal(
        encoded.ids, expected.ids
    ):
        return 0
    differing = 0
    for ids, expected_ids in zip(_rows(encoded), _rows(expected), strict=True):
        if not np.array_equal(ids, expected_ids):
            differing += 1
    return differing


def _rows(encoded: Encoded) -> list[Int32]:
    """Return the ids of each text."""
    return np.split(encoded.ids, encoded.offsets[1:-1])


if __name__ == "__main__":
    sys.exit(main())
