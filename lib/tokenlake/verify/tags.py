"""The tags of a dataset, as far as they are this version's or nobody's."""

from __future__ import annotations

from tokenlake.catalog.tags import Tag, stored_tag
from tokenlake.errors import IntegrityError, StoreError
from tokenlake.manifest import Manifest
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import Layout, tag_of, tags_prefix
from tokenlake.verify.report import Problem


def tag_problems(store: ReadStore, layout: Layout, manifest: Manifest) -> list[Problem]:
    """Compare tags with the version that they are of.

    A damaged one may be of any version, and one whose version is gone is of none: every version reports both.

    Raises:
        StoreError: the tags cannot be listed.
    """
    found: list[Problem] = []
    for key in [info.key for info in store.list(tags_prefix(layout.dataset))]:
        path, name = f"../{key.removeprefix(f'{layout.dataset}/')}", tag_of(key)
        if name is None:
            found.append(Problem(path, "unlisted", "only tags", "a file that is no tag"))
            continue
        try:
            stored = stored_tag(store, layout.dataset, name)
        except IntegrityError as error:
            found.append(Problem(path, "damaged", "a sealed tag", str(error)))
        except StoreError as error:
            found.append(Problem(path, "unreadable", "a regular file that can be read", str(error)))
        else:
            found += [] if stored is None else _of(store, path, stored[0], manifest)
    return found


def _of(store: ReadStore, path: str, tag: Tag, manifest: Manifest) -> list[Problem]:
    if tag.version == manifest.version:
        if tag.manifest_sha256 == manifest.sha256:
            return []
        return [Problem(path, "tag", f"the manifest {tag.manifest_sha256}", f"{manifest.sha256}")]
    if store.exists(Layout(tag.dataset, tag.version).manifest):
        return []
    return [Problem(path, "tag", f"the version v{tag.version}, which it is of", "no such version")]
