"""Options of a store's file system where none are given: of the machine, not of a configuration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final, cast

from tokenlake.errors import ConfigError

OPTIONS_VARIABLE: Final = "TOKENLAKE_STORE_OPTIONS"
"""Environment variable: a JSON object of storage_options for ``s3://`` and ``gs://`` stores that come without any."""

_SCHEMES: Final = ("s3://", "s3a://", "gs://", "gcs://")


def options_here(
    url: str, given: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ
) -> Mapping[str, Any]:
    """Return the options that were given, else the environment's for an object store.

    Raises:
        ConfigError: the variable holds no JSON object; its value, which may hold secrets, is not shown.
    """
    if given or not url.lower().startswith(_SCHEMES):
        return given or {}
    text = environ.get(OPTIONS_VARIABLE)
    if not text:
        return {}
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{OPTIONS_VARIABLE} is no JSON object (its value is not shown); expected one such as "
            '{"endpoint_url": "https://...", "key": {"env": "NAME"}, "secret": {"env": "OTHER"}}'
        )
    return cast("dict[str, Any]", found)
