"""YAML with line numbers: safe types only, duplicate keys refused.

A file may come from anywhere (a configuration in a bucket, a card of the Hub), so its
cost is bounded before it is parsed: its size, its depth, the number of values that its
anchors unfold to (nine lines can stand for a billion values), and the length of its
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import yaml

from tokenlake.errors import ConfigError

MAX_BYTES: Final = 4 << 20
"""Largest number of characters of a file; parsing takes two seconds for each MiB."""

MAX_DEPTH: Final = 100
"""Largest depth of nested values."""

MAX_VALUES: Final = 1_000_000
"""Largest number of values of a file whose anchors are unfolded."""

_MAX_NUMBER: Final = 400
"""Characters of a number; one to the base of 60 is made in quadratic time."""
_TEXT: Final = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed file.

    Attributes:
        name: Path of the file, for messages.
        data: Values of the file.
        root: Node of the document, from which :meth:`line_of` finds lines; None for an
            empty file.
    """

    name: str
    data: Any
    root: yaml.Node | None

    def line_of(self, location: tuple[int | str, ...]) -> int | None:
        """Return the line of a value, counted from 1.

        A part of the location that the file lacks has the line of the part before it.
        """
        node = self.root
        line_number: int | None = None
        for key_or_index in location:
            entry = None if node is None else _entry(node, key_or_index)
            if entry is None:
                break
            key_node, node = entry
            line_number = key_node.start_mark.line + 1
        return line_number


def parse_yaml(text: str, name: str) -> YamlFile:
    """Parse one YAML document.

    Args:
        text: Text of the document.
        name: Path of its file, for messages.

    Raises:
        ConfigError: The text is not YAML, has two equal keys in a mapping, contains
            itself, or is larger or deeper than any configuration.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"{name}: {len(text):,} characters, expected at most {MAX_BYTES:,}; "
            "name many files by a glob or a folder",
            file=name,
        )
    # The tree of nodes is checked before values are made of it: nodes are few, and the
    # values of their aliases may be many.
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            content: Any = None
            if root is not None:
                _values_of(root, name, (), {})
                content = cast("Any", loader).construct_document(root)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError) as error:
        # ValueError: a scalar like 2024-13-45 that looks like a date and is none;
        # TypeError: << of a value that is no mapping.
        reason = getattr(error, "problem", None) or error
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise ConfigError(
                f"{name}: not YAML: {reason}", file=name, lines=[]
            ) from None
        line_number = mark.line + 1
        place = f"{name}:{line_number}:{mark.column + 1}"
        raise ConfigError(
            f"{place}: not YAML: {reason}", file=name, lines=[line_number]
        ) from None
    except RecursionError:
        raise _too_deep(name) from None
    return YamlFile(name, content, root)


def _too_deep(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: nested more than {MAX_DEPTH} levels deep; expected fewer", file=name
    )


def _values_of(
    node: yaml.Node, name: str, above: tuple[int, ...], value_counts: dict[int, int]
) -> int:
    """Return the number of values that a node stands for, its aliases written out.

    Args:
        node: Node to count.
        name: Path of the file, for messages.
        above: Ids of the nodes that contain it.
        value_counts: Id of a node -> its number of values. An alias is the node that it
            names.

    Raises:
        ConfigError: The values are too many, the node is too deep or in itself, or two
            of its keys are equal.
    """
    line_number = node.start_mark.line + 1
    place = f"{name}:{line_number}"
    # 1. A node that contains itself has no end. One that was counted before is an
    #    alias, and is not entered again: the work grows with the file, not with the
    #    values that its anchors expand to.
    if id(node) in above:
        raise ConfigError(
            f"{place}: this anchor contains itself", file=name, lines=[line_number]
        )
    if id(node) in value_counts:
        return value_counts[id(node)]
    if len(above) > MAX_DEPTH:
        raise _too_deep(name)
    # 2. The children. The values of a node are itself and those of its children.
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        entries = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        _require_different_keys(entries, name)
        for key_node, value_node in entries:
            children += [key_node, value_node]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    elif node.tag != _TEXT and len(node.value) > _MAX_NUMBER:
        raise ConfigError(
            f"{place}: {len(node.value):,} characters that look like a number or a date; if it is a text, put quotes "
            "around it",
            file=name,
            lines=[line_number],
        )
    # 3. The sum, which an alias adds as often as it is used.
    ancestors = (*above, id(node))
    value_count = 1
    for child in children:
        value_count += _values_of(child, name, ancestors, value_counts)
    if value_count > MAX_VALUES:
        message = f"{place}: its anchors expand to more than {MAX_VALUES:,} values"
        raise ConfigError(message, file=name, lines=[line_number])
    value_counts[id(node)] = value_count
    return value_count


def _require_different_keys(
    entries: list[tuple[yaml.Node, yaml.Node]], name: str
) -> None:
    """Raise ConfigError, with both lines, if a mapping has the same key twice."""
    first_lines: dict[tuple[str, str], int] = {}
    for key_node, _ in entries:
        if not isinstance(key_node, yaml.ScalarNode):
            continue
        # The tag is a part of the key: 1 and "1" are different ones.
        spelling = (str(key_node.tag), str(key_node.value))
        line_number = key_node.start_mark.line + 1
        if spelling in first_lines:
            first_line = first_lines[spelling]
            message = f"key {key_node.value!r} is already on line {first_line}"
            raise ConfigError(
                f"{name}:{line_number}: {message}", file=name, lines=[line_number]
            )
        first_lines[spelling] = line_number


def _entry(node: yaml.Node, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value of an entry; None where there is none.

    The entry of a list is its own key.
    """
    if isinstance(node, yaml.MappingNode):
        entries = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
        for key_node, value_node in entries:
            if key_node.value == str(part):
                return key_node, value_node
        return None
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        items = cast("list[yaml.Node]", node.value)
        if part < len(items):
            return items[part], items[part]
    return None
