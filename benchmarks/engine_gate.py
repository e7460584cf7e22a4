"""The gate under fire: random Unicode against both engines, and what the gate costs.

    python -m benchmarks.engine_gate [--strings 60000] [--seed 0] [--only NAME ...] [--skip-cost]

Every tokenizer that runs on the fast engine (the real GPT-2 and Llama 2, where the
folder named by TOKENLAKE_TEST_DATA has them, and one trained on the spot for every form
of the allow-list) encodes strings that hypothesis draws: all of Unicode, the borders
where pre-tokenizers decide, marks and compositions, special tokens' strings. Ids with
special tokens literal and encoded, and the place of every token, must be the
reference's. A difference is shrunk to its smallest string and ends the run with status
1.

The table of costs has, for every tokenizer, the CPU seconds of choosing the engine
(loading included; for builds that need places, too), those of building a shard of plain
text, and the share of them that its samples take.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

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

REAL = {
    "gpt2 (real)": "models--openai-community--gpt2",
    "llama2 (real)": "models--meta-llama--Llama-2-7b-hf",
}
BORDERS = (
    *(
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
    ),
    *(
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
    ),
    *(
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
    ),
    *(
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
    ),
)
GUARDED = tuple(chr(point) for point in sum((*SPLITTING, *COMPOSING), ()))
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
SHARD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What one tokenizer went through: strings, their ids, rows located by ids
    alone, CPU seconds.
    """

    strings: int
    tokens: int
    located: int
    seconds: float


class Pair:
    """Both engines of a tokenizer in one mode."""

    def __init__(self, files: TokenizerFiles, mode: str) -> None:
        self._fast = Encoder(
            files, engine="gigatoken", special_tokens_in_text=mode, sample_rate=0
        )
        self._slow = Encoder(files, engine="tokenizers", special_tokens_in_text=mode)

    def compare(self, texts: list[str]) -> int:
        """Return how many ids equal texts have; fail where ids or places differ."""
        text = pa.array(texts, pa.large_string())
        made, start, stop = self._fast.encode_places(text)
        want, first, last = self._slow.encode_places(text)
        plain = self._fast.encode(text)
        same = (
            np.array_equal(made.offsets, want.offsets)
            and np.array_equal(made.ids, want.ids)
            and np.array_equal(plain.ids, want.ids)
            and np.array_equal(start, first)
            and np.array_equal(stop, last)
        )
        if not same:
            raise AssertionError(f"the engines differ on {texts!r}")
        return len(made.ids)

    def located(self, texts: list[str]) -> int:
        """Return for how many texts ids alone tell the places."""
        column = pa.array(texts, pa.large_string())
        encoded, sizes = self._fast.encode(column), self._fast._locator.sizes
        if sizes is None:
            return 0
        return len(texts) - len(sizes.places(column, encoded.offsets, encoded.ids)[2])


