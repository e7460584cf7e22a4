"""The JSON Schema of a configuration file, for editors and for the flows' parameter forms."""

from __future__ import annotations

from typing import Any, Final

from tokenlake.config.pipeline import PipelineConfig

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a YAML configuration; every key has a description."""
    return {"$schema": DIALECT, **PipelineConfig.model_json_schema(), "title": "Tokenlake configuration"}
