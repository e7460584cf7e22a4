"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter, validators

from tokenlake.config.stores import default_store, store_overrides

Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]
Name: TypeAlias = Annotated[
    str, Parameter(help="A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG.")
]
StoreUrl: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--store",
        metavar="URL",
        help="Where datasets live: a path, s3:// or gs://. Default: TOKENLAKE_STORE, else ./artifacts.",
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
        metavar="KEY=VALUE",
        negative="",
        help="Change one setting, e.g. pack.seq_length=1024 or datasets.code.num_rows=5. Repeatable.",
        show_default=False,
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    Parameter(
        metavar="N",
        help="Worker processes. Default: the processors there are.",
        show_default=False,
        validator=validators.Number(gte=1),
    ),
]


def store_url(given: str | None) -> str:
    """The store a command works on: ``--store``, else ``TOKENLAKE_STORE``, else ``./artifacts``."""
    return given or default_store()


def with_store(overrides: tuple[str, ...], store: str | None) -> list[str]:
    """``--store`` as one more override: a run's store is ``save.output_dir``."""
    return [*overrides, *store_overrides(store)] if store else list(overrides)
