"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter, validators

from tokenlake.config.stores import default_store, store_overrides

Config: TypeAlias = Annotated[str, Parameter(help="A YAML pipeline configuration.")]
Name: TypeAlias = Annotated[
    str, Parameter(help="A dataset, or one version of it: NAME, NAME@v3 or NAME@TAG.")
]
_STORE = "The store: a path, s3:// or gs://. Default: TOKENLAKE_STORE, otherwise ./artifacts."
StoreUrl: TypeAlias = Annotated[str | None, Parameter(name="--store", metavar="URL", help=_STORE)]
AsJson: TypeAlias = Annotated[bool, Parameter(name="--json", help="Print JSON with stable keys.")]
_SET = "Change one setting, e.g. pack.seq_length=1024 or datasets.code.num_rows=5. Repeatable."
Overrides: TypeAlias = Annotated[
    tuple[str, ...], Parameter(name=["--set", "-s"], metavar="KEY=VALUE", help=_SET)
]
_WORKERS = "Number of worker processes. Default: the number of processors."
Workers: TypeAlias = Annotated[
    int | None, Parameter(metavar="N", help=_WORKERS, validator=validators.Number(gte=1))
]


def store_url(given: str | None) -> str:
    """The store a command works on: ``--store``, else ``TOKENLAKE_STORE``, else ``./artifacts``."""
    return given or default_store()


def with_store(overrides: tuple[str, ...], store: str | None) -> list[str]:
    """``--store`` as one more override: a run's store is ``save.output_dir``."""
    return [*overrides, *store_overrides(store)] if store else list(overrides)
