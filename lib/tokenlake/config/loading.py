"""From a YAML file, a mapping or a model to a validated configuration, or to one error with every problem."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from tokenlake.config.explain import path_of
from tokenlake.config.near import nearest
from tokenlake.config.overrides import Overridden, apply_overrides
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.secret import LITERALS_REFUSED
from tokenlake.config.values import DATASET_NAME
from tokenlake.config.yaml_file import MAX_BYTES, YamlFile, parse_yaml
from tokenlake.errors import ConfigError

ConfigSource = PipelineConfig | Mapping[str, Any] | str | os.PathLike[str]

_EXAMPLE: Final = "datasets: [{data_files: 'data/*.jsonl', tokenizer: openai-community/gpt2}]"


@dataclass(frozen=True, slots=True)
class _Document:
    """A configuration before validation, and where it came from."""

    data: Mapping[str, Any]
    file: YamlFile | None = None


def load_config(source: ConfigSource, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Return the configuration that `source` and `overrides` describe.

    Args:
        source: path of a YAML file, a mapping, or a configuration.
        overrides: ``key=value`` texts, see :mod:`tokenlake.config.overrides`.

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


def _document(source: ConfigSource) -> _Document:
    if isinstance(source, PipelineConfig):
        return _Document(dict(source))
    if isinstance(source, Mapping):
        return _Document(source)
    path = Path(source)
    file = parse_yaml(config_text(path), str(path))
    if not file.has_keys:
        got = "nothing" if file.root is None else "something else"
        raise ConfigError(f"{path}: got {got}, must be a mapping of keys, such as {_EXAMPLE}", file=str(path))
    data = cast("dict[str, Any]", file.data)
    if data.get("name") is None and re.fullmatch(DATASET_NAME, path.stem):
        data = {**data, "name": path.stem}
    return _Document(data, file)


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


def _validated(document: _Document, overrides: Sequence[str]) -> PipelineConfig:
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
