"""Types of the flows' parameters, with the schemas of the form that starts a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args

from prefect.logging import get_run_logger
from pydantic import BaseModel, WithJsonSchema

from tokenlake.config.former_names import renaming_note
from tokenlake.config.stages import PackStageConfig, TokenizeStageConfig
from tokenlake.etl.executors import EXECUTOR_NAMES
from tokenlake.runs.request import known_configurations

# The parameters accept None. The schemas leave it out, so that the form that starts a
# run has simple fields.

_TEXTS = {"type": "array", "items": {"type": "string"}}
_FILES = {"anyOf": [{"type": "string"}, _TEXTS]}
_SHARE = {"type": "number", "minimum": 0}


def _by_name(values: dict[str, Any]) -> Any:
    """Return the schema of a mapping from names to values."""
    return WithJsonSchema({"type": "object", "additionalProperties": values})


Text: TypeAlias = Annotated[str | None, WithJsonSchema({"type": "string"})]
Texts: TypeAlias = Annotated[Sequence[str] | None, WithJsonSchema(_TEXTS)]
Count: TypeAlias = Annotated[
    int | None, WithJsonSchema({"type": "integer", "minimum": 0})
]
Files: TypeAlias = Annotated[str | Sequence[str] | None, WithJsonSchema(_FILES)]
_CONFIGS = {
    "anyOf": [
        {"title": "Known", "type": "string", "enum": ["", *known_configurations()]},
        {"title": "File", "type": "string"},
        {"title": "Written out", "type": "object"},
    ]
}
Config: TypeAlias = Annotated[str | dict[str, Any] | None, WithJsonSchema(_CONFIGS)]
Splits: TypeAlias = Annotated[
    Mapping[str, float] | None, _by_name({**_SHARE, "maximum": 1})
]


def _one_of(section: type[BaseModel], key: str) -> Any:
    """Return the schema of a dropdown with the choices of a key of a configuration.

    It may stay empty.
    """
    key_choices = get_args(section.model_fields[key].annotation)
    return WithJsonSchema({"type": "string", "enum": ["", *key_choices]})


Strategy: TypeAlias = Annotated[str | None, _one_of(PackStageConfig, "strategy")]
TokenizerBackend: TypeAlias = Annotated[
    str | None, _one_of(TokenizeStageConfig, "tokenizer_backend")
]
Options: TypeAlias = Annotated[
    Mapping[str, Any] | None, WithJsonSchema({"type": "object"})
]
Executor: TypeAlias = Annotated[
    str | None, WithJsonSchema({"type": "string", "enum": ["", *EXECUTOR_NAMES]})
]
FilesBySource: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]] | None, _by_name(_FILES)
]
Weights: TypeAlias = Annotated[Mapping[str, float] | None, _by_name(_SHARE)]
Reference: TypeAlias = Annotated[
    Mapping[str, str] | None,
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


def present_value(
    former_name: str, former_value: str | None, name: str, value: str | None
) -> str | None:
    """Return the value of a parameter that may be set by its former name.

    The former name is logged as a warning.

    Args:
        former_name: Former name of the parameter.
        former_value: Value under that name; empty or None if it is not set.
        name: Name of the parameter.
        value: Value of the parameter, which takes precedence; empty or None if it is
            not set.
    """
    if former_value:
        get_run_logger().warning(renaming_note(former_name, name))
    return value or former_value