def fuzz(
    files: TokenizerFiles,
    strings: int,
    first_seed: int,
    batch: int = 50,
    *,
    shrink: bool = True,
) -> Result:
    """Compare the engines on at least `strings` strings, each in both modes."""
    pairs = [Pair(files, mode) for mode in ("literal", "encode")]
    counts = {"strings": 0, "tokens": 0, "located": 0}

    @seed(first_seed)
    @settings(
        max_examples=-(-strings // batch),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
    )
    @given(st.lists(STRINGS, min_size=batch, max_size=batch))
    def run(texts: list[str]) -> None:
        counts["tokens"] += sum(pair.compare(texts) for pair in pairs)
        counts["strings"] += len(texts)
        counts["located"] += pairs[0].located(texts)

    started = time.process_time()
    run()
    return Result(**counts, seconds=time.process_time() - started)


class Stopwatch:
    """CPU seconds inside a function while it is replaced."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds, self._owner, self._name, self._right = (
            0.0,
            owner,
            name,
            getattr(owner, name),
        )

    def __enter__(self) -> Stopwatch:
        def timed(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return self._right(*args, **options)
            finally:
                self.seconds += time.thread_time() - started

        setattr(self._owner, self._name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._owner, self._name, self._right)


def cost(
    files: TokenizerFiles, documents: list[str], work: Path
) -> tuple[float, float, float, float]:
    """Return CPU seconds of the gate, without and with places, those of building a
    shard, and its samples' share.
    """
    files.spec  # noqa: B018 - parsed once for all of a run
    chosen: list[float] = []
    # As a build's worker takes them.
    beginnings = [text[: 1 << 14] for text in documents[:16]]
    for places in (False, True):
        started = time.process_time()
        choose_encoder(files, "auto", "literal", beginnings, places=places)
        chosen.append(time.process_time() - started)
    (work / "tokenizer").mkdir(parents=True)
    for name, data in files.files.items():
        (work / "tokenizer" / name).write_bytes(data)
    pq.write_table(
        pa.table({"text": pa.array(documents, pa.large_string())}), work / "in.parquet"
    )
    dataset = {
        "name": "s",
        "data_files": str(work / "in.parquet"),
        "tokenizer": str(work / "tokenizer"),
    }
    save, pack = (
        {"output_dir": str(work / "store")},
        {"enabled": True, "seq_length": 2048},
    )
    session = BuildSession.open(
        {"name": "set", "datasets": [dataset], "pack": pack, "save": save}
    )
    pool: Any = InProcessPool()
    with (
        Stopwatch(Sampler, "check") as samples_,
        Stopwatch(TextBuild, "build") as whole,
    ):
        run_pending(session, pool)
    return chosen[0], chosen[1], whole.seconds, samples_.seconds / whole.seconds


def tokenizers() -> dict[str, TokenizerFiles]:
    """Return the real tokenizers that this machine has and the trained ones, all on
    the allow-list.
    """
    shared = Path(
        os.environ.get(
            "TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"
        )
    )
    found: dict[str, TokenizerFiles] = {}
    for name, folder in REAL.items():
        for path in sorted(shared.glob(f"hf/hub/{folder}/snapshots/*/tokenizer.json"))[
            :1
        ]:
            found[name] = TokenizerFiles.read(path.parent)
    return found | {
        f"{name} (trained)": files for name, files in samples.known().items()
    }


def shard() -> list[str]:
    """Return documents of real text where the machine has some, else the tests' own,
    some tens of megabytes.
    """
    shared = Path(
        os.environ.get(
            "TOKENLAKE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared"
        )
    )
    texts: list[str] = []
    size = 0
    for path in sorted((shared / "corpora").glob("*.parquet")):
        texts += [
            text
            for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
            if text
        ]
        size = sum(map(len, texts))
        if size >= SHARD_BYTES:
            break
    return texts or [*FINGERPRINT_TEXTS, *samples.training_texts()] * 100


def main(arguments: list[str]) -> int:
    """Fuzz, measure, print both tables; 1 where an engine differed."""
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
    chosen = {
        name: files
        for name, files in tokenizers().items()
        if not options.only or name in options.only
    }
    failed, total = 0, 0
    print(
        "| tokenizer | engine | strings | ids compared | located by ids | CPU s | result |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, files in chosen.items() if options.strings else ():
        engine = choose_encoder(files, "auto", "encode", add_special_tokens=False)[
            0
        ].engine
        try:
            result = fuzz(files, options.strings, options.seed)
        except AssertionError as error:
            failed += 1
            print(f"| {name} | {engine} | | | | | {error} |", flush=True)
            continue
        total += result.strings
        share = result.located / result.strings
        print(
            f"| {name} | {engine} | {result.strings:,} | {result.tokens:,} | {share:.1%} | {result.seconds:.0f} "
            "| equal |",
            flush=True,
        )
    print(
        f"\n{total:,} strings, each with special tokens literal and encoded; {failed} tokenizers differ\n",
        flush=True,
    )
    if not options.skip_cost:
        documents = shard()
        print(
            "| tokenizer | gate, CPU s | with places, CPU s | shard, CPU s | samples, share of it |"
        )
        print("|---|---|---|---|---|", flush=True)
        for name, files in chosen.items():
            with tempfile.TemporaryDirectory() as work:
                gate, placed, whole, share = cost(files, documents, Path(work) / "work")
            print(
                f"| {name} | {gate:.2f} | {placed:.2f} | {whole:.2f} | {share:.1%} |",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
