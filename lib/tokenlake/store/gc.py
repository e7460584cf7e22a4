"""Collecting: judge everything, then remove what may go.

What goes, once it lay untouched for the grace period:

- temporary files and uploads in parts that were never published, at once where their process on this machine is dead;
- unfinished builds under whose version nothing changed: the claim is swept, then all but the claim is deleted. Numbers
  are never used again;
- files below a committed version that its manifest, which must be sound, does not name.

What stays, whatever its age: all that a manifest names, and with it what tags, mixtures and reused units need; tags;
``runs/`` of versions; whatever is not ours. Ages are by the storage's clock against this machine's: a clock that is
wrong by hours makes a grace period longer or shorter by as much, and nothing else. What guards a version is no clock
(see :mod:`tokenlake.etl.commit`).

Judging what lies in a store: what may go, what stays, and why; nothing is changed here.

A version is looked at as a whole, and once: what it holds, unpublished things included, and when any of it changed
last. An object whose storage does not say when it changed counts as changed now.

Removing what was judged: first the swap after which nobody can need it, then the files.

Every step may be the last one: a collection that dies leaves a store in which all versions are whole, and the next one
goes on where it ended.

What a collection did, or would do: what was removed, which builds were given up, and what was left and why.

Spans of time as people write them: ``7d``, ``12h``, ``30m``, ``90s``, ``0``.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar, final

from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.report import numbers
from tokenlake.store.address import StoreAddress, open_store
from tokenlake.store.base import Leftover, ObjectInfo, Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import Claim, closing_note, is_closing_note
from tokenlake.store.layout import (
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
from tokenlake.store.manifest import Manifest
from tokenlake.store.sealed import FORMAT_VERSION

Kind: TypeAlias = Literal["temporary", "abandoned", "stray"]


@final
@dataclass(frozen=True, slots=True)
class Removed:
    """One file, or one upload that never ended.

    Attributes:
        kind: ``temporary`` (never published), ``abandoned`` (of a build that was given up) or ``stray`` (below a
            committed version whose manifest does not name it).
        name: key in the store.
        bytes: its size. Of a file with other hard links, as reuse makes them, removing it frees nothing.
        modified: seconds since the epoch, by the storage's clock; None where it does not say.
    """

    kind: Kind
    name: str
    bytes: int
    modified: float | None

    @property
    def place(self) -> str:
        """The version it lay in, as a reference (``code@v3``); its folder where that is no version's."""
        return place_of(self.name)


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
    was: Literal["building", "committing", "damaged", "swept"]
    modified: float | None


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """Something that was left alone, and why; failed: it should have gone, and the storage refused."""

    name: str
    reason: str
    failed: bool = False


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
    removed: tuple[Removed, ...]
    swept: tuple[Swept, ...]
    kept: tuple[Kept, ...]

    @property
    def bytes(self) -> int:
        """The sizes of all that was removed."""
        return sum(each.bytes for each in self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``bytes`` and ``files`` included."""
        return {
            "store": self.store,
            "grace": self.grace,
            "dry_run": self.dry_run,
            "files": len(self.removed),
            "bytes": self.bytes,
            "removed": [asdict(each) for each in self.removed],
            "swept": [asdict(each) for each in self.swept],
            "kept": [asdict(each) for each in self.kept],
        }


def place_of(name: str) -> str:
    """``code/v3/data/x.parquet`` -> ``code@v3``; other folders as they are."""
    dataset, _, rest = name.partition("/")
    version = rest.partition("/")[0]
    if version[:1] == "v" and version[1:].isdecimal() and "/" in rest:
        return f"{dataset}@{version}"
    return name.rpartition("/")[0] or "(the store)"


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


_Thing = TypeVar("_Thing")
_NOBODY: Final = "0" * 64  # the fingerprint of a claim that could not be read any more


def sweep(store: Store, found: Abandoned) -> Kept | None:
    """Make sure that an abandoned version never becomes one; say why not where its build woke up."""
    layout = found.layout
    try:
        # From "building" a commit has to swap the claim as well. In any other state it may have done so before it fell
        # asleep, and only the manifest's own name can keep it from waking up to publish.
        if found.was in ("committing", "damaged"):
            store.put_new(layout.manifest, closing_note(layout))
        if found.claim is not None and (found.ours is None or found.ours.state != "swept"):
            store.swap(layout.claim, _swept_claim(found), found.claim)
    except VersionConflictError:
        return Kept(layout.prefix, "its build went on just now")
    return None


def _swept_claim(found: Abandoned) -> bytes:
    layout = found.layout
    claim = found.ours or Claim(dataset=layout.dataset, version=layout.version, fingerprint=_NOBODY, meta={})
    return claim.turned("swept").to_bytes()


def delete_all(store: Store, files: Iterable[Removed], workers: int) -> tuple[list[Removed], list[Kept]]:
    """Delete objects; return those that we deleted, and those that we could not."""
    return _each(files, lambda file: _deleted(store, file), workers)


def remove_all(
    store: Store, leftovers: Iterable[Leftover], workers: int
) -> tuple[list[Leftover], list[Kept]]:
    """Remove unpublished things; return those that we removed, and those that we could not."""
    return _each(leftovers, lambda leftover: _dropped(store, leftover), workers)


def prune(store: Store, layout: Layout, *, whole: bool) -> None:
    """Remove the empty folders of a version, deepest first; its own too, where `whole`."""
    _prune(store, layout.prefix)
    if whole:
        store.remove_folder(layout.prefix)


def _prune(store: Store, folder: str) -> None:
    for name in store.list_dirs(folder):
        _prune(store, f"{folder}/{name}")
        store.remove_folder(f"{folder}/{name}")


def _deleted(store: Store, file: Removed) -> bool | Kept:
    try:
        store.delete(file.name)
    except NotFoundError:  # another collection was faster
        return False
    except StoreError as error:
        return Kept(file.name, f"it could not be removed: {error}", failed=True)
    return True


def _dropped(store: Store, leftover: Leftover) -> bool | Kept:
    try:
        return store.remove_leftover(leftover)
    except StoreError as error:
        return Kept(leftover.name, f"it could not be removed: {error}", failed=True)


def _each(
    things: Iterable[_Thing], remove: Callable[[_Thing], bool | Kept], workers: int
) -> tuple[list[_Thing], list[Kept]]:
    asked = list(things)
    if workers == 1 or len(asked) < 2:
        answers = list(map(remove, asked))
    else:
        with ThreadPoolExecutor(min(workers, len(asked)), thread_name_prefix="gc") as pool:
            answers = list(pool.map(remove, asked))
    done = [thing for thing, answer in zip(asked, answers, strict=True) if answer is True]
    return done, [answer for answer in answers if isinstance(answer, Kept)]


_DURATION: Final = re.compile(r" *([0-9]{1,9}(?:\.[0-9]{1,9})?) *([smhdw]) *", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(value: float | str) -> float:
    """Return a span in seconds; a bare number is in seconds and must be 0 where it is text.

    Raises:
        ConfigError: it is no span, is negative, or would have to be guessed (``"7"``).
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str):
        if value.strip() == "0":
            return 0.0
        if match := _DURATION.fullmatch(value):
            return float(match[1]) * _SECONDS[match[2]]
    raise ConfigError(
        f"got {value!r}: a span of time must be 0 or a number with a unit, such as 7d, 12h, 30m or 90s",
        got=value,
    )


