"""Builds of these tests share their worker processes."""

from __future__ import annotations

from tests.builds import shared_workers

__all__ = ["shared_workers"]
