"""From a path or URL to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tokenlake.catalog import Catalog
from tokenlake.errors import ConfigError
from tokenlake.loader.dataset import Dataset
from tokenlake.manifest import Manifest
from tokenlake.storage import open_read_store


def open(
    where: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> Dataset:
    """Open a version of a dataset; its manifest is read, and nothing else.

    ::

        tl.open("artifacts/llama2-2048")  # the newest version
        tl.open("artifacts/llama2-2048@v3")
        tl.open("artifacts", "llama2-2048@v3")
        tl.open("s3://bucket/artifacts/llama2-2048@prod", cache="/scratch/shards", cache_bytes="200GB")

    Args:
        where: a store and a dataset in it, or a store if `name` is given: a path, or a URL with ``file``, ``s3``,
            ``gs``, ``https`` or another of fsspec's schemes.
        name: ``NAME`` (newest), ``NAME@v3``, or ``NAME@prod`` (a tag). Web servers do not list what they have: there a
            version or a tag is needed.
        split: None: ``train``, or else the only one.
        storage_options: for fsspec's file system; ``{"env": NAME}`` stands for an environment variable.
        cache: a folder for copies of whole shards, for remote stores, shared by all processes that name it; without one
            row groups are read by ranges.
        cache_bytes: what the copies may take together, such as ``"100GB"``; 64 GiB by default.

    Raises:
        NotFoundError: there is no such version; near matches are named.
        ConfigError: there is no such split, or more than one and none is named; an option has no use.
        MissingExtraError: the package that reads the URL is missing.
        IntegrityError: the manifest is damaged.
    """
    place = os.fspath(where)
    if name is None:
        place, name = parted(place)
    store = open_read_store(place, storage_options=storage_options, cache=cache, cache_bytes=cache_bytes)
    manifest = Catalog(store).manifest_of(name)
    return Dataset(store, manifest, _split(manifest, split))


def parted(where: str) -> tuple[str, str]:
    """``artifacts/code@v3`` -> ``artifacts``, ``code@v3``; ``artifacts/code/v3`` means the same."""
    if "://" in where and "?" in where:
        raise ConfigError(
            "the URL of a dataset has a query (not shown), and the names of files belong behind it. Write it "
            "without, and the query as storage_options: {query: {env: VARIABLE}} (web servers)"
        )
    store, slash, name = where.rstrip("/").rpartition("/")
    if slash and name[:1] == "v" and name[1:].isdecimal():
        store, slash, dataset = store.rpartition("/")
        name = f"{dataset}@{name}"
    return store if slash else ".", name


def _split(manifest: Manifest, asked: str | None) -> str:
    names = list(manifest.splits)
    if asked is not None:
        return asked
    if "train" in names or len(names) == 1:
        return "train" if "train" in names else names[0]
    raise ConfigError(
        f"{manifest.dataset}@v{manifest.version} has the splits {', '.join(names) or '(none: it has no rows)'}; "
        "name one: split=..."
    )
