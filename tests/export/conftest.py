"""Workers that the tests of this folder share."""

from __future__ import annotations

from tests.builds import shared_workers

__all__ = ["shared_workers"]
