"""Verification: is a version still, byte for byte and row for row, what was committed?"""

from tokenlake.verify.report import Problem, VerifyProgress, VerifyReport
from tokenlake.verify.version import verify

__all__ = ["Problem", "VerifyProgress", "VerifyReport", "verify"]
