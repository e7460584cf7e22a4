"""From a YAML file, a mapping or a model to a validated configuration, or to one error with every problem.

Overrides (``--set pack.seq_length=512``) change single keys: a key is a dotted path, in which a dataset is named by its
position or its name; a value is YAML (``true``, ``[a, b]``, ``{env: HF_TOKEN}``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.secret import LITERALS_REFUSED
from tokenlake.config.section import Section, path_of
from tokenlake.config.suggestion import did_you_mean, nearest
from tokenlake.config.values import DATASET_NAME
from tokenlake.config.yaml_file import MAX_BYTES, YamlFile, parse_yaml
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
        places.append(_overrides_place(changed, parts, key))
    return Overridden(changed, tuple(places))


def _overrides_place(node: Any, parts: list[str], key: str) -> tuple[int | str, ...]:
    """Return the path `parts` with entries of lists by their positions."""
    if not parts:
        return ()
    if isinstance(node, list):
        items = cast("list[Any]", node)
        position = _position(items, parts[0], key)
        return (position, *_overrides_place(items[position], parts[1:], key))
    child = _entries(node, parts, key).get(parts[0])
    return (parts[0], *_overrides_place(child, parts[1:], key))


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


ConfigSource = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]

_EXAMPLE: Final = "datasets: [{data_files: 'data/*.jsonl', tokenizer: openai-community/gpt2}]"


@dataclass(frozen=True, slots=True)
class _UncheckedConfig:
    """A configuration before validation, and where it came from."""

    data: Mapping[str, Any]
    file: YamlFile | None = None


def load_config(source: ConfigSource, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration that `source` and `overrides` describe.

    Args:
        source: path of a YAML file, a mapping, or a configuration.
        overrides: ``key=value`` texts, see :mod:`tokenlake.config.load`.

    In a file and in overrides a secret must be a reference. A file's stem is the default `name`.

    Raises:
        ConfigError: anything is wrong; the message has a line for each problem, with key, value, what is
            allowed, the nearest match, and the line of the file.
    """
    if isinstance(source, PipelineConfig) and not overrides:
        return _consistent(source, None)
    document = _document(source)
    return _consistent(_validated(document, overrides), document.file)


def _consistent(config: PipelineConfig, file: YamlFile | None) -> PipelineConfig:
    problems = config.validate()
    if problems:
        raise _error(file, problems)
    return config


def _document(source: ConfigSource) -> _UncheckedConfig:
    if isinstance(source, PipelineConfig):
        return _UncheckedConfig(dict(source))
    if isinstance(source, Mapping):
        return _UncheckedConfig(source)
    path = Path(source)
    file = parse_yaml(config_text(path), str(path))
    if not file.has_keys:
        got = "nothing" if file.root is None else "something else"
        raise ConfigError(f"{path}: got {got}, must be a mapping of keys, such as {_EXAMPLE}", file=str(path))
    data = cast("dict[str, Any]", file.data)
    if data.get("name") is None and re.fullmatch(DATASET_NAME, path.stem):
        data = {**data, "name": path.stem}
    return _UncheckedConfig(data, file)


def config_text(path: Path) -> str:
    """Return the text of a configuration's file, or so much of it that it is refused for its size."""
    try:
        with path.open("rb") as file:
            # A byte more than is allowed: what is behind it, of a device perhaps, is never read.
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_near_file(path)}", file=str(path)) from None
    except (OSError, ValueError) as error:
        # ValueError: bytes that are not UTF-8, or a name that no file can have.
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file: {error}", file=str(path)) from None


def _near_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (nor a folder {folder})"
    files = {item.name for item in folder.iterdir() if item.suffix in (".yaml", ".yml")}
    near = nearest(path.name, files)
    return f"; did you mean {str(folder / near)!r}?" if near else ""


def _validated(document: _UncheckedConfig, overrides: Sequence[str]) -> PipelineConfig:
    overridden = apply_overrides(document.data, overrides)
    context = {LITERALS_REFUSED: True} if document.file is not None or overrides else {}
    try:
        return PipelineConfig.model_validate(overridden.data, context=context)
    except ValidationError as error:
        lines = [
            f"{_place(document.file, overridden, details['loc'])}{details['msg']}"
            for details in error.errors()
        ]
        raise _error(document.file, lines) from None


def _place(file: YamlFile | None, overridden: Overridden, location: tuple[int | str, ...]) -> str:
    line = None if file is None else file.line_of(location)
    where = f" (line {line})" if line is not None else ""
    if overridden.covers(location):
        where = " (override)"
    return f"{path_of(location)}{where}: " if location else ""


def _error(file: YamlFile | None, problems: list[str]) -> ConfigError:
    name = None if file is None else file.name
    prefix = "" if name is None else f"{name}: "
    if len(problems) == 1:
        return ConfigError(prefix + problems[0], file=name, problems=problems)
    head = f"{prefix}{len(problems)} problems in the configuration"
    return ConfigError("\n  ".join([head, *problems]), file=name, problems=problems)
