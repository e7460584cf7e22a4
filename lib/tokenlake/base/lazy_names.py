"""Public names that are loaded when they are first used.

If a package is missing, the error has the line that installs it.

A stub beside a module lists its names: type checkers read that file, and the module
does, so that each stands once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from tokenlake.base.names_elsewhere import missing_name
from tokenlake.errors import MissingExtraError

_OURS: Final = "tokenlake"


def stub_names(module: str) -> dict[str, str]:
    """Return name -> place of its definition, from the stub beside a module.

    A place is ``module:name``.

    Args:
        module: Path of the module, which ends in ``.py``. Lines of its stub are
            ``from MODULE import NAME as PUBLIC``.
    """
    places: dict[str, str] = {}
    # pathlib would double the time of an import.
    with open(f"{module}i", encoding="utf-8") as stub_file:  # noqa: PTH123
        for stub_line in stub_file:
            words = stub_line.split()
            # Six words: from MODULE import NAME as PUBLIC.
            if len(words) == 6:
                places[words[5]] = f"{words[1]}:{words[3]}"
    return places


def load(home: str, public: str, extra: str) -> Any:
    """Return the object that is defined at ``module:name``.

    Args:
        home: Place of the definition, as ``module:name``.
        public: Public name of the object, for the message.
        extra: Extra of Tokenlake that installs the packages of the module.

    Raises:
        MissingExtraError: A package is missing; the message has the line that installs
            it.
    """
    module, _, name = home.partition(":")
    with naming_extra(public, extra):
        return getattr(import_module(module), name)


@contextmanager
def naming_extra(public: str, extra: str) -> Generator[None]:
    """Say which extra installs the package that an import misses.

    Args:
        public: Public name of the import, for the message.
        extra: Extra of Tokenlake that installs the packages of the import.

    Raises:
        MissingExtraError: A package is missing; the message has the line that installs
            it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing_package = (error.name or "").partition(".")[0]
        # A module of ours that is not there is a fault of the installation.
        if missing_package == _OURS:
            raise
        raise MissingExtraError(
            f"{public} needs {missing_package or error}, which is missing: pip install 'tokenlake[{extra}]'",
            package=missing_package,
        ) from error


def lazy_names(
    package: str, homes: Mapping[str, str], extra: str
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package with lazy names.

    It raises AttributeError for another name, and MissingExtraError if a package is
    missing.

    Args:
        package: Name of the package.
        homes: Name -> place of its definition, as ``module:name``.
        extra: Extra of Tokenlake that installs the packages of the modules.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise missing_name(package, name)
        return load(homes[name], f"{package}.{name}", extra)

    return value_of


def lazy_package(
    package: str, file: str, extra: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package with a stub.

    The stub lists its names.

    Args:
        package: Name of the package.
        file: Path of its ``__init__.py``.
        extra: Extra of Tokenlake that installs the packages of its modules.
    """
    homes = stub_names(file)

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return lazy_names(package, homes, extra), listed, list(homes)


def public_name(name: str) -> Any:
    """Return the object of a public name of `tokenlake`.

    It is the ``__getattr__`` of other paths to the same names.
    """
    if name.startswith("_"):  # the import system asks every module for such names
        raise AttributeError(name)
    return getattr(import_module("tokenlake"), name)
