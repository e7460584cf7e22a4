"""Cleaning beside datatrove's on the same documents: clusters, verdicts, CPU seconds;
and clusters beside the truth.

``python -m benchmarks.cleaning [--corpora DIR] [--megabytes N]``, on Parquet files with
a column `text`. Near duplicates are planted: copies in which a share of the words is
another one. What datatrove is measured with can lie in an environment of its own, named
by ``BENCH_PYTHON_DATATROVE``; it needs Tokenlake there, too, for its words.
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
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks.goals import Goal
from benchmarks.measure import ROOT, measure
from tokenlake.etl.clean.words import words_of
from tokenlake.etl.text.quality import open_quality

# Of words that are others in a planted copy.
SHARES: Final = (0.005, 0.01, 0.02, 0.04, 0.08)
FRESH: Final = 0.3  # ...in a copy that is to be no near duplicate
NEAR: Final = 0.8  # Jaccard similarity from which two documents should be found
CPU: Final = 2.0  # times datatrove's CPU seconds
OURS: Final = {
    "gopher_repetition": (("gopher_repetition", ()),),
    "gopher_quality": (("gopher_quality", ()),),
    "c4": (("c4", ()),),
    "c4_without_line_ends": (("c4", (("line_ends", 0.0),)),),
    "fineweb": (("fineweb", ()),),
}


def plant(texts: Sequence[str], size: int, seed: int = 0) -> Iterator[str]:
    """Yield `size` characters of documents: texts, near duplicates of some, and
    changed copies that are none.
    """
    draw, done, first = random.Random(seed), 0, True
    while done < size:
        for text in texts:
            made = [text if first else _changed(text, FRESH, draw)]
            if draw.random() < 0.2:
                made.append(_changed(made[0], draw.choice(SHARES), draw))
            for each in made:
                done += len(each)
                yield each
            if done >= size:
                return
        first = False


def _changed(text: str, share: float, draw: random.Random) -> str:
    words = text.split(" ")
    for at in draw.sample(range(len(words)), int(len(words) * share)):
        words[at] = f"w{draw.randrange(1 << 20)}"
    return " ".join(words)


def pairs_of(clusters: dict[int, int]) -> set[tuple[int, int]]:
    """Return all pairs of documents that are in one cluster."""
    members: dict[int, list[int]] = {}
    for document, cluster in clusters.items():
        members.setdefault(cluster, []).append(document)
    return {pair for each in members.values() for pair in combinations(sorted(each), 2)}


def our_clusters(output: Path, source: Path) -> dict[int, int]:
    """Return document to cluster, from the list and the places of the lines."""
    table = pq.read_table(output / "list.parquet").to_pylist()
    offsets, at = {0: 0}, 0
    for number, line in enumerate(
        (source / "part.jsonl").read_bytes().splitlines(keepends=True)
    ):
        at += len(line)
        offsets[at] = number + 1
    found: dict[int, int] = {}
    for row in table:
        first = offsets[row["kept_position"]]
        found[first] = found[offsets[row["position"]]] = first
    return found


def true_pairs(
    texts: Sequence[str], among: set[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Return the Jaccard similarity of the 5-grams of some pairs."""
    grams: dict[int, set[bytes]] = {}

    def of(number: int) -> set[bytes]:
        if number not in grams:
            words = words_of(texts[number]).split()
            grams[number] = {b" ".join(words[i : i + 5]) for i in range(len(words) - 4)}
        return grams[number]

    found: dict[tuple[int, int], float] = {}
    for a, b in among:
        both = of(a) | of(b)
        found[a, b] = len(of(a) & of(b)) / len(both) if both else 0.0
    return found


def run(command: Sequence[str], work: Path, name: str) -> float:
    """Return the CPU seconds of a command.

    Raises:
        RuntimeError: it failed.
    """
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'lib'}"}
    measured = measure(
        command, report=work / f"{name}.json", log=work / f"{name}.log", env=env
    )
    if measured.exit_code:
        raise RuntimeError(f"{name} failed; see {work / f'{name}.log'}")
    print(
        f"  {name}: {measured.cpu:.1f} CPU s, peak {measured.peak_bytes >> 20} MiB",
        file=sys.stderr,
        flush=True,
    )
    return measured.cpu


