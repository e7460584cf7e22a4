"""The published constants of the quality filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

_GOPHER: Final = "Rae et al. 2021, https://arxiv.org/abs/2112.11446, section A.1.1"
_TABLE_A1: Final = "Rae et al. 2021, https://arxiv.org/abs/2112.11446, table A1"
_C4: Final = "Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.2"
_C4_CODE: Final = "c4_utils.py of TensorFlow Datasets, which made C4"
_FINEWEB: Final = "Penedo et al. 2024, https://arxiv.org/abs/2406.17557, section 3.6"
_FINEWEB_CODE: Final = "FineWeb's filter in datatrove"

CONSTANTS: Final[Mapping[str, Mapping[str, tuple[float, str]]]] = {
    "gopher_repetition": {
        "max_repeated_paragraphs": (0.30, _TABLE_A1),
        "max_in_repeated_paragraphs": (0.20, _TABLE_A1),
        "max_repeated_lines": (0.30, _TABLE_A1),
        "max_in_repeated_lines": (0.20, _TABLE_A1),
        "max_in_top_2gram": (0.20, _TABLE_A1),
        "max_in_top_3gram": (0.18, _TABLE_A1),
        "max_in_top_4gram": (0.16, _TABLE_A1),
        "max_in_repeated_5grams": (0.15, _TABLE_A1),
        "max_in_repeated_6grams": (0.14, _TABLE_A1),
        "max_in_repeated_7grams": (0.13, _TABLE_A1),
        "max_in_repeated_8grams": (0.12, _TABLE_A1),
        "max_in_repeated_9grams": (0.11, _TABLE_A1),
        "max_in_repeated_10grams": (0.10, _TABLE_A1),
    },
    "gopher_quality": {
        "min_words": (50, _GOPHER),
        "max_words": (100_000, _GOPHER),
        "min_word_length": (3, _GOPHER),
        "max_word_length": (10, _GOPHER),
        "max_symbols": (0.1, _GOPHER),
        "max_bullet_lines": (0.9, _GOPHER),
        "max_ellipsis_lines": (0.3, _GOPHER),
        "min_alphabetic": (0.8, _GOPHER),
        "min_stop_words": (2, _GOPHER),
    },
    "c4": {
        "line_ends": (1, _C4),
        "min_line_words": (3, _C4),
        "min_sentences": (5, _C4),
        "max_word_length": (1000, _C4_CODE),
    },
    "fineweb": {
        "min_line_ends": (0.12, _FINEWEB),
        "max_short_lines": (0.67, _FINEWEB),
        "short_line": (30, _FINEWEB),
        "max_in_repeated_lines": (0.01, _FINEWEB_CODE),
        "max_newlines_per_word": (0.3, _FINEWEB_CODE),
    },
}
"""Filter -> constant -> (value, source). ``line_ends`` of C4 is 1 where lines must end
as sentences do, else 0: FineWeb has it 0. The paper of FineWeb has 0.1 of the
characters in repeated lines, its code, which made the data, 0.01.
"""

QualityFilters: TypeAlias = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
"""(name of a filter, (constant, value) that is to be another than the published
one), in order.
"""
