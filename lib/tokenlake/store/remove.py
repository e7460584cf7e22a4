"""Removing a committed version that nobody needs.

First a closing note takes the manifest's place, by compare-and-swap: from then on no reader finds the version, and its
number stays taken. What is left is what ``gc`` finds of a number that is closed: it deletes that, at once or, where
this process dies, in its next run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from tokenlake.errors import ConfigError, NotFoundError, StoreError
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import Store
from tokenlake.store.catalog import Catalog, Reference
from tokenlake.store.claims import closing_note, is_closing_note
from tokenlake.store.gc import Kept, Removed, closed, delete_all, prune, sweep
from tokenlake.store.layout import Layout
from tokenlake.store.tags import read_tags

_THREADS = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A version that was removed, or would be.

    Attributes:
        dry_run: nothing was changed.
        removed: its files. Those that other versions share by hard links stay theirs, and free nothing here.
        kept: what the storage refused to remove; `gc` tries again.
    """

    dataset: str
    version: int
    dry_run: bool
    removed: tuple[Removed, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def bytes(self) -> int:
        """The sizes of all that was removed."""
        return sum(each.bytes for each in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``bytes`` included."""
        return asdict(self) | {"bytes": self.bytes}


def remove_version(
    reference: str,
    *,
    store: str | os.PathLike[str] | StoreAddress,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Remove a committed version of a dataset; its number is never used again.

    ::

        tl.remove_version("llama2-2048@v3", store="artifacts", dry_run=True).bytes  # what would go

    Args:
        reference: ``NAME@vN``; no tag, and not just a name.
        store: a path, a URL or an address.
        dry_run: change nothing; the result says what would go.
        storage_options: for the store's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        ConfigError: the reference names no version by its number.
        NotFoundError: there is no such committed version.
        StoreError: a tag names it, or another version is made from it; nothing was changed.
        IntegrityError: a tag, or a version that may be made from it, is damaged; nothing was changed.
        VersionConflictError: another process changed the manifest just now; nothing was changed.
    """
    asked = Reference.parse(reference)
    if asked.version is None:
        raise ConfigError(
            f"{reference!r} names no version by its number; expected NAME@vN, such as {asked.dataset}@v1"
        )
    chosen = open_store(store, storage_options=storage_options)
    return remove(chosen, Layout(asked.dataset, asked.version), dry_run=dry_run)


def remove(store: Store, layout: Layout, *, dry_run: bool = False) -> Removal:
    """Remove a version of an open store; as :func:`remove_version`."""
    catalog = Catalog(store)
    manifest = _manifest(catalog, layout)
    _require_unused(catalog, layout)
    if dry_run:
        gone = tuple(sorted(closed(store, layout).files, key=lambda each: each.name))
        return Removal(dataset=layout.dataset, version=layout.version, dry_run=True, removed=gone)
    note = closing_note(layout)
    store.swap(layout.manifest, note, manifest)
    try:
        _require_unused(catalog, layout)  # a tag may have been set since
    except BaseException:
        store.swap(layout.manifest, manifest, note)
        raise
    found = closed(store, layout)
    kept = sweep(store, found)
    removed, failed = delete_all(store, found.files, _THREADS)
    prune(store, layout, whole=False)
    return Removal(
        dataset=layout.dataset,
        version=layout.version,
        dry_run=False,
        removed=tuple(sorted(removed, key=lambda each: each.name)),
        kept=(*failed, *([] if kept is None else [kept])),
    )


def _manifest(catalog: Catalog, layout: Layout) -> bytes:
    """Return the bytes of a version's manifest, which may be damaged."""
    try:
        data = catalog.store.read(layout.manifest)
    except NotFoundError:
        data = None
    if data is None or is_closing_note(data, layout):
        catalog.manifest(layout.dataset, layout.version)  # says what there is instead
        raise NotFoundError(f"{layout.prefix} was removed just now", dataset=layout.dataset)
    return data


def _require_unused(catalog: Catalog, layout: Layout) -> None:
    name = f"{layout.dataset}@v{layout.version}"
    tags = [tag.tag for tag in read_tags(catalog.store, layout.dataset) if tag.version == layout.version]
    if tags:
        raise StoreError(
            f"{name} is not removed: the tag {tags[0]!r} names it. Move the tag, or remove it first: "
            f"`tokenlake tag {layout.dataset} {tags[0]} --remove`"
        )
    made = next(_children(catalog, layout), None)
    if made is not None:
        raise StoreError(
            f"{name} is not removed: {made} is made from it, and could be neither verified against it nor repaired. "
            f"Remove that first: `tokenlake rm {made}`"
        )


def _children(catalog: Catalog, layout: Layout) -> Iterator[str]:
    """Yield the committed versions of the store that are made from this one."""
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            if not info.committed or (dataset, info.version) == (layout.dataset, layout.version):
                continue
            parents = catalog.manifest(dataset, info.version).parents
            if any(
                (parent.dataset, parent.version) == (layout.dataset, layout.version) for parent in parents
            ):
                yield f"{dataset}@v{info.version}"
