"""Cleaning compared with datatrove: clusters of near duplicates, filters, CPU seconds.

``python -m benchmarks.cleaning [--corpora DIR] [--megabytes N]`` reads Parquet files
with a column `text`. Near duplicates are planted: copies in which a share of the words
is replaced. Clusters are also compared with the true Jaccard similarities.

``BENCH_PYTHON_DATATROVE`` names the interpreter of an environment with datatrove. The
environment needs Tokenlake as well, for its words.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from benchmarks.goals import Goal
from benchmarks.measure import ROOT, measure
from benchmarks.text import parquet_texts
from tokenlake.etl.clean.words import words_of
from tokenlake.etl.text.quality import open_quality

SHARES: Final = (0.005, 0.01, 0.02, 0.04, 0.08)
"""Shares of the words that are replaced in a planted near duplicate."""

FRESH: Final = 0.3
"""Share of the words that are replaced in a copy that is no near duplicate."""

NEAR: Final = 0.8
"""Jaccard similarity from which two documents are near duplicates."""

CPU: Final = 2.0
"""Goal: CPU seconds divided by those of datatrove."""

OURS: Final = {
    "gopher_repetition": (("gopher_repetition", ()),),
    "gopher_quality": (("gopher_quality", ()),),
    "c4": (("c4", ()),),
    "c4_without_line_ends": (("c4", (("line_ends", 0.0),)),),
    "fineweb": (("fineweb", ()),),
}
"""Name of a filter in the report -> filter of Tokenlake with its options."""

_WORD_SOURCES: Final = ("ours", "own")
"""Words with which datatrove runs: those of Tokenlake, and its own."""

Pair = tuple[int, int]
"""Numbers of two documents, the smaller one first."""


def plant(texts: Sequence[str], size: int, seed: int = 0) -> Iterator[str]:
    """Yield texts, near duplicates of some of them, and changed copies.

    Args:
        texts: Original texts. After their first pass, copies follow that have too many
            other words for near duplicates.
        size: Number of characters to yield.
        seed: Random seed.
    """
    generator = random.Random(seed)
    yielded = 0
    is_first_pass = True
    while yielded < size:
        for text in texts:
            # 1. The text, or a changed copy after the first pass.
            document = text
            if not is_first_pass:
                document = _changed(text, FRESH, generator)
            yielded += len(document)
            yield document
            # 2. A near duplicate of a fifth of the documents.
            if generator.random() < 0.2:
                share = generator.choice(SHARES)
                near_duplicate = _changed(document, share, generator)
                yielded += len(near_duplicate)
                yield near_duplicate
            if yielded >= size:
                return
        is_first_pass = False


def _changed(text: str, share: float, generator: random.Random) -> str:
    """Return a text in which a share of the words is replaced."""
    # Replacements like w12345 do not occur in real texts.
    words = text.split(" ")
    for index in generator.sample(range(len(words)), int(len(words) * share)):
        words[index] = f"w{generator.randrange(1 << 20)}"
    return " ".join(words)


def pairs_of(clusters: dict[int, int]) -> set[Pair]:
    """Return all pairs of documents that are in the same cluster.

    Args:
        clusters: Number of a document -> its cluster.
    """
    # 1. The documents of each cluster.
    members: dict[int, list[int]] = {}
    for document, cluster in clusters.items():
        members.setdefault(cluster, []).append(document)
    # 2. All pairs of them.
    pairs: set[Pair] = set()
    for documents in members.values():
        pairs.update(combinations(sorted(documents), 2))
    return pairs


def our_clusters(output: Path, source: Path) -> dict[int, int]:
    """Return the cluster of each document in the list that Tokenlake wrote.

    Args:
        output: Folder with list.parquet.
        source: Folder of the input, a single file.
    """
    # 1. Byte offset of each line -> number of the document.
    document_at = {0: 0}
    offset = 0
    lines = (source / "part.jsonl").read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        offset += len(line)
        document_at[offset] = number + 1
    # 2. A cluster is named by the document that is kept.
    clusters: dict[int, int] = {}
    for row in pq.read_table(output / "list.parquet").to_pylist():
        kept_document = document_at[row["kept_position"]]
        clusters[kept_document] = kept_document
        clusters[document_at[row["position"]]] = kept_document
    return clusters


def true_pairs(texts: Sequence[str], among: set[Pair]) -> dict[Pair, float]:
    """Return the Jaccard similarity of the 5-grams of pairs of documents.

    Args:
        texts: Text of each document.
        among: Pairs of documents.
    """
    grams: dict[int, set[bytes]] = {}

    def grams_of(document: int) -> set[bytes]:
        # Documents occur in many pairs: keep their 5-grams.
        if document not in grams:
            words = words_of(texts[document]).split()
            starts = range(len(words) - 4)
            grams[document] = {b" ".join(words[at : at + 5]) for at in starts}
        return grams[document]

    similarities: dict[Pair, float] = {}
    for first, second in among:
        # The Jaccard similarity is the share of common 5-grams.
        union = grams_of(first) | grams_of(second)
        common = grams_of(first) & grams_of(second)
        similarities[first, second] = len(common) / len(union) if union else 0.0
    return similarities


def run(command: Sequence[str], work: Path, name: str) -> float:
    """Return the CPU seconds of a command.

    Raises:
        RuntimeError: The command failed.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'lib'}"}
    log_path = work / f"{name}.log"
    measured = measure(
        command, report=work / f"{name}.json", log=log_path, env=environment
    )
    if measured.exit_code:
        raise RuntimeError(f"{name} failed; see {log_path}")
    print(
        f"  {name}: {measured.cpu:.1f} CPU s, peak {measured.peak_bytes >> 20} MiB",
        file=sys.stderr,
        flush=True,
    )
    return measured.cpu


