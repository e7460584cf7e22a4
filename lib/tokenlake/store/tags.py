"""Tags: names that move, for versions that do not; ``tags/prod.json`` beside the versions of a dataset.

From a tag to the version it was set to, and to no other.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self, TypeAlias, final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.store.base import ReadStore, Store
from tokenlake.store.layout import Layout, tag_key, tag_of, tags_prefix
from tokenlake.store.manifest import Manifest
from tokenlake.store.sealed import (
    FORMAT_VERSION,
    DatasetName,
    Positive,
    Sha256,
    TagName,
    entry_texts,
    is_sealed_as,
    seal_texts,
    unseal,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A name for a version.

    Attributes:
        dataset, tag: what ``dataset@tag`` means,
        version: that version,
        manifest_sha256: and the seal of its manifest, so that a version that was replaced is noticed.
    """

    dataset: str
    tag: str
    version: int
    manifest_sha256: str

    @property
    def reference(self) -> str:
        """``code@prod``."""
        return f"{self.dataset}@{self.tag}"

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal_texts(self._texts())

    def _texts(self) -> dict[str, str]:
        return entry_texts({"format_version": FORMAT_VERSION, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "tag") -> Self:
        """Read a tag; any change after it was written is an IntegrityError."""
        document = unseal(data, where)
        found = cls(
            dataset=document.get("dataset", DatasetName),
            tag=document.get("tag", TagName),
            version=document.get("version", Positive),
            manifest_sha256=document.get("manifest_sha256", Sha256),
        )
        document.end(found._texts())
        return found


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
    for key in _keys(store, dataset):
        tag = tag_of(key)
        if tag is None:
            raise IntegrityError(f"{key}: not a tag's name; remove the file", file=key)
        stored = stored_tag(store, dataset, tag)
        if stored is not None:  # else somebody removed it just now
            found.append(stored[0])
    return found


def read_tag(store: ReadStore, dataset: str, tag: str) -> Tag:
    """Return a tag; NotFoundError names near matches and what there is."""
    found = stored_tag(store, dataset, tag)
    if found is None:
        raise _no_tag(store, dataset, tag)
    return found[0]


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


def swap_tag(store: Store, tag: Tag) -> TagChange:
    """Set a tag, or move it; VersionConflictError if another process changed it between our look and our write."""
    there = stored_tag(store, tag.dataset, tag.tag)
    was, expected = (None, None) if there is None else there
    outcome = store.swap(tag_key(tag.dataset, tag.tag), tag.to_bytes(), expected)
    store.sweep_temp(tags_prefix(tag.dataset))
    # Equal: it was so already, or another process did the same just now.
    return TagChange(tag, tag if outcome == "equal" else was)


def remove_tag(store: Store, dataset: str, tag: str) -> int | None:
    """Remove a tag; return the version it was of, None where its file was damaged."""
    try:
        found = read_tag(store, dataset, tag).version
    except IntegrityError:
        found = None
    try:
        store.delete(tag_key(dataset, tag))
    except NotFoundError:  # somebody else removed it just now
        raise _no_tag(store, dataset, tag) from None
    return found


def _keys(store: ReadStore, dataset: str) -> list[str]:
    return [info.key for info in store.list(tags_prefix(dataset))]


def _no_tag(store: ReadStore, dataset: str, tag: str) -> NotFoundError:
    names = [name for name in map(tag_of, _keys(store, dataset)) if name is not None]
    near = difflib.get_close_matches(tag, names, n=3, cutoff=0.5)
    guess = f"did you mean {' or '.join(near)}? There" if near else "there"
    return NotFoundError(
        f"dataset {dataset!r} in {store.url} has no tag {tag!r}; {guess} are: {', '.join(names[:20]) or 'none'}. "
        f"`tokenlake tag {dataset}@vN {tag}` makes it.",
        dataset=dataset,
        tag=tag,
        near=near,
        expected=names,
    )


ReadManifest: TypeAlias = Callable[[str, int], Manifest]


def check_tag(store: ReadStore, tag: Tag, read: ReadManifest) -> None:
    """Check that a tag's version is there with the manifest that it had; a manifest that is, is not parsed.

    Raises:
        NotFoundError: the version is gone.
        IntegrityError: its manifest is another one, or damaged.
    """
    try:
        data = store.read(Layout(tag.dataset, tag.version).manifest)
    except NotFoundError:
        data = b""
    if not is_sealed_as(data, tag.manifest_sha256):
        tagged_manifest(tag, read)


def tagged_manifest(tag: Tag, read: ReadManifest) -> Manifest:
    """Return the manifest of a tag's version; raises as :func:`check_tag` does."""
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
    if found.sha256 != tag.manifest_sha256:
        raise _replaced(tag, found)
    return found


def _replaced(tag: Tag, found: Manifest) -> IntegrityError:
    return IntegrityError(
        f"the tag {tag.reference} was set when the manifest of v{tag.version} had the sha256 {tag.manifest_sha256}; "
        f"now it has {found.sha256}: the version was replaced. Restore it, or look at what it is now and set the tag "
        f"again (`tokenlake tag {tag.dataset}@v{tag.version} {tag.tag}`).",
        file=tag_key(tag.dataset, tag.tag),
        expected=tag.manifest_sha256,
        got=found.sha256,
    )
