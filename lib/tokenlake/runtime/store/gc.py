"""Garbage collection: judge everything, then remove what no version, tag or build that goes on needs.

What goes, once it lay untouched for the grace period:

- temporary files and uploads in parts that were never published, at once where their process on this machine is dead;
- unfinished builds under whose version nothing changed: the claim is swept, then all but the claim is deleted. Numbers
  are never used again;
- files below a committed version that its manifest, which must be sound, does not list.

What stays, whatever its age: all that a manifest lists, and with it what tags, mixtures and reused units need; tags;
``runs/`` of versions; whatever is not ours. Ages are by the storage's clock against this machine's: a clock that is
wrong by hours makes a grace period longer or shorter by as much, and nothing else. What guards a version is no clock
(see :mod:`tokenlake.etl.commit`).

A version is looked at as a whole, and once: what it holds, unpublished things included, and when any of it changed
last. An object whose storage does not say when it changed counts as changed now.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import remove
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Leftover, ObjectInfo, Store
from tokenlake.runtime.store.catalog import Catalog, lists_ledger, not_among
from tokenlake.runtime.store.claims import is_closing_note
from tokenlake.runtime.store.layout import (
    CLAIM,
    DATASET_NAME,
    LEDGER,
    MANIFEST,
    QUARANTINE,
    RUNS,
    TAGS,
    TEMP_MARK,
    Layout,
    check_dataset_name,
    version_number,
)
from tokenlake.runtime.store.sealed import FORMAT_VERSION


@final
@dataclass(frozen=True, slots=True)
class Swept:
    """A build that was given up: its number stays taken, and its files go.

    Attributes:
        was: the state of its claim: ``building``, ``committing``, ``damaged``, or ``swept`` where an earlier collection
            had begun.
        modified: when anything of it changed last, in seconds since the epoch.
    """

    dataset: str
    version: int
    was: remove.WasState
    modified: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """The result of one collection.

    Attributes:
        store: its URL.
        grace: seconds that something must have lain untouched.
        dry_run: nothing was changed; the report is the same as without.
        removed: by name.
        swept: builds that were given up, also those of which no file was left.
        kept: unfinished builds that are younger, and what could not be judged or removed.
    """

    store: str
    grace: float
    dry_run: bool
    removed: tuple[remove.Removed, ...]
    swept: tuple[Swept, ...]
    kept: tuple[remove.Kept, ...]

    @property
    def bytes(self) -> int:
        """The sizes of all that was removed."""
        return sum(each.bytes for each in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``bytes`` and ``files`` included."""
        return asdict(self) | {"files": len(self.removed), "bytes": self.bytes}


@final
@dataclass(frozen=True, slots=True)
class Clock:
    """When it is, and how long something must have lain untouched, in seconds."""

    now: float
    grace: float

    def is_old(self, modified: float | None) -> bool:
        """Say whether something was left alone for the whole grace period."""
        return modified is not None and self.now - modified >= self.grace

    def is_over(self, leftover: Leftover) -> bool:
        """Say whether it will never be published: its process is dead, or nobody touched it for the grace period."""
        return leftover.dead or self.is_old(leftover.modified)


def judge(
    store: Store, layout: Layout, leftovers: Sequence[Leftover], clock: Clock
) -> remove.Finding | remove.Kept | None:
    """Judge one version's folder.

    Args:
        leftovers: the unpublished things of the store.
    """
    leftovers = [each for each in leftovers if each.name.startswith(f"{layout.prefix}/")]
    objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    if MANIFEST in objects:
        return _judge_committed(store, layout, objects, clock)
    if CLAIM in objects:
        return _judge_claim(store, layout, objects, leftovers, clock)
    if objects:
        return remove.Kept(layout.prefix, "it has neither claim nor manifest: not a version of ours")
    return remove.Finding(layout=layout, empty=True) if all(map(clock.is_over, leftovers)) else None


def _judge_committed(
    store: Store, layout: Layout, objects: dict[str, ObjectInfo], clock: Clock
) -> remove.Finding | remove.Kept | None:
    if is_closing_note(store.read(layout.manifest), layout):
        return _swept(store, remove.closed(store, layout, objects))
    try:
        manifest = Catalog(store).manifest(layout.dataset, layout.version)
        manifest.check(layout.manifest)
    except IntegrityError as error:
        return remove.Kept(layout.manifest, f"the version is damaged, so nothing of it was touched: {error}")
    named = {MANIFEST, CLAIM, *manifest.other_files, *(shard.path for shard in manifest.files)}
    # Records that are not listed prove themselves, and the bad records that they name.
    beside = {RUNS} if lists_ledger(manifest) else {RUNS, LEDGER, QUARANTINE}
    strays = [
        info
        for path, info in objects.items()
        if path not in named and path.partition("/")[0] not in beside and clock.is_old(info.modified)
    ]
    files = tuple(remove.Removed.of("stray", info) for info in strays)
    return remove.Finding(layout=layout, files=files) if files else None


