"""Load a section from a YAML file or a mapping: validated, or one error for everything.

The error lists every problem.

Overrides (``--set pack.seq_length=512``) change single keys: a key is a dotted path, in
which a dataset is named by its position or its name; a value is YAML (``true``, ``[a,
b]``, ``{env: HF_TOKEN}``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from tokenlake.base.checks import did_you_mean, nearest
from tokenlake.base.key_places import hint_of_place
from tokenlake.base.section import (
    DATASET_NAME,
    LITERALS_REFUSED,
    UNKNOWN_KEY,
    Section,
    path_of,
)
from tokenlake.base.yaml_file import MAX_BYTES, YamlFile, parse_yaml
from tokenlake.errors import ConfigError

_S = TypeVar("_S", bound=Section)

_DATA_SUFFIXES: Final = frozenset(
    {".jsonl", ".parquet", ".csv", ".tsv", ".arrow", ".txt", ".gz", ".zst", ".npy"}
)
"""Endings of files that are data, and never a configuration."""

# A plain text stands for the section with this one key, so `tokenizer.max_length` can
# be set beside it.
_TEXT_MEANS: Final[dict[int | str, str]] = {
    "tokenizer": "name_or_path",
    "default_tokenizer": "name_or_path",
}


def apply_overrides(
    data: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[tuple[int | str, ...]]]:
    """Return a configuration with overrides applied in order, and the changed places.

    Args:
        data: Configuration, which is not changed.
        overrides: Texts ``key=value``.

    Raises:
        ConfigError: An override is not ``key=value``, or its path leads into a value
            without keys. Its detail `override` names the override.
    """
    changed: Any = dict(data)
    places: list[tuple[int | str, ...]] = []
    for override in overrides:
        key, separator, value_text = map(str.strip, override.partition("="))
        key_parts = key.split(".")
        if not separator or not all(key_parts):
            title = f"override {override!r}"
            raise ConfigError(
                f"{title}: must be key=value, such as pack.seq_length=512",
                override=title,
            )
        # The value is YAML: its errors name the override in the place of a file.
        title = f"override of {key}"
        try:
            value = parse_yaml(value_text, title).data
            changed, place = _with(changed, key_parts, value, key)
        except ConfigError as error:
            error.details["override"] = title
            raise
        places.append(place)
    return changed, places


def _with(
    node: Any, parts: list[str], value: Any, key: str
) -> tuple[Any, tuple[int | str, ...]]:
    """Return a copy of a configuration, or of a part, with another value at a path.

    Args:
        node: Configuration or part; only the values on the path are copied.
        parts: Path of the value.
        value: New value.
        key: Key of the override, for messages.

    Returns:
        The copy, and the path with entries of lists by position.

    Raises:
        ConfigError: The path leads to no entry of a list, or into a value that has no
            keys.
    """
    if not parts:
        return value, ()
    index: int | str = parts[0]
    if isinstance(node, list | tuple):
        new_node: Any = list(cast("list[Any]", node))
        index = _position_of(parts[0], new_node, key)
        child = new_node[index]
    elif node is None or isinstance(node, Mapping | Section):
        # A section that is left out begins with its first key.
        new_node = dict(cast("Mapping[str, Any]", node or {}))
        child = new_node.get(index)
    else:
        raise ConfigError(
            f"override of {key}: {'.'.join(parts)!r} leads into a value without keys"
        )
    if len(parts) > 1 and isinstance(child, str) and index in _TEXT_MEANS:
        child = {_TEXT_MEANS[index]: child}
    new_node[index], place = _with(child, parts[1:], value, key)
    return new_node, (index, *place)


def _position_of(word: str, entries: list[Any], key: str) -> int:
    """Return the position of a dataset in a list: a name comes before a number.

    Args:
        word: Name or position of the dataset.
        entries: List of datasets.
        key: Key of the override, for the message.

    Raises:
        ConfigError: The list has no such entry.
    """
    # A dataset without a name gets that of its position when it is resolved.
    names: list[str] = []
    for position, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            name = cast("Mapping[str, Any]", entry).get("name")
        else:
            name = getattr(entry, "name", None)
        names.append(f"dataset_{position}" if name is None else str(name))
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names):
        return int(word)
    raise ConfigError(
        f"override of {key}: no entry {word!r}{did_you_mean(word, names)} "
        f"(there are {len(names)}: {', '.join(names) or 'none'}; a number counts from 0)"
    )


def load_section(
    model: type[_S],
    source: _S | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    example: str,
) -> tuple[_S, YamlFile | None]:
    """Return the section of a file, a mapping or a model, and the file of it.

    Overrides are applied to it.

    Args:
        model: Model of the whole file. If it has a `name`, a file's stem is the default
            one.
        source: Path of a YAML file, a mapping, or the section itself.
        overrides: Texts ``key=value``.
        example: Example of a file, for the message about one that is no mapping.

    Raises:
        ConfigError: Any option is wrong; the message has a line for each problem.
    """
    if isinstance(source, model) and not overrides:
        return source, None
    data, file = read_document(model, source, example)
    return validate_section(model, data, file, overrides), file


def read_document(
    model: type[_S], source: object, example: str
) -> tuple[Mapping[str, Any], YamlFile | None]:
    """Return a configuration before validation, and the file that it came from.

    Args:
        model: Model of the whole file.
        source: Path of a YAML file, a mapping, or the section itself.
        example: Example of a file, for the message about one that is no mapping.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or is no mapping.
    """
    if isinstance(source, model):
        return dict(source), None
    if isinstance(source, Mapping):
        return cast("Mapping[str, Any]", source), None
    path = Path(cast("str", source))
    file = parse_yaml(config_text(path), str(path))
    if not isinstance(file.data, dict):
        content = "something else"
        if file.root is None:
            content = "nothing"
        raise ConfigError(
            f"{path}: got {content}, must be a mapping of keys, such as {example}",
            file=str(path),
        )
    # The name of the file is that of the dataset, where it can be one.
    document = cast("dict[str, Any]", file.data)
    needs_name = "name" in model.model_fields and document.get("name") is None
    if needs_name and re.fullmatch(DATASET_NAME, path.stem):
        document = {**document, "name": path.stem}
    return document, file


def config_text(path: Path) -> str:
    """Return the text of a configuration's file.

    Of a file that is too large, it is enough for the file to be refused.

    Raises:
        ConfigError: The file does not exist, or cannot be read as UTF-8.
    """
    kind = ""
    if path.is_dir():
        kind = "a folder"
    elif path.suffix.lower() in _DATA_SUFFIXES:
        kind = "data"
    if kind:
        raise ConfigError(
            f"{path}: this is {kind}, and not a configuration; expected a YAML file. `tokenlake init --data {path}` "
            "writes one that reads data",
            file=str(path),
        )
    try:
        with path.open("rb") as file:
            # One byte more than is allowed; the rest, of a device perhaps, is never
            # read.
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file{_near_file(path)}", file=str(path)
        ) from None
    except (OSError, ValueError) as error:
        # ValueError: bytes that are not UTF-8, or a name that no file can have.
        raise ConfigError(
            f"{path}: cannot be read as a UTF-8 text file: {error}", file=str(path)
        ) from None


def _near_file(path: Path) -> str:
    """Return the end of a message about a missing file.

    It names a configuration of a similar name, or the missing folder.
    """
    folder = path.parent
    if not folder.is_dir():
        return f" (nor a folder {folder})"
    file_names: set[str] = set()
    for file in folder.iterdir():
        if file.suffix in (".yaml", ".yml"):
            file_names.add(file.name)
    near_name = nearest(path.name, file_names)
    if near_name is None:
        return ""
    return f"; did you mean {str(folder / near_name)!r}?"


def validate_section(
    model: type[_S],
    data: Mapping[str, Any],
    file: YamlFile | None,
    overrides: Sequence[str],
) -> _S:
    """Return the validated section of a configuration with overrides.

    Args:
        model: Model of the section.
        data: Configuration before validation.
        file: File that it came from; None for a mapping from Python code.
        overrides: Texts ``key=value``.

    Raises:
        ConfigError: Any option is wrong. The message has a line for each problem; the
            details `overridden` and `lines` tell problems of overrides from those of
            the file.
    """
    changed, places = apply_overrides(data, overrides)
    # Python code may give a secret; a file and a command line are read by others.
    context = {LITERALS_REFUSED: True} if file is not None or overrides else {}
    try:
        return model.model_validate(changed, context=context)
    except ValidationError as error:
        raise _all_problems(error, model, file, places) from None


def _all_problems(
    error: ValidationError,
    model: type[Section],
    file: YamlFile | None,
    places: Sequence[tuple[str | int, ...]],
) -> ConfigError:
    """Return one error that lists the problems of a validation.

    Args:
        error: Error of the validation.
        model: Model of the section.
        file: File that the configuration came from; None for one from Python code.
        places: Locations of the values that overrides set.
    """
    problems: list[str] = []
    override_problems: list[str] = []
    line_numbers: list[int] = []  # lines of the file with the other problems
    for details in error.errors():
        location = details["loc"]
        message = details["msg"]
        if details["type"] == UNKNOWN_KEY:
            # A key that another section has is named with its path, rather than a key
            # of a similar name.
            hint = hint_of_place(model, str(location[-1]), path_of(location))
            if hint:
                message = f"unknown key{hint}"
        # A problem of an override has no line: its value is not in the file.
        line_number = None if file is None else file.line_of(location)
        is_overridden = any(location[: len(place)] == place for place in places)
        origin = ""
        if is_overridden:
            origin = " (override)"
        elif line_number is not None:
            origin = f" (line {line_number})"
        # A problem of the whole configuration has no path.
        problem = message
        if location:
            problem = f"{path_of(location)}{origin}: {message}"
        # The error has the lines of the file, and problems of overrides apart.
        problems.append(problem)
        if is_overridden:
            override_problems.append(problem)
        elif line_number is not None:
            line_numbers.append(line_number)
    file_name = None if file is None else file.name
    all_problems = problems_error(ConfigError, problems, file_name)
    all_problems.details |= {"overridden": override_problems, "lines": line_numbers}
    return all_problems


def problems_error(
    kind: type[ConfigError], problems: list[str], file: str | None = None
) -> ConfigError:
    """Return one error that lists all problems of a configuration.

    Args:
        kind: Class of the error.
        problems: Messages.
        file: Path of the file; None for a configuration from Python code.
    """
    lines = list(problems)
    if len(problems) > 1:
        lines.insert(0, f"{len(problems)} problems in the configuration")
    prefix = ""
    if file:
        prefix = f"{file}: "
    return kind(prefix + "\n  ".join(lines), file=file, problems=problems)
