"""Public names of a package that are loaded when they are first used, and what to install where that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tokenlake.errors import MissingExtraError


def lazy_names(package: str, homes: Mapping[str, str], extra: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: its name.
        homes: each public name and the module of the package that defines it.
        extra: of Tokenlake, which installs what the modules need.

    Returns:
        name -> its value; AttributeError where it is none of these, MissingExtraError where a package is missing.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"{package}.{name} needs {error.name}, which is missing: pip install 'tokenlake[{extra}]'"
            ) from error

    return load
