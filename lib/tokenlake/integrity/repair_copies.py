"""The same bytes elsewhere: other versions that hold a file which is damaged here, well or damaged as well.

Versions share files (a unit that an older version built is linked, not built again), so a copy may be the quickest
mend, and damage to one may be damage to all.

Good bytes, and putting them where damaged ones are.

Files that follow from a manifest alone: the card, the configuration, the claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final, get_args

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.plan.plan import config_yaml
from tokenlake.integrity.findings import Damage, How, Mended, expected_hashes
from tokenlake.report.card import render_card
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.claims import Claim, State
from tokenlake.store.layout import CARD, CONFIG, Layout
from tokenlake.store.local_files import HashingFile
from tokenlake.store.manifest import Manifest


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A file that a manifest says to hold certain bytes."""

    layout: Layout
    path: str

    @property
    def key(self) -> str:
        return self.layout.key(self.path)

    def __str__(self) -> str:
        return f"{self.layout.dataset}@v{self.layout.version}: {self.path}"


def places(store: ReadStore, hashes: Collection[str]) -> dict[str, list[Place]]:
    """Return sha256 -> every file of every committed version that should hold it; by what manifests say."""
    found: dict[str, list[Place]] = {sha256: [] for sha256 in hashes}
    for layout, manifest in manifests(store):
        for path, sha256 in expected_hashes(manifest).items():
            if sha256 in found:
                found[sha256].append(Place(layout, path))
    return found


def manifests(store: ReadStore) -> Iterator[tuple[Layout, Manifest]]:
    """Yield the manifest of every committed version of a store; a damaged one tells nothing, and is left out."""
    catalog = Catalog(store)
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            if not info.committed:
                continue
            try:
                manifest = catalog.manifest(dataset, info.version)
            except (IntegrityError, StoreError):
                continue
            yield Layout(dataset, info.version), manifest


@final
@dataclass(frozen=True, slots=True)
class Good:
    """Where the bytes of a damaged file are to be had.

    Attributes:
        how, note: as of :class:`tokenlake.integrity.findings.Mended`.
        key: in the store itself, or in the workshop's where one is given,
        workshop: or None,
        data: or the bytes themselves.
    """

    how: How
    note: str
    key: str = ""
    workshop: ReadStore | None = None
    data: bytes = b""


def mended(damage: Damage, how: How, note: str) -> Mended:
    """Return what a report says of a damaged file."""
    return Mended(damage.version, damage.path, damage.word, how, note)


def put(store: Store, damage: Damage, good: Good) -> None:
    """Put good bytes in the place of a damaged file, whole and at once.

    Raises:
        VersionConflictError: what is there now is neither what was seen nor what is to be there.
        StoreError: the bytes cannot be had, or cannot be written.
        IntegrityError: the bytes are not good.
    """
    if good.key and good.workshop is None:
        # Linked where the storage can: versions that shared a file share it again.
        store.link(good.key, damage.key, damage.sha256, replace_orphan=lambda: _seen(store, damage))
        return
    temp = store.temp(damage.layout.prefix)
    try:
        if good.workshop is not None:
            temp.unlink()
            good.workshop.download(good.key, temp)
            expected = damage.sha256
        else:
            expected = write(temp, good.data)
        store.replace(temp, damage.key, damage.sha256 or expected, damage.found)
    finally:
        temp.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> str:
    """Write bytes to a temporary file; return their sha256 (hex)."""
    with HashingFile(path) as sink:
        sink.write(data)
    return sink.sha256


def is_good(data: bytes | None, damage: Damage) -> bool:
    """Say whether bytes are what a file should hold."""
    return data is not None and hashlib.sha256(data).hexdigest() == damage.sha256


def _seen(store: ReadStore, damage: Damage) -> bool:
    """Whether the damage is still what was seen: asked at the last moment, with other writers locked out."""
    try:
        return store.digest(damage.key).sha256 == damage.found
    except (NotFoundError, StoreError):
        return False


def rendered(manifest: Manifest, path: str) -> bytes | None:
    """Return what this release makes of a file that follows from the manifest; None for any other file."""
    if path == CARD:
        # It was written when the manifest did not list it yet.
        others = {name: entry for name, entry in manifest.other_files.items() if name != CARD}
        return render_card(replace(manifest, other_files=others)).encode()
    return config_yaml(manifest.config) if path == CONFIG else None


def claim_bytes(manifest: Manifest, damaged: bytes) -> bytes:
    """Return the claim of a version, in the state that its damaged bytes speak for.

    A version of an older release has a claim in its first state, others were committed from the second; where the
    damage leaves no trace of either, the second is as good.
    """
    base = Claim(
        dataset=manifest.dataset, version=manifest.version, fingerprint=manifest.fingerprint, meta={}
    )
    committing = base.turned("committing").to_bytes()
    forms = [committing, *(base.turned(state).to_bytes() for state in get_args(State) if state == "building")]
    return max(forms, key=lambda form: common(form, damaged))


def common(form: bytes, damaged: bytes) -> int:
    """Return how many bytes two texts begin with in common, and end with."""
    return _run(form, damaged) + _run(form[::-1], damaged[::-1])


def _run(form: bytes, damaged: bytes) -> int:
    pairs = zip(form, damaged, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(form), len(damaged)))
