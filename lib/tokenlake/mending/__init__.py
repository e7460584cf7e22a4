"""Repair: what is damaged in a version is made again from what it was made of, and nothing else is touched."""

from tokenlake.mending.repair import repair
from tokenlake.mending.report import Mended, RepairProgress, RepairReport

__all__ = ["Mended", "RepairProgress", "RepairReport", "repair"]
