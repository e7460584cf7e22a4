"""Garbage collection: judge everything, then remove files that nobody needs.

A file is needed by a version, a tag or a running build.

Removed, after they lay untouched for the grace period:

- temporary files and multipart uploads that were never published; at once if their
  process on this machine is dead;
- unfinished builds: the claim is swept, then all but the claim is deleted. Numbers are
  never used again;
- files below a committed version that its manifest does not list; the manifest must be
  sound.

Kept, whatever their age: all files that a manifest lists, and with them all that tags,
mixtures and reused units need; tags; ``runs/`` of versions; files that are not ours.
Ages compare the storage's clock with this machine's. A clock that is wrong by hours
changes a grace period by as much, and nothing else: versions are not guarded by clocks
(see :mod:`tokenlake.etl.commit`).

A version is listed once, as a whole, unpublished things included. An object whose
storage does not record its last change counts as changed now.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import remove
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Leftover, ObjectInfo, Store
from tokenlake.runtime.store.catalog import Catalog, lists_ledger
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
from tokenlake.runtime.store.references import not_among
from tokenlake.runtime.store.sealed import FORMAT_VERSION


@final
@dataclass(frozen=True, slots=True)
class Swept:
    """A build that was given up: its number stays taken, and its files are removed.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        was: State of its claim: ``building``, ``committing``, ``damaged``, or ``swept``
            if an earlier collection began to remove it.
        modified: Time of its last change, in seconds since the epoch.
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
        store: URL of the store.
        grace: Seconds that something must have lain untouched.
        dry_run: Nothing was changed; the report is the same as without.
        removed: Removed files, by name.
        swept: Builds that were given up, also those of which no file was left.
        kept: Unfinished builds that are younger, and things that could not be judged or
            removed.
    """

    store: str
    grace: float
    dry_run: bool
    removed: tuple[remove.Removed, ...]
    swept: tuple[Swept, ...]
    kept: tuple[remove.Kept, ...]

    @property
    def bytes(self) -> int:
        """Sum of the sizes of all removed files."""
        return sum(file.bytes for file in self.removed)

    @property
    def freed_bytes(self) -> int:
        """Number of bytes that the removal frees: without those that others share."""
        return remove.freed_bytes(self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, with ``files``, ``bytes`` and ``freed_bytes``."""
        return asdict(self) | {
            "files": len(self.removed),
            "bytes": self.bytes,
            "freed_bytes": self.freed_bytes,
        }


@final
@dataclass(frozen=True, slots=True)
class Clock:
    """The time of a collection, and its grace period.

    Attributes:
        now: Seconds since the epoch.
        grace: Seconds that something must have lain untouched.
    """

    now: float
    grace: float

    def is_old(self, modified: float | None) -> bool:
        """Return whether something lay untouched for the grace period.

        The result is False if its last change is unknown.
        """
        return modified is not None and self.now - modified >= self.grace

    def is_over(self, leftover: Leftover) -> bool:
        """Return whether an unpublished thing is abandoned.

        It is abandoned if its process is dead, or if it is old.
        """
        return leftover.dead or self.is_old(leftover.modified)


def judge(
    store: Store, layout: Layout, leftovers: Sequence[Leftover], clock: Clock
) -> remove.Finding | remove.Kept | None:
    """Decide which files of one version's folder may be removed.

    Args:
        store: The store.
        layout: The version.
        leftovers: Unpublished things of the whole store.
        clock: Time and grace period.

    Returns:
        Files to remove, or the reason why they are kept; None if there is nothing to
        remove.
    """
    # The kind of a version follows from its two documents. A manifest says that it is
    # committed, a claim alone that it is not.
    own_leftovers: list[Leftover] = []
    for leftover in leftovers:
        if leftover.key.startswith(f"{layout.prefix}/"):
            own_leftovers.append(leftover)
    objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    if MANIFEST in objects:
        return _judge_committed(store, layout, objects, clock)
    if CLAIM in objects:
        return _judge_claim(store, layout, objects, own_leftovers, clock)
    if objects:
        return remove.Kept(
            layout.prefix, "it has neither claim nor manifest, so it is not a version"
        )
    # An empty folder is removed, unless a fresh temporary file shows that a build is
    # about to claim the version.
    if all(clock.is_over(leftover) for leftover in own_leftovers):
        return remove.Finding(layout=layout, empty=True)
    return None