def _datatrove_command(
    mode: str, source: Path, output: Path, word_source: str
) -> list[str]:
    """Return the command of datatrove's MinHash or filters."""
    python = os.environ.get("BENCH_PYTHON_DATATROVE", sys.executable)
    program = "benchmarks.systems.datatrove_clean"
    return [python, "-m", program, mode, str(source), str(output), word_source]


def measure_clusters(
    work: Path, source: Path, texts: Sequence[str], planted: set[Pair]
) -> list[Goal]:
    """Return the goals of near duplicates.

    Args:
        work: Folder for the outputs.
        source: Folder of the input.
        texts: Text of each document of the input.
        planted: Pairs that may be near duplicates.
    """
    # 1. Clusters and CPU seconds: "ours" is Tokenlake, "ours words" and "own words"
    #    are datatrove with the words of Tokenlake and with its own.
    output = work / "ours"
    program = "benchmarks.systems.tokenlake_clean"
    command = [sys.executable, "-m", program, str(source), str(output), "1"]
    cpu = {"ours": run(command, work, "tokenlake")}
    pairs = {"ours": pairs_of(our_clusters(output, source))}
    for word_source in _WORD_SOURCES:
        output = work / f"datatrove-{word_source}"
        command = _datatrove_command("minhash", source, output, word_source)
        system_name = f"{word_source} words"
        cpu[system_name] = run(command, work, output.name)
        clusters = json.loads((output / "clusters.json").read_text())
        pairs[system_name] = pairs_of(
            {int(document): cluster for document, cluster in clusters.items()}
        )
    # 2. True similarity of all pairs that were planted or found.
    all_pairs = planted.union(*pairs.values())
    similarities = true_pairs(texts, all_pairs)
    near = {pair for pair, similarity in similarities.items() if similarity >= NEAR}
    # 3. Tokenlake compared with datatrove.
    goals = [
        Goal(
            "pairs that differ from datatrove's, with the same words",
            len(pairs["ours"] ^ pairs["ours words"]),
            "at most",
            0,
        ),
        Goal(
            "CPU s, tokenlake / datatrove",
            cpu["ours"] / cpu["own words"],
            "at most",
            CPU,
            "x",
        ),
        Goal(
            "CPU s, tokenlake / datatrove with our words",
            cpu["ours"] / cpu["ours words"],
            "at most",
            CPU,
            "x",
        ),
    ]
    # 4. Both compared with the truth.
    for system_name, label in (("ours", "tokenlake"), ("own words", "datatrove")):
        recall = len(pairs[system_name] & near) / max(1, len(near))
        goals.append(
            Goal(
                f"{label}: recall of pairs with Jaccard >= {NEAR}",
                recall,
                "at least",
                0.9,
            )
        )
        dissimilar = {pair for pair in pairs[system_name] if similarities[pair] < 0.5}
        goals.append(
            Goal(
                f"{label}: share of its {len(pairs[system_name])} pairs with Jaccard < 0.5",
                len(dissimilar) / max(1, len(pairs[system_name])),
                "at most",
                0.02,
            )
        )
    common = pairs["ours"] & pairs["own words"]
    union = pairs["ours"] | pairs["own words"]
    goals.append(
        Goal(
            "pairs in common with datatrove's own words (of all)",
            len(common) / max(1, len(union)),
            "at least",
            0.95,
        )
    )
    return goals


