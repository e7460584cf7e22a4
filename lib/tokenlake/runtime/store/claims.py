"""Claims and tags: which fingerprint builds which version (``claim.json``) and what became of it; names for versions.

A claim is created once, and changes twice at most, each time by compare-and-swap, so that of two that change it one
fails and learns of the other::

    building ──commit──> committing ──the manifest──> (a version)
        └────────gc────────┴─> swept: the number stays taken, and never becomes a version

A build that commits turns its claim from ``building`` into ``committing`` and then creates the manifest. ``gc`` turns
a ``building`` claim that nobody works on into ``swept`` and then deletes. A claim that already is ``committing`` has
one step left, which no swap of the claim can stop; there ``gc`` first takes the place of the manifest itself.

A version appears when its ``manifest.json`` is created, create-only; that one request is all that a committing build
has left to do, and nothing but an object of that name can stop it. So before ``gc`` deletes the files of a claim that
is ``committing``, it creates that object itself: a sealed note that the number is closed. Of the two creations one
fails, whatever the clocks say and however long a process slept. The note stays, as the number stays taken. It is no
manifest: who looks for versions tells them apart by their size first, for no manifest is as short, and then by the
seal. A manifest that was cut or damaged is neither, and is an error.

A tag (``tags/prod.json`` beside the versions of a dataset) is a name that moves, for versions that do not: from a tag
to the version it was set to, and to no other.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.runtime.store.base import ObjectInfo, ReadStore, Store
from tokenlake.runtime.store.layout import LEDGER, RUNS, Layout, ledger_unit, tag_key, tag_of, tags_prefix
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.sealed import (
    FORMAT_VERSION,
    DatasetName,
    Positive,
    Sealed,
    Sha256,
    TagName,
    seal,
)

Status = Literal["new", "resumed", "committed"]
State = Literal["building", "committing", "swept"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Sealed):
    """Who builds a version. ``meta`` is free (name, release, start); only the fingerprint decides.

    Attributes:
        state: ``building`` (not written), ``committing`` or ``swept``.
    """

    FREE: ClassVar = ("meta",)

    dataset: DatasetName
    version: Positive
    fingerprint: Sha256
    meta: dict[str, Any]
    state: State = "building"

    def turned(self, state: State) -> Self:
        """Return the same claim in another state."""
        return replace(self, state=state)


@final
@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The version to build, and whether it is new, half built by an equal build, or there."""

    version: int
    status: Status


#: Bytes that a note has at most; the shortest manifest has more than twice as many.
MOST_BYTES: Final = 400


def closing_note(layout: Layout) -> bytes:
    """Return what is stored in the place of the manifest of a closed number."""
    own = {"dataset": layout.dataset, "version": layout.version}
    return seal({"format_version": FORMAT_VERSION, **own, "closed": True})


def is_closing_note(data: bytes, layout: Layout) -> bool:
    """Say whether `data`, found in the place of a manifest, closes this very number."""
    return data == closing_note(layout)