#: How long something must have lain untouched, where nobody says.
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
    datasets = _datasets(store, names)
    leftovers = [each for prefix in names or ("",) for each in store.leftovers(prefix) if _is_ours(each.name)]
    findings = [
        finding
        for layout in _layouts(store, datasets)
        for finding in _judged(store, layout, leftovers, clock)
    ]
    kept = [finding for finding in findings if isinstance(finding, Kept)]
    doing = _Doing(store, dry_run, workers, kept)
    doing.leave(old_leftovers(leftovers, clock))
    for finding in findings:
        doing.act(finding)
    return GcReport(
        store=store.url,
        grace=grace,
        dry_run=dry_run,
        removed=tuple(sorted(doing.removed, key=lambda each: each.name)),
        swept=tuple(doing.swept),
        kept=tuple(sorted(kept, key=lambda each: each.name)),
    )


class _Doing:
    """Does what was found, or only notes it, and keeps the list of it."""

    def __init__(self, store: Store, dry_run: bool, workers: int, kept: list[Kept]) -> None:
        self._store, self._dry, self._workers, self._kept = store, dry_run, workers, kept
        self.removed: list[Removed] = []
        self.swept: list[Swept] = []

    def leave(self, leftovers: list[Leftover]) -> None:
        """Remove unpublished things."""
        done, failed = (leftovers, []) if self._dry else remove_all(self._store, leftovers, self._workers)
        self.removed += [Removed("temporary", each.name, each.bytes, each.modified) for each in done]
        self._kept += failed

    def act(self, finding: Finding) -> None:
        """Do what a finding asks for."""
        if isinstance(finding, Abandoned):
            self._sweep(finding)
        elif isinstance(finding, Strays):
            self._delete(finding.files)
            self._prune(finding.layout, whole=False)
        elif isinstance(finding, Empty):
            self._prune(finding.layout, whole=True)

    def _sweep(self, found: Abandoned) -> None:
        alive = None if self._dry else sweep(self._store, found)
        if alive is not None:
            self._kept.append(alive)
            return
        layout = found.layout
        self.swept.append(Swept(layout.dataset, layout.version, found.was, found.modified))
        self._delete(found.files)
        self._prune(layout, whole=False)

    def _delete(self, files: Sequence[Removed]) -> None:
        done, failed = (files, []) if self._dry else delete_all(self._store, files, self._workers)
        self.removed += done
        self._kept += failed

    def _prune(self, layout: Layout, *, whole: bool) -> None:
        if not self._dry:
            prune(self._store, layout, whole=whole)


def _datasets(store: Store, names: Sequence[str]) -> list[str]:
    there = [name for name in store.list_dirs("") if DATASET_NAME.fullmatch(name)]
    for name in map(check_dataset_name, names):
        if name not in there:
            near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(there) or 'none'}."
            )
            raise NotFoundError(f"no dataset {name!r} in {store.url}; {hint}", dataset=name, near=near)
    return sorted(set(names)) if names else there


def _layouts(store: Store, datasets: Iterable[str]) -> Iterator[Layout]:
    for dataset in datasets:
        numbers = filter(None, map(version_number, store.list_dirs(dataset)))
        yield from (Layout(dataset, version) for version in sorted(numbers))


def _judged(store: Store, layout: Layout, leftovers: Iterable[Leftover], clock: Clock) -> list[Finding]:
    below = f"{layout.prefix}/"
    return judge(store, layout, [each for each in leftovers if each.name.startswith(below)], clock)


def _is_ours(name: str) -> bool:
    """Say whether an unpublished thing lies where builds and tags put theirs, not in somebody else's folder."""
    first, _, rest = name.partition("/")
    if not rest:
        return True
    folder, _, deeper = rest.partition("/")
    if not DATASET_NAME.fullmatch(first):
        return False
    return folder.startswith(TEMP_MARK) or (
        bool(deeper) and (folder == TAGS or version_number(folder) is not None)
    )
