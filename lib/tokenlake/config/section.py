"""The base of every configuration model: frozen, closed to unknown keys, errors in our own words.

Pydantic says *that* ``parqet`` is no ``Literal``; a person wants to read ::

    save.format: got 'parqet', must be 'parquet', 'arrow' or 'jsonl'; did you mean 'parquet'?

Each section rewrites its own errors, so that a model which is built directly and a YAML file which is loaded give the
same sentences.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date
from typing import Any, ClassVar, Final, Self, cast

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from tokenlake.config.suggestion import did_you_mean

_OURS: Final = "tokenlake"
_SHOWN: Final = 80
_RULES: Final = {
    "model_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
}
_QUOTED: Final = re.compile(r"'([^']*)'")


def problem(message: str) -> PydanticCustomError:
    """Return an error that a validator raises and that reaches the person word for word."""
    # No context is given, so braces in the message are never taken for placeholders.
    return PydanticCustomError(_OURS, cast("Any", message))


def shown(value: object) -> str:
    """Return `value` as a message quotes it: at most 80 characters; of a container only what it is.

    Somewhere in a container may be a secret.
    """
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if not isinstance(value, str | int | float | date | None):
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def explained(error: ValidationError, known: Collection[str], hidden: Collection[str]) -> ValidationError:
    """Return `error` with every message in our words; the locations stay as they are.

    Args:
        error: what pydantic raised for one section.
        known: the keys of that section.
        hidden: the keys whose values may be secrets and are never quoted.
    """
    lines = [_line(details, known, hidden) for details in error.errors(include_url=False)]
    return ValidationError.from_exception_data(error.title, lines, hide_input=True)


def path_of(location: tuple[int | str, ...]) -> str:
    """Return a location as the dotted key that overrides take too: ``datasets.0.tokenizer.max_length``."""
    return ".".join(str(part) for part in location)


def _line(details: ErrorDetails, known: Collection[str], hidden: Collection[str]) -> InitErrorDetails:
    if details["type"] == _OURS:
        message = details["msg"]
    else:
        secret = bool(details["loc"]) and str(details["loc"][0]) in hidden
        message = _sentence(details, known, quote=not secret)
    # The input is left out: nothing that prints an error can then print a secret.
    return InitErrorDetails(type=problem(message), loc=details["loc"], input=None)


def _sentence(details: ErrorDetails, known: Collection[str], *, quote: bool) -> str:
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        # The value stays out: behind a mistyped `hub_token` it would be the token.
        return f"unknown key{did_you_mean(details['loc'][-1], known)} (known here: {', '.join(known)})"
    if kind == "missing":
        return "required, but missing"
    rule = _RULES.get(kind) or re.sub(r"^\w+ should", "must", details["msg"])
    near = did_you_mean(value, _QUOTED.findall(rule)) if kind == "literal_error" else ""
    return f"got {shown(value)}, {rule}{near}" if quote else f"{rule} (the value is not shown)"


class Section(BaseModel):
    """A frozen group of keys.

    The text under a field is its documentation and its description in the JSON Schema. Wrong keys
    and values raise pydantic's ``ValidationError``, a ``ValueError``, which ``load_config`` turns into a
    ``ConfigError``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    hidden_values: ClassVar[frozenset[str]] = frozenset()
    """Keys whose values may be secrets: messages never quote them."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            raise explained(error, tuple(cls.model_fields), cls.hidden_values) from None
