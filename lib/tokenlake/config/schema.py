"""The JSON Schema of a configuration file, for editors."""

from __future__ import annotations

from typing import Any, Final

from tokenlake.config.pipeline import PipelineConfig

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a YAML configuration; every key has a description."""
    schema = PipelineConfig.model_json_schema()
    # The model itself takes an empty list, so that `validate()` can say what is missing.
    schema["properties"]["datasets"]["minItems"] = 1
    return {"$schema": DIALECT, **schema, "title": "Tokenlake configuration", "required": ["datasets"]}
