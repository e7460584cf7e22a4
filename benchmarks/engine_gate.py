"""Random tests of the tokenizer gate, and the costs of the gate.

    python -m benchmarks.engine_gate [--strings 60000] [--seed 0] [--only NAME ...] [--skip-cost]

Every tokenizer that runs on the fast backend encodes random strings with both backends.
The tokenizers are GPT-2 and Llama 2, if the folder named by TOKENLAKE_TEST_DATA has
them, and one trained tokenizer for each form of the allow-list. Hypothesis draws the
strings: all of Unicode, strings at which pre-tokenizers split, marks and compositions,
special tokens. The ids, with special tokens as text and as control tokens, and the
place of every token must be those of the reference. A difference is shrunk to the
smallest string, and the exit status is 1.

The table of costs has the CPU seconds for each tokenizer: of the choice of the backend
(loading included, without and with places), of building a shard of plain text, and the
share of the samples in the latter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.text import parquet_texts
from benchmarks.vocabularies import REAL, real_folder, shared_folder
from tests.tokenizers import tokenizer_samples as samples
from tokenlake.etl.in_process_pool import InProcessPool
from tokenlake.etl.runner import run_pending
from tokenlake.etl.session import BuildSession
from tokenlake.etl.tokenizers.allowlist import COMPOSING, SPLITTING
from tokenlake.etl.tokenizers.encoder import Encoder, Sampler
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.fingerprint import FINGERPRINT_TEXTS
from tokenlake.etl.tokenizers.gate import choose_encoder
from tokenlake.etl.unit.text import TextBuild

MODES = ("literal", "encode")
"""Treatments of special tokens in text: as plain text, or as control tokens."""

_WORDS = (
    "a",
    "Ab",
    "the",
    "don't",
    "I'LL",
    "x's",
    "\u017f",
    "\u01c5",
    "\u02b0",
    "\u0661",
    "\u00b2",
    "12",
    "1234",
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    " \n",
    "\t",
    "\u00a0",
    "\u3000",
    "\x00",
    "\u200b",
    "\u2581",
    "\u0085",
)
_SIGNS = (
    ".",
    "'",
    "''",
    "\u2019s",
    "--",
    "//\n",
    "!?\r\n",
    "$",
    "_",
    "\u0301",
    "\u0316",
    "\u0345",
    "\U0001f600",
)
_TOKENS = (
    "</s>",
    "<s>",
    "<unk>",
    "<|endoftext|>",
    "<0x0A>",
    "</",
    "e\u0301",
    "\u1100\u1161\u11a8",
    "\u0958",
    "\u212b",
)
BORDERS = _WORDS + _SPACES + _SIGNS + _TOKENS
"""Strings at which pre-tokenizers split, or special tokens and parts of them."""


def _guarded_characters() -> list[str]:
    """Return the first and last characters of the ranges that the gate guards."""
    characters: list[str] = []
    for first, last in (*SPLITTING, *COMPOSING):
        characters += [chr(first), chr(last)]
    return characters


GUARDED = _guarded_characters()
MARKS = st.characters(categories=("Mn", "Mc", "Me"))
ANY = st.characters(exclude_categories=("Cs",))
STRINGS = st.one_of(
    st.text(ANY, max_size=24),
    st.lists(st.sampled_from(BORDERS), max_size=12).map("".join),
    st.lists(st.one_of(st.sampled_from(BORDERS), ANY, MARKS), max_size=12).map("".join),
    st.lists(
        st.one_of(st.sampled_from(GUARDED), MARKS, st.sampled_from("aeK ")), max_size=8
    ).map("".join),
)
"""Strategy of the random strings."""

SHARD_BYTES = 64 << 20
"""Size of the shard from which no more files are added."""

_SAMPLE_TEXTS = 16
_SAMPLE_CHARACTERS = 1 << 14
"""Number and length of the documents that a worker gives to the gate."""


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """Counts of a random test of one tokenizer.

    Attributes:
        strings: Number of strings.
        tokens: Number of compared ids, in both modes.
        located: Number of strings whose places follow from the ids alone.
        seconds: CPU seconds.
    """

    strings: int
    tokens: int
    located: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GateCost:
    """CPU seconds of the gate and of a build.

    Attributes:
        gate: Seconds of choosing a backend.
        gate_with_places: Seconds of choosing a backend that also gives places.
        shard: Seconds of building a shard.
        sample_share: Share of the samples in the seconds of the shard.
    """

    gate: float
    gate_with_places: float
    shard: float
    sample_share: float


class BackendPair:
    """Fast backend and reference of a tokenizer, in one mode.

    Args:
        files: Tokenizer.
        mode: Treatment of special tokens, one of :data:`MODES`.
    """

    def __init__(self, files: TokenizerFiles, mode: str) -> None:
        self._fast = Encoder(
            files, engine="gigatoken", special_tokens_in_text=mode, sample_rate=0
        )
        self._reference = Encoder(
            files, engine="tokenizers", special_tokens_in_text=mode
        )

    def compare(self, texts: list[str]) -> int:
        """Return the number of ids of texts.

        Raises:
            AssertionError: Ids or places of the backends differ.
        """
        column = pa.array(texts, pa.large_string())
        encoded, starts, stops = self._fast.encode_places(column)
        expected, expected_starts, expected_stops = self._reference.encode_places(
            column
        )
        without_places = self._fast.encode(column)
        # The ids must be equal with and without places.
        is_equal = (
            np.array_equal(encoded.offsets, expected.offsets)
            and np.array_equal(encoded.ids, expected.ids)
            and np.array_equal(without_places.ids, expected.ids)
            and np.array_equal(starts, expected_starts)
            and np.array_equal(stops, expected_stops)
        )
        if not is_equal:
            raise AssertionError(f"the engines differ on {texts!r}")
        return len(encoded.ids)

    def located(self, texts: list[str]) -> int:
        """Return the number of texts whose places follow from the ids alone."""
        column = pa.array(texts, pa.large_string())
        encoded = self._fast.encode(column)
        sizes = self._fast._locator.sizes
        if sizes is None:
            return 0
        # Rows whose ids do not spell their text are not located.
        _, _, unlocated = sizes.places(column, encoded.offsets, encoded.ids)
        return len(texts) - len(unlocated)


def fuzz(
    files: TokenizerFiles,
    strings: int,
    first_seed: int,
    batch: int = 50,
    *,
    shrink: bool = True,
) -> FuzzResult:
    """Compare the backends on random strings, each in both modes.

    Args:
        files: Tokenizer.
        strings: Least number of strings.
        first_seed: Random seed.
        batch: Number of strings per example of Hypothesis.
        shrink: True to shrink a difference to the smallest string.

    Raises:
        AssertionError: The backends differ.
    """
    pairs = [BackendPair(files, mode) for mode in MODES]
    # Hypothesis neither stores examples nor limits the time. A new seed gives new
    # strings.
    phases = [Phase.generate]
    if shrink:
        phases.append(Phase.shrink)
    compared_strings = 0
    compared_tokens = 0
    located_strings = 0

    # Each example is a batch of strings, which amortizes the cost of a call.
    @seed(first_seed)
    @settings(
        max_examples=-(-strings // batch),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )
    @given(st.lists(STRINGS, min_size=batch, max_size=batch))
    def run(texts: list[str]) -> None:
        nonlocal compared_strings, compared_tokens, located_strings
        for pair in pairs:
            compared_tokens += pair.compare(texts)
        compared_strings += len(texts)
        located_strings += pairs[0].located(texts)

    start_time = time.process_time()
    run()
    return FuzzResult(
        strings=compared_strings,
        tokens=compared_tokens,
        located=located_strings,
        seconds=time.process_time() - start_time,
    )


class Stopwatch:
    """CPU seconds of the calls of a method.

    The method is replaced by a timed one inside the context.

    Args:
        owner: Class of the method.
        name: Name of the method.

    Attributes:
        seconds: CPU seconds of all calls so far.
    """

    def __init__(self, owner: type, name: str) -> None:
        self.seconds = 0.0
        self._owner = owner
        self._name = name
        self._method = getattr(owner, name)

    def __enter__(self) -> Stopwatch:
        def timed(*args: Any, **options: Any) -> Any:
            start_time = time.thread_time()
            try:
                return self._method(*args, **options)
            finally:
                self.seconds += time.thread_time() - start_time

        setattr(self._owner, self._name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._method)


def measure_cost(files: TokenizerFiles, documents: list[str], work: Path) -> GateCost:
    """Measure the gate, and a build of a shard.

    Args:
        files: Tokenizer.
        documents: Texts of the shard.
        work: Folder for the build, which does not exist yet.
    """
    # 1. The gate, without and with places. The tokenizer is parsed before, as in all
    #    calls after the first one.
    files.spec  # noqa: B018
    beginnings = [text[:_SAMPLE_CHARACTERS] for text in documents[:_SAMPLE_TEXTS]]
    gate_seconds: list[float] = []
    for places in (False, True):
        start_time = time.process_time()
        choose_encoder(files, "auto", "literal", beginnings, places=places)
        gate_seconds.append(time.process_time() - start_time)
    # 2. The build of the shard.
    tokenizer_folder = work / "tokenizer"
    tokenizer_folder.mkdir(parents=True)
    for file_name, data in files.files.items():
        (tokenizer_folder / file_name).write_bytes(data)
    table = pa.table({"text": pa.array(documents, pa.large_string())})
    pq.write_table(table, work / "in.parquet")
    dataset = {
        "name": "s",
        "data_files": str(work / "in.parquet"),
        "tokenizer": str(tokenizer_folder),
    }
    config = {
        "name": "set",
        "datasets": [dataset],
        "pack": {"enabled": True, "seq_length": 2048},
        "save": {"output_dir": str(work / "store")},
    }
    session = BuildSession.open(config)
    pool: Any = InProcessPool()
    with (
        Stopwatch(Sampler, "check") as sampling,
        Stopwatch(TextBuild, "build") as building,
    ):
        run_pending(session, pool)
    return GateCost(
        gate=gate_seconds[0],
        gate_with_places=gate_seconds[1],
        shard=building.seconds,
        sample_share=sampling.seconds / building.seconds,
    )


def tokenizers() -> dict[str, TokenizerFiles]:
    """Return the real tokenizers of this machine, and the trained ones.

    All of them are on the allow-list.
    """
    all_files: dict[str, TokenizerFiles] = {}
    for name in REAL:
        folder = real_folder(name)
        if folder is not None:
            all_files[f"{name} (real)"] = TokenizerFiles.read(folder)
    # Trained tokenizers of all forms.
    for name, files in samples.known().items():
        all_files[f"{name} (trained)"] = files
    return all_files


def shard() -> list[str]:
    """Return documents of some tens of megabytes.

    They are real texts if this machine has corpora, otherwise texts of the tests.
    """
    documents: list[str] = []
    for path in sorted((shared_folder() / "corpora").glob("*.parquet")):
        documents += parquet_texts(path)
        if sum(map(len, documents)) >= SHARD_BYTES:
            break
    # The texts of the tests are few, so they are repeated.
    if not documents:
        documents = [*FINGERPRINT_TEXTS, *samples.training_texts()] * 100
    return documents


def main(arguments: Sequence[str]) -> int:
    """Test and measure all tokenizers, and print both tables.

    Returns:
        1 if a backend differs; otherwise 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--strings", type=int, default=60_000, help="strings for each tokenizer"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=None, help="names of tokenizers")
    parser.add_argument("--skip-cost", action="store_true")
    options = parser.parse_args(arguments)
    # The tokenizers to test, all by default.
    all_files = tokenizers()
    if options.only:
        all_files = {
            name: all_files[name] for name in all_files if name in options.only
        }
    failures = print_fuzz_table(all_files, options.strings, options.seed)
    if not options.skip_cost:
        print_cost_table(all_files)
    return 1 if failures else 0


