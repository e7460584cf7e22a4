"""From a tag to the version it was set to, and to no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tokenlake.catalog.tags import Tag
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.manifest import Manifest
from tokenlake.sealed import is_sealed_as
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout, tag_key

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
