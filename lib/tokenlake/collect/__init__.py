"""Collecting garbage: what no version, no tag and no build that goes on needs is removed, and nothing else."""

from tokenlake.collect.collecting import collect, gc
from tokenlake.collect.durations import parse_duration
from tokenlake.collect.removal import Removal, remove_version
from tokenlake.collect.report import GcReport, Kept, Removed, Swept

__all__ = [
    "GcReport",
    "Kept",
    "Removal",
    "Removed",
    "Swept",
    "collect",
    "gc",
    "parse_duration",
    "remove_version",
]
