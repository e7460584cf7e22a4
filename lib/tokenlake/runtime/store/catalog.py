"""From a store to datasets, versions, tags, manifests and ledgers; claiming the next version.

How people name a version: ``NAME``, ``NAME@v3``, ``NAME@3`` or ``NAME@TAG``.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, TypeVar, final, overload

from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError, VersionConflictError
from tokenlake.runtime.store import claims
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore, Store, looked_twice
from tokenlake.runtime.store.layout import (
    DATASET_NAME,
    LEDGER,
    TAG_NAME,
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

_REFERENCE: Final = re.compile(
    rf"(?P<name>[^@]+)(?:@(?:v?(?P<version>[1-9][0-9]{{0,8}})|(?P<tag>{TAG_NAME.pattern})))?"
)


@final
@dataclass(frozen=True, slots=True)
class Reference:
    """A dataset, and a version or a tag of it; neither: its newest committed version."""

    dataset: str
    version: int | None = None
    tag: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference; NotFoundError if it is none."""
        match = _REFERENCE.fullmatch(text)
        if match is None or not DATASET_NAME.fullmatch(match["name"]):
            raise NotFoundError(
                f"{text!r} names no dataset; expected NAME, NAME@v3, NAME@3 or NAME@TAG, where NAME is 1 to 64 of a-z, "
                "0-9, '.', '_' and '-', the first of them a letter or a digit"
            )
        version = match["version"]
        return cls(match["name"], None if version is None else int(version), match["tag"])


OnUnreadable: TypeAlias = Callable[[Layout, IntegrityError], object]
"""Called for a version that cannot be read, with the reason, which names the file."""

_SHOWN: Final = 20  # versions that a message names
_REMEDY: Final = "Run `tokenlake verify` for the whole picture, and restore the file."
_CLAIM_TRIES: Final = 1000  # each lost race means that another build got a version


