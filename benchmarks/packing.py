"""Plans of packing: tokens placed per CPU second, fill, and what peers make of the same
lengths.

Only lengths go in: the time is that of the plan, no token is copied. The peers place
and copy in one, so their time has both; their tokens are all zero.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from benchmarks.goals import Goal
from benchmarks.packing_peers import PEERS, Placed
from benchmarks.vocabularies import Vocabulary
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.segments import Segments
from tokenlake.etl.packing.strategies import STRATEGIES, plan_segments

Int64 = npt.NDArray[np.int64]

SEQ_LENGTH: Final = 2048
_WINDOW_TOKENS: Final = ResolvedPack(width=SEQ_LENGTH).window_tokens
SHORT_RATE, LONG_RATE = 500.0, 5000.0  # Mtok placed per CPU second, at least
FILL: Final = 0.999  # at least, or no more than one row over the least in each window

_TEXTS: Final = ("text", "code", "multilingual")
_CHATS: Final = ("math-chat", "math-instruct")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Documents to place: windows of lengths, EOS counted, and the rate of best_fit
    that they should reach.
    """

    name: str
    windows: tuple[Int64, ...]
    rate: float | None = None

    @property
    def tokens(self) -> int:
        return int(sum(window.sum() for window in self.windows))

    @property
    def least(self) -> int:
        """Rows that the tokens of each window need."""
        return sum(-(-int(window.sum()) // SEQ_LENGTH) for window in self.windows)

    def describe(self) -> str:
        count = sum(map(len, self.windows))
        return f"{self.name} ({count:,} documents of {self.tokens / max(1, count):,.0f} tokens)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRun:
    """What one system made of some lengths; `seconds` of CPU, median."""

    lengths: str
    system: str
    tokens: int
    seconds: float
    rows: int
    over: int
    cut: int
    lost: int

    @property
    def rate(self) -> float:
        """Mtok given per CPU second."""
        return self.tokens / self.seconds / 1e6

    @property
    def fill(self) -> float:
        return (self.tokens - self.lost) / (self.rows * SEQ_LENGTH)

    def cells(self) -> list[str]:
        """The run as a row of the report."""
        figures = [
            f"{self.rate:,.0f}",
            f"{self.fill:.3%}",
            f"{self.rows:,}",
            f"{self.over:,}",
        ]
        return [self.lengths, self.system, *figures, f"{self.cut:,}", f"{self.lost:,}"]


HEAD: Final = (
    *("lengths", "system", "Mtok per CPU s", "fill", "rows"),
    *("rows over the least", "documents cut", "tokens lost"),
)


def measure_packing(
    work: Path, vocabulary: Vocabulary, repeats: int, *, quick: bool = False
) -> tuple[list[PackingRun], list[Goal], list[str]]:
    """Place lengths of real corpora (where there are any) and of two distributions, and
    let the peers do the same.

    Returns:
        Runs, goals, and notes on what was left out.
    """
    runs: list[PackingRun] = []
    goals: list[Goal] = []
    absent = {
        name: problem for name, peer in PEERS.items() if (problem := peer.missing())
    }
    for lengths in _all_lengths(work, vocabulary, quick=quick):
        print(f"packing {lengths.describe()}", file=sys.stderr, flush=True)
        ours = [_ours(lengths, name, repeats) for name in STRATEGIES]
        peers = [_peer(lengths, name) for name in PEERS if name not in absent]
        runs += [*ours, *peers]
        goals += _goals(lengths, ours[list(STRATEGIES).index("best_fit")], peers)
    notes = [
        f"{name} left out of packing, {problem}" for name, problem in absent.items()
    ]
    return runs, goals, notes


def _goals(
    lengths: Lengths, best: PackingRun, peers: list[PackingRun]
) -> Iterator[Goal]:
    if lengths.rate is not None:
        yield Goal(
            f"best_fit, {best.lengths}: Mtok placed per CPU s",
            best.rate,
            "at least",
            lengths.rate,
        )
    if best.fill >= FILL:
        yield Goal(
            f"best_fit, {best.lengths}: fill",
            100 * best.fill,
            "at least",
            100 * FILL,
            "%",
        )
    else:
        what = f"best_fit, {best.lengths}: fill {best.fill:.3%}, rows over the least in {len(lengths.windows)} windows"
        yield Goal(what, best.over, "at most", len(lengths.windows))
    for peer in peers:
        if not peer.lost:
            what = f"best_fit, {best.lengths}: rows less than {peer.system}'s"
            yield Goal(what, peer.rows - best.rows, "at least", 0)


def _ours(lengths: Lengths, strategy: str, repeats: int) -> PackingRun:
    pack = ResolvedPack(width=SEQ_LENGTH, strategy=strategy)
    placed = [
        _placed(window, plan_segments(window, pack)) for window in lengths.windows
    ]
    times: list[float] = []
    for _ in range(max(repeats, 3)):
        began = time.process_time()
        for window in lengths.windows:
            plan_segments(window, pack)
        times.append(time.process_time() - began)
    return _made(lengths, strategy, placed, statistics.median(times))


def _placed(window: Int64, cut: Segments) -> Placed:
    lost = int(window.sum() - cut.length.sum())
    return Placed(
        rows=cut.rows,
        cut=int((np.bincount(cut.document) > 1).sum()),
        lost=lost,
        seconds=0.0,
    )


def _peer(lengths: Lengths, name: str) -> PackingRun:
    placed = [PEERS[name].place(window, SEQ_LENGTH) for window in lengths.windows]
    return _made(lengths, name, placed, sum(one.seconds for one in placed))


def _made(
    lengths: Lengths, name: str, placed: list[Placed], seconds: float
) -> PackingRun:
    rows, lost = sum(one.rows for one in placed), sum(one.lost for one in placed)
    kept = [
        int(window.sum()) - one.lost
        for window, one in zip(lengths.windows, placed, strict=True)
    ]
    return PackingRun(
        lengths=lengths.describe(),
        system=name,
        tokens=lengths.tokens,
        seconds=seconds,
        rows=rows,
        over=rows - sum(-(-tokens // SEQ_LENGTH) for tokens in kept),
        cut=sum(one.cut for one in placed),
        lost=lost,
    )


def _all_lengths(
    work: Path, vocabulary: Vocabulary, *, quick: bool
) -> Iterator[Lengths]:
    real = {
        name: found
        for name in (*_CHATS, *_TEXTS)
        if (found := _real(work, vocabulary, name)) is not None
    }
    for name, lengths in real.items():
        yield Lengths(name, (lengths,))
    windows = 1 if quick else 4
    for name, parts, rate in (
        ("conversations", _CHATS, SHORT_RATE),
        ("documents", _TEXTS, LONG_RATE),
    ):
        found = [real[part] for part in parts if part in real]
        if found:
            yield Lengths(
                f"{name}, many times over",
                _windows(np.concatenate(found), windows),
                rate,
            )
    random = np.random.default_rng(0)
    for name, middle, spread, rate in (
        ("lognormal, short", 5.2, 0.8, SHORT_RATE),
        ("lognormal, long", 8.2, 1.0, LONG_RATE),
    ):
        lengths = np.maximum(2, random.lognormal(middle, spread, 100_000)).astype(
            np.int64
        )
        yield Lengths(name, _windows(lengths, windows), rate)


def _windows(lengths: Int64, count: int) -> tuple[Int64, ...]:
    """Repeat lengths to fill so many windows, as a build cuts them."""
    times = -(-count * _WINDOW_TOKENS // int(lengths.sum()))
    repeated = np.tile(lengths, times)
    ends = np.searchsorted(
        np.cumsum(repeated), np.arange(1, count + 1) * _WINDOW_TOKENS
    )
    return tuple(np.split(repeated, ends)[:count])


def _real(work: Path, vocabulary: Vocabulary, name: str) -> Int64 | None:
    """Lengths of a real corpus in tokens with EOS, kept for the next time; None
    where the corpus is not here.
    """
    folder = Path(os.environ.get("TOKENLAKE_TEST_DATA", "../shared")) / "corpora"
    files = sorted(folder.glob(f"{name}*"))
    if not files:
        return None
    kept = work / f"packing-{name}-{vocabulary.name}.npy"
    if not kept.exists():
        tokenizer = Tokenizer.from_file(str(Path(vocabulary.folder) / "tokenizer.json"))
        encoded = (tokenizer.encode_batch(texts) for texts in _texts(files))
        np.save(
            kept,
            np.array(
                [len(found.ids) + 1 for batch in encoded for found in batch], np.int64
            ),
        )
    return np.load(kept)


def _texts(files: list[Path]) -> Iterator[list[str]]:
    for file in files:
        if file.suffix == ".parquet":
            for batch in pq.ParquetFile(file).iter_batches(64, columns=["text"]):
                yield [str(text) for text in batch.column(0).to_pylist()]
            continue
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            yield [_joined(json.loads(line)) for line in lines]


def _joined(row: dict[str, object]) -> str:
    """All that a conversation or an instruction says."""
    turns = row.get("messages")
    return "\n".join(
        [str(turn["content"]) for turn in turns]
        if isinstance(turns, list)
        else [str(value) for value in row.values()]
    )
