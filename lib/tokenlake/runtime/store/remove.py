"""Removal of versions, and of the remains of a number that is closed.

A version is removed only if nobody needs it.

First a swap, after which nobody can need the files: a closing note takes the place of
the manifest, or the claim of a build that was given up becomes ``swept``. From then on
no reader finds the version, and its number stays taken. Then the files are removed. A
process may die after any step: all other versions stay whole, and the next ``gc``
continues where it ended.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias, final

from tokenlake.base.threads import in_order
from tokenlake.errors import (
    ConfigError,
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Leftover, ObjectInfo, Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.claims import Claim, closing_note, is_closing_note
from tokenlake.runtime.store.layout import (
    CLAIM,
    LEDGER,
    MANIFEST,
    Layout,
    version_number,
)
from tokenlake.runtime.store.references import Reference, parted
from tokenlake.runtime.store.tags import read_tags

_THREADS: Final = 8  # a delete waits for the storage, and takes no time here
_NOBODY: Final = "0" * 64  # fingerprint of a claim that could not be read

Kind: TypeAlias = Literal["temporary", "unfinished", "stray", "version"]
WasState: TypeAlias = Literal["building", "committing", "damaged", "swept"]


@final
@dataclass(frozen=True, slots=True)
class Removed:
    """One removed file, or one multipart upload that never ended.

    Attributes:
        kind: ``temporary`` (never published), ``unfinished`` (of a build that nobody
            continued, or of an interrupted removal), ``stray`` (below a committed
            version whose manifest does not list it) or ``version`` (of the committed
            version that is removed).
        name: Key in the store.
        bytes: Size. Removing a file with other hard links, as reuse makes them, frees
            nothing: see :func:`freed_bytes`.
        modified: Time of the last change by the storage's clock, in seconds since the
            epoch; None if unknown.
        links: Number of hard links of the file before the removal, this one included.
        inode: Identity of the bytes of a file with several hard links; "" for others.
    """

    kind: Kind
    name: str
    bytes: int
    modified: float | None
    links: int = 1
    inode: str = ""

    @classmethod
    def of(cls, kind: Kind, info: ObjectInfo) -> Self:
        """Return the entry of a listed object."""
        return cls(
            kind, info.key, info.size, info.modified, links=info.links, inode=info.inode
        )

    @property
    def place(self) -> str:
        """The version that it lay in, as a reference (``code@v3``); else its folder."""
        # Names are keys: DATASET/vN/PATH for files of a version.
        dataset, _, path_in_dataset = self.name.partition("/")
        version, slash, _ = path_in_dataset.partition("/")
        if slash and version_number(version) is not None:
            return f"{dataset}@{version}"
        return self.name.rpartition("/")[0] or "(the store)"


def freed_bytes(files: Iterable[Removed]) -> int:
    """Return the number of bytes that the removal of files frees.

    The bytes of a file are freed with its last hard link. Two versions that share a
    file of 5 bytes free 5 bytes together, and either one alone none.
    """
    freed = 0
    removed_links: Counter[str] = Counter()
    for file in files:
        # Every link of a file but the last one is only counted.
        if file.inode:
            removed_links[file.inode] += 1
        if not file.inode or removed_links[file.inode] == file.links:
            freed += file.bytes
    return freed


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """Something that was not removed.

    Attributes:
        name: Key or folder in the store.
        reason: Clause for messages.
        failed: The storage refused to remove it.
    """

    name: str
    reason: str
    failed: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The parts of a version that may be removed.

    Attributes:
        layout: The version.
        files: Files to remove, in this order.
        was: State of the claim of a version that is swept first; None: nothing is
            swept.
        claim: Bytes of that claim when it was judged; None for a closed number without
            a claim.
        modified: Time of the last change, in seconds since the epoch.
        empty: The folder is removed, too: nobody claimed the version, and it holds
            nothing.
    """

    layout: Layout
    files: tuple[Removed, ...] = ()
    was: WasState | None = None
    claim: bytes | None = None
    modified: float | None = None
    empty: bool = False


def closed(
    store: Store,
    layout: Layout,
    objects: Mapping[str, ObjectInfo] | None = None,
    kind: Kind = "unfinished",
) -> Finding:
    """Return the remains of a number that has a closing note.

    Args:
        store: The store.
        layout: The version.
        objects: Its objects by path; None: list them.
        kind: Kind of the files.
    """
    # Objects that the caller has listed are not listed again.
    if objects is None:
        objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    return unfinished_files(layout, "swept", claim_bytes(store, layout), objects, kind)


