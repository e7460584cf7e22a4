"""How raw files are read: units of work, bad records, splits."""

from __future__ import annotations

from typing import Literal

from tokenlake.config.section import Section
from tokenlake.config.sizes import MIB
from tokenlake.config.values import Count, Fraction, Positive, Size, Splits

BadRecordPolicy = Literal["fail", "quarantine"]


class SourceStageConfig(Section):
    """Section `source`. A dataset can override `on_bad_record`, `max_bad_fraction` and `splits`."""

    unit_size: Size = 128 * MIB
    """Input bytes of one unit of work, the grain of resuming and of reuse."""

    max_record_bytes: Size = 256 * MIB
    """A longer record is a bad record."""

    max_expansion: Positive = 1000.0
    """A compressed file that unfolds to more than 256 MiB and to more than so many times its own bytes is damaged."""

    on_bad_record: BadRecordPolicy = "fail"
    """fail: the first bad record ends the build. quarantine: set it aside and count it."""

    max_bad_fraction: Fraction = 0.001
    """With quarantine, the share of bad records above which the build fails after all."""

    splits: Splits = {"train": 1.0}  # noqa: RUF012 (pydantic copies defaults)
    """Split name to fraction of the documents, by a hash of its identity; stable when data is added."""

    hash_threads: Count = 2
    """Threads that hash the input files; changes nothing in the result."""
