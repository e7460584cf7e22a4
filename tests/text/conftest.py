"""Builds of these tests share their worker processes."""

from __future__ import annotations

from tests.builds import lender, shared_workers

__all__ = ["lender", "shared_workers"]