def unfinished_files(
    layout: Layout,
    was: WasState,
    claim: bytes | None,
    objects: Mapping[str, ObjectInfo],
    kind: Kind = "unfinished",
) -> Finding:
    """Return the files of an unfinished version that may be swept.

    Args:
        layout: The version.
        was: State of its claim.
        claim: Bytes of its claim.
        objects: Its objects by path.
        kind: Kind of the files.
    """
    # Ledger records go first: while a record exists, so do its files, for a build that
    # is reusing them.
    paths = sorted(objects, key=lambda path: (not path.startswith(f"{LEDGER}/"), path))
    files: list[Removed] = []
    for path in paths:
        # The claim keeps the number taken, and the closing note stands for the
        # manifest.
        if path not in (CLAIM, MANIFEST):
            files.append(Removed.of(kind, objects[path]))
    changes = [info.modified for info in objects.values() if info.modified is not None]
    return Finding(
        layout=layout,
        files=tuple(files),
        was=was,
        claim=claim,
        modified=max(changes, default=None),
    )


def claim_bytes(store: Store, layout: Layout) -> bytes | None:
    """Return the bytes of a claim; None if it does not exist."""
    try:
        return store.read(layout.claim)
    except NotFoundError:
        return None


def read_claim(data: bytes | None, layout: Layout) -> Claim | None:
    """Return the claim in some bytes; None if they are no claim of this version."""
    if data is None:
        return None
    try:
        claim = Claim.from_bytes(data, layout.claim)
    except IntegrityError:
        return None
    if (claim.dataset, claim.version) != (layout.dataset, layout.version):
        return None
    return claim


@final
class Remover:
    """Removes files, or only records them in a dry run.

    Attributes:
        removed: Removed files, in the order of their removal.
        kept: Things that were not removed.
    """

    def __init__(self, store: Store, *, dry_run: bool, workers: int = _THREADS) -> None:
        """
        Args:
            store: The store.
            dry_run: Change nothing.
            workers: Number of threads that delete.
        """
        self._store = store
        self._is_dry_run = dry_run
        self._workers = workers
        self.removed: list[Removed] = []
        self.kept: list[Kept] = []

    def remove_leftovers(self, leftovers: Iterable[Leftover]) -> None:
        """Remove unpublished things."""
        actions: list[_Action] = []
        for leftover in leftovers:
            file = Removed(
                "temporary", leftover.name, leftover.bytes, leftover.modified
            )
            actions.append((file, partial(self._store.remove_leftover, leftover)))
        self._run(actions)

    def remove(self, finding: Finding) -> bool:
        """Remove the files of a finding.

        The result is False if its build resumed meanwhile, which keeps them.
        """
        # Close the number first. A build that resumed in between changed its claim, and
        # the swap fails.
        if finding.was is not None and not self._is_dry_run:
            try:
                self._sweep(finding, finding.was)
            except VersionConflictError:
                self.kept.append(
                    Kept(finding.layout.prefix, "its build has just resumed")
                )
                return False
        # Nobody can need the files now.
        actions: list[_Action] = []
        for file in finding.files:
            actions.append((file, partial(self._store.delete, file.name)))
        self._run(actions)
        if not self._is_dry_run:
            self._remove_empty_folders(finding.layout.prefix)
            if finding.empty:
                self._store.remove_folder(finding.layout.prefix)
        return True

    def _sweep(self, finding: Finding, was: WasState) -> None:
        """Make sure that an unfinished version never gets a manifest.

        Raises:
            VersionConflictError: Its build resumed meanwhile.
        """
        layout = finding.layout
        # From "building" a commit has to swap the claim as well. In any other state it
        # may have done so before it fell asleep, and only the manifest's own name can
        # keep it from waking up to publish.
        if was in ("committing", "damaged"):
            self._store.put_new(layout.manifest, closing_note(layout))
        # A number without a claim needs no sweep: a build must claim it first.
        if finding.claim is None:
            return
        claim = read_claim(finding.claim, layout)
        # A damaged claim is replaced by one of no build, which keeps the number taken.
        if claim is None:
            claim = Claim(
                dataset=layout.dataset,
                version=layout.version,
                fingerprint=_NOBODY,
                meta={},
            )
        if claim.state != "swept":
            self._store.swap(
                layout.claim, claim.turned("swept").to_bytes(), finding.claim
            )

    def _run(self, actions: list[_Action]) -> None:
        """Remove files, several at a time, and record the results in their order."""
        for result in in_order(self._remove_one, actions, self._workers):
            if isinstance(result, Kept):
                self.kept.append(result)
            elif result is not None:
                self.removed.append(result)

    def _remove_one(self, action: _Action) -> Removed | Kept | None:
        """Remove one file; None if another process removed it first."""
        # One file that cannot be removed does not keep the others.
        file, delete = action
        if self._is_dry_run:
            return file
        try:
            is_missing = delete() is False
        except NotFoundError:
            # Another collection removed the file first.
            return None
        except StoreError as error:
            return Kept(file.name, f"it could not be removed: {error}", failed=True)
        if is_missing:
            return None
        return file

    def _remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders below a folder, deepest first."""
        for folder_name in self._store.list_dirs(folder):
            self._remove_empty_folders(f"{folder}/{folder_name}")
            self._store.remove_folder(f"{folder}/{folder_name}")


_Action: TypeAlias = tuple[Removed, Callable[[], bool | None]]
"""A file, and the call that removes it, which returns False if it is gone already."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A version that was removed, or would be.

    Attributes:
        dataset: Name of the dataset.
        version: Number of the version.
        dry_run: Nothing was changed.
        removed: Files of the version. Files that other versions share by hard links
            stay there, and free nothing here.
        kept: Files that the storage refused to remove; `gc` tries again.
    """

    dataset: str
    version: int
    dry_run: bool
    removed: tuple[Removed, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def bytes(self) -> int:
        """Sum of the sizes of all removed files."""
        return sum(file.bytes for file in self.removed)

    @property
    def freed_bytes(self) -> int:
        """Number of bytes that the removal frees: without those that others share."""
        return freed_bytes(self.removed)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, ``bytes`` and ``freed_bytes`` included."""
        return asdict(self) | {"bytes": self.bytes, "freed_bytes": self.freed_bytes}


