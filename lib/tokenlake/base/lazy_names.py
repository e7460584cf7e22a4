"""Public names that are loaded when they are first used, and what to install where that fails.

A stub beside a module lists its names: type checkers read that file, and the module does, so that each stands once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from tokenlake.errors import MissingExtraError

_OURS: Final = "tokenlake"


def stub_names(module: str) -> dict[str, str]:
    """Return name -> where it is defined, as ``module:name``, as the stub beside a module says.

    Args:
        module: path of the module, whose name ends in ``.py``; lines of its stub are
            ``from MODULE import NAME as PUBLIC``.
    """
    # pathlib would double the time of an import.
    with open(f"{module}i", encoding="utf-8") as stub:  # noqa: PTH123
        return {words[5]: f"{words[1]}:{words[3]}" for words in map(str.split, stub) if len(words) == 6}


def load(home: str, public: str, extra: str) -> Any:
    """Return what is defined at ``module:name``.

    Args:
        home: place of the definition, as ``module:name``.
        public: name by which it was asked for, for the message.
        extra: extra of Tokenlake that installs what the module needs.

    Raises:
        MissingExtraError: a package is missing; the message has the line that installs it.
    """
    module, _, name = home.partition(":")
    with naming_extra(public, extra):
        return getattr(import_module(module), name)


@contextmanager
def naming_extra(public: str, extra: str) -> Generator[None]:
    """Say which extra installs the package that an import misses.

    Args:
        public: Name of what is imported, for the message.
        extra: Extra of Tokenlake that installs what it needs.

    Raises:
        MissingExtraError: A package is missing; the message has the line that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == _OURS:  # a module of ours that is not there is a fault of the installation
            raise
        raise MissingExtraError(
            f"{public} needs {missing or error}, which is missing: pip install 'tokenlake[{extra}]'",
            package=missing,
        ) from error


def lazy_names(package: str, homes: Mapping[str, str], extra: str) -> Callable[[str], Any]:
    """Return a function of a name that returns its value.

    It raises AttributeError for another name, and MissingExtraError where a package is missing.

    Args:
        package: whose names they are.
        homes: each name and where it is defined, as ``module:name``.
        extra: of Tokenlake, which installs what the modules need.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(homes[name], f"{package}.{name}", extra)

    return value_of


def lazy_package(
    package: str, file: str, extra: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose stub lists its names; see `lazy_names`."""
    homes = stub_names(file)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return lazy_names(package, homes, extra), listed, list(homes)


def public_name(name: str) -> Any:
    """Return what `tokenlake` has by that name: the ``__getattr__`` of other paths to the same names."""
    if name.startswith("_"):  # what the import system asks of every module
        raise AttributeError(name)
    return getattr(import_module("tokenlake"), name)
