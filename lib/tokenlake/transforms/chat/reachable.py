"""Which attributes and methods a template may reach, by the kind of value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.utils import Cycler, Namespace

OF_DICTS: Final = frozenset(dir(dict))
"""Names that are no fields of a dict when asked for as ``dict.name``."""

_TEXT: Final = """
    capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal
    isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper zfill
"""
_LOOP: Final = """
    index index0 revindex revindex0 first last length previtem nextitem depth depth0 cycle changed
"""
_Kinds = type[Any] | tuple[type[Any], ...]
_REACHABLE: Final[tuple[tuple[_Kinds, frozenset[str]], ...]] = (
    (str, frozenset(_TEXT.split())),
    (Mapping, frozenset({"get", "items", "keys", "values", "copy"})),
    ((list, tuple), frozenset({"count", "index", "copy"})),
    (LoopContext, frozenset(_LOOP.split())),
    (range, frozenset({"start", "stop", "step", "count", "index"})),
    (float, frozenset({"is_integer"})),
    (Macro, frozenset({"name", "arguments", "catch_kwargs", "catch_varargs", "caller"})),
    (Cycler, frozenset({"next", "reset", "current"})),
    (BlockReference, frozenset({"super"})),
)


def is_reachable(value: Any, name: str) -> bool:
    """Return whether a template may have the attribute `name` of `value`; of a namespace, all that it was given."""
    if name.startswith("_"):
        return False
    if isinstance(value, Namespace):
        return True
    return any(isinstance(value, kind) and name in names for kind, names in _REACHABLE)
