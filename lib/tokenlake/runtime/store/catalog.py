"""Access to the datasets, versions, tags, manifests and ledgers of a store.

It also claims the number of the next version.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from tokenlake.errors import (
    IntegrityError,
    NotFoundError,
    StoreError,
    VersionConflictError,
)
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore, Store, looked_twice
from tokenlake.runtime.store.claims import (
    Claim,
    ClaimResult,
    VersionInfo,
    is_closing_note,
    is_committed,
    state_of,
)
from tokenlake.runtime.store.damage import damaged_file
from tokenlake.runtime.store.layout import (
    DATASET_NAME,
    LEDGER,
    Layout,
    check_dataset_name,
    check_tag_name,
    ledger_unit,
    tag_key,
    tag_of,
    tags_prefix,
    version_number,
)
from tokenlake.runtime.store.ledger import FileEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.references import SHOWN, Reference, not_among, parted
from tokenlake.runtime.store.tags import (
    Tag,
    TagChange,
    read_tags,
    stored_tag,
    tagged_manifest,
)

OnUnreadable: TypeAlias = Callable[[Layout, IntegrityError], object]
"""Called for a version that cannot be read, with the reason, which names the file."""

# Lost races for a version number before a build gives up. In each of them another build
# got a version, so that this many races mean a fault.
_CLAIM_TRIES: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class Catalog:
    """Access to a store by names; claims versions in a store that can be written.

    Attributes:
        store: The store.

    Example:
        >>> import tokenlake as tl
        >>> from tokenlake.runtime.store import open_store
        >>> catalog = tl.Catalog(open_store("artifacts"))
        >>> catalog.datasets()
        ['books', 'chat', 'code', 'llama2-2048', 'pairs', 'web']
        >>> catalog.manifest_of("books@v3").totals.documents
        120
    """

    store: ReadStore

    @property
    def writable(self) -> Store:
        """Store, for writing; StoreError if it was opened for reading only."""
        if not isinstance(self.store, Store):
            raise StoreError(
                f"{self.store.url} is open for reading only; expected a local path or a file:// URL to write to"
            )
        return self.store

    # Datasets and versions.

    def datasets(self, *, swept: bool = False) -> list[str]:
        """Return the sorted names of the datasets that have a version.

        A version counts if it is committed or being built.

        Args:
            swept: Include datasets with removed or given up versions only.
        """
        names: list[str] = []
        for folder_name in self.store.list_dirs(""):
            # Folders with other names are not ours.
            is_dataset = DATASET_NAME.fullmatch(folder_name) is not None
            if is_dataset and self._exists(folder_name, swept=swept):
                names.append(folder_name)
        return names

    def versions(self, dataset: str, *, swept: bool = False) -> list[VersionInfo]:
        """Return the committed and unfinished versions of a dataset, ascending.

        Args:
            dataset: Name of the dataset.
            swept: Include numbers whose version was removed or given up; they are never
                used again.

        Raises:
            NotFoundError: There are none.
        """
        states = self._states(check_dataset_name(dataset))
        infos = [info for info in states if swept or not info.swept]
        if not infos:
            raise self._no_dataset(dataset)
        return infos

    def committed_versions(self) -> Iterator[Layout]:
        """Yield every committed version of the store."""
        for dataset in self.datasets():
            for info in self.versions(dataset):
                if info.committed:
                    yield Layout(dataset, info.version)

    def latest(self, dataset: str) -> int:
        """Return the number of the newest committed version.

        Raises:
            NotFoundError: The dataset does not exist, or has no committed version.
        """
        # Newest first: the search ends at the first committed version, and does not
        # read the state of all others.
        for version in reversed(self._numbers(check_dataset_name(dataset))):
            if is_committed(self.store, Layout(dataset, version)):
                return version
        self.versions(dataset)  # raises if there is no such dataset
        raise NotFoundError(
            f"dataset {dataset!r} in {self.store.url} has no committed version, only unfinished builds "
            f"({self._describe(dataset)}). {_remedy(dataset)}.",
            dataset=dataset,
        )

    def resolve(self, reference: str) -> tuple[str, int]:
        """Return the dataset and version of a reference.

        Args:
            reference: ``"name"`` (newest committed version), ``"name@v3"``,
                ``"name@3"`` or ``"name@prod"``.

        Raises:
            StoreError: The text is no reference.
            NotFoundError: The dataset, tag or committed version does not exist; the
                message names near matches.
            IntegrityError: A tag is damaged, or its version has another manifest than
                when it was set.
        """
        # A tag is also compared with the seal of its manifest, which pins the version
        # that it was set to.
        parsed = Reference.parse(reference)
        if parsed.tag is not None:
            tag = self.tag(parsed.dataset, parsed.tag)
            tagged_manifest(tag, self.manifest)
            return parsed.dataset, tag.version
        if parsed.version is None:
            return parsed.dataset, self.latest(parsed.dataset)
        self._require_committed(parsed.dataset, parsed.version)
        return parsed.dataset, parsed.version

    # Tags.

    def tags(self, dataset: str) -> list[Tag]:
        """Return the tags of a dataset by name.

        Raises:
            NotFoundError: The dataset does not exist.
        """
        if not self._exists(check_dataset_name(dataset)):
            raise self._no_dataset(dataset)
        return read_tags(self.store, dataset)

    def tag(self, dataset: str, tag: str) -> Tag:
        """Return a tag as it is stored; NotFoundError if it does not exist."""
        stored = stored_tag(self.store, check_dataset_name(dataset), tag)
        if stored is None:
            raise self._no_tag(dataset, tag)
        return stored[0]

    def set_tag(self, dataset: str, tag: str, version: int) -> TagChange:
        """Make ``dataset@tag`` mean a committed version, whether or not the tag exists.

        Returns:
            The tag, and its earlier value.

        Raises:
            StoreError: The name is not allowed for a tag.
            NotFoundError: The version does not exist, or is not committed.
            VersionConflictError: Another process set the tag at the same time; nothing
                was changed.
            IntegrityError: The manifest or the existing tag is damaged;
                :meth:`remove_tag` removes the latter.
        """
        check_tag_name(tag)
        # The manifest is read first: it must be sound, and its seal becomes part of the
        # tag.
        seal = self.manifest(check_dataset_name(dataset), version).sha256
        new_tag = Tag(dataset=dataset, tag=tag, version=version, manifest_sha256=seal)
        # Swap the tag against the bytes that were just read, so that a tag which
        # another process sets meanwhile is not lost.
        stored = stored_tag(self.store, dataset, tag)
        old_tag: Tag | None = None
        old_data: bytes | None = None
        if stored is not None:
            old_tag, old_data = stored
        outcome = self.writable.swap(
            tag_key(dataset, tag), new_tag.to_bytes(), old_data
        )
        self.writable.sweep_temp(tags_prefix(dataset))
        if outcome == "equal":
            # The tag was equal before, or another process has just set it to the same
            # version.
            return TagChange(new_tag, new_tag)
        return TagChange(new_tag, old_tag)

    def remove_tag(self, dataset: str, tag: str) -> int | None:
        """Remove a tag, also a damaged one.

        Returns:
            The version that the tag meant; None if it could not be read.

        Raises:
            NotFoundError: The tag does not exist.
        """
        version: int | None = None
        key = tag_key(dataset, tag)
        # A damaged tag can be removed, too: only its version is not known then.
        with contextlib.suppress(IntegrityError):
            version = self.tag(dataset, tag).version
        try:
            self.writable.delete(key)
        except NotFoundError:  # another process has just removed it
            raise self._no_tag(dataset, tag) from None
        return version

    # Manifests and ledgers.

    def manifest(self, dataset: str, version: int) -> Manifest:
        """Read the manifest of a committed version.

        Raises:
            NotFoundError: The version does not exist, or is not committed.
            IntegrityError: The manifest is damaged, or that of another dataset or
                version.
        """
        layout = Layout(dataset, version)

        def read() -> Manifest:
            # A version that was removed has a closing note in place of its manifest.
            # The error states that it was removed.
            data = self.store.read(layout.manifest)
            if is_closing_note(data, layout):
                self._require_committed(dataset, version)
            return Manifest.from_bytes(data, layout.manifest)

        # The second read of `looked_twice` saves a version from a bit that flipped on
        # its way.
        try:
            manifest = looked_twice(read)
        except NotFoundError:
            self._require_committed(dataset, version)
            raise
        _require_same_place(
            layout.manifest, (dataset, version), (manifest.dataset, manifest.version)
        )
        return manifest

    def manifest_of(self, reference: str) -> Manifest:
        """Resolve a reference and read its manifest, which is read once.

        Errors are those of :meth:`resolve` and :meth:`manifest`.
        """
        parsed = Reference.parse(reference)
        if parsed.tag is not None:
            return tagged_manifest(self.tag(parsed.dataset, parsed.tag), self.manifest)
        return self.manifest(
            parsed.dataset, parsed.version or self.latest(parsed.dataset)
        )

    def readable_manifest(
        self, layout: Layout, on_unreadable: OnUnreadable
    ) -> Manifest | None:
        """Return the manifest of a committed version, if it is sound.

        For a damaged one `on_unreadable` is called, and the result is None.

        Meant for readers of a whole store: one damaged version does not hide the
        others.
        """
        try:
            return self.manifest(layout.dataset, layout.version)
        except IntegrityError as error:
            on_unreadable(layout, error)
            return None

    def ledger(
        self, dataset: str, version: int, *, manifest: Manifest | None = None
    ) -> dict[int, UnitRecord]:
        """Return the records of the finished units, by unit.

        Args:
            dataset: Name of the dataset.
            version: Number of the version.
            manifest: Manifest of a committed version, which lists the records. A
                version that was copied without its ledger has none.

        Raises:
            IntegrityError: A file is damaged, missing or foreign; the message names it.
        """
        # The unit of a record is the number in its name. The content must agree, which
        # `read_record` checks.
        layout = Layout(dataset, version)
        records: dict[int, UnitRecord] = {}
        for object_info in self.store.list(layout.key(LEDGER)):
            unit = ledger_unit(layout.path(object_info.key))
            if unit is None:
                raise IntegrityError(
                    f"{object_info.key}: no ledger record has this name; remove it",
                    file=object_info.key,
                )
            records[unit] = read_record(self.store, layout, unit, manifest)
        if manifest is not None and records:
            _require_all_records(layout, records, manifest)
        return dict(sorted(records.items()))

    # Claims.

    def read_claim(self, dataset: str, version: int) -> Claim | None:
        """Return the claim of a version; None if there is none.

        Raises:
            IntegrityError: The claim is damaged, or that of another version.
        """
        stored = self.stored_claim(dataset, version)
        if stored is None:
            return None
        claim, _ = stored
        return claim

    def stored_claim(self, dataset: str, version: int) -> tuple[Claim, bytes] | None:
        """Return the claim of a version and the bytes of its file, for a swap.

        The result is None if there is no claim.

        Raises:
            IntegrityError: The claim is damaged, or that of another version.
        """
        key = Layout(dataset, version).claim
        # A claim is small and read often; its parsed form is cached by its bytes.
        try:
            data, claim = looked_twice(lambda: _claim_of(self.store.read(key), key))
        except NotFoundError:
            return None
        _require_same_place(key, (dataset, version), (claim.dataset, claim.version))
        return claim, data

    def claim(
        self, dataset: str, fingerprint: str, meta: Mapping[str, Any], *, after: int = 0
    ) -> ClaimResult:
        """Find or claim the version that builds a fingerprint.

        1. A committed version of an equal fingerprint wins, the newest first.
        2. Else the newest claim of an equal fingerprint is resumed.
        3. Else the next number is claimed, create-only. A build that loses this race
           begins again at 1: equal builds end on one version, different builds on
           different versions.

        Swept numbers are never resumed or used again.

        Args:
            dataset: Name of the dataset.
            fingerprint: Fingerprint of the build.
            meta: Free information for a new claim.
            after: Only versions above this number are found.

        Raises:
            VersionConflictError: Other builds won too many races.
        """
        # Each turn of the loop is one try, from the search to the claim. A turn that
        # loses the race for a number looks at the versions again.
        check_dataset_name(dataset)
        for _ in range(_CLAIM_TRIES):
            infos = list(self._states(dataset))
            later_infos = [info for info in infos if info.version > after]
            equal_build = self._find(dataset, fingerprint, later_infos)
            if equal_build is not None:
                return equal_build
            version = infos[-1].version + 1 if infos else 1
            # Numbers of removed versions count as well: a number is never used twice.
            new_claim = Claim(
                dataset=dataset,
                version=version,
                fingerprint=fingerprint,
                meta=dict(meta),
            )
            try:
                put_outcome = self.writable.put_new(
                    Layout(dataset, version).claim, new_claim.to_bytes()
                )
            except VersionConflictError:
                continue
            # Another build of the same fingerprint may have created the claim just now.
            if put_outcome == "created":
                return ClaimResult(version, "new")
            return ClaimResult(version, "resumed")
        raise VersionConflictError(
            f"{dataset}: lost {_CLAIM_TRIES} races for a version number in {self.store.url}. Other builds claim "
            "versions at the same time; run again when they have finished."
        )

    def committed(self, dataset: str, fingerprint: str) -> int | None:
        """Return the committed version of a fingerprint; None if there is none yet."""
        equal_build = self.equal_build(dataset, fingerprint)
        if equal_build is None or equal_build.status != "committed":
            return None
        return equal_build.version

    def equal_build(self, dataset: str, fingerprint: str) -> ClaimResult | None:
        """Return the version that :meth:`claim` would find; None if it makes a new one."""
        infos = list(self._states(check_dataset_name(dataset)))
        return self._find(dataset, fingerprint, infos)

    def _find(
        self, dataset: str, fingerprint: str, infos: list[VersionInfo]
    ) -> ClaimResult | None:
        """Return the version of a fingerprint, a committed one before unfinished ones."""
        # Committed versions go before claims, and higher numbers before lower ones.
        candidates = [info for info in infos if not info.swept]
        for info in sorted(
            candidates, key=lambda info: (info.committed, info.version), reverse=True
        ):
            claim = self.read_claim(dataset, info.version)
            owner: Claim | Manifest | None = claim
            if claim is None and info.committed:
                # A version that was copied without its claim has its fingerprint in the
                # manifest.
                owner = self.manifest(dataset, info.version)
            if owner is None or owner.fingerprint != fingerprint:
                continue
            # The claim may have been swept after the states were listed. Only a build
            # without a manifest can be.
            if info.committed:
                return ClaimResult(info.version, "committed")
            was_just_swept = claim is not None and claim.state == "swept"
            if not was_just_swept:
                return ClaimResult(info.version, "resumed")
        return None

    # Helpers.

    def _numbers(self, dataset: str) -> list[int]:
        """Return the numbers of the version folders, ascending."""
        numbers: list[int] = []
        for folder_name in self.store.list_dirs(dataset):
            number = version_number(folder_name)
            if number is not None:
                numbers.append(number)
        return sorted(numbers)

    def _states(self, dataset: str) -> Iterator[VersionInfo]:
        """Yield the state of each number that is taken, ascending."""
        for version in self._numbers(dataset):
            info = state_of(self.store, Layout(dataset, version))
            if info is not None:
                yield info

    def _exists(self, dataset: str, *, swept: bool = False) -> bool:
        """Return whether a dataset has a version; the search ends at the first one."""
        return any(swept or not info.swept for info in self._states(dataset))

    def _require_committed(self, dataset: str, version: int) -> None:
        """Raise NotFoundError, with the versions that exist, unless one is committed.

        Args:
            dataset: Name of the dataset.
            version: Number of the version that must be committed.
        """
        info = state_of(self.store, Layout(dataset, version))
        if info is not None and info.committed:
            return
        self.versions(dataset, swept=True)  # raises if there is no such dataset
        # Each state has its own remedy.
        if info is None:
            state = "does not exist"
        elif info.swept:
            state = "was removed, by rm or as an unfinished build by gc; its build creates a new version"
        else:
            state = f"is not committed. {_remedy(dataset)}"
        raise NotFoundError(
            f"{dataset}@v{version} in {self.store.url} {state}. Existing: {self._describe(dataset)}.",
            dataset=dataset,
            version=version,
        )

    def _describe(self, dataset: str) -> str:
        """Return the versions of a dataset for a message."""
        # Long lists are cut to the newest versions.
        infos = [info for info in self._states(dataset) if not info.swept]
        if not infos:
            return "none"
        listed = ", ".join(str(info) for info in infos[-SHOWN:])
        if len(infos) > SHOWN:
            return f"{len(infos) - SHOWN} older ones, {listed}"
        return listed

    def _no_dataset(self, dataset: str) -> NotFoundError:
        return not_among(
            f"no dataset {dataset!r} in {self.store.url}", dataset, self.datasets()
        )

    def _no_tag(self, dataset: str, tag: str) -> NotFoundError:
        if not self._exists(dataset):
            return self._no_dataset(dataset)
        # Tags of the dataset, from which the message names near matches.
        tag_names = [tag_of(info.key) for info in self.store.list(tags_prefix(dataset))]
        known_tags = [tag_name for tag_name in tag_names if tag_name is not None]
        problem = f"dataset {dataset!r} in {self.store.url} has no tag {tag!r}"
        return not_among(
            problem,
            tag,
            known_tags,
            f" `tokenlake tag {dataset}@vN {tag}` sets it; {dataset} alone is the newest version.",
        )


def _require_all_records(
    layout: Layout, records: Mapping[int, UnitRecord], manifest: Manifest
) -> None:
    """Raise IntegrityError if the ledger lacks a record that the manifest lists."""
    for path in manifest.other_files:
        if path.startswith(f"{LEDGER}/") and ledger_unit(path) not in records:
            raise damaged_file(layout, path, "is missing", file=layout.key(path))


def tag(
    where: str | os.PathLike[str] | StoreAddress,
    tag: str,
    *,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TagChange:
    """Make ``NAME@TAG`` mean a committed version, whether or not the tag exists.

    Args:
        where: Version, as :func:`tokenlake.open` takes it; or, with `name`, its store
            or the store's address.
        tag: Name of the tag.
        name: Reference of the version in the store `where`.
        storage_options: Options of the store's file system; ``{"env": NAME}`` is
            replaced by an environment variable.

    Returns:
        The tag, and its earlier value.

    Raises:
        StoreError: The name is not allowed for a tag.
        NotFoundError: The version does not exist, or is not committed.
        VersionConflictError: Another process set the tag at the same time; nothing was
            changed.
        IntegrityError: The manifest or the existing tag is damaged.

    Example:
        >>> import tokenlake as tl
        >>> change = tl.tag("artifacts/books@v2", "prod")
        >>> change.changed, tl.open("artifacts/books@prod").name
        (True, 'books@v2/train')
    """
    store, reference = parted(where, name)
    catalog = Catalog(open_store(store, storage_options=storage_options))
    dataset, version = catalog.resolve(reference)
    return catalog.set_tag(dataset, tag, version)


def read_record(
    store: ReadStore, layout: Layout, unit: int, manifest: Manifest | None = None
) -> UnitRecord:
    """Read one ledger record.

    Args:
        store: The store.
        layout: The version.
        unit: Number of the unit.
        manifest: Manifest of a committed version. If it lists ledger records, the
            record must be the listed one.

    Raises:
        NotFoundError: There is no such record.
        IntegrityError: The record is damaged, or that of another unit or version.
    """
    key = layout.ledger(unit)

    def read() -> UnitRecord:
        # The name of the file and the list of the manifest bind a record to its place,
        # so that two sound records cannot be exchanged.
        data = store.read(key)
        record = UnitRecord.from_bytes(data, key)
        if record.unit != unit:
            raise IntegrityError(
                f"{key}: unit is {record.unit}; expected {unit}, by its name. Files were swapped; restore them.",
                file=key,
            )
        if manifest is not None:
            _require_listed(layout, key, FileEntry.of(data), manifest)
        return record

    return looked_twice(read)


def _require_listed(
    layout: Layout, key: str, got: FileEntry, manifest: Manifest
) -> None:
    """Raise IntegrityError if a manifest lists ledger records, but not this one."""
    # A manifest that lists no records says nothing about this one.
    entry = manifest.other_files.get(layout.path(key))
    if entry == got or (entry is None and not lists_ledger(manifest)):
        return
    expected = "no such record"
    if entry is not None:
        expected = f"{entry.sha256} of {entry.bytes} bytes"
    raise IntegrityError(
        f"{key}: its sha256 is {got.sha256} of {got.bytes} bytes; the manifest lists {expected}. It is the record of "
        "another version; restore the correct one.",
        file=key,
        expected=expected,
        got=got.sha256,
    )


@functools.lru_cache(maxsize=16)  # each unit of a build reads the same bytes
def _claim_of(data: bytes, key: str) -> tuple[bytes, Claim]:
    return data, Claim.from_bytes(data, key)


def lists_ledger(manifest: Manifest) -> bool:
    """Return whether a manifest lists ledger records; if so, it lists all of them."""
    return any(path.startswith(f"{LEDGER}/") for path in manifest.other_files)


def _require_same_place(
    key: str, expected: tuple[str, int], got: tuple[str, int]
) -> None:
    """Raise IntegrityError if a document belongs to a version other than its place."""
    if expected != got:
        raise IntegrityError(
            f"{key}: it is of {got[0]}@v{got[1]}; expected {expected[0]}@v{expected[1]}, from its path. A version "
            "cannot be renamed or moved inside a store: build it under the new name.",
            file=key,
        )


def _remedy(dataset: str) -> str:
    """Return the ways to end the unfinished builds of a dataset."""
    return (
        "Run its build again to resume it (a failed one: after its cause is removed), or remove all unfinished builds "
        f"of the dataset now, also those that are running: `tokenlake gc {dataset} --grace 0d`"
    )