def print_fuzz_table(
    all_files: dict[str, TokenizerFiles], strings: int, first_seed: int
) -> int:
    """Test all tokenizers and print a row for each.

    Args:
        all_files: Name -> tokenizer.
        strings: Number of strings for each tokenizer; 0: no tests.
        first_seed: Random seed.

    Returns:
        Number of tokenizers on which the backends differ.
    """
    print(
        "| tokenizer | engine | strings | ids compared | located by ids | CPU s | result |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    failures = 0
    total = 0
    # Without strings, only the header is printed.
    if not strings:
        all_files = {}
    for tokenizer_name, files in all_files.items():
        choice, _ = choose_encoder(files, "auto", "encode", add_special_tokens=False)
        try:
            result = fuzz(files, strings, first_seed)
        except AssertionError as error:
            failures += 1
            print(
                f"| {tokenizer_name} | {choice.engine} | | | | | {error} |", flush=True
            )
            continue
        total += result.strings
        # The share shows for how many strings no alignment by the reference is needed.
        located_share = result.located / result.strings
        print(
            f"| {tokenizer_name} | {choice.engine} | {result.strings:,} | {result.tokens:,} | {located_share:.1%} | "
            f"{result.seconds:.0f} | equal |",
            flush=True,
        )
    print(
        f"\n{total:,} strings, each with special tokens literal and encoded; {failures} tokenizers differ\n",
        flush=True,
    )
    return failures


def print_cost_table(all_files: dict[str, TokenizerFiles]) -> None:
    """Measure the costs of all tokenizers and print a row for each.

    Args:
        all_files: Name -> tokenizer.
    """
    documents = shard()
    print(
        "| tokenizer | gate, CPU s | with places, CPU s | shard, CPU s | share of samples |"
    )
    print("|---|---|---|---|---|", flush=True)
    for tokenizer_name, files in all_files.items():
        # Each tokenizer builds the same shard.
        with tempfile.TemporaryDirectory() as work:
            cost = measure_cost(files, documents, Path(work) / "work")
        print(
            f"| {tokenizer_name} | {cost.gate:.2f} | {cost.gate_with_places:.2f} | {cost.shard:.2f} | "
            f"{cost.sample_share:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
