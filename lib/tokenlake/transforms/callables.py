"""Functions of a user's own: found by name, run with care, known by their code.

Every process that builds finds a function by its name, ``package.module:function``. Its code decides the result as
much as the configuration does: the plan takes the sha256 of the file that defines it into the build's identity, and
whoever runs it checks that its own file is the same. What that file imports is not looked at.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast, final

from tokenlake.config.callables import callable_names
from tokenlake.config.resolved_texts import ResolvedTexts
from tokenlake.errors import BadRecordError, ConfigError, TokenlakeError
from tokenlake.rows import Row
from tokenlake.transforms.base import ExpandTransform

Function = Callable[[Any], Any]

BUILT_IN: Final = "built-in"
"""In the place of a hash: the function is of Python itself."""

_SEEN: dict[str, tuple[object, str]] = {}  # function and hash, as this process first found them


def load_callable(name: str) -> Function:
    """Return the function called ``package.module:function``.

    Raises:
        ConfigError: it cannot be imported, or is no function.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        raise ConfigError(
            f"the function {name!r} cannot be imported: {type(error).__name__}: {error}. Its module must be importable "
            "in every process of the build: install it, or put its folder on PYTHONPATH",
            callable=name,
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"the function {name!r} does not exist: {module} has no {path}", callable=name)
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name!r} is a {type(found).__name__}, must be a function", callable=name)
    return found


def code_hash(function: Function) -> str:
    """Return the sha256 of the file of the module that defines a function."""
    owner = getattr(function, "__objclass__", function)
    module = sys.modules.get(getattr(owner, "__module__", None) or type(function).__module__)
    file = getattr(module, "__file__", None)
    return BUILT_IN if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def sealed(texts: ResolvedTexts) -> ResolvedTexts:
    """Return the settings with the hashes of their functions' code.

    Raises:
        ConfigError: a function cannot be imported.
    """
    names = callable_names(texts)
    if not names:
        return texts
    return replace(texts, callables=tuple((name, code_hash(load_callable(name))) for name in names))


def open_callable(name: str, texts: ResolvedTexts) -> Function:
    """Return the function called `name`, guarded (see :class:`Guarded`).

    Raises:
        ConfigError: it cannot be imported, or its code is not what the plan found.
    """
    function = load_callable(name)
    if name not in _SEEN or _SEEN[name][0] is not function:
        _SEEN[name] = (function, code_hash(function))
    planned = dict(texts.callables).get(name)
    if planned is not None and planned != _SEEN[name][1]:
        raise ConfigError(
            f"the code of {name!r} is not what was planned: the file of its module has sha256 {_SEEN[name][1]} in this "
            f"process, and had {planned} in the plan. Build again in fresh processes that all see the same file",
            callable=name,
            expected=planned,
            got=_SEEN[name][1],
        )
    return Guarded(name, function)


@final
class Guarded:
    """A function whose exceptions make bad records: the message names it, the exception and what it said."""

    def __init__(self, name: str, function: Function) -> None:
        self._name, self._function = name, function

    def __call__(self, value: Any) -> Any:
        """Call the function.

        Raises:
            BadRecordError: it raised something.
        """
        try:
            return self._function(value)
        except (TokenlakeError, MemoryError):
            raise
        except Exception as error:
            raise BadRecordError(
                f"{self._name} raised {type(error).__name__}: {error}", reason="callable_raised"
            ) from error

    def __repr__(self) -> str:
        return self._name


@final
class RowCallable(ExpandTransform):
    """A function of a row: it returns a row, None to leave it out, or a list of rows."""

    def __init__(self, name: str, function: Function, reason: str) -> None:
        """Take the function; rows that it leaves out are counted under `reason`."""
        self._name, self._function, self.reason = name, function, reason

    def expand(self, example: Row) -> Sequence[Row]:
        """Return the rows that the function makes of a copy of `example`.

        Raises:
            ConfigError: it returned something else.
        """
        result = self._function(dict(example))
        if isinstance(result, dict):
            return (cast("Row", result),)
        if result is None:
            return ()
        if not isinstance(result, list | tuple):
            raise self._refused(result)
        rows = list(cast("Sequence[object]", result))
        for row in rows:
            if not isinstance(row, dict):
                raise self._refused(row)
        return cast("list[Row]", rows)

    def _refused(self, result: object) -> ConfigError:
        return ConfigError(
            f"{self._name} returned a {type(result).__name__}, must be a dict, None to leave the row out, or a list of "
            "dicts",
            callable=self._name,
        )

    def __repr__(self) -> str:
        return f"RowCallable({self._name})"
