"""``tokenlake schema``."""

from __future__ import annotations

from tokenlake.cli.output import print_json
from tokenlake.config.pipeline import json_schema


def schema() -> int:
    """Print the JSON Schema of a pipeline configuration.

    Point an editor at it for completion and checks while typing, e.g. with a first line
    ``# yaml-language-server: $schema=tokenlake.schema.json`` in the YAML.
    """
    print_json(json_schema())
    return 0
