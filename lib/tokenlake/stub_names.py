"""Public names that a stub lists, so that each stands once: type checkers read that file, and the module does."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def stub_names(module: str) -> dict[str, str]:
    """Return name -> module that defines it, as the stub beside a module says.

    Args:
        module: path of the module, whose name ends in ``.py``; lines of its stub are
            ``from MODULE import NAME as NAME``.
    """
    # pathlib would double the time of an import.
    with open(f"{module}i", encoding="utf-8") as stub:  # noqa: PTH123
        return {words[3]: words[1] for words in map(str.split, stub) if len(words) == 6}


def public_name(name: str) -> Any:
    """Return what `tokenlake` has by that name: the ``__getattr__`` of other paths to the same names."""
    if name.startswith("_"):  # what the import system asks of every module
        raise AttributeError(name)
    return getattr(import_module("tokenlake"), name)
