"""Tags: names that move, for versions that do not; ``tags/prod.json`` beside the versions of a dataset.

From a tag to the version it was set to, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.store.base import ReadStore
from tokenlake.store.layout import tag_key, tag_of, tags_prefix
from tokenlake.store.manifest import Manifest
from tokenlake.store.sealed import DatasetName, Positive, Sealed, Sha256, TagName


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
