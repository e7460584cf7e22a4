"""Repairing a version: what is damaged is found, made again, compared, and swapped in whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tokenlake.build.projects import Configuration
from tokenlake.build.runner import available_cpus
from tokenlake.catalog import Catalog
from tokenlake.catalog.references import Reference
from tokenlake.config import load_config
from tokenlake.mending.report import RepairProgress, RepairReport
from tokenlake.mending.work import Repair
from tokenlake.storage import Layout, Store, StoreAddress, open_store

__all__ = ["repair"]


def repair(
    store: Store | StoreAddress | str | os.PathLike[str],
    reference: str,
    *,
    config: Configuration | None = None,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    workers: int | None = None,
    on_progress: Callable[[RepairProgress], None] | None = None,
) -> RepairReport:
    """Mend the damaged files of a committed version, and of versions that share them.

    Good bytes come from another version that holds them, from the manifest, or from building the damaged units again
    from the recorded inputs, which must be what they were. Nothing is put in a place that has not the manifest's
    sha256. Where a unit comes out with the same rows in other bytes, as by another release of a writer, its files stay
    as they are and a new version is committed. May be killed at any moment, and be run again.

    Args:
        store: a store, its path or its URL.
        reference: ``NAME`` (its newest version), ``NAME@v3`` or ``NAME@TAG``.
        config: what the version was built with; None: as its newest run was asked. Needed where inputs have moved.
        overrides: ``key=value`` texts on top of it.
        dry_run: only say what would be done.
        workers: processes that build; default: the processors this process may use.
        on_progress: called from several threads, one call at a time.

    Raises:
        ConfigError: ``config`` is no configuration.
        NotFoundError: there is no such committed version.
        IntegrityError: its manifest is damaged and cannot be made again.
        VersionConflictError: somebody else changed a damaged file meanwhile; run it again.
    """
    if config is not None:
        load_config(config, overrides)  # a wrong one is told at once, not when it is needed, or never
    place = store if isinstance(store, Store) else open_store(store)
    address = StoreAddress(store.url) if isinstance(store, Store) else StoreAddress.of(store)
    layout = named(Catalog(place), reference)
    work = Repair(
        place, address, layout, config, tuple(overrides), dry_run, workers or available_cpus(), on_progress
    )
    return work.run()


def named(catalog: Catalog, reference: str) -> Layout:
    """Return the version that a reference means; unlike elsewhere a tag may mean one whose manifest is damaged.

    Raises:
        NotFoundError: there is no such committed version.
    """
    found = Reference.parse(reference)
    if found.tag is not None:
        return Layout(found.dataset, catalog.tag(found.dataset, found.tag).version)
    if found.version is None:
        return Layout(found.dataset, catalog.latest(found.dataset))
    return Layout(*catalog.resolve(reference))
