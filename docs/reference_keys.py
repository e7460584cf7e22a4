"""The page of all keys of the three kinds of configuration files, written from their
models.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from markup import definition, markdown_of, one_line
from pydantic_core import PydanticUndefined

from tokenlake.base.section import Section, field_texts
from tokenlake.config.dataset import DataModuleConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.runtime.trainer.config import TrainingConfig


def key_page() -> str:
    """Return the page of all keys."""
    parts = [
        "# All keys\n\nEach key with its type, its default and its meaning. "
        "[Configuration](../configuration.md) lists the options that some builds do not support. "
        "`tokenlake schema` prints the same keys for editors.\n"
    ]
    for title, model in (
        ("Configuration of a build", PipelineConfig),
        ("Configuration of a data module", DataModuleConfig),
        ("Configuration of the trainer", TrainingConfig),
    ):
        parts.append(f"## {title}\n")
        parts += _sections(model, set())
    return "\n".join(parts)


def _sections(
    model: type[Section], seen: set[type[Section]], place: str = ""
) -> Iterator[str]:
    """Yield the keys of a model, then those of the models of its fields, each model
    once.

    Args:
        model: Model of a section.
        seen: Models that were listed before; this one is added.
        place: Path of the section, such as ``datasets.``.
    """
    seen.add(model)
    texts = field_texts(model)
    inner_models: list[tuple[str, type[Section]]] = []
    title = f"`{place.rstrip('.')}`" if place else "Top"
    yield f"### {title}\n"
    summary = one_line(inspect.getdoc(model) or "").partition(". ")[0].rstrip(".")
    yield f"{markdown_of(summary, {})}.\n"
    for name, field in model.model_fields.items():
        key = field.alias or name
        # A field with a default factory or validators of its own keeps its model in the
        # annotation.
        inner_models += [
            (f"{place}{key}.", inner) for inner in _models(field.annotation)
        ]
        term = f"`{key}` · {_type(field.annotation)}{_default(field)}"
        yield definition(
            term,
            markdown_of(one_line(texts.get(name, "")), {}) or "Section, see below.",
        )
    for inner_place, inner in inner_models:
        if inner not in seen:
            yield from _sections(inner, seen, inner_place)


def _models(annotation: Any) -> Iterator[type[Section]]:
    """Yield the models in the annotation of a field."""
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        if issubclass(annotation, Section):
            yield annotation
        return
    for argument in get_args(annotation):
        yield from _models(argument)


def _type(annotation: Any) -> str:
    """Return the possible values of a field: `a`, `b` of choices, otherwise the kind
    of value.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{_yaml(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        types = [_type(argument) for argument in arguments if argument is not NoneType]
        return " or ".join(dict.fromkeys(types))
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if origin is dict or (
        inspect.isclass(annotation) and issubclass(annotation, Section)
    ):
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    plain: dict[Any, str] = {
        bool: "true or false",
        int: "integer",
        float: "number",
        str: "text",
    }
    return plain.get(annotation, "value")


def _default(field: Any) -> str:
    """Return the default of a field, or that it is required."""
    if field.is_required():
        return " · required"
    value = field.default
    if value is PydanticUndefined or isinstance(value, Section) or value in ({}, ()):
        return ""
    return f" · default `{_yaml(value)}`"


def _yaml(value: Any) -> str:
    """Return a value as YAML has it."""
    if isinstance(value, str):
        return value.encode("unicode_escape").decode() or '""'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