@final
@dataclass(frozen=True, slots=True)
class Catalog:
    """Reads a store by names, and claims versions in it where it can be written."""

    store: ReadStore

    @property
    def writable(self) -> Store:
        """The store, for writing; StoreError where it was opened for reading only."""
        if not isinstance(self.store, Store):
            raise StoreError(
                f"{self.store.url} is open for reading only; expected a local path or a file:// URL to write to"
            )
        return self.store

    def datasets(self, *, swept: bool = False) -> list[str]:
        """Return the sorted names of datasets with at least one version, committed or being built.

        Args:
            swept: also those of which there are only numbers whose build was given up and removed.
        """
        found = self.store.list_dirs("")
        return [name for name in found if DATASET_NAME.fullmatch(name) and self._is_there(name, swept)]

    def versions(self, dataset: str, *, swept: bool = False) -> list[claims.VersionInfo]:
        """Return the versions that are committed or being built, ascending; NotFoundError if there are none.

        Args:
            swept: also numbers whose build was given up and removed; they are taken for ever.
        """
        found = [info for info in self._states(check_dataset_name(dataset)) if swept or not info.swept]
        if not found:
            raise self._no_dataset(dataset)
        return found

    def readable_manifest(self, layout: Layout, on_unreadable: OnUnreadable) -> Manifest | None:
        """Return the manifest of a committed version; None, and a word to whoever asked, where it is damaged.

        For what looks at a whole store: one damaged version does not hide the others.
        """
        try:
            return self.manifest(layout.dataset, layout.version)
        except IntegrityError as error:
            on_unreadable(layout, error)
            return None

    def committed_versions(self) -> Iterator[Layout]:
        """Yield every committed version of the store."""
        for dataset in self.datasets():
            for info in self.versions(dataset):
                if info.committed:
                    yield Layout(dataset, info.version)

    def latest(self, dataset: str) -> int:
        """Return the number of the newest committed version; NotFoundError if there is none."""
        for version in reversed(self._numbers(check_dataset_name(dataset))):
            if claims.is_committed(self.store, Layout(dataset, version)):
                return version
        self.versions(dataset)
        raise NotFoundError(
            f"dataset {dataset!r} in {self.store.url} has no committed version, only unfinished builds "
            f"({self._describe(dataset)}). Run its build again: it resumes.",
            dataset=dataset,
        )

    def resolve(self, reference: str) -> tuple[str, int]:
        """Return (dataset, version) of ``"name"`` (newest committed), ``"name@v3"``, ``"name@3"`` or ``"name@prod"``.

        Raises:
            StoreError: not such a reference.
            NotFoundError: no such dataset, tag or committed version; names near matches.
            IntegrityError: a tag is damaged, or its version has another manifest than when it was set.
        """
        found = Reference.parse(reference)
        if found.tag is not None:
            tag = self.tag(found.dataset, found.tag)
            claims.tagged_manifest(tag, self.manifest)
            return found.dataset, tag.version
        if found.version is None:
            return found.dataset, self.latest(found.dataset)
        self._require_committed(found.dataset, found.version)
        return found.dataset, found.version

    def manifest_of(self, reference: str) -> Manifest:
        """Resolve a reference and read its manifest, once; raises as :meth:`resolve` and :meth:`manifest` do."""
        found = Reference.parse(reference)
        if found.tag is not None:
            return claims.tagged_manifest(self.tag(found.dataset, found.tag), self.manifest)
        return self.manifest(found.dataset, found.version or self.latest(found.dataset))

    def tags(self, dataset: str) -> list[claims.Tag]:
        """Return the tags of a dataset by name; NotFoundError if there is no such dataset."""
        if not self._is_there(check_dataset_name(dataset)):
            raise self._no_dataset(dataset)
        return claims.read_tags(self.store, dataset)

    def tag(self, dataset: str, tag: str) -> claims.Tag:
        """Return a tag as it is stored; NotFoundError if there is none."""
        found = claims.stored_tag(self.store, check_dataset_name(dataset), tag)
        if found is None:
            raise self._no_tag(dataset, tag)
        return found[0]

    def set_tag(self, dataset: str, tag: str, version: int) -> claims.TagChange:
        """Make ``dataset@tag`` mean a committed version, whatever it meant before; the change says what.

        Raises:
            StoreError: not a tag's name.
            NotFoundError: there is no such committed version.
            VersionConflictError: another process set the tag at the same time; nothing was changed.
            IntegrityError: the manifest, or the tag that is there, is damaged; :meth:`remove_tag` removes the latter.
        """
        check_tag_name(tag)
        seal = self.manifest(check_dataset_name(dataset), version).sha256
        ours = claims.Tag(dataset=dataset, tag=tag, version=version, manifest_sha256=seal)
        was, expected = claims.stored_tag(self.store, dataset, tag) or (None, None)
        outcome = self.writable.swap(tag_key(dataset, tag), ours.to_bytes(), expected)
        self.writable.sweep_temp(tags_prefix(dataset))
        # Equal: it was so already, or another process did the same just now.
        return claims.TagChange(ours, ours if outcome == "equal" else was)

    def remove_tag(self, dataset: str, tag: str) -> int | None:
        """Remove a tag, also a damaged one; return the version it meant, None where that cannot be read.

        Raises:
            NotFoundError: there is no such tag.
        """
        key = tag_key(dataset, tag)
        try:
            found = self.tag(dataset, tag).version
        except IntegrityError:
            found = None
        try:
            self.writable.delete(key)
        except NotFoundError:  # somebody else removed it just now
            raise self._no_tag(dataset, tag) from None
        return found

    def manifest(self, dataset: str, version: int) -> Manifest:
        """Read the manifest of a committed version.

        Raises:
            NotFoundError: there is no such committed version.
            IntegrityError: it is damaged, or that of another dataset or version.
        """
        layout = Layout(dataset, version)

        def look() -> Manifest:
            data = self.store.read(layout.manifest)
            if claims.is_closing_note(data, layout):
                self._require_committed(dataset, version)
            return Manifest.from_bytes(data, layout.manifest)

        try:
            found = looked_twice(look)
        except NotFoundError:
            self._require_committed(dataset, version)
            raise
        _same_place(layout.manifest, (dataset, version), (found.dataset, found.version))
        return found

    def read_claim(self, dataset: str, version: int) -> claims.Claim | None:
        """Return the claim of a version, or None; IntegrityError if it is damaged or misplaced."""
        found = self.stored_claim(dataset, version)
        return None if found is None else found[0]

    def stored_claim(self, dataset: str, version: int) -> tuple[claims.Claim, bytes] | None:
        """Return a claim and the bytes of its file, for who changes it; else as :meth:`read_claim`."""
        key = Layout(dataset, version).claim
        try:
            data, found = looked_twice(lambda: _claim_of(self.store.read(key), key))
        except NotFoundError:
            return None
        _same_place(key, (dataset, version), (found.dataset, found.version))
        return found, data

    def claim(
        self, dataset: str, fingerprint: str, meta: Mapping[str, Any], *, after: int = 0
    ) -> claims.ClaimResult:
        """Find or claim the version that builds ``fingerprint``.

        A committed version of an equal fingerprint wins, then a claim of an equal one (resume it), else the
        next number is claimed, create-only. Whoever loses that race looks again: equal builds end on one
        version, different ones on different versions. What was swept is never resumed, nor its number used again.

        Args:
            after: only versions behind this one count; those before are not found.
        """
        check_dataset_name(dataset)
        for _ in range(_CLAIM_TRIES):
            infos = list(self._states(dataset))
            later = [info for info in infos if info.version > after]
            if (found := self._find(dataset, fingerprint, later)) is not None:
                return found
            version = infos[-1].version + 1 if infos else 1
            ours = claims.Claim(dataset=dataset, version=version, fingerprint=fingerprint, meta=dict(meta))
            try:
                outcome = self.writable.put_new(Layout(dataset, version).claim, ours.to_bytes())
            except VersionConflictError:
                continue
            return claims.ClaimResult(version, "new" if outcome == "created" else "resumed")
        raise VersionConflictError(
            f"{dataset}: lost {_CLAIM_TRIES} races for a version number in {self.store.url}. "
            "Other builds claim versions all the time; run again when they are done."
        )

    def committed(self, dataset: str, fingerprint: str) -> int | None:
        """Return the committed version that a build of this fingerprint would end on; None if there is none yet."""
        infos = list(self._states(check_dataset_name(dataset)))
        found = self._find(dataset, fingerprint, infos)
        return found.version if found is not None and found.status == "committed" else None

    def ledger(
        self, dataset: str, version: int, *, manifest: Manifest | None = None
    ) -> dict[int, UnitRecord]:
        """Return the finished units by index; IntegrityError names a damaged or foreign file.

        Args:
            manifest: of a committed version, which says what its records are; a version that was copied without its
                ledger has none.
        """
        layout = Layout(dataset, version)
        found: dict[int, UnitRecord] = {}
        for info in self.store.list(layout.key(LEDGER)):
            unit = ledger_unit(layout.path(info.key))
            if unit is None:
                raise IntegrityError(f"{info.key}: no ledger record has this name; remove it", file=info.key)
            found[unit] = read_record(self.store, layout, unit, manifest)
        for path in manifest.other_files if manifest is not None and found else ():
            if path.startswith(f"{LEDGER}/") and ledger_unit(path) not in found:
                key = layout.key(path)
                raise IntegrityError(f"{key} is missing; the manifest lists it. {_REMEDY}", file=key)
        return dict(sorted(found.items()))

    def _find(
        self, dataset: str, fingerprint: str, infos: list[claims.VersionInfo]
    ) -> claims.ClaimResult | None:
        there = [info for info in infos if not info.swept]
        for info in sorted(there, key=lambda info: (info.committed, info.version), reverse=True):
            claim = self.read_claim(dataset, info.version)
            # A version copied without its claim still says what it is.
            theirs = self.manifest(dataset, info.version) if info.committed and claim is None else claim
            if theirs is None or theirs.fingerprint != fingerprint:
                continue
            if not info.committed and claim is not None and claim.state == "swept":  # just now
                continue
            return claims.ClaimResult(info.version, "committed" if info.committed else "resumed")
        return None

    def _numbers(self, dataset: str) -> list[int]:
        """Versions with a folder, ascending; they may hold nothing."""
        return sorted(filter(None, map(version_number, self.store.list_dirs(dataset))))

    def _states(self, dataset: str) -> Iterator[claims.VersionInfo]:
        for version in self._numbers(dataset):
            if (info := claims.state_of(self.store, Layout(dataset, version))) is not None:
                yield info

    def _is_there(self, dataset: str, swept: bool = False) -> bool:
        return any(swept or not info.swept for info in self._states(dataset))

    def _require_committed(self, dataset: str, version: int) -> None:
        found = claims.state_of(self.store, Layout(dataset, version))
        if found is not None and found.committed:
            return
        self.versions(dataset, swept=True)
        state = "is not committed; run its build again: it resumes"
        if found is None:
            state = "does not exist"
        elif found.swept:
            state = "was removed, by rm or as an unfinished build by gc; its build makes a new version"
        raise NotFoundError(
            f"{dataset}@v{version} in {self.store.url} {state}. There are: {self._describe(dataset)}.",
            dataset=dataset,
            version=version,
        )

    def _describe(self, dataset: str) -> str:
        infos = [info for info in self._states(dataset) if not info.swept]
        more = f"{len(infos) - _SHOWN} older ones, " if len(infos) > _SHOWN else ""
        return (more + ", ".join(map(str, infos[-_SHOWN:]))) or "none"

    def _no_dataset(self, dataset: str) -> NotFoundError:
        return not_among(f"no dataset {dataset!r} in {self.store.url}", dataset, self.datasets())

    def _no_tag(self, dataset: str, tag: str) -> NotFoundError:
        if not self._is_there(dataset):
            return self._no_dataset(dataset)
        keys = [info.key for info in self.store.list(tags_prefix(dataset))]
        what = f"dataset {dataset!r} in {self.store.url} has no tag {tag!r}"
        more = f" `tokenlake tag {dataset}@vN {tag}` makes it."
        return not_among(what, tag, [name for name in map(tag_of, keys) if name is not None], more)


