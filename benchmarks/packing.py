"""Packing plans: tokens placed per CPU second, fill, and comparison with other packers.

Only lengths of documents are packed. The time of Tokenlake is that of the plan, which
copies no tokens. Other packers place and copy in one step, so that their time contains
both; their tokens are all 0.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from benchmarks.goals import Goal
from benchmarks.packing_peers import PEERS, Placement
from benchmarks.vocabularies import Vocabulary
from tokenlake.config.resolved import ResolvedPack
from tokenlake.etl.packing.segments import Segments
from tokenlake.etl.packing.strategies import STRATEGIES, plan_segments

Int64 = npt.NDArray[np.int64]

SEQ_LENGTH: Final = 2048
_WINDOW_TOKENS: Final = ResolvedPack(width=SEQ_LENGTH).window_tokens

SHORT_RATE: Final = 500.0
LONG_RATE: Final = 5000.0
"""Goals: Mtok placed per CPU second, for short and for long documents."""

FILL: Final = 0.999
"""Goal: fill of the rows. Alternatively, a window needs at most one row more than the
least number.
"""

_TEXTS: Final = ("text", "code", "multilingual")
_CHATS: Final = ("math-chat", "math-instruct")
"""Names of the corpora of documents, and of conversations."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Documents to pack.

    Attributes:
        name: Name in the report.
        windows: Numbers of tokens of the documents of each window, EOS included, each
            int64[n].
        rate: Goal of best_fit in Mtok per CPU second; None: no goal.
    """

    name: str
    windows: tuple[Int64, ...]
    rate: float | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens of all windows."""
        return int(sum(window.sum() for window in self.windows))

    @property
    def least(self) -> int:
        """Least number of rows that hold the tokens of each window."""
        return sum(_rows_for(int(window.sum())) for window in self.windows)

    def describe(self) -> str:
        """Return the name with the number of documents and their mean length."""
        documents = sum(map(len, self.windows))
        mean = self.tokens / max(1, documents)
        return f"{self.name} ({documents:,} documents of {mean:,.0f} tokens)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingRun:
    """Result of one packer on some documents.

    Attributes:
        lengths: Description of the documents.
        system: Name of the packer.
        tokens: Number of tokens of the documents.
        seconds: CPU seconds, median.
        rows: Number of rows.
        over: Number of rows beyond the least number.
        cut: Number of documents that are cut.
        lost: Number of tokens that are in no row.
    """

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
        """Mtok of documents per CPU second."""
        return self.tokens / self.seconds / 1e6

    @property
    def fill(self) -> float:
        """Share of the places of all rows that hold tokens."""
        return (self.tokens - self.lost) / (self.rows * SEQ_LENGTH)

    def cells(self) -> list[str]:
        """Return the cells of the row of the report, see :data:`HEAD`."""
        return [
            self.lengths,
            self.system,
            f"{self.rate:,.0f}",
            f"{self.fill:.3%}",
            f"{self.rows:,}",
            f"{self.over:,}",
            f"{self.cut:,}",
            f"{self.lost:,}",
        ]


HEAD: Final = (
    "lengths",
    "system",
    "Mtok per CPU s",
    "fill",
    "rows",
    "rows over the least",
    "documents cut",
    "tokens lost",
)


def measure_packing(
    work: Path, vocabulary: Vocabulary, repeats: int, *, quick: bool = False
) -> tuple[list[PackingRun], list[Goal], list[str]]:
    """Pack real and random lengths with all strategies, and with other packers.

    Args:
        work: Work folder of the benchmark.
        vocabulary: Tokenizer of the real documents.
        repeats: Number of measurements, at least 3.
        quick: True for few documents.

    Returns:
        Runs, goals, and notes about packers that are left out.
    """
    # 1. The packers that are installed.
    peers: list[str] = []
    notes: list[str] = []
    for packer_name, peer in PEERS.items():
        reason = peer.missing()
        if reason is None:
            peers.append(packer_name)
        else:
            notes.append(f"{packer_name} left out of packing, {reason}")
    # 2. All packers on all documents.
    runs: list[PackingRun] = []
    goals: list[Goal] = []
    for documents in _all_lengths(work, vocabulary, quick=quick):
        print(f"packing {documents.describe()}", file=sys.stderr, flush=True)
        our_runs: dict[str, PackingRun] = {}
        for strategy in STRATEGIES:
            our_runs[strategy] = _run_strategy(documents, strategy, repeats)
        peer_runs = [_run_peer(documents, packer_name) for packer_name in peers]
        runs += [*our_runs.values(), *peer_runs]
        goals += _goals(documents, our_runs["best_fit"], peer_runs)
    return runs, goals, notes


