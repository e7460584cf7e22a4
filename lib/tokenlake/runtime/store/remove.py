"""Removing versions: a committed one that nobody needs, and what is left of a number that is closed.

First a swap, after which nobody can need what goes: a closing note takes the place of the manifest, or the claim of a
build that was given up becomes ``swept``. From then on no reader finds the version, and its number stays taken. Then
the files. Every step may be the last one: a process that dies leaves a store in which all versions are whole, and the
next ``gc`` goes on where it ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias, final

from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import Leftover, ObjectInfo, Store
from tokenlake.runtime.store.catalog import Catalog, Reference, parted
from tokenlake.runtime.store.claims import Claim, closing_note, is_closing_note, read_tags
from tokenlake.runtime.store.layout import CLAIM, LEDGER, MANIFEST, Layout, version_number

_THREADS: Final = 8
_NOBODY: Final = "0" * 64  # the fingerprint of a claim that could not be read any more

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

    @classmethod
    def of(cls, kind: Kind, info: ObjectInfo) -> Self:
        return cls(kind, info.key, info.size, info.modified)

    @property
    def place(self) -> str:
        """The version it lay in, as a reference (``code@v3``); its folder where that is no version's."""
        dataset, _, rest = self.name.partition("/")
        version, slash, _ = rest.partition("/")
        if slash and version_number(version) is not None:
            return f"{dataset}@{version}"
        return self.name.rpartition("/")[0] or "(the store)"


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """Something that was left alone, and why; failed: it should have gone, and the storage refused."""

    name: str
    reason: str
    failed: bool = False


