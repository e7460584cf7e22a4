"""What the names of files suggest about splits: `train-00000-of-00042.parquet`, `data/test/x.jsonl`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from tokenlake.discovery.names import words_of

_WORDS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "heldout"), "test"),
}


def split_of(path: str) -> str | None:
    """Return the split that a path names as a word of its own, the file's name before its folders."""
    parts = PurePosixPath(path).parts
    for part in reversed(parts):
        named = {_WORDS[word] for word in words_of(part) if word in _WORDS}
        if len(named) == 1:
            return named.pop()
    return None
