"""Signatures of public functions and classes, as text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from docstrings import ParsedDocstring, parse
from markup import one_line

from tokenlake.runtime.loader.options import LoaderOptions

_PHONE_COLUMNS: Final = 44
"""Characters of a line of code on a narrow screen."""


@dataclass(frozen=True)
class Parameter:
    """Parameter of a signature, as text."""

    name: str
    """Name, with ``*`` or ``**`` in front of it where the signature has them."""

    annotation: str
    """Type as the code writes it; empty if there is none."""

    default: str
    """Default as the code writes it; empty if there is none."""

    def __str__(self) -> str:
        text = self.name
        if self.annotation:
            text += f": {self.annotation}"
        if self.default:
            text += f" = {self.default}"
        return text


def docstring_of(value: Any) -> ParsedDocstring:
    """Return the sections of a docstring.

    The arguments of a class are those of its constructor, unless the class explains
    them itself.
    """
    docstring = parse(inspect.getdoc(value) or "")
    if not inspect.isclass(value) or "Args" in docstring.entries:
        return docstring
    constructor = vars(value).get("__init__")
    if constructor is not None:
        constructor_entries = parse(inspect.getdoc(constructor) or "").entries
        if "Args" in constructor_entries:
            docstring.entries["Args"] = constructor_entries["Args"]
    return docstring


def signature_of(path: str, value: Any, *, is_method: bool = False) -> str:
    """Return a signature as code.

    A short signature is on one line. Otherwise each parameter has a line.

    Args:
        path: Public path of the function or class.
        value: Function or class.
        is_method: True to leave out ``self`` and ``cls``.
    """
    try:
        signature = inspect.signature(value)
    except ValueError:
        return path
    parameters: list[str] = []
    for parameter in _parameters(value, signature):
        text = str(parameter)
        if not is_method or text not in ("self", "cls"):
            parameters.append(text)
    arrow = ""
    if not inspect.isclass(value):
        result = annotation_text(signature.return_annotation)
        if result:
            arrow = f" -> {result}"
    short = f"{path}({', '.join(parameters)}){arrow}"
    if not parameters or len(short) <= _PHONE_COLUMNS:
        return short
    lines = "".join(f"\n    {parameter}," for parameter in parameters)
    return f"{path}({lines}\n){arrow}"


def types_of(value: Any) -> dict[str, str]:
    """Return the types of the parameters and attributes of an object, with defaults.

    Returns:
        Name -> type and default, as the code writes them.
    """
    types: dict[str, str] = {}
    if inspect.isclass(value):
        for name, annotation in vars(value).get("__annotations__", {}).items():
            types[name] = annotation_text(annotation)
    try:
        signature = inspect.signature(value)
    except ValueError:
        return types
    for parameter in _parameters(value, signature):
        text = parameter.annotation
        if text and parameter.default:
            text = f"{text} = {parameter.default}"
        elif parameter.default:
            text = parameter.default
        if text:
            types[parameter.name] = text
    return types


def annotation_text(annotation: Any) -> str:
    """Return an annotation as the code writes it; empty if there is none."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, str):
        return one_line(annotation.strip("'\""))
    if inspect.isclass(annotation):
        return annotation.__name__
    forward_reference = getattr(annotation, "__forward_arg__", None)
    return str(forward_reference or annotation).replace("typing.", "")


def _parameters(value: Any, signature: inspect.Signature) -> Iterator[Parameter]:
    """Yield the parameters that callers use.

    The options of a loader are listed in place of ``**options``.

    Args:
        value: Function or class.
        signature: Its signature.
    """
    explained_names = {name for name, _ in docstring_of(value).entries.get("Args", [])}
    # A bare `*` precedes the first keyword-only parameter, unless `*args` does.
    has_star = False
    for name, parameter in signature.parameters.items():
        if name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            has_star = True
            yield Parameter("*", "", "")
        annotation = annotation_text(parameter.annotation)
        if parameter.kind is parameter.VAR_KEYWORD:
            is_of_loader = annotation == "Unpack[LoaderKeywords]"
            if is_of_loader and name not in explained_names:
                yield from _loader_options()
            else:
                yield Parameter(f"**{name}", "", "")
        elif parameter.kind is parameter.VAR_POSITIONAL:
            has_star = True
            yield Parameter(f"*{name}", annotation, "")
        else:
            yield Parameter(name, annotation, _default_text(parameter.default))


def _loader_options() -> Iterator[Parameter]:
    """Yield the options of a loader, with the defaults of LoaderOptions."""
    for option in fields(LoaderOptions):
        if option.name != "batch_size":
            yield Parameter(
                option.name,
                annotation_text(option.type),
                _default_text(option.default),
            )


def _default_text(default: Any) -> str:
    """Return a default as the code writes it; empty if there is none.

    An object that the code cannot write is ``...``.
    """
    if default is inspect.Parameter.empty:
        return ""
    text = repr(default)
    if text.startswith("<"):
        return "..."
    return text
