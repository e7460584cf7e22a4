"""Verification of the small records of a version: account, claim, copy of the
manifest, parents, listing and tags.
"""

from __future__ import annotations

from collections.abc import Collection

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl.integrity.findings import Problem
from tokenlake.etl.integrity.manifest_copy import copy_state
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, lists_ledger
from tokenlake.runtime.store.layout import (
    CLAIM,
    MANIFEST,
    MANIFEST_COPY,
    RUNS,
    Layout,
    ledger_unit,
    tag_of,
    tags_prefix,
)
from tokenlake.runtime.store.ledger import Parent
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.tags import Tag, stored_tag

_HUB_MARKS = (".gitattributes", ".cache/huggingface/")
"""Files that come with a download from the Hub."""


def exists(store: ReadStore, key: str) -> bool:
    """Return True if anything is at a key, even if it is no file that can be read."""
    try:
        return store.exists(key)
    except StoreError:
        return True


def account_problems(manifest: Manifest) -> list[Problem]:
    """Check that the account of a manifest balances, and its other statements agree."""
    try:
        manifest.check()
    except AccountError as error:
        return [Problem(MANIFEST, "account", "an audit that balances", str(error))]
    return []


def claim_problems(
    store: ReadStore, layout: Layout, manifest: Manifest
) -> list[Problem]:
    """Check that the claim is intact, and of the same build as the manifest."""
    try:
        claim = Catalog(store).read_claim(layout.dataset, layout.version)
    except IntegrityError as error:
        return [Problem(CLAIM, "damaged", "a sealed claim of this version", str(error))]
    except StoreError as error:
        return [
            Problem(CLAIM, "unreadable", "a regular file that can be read", str(error))
        ]
    if claim is not None and claim.fingerprint != manifest.fingerprint:
        return [Problem(CLAIM, "fingerprint", manifest.fingerprint, claim.fingerprint)]
    return []


def copy_problems(store: ReadStore, layout: Layout) -> tuple[list[Problem], list[str]]:
    """Check the second copy of an intact manifest; return problems, and notes."""
    try:
        state = copy_state(store, layout)
    except StoreError as error:
        return [
            Problem(
                MANIFEST_COPY,
                "unreadable",
                "a regular file that can be read",
                str(error),
            )
        ], []
    if state == "damaged":
        return [
            Problem(MANIFEST_COPY, "damaged", f"the bytes of {MANIFEST}", "other bytes")
        ], []
    if state == "another":
        return [
            Problem(
                MANIFEST_COPY,
                "copy",
                f"the bytes of {MANIFEST}",
                "another sealed manifest",
            )
        ], []
    if state == "missing":
        name = f"{layout.dataset}@v{layout.version}"
        note = (
            f"{MANIFEST_COPY}, the second copy of the manifest, is missing: an older release wrote the version, or "
            f"the file was removed: {RUNS}/. `tokenlake repair {name}` writes it"
        )
        return [], [note]
    return [], []


def unlisted_problems(
    store: ReadStore,
    layout: Layout,
    manifest: Manifest,
    expected: Collection[str],
    *,
    is_copied: bool,
) -> list[Problem]:
    """Look for files that the manifest does not name.

    Args:
        store: Store of the version; it can list files.
        layout: Keys of the version.
        manifest: Manifest of the version.
        expected: Paths of files with a recorded hash.
        is_copied: True if the version was copied from elsewhere, for example downloaded
            from the Hub.
    """
    ignored_prefixes = (f"{RUNS}/",)
    if is_copied:
        ignored_prefixes += _HUB_MARKS
    try:
        paths = [layout.path(info.key) for info in store.list(layout.prefix)]
    except StoreError as error:
        return [_unlistable(".", error)]
    has_listed_ledger = lists_ledger(manifest)
    problems: list[Problem] = []
    for path in paths:
        if (
            path in expected
            or path in (MANIFEST, CLAIM)
            or path.startswith(ignored_prefixes)
        ):
            continue
        # If the manifest does not list ledger records, their seals prove them.
        if not has_listed_ledger and ledger_unit(path) is not None:
            continue
        problems.append(
            Problem(
                path,
                "unlisted",
                "only files that the manifest names",
                "a file of unknown origin",
            )
        )
    return problems