def remove_version(
    where: str | os.PathLike[str] | StoreAddress,
    name: str | None = None,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Remove a committed version of a dataset; its number is never used again.

    Args:
        where: Version by its number, as :func:`tokenlake.open` takes it; or, with
            `name`, its store or the store's address.
        name: Reference of the version in the store `where`: ``NAME@vN``. Tags and names
            alone are refused.
        dry_run: True to report the removal without making it.
        storage_options: Options of the store's file system; ``{"env": NAME}`` is
            replaced by an environment variable.

    Returns:
        Files that were removed, or would be, and their size.

    Raises:
        ConfigError: The reference names no version by its number.
        NotFoundError: The version does not exist, or is not committed.
        StoreError: A tag names the version, or another version is made from it; nothing
            was changed.
        IntegrityError: A tag, or a version that may be made from it, is damaged;
            nothing was changed.
        VersionConflictError: Another process changed the manifest just now; nothing was
            changed.

    Example:
        >>> import tokenlake as tl
        >>> removal = tl.remove_version("artifacts/books@v1")
        >>> tl.open("artifacts/books").name
        'books@v3/train'
    """
    # Only a number names a version for ever: a tag may move while it is removed.
    address, name = parted(where, name)
    reference = Reference.parse(name)
    if reference.version is None:
        raise ConfigError(
            f"{name!r} names no version by its number; expected NAME@vN, such as {reference.dataset}@v1"
        )
    store = open_store(address, storage_options=storage_options)
    return remove(store, Layout(reference.dataset, reference.version), dry_run=dry_run)


def remove(store: Store, layout: Layout, *, dry_run: bool = False) -> Removal:
    """Remove a version of an open store, as :func:`remove_version` does."""
    catalog = Catalog(store)
    # The bytes of the manifest are the expected value of the swap. They need not be a
    # sound manifest.
    try:
        manifest_data = store.read(layout.manifest)  # it may be damaged
    except NotFoundError:
        manifest_data = b""
    if not manifest_data or is_closing_note(manifest_data, layout):
        # Raises, with the versions that exist.
        catalog.manifest(layout.dataset, layout.version)
        raise NotFoundError(
            f"{layout.prefix} has just been removed", dataset=layout.dataset
        )

    # Close the number. A tag may be set meanwhile: look again after the swap, and undo
    # it then.
    _require_unused(catalog, layout)
    note = closing_note(layout)
    if not dry_run:
        store.swap(layout.manifest, note, manifest_data)
        try:
            _require_unused(catalog, layout)
        except BaseException:
            store.swap(layout.manifest, manifest_data, note)
            raise

    # The files are not needed by anybody from here on.
    remover = Remover(store, dry_run=dry_run)
    remover.remove(closed(store, layout, kind="version"))
    return Removal(
        dataset=layout.dataset,
        version=layout.version,
        dry_run=dry_run,
        removed=tuple(sorted(remover.removed, key=lambda removed: removed.name)),
        kept=tuple(remover.kept),
    )


def _require_unused(catalog: Catalog, layout: Layout) -> None:
    """Raise StoreError if a tag names a version, or another version is made from it."""
    reference = f"{layout.dataset}@v{layout.version}"
    # Tags live in the dataset of their version.
    for tag in read_tags(catalog.store, layout.dataset):
        if tag.version == layout.version:
            raise StoreError(
                f"{reference} is not removed: the tag {tag.tag!r} names it. Move the tag, or remove it first: "
                f"`tokenlake tag {layout.dataset} {tag.tag} --remove`"
            )
    # Any dataset of the store may have a version that was made from this one. Its
    # verification reads the manifest of its parent.
    for other in catalog.committed_versions():
        if other == layout:
            continue
        for parent in catalog.manifest(other.dataset, other.version).parents:
            if (parent.dataset, parent.version) == (layout.dataset, layout.version):
                child = f"{other.dataset}@v{other.version}"
                raise StoreError(
                    f"{reference} is not removed: {child} is made from it, and could no longer be verified or "
                    f"repaired. Remove that version first: `tokenlake rm {child}`"
                )
