"""YAML that says where things are: safe types only, duplicate keys refused, line numbers kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import yaml

from tokenlake.errors import ConfigError


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file: its data, and its nodes for :meth:`line_of`."""

    name: str
    data: Any
    root: yaml.Node | None

    @property
    def has_keys(self) -> bool:
        """Whether the file is a mapping, as a configuration must be."""
        return isinstance(self.data, dict)

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
        ConfigError: the text is not YAML, has two equal keys in a mapping, or contains itself.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _refuse_duplicates(root, name, (), set())
            data: Any = None if root is None else cast("Any", loader).construct_document(root)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a scalar like 2024-13-45 that looks like a date and is none.
        raise ConfigError(f"{_where(error, name)}: not YAML: {_what(error)}", file=name) from None
    return YamlFile(name, data, root)


def _where(error: Exception, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"


def _what(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error)


def _refuse_duplicates(node: yaml.Node, name: str, above: tuple[int, ...], done: set[int]) -> None:
    if id(node) in above:
        raise ConfigError(f"{name}:{node.start_mark.line + 1}: this anchor contains itself", file=name)
    if id(node) in done:
        return
    done.add(id(node))
    for child in _children(node, name):
        _refuse_duplicates(child, name, (*above, id(node)), done)


def _children(node: yaml.Node, name: str) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return cast("list[yaml.Node]", node.value)
    if not isinstance(node, yaml.MappingNode):
        return []
    first: dict[tuple[str, str], int] = {}
    for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        if isinstance(key, yaml.ScalarNode):
            line, known = key.start_mark.line + 1, (str(key.tag), str(key.value))
            if known in first:
                raise ConfigError(
                    f"{name}:{line}: key {key.value!r} is already on line {first[known]}", file=name
                )
            first[known] = line
    return [value for _, value in node.value]


def _entry(node: yaml.Node, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        entries = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        return next(((key, value) for key, value in entries if key.value == str(part)), None)
    items = cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else []
    return (items[part], items[part]) if isinstance(part, int) and part < len(items) else None
