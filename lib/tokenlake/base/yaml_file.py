"""YAML that says where things are: safe types only, duplicate keys refused, line numbers kept.

A file may come from anywhere (a configuration in a bucket, a card of the Hub), so that what it may cost is bounded
before anything is made of it: its size, its depth, what its anchors unfold to (nine lines can stand for a billion
values), and the length of what would become a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import yaml

from tokenlake.errors import ConfigError

MAX_BYTES: Final = 4 << 20
"""Of a file; parsing takes some two seconds for each MiB."""
MAX_DEPTH: Final = 100
MAX_VALUES: Final = 1_000_000
"""Of a file whose anchors are unfolded."""
_MAX_NUMBER: Final = 400  # characters; a number to the base of 60 is made in quadratic time
_TEXT: Final = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: its data, and its nodes for :meth:`line_of`."""

    name: str
    data: Any
    root: yaml.Node | None

    def line_of(self, location: tuple[int | str, ...]) -> int | None:
        """Return the 1-based line of the deepest part of `location` that is in the file, or None."""
        node, line = self.root, None
        for part in location:
            found = None if node is None else _entry(node, part)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line + 1
        return line


def parse_yaml(text: str, name: str) -> YamlFile:
    """Parse one YAML document.

    Raises:
        ConfigError: the text is not YAML, has two equal keys in a mapping, contains itself, or is larger or deeper
            than any configuration.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"{name}: {len(text):,} characters, expected at most {MAX_BYTES:,}; "
            "name many files by a glob or a folder",
            file=name,
        )
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _values_of(root, name, (), {})
            data: Any = None if root is None else cast("Any", loader).construct_document(root)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError) as error:
        # ValueError: a scalar like 2024-13-45 that looks like a date and is none; TypeError: << of what is no mapping.
        mark, what = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
        lines = [] if mark is None else [mark.line + 1]
        raise ConfigError(f"{where}: not YAML: {what or error}", file=name, lines=lines) from None
    except RecursionError:
        raise _too_deep(name) from None
    return YamlFile(name, data, root)


def _too_deep(name: str) -> ConfigError:
    return ConfigError(f"{name}: nested more than {MAX_DEPTH} deep, which no configuration is", file=name)


def _values_of(node: yaml.Node, name: str, above: tuple[int, ...], known: dict[int, int]) -> int:
    """Return how many values a node stands for, its aliases written out.

    Args:
        above: ids of the nodes that it is in.
        known: id of a node -> how many; an alias is the node that it names.

    Raises:
        ConfigError: these are too many, the node is too deep or in itself, or two of its keys are equal.
    """
    number = node.start_mark.line + 1
    place = f"{name}:{number}"
    if id(node) in above:
        raise ConfigError(f"{place}: this anchor contains itself", file=name, lines=[number])
    if id(node) in known:
        return known[id(node)]
    if len(above) > MAX_DEPTH:
        raise _too_deep(name)
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in cast("list[tuple[yaml.Node, yaml.Node]]", node.value) for part in pair]
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key in children[::2] if isinstance(key, yaml.ScalarNode)):
            line, spelled = key.start_mark.line + 1, (str(key.tag), str(key.value))
            if spelled in lines:
                told = f"key {key.value!r} is already on line {lines[spelled]}"
                raise ConfigError(f"{name}:{line}: {told}", file=name, lines=[line])
            lines[spelled] = line
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    elif node.tag != _TEXT and len(node.value) > _MAX_NUMBER:
        raise ConfigError(
            f"{place}: {len(node.value):,} characters that look like a number or a date; put quotes around a text",
            file=name,
            lines=[number],
        )
    inside = (*above, id(node))
    total = 1 + sum(_values_of(child, name, inside, known) for child in children)
    if total > MAX_VALUES:
        told = f"{place}: its anchors unfold to more than {MAX_VALUES:,} values"
        raise ConfigError(told, file=name, lines=[number])
    known[id(node)] = total
    return total


def _entry(node: yaml.Node, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        entries = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return next(((key, value) for key, value in entries if key.value == str(part)), None)
    items = cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else []
    return (items[part], items[part]) if isinstance(part, int) and part < len(items) else None
