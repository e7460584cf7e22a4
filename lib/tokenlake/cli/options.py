"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

from cyclopts import Parameter

Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]
Name: TypeAlias = Annotated[str, Parameter(help="A dataset, or one version of it: NAME or NAME@v3.")]
StoreUrl: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="Where datasets live. Default: TOKENLAKE_STORE, else ./artifacts.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[
    bool, Parameter(name="--json", negative="", help="Print JSON with stable keys.", show_default=False)
]
Overrides: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        name=["--set", "-s"],
        negative="",
        help="Change one setting, e.g. pack.seq_length=1024 or datasets.code.num_rows=5. Repeatable.",
        show_default=False,
    ),
]


def store_url(given: str | None) -> str:
    """The store a command works on: ``--store``, else ``TOKENLAKE_STORE``, else ``./artifacts``."""
    return given or os.environ.get("TOKENLAKE_STORE") or "./artifacts"