def _judge_claim(
    store: Store,
    layout: Layout,
    objects: dict[str, ObjectInfo],
    leftovers: Sequence[Leftover],
    clock: Clock,
) -> remove.Finding | remove.Kept | None:
    data = remove.claim_bytes(store, layout)
    if data is None:  # gone since it was listed
        return None
    claim = remove.read_claim(data, layout)
    if claim is not None and claim.state == "swept":
        return _swept(store, remove.abandoned(layout, "swept", data, objects))
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        version = json.loads(data)["format_version"]
        if claim is None and isinstance(version, int) and version > FORMAT_VERSION:
            return remove.Kept(layout.claim, "a newer release of tokenlake wrote it; upgrade to collect it")
    changes = [info.modified for info in objects.values()] + [each.modified for each in leftovers]
    known = [change for change in changes if change is not None]
    if len(known) < len(changes):
        return remove.Kept(layout.prefix, "unfinished, and the storage does not say when it changed last")
    if not clock.is_old(max(known)):
        age = numbers.age(max(0.0, clock.now - max(known)))
        return remove.Kept(layout.prefix, f"unfinished, and changed {age} ago")
    return remove.abandoned(layout, "damaged" if claim is None else claim.state, data, objects)


def _swept(store: Store, found: remove.Finding) -> remove.Finding | None:
    """Return what an earlier collection left of a swept version; None where it had come to its end."""
    claim = remove.read_claim(found.claim, found.layout)
    done = found.claim is None or (claim is not None and claim.state == "swept")
    return None if done and not found.files and not store.list_dirs(found.layout.prefix) else found


#: How long something must have lain untouched, by default.
GRACE = "7d"


def gc(
    store: str | os.PathLike[str] | StoreAddress,
    names: Iterable[str] = (),
    *,
    grace: float | str = GRACE,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> GcReport:
    """Remove from a store what no version, no tag and no build that goes on needs.

    ::

        tl.gc("artifacts", dry_run=True).bytes  # what would be freed
        tl.gc("artifacts", ["llama2-2048"], grace="12h")

    Args:
        store: a path, a URL or an address.
        names: only these datasets; all where there are none.
        grace: seconds, or a text such as ``"7d"``, ``"12h"``, ``"30m"``, that something must have lain untouched. With
            0 also what a build is working on is removed: no version suffers, but the build has to begin again.
        dry_run: change nothing; the report says what would happen.
        storage_options: for the store's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        ConfigError: not such a span of time.
        NotFoundError: there is no such dataset.
        StoreError: the store cannot be listed.
    """
    chosen = open_store(store, storage_options=storage_options)
    return collect(chosen, list(names), grace=parse_duration(grace), dry_run=dry_run)


def collect(
    store: Store,
    names: Sequence[str] = (),
    *,
    grace: float,
    dry_run: bool = False,
    now: float | None = None,
    workers: int = 8,
) -> GcReport:
    """Collect in an open store; as :func:`gc`.

    Args:
        grace: in seconds.
        now: seconds since the epoch; None: by this machine's clock.
        workers: threads that delete.
    """
    clock = Clock(time.time() if now is None else now, grace)
    datasets = [name for name in store.list_dirs("") if DATASET_NAME.fullmatch(name)]
    for name in map(check_dataset_name, names):
        if name not in datasets:
            raise not_among(f"no dataset {name!r} in {store.url}", name, datasets)
    leftovers = [each for prefix in names or ("",) for each in store.leftovers(prefix) if _is_ours(each.name)]
    findings: list[remove.Finding | remove.Kept | None] = []
    for dataset in sorted(set(names)) if names else datasets:
        numbers_there = filter(None, map(version_number, store.list_dirs(dataset)))
        findings += [judge(store, Layout(dataset, each), leftovers, clock) for each in sorted(numbers_there)]
    remover, swept = remove.Remover(store, dry_run=dry_run, workers=workers), list[Swept]()
    remover.kept += [each for each in findings if isinstance(each, remove.Kept)]
    remover.remove_leftovers(filter(clock.is_over, leftovers))
    for found in findings:
        if isinstance(found, remove.Finding) and remover.remove(found) and found.was is not None:
            swept.append(Swept(found.layout.dataset, found.layout.version, found.was, found.modified))
    return GcReport(
        store=store.url,
        grace=grace,
        dry_run=dry_run,
        removed=tuple(sorted(remover.removed, key=lambda each: each.name)),
        swept=tuple(swept),
        kept=tuple(sorted(remover.kept, key=lambda each: each.name)),
    )


def _is_ours(name: str) -> bool:
    """Say whether an unpublished thing lies where builds and tags put theirs, not in somebody else's folder."""
    first, slash, rest = name.partition("/")
    folder, deeper, _ = rest.partition("/")
    version_or_tags = folder == TAGS or version_number(folder) is not None
    below = folder.startswith(TEMP_MARK) or (bool(deeper) and version_or_tags)
    return not slash or (DATASET_NAME.fullmatch(first) is not None and below)
