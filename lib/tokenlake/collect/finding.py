"""Judging what lies in a store: what may go, what stays, and why; nothing is changed here.

A version is looked at as a whole, and once: what it holds, unpublished things included, and when any of it changed
last. An object whose storage does not say when it changed counts as changed now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

from tokenlake.catalog import Catalog, Claim
from tokenlake.catalog.closing import is_closing_note
from tokenlake.collect.report import Kept, Removed
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.manifest import Manifest
from tokenlake.report import numbers
from tokenlake.sealed import FORMAT_VERSION
from tokenlake.storage.base import Leftover, ObjectInfo, Store
from tokenlake.storage.layout import CLAIM, LEDGER, MANIFEST, QUARANTINE, RUNS, Layout

WasState: TypeAlias = Literal["building", "committing", "damaged", "swept"]


@final
@dataclass(frozen=True, slots=True)
class Clock:
    """When it is, and how long something must have lain untouched, in seconds."""

    now: float
    grace: float

    def is_old(self, modified: float | None) -> bool:
        """Say whether something was left alone for the whole grace period."""
        return modified is not None and self.now - modified >= self.grace

    def age(self, modified: float) -> str:
        """``3 days``."""
        return numbers.age(max(0.0, self.now - modified))


@final
@dataclass(frozen=True, slots=True)
class Abandoned:
    """An unfinished version that may be swept.

    Attributes:
        was: the state of its claim.
        claim: the bytes of the claim as it was judged; None where there is none, of a number that is closed.
        ours: what it said; None if that cannot be read.
        modified: when anything changed last.
        files: what goes, in the order in which it goes.
    """

    layout: Layout
    was: WasState
    claim: bytes | None
    ours: Claim | None
    modified: float | None
    files: tuple[Removed, ...]


@final
@dataclass(frozen=True, slots=True)
class Strays:
    """Files below a committed version that its manifest does not name."""

    layout: Layout
    files: tuple[Removed, ...]


@final
@dataclass(frozen=True, slots=True)
class Empty:
    """A version's folder that nobody claimed, and that holds nothing (any more)."""

    layout: Layout


Finding: TypeAlias = Abandoned | Strays | Empty | Kept


def old_leftovers(leftovers: Iterable[Leftover], clock: Clock) -> list[Leftover]:
    """Return what will never be published: its process is dead, or nobody touched it for the grace period."""
    return [each for each in leftovers if each.dead or clock.is_old(each.modified)]


def judge(store: Store, layout: Layout, leftovers: Iterable[Leftover], clock: Clock) -> list[Finding]:
    """Judge one version's folder.

    Args:
        leftovers: the unpublished things below it.
    """
    objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    if MANIFEST in objects:
        return _judge_committed(store, layout, objects, clock)
    if CLAIM in objects:
        return _judge_claim(store, layout, objects, leftovers, clock)
    if objects:
        return [Kept(layout.prefix, "it has neither claim nor manifest: not a version of ours")]
    alive = any(not (each.dead or clock.is_old(each.modified)) for each in leftovers)
    return [] if alive else [Empty(layout)]


def closed(store: Store, layout: Layout, objects: Mapping[str, ObjectInfo] | None = None) -> Abandoned:
    """Return what is left of a number whose manifest never will be, or no longer is."""
    if objects is None:
        objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    found = _claim_bytes(store, layout)
    return _abandoned(layout, "swept", found, _read_claim(found, layout), objects)


def _judge_committed(
    store: Store, layout: Layout, objects: dict[str, ObjectInfo], clock: Clock
) -> list[Finding]:
    if is_closing_note(store.read(layout.manifest), layout):
        return _swept(store, closed(store, layout, objects))
    try:
        manifest = Catalog(store).manifest(layout.dataset, layout.version)
        manifest.check(layout.manifest)
    except IntegrityError as error:
        return [Kept(layout.manifest, f"the version is damaged, so nothing of it was touched: {error}")]
    named = _named(objects, manifest)
    files = [_removed("stray", info) for path, info in objects.items() if path not in named]
    old = tuple(each for each in files if clock.is_old(each.modified))
    return [Strays(layout, old)] if old else []


def _named(paths: Iterable[str], manifest: Manifest) -> set[str]:
    """Return the paths that a manifest names, and of `paths` those that are known beside it."""
    own = {RUNS}
    if not any(name.startswith(f"{LEDGER}/") for name in manifest.other_files):
        # Records that are not listed prove themselves, and the bad records that they name.
        own |= {LEDGER, QUARANTINE}
    beside = {path for path in paths if path.partition("/")[0] in own}
    return {MANIFEST, CLAIM, *manifest.other_files, *(shard.path for shard in manifest.files)} | beside


def _judge_claim(
    store: Store,
    layout: Layout,
    objects: dict[str, ObjectInfo],
    leftovers: Iterable[Leftover],
    clock: Clock,
) -> list[Finding]:
    data = _claim_bytes(store, layout)
    if data is None:  # gone since it was listed
        return []
    claim = _read_claim(data, layout)
    if claim is not None and claim.state == "swept":
        return _swept(store, _abandoned(layout, "swept", data, claim, objects))
    if claim is None and _is_newer(data):
        return [Kept(layout.claim, "a newer release of tokenlake wrote it; upgrade to collect it")]
    changes = [info.modified for info in objects.values()] + [each.modified for each in leftovers]
    known = [change for change in changes if change is not None]
    newest = max(known) if len(known) == len(changes) else None
    if newest is None:
        return [Kept(layout.prefix, "unfinished, and the storage does not say when it changed last")]
    if not clock.is_old(newest):
        return [Kept(layout.prefix, f"unfinished, and changed {clock.age(newest)} ago")]
    return [_abandoned(layout, "damaged" if claim is None else claim.state, data, claim, objects)]


def _swept(store: Store, found: Abandoned) -> list[Finding]:
    """Return what an earlier collection left of a swept version; nothing where it had come to its end."""
    done = found.claim is None or (found.ours is not None and found.ours.state == "swept")
    return [] if done and not found.files and not store.list_dirs(found.layout.prefix) else [found]


def _abandoned(
    layout: Layout, was: WasState, data: bytes | None, claim: Claim | None, objects: Mapping[str, ObjectInfo]
) -> Abandoned:
    # The ledger first: as long as there is a record, its files are there, for who reuses them just now.
    paths = sorted(objects, key=lambda path: (not path.startswith(f"{LEDGER}/"), path))
    changes = [info.modified for info in objects.values() if info.modified is not None]
    return Abandoned(
        layout=layout,
        was=was,
        claim=data,
        ours=claim,
        modified=max(changes, default=None),
        files=tuple(_removed("abandoned", objects[path]) for path in paths if path not in (CLAIM, MANIFEST)),
    )


def _removed(kind: Literal["abandoned", "stray"], info: ObjectInfo) -> Removed:
    return Removed(kind, info.key, info.size, info.modified)


def _claim_bytes(store: Store, layout: Layout) -> bytes | None:
    try:
        return store.read(layout.claim)
    except NotFoundError:
        return None


def _read_claim(data: bytes | None, layout: Layout) -> Claim | None:
    try:
        found = None if data is None else Claim.from_bytes(data, layout.claim)
    except IntegrityError:
        return None
    if found is None or (found.dataset, found.version) != (layout.dataset, layout.version):
        return None
    return found


def _is_newer(data: bytes) -> bool:
    """Say whether a claim that cannot be read looks like one of a later format."""
    try:
        value: Any = json.loads(data)
        version = value["format_version"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return False
    return isinstance(version, int) and version > FORMAT_VERSION
