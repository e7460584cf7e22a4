"""A version that came from the Hub: it has no claim, what is never published is not there, and the Hub left marks.

A version that was built here has its claim, and nothing of this holds for it.
"""

from __future__ import annotations

from typing import Final

from tokenlake.storage.layout import QUARANTINE

_MARKS: Final = (".gitattributes", ".cache/huggingface/")


def never_published(path: str) -> bool:
    """Return whether a listed file stays behind when its version is published."""
    return path.startswith(f"{QUARANTINE}/")


def is_mark(path: str) -> bool:
    """Return whether a file comes with a download from the Hub and is of no version."""
    return path == _MARKS[0] or path.startswith(_MARKS[1])
