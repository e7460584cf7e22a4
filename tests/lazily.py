"""Modules that a test imports when it first uses them: each process of a run
collects every file of tests.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, final

import pytest


@final
class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def _loaded(self) -> Any:
        if self._name.startswith("tokenlake."):
            return import_module(self._name)
        return sys.modules.get(self._name) or pytest.importorskip(self._name)

    def __getattr__(self, attribute: str) -> Any:
        # What pytest asks every name of a file.
        if attribute.startswith("__") or attribute == "_mock_name":
            raise AttributeError(attribute)
        return getattr(self._loaded(), attribute)


def lazily(name: str) -> Any:
    """Return a module that is imported when something of it is asked for; a test
    that lacks a package is skipped.
    """
    return _Module(name)
