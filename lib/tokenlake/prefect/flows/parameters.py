"""Types of flow parameters. None works too; the schemas without it give plain fields in the form that starts a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import WithJsonSchema

_FILES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}

Text: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts: TypeAlias = Annotated[
    Sequence[str] | None, WithJsonSchema({"type": "array", "items": {"type": "string"}})
]
Count: TypeAlias = Annotated[int | None, WithJsonSchema({"type": "integer", "minimum": 0})]
Files: TypeAlias = Annotated[str | Sequence[str] | None, WithJsonSchema(_FILES)]
Config: TypeAlias = Annotated[
    str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
FilesBySource: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]] | None,
    WithJsonSchema({"type": "object", "additionalProperties": _FILES}),
]
Weights: TypeAlias = Annotated[
    Mapping[str, float] | None,
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}),
]
