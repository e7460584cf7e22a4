"""Page of all keys of the three kinds of configuration files.

It is generated from the models of the configurations.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from markup import definition, markdown_of, one_line
from pydantic_core import PydanticUndefined

from tokenlake.base.section import Section, field_texts
from tokenlake.config.dataset import DataModuleConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.runtime.trainer.config import TrainingConfig

_MODELS: Final = {
    "Configuration of a build": PipelineConfig,
    "Configuration of a data module": DataModuleConfig,
    "Configuration of the trainer": TrainingConfig,
}
"""Title -> model of a configuration."""

_PLAIN_TYPES: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
}
"""Type -> its name on the page."""


def key_page() -> str:
    """Return the page of all keys."""
    parts = [
        "# All keys\n\nEach key with its type, its default and its meaning. "
        "[Configuration](../configuration.md) lists the options that some builds do not support. "
        "`tokenlake schema` prints the same keys for editors.\n"
    ]
    for title, model in _MODELS.items():
        parts.append(f"## {title}\n")
        parts += _sections(model, set())
    return "\n".join(parts)


def _sections(
    model: type[Section], listed_models: set[type[Section]], prefix: str = ""
) -> Iterator[str]:
    """Yield the keys of a model, then those of the models of its fields.

    Each model is listed once.

    Args:
        model: Model of a section.
        listed_models: Models that were listed before; this one is added.
        prefix: Path of the section, such as ``datasets.``.
    """
    listed_models.add(model)
    # 1. The title and the summary.
    title = "Top"
    if prefix:
        title = f"`{prefix.rstrip('.')}`"
    yield f"### {title}\n"
    docstring = one_line(inspect.getdoc(model) or "")
    summary = docstring.partition(". ")[0].rstrip(".")
    yield f"{markdown_of(summary, {})}.\n"
    # 2. The keys.
    texts = field_texts(model)
    inner_models: list[tuple[str, type[Section]]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        # A field with a default factory or its own validators has its model in the
        # annotation.
        for inner_model in _models(field.annotation):
            inner_models.append((f"{prefix}{key}.", inner_model))
        term = f"`{key}` · {_type(field.annotation)}{_default(field)}"
        text = markdown_of(one_line(texts.get(name, "")), {})
        yield definition(term, text or "Section, see below.")
    # 3. The sections in this section.
    for inner_prefix, inner_model in inner_models:
        if inner_model not in listed_models:
            yield from _sections(inner_model, listed_models, inner_prefix)


def _models(annotation: Any) -> Iterator[type[Section]]:
    """Yield the models in the annotation of a field."""
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        if issubclass(annotation, Section):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _models(argument)


def _type(annotation: Any) -> str:
    """Return the possible values of a field: its choices, or the kind of value."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    # Choices, and alternatives.
    if origin is Literal:
        return ", ".join(f"`{_yaml(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        types: list[str] = []
        for argument in arguments:
            argument_type = _type(argument)
            if argument is not NoneType and argument_type not in types:
                types.append(argument_type)
        return " or ".join(types)
    # A type with validators: `Annotated[type, ...]`.
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    # Mappings and lists.
    is_section = inspect.isclass(annotation) and issubclass(annotation, Section)
    if origin is dict or is_section:
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    return _PLAIN_TYPES.get(annotation, "value")


def _default(field: Any) -> str:
    """Return the default of a field, or that it is required."""
    if field.is_required():
        return " · required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, Section) or value in ({}, ()):
        return ""
    return f" · default `{_yaml(value)}`"


def _yaml(value: Any) -> str:
    """Return a value as it is written in YAML."""
    if isinstance(value, str):
        return value.encode("unicode_escape").decode() or '""'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
