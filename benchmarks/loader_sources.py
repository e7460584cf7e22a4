"""Sources of the mixture that loaders read.

The measured programs import this module, so that it imports nothing itself.
"""

from __future__ import annotations

from typing import Final

SOURCES: Final = {"text": slice(0, 4), "code": slice(4, 6), "multilingual": slice(6, 8)}
"""Name -> the input's files that the source has, of eight."""

WEIGHTS: Final = {"text": 0.5, "code": 0.3, "multilingual": 0.2}
"""Name -> weight of the source."""
