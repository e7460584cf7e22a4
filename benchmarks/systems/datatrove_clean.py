"""MinHash and filters of datatrove: ``MODE INPUT OUTPUT WORDS``.

MODE is ``minhash`` or ``filters``, INPUT a folder of .jsonl files, and OUTPUT a folder
for ``clusters.json`` or ``verdicts.json``, by the number of the document.

WORDS is ``own`` or ``ours``. With ``ours``, words and sentences are those of Tokenlake.
Remaining differences are then in hashing, banding, clustering and the rules.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any, Final

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import minhash
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.pipeline.readers import JsonlReader

BUCKETS: Final = 14
"""Number of tasks that compare signatures, one per bucket."""


class _WhiteSpaceTokenizer:
    """Word tokenizer that splits at white space."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


def use_tokenlake_words() -> None:
    """Replace the words and sentences of datatrove by those of Tokenlake."""
    # Imported here, since an environment of datatrove may lack Tokenlake.
    from tokenlake.etl.clean.words import words_of
    from tokenlake.etl.text.quality import JudgedText, count_sentences

    any_minhash: Any = minhash
    any_minhash.simplify_text = lambda text, config: words_of(text).decode()
    any_minhash.load_word_tokenizer = lambda language: _WhiteSpaceTokenizer()
    modules: tuple[Any, ...] = (
        gopher_quality_filter,
        gopher_repetition_filter,
        fineweb_quality_filter,
    )
    for module in modules:
        module.split_into_words = lambda text, language: JudgedText(text).words
    # The C4 filter only counts sentences.
    any_c4: Any = c4_filters
    any_c4.split_into_sentences = lambda text, language: range(
        count_sentences(JudgedText(text).words)
    )


def deduplicate(source: Path, output: Path) -> dict[int, int]:
    """Return the cluster of each document that has near duplicates.

    Args:
        source: Folder of the input.
        output: Folder for the files of all steps.
    """
    signatures = str(output / "signatures")
    buckets = str(output / "buckets")
    clusters = output / "clusters"
    reader = JsonlReader(str(source), glob_pattern="*.jsonl")
    # Pipeline and number of tasks of each step.
    steps: list[tuple[list[Any], int]] = [
        ([reader, minhash.MinhashDedupSignature(signatures)], 1),
        ([minhash.MinhashDedupBuckets(signatures, buckets)], BUCKETS),
        (
            [minhash.MinhashDedupCluster(buckets, str(clusters), save_cluster_id=True)],
            1,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        executor = LocalPipelineExecutor(
            pipeline=pipeline,
            tasks=tasks,
            workers=1,
            logging_dir=str(output / "logs" / str(number)),
        )
        executor.run()
    # The file holds pairs of uint32: document, cluster.
    pairs = (clusters / "000000.clusters").read_bytes()
    return dict(struct.iter_unpack("<2I", pairs))


def judge(source: Path) -> list[dict[str, str]]:
    """Return the filters that remove each document, with their reasons.

    Args:
        source: Folder of the input.

    Returns:
        Name of a filter -> reason, for each document.
    """
    filters: dict[str, Any] = {
        "gopher_repetition": GopherRepetitionFilter(),
        "gopher_quality": GopherQualityFilter(),
        "c4": C4QualityFilter(),
        "c4_without_line_ends": C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb": FineWebQualityFilter(),
    }
    verdicts: list[dict[str, str]] = []
    for path in sorted(source.glob("*.jsonl")):
        for line in path.open():
            text = json.loads(line)["text"]
            reasons: dict[str, str] = {}
            for filter_name, quality_filter in filters.items():
                # The result is True, or (False, reason).
                result = quality_filter.filter(Document(text=text, id=""))
                if result is not True:
                    reasons[filter_name] = result[1]
            verdicts.append(reasons)
    return verdicts


def main(mode: str, source: str, output: str, words: str) -> None:
    """Write the clusters or verdicts of all documents, see the module."""
    # Replace words before any step of datatrove runs.
    if words == "ours":
        use_tokenlake_words()
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    # Write the result of the requested step.
    if mode == "minhash":
        clusters = deduplicate(Path(source), folder)
        (folder / "clusters.json").write_text(json.dumps(clusters))
    else:
        verdicts = judge(Path(source))
        (folder / "verdicts.json").write_text(json.dumps(verdicts))


if __name__ == "__main__":
    main(*sys.argv[1:])
