"""From a YAML file, a mapping or a section to a validated section, or to one error with every problem.

Overrides (``--set pack.seq_length=512``) change single keys: a key is a dotted path, in which a dataset is named by its
position or its name; a value is YAML (``true``, ``[a, b]``, ``{env: HF_TOKEN}``).
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
from tokenlake.base.section import DATASET_NAME, LITERALS_REFUSED, UNKNOWN_KEY, Section, path_of
from tokenlake.base.yaml_file import MAX_BYTES, YamlFile, parse_yaml
from tokenlake.errors import ConfigError

_S = TypeVar("_S", bound=Section)

# A plain text stands for the section with this one key, so `tokenizer.max_length` can be set beside it.
_TEXT_MEANS: Final[dict[int | str, str]] = {"tokenizer": "name_or_path", "default_tokenizer": "name_or_path"}


def apply_overrides(
    data: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[tuple[int | str, ...]]]:
    """Return `data` with every override applied in order, and the places that changed; `data` itself stays as it is.

    Raises:
        ConfigError: an override is not ``key=value``, or its path leads into something that is no section. Its detail
            `override` says which one.
    """
    changed: Any = dict(data)
    places: list[tuple[int | str, ...]] = []
    for override in overrides:
        key, separator, text = (part.strip() for part in override.partition("="))
        parts = key.split(".")
        if not separator or not all(parts):
            own = f"override {override!r}"
            raise ConfigError(f"{own}: must be key=value, such as pack.seq_length=512", override=own)
        own = f"override of {key}"
        try:
            changed, place = _with(changed, parts, parse_yaml(text, own).data, key)
        except ConfigError as error:
            error.details["override"] = own
            raise
        places.append(place)
    return changed, places


def _with(node: Any, parts: list[str], value: Any, key: str) -> tuple[Any, tuple[int | str, ...]]:
    """Return `node` with `value` at the end of the path `parts`, and that path with entries of lists by position.

    What is on the path is copied.
    """
    if not parts:
        return value, ()
    at: int | str = parts[0]
    if isinstance(node, list | tuple):
        copy: Any = list(cast("list[Any]", node))
        names: list[str] = []
        for position, item in enumerate(copy):
            named = item.get("name") if isinstance(item, Mapping) else getattr(item, "name", None)
            names.append(f"dataset_{position}" if named is None else str(named))
        if parts[0] not in names and not (parts[0].isdecimal() and int(parts[0]) < len(names)):
            raise ConfigError(
                f"override of {key}: no entry {parts[0]!r}{did_you_mean(parts[0], names)} "
                f"(there are {len(names)}: {', '.join(names) or 'none'}; a number counts from 0)"
            )
        at = names.index(parts[0]) if parts[0] in names else int(parts[0])
        child = copy[at]
    elif node is None or isinstance(node, Mapping | Section):
        copy = dict(cast("Mapping[str, Any]", node or {}))
        child = copy.get(at)
    else:
        raise ConfigError(f"override of {key}: {'.'.join(parts)!r} leads into a value that has no keys")
    if len(parts) > 1 and isinstance(child, str) and at in _TEXT_MEANS:
        child = {_TEXT_MEANS[at]: child}
    copy[at], place = _with(child, parts[1:], value, key)
    return copy, (at, *place)


def load_section(
    model: type[_S],
    source: _S | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    example: str,
) -> tuple[_S, YamlFile | None]:
    """Return the section that `source` and `overrides` describe, and the file that it came from.

    Args:
        model: of the whole file; where it has a `name`, a file's stem is the default one.
        source: path of a YAML file, a mapping, or the section itself.
        overrides: ``key=value`` texts.
        example: of a file, for the message about one that is no mapping.

    Raises:
        ConfigError: anything is wrong; the message has a line for each problem.
    """
    if isinstance(source, model) and not overrides:
        return source, None
    data, file = read_document(model, source, example)
    return validate_section(model, data, file, overrides), file


def read_document(model: type[_S], source: object, example: str) -> tuple[Mapping[str, Any], YamlFile | None]:
    """Return a configuration before validation, and the file that it came from."""
    if isinstance(source, model):
        return dict(source), None
    if isinstance(source, Mapping):
        return cast("Mapping[str, Any]", source), None
    path = Path(cast("str", source))
    file = parse_yaml(config_text(path), str(path))
    if not isinstance(file.data, dict):
        got = "nothing" if file.root is None else "something else"
        raise ConfigError(f"{path}: got {got}, must be a mapping of keys, such as {example}", file=str(path))
    data = cast("dict[str, Any]", file.data)
    named = "name" in model.model_fields
    if named and data.get("name") is None and re.fullmatch(DATASET_NAME, path.stem):
        data = {**data, "name": path.stem}
    return data, file


def config_text(path: Path) -> str:
    """Return the text of a configuration's file, or so much of it that it is refused for its size."""
    try:
        with path.open("rb") as file:
            # A byte more than is allowed: what is behind it, of a device perhaps, is never read.
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        folder, told = path.parent, f" (nor a folder {path.parent})"
        if folder.is_dir():
            files = {item.name for item in folder.iterdir() if item.suffix in (".yaml", ".yml")}
            near = nearest(path.name, files)
            told = f"; did you mean {str(folder / near)!r}?" if near else ""
        raise ConfigError(f"{path}: no such file{told}", file=str(path)) from None
    except (OSError, ValueError) as error:
        # ValueError: bytes that are not UTF-8, or a name that no file can have.
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file: {error}", file=str(path)) from None


def validate_section(
    model: type[_S], data: Mapping[str, Any], file: YamlFile | None, overrides: Sequence[str]
) -> _S:
    changed, places = apply_overrides(data, overrides)
    context = {LITERALS_REFUSED: True} if file is not None or overrides else {}
    try:
        return model.model_validate(changed, context=context)
    except ValidationError as error:
        problems: list[str] = []
        overridden: list[str] = []  # the problems of what overrides say
        lines: list[int] = []  # of the file, for the other problems
        for details in error.errors():
            location = details["loc"]
            message = details["msg"]
            if details["type"] == UNKNOWN_KEY:
                # A key that another section has is named with its path, rather than a key of a similar name.
                place = hint_of_place(model, str(location[-1]), path_of(location))
                if place:
                    message = f"unknown key{place}"
            line = None if file is None else file.line_of(location)
            is_overridden = any(location[: len(place)] == place for place in places)
            where = ""
            if is_overridden:
                where = " (override)"
            elif line is not None:
                where = f" (line {line})"
            problem = f"{path_of(location)}{where}: {message}" if location else message
            problems.append(problem)
            if is_overridden:
                overridden.append(problem)
            elif line is not None:
                lines.append(line)
        found = problems_error(ConfigError, problems, file and file.name)
        found.details |= {"overridden": overridden, "lines": lines}
        raise found from None


def problems_error(kind: type[ConfigError], problems: list[str], file: str | None = None) -> ConfigError:
    """Return one error that lists all problems of a configuration, which may come from a file."""
    told = [f"{len(problems)} problems in the configuration", *problems] if len(problems) > 1 else problems
    return kind((f"{file}: " if file else "") + "\n  ".join(told), file=file, problems=problems)
