"""The three sources that the loader's mixtures are of; imported by the measured
programs too, so it imports nothing.
"""

from __future__ import annotations

from typing import Final

#: Which of the input's eight files each holds.
SOURCES: Final = {"text": slice(0, 4), "code": slice(4, 6), "multilingual": slice(6, 8)}
WEIGHTS: Final = {"text": 0.5, "code": 0.3, "multilingual": 0.2}