def not_among(what: str, name: str, names: Sequence[str], more: str = "") -> NotFoundError:
    """Return the error for a name that is none of those there are; it names near matches."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? There" if near else "there"
    there = ", ".join(names[:_SHOWN]) or "none"
    return NotFoundError(f"{what}; {guess} are: {there}.{more}", name=name, near=near, expected=[*names])


Opened = TypeVar("Opened")


@overload
def parted(where: str | os.PathLike[str], name: str | None = None) -> tuple[str, str]: ...
@overload
def parted(where: Opened | str | os.PathLike[str], name: str | None = None) -> tuple[Opened | str, str]: ...
def parted(where: Any, name: str | None = None) -> tuple[Any, str]:
    """``artifacts/code@v3`` -> ``artifacts``, ``code@v3``; ``artifacts/code/v3`` means the same.

    Args:
        where: or a store, or the address of one.
        name: of the dataset, where `where` is that of the store alone.
    """
    where = os.fspath(where) if isinstance(where, os.PathLike) else where
    if name is not None:
        return where, name
    if not isinstance(where, str):
        raise ConfigError(
            "name: got None, must be the name of a dataset in the store: NAME, NAME@v3 or NAME@TAG"
        )
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


def tag(
    where: str | os.PathLike[str] | StoreAddress,
    tag: str,
    *,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> claims.TagChange:
    """Make ``NAME@TAG`` mean a committed version, whatever it meant before; the result says what.

    ::

        tl.tag("artifacts/code@v3", "prod").changed

    Args:
        where: the version, as :func:`tokenlake.open` takes it; or its store, or the store's address.
        tag: its name from now on.
        name: of the version in the store `where`.
        storage_options: for the store's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        StoreError: not a tag's name.
        NotFoundError: there is no such committed version.
        VersionConflictError: another process set the tag at the same time; nothing was changed.
        IntegrityError: the manifest, or the tag that is there, is damaged.
    """
    place, named = parted(where, name)
    catalog = Catalog(open_store(place, storage_options=storage_options))
    dataset, version = catalog.resolve(named)
    return catalog.set_tag(dataset, tag, version)


def read_record(store: ReadStore, layout: Layout, unit: int, manifest: Manifest | None = None) -> UnitRecord:
    """Read one ledger record.

    Args:
        manifest: of a committed version; where it lists ledger records, the record must be the one that it lists.

    Raises:
        NotFoundError: there is none.
        IntegrityError: it is damaged, another unit's, or not of this version.
    """
    key = layout.ledger(unit)

    def look() -> UnitRecord:
        data = store.read(key)
        found = UnitRecord.from_bytes(data, key)
        if found.unit != unit:
            raise IntegrityError(
                f"{key}: unit is {found.unit}; expected {unit}, by its name. Files were swapped; restore them.",
                file=key,
            )
        entry, got = manifest and manifest.other_files.get(layout.path(key)), FileEntry.of(data)
        if manifest is not None and entry != got and (entry is not None or lists_ledger(manifest)):
            expected = "no such record" if entry is None else f"{entry.sha256} of {entry.bytes} bytes"
            raise IntegrityError(
                f"{key}: its sha256 is {got.sha256} of {got.bytes} bytes; the manifest lists {expected}. It is the "
                "record of another version; restore the right one.",
                file=key,
                expected=expected,
                got=got.sha256,
            )
        return found

    return looked_twice(look)


@functools.lru_cache(maxsize=16)  # the same bytes come for every unit of a build
def _claim_of(data: bytes, key: str) -> tuple[bytes, claims.Claim]:
    return data, claims.Claim.from_bytes(data, key)


def lists_ledger(manifest: Manifest) -> bool:
    """Say whether a manifest lists ledger records; where it does, it lists all of them."""
    return any(path.startswith(f"{LEDGER}/") for path in manifest.other_files)


def _same_place(key: str, expected: tuple[str, int], got: tuple[str, int]) -> None:
    if expected != got:
        raise IntegrityError(
            f"{key}: it is of {got[0]}@v{got[1]}; expected {expected[0]}@v{expected[1]}, by its place. "
            "A version cannot be renamed or moved inside a store: build it under the new name.",
            file=key,
        )