def measure_clusters(
    work: Path, source: Path, texts: Sequence[str], planted: set[tuple[int, int]]
) -> list[Goal]:
    """Return the goals about near duplicates."""
    peer = os.environ.get("BENCH_PYTHON_DATATROVE", sys.executable)
    ours, cpu = work / "ours", dict[str, float]()
    cpu["ours"] = run(
        [
            sys.executable,
            "-m",
            "benchmarks.systems.tokenlake_clean",
            str(source),
            str(ours),
            "1",
        ],
        work,
        "tokenlake",
    )
    found = {"ours": pairs_of(our_clusters(ours, source))}
    for words in ("ours", "own"):
        output = work / f"datatrove-{words}"
        command = [
            peer,
            "-m",
            "benchmarks.systems.datatrove_clean",
            "minhash",
            str(source),
            str(output),
            words,
        ]
        cpu[words + " words"] = run(command, work, output.name)
        clusters = {
            int(key): value
            for key, value in json.loads((output / "clusters.json").read_text()).items()
        }
        found[words + " words"] = pairs_of(clusters)
    every = true_pairs(
        texts, planted | found["ours"] | found["own words"] | found["ours words"]
    )
    near = {pair for pair, similarity in every.items() if similarity >= NEAR}
    goals = [
        Goal(
            "pairs that differ from datatrove's, of the same words",
            len(found["ours"] ^ found["ours words"]),
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
    for name, label in (("ours", "tokenlake"), ("own words", "datatrove")):
        hits = found[name] & near
        goals.append(
            Goal(
                f"{label}: recall of pairs with Jaccard >= {NEAR}",
                len(hits) / max(1, len(near)),
                "at least",
                0.9,
            )
        )
        low = sum(every[pair] < 0.5 for pair in found[name])
        goals.append(
            Goal(
                f"{label}: share of its {len(found[name])} pairs with Jaccard < 0.5",
                low / max(1, len(found[name])),
                "at most",
                0.02,
            )
        )
    both = len(found["ours"] & found["own words"]) / max(
        1, len(found["own words"] | found["ours"])
    )
    goals.append(
        Goal(
            "pairs in common with datatrove's own words (of all)",
            both,
            "at least",
            0.95,
        )
    )
    return goals


def measure_verdicts(
    work: Path, source: Path, texts: Sequence[str]
) -> tuple[list[Goal], list[str]]:
    """Return the goals about filters, and a note on what differs with datatrove's
    own words.
    """
    peer = os.environ.get("BENCH_PYTHON_DATATROVE", sys.executable)
    judges = {name: open_quality(filters) for name, filters in OURS.items()}
    goals, notes = [], []
    for words in ("ours", "own"):
        output = work / f"filters-{words}"
        run(
            [
                peer,
                "-m",
                "benchmarks.systems.datatrove_clean",
                "filters",
                str(source),
                str(output),
                words,
            ],
            work,
            output.name,
        )
        theirs = json.loads((output / "verdicts.json").read_text())
        for name, judge in judges.items():
            differ = Counter[str]()
            for text, verdict in zip(texts, theirs, strict=True):
                mine = judge(text)
                if (mine is None) != (name not in verdict):
                    differ[
                        f"{(mine or 'kept').rpartition('.')[2]} / {verdict.get(name, 'kept')}"
                    ] += 1
            count, limit = (
                sum(differ.values()),
                0 if words == "ours" else 0.05 * len(texts),
            )
            goals.append(
                Goal(
                    f"{name}: verdicts of {len(texts)} that differ, {words} words",
                    count,
                    "at most",
                    limit,
                )
            )
            if differ:
                notes.append(
                    f"{name}, {words} words, ours / theirs: {dict(differ.most_common(6))}"
                )
    return goals, notes


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text; 1 if a goal is missed."""
    given = _parse(arguments)
    work = Path(
        given.dir or Path(tempfile.gettempdir(), "tokenlake-bench-cleaning")
    ).absolute()
    shutil.rmtree(work, ignore_errors=True)
    (work / "input").mkdir(parents=True)
    columns: list[Any] = [
        pq.read_table(path, columns=["text"])["text"]
        for path in sorted(given.corpora.glob(given.files))
    ]
    plain = [text for column in columns for text in column.to_pylist() if text]
    texts = list(plant(plain, int(given.megabytes * 1e6)))
    with (work / "input" / "part.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    planted = {(at, at + 1) for at in range(len(texts) - 1)}
    goals, notes = (
        measure_verdicts(work, work / "input", texts) if given.filters else ([], [])
    )
    if given.minhash:
        goals += measure_clusters(work, work / "input", texts, planted)
    for goal in goals:
        print(f"{'met ' if goal.is_met else 'MISS'} {goal}")
    print(*notes, sep="\n")
    return int(not all(goal.is_met for goal in goals))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
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