def _judge_committed(
    store: Store, layout: Layout, objects: dict[str, ObjectInfo], clock: Clock
) -> remove.Finding | remove.Kept | None:
    """Judge a version that has a manifest, or a closing note in its place."""
    # A closing note was written by a removal, which may have died before it removed all
    # files.
    if is_closing_note(store.read(layout.manifest), layout):
        return _remains_of(store, remove.closed(store, layout, objects))
    try:
        manifest = Catalog(store).manifest(layout.dataset, layout.version)
        manifest.check(layout.manifest)
    except IntegrityError as error:
        return remove.Kept(
            layout.manifest,
            f"the version is damaged, so none of its files was removed: {error}",
        )

    # Files that the manifest lists, and folders whose files it need not list.
    listed = {
        MANIFEST,
        CLAIM,
        *manifest.other_files,
        *(shard.path for shard in manifest.files),
    }
    # Records of runs are written after the commit, and so are not in the manifest.
    unlisted_folders = {RUNS}
    if not lists_ledger(manifest):
        # Ledger records carry their own hash, and those of the bad records that they
        # name.
        unlisted_folders |= {LEDGER, QUARANTINE}
    strays: list[remove.Removed] = []
    for path, info in objects.items():
        is_known = path in listed or path.partition("/")[0] in unlisted_folders
        if not is_known and clock.is_old(info.modified):
            strays.append(remove.Removed.of("stray", info))
    if not strays:
        return None
    return remove.Finding(layout=layout, files=tuple(strays))


def _judge_claim(
    store: Store,
    layout: Layout,
    objects: dict[str, ObjectInfo],
    own_leftovers: Sequence[Leftover],
    clock: Clock,
) -> remove.Finding | remove.Kept | None:
    """Judge a version that has a claim and no manifest.

    A change of an unpublished thing of it keeps it, too.
    """
    data = remove.claim_bytes(store, layout)
    if data is None:  # removed since it was listed
        return None
    claim = remove.read_claim(data, layout)
    # An earlier collection swept the claim. Its work is continued.
    if claim is not None and claim.state == "swept":
        return _remains_of(
            store, remove.unfinished_files(layout, "swept", data, objects)
        )
    # A claim that cannot be read is damaged, unless a newer release wrote it.
    if claim is None and _is_of_newer_release(data):
        return remove.Kept(
            layout.claim, "a newer release of tokenlake wrote it; upgrade to remove it"
        )

    # Nobody continues the build if nothing of it changed for the grace period.
    changes = [info.modified for info in objects.values()]
    changes += [leftover.modified for leftover in own_leftovers]
    known_changes = [change for change in changes if change is not None]
    if len(known_changes) < len(changes):
        return remove.Kept(
            layout.prefix,
            "unfinished, and the storage does not report the time of its last change",
        )
    last_change = max(known_changes)
    # An unfinished build that changes may still run, anywhere: its age is all that is
    # known.
    if not clock.is_old(last_change):
        age = numbers.age(max(0.0, clock.now - last_change))
        return remove.Kept(layout.prefix, f"unfinished, and changed {age} ago")
    return remove.unfinished_files(
        layout, "damaged" if claim is None else claim.state, data, objects
    )