def measure_verdicts(
    work: Path, source: Path, texts: Sequence[str]
) -> tuple[list[Goal], list[str]]:
    """Compare the verdicts of filters with those of datatrove.

    Args:
        work: Folder for the outputs.
        source: Folder of the input.
        texts: Text of each document of the input.

    Returns:
        Goals, and a note for each filter with different verdicts.
    """
    judges = {
        filter_name: open_quality(filters) for filter_name, filters in OURS.items()
    }
    goals: list[Goal] = []
    notes: list[str] = []
    # All filters in one run of datatrove.
    for word_source in _WORD_SOURCES:
        output = work / f"filters-{word_source}"
        command = _datatrove_command("filters", source, output, word_source)
        run(command, work, output.name)
        all_verdicts = json.loads((output / "verdicts.json").read_text())
        for filter_name, judge in judges.items():
            # Count the documents that only one of both removes, by their reasons.
            differences: Counter[str] = Counter()
            for text, verdicts in zip(texts, all_verdicts, strict=True):
                reason = judge(text)
                if (reason is None) != (filter_name not in verdicts):
                    our_reason = (reason or "kept").rpartition(".")[2]
                    their_reason = verdicts.get(filter_name, "kept")
                    differences[f"{our_reason} / {their_reason}"] += 1
            max_differences = 0.05 * len(texts)
            if word_source == "ours":
                max_differences = 0  # the same words give the same verdicts
            goals.append(
                Goal(
                    f"{filter_name}: verdicts of {len(texts)} that differ, {word_source} words",
                    differences.total(),
                    "at most",
                    max_differences,
                )
            )
            if differences:
                notes.append(
                    f"{filter_name}, {word_source} words, ours / theirs: {dict(differences.most_common(6))}"
                )
    return goals, notes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print its goals; return 1 if a goal is missed."""
    options = _parse(arguments)
    # 1. An empty work folder.
    default_folder = Path(tempfile.gettempdir(), "tokenlake-bench-cleaning")
    work = Path(options.dir or default_folder).absolute()
    source = work / "input"
    shutil.rmtree(work, ignore_errors=True)
    source.mkdir(parents=True)
    # 2. The input, with planted near duplicates.
    originals: list[str] = []
    for path in sorted(options.corpora.glob(options.files)):
        originals += parquet_texts(path)
    documents = list(plant(originals, int(options.megabytes * 1e6)))
    with (source / "part.jsonl").open("w") as file:
        for text in documents:
            file.write(json.dumps({"text": text}) + "\n")
    # A planted near duplicate follows its original.
    planted = {(number, number + 1) for number in range(len(documents) - 1)}
    # 3. The comparison.
    goals: list[Goal] = []
    notes: list[str] = []
    if options.filters:
        goals, notes = measure_verdicts(work, source, documents)
    if options.minhash:
        goals += measure_clusters(work, source, documents, planted)
    for goal in goals:
        print(f"{'met ' if goal.is_met else 'MISS'} {goal}")
    print(*notes, sep="\n")
    return 0 if all(goal.is_met for goal in goals) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    shared = Path(os.environ.get("TOKENLAKE_TEST_DATA", "../shared"))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cleaning")
    parser.add_argument("--corpora", type=Path, default=shared / "corpora")
    parser.add_argument("--files", default="text-*.parquet")
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument(
        "--filters", action=argparse.BooleanOptionalAction, default=True
    )
    parser.add_argument(
        "--minhash", action=argparse.BooleanOptionalAction, default=True
    )
    parser.add_argument("--dir", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
