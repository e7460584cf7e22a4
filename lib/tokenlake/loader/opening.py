"""From a path or URL to a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from tokenlake.catalog import Catalog
from tokenlake.errors import ConfigError, NotFoundError, StoreError, TokenlakeError
from tokenlake.loader.dataset import Dataset
from tokenlake.manifest import Manifest
from tokenlake.storage import open_read_store

_SHOWN: Final = 20  # datasets that a message names


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
    place, named = parted(os.fspath(where)) if name is None else (os.fspath(where), name)
    store = open_read_store(place, storage_options=storage_options, cache=cache, cache_bytes=cache_bytes)
    try:
        manifest = Catalog(store).manifest_of(named)
    except StoreError as error:
        if hint := _missing_folder(place) or (
            _inside(os.fspath(where), storage_options) if name is None else ""
        ):
            raise NotFoundError(hint) from error
        raise
    return Dataset(store, manifest, _split(manifest, split))


def _missing_folder(place: str) -> str:
    """Say which folder is not there, and which are near; "" where the store is a folder, or remote."""
    folder = Path(place).expanduser().absolute()
    if "://" in place or folder.is_dir():
        return ""
    above = next(each for each in folder.parents if each.is_dir())
    missing = folder.relative_to(above).parts[0]
    near = list[str]()
    with suppress(OSError):  # nobody may look
        near = get_close_matches(missing, (each.name for each in above.iterdir() if each.is_dir()), n=3)
    guess = f"; did you mean {' or '.join(str(above / each) for each in near)}?" if near else ""
    return f"there is no store {folder}: {above} has no folder {missing!r}{guess}"


def _inside(where: str, options: Mapping[str, Any] | None) -> str:
    """Say what is there where the address is that of a store; "" where it is none, or cannot be listed."""
    found: list[str] = []
    with suppress(TokenlakeError):
        found = Catalog(open_read_store(where, storage_options=options)).datasets()
    if not found:
        return ""
    names = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    first = f"{where.rstrip('/')}/{found[0]}"
    return f"{where} is a store, not a dataset; it has {names}. Open one of them: tl.open({first!r})"


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