@final
@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A number that is taken; committed means that its manifest exists, swept that it never will."""

    version: int
    committed: bool
    swept: bool = False

    def __str__(self) -> str:
        state = "" if self.committed else " (swept)" if self.swept else " (unfinished)"
        return f"v{self.version}{state}"


def state_of(store: ReadStore, layout: Layout) -> VersionInfo | None:
    """Return what became of a number; None where it is free. A damaged claim is one of a build that goes on."""
    size = store.size(layout.manifest)
    if size is not None:
        closed = _is_closed(store, layout, size)
        return VersionInfo(layout.version, not closed, closed)
    try:
        claim = Claim.from_bytes(store.read(layout.claim), layout.claim)
    except NotFoundError:
        return None
    except IntegrityError:  # who resumes or sweeps it looks closer
        return VersionInfo(layout.version, False)
    return VersionInfo(layout.version, False, claim.state == "swept")


def is_committed(store: ReadStore, layout: Layout) -> bool:
    """Say whether a version exists."""
    size = store.size(layout.manifest)
    return size is not None and not _is_closed(store, layout, size)


def _is_closed(store: ReadStore, layout: Layout, size: int) -> bool:
    """Say whether what is in the place of a manifest says that there never will be one."""
    return size <= MOST_BYTES and is_closing_note(store.read(layout.manifest), layout)


# How a build fares that is not committed. Nothing here is proof: a clock may be wrong, and a run that was killed left
# no word.

BuildState: TypeAlias = Literal["running", "idle", "failed", "cancelled"]

FAILED: Final = "-failed"
"""Ends the name of the record that a failing run leaves in ``runs/``."""
CANCELLED: Final = "-cancelled"
"""Ends the name of the record that a cancelled run leaves there."""

_QUIET: Final = 600.0  # seconds in which a build that runs has begun or finished some file
_STAMP: Final = len("20260101T000000Z")


@final
@dataclass(frozen=True, slots=True)
class Unfinished:
    """A build without a manifest.

    Attributes:
        state: failed or cancelled, if the last run left word of it; else running, if something changed in the last ten
            minutes.
        units: finished ones.
        seconds: since something changed, by the storage's clock; None where it does not say.
        error: of the last run, if it failed.
    """

    state: BuildState
    units: int
    seconds: float | None
    error: str | None


def unfinished(store: ReadStore, layout: Layout) -> Unfinished:
    """Look at a version that is not committed; files that are being written count as changes."""
    objects = list(store.list(layout.prefix))
    begun = store.leftovers(layout.prefix) if isinstance(store, Store) else []
    changes = [each.modified for each in (*objects, *begun) if each.modified is not None]
    seconds = max(0.0, time.time() - max(changes)) if changes else None
    paths = [layout.path(info.key) for info in objects]
    units = sum(path.startswith(f"{LEDGER}/") and ledger_unit(path) is not None for path in paths)
    last = _last(info for info in objects if layout.path(info.key).startswith(f"{RUNS}/"))
    error = _told(store, last, "error") if last is not None and _is_failure(last) else None
    state: BuildState = "idle"
    if error:
        state = "failed"
    elif last is not None and _is_cancellation(last):
        state = "cancelled"
    elif seconds is not None and seconds < _QUIET:
        state = "running"
    return Unfinished(state, units, seconds, None if error is None else str(error))


def _last(runs: Iterable[ObjectInfo]) -> ObjectInfo | None:
    """Return the newest record of a run: by the start of the run, then by when it was written."""

    def when(info: ObjectInfo) -> tuple[str, float, bool]:
        is_ending = _is_failure(info) or _is_cancellation(info)
        return info.key.rpartition("/")[2][:_STAMP], info.modified or 0.0, is_ending

    return max(runs, key=when, default=None)


def _told(store: ReadStore, run: ObjectInfo, key: str) -> Any:
    """Return a member of the record of a run; None where it has none, or cannot be read."""
    try:
        return json.loads(store.read(run.key))[key]
    except (ValueError, KeyError, TypeError, RecursionError, StoreError, IntegrityError):
        return None


def _is_failure(info: ObjectInfo) -> bool:
    return info.key.endswith(f"{FAILED}.json")


def _is_cancellation(info: ObjectInfo) -> bool:
    return info.key.endswith(f"{CANCELLED}.json")


_FINISHED: Final = re.compile(r".*/[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\.json")


def committing_run(store: ReadStore, layout: Layout) -> Mapping[str, str]:
    """Return id, name and deployment of the flow run that committed a version; empty where none says that it did."""
    last = _last(info for info in store.list(layout.key(RUNS)) if _FINISHED.fullmatch(info.key))
    found = None if last is None else _told(store, last, "flow_run")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tag(Sealed):
    """A name for a version.

    Attributes:
        dataset, tag: what ``dataset@tag`` means,
        version: that version,
        manifest_sha256: and the seal of its manifest, so that a version that was replaced is noticed.
    """

    dataset: DatasetName
    tag: TagName
    version: Positive
    manifest_sha256: Sha256

    @property
    def reference(self) -> str:
        """``code@prod``."""
        return f"{self.dataset}@{self.tag}"


@final
@dataclass(frozen=True, slots=True)
class TagChange:
    """A tag as it is now, and as it was before (None: there was none)."""

    tag: Tag
    was: Tag | None

    @property
    def changed(self) -> bool:
        return self.was != self.tag


def read_tags(store: ReadStore, dataset: str) -> list[Tag]:
    """Return a dataset's tags by name; IntegrityError names what is damaged or no tag."""
    found: list[Tag] = []
    for info in store.list(tags_prefix(dataset)):
        tag = tag_of(info.key)
        if tag is None:
            raise IntegrityError(f"{info.key}: not a tag's name; remove the file", file=info.key)
        stored = stored_tag(store, dataset, tag)
        if stored is not None:  # else somebody removed it just now
            found.append(stored[0])
    return found


def stored_tag(store: ReadStore, dataset: str, tag: str) -> tuple[Tag, bytes] | None:
    """Return a tag and the bytes of its file; None if there is none."""
    key = tag_key(dataset, tag)
    try:
        data = store.read(key)
    except NotFoundError:
        return None
    found = Tag.from_bytes(data, key)
    if (found.dataset, found.tag) != (dataset, tag):
        raise IntegrityError(
            f"{key}: it is {found.reference}; expected {dataset}@{tag}, by its place. A tag's file cannot be renamed "
            f"or copied: remove it (`tokenlake tag {dataset} {tag} --remove`) and set it again.",
            file=key,
        )
    return found, data


def tagged_manifest(tag: Tag, read: Callable[[str, int], Manifest]) -> Manifest:
    """Return the manifest of a tag's version.

    Raises:
        NotFoundError: the version is gone.
        IntegrityError: its manifest is another one than the tag's, or damaged.
    """
    try:
        found = read(tag.dataset, tag.version)
    except NotFoundError as error:
        raise NotFoundError(
            f"the tag {tag.reference} is of v{tag.version}, but {error} Move it "
            f"(`tokenlake tag {tag.dataset}@vN {tag.tag}`) or remove it "
            f"(`tokenlake tag {tag.dataset} {tag.tag} --remove`).",
            dataset=tag.dataset,
            version=tag.version,
            tag=tag.tag,
        ) from error
    if found.sha256 == tag.manifest_sha256:
        return found
    raise IntegrityError(
        f"the tag {tag.reference} was set when the manifest of v{tag.version} had the sha256 {tag.manifest_sha256}; "
        f"now it has {found.sha256}: the version was replaced. Restore it, or look at what it is now and set the tag "
        f"again (`tokenlake tag {tag.dataset}@v{tag.version} {tag.tag}`).",
        file=tag_key(tag.dataset, tag.tag),
        expected=tag.manifest_sha256,
        got=found.sha256,
    )
