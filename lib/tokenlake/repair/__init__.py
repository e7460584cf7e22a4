"""Repair: what is damaged in a version is made again from what it was made of, and nothing else is touched."""

from tokenlake.repair.repair import repair
from tokenlake.repair.report import Mended, RepairProgress, RepairReport

__all__ = ["Mended", "RepairProgress", "RepairReport", "repair"]
