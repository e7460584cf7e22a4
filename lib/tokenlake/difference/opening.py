"""From two references to their difference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tokenlake.catalog import Catalog
from tokenlake.difference.comparing import compare
from tokenlake.difference.model import Difference
from tokenlake.loader.opening import parted
from tokenlake.manifest import Manifest
from tokenlake.storage import open_read_store


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Difference:
    """Compare two versions; their manifests are read, and nothing else.

    ::

        tl.diff("code@v1", "code@prod", store="artifacts").config
        tl.diff("artifacts/code@v1", "s3://bucket/artifacts/code@v1").equal

    Args:
        a, b: as :func:`tokenlake.open` takes them; names alone where there is a `store`.
        store: where both are.
        storage_options: for fsspec's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        NotFoundError: there is no such version; near matches are named.
        IntegrityError: a manifest is damaged.
    """
    return compare(_manifest(a, store, storage_options), _manifest(b, store, storage_options))


def _manifest(
    where: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Manifest:
    place, name = parted(os.fspath(where)) if store is None else (os.fspath(store), os.fspath(where))
    return Catalog(open_read_store(place, storage_options=storage_options)).manifest_of(name)