def _is_of_newer_release(data: bytes) -> bool:
    """Return whether a claim that cannot be read has a later format."""
    # The claim is not sound, so nothing else of it can be trusted.
    try:
        format_version = json.loads(data)["format_version"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return False
    return isinstance(format_version, int) and format_version > FORMAT_VERSION


def _remains_of(store: Store, finding: remove.Finding) -> remove.Finding | None:
    """Return the rest of a swept version; None if an earlier collection removed all."""
    claim = remove.read_claim(finding.claim, finding.layout)
    is_claim_swept = claim is not None and claim.state == "swept"
    is_closed = finding.claim is None or is_claim_swept
    has_rest = bool(finding.files or store.list_dirs(finding.layout.prefix))
    if is_closed and not has_rest:
        return None
    return finding


GRACE = "7d"
"""Default grace period."""


def gc(
    store: str | os.PathLike[str] | StoreAddress,
    names: Iterable[str] = (),
    *,
    grace: float | str = GRACE,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> GcReport:
    """Remove the files of a store that no version, tag or running build needs.

    Args:
        store: Path, URL or address of the store.
        names: Datasets to collect; empty: all.
        grace: Seconds, or a text such as ``"7d"``, ``"12h"``, ``"30m"``, for which a
            file must be unchanged. With 0 the files of running builds are removed, too:
            no version suffers, but such a build has to begin again.
        dry_run: True to report removals without making them.
        storage_options: Options of the store's file system; ``{"env": NAME}`` is
            replaced by an environment variable.

    Returns:
        Files that were removed, or would be, and their size.

    Raises:
        ConfigError: The grace period is not a span of time.
        NotFoundError: A dataset does not exist.
        StoreError: The store cannot be listed.

    Example:
        >>> import tokenlake as tl
        >>> report = tl.gc("artifacts", ["books"], grace="12h", dry_run=True)
        >>> report.bytes
        0
    """
    opened = open_store(store, storage_options=storage_options)
    return collect(opened, list(names), grace=parse_duration(grace), dry_run=dry_run)


def collect(
    store: Store,
    names: Sequence[str] = (),
    *,
    grace: float,
    dry_run: bool = False,
    now: float | None = None,
    workers: int = 8,
) -> GcReport:
    """Collect garbage in an open store, as :func:`gc` does.

    Args:
        store: The store.
        names: Datasets to collect; empty: all.
        grace: Seconds that something must have lain untouched.
        dry_run: Change nothing.
        now: Seconds since the epoch; None: this machine's clock.
        workers: Number of threads that delete.
    """
    clock = Clock(time.time() if now is None else now, grace)
    datasets = _datasets(store, names)

    # Judge everything before anything is removed.
    # Unpublished things are listed for a dataset or the whole store, not for each
    # version.
    leftovers: list[Leftover] = []
    for prefix in names or ("",):
        leftovers += [
            leftover for leftover in store.leftovers(prefix) if _is_ours(leftover.key)
        ]
    findings: list[remove.Finding] = []
    remover = remove.Remover(store, dry_run=dry_run, workers=workers)
    for layout in _version_folders(store, datasets):
        judgement = judge(store, layout, leftovers, clock)
        if isinstance(judgement, remove.Kept):
            remover.kept.append(judgement)
        elif judgement is not None:
            findings.append(judgement)

    # Remove unpublished things, then the files of the findings.
    remover.remove_leftovers(
        leftover for leftover in leftovers if clock.is_over(leftover)
    )
    swept: list[Swept] = []
    for finding in findings:
        # A build that resumed since it was judged keeps its files.
        is_removed = remover.remove(finding)
        if is_removed and finding.was is not None:
            layout = finding.layout
            swept.append(
                Swept(layout.dataset, layout.version, finding.was, finding.modified)
            )
    return GcReport(
        store=store.url,
        grace=grace,
        dry_run=dry_run,
        removed=tuple(sorted(remover.removed, key=lambda removed: removed.name)),
        swept=tuple(swept),
        kept=tuple(sorted(remover.kept, key=lambda kept: kept.name)),
    )


def _datasets(store: Store, names: Sequence[str]) -> list[str]:
    """Return the datasets to collect; NotFoundError for one that does not exist."""
    # A misspelled name must not look like a clean dataset.
    datasets = [
        dataset_name
        for dataset_name in store.list_dirs("")
        if DATASET_NAME.fullmatch(dataset_name)
    ]
    if not names:
        return datasets
    for dataset_name in names:
        if check_dataset_name(dataset_name) not in datasets:
            raise not_among(
                f"no dataset {dataset_name!r} in {store.url}", dataset_name, datasets
            )
    return sorted(set(names))


def _version_folders(store: Store, datasets: Iterable[str]) -> Iterator[Layout]:
    """Yield the version folders of datasets, ascending."""
    # Folders with other names hold no version.
    for dataset in datasets:
        versions: list[int] = []
        for folder_name in store.list_dirs(dataset):
            version = version_number(folder_name)
            if version is not None:
                versions.append(version)
        for version in sorted(versions):
            yield Layout(dataset, version)


def _is_ours(key: str) -> bool:
    """Return whether an unpublished thing lies where builds and tags put theirs.

    Foreign folders of the store are left alone.
    """
    # KEY is DATASET/FOLDER/..., where FOLDER is that of a version, of the tags, or a
    # temporary file itself.
    dataset, slash, path_in_dataset = key.partition("/")
    if not slash:
        return True  # in the root of the store
    if DATASET_NAME.fullmatch(dataset) is None:
        return False
    folder, _, path_in_folder = path_in_dataset.partition("/")
    is_version_or_tags = folder == TAGS or version_number(folder) is not None
    return folder.startswith(TEMP_MARK) or (bool(path_in_folder) and is_version_or_tags)
