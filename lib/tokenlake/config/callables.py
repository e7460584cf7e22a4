"""Names of functions: a configuration holds ``package.module:function``, which every process can find."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from tokenlake.errors import ConfigError

if TYPE_CHECKING:
    from tokenlake.config.resolved import ResolvedTexts

PATTERN: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
"""Of the name of a function."""

_ARGUMENTS: Final = ("function", "combiner")
_ALONE: Final = ("apply", "filter")


def is_callable_name(value: object) -> bool:
    """Say whether a value is spelled like the name of a function."""
    return isinstance(value, str) and re.fullmatch(PATTERN, value) is not None


def callable_name(function: object) -> str:
    """Return the ``module:function`` under which another process finds the same function.

    Raises:
        ConfigError: none does: a lambda, a function inside a function, one of ``__main__``, an object.
    """
    if isinstance(function, str):
        return function
    module, path = _home(function)
    why = _unfindable(function, module, path)
    if why:
        shown = path or type(function).__name__
        raise ConfigError(
            f"the function {shown} of {module or 'no module'} cannot run in worker processes: {why}. Define it with "
            "`def` at the top of a module that workers can import, and give that function, or its name "
            "'package.module:function'",
            callable=f"{module}:{shown}",
        )
    return f"{module}:{path}"


def callable_names(texts: ResolvedTexts) -> tuple[str, ...]:
    """Return the names of all functions that rows are given to, each once."""
    found = [texts.format_callback] if texts.format_callback else []
    for step in texts.transforms:
        for kind, arguments in step.items():
            found += _names(kind, arguments)
    return tuple(dict.fromkeys(found))


def _names(kind: str, arguments: Any) -> Iterator[str]:
    if kind in _ALONE:
        yield str(arguments)
    elif kind in ("map", "filter_by", "combine"):
        given = cast("dict[str, Any]", arguments)
        yield from (str(given[key]) for key in _ARGUMENTS if given.get(key) is not None)


def _home(function: object) -> tuple[str, str]:
    owner = getattr(function, "__objclass__", function)
    module = getattr(owner, "__module__", None) or ""
    return str(module), str(getattr(function, "__qualname__", ""))


def _unfindable(function: object, module: str, path: str) -> str | None:
    if "<lambda>" in path:
        return "a lambda has no name to import it by"
    if "<locals>" in path:
        return "it is defined inside another function, so that no import finds it"
    if module == "__main__":
        return "it is defined in the script or notebook that runs, which workers do not run again"
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    # Methods of classes are made anew at every access, but compare equal.
    if not path or found is None or found != function:
        return "the name it has does not import back to it"
    return None
