"""Tags: names that move, for versions that do not move.

A tag is a file beside the versions of a dataset (``code/tags/prod.json``). It leads to
the version that it was set to, and to no other: it holds the seal of that version's
manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.layout import tag_key, tag_of, tags_prefix
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.sealed import (
    DatasetName,
    Positive,
    Sealed,
    Sha256,
    TagName,
)


@final
# The seal pins the version: a dataset that was removed and built again has another
# manifest.
@dataclass(frozen=True, slots=True, kw_only=True)
class Tag(Sealed):
    """A name for a version.

    Attributes:
        dataset: Name of the dataset.
        tag: Name of the tag.
        version: Number of the version that ``dataset@tag`` means.
        manifest_sha256: Seal of its manifest, so that a replaced version is noticed.
    """

    dataset: DatasetName
    tag: TagName
    version: Positive
    manifest_sha256: Sha256

    @property
    def reference(self) -> str:
        """Reference of the tag, such as ``code@prod``."""
        return f"{self.dataset}@{self.tag}"


@final
@dataclass(frozen=True, slots=True)
class TagChange:
    """A tag that was set.

    Attributes:
        tag: The tag as it is now.
        was: The tag as it was before; None if there was none.
    """

    tag: Tag
    was: Tag | None

    @property
    def changed(self) -> bool:
        """Whether the tag is another one than before."""
        return self.was != self.tag


def read_tags(store: ReadStore, dataset: str) -> list[Tag]:
    """Return the tags of a dataset, by name.

    Raises:
        IntegrityError: A tag is damaged, or a file among the tags is none.
    """
    tags: list[Tag] = []
    # Everything among the tags must be a tag, because a file with another name is not
    # found by any.
    for info in store.list(tags_prefix(dataset)):
        tag_name = tag_of(info.key)
        if tag_name is None:
            raise IntegrityError(
                f"{info.key}: not a tag's name; remove the file", file=info.key
            )
        stored = stored_tag(store, dataset, tag_name)
        if stored is not None:  # None: another process has just removed it
            tags.append(stored[0])
    return tags


def stored_tag(store: ReadStore, dataset: str, tag: str) -> tuple[Tag, bytes] | None:
    """Return a tag and the bytes of its file; None if it does not exist.

    Raises:
        IntegrityError: The file is damaged, or that of another tag.
    """
    key = tag_key(dataset, tag)
    try:
        data = store.read(key)
    except NotFoundError:
        return None
    stored = Tag.from_bytes(data, key)
    # A tag states its own name, so that a copied file is found.
    if (stored.dataset, stored.tag) != (dataset, tag):
        raise IntegrityError(
            f"{key}: it is {stored.reference}; expected {dataset}@{tag}, by its place. A tag's file cannot be renamed "
            f"or copied: remove it (`tokenlake tag {dataset} {tag} --remove`) and set it again.",
            file=key,
        )
    return stored, data


def tagged_manifest(tag: Tag, read: Callable[[str, int], Manifest]) -> Manifest:
    """Return the manifest of a tag's version.

    Args:
        tag: The tag.
        read: Function that reads the manifest of a dataset and version.

    Raises:
        NotFoundError: The version is gone.
        IntegrityError: Its manifest is damaged, or is not the one that the tag was set
            to.
    """
    # A tag that leads nowhere is reported with the ways to repair it.
    try:
        manifest = read(tag.dataset, tag.version)
    except NotFoundError as error:
        raise NotFoundError(
            f"the tag {tag.reference} is of v{tag.version}, but {error} Move it "
            f"(`tokenlake tag {tag.dataset}@vN {tag.tag}`) or remove it "
            f"(`tokenlake tag {tag.dataset} {tag.tag} --remove`).",
            dataset=tag.dataset,
            version=tag.version,
            tag=tag.tag,
        ) from error
    if manifest.sha256 == tag.manifest_sha256:
        return manifest
    raise IntegrityError(
        f"the tag {tag.reference} was set when the manifest of v{tag.version} had the sha256 {tag.manifest_sha256}; "
        f"now it has {manifest.sha256}: the version was replaced. Restore it, or inspect the present version and set "
        f"the tag again (`tokenlake tag {tag.dataset}@v{tag.version} {tag.tag}`).",
        file=tag_key(tag.dataset, tag.tag),
        expected=tag.manifest_sha256,
        got=manifest.sha256,
    )