WasState: TypeAlias = Literal["building", "committing", "damaged", "swept"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What may go of a version.

    Attributes:
        files: what goes, in the order in which it goes.
        was: the state of the claim of a version that is swept first; None: of another one.
        claim: the bytes of that claim as it was judged; None where there is none, of a number that is closed.
        modified: when anything changed last.
        empty: the version's folder goes too: nobody claimed it, and it holds nothing.
    """

    layout: Layout
    files: tuple[Removed, ...] = ()
    was: WasState | None = None
    claim: bytes | None = None
    modified: float | None = None
    empty: bool = False


def closed(store: Store, layout: Layout, objects: Mapping[str, ObjectInfo] | None = None) -> Finding:
    """Return what is left of a number whose manifest never will be, or no longer is."""
    if objects is None:
        objects = {layout.path(info.key): info for info in store.list(layout.prefix)}
    return abandoned(layout, "swept", claim_bytes(store, layout), objects)


def abandoned(
    layout: Layout, was: WasState, claim: bytes | None, objects: Mapping[str, ObjectInfo]
) -> Finding:
    """Return what goes of an unfinished version that may be swept."""
    # The ledger first: as long as there is a record, its files are there, for who reuses them just now.
    paths = sorted(objects, key=lambda path: (not path.startswith(f"{LEDGER}/"), path))
    changes = [info.modified for info in objects.values() if info.modified is not None]
    files = (Removed.of("abandoned", objects[path]) for path in paths if path not in (CLAIM, MANIFEST))
    return Finding(
        layout=layout, files=tuple(files), was=was, claim=claim, modified=max(changes, default=None)
    )


def claim_bytes(store: Store, layout: Layout) -> bytes | None:
    try:
        return store.read(layout.claim)
    except NotFoundError:
        return None


def read_claim(data: bytes | None, layout: Layout) -> Claim | None:
    """Return what the bytes of a claim say; None if they cannot be read, or are another version's."""
    try:
        found = None if data is None else Claim.from_bytes(data, layout.claim)
    except IntegrityError:
        return None
    if found is None or (found.dataset, found.version) != (layout.dataset, layout.version):
        return None
    return found


@final
class Remover:
    """Removes what was found, or only notes it, and keeps the lists.

    Attributes:
        removed: files, in the order of their removal.
        kept: what was left alone.
    """

    def __init__(self, store: Store, *, dry_run: bool, workers: int = _THREADS) -> None:
        self._store, self._dry, self._workers = store, dry_run, workers
        self.removed: list[Removed] = []
        self.kept: list[Kept] = []

    def remove_leftovers(self, leftovers: Iterable[Leftover]) -> None:
        """Remove unpublished things."""
        found = [(Removed("temporary", one.name, one.bytes, one.modified), one) for one in leftovers]
        self._remove((file, partial(self._store.remove_leftover, one)) for file, one in found)

    def remove(self, finding: Finding) -> bool:
        """Remove what was found; return False where a build that was to be swept goes on."""
        if finding.was is not None and not self._dry:
            try:
                self._sweep(finding)
            except VersionConflictError:
                self.kept.append(Kept(finding.layout.prefix, "its build went on just now"))
                return False
        self._remove((file, partial(self._store.delete, file.name)) for file in finding.files)
        if not self._dry:
            self._prune(finding.layout.prefix)
            if finding.empty:
                self._store.remove_folder(finding.layout.prefix)
        return True

    def _sweep(self, found: Finding) -> None:
        """Make sure that an abandoned version never becomes one; VersionConflictError where its build goes on."""
        layout, ours = found.layout, read_claim(found.claim, found.layout)
        nobody = Claim(dataset=layout.dataset, version=layout.version, fingerprint=_NOBODY, meta={})
        # From "building" a commit has to swap the claim as well. In any other state it may have done so before it fell
        # asleep, and only the manifest's own name can keep it from waking up to publish.
        if found.was in ("committing", "damaged"):
            self._store.put_new(layout.manifest, closing_note(layout))
        if found.claim is not None and (ours is None or ours.state != "swept"):
            self._store.swap(layout.claim, (ours or nobody).turned("swept").to_bytes(), found.claim)

    def _remove(self, things: Iterable[tuple[Removed, Callable[[], bool | None]]]) -> None:
        def remove(thing: tuple[Removed, Callable[[], bool | None]]) -> Removed | Kept | None:
            file, act = thing
            try:
                return file if self._dry or act() is not False else None
            except NotFoundError:  # another collection was faster
                return None
            except StoreError as error:
                return Kept(file.name, f"it could not be removed: {error}", failed=True)

        for done in in_order(remove, list(things), self._workers):
            if isinstance(done, Kept):
                self.kept.append(done)
            elif done is not None:
                self.removed.append(done)

    def _prune(self, folder: str) -> None:
        """Remove the empty folders below one, deepest first."""
        for name in self._store.list_dirs(folder):
            self._prune(f"{folder}/{name}")
            self._store.remove_folder(f"{folder}/{name}")


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
    where: str | os.PathLike[str] | StoreAddress,
    name: str | None = None,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Removal:
    """Remove a committed version of a dataset; its number is never used again.

    ::

        tl.remove_version("artifacts/llama2-2048@v3", dry_run=True).bytes  # what would go

    Args:
        where: the version by its number, as :func:`tokenlake.open` takes it; or its store, or the store's address.
        name: of the version in the store `where`: ``NAME@vN``; no tag, and not just a name.
        dry_run: change nothing; the result says what would go.
        storage_options: for the store's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        ConfigError: the reference names no version by its number.
        NotFoundError: there is no such committed version.
        StoreError: a tag names it, or another version is made from it; nothing was changed.
        IntegrityError: a tag, or a version that may be made from it, is damaged; nothing was changed.
        VersionConflictError: another process changed the manifest just now; nothing was changed.
    """
    address, name = parted(where, name)
    asked = Reference.parse(name)
    if asked.version is None:
        raise ConfigError(
            f"{name!r} names no version by its number; expected NAME@vN, such as {asked.dataset}@v1"
        )
    chosen = open_store(address, storage_options=storage_options)
    return remove(chosen, Layout(asked.dataset, asked.version), dry_run=dry_run)


def remove(store: Store, layout: Layout, *, dry_run: bool = False) -> Removal:
    """Remove a version of an open store; as :func:`remove_version`."""
    catalog = Catalog(store)
    try:
        manifest = store.read(layout.manifest)  # it may be damaged
    except NotFoundError:
        manifest = b""
    if not manifest or is_closing_note(manifest, layout):
        catalog.manifest(layout.dataset, layout.version)  # says what there is instead
        raise NotFoundError(f"{layout.prefix} was removed just now", dataset=layout.dataset)
    _require_unused(catalog, layout)
    note, remover = closing_note(layout), Remover(store, dry_run=dry_run)
    if not dry_run:
        store.swap(layout.manifest, note, manifest)
        try:
            _require_unused(catalog, layout)  # a tag may have been set since
        except BaseException:
            store.swap(layout.manifest, manifest, note)
            raise
    remover.remove(closed(store, layout))
    return Removal(
        dataset=layout.dataset,
        version=layout.version,
        dry_run=dry_run,
        removed=tuple(sorted(remover.removed, key=lambda each: each.name)),
        kept=tuple(remover.kept),
    )


def _require_unused(catalog: Catalog, layout: Layout) -> None:
    name = f"{layout.dataset}@v{layout.version}"
    tags = [tag.tag for tag in read_tags(catalog.store, layout.dataset) if tag.version == layout.version]
    if tags:
        raise StoreError(
            f"{name} is not removed: the tag {tags[0]!r} names it. Move the tag, or remove it first: "
            f"`tokenlake tag {layout.dataset} {tags[0]} --remove`"
        )
    for other in catalog.committed_versions():
        parents = () if other == layout else catalog.manifest(other.dataset, other.version).parents
        if any((parent.dataset, parent.version) == (layout.dataset, layout.version) for parent in parents):
            made = f"{other.dataset}@v{other.version}"
            raise StoreError(
                f"{name} is not removed: {made} is made from it, and could be neither verified against it nor "
                f"repaired. Remove that first: `tokenlake rm {made}`"
            )