def _unlistable(path: str, error: Exception) -> Problem:
    return Problem(path, "unreadable", "a folder that can be listed", str(error))


def parent_problems(store: ReadStore, manifest: Manifest) -> list[Problem]:
    """Compare the parents of a manifest with those in the store. A parent that is
    gone is no problem.
    """
    catalog = Catalog(store)
    problems: list[Problem] = []
    for parent in manifest.parents:
        word = f"parent {parent.dataset}@v{parent.version}"
        try:
            stored = catalog.manifest(parent.dataset, parent.version)
        except NotFoundError:
            continue
        except (IntegrityError, StoreError) as error:
            problems.append(Problem(MANIFEST, word, "a sealed manifest", str(error)))
            continue
        if stored.sha256 != parent.sha256:
            problems.append(Problem(MANIFEST, word, parent.sha256, stored.sha256))
        else:
            problems += _mixture_problems(manifest, parent, stored)
    return problems


def _mixture_problems(
    manifest: Manifest, parent: Parent, stored: Manifest
) -> list[Problem]:
    """Compare the sources of a mixture that are of one parent with the parent's
    manifest.
    """
    if manifest.mixture is None:
        return []
    problems: list[Problem] = []
    for name, source in manifest.mixture.sources.items():
        if (source.dataset, source.version) != (parent.dataset, parent.version):
            continue
        shards = [shard for shard in stored.files if shard.split == source.split]
        rows = sum(shard.rows for shard in shards)
        row_groups = sum(len(shard.row_groups) for shard in shards)
        expected = {
            "rows": rows,
            "tokens": sum(shard.tokens for shard in shards),
            "window": max(1, -(-rows // max(1, row_groups))),
        }
        got = {"rows": source.rows, "tokens": source.tokens, "window": source.window}
        if expected != got:
            problems.append(
                Problem(MANIFEST, f"mixture source {name}", f"{expected}", f"{got}")
            )
    return problems


def tag_problems(store: ReadStore, layout: Layout, manifest: Manifest) -> list[Problem]:
    """Compare the tags of a dataset with the version that they name.

    A damaged tag may be of any version, and one whose version is gone is of none: every
    version reports both.
    """
    try:
        keys = [info.key for info in store.list(tags_prefix(layout.dataset))]
        problems: list[Problem] = []
        for key in keys:
            problem = _tag_problem(store, layout, manifest, key)
            if problem is not None:
                problems.append(problem)
    except StoreError as error:
        return [_unlistable("../tags", error)]
    return problems


def _tag_problem(
    store: ReadStore, layout: Layout, manifest: Manifest, key: str
) -> Problem | None:
    """Check the file of one tag."""
    path = f"../{key.removeprefix(f'{layout.dataset}/')}"
    name = tag_of(key)
    if name is None:
        return Problem(path, "unlisted", "only tags", "a file that is not a tag")
    try:
        stored = stored_tag(store, layout.dataset, name)
    except IntegrityError as error:
        return Problem(path, "damaged", "a sealed tag", str(error))
    except StoreError as error:
        return Problem(
            path, "unreadable", "a regular file that can be read", str(error)
        )
    if stored is None:  # it was removed just now
        return None
    tag: Tag = stored[0]
    if tag.version != manifest.version:
        if store.exists(Layout(tag.dataset, tag.version).manifest):
            return None
        return Problem(
            path, "tag", f"version v{tag.version}, which it names", "no such version"
        )
    if tag.manifest_sha256 != manifest.sha256:
        return Problem(
            path, "tag", f"the manifest {tag.manifest_sha256}", manifest.sha256
        )
    return None
