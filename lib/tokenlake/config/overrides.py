"""``--set pack.seq_length=512``: single keys of a configuration, changed from outside.

A key is a dotted path; a dataset is named by its position or its name (``datasets.0.type``,
``datasets.code.type``). A value is YAML: ``true``, ``512``, ``[a, b]``, ``{env: HF_TOKEN}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tokenlake.config.near import did_you_mean
from tokenlake.config.section import Section
from tokenlake.config.yaml_file import parse_yaml
from tokenlake.errors import ConfigError

# A plain text stands for the section with this one key, so `tokenizer.max_length` can be set beside it.
_TEXT_MEANS: Final = {"tokenizer": "name_or_path", "default_tokenizer": "name_or_path"}


@dataclass(frozen=True, slots=True)
class Overridden:
    """A configuration with overrides applied, and the places they changed (positions, not names)."""

    data: dict[str, Any]
    places: tuple[tuple[int | str, ...], ...]

    def covers(self, location: tuple[int | str, ...]) -> bool:
        """Return whether `location` is at or below a changed place."""
        return any(location[: len(place)] == place for place in self.places)


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> Overridden:
    """Return `data` with every override applied in order; `data` itself stays as it is.

    Raises:
        ConfigError: an override is not ``key=value``, or its path leads into something that is no section.
    """
    changed: Any = dict(data)
    places: list[tuple[int | str, ...]] = []
    for override in overrides:
        key, separator, text = (part.strip() for part in override.partition("="))
        parts = key.split(".")
        if not separator or not all(parts):
            raise ConfigError(f"override {override!r}: must be key=value, such as pack.seq_length=512")
        changed = _with(changed, parts, parse_yaml(text, f"override of {key}").data, key)
        places.append(_place(changed, parts, key))
    return Overridden(changed, tuple(places))


def _place(node: Any, parts: list[str], key: str) -> tuple[int | str, ...]:
    """Return the path `parts` with entries of lists by their positions."""
    if not parts:
        return ()
    if isinstance(node, list):
        items = cast("list[Any]", node)
        position = _position(items, parts[0], key)
        return (position, *_place(items[position], parts[1:], key))
    child = _entries(node, parts, key).get(parts[0])
    return (parts[0], *_place(child, parts[1:], key))


def _with(node: Any, parts: list[str], value: Any, key: str) -> Any:
    """Return `node` with `value` at the end of the path `parts`; what is on the path is copied."""
    if not parts:
        return value
    if isinstance(node, list | tuple):
        return _with_item(list(cast("list[Any]", node)), parts, value, key)
    entries = _entries(node, parts, key)
    child = entries.get(parts[0])
    if len(parts) > 1 and isinstance(child, str) and parts[0] in _TEXT_MEANS:
        child = {_TEXT_MEANS[parts[0]]: child}
    entries[parts[0]] = _with(child, parts[1:], value, key)
    return entries


def _entries(node: Any, parts: list[str], key: str) -> dict[str, Any]:
    if node is None:
        return {}
    if isinstance(node, Section):
        return dict(node)
    if isinstance(node, Mapping):
        return dict(cast("Mapping[str, Any]", node))
    raise ConfigError(f"override of {key}: {'.'.join(parts)!r} leads into a value that has no keys")


def _with_item(items: list[Any], parts: list[str], value: Any, key: str) -> list[Any]:
    position = _position(items, parts[0], key)
    items[position] = _with(items[position], parts[1:], value, key)
    return items


def _position(items: list[Any], part: str, key: str) -> int:
    names = [_name(item, position) for position, item in enumerate(items)]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    raise ConfigError(
        f"override of {key}: no entry {part!r}{did_you_mean(part, names)} "
        f"(there are {len(items)}: {', '.join(names) or 'none'}; a number counts from 0)"
    )


def _name(item: Any, position: int) -> str:
    named = (
        cast("Mapping[str, Any]", item).get("name")
        if isinstance(item, Mapping)
        else getattr(item, "name", None)
    )
    return str(named) if named is not None else f"dataset_{position}"
