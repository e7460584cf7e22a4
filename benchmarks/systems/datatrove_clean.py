"""datatrove's MinHash and filters on a folder of JSON Lines: what survives, and why the
rest does not.

Arguments: ``minhash`` or ``filters``, INPUT (folder of .jsonl), OUTPUT (folder), and
``own`` or ``ours``: whose words n-grams and filters are made of. With ours, words and
sentences come from Tokenlake, so that what is left to differ is hashing, banding,
clustering and the rules. Writes ``clusters.json`` or ``verdicts.json``, by number of
the document.
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


def with_our_words() -> None:
    """Give datatrove the words and sentences of Tokenlake."""
    from tokenlake.etl.clean.words import words_of
    from tokenlake.etl.text.quality import JudgedText, count_sentences

    any_minhash: Any = minhash
    any_minhash.simplify_text = lambda text, config: words_of(text).decode()
    any_minhash.load_word_tokenizer = lambda language: _Split()
    modules: tuple[Any, ...] = (
        gopher_quality_filter,
        gopher_repetition_filter,
        fineweb_quality_filter,
    )
    for module in modules:
        module.split_into_words = lambda text, language: JudgedText(text).words
    any_c4: Any = c4_filters
    any_c4.split_into_sentences = lambda text, language: range(
        count_sentences(JudgedText(text).words)
    )


class _Split:
    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


def deduplicate(source: Path, output: Path) -> dict[int, int]:
    """Return document to cluster, for those that are in one."""
    folders = {
        name: str(output / name) for name in ("signatures", "buckets", "clusters")
    }
    steps: list[tuple[list[Any], int]] = [
        (
            [
                JsonlReader(str(source), glob_pattern="*.jsonl"),
                minhash.MinhashDedupSignature(folders["signatures"]),
            ],
            1,
        ),
        (
            [minhash.MinhashDedupBuckets(folders["signatures"], folders["buckets"])],
            BUCKETS,
        ),
        (
            [
                minhash.MinhashDedupCluster(
                    folders["buckets"], folders["clusters"], save_cluster_id=True
                )
            ],
            1,
        ),
    ]
    for number, (pipeline, tasks) in enumerate(steps):
        logs = str(output / "logs" / str(number))
        LocalPipelineExecutor(
            pipeline=pipeline, tasks=tasks, workers=1, logging_dir=logs
        ).run()
    pairs = (output / "clusters" / "000000.clusters").read_bytes()
    return dict(struct.iter_unpack("<2I", pairs))


def judge(source: Path) -> list[dict[str, str]]:
    """Return for each document the filters that it does not pass, each with the
    reason.
    """
    filters: dict[str, Any] = {
        "gopher_repetition": GopherRepetitionFilter(),
        "gopher_quality": GopherQualityFilter(),
        "c4": C4QualityFilter(),
        "c4_without_line_ends": C4QualityFilter(filter_no_terminal_punct=False),
        "fineweb": FineWebQualityFilter(),
    }
    found: list[dict[str, str]] = []
    for path in sorted(source.glob("*.jsonl")):
        for line in path.open():
            text, broken = json.loads(line)["text"], dict[str, str]()
            for name, each in filters.items():
                verdict = each.filter(Document(text=text, id=""))
                if verdict is not True:
                    broken[name] = verdict[1]
            found.append(broken)
    return found


def main(mode: str, source: str, output: str, words: str) -> None:
    """See the module's text."""
    if words == "ours":
        with_our_words()
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "minhash":
        (folder / "clusters.json").write_text(
            json.dumps(deduplicate(Path(source), folder))
        )
    else:
        (folder / "verdicts.json").write_text(json.dumps(judge(Path(source))))


if __name__ == "__main__":
    main(*sys.argv[1:])