def _rows_for(tokens: int) -> int:
    """Return the least number of rows that hold some tokens."""
    return -(-tokens // SEQ_LENGTH)


def _goals(
    lengths: Lengths, best_fit: PackingRun, peer_runs: list[PackingRun]
) -> Iterator[Goal]:
    """Yield the goals of best_fit.

    Args:
        lengths: Documents.
        best_fit: Run of best_fit.
        peer_runs: Runs of other packers.
    """
    label = f"best_fit, {best_fit.lengths}"
    if lengths.rate is not None:
        yield Goal(
            f"{label}: Mtok placed per CPU s",
            best_fit.rate,
            "at least",
            lengths.rate,
        )
    if best_fit.fill >= FILL:
        yield Goal(
            f"{label}: fill",
            100 * best_fit.fill,
            "at least",
            100 * FILL,
            "%",
        )
    else:
        windows = len(lengths.windows)
        yield Goal(
            f"{label}: fill {best_fit.fill:.3%}, rows over the least in {windows} windows",
            best_fit.over,
            "at most",
            windows,
        )
    for peer in peer_runs:
        # A packer that loses tokens needs fewer rows.
        if not peer.lost:
            yield Goal(
                f"{label}: rows fewer than {peer.system}'s",
                peer.rows - best_fit.rows,
                "at least",
                0,
            )


def _run_strategy(lengths: Lengths, strategy: str, repeats: int) -> PackingRun:
    """Measure a strategy of Tokenlake."""
    pack = ResolvedPack(width=SEQ_LENGTH, strategy=strategy)
    placements: list[Placement] = []
    for window in lengths.windows:
        placements.append(_placement(window, plan_segments(window, pack)))
    # Only the plan is timed.
    times: list[float] = []
    for _ in range(max(repeats, 3)):
        start_time = time.process_time()
        for window in lengths.windows:
            plan_segments(window, pack)
        times.append(time.process_time() - start_time)
    return _packing_run(lengths, strategy, placements, statistics.median(times))


def _placement(window: Int64, segments: Segments) -> Placement:
    """Return the counts of a plan. Its time is measured separately.

    Args:
        window: Number of tokens of each document, int64[n].
        segments: Plan of the rows.
    """
    segments_per_document = np.bincount(segments.document)
    return Placement(
        rows=segments.rows,
        cut=int((segments_per_document > 1).sum()),
        lost=int(window.sum() - segments.length.sum()),
        seconds=0.0,
    )


def _run_peer(lengths: Lengths, name: str) -> PackingRun:
    """Measure a packer of another project."""
    placements = [PEERS[name].place(window, SEQ_LENGTH) for window in lengths.windows]
    seconds = sum(placement.seconds for placement in placements)
    return _packing_run(lengths, name, placements, seconds)


def _packing_run(
    lengths: Lengths, system: str, placements: list[Placement], seconds: float
) -> PackingRun:
    """Return the sum of the placements of all windows.

    Args:
        lengths: Documents.
        system: Name of the packer.
        placements: Placement of each window.
        seconds: CPU seconds of all windows.
    """
    # Tokens that a packer loses need no rows.
    least_rows = 0
    rows = 0
    cut = 0
    lost = 0
    for window, placement in zip(lengths.windows, placements, strict=True):
        least_rows += _rows_for(int(window.sum()) - placement.lost)
        rows += placement.rows
        cut += placement.cut
        lost += placement.lost
    return PackingRun(
        lengths=lengths.describe(),
        system=system,
        tokens=lengths.tokens,
        seconds=seconds,
        rows=rows,
        over=rows - least_rows,
        cut=cut,
        lost=lost,
    )


def _all_lengths(
    work: Path, vocabulary: Vocabulary, *, quick: bool
) -> Iterator[Lengths]:
    """Yield all documents to pack: real corpora, repeated ones, and random lengths."""
    # 1. Each real corpus, in a single window.
    corpora: dict[str, Int64] = {}
    for corpus_name in (*_CHATS, *_TEXTS):
        corpus = _corpus_lengths(work, vocabulary, corpus_name)
        if corpus is not None:
            corpora[corpus_name] = corpus
    for corpus_name, corpus in corpora.items():
        yield Lengths(corpus_name, (corpus,))
    # 2. Real lengths that are repeated to fill several windows.
    windows = 1 if quick else 4
    for label, names, rate in (
        ("conversations", _CHATS, SHORT_RATE),
        ("documents", _TEXTS, LONG_RATE),
    ):
        parts = [
            corpora[corpus_name] for corpus_name in names if corpus_name in corpora
        ]
        if parts:
            repeated = _windows(np.concatenate(parts), windows)
            yield Lengths(f"{label}, many times over", repeated, rate)
    # 3. Random lengths: mean and standard deviation of their logarithm.
    generator = np.random.default_rng(0)
    for label, mean, deviation, rate in (
        ("lognormal, short", 5.2, 0.8, SHORT_RATE),
        ("lognormal, long", 8.2, 1.0, LONG_RATE),
    ):
        sample = generator.lognormal(mean, deviation, 100_000)
        random_lengths = np.maximum(2, sample).astype(np.int64)
        yield Lengths(label, _windows(random_lengths, windows), rate)


def _windows(lengths: Int64, count: int) -> tuple[Int64, ...]:
    """Repeat lengths to fill a number of windows, and cut them as a build does.

    Args:
        lengths: Number of tokens of each document, int64[n].
        count: Number of windows.
    """
    repetitions = -(-count * _WINDOW_TOKENS // int(lengths.sum()))
    repeated = np.tile(lengths, repetitions)
    window_ends = np.arange(1, count + 1) * _WINDOW_TOKENS
    ends = np.searchsorted(np.cumsum(repeated), window_ends)
    return tuple(np.split(repeated, ends)[:count])


def _corpus_lengths(work: Path, vocabulary: Vocabulary, name: str) -> Int64 | None:
    """Return the number of tokens of each document of a corpus, EOS included, int64[n].

    They are cached in the work folder. The result is None if the corpus is missing.
    """
    folder = Path(os.environ.get("TOKENLAKE_TEST_DATA", "../shared")) / "corpora"
    files = sorted(folder.glob(f"{name}*"))
    if not files:
        return None
    # Encoding is slow, so the lengths are cached.
    cache = work / f"packing-{name}-{vocabulary.name}.npy"
    if not cache.exists():
        tokenizer = Tokenizer.from_file(str(Path(vocabulary.folder) / "tokenizer.json"))
        lengths: list[int] = []
        for texts in _text_batches(files):
            for encoding in tokenizer.encode_batch(texts):
                # One more for EOS.
                lengths.append(len(encoding.ids) + 1)
        np.save(cache, np.array(lengths, np.int64))
    return np.load(cache)


def _text_batches(files: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the texts of Parquet files, and of gzipped JSON Lines, in batches."""
    for file in files:
        if file.suffix == ".parquet":
            for batch in pq.ParquetFile(file).iter_batches(64, columns=["text"]):
                yield [str(text) for text in batch.column(0).to_pylist()]
        else:
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                yield [_text_of(json.loads(line)) for line in lines]


def _text_of(row: dict[str, object]) -> str:
    """Return the joined texts of a conversation or an instruction."""
    turns = row.get("messages")
    if isinstance(turns, list):
        return "\n".join(str(turn["content"]) for turn in turns)
    return "\n".join(str(value) for value in row.values())
