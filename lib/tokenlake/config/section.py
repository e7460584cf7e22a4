"""The base of every configuration model: frozen, closed to unknown keys, errors in our own words."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from tokenlake.config.explain import explained


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
