"""How a configuration names published filters of quality, and constants of its own for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from tokenlake.config.quality_constants import CONSTANTS, QualityFilters
from tokenlake.config.section import Section, Text, problem, shown
from tokenlake.config.values import did_you_mean


def _entries(value: object) -> object:
    """Return (name, constants) of each filter; a text alone is a filter as it was published."""
    entries = cast("list[object]", value if isinstance(value, list | tuple) else [value])
    return tuple(_entry(entry) for entry in entries)


def _entry(entry: object) -> tuple[str, tuple[tuple[str, float], ...]]:
    if isinstance(entry, str):
        return _known(entry), ()
    if not isinstance(entry, Mapping) or len(cast("Mapping[str, Any]", entry)) != 1:
        raise problem(
            f"got {shown(entry)}, must be the name of a filter, or a mapping of one to its constants"
        )
    ((name, constants),) = cast("Mapping[str, Any]", entry).items()
    if not isinstance(constants, Mapping):
        raise problem(f"{name}: got {shown(constants)}, must be a mapping of constants to numbers")
    given = cast("Mapping[str, Any]", constants)
    return _known(name), tuple(sorted(_constant(name, key, number) for key, number in given.items()))


def _known(name: str) -> str:
    if name not in CONSTANTS:
        raise problem(
            f"unknown filter {name!r}{did_you_mean(name, CONSTANTS)} (known here: {', '.join(CONSTANTS)})"
        )
    return name


def _constant(name: str, key: str, number: object) -> tuple[str, float]:
    known = CONSTANTS[_known(name)]
    if key not in known:
        raise problem(
            f"{name}: unknown constant {key!r}{did_you_mean(key, known)} (known here: {', '.join(known)})"
        )
    if not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise problem(f"{name}.{key}: got {shown(number)}, must be a number, at least 0")
    return key, float(number)


def _different(value: QualityFilters) -> QualityFilters:
    names = [name for name, _ in value]
    if twice := [name for name in names if names.count(name) > 1]:
        raise problem(f"the filter {twice[0]!r} is named twice")
    return value


def _written(value: QualityFilters) -> list[str | dict[str, dict[str, float]]]:
    """Return filters as a configuration has them."""
    return [{name: dict(constants)} if constants else name for name, constants in value]


_NAMES: Final[dict[str, Any]] = {"type": "string", "enum": list(CONSTANTS)}
_OWN: Final[dict[str, Any]] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"type": "number", "minimum": 0} for key in constants},
        }
        for name, constants in CONSTANTS.items()
    },
}

Quality = Annotated[
    QualityFilters,
    AfterValidator(_different),
    BeforeValidator(_entries),
    PlainSerializer(_written),
    WithJsonSchema({"anyOf": [_NAMES, {"type": "array", "items": {"anyOf": [_NAMES, _OWN]}}]}),
]
"""One name of a filter, or a list of names and of {name: {constant: another value}}."""


class QualityArguments(Section):
    """Published filters that a text must pass."""

    filters: Quality
    """gopher_repetition, gopher_quality, c4, fineweb: in the order in which they are asked."""

    field: Text = "text"
    """Field of the text."""
