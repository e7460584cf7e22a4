"""Verification of the small records of a version.

These are the account, the claim, the copy of the manifest, the parents, the listing and
the tags.
"""

from __future__ import annotations

from collections.abc import Collection

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.etl.integrity.manifest_copy import copy_state
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, lists_ledger
from tokenlake.runtime.store.file_check import Problem
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

# Beginnings of the paths of files that come with a download from the Hub.
_HUB_MARKS = (".gitattributes", ".cache/huggingface/")

_READABLE = "a regular file that can be read"
"""Expected value for a file that the storage does not give out."""


def exists(store: ReadStore, key: str) -> bool:
    """Return True if anything is at a key, even if it is no file that can be read."""
    try:
        # The storage refuses: it is a symlink, a folder, or without permission.
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
        return [Problem(CLAIM, "unreadable", _READABLE, str(error))]
    # A version that was copied from elsewhere has no claim.
    if claim is not None and claim.fingerprint != manifest.fingerprint:
        return [Problem(CLAIM, "fingerprint", manifest.fingerprint, claim.fingerprint)]
    return []


def copy_problems(store: ReadStore, layout: Layout) -> tuple[list[Problem], list[str]]:
    """Check the second copy of an intact manifest; return problems, and notes."""
    try:
        state = copy_state(store, layout)
    except StoreError as error:
        problem = Problem(MANIFEST_COPY, "unreadable", _READABLE, str(error))
        return [problem], []
    expected = f"the bytes of {MANIFEST}"
    if state == "damaged":
        return [Problem(MANIFEST_COPY, "damaged", expected, "other bytes")], []
    if state == "another":
        got = "another sealed manifest"
        return [Problem(MANIFEST_COPY, "copy", expected, got)], []
    # A missing copy is no damage: the version is whole without it.
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
    # Records of runs are written by every run, and listed by none.
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
        if path in expected or path in (MANIFEST, CLAIM):
            continue
        if path.startswith(ignored_prefixes):
            continue
        # If the manifest does not list ledger records, their seals prove them.
        if not has_listed_ledger and ledger_unit(path) is not None:
            continue
        rule = "only files that the manifest names"
        problem = Problem(path, "unlisted", rule, "a file of unknown origin")
        problems.append(problem)
    return problems


def _unlistable(path: str, error: Exception) -> Problem:
    """Return the problem of a folder that the storage does not list."""
    return Problem(path, "unreadable", "a folder that can be listed", str(error))


def parent_problems(store: ReadStore, manifest: Manifest) -> list[Problem]:
    """Compare the parents of a manifest with those in the store.

    A parent that is gone is no problem: versions do not depend on their parents.
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
        # The number of a version is never given twice. Another manifest under it means
        # that the store was changed by hand, or that the parent is of another store.
        if stored.sha256 != parent.sha256:
            problems.append(Problem(MANIFEST, word, parent.sha256, stored.sha256))
        else:
            problems += _mixture_problems(manifest, parent, stored)
    return problems


def _mixture_problems(
    manifest: Manifest, parent: Parent, stored: Manifest
) -> list[Problem]:
    """Compare the sources of a mixture with the manifest of one parent."""
    if manifest.mixture is None:
        return []
    problems: list[Problem] = []
    for source_name, source in manifest.mixture.sources.items():
        if (source.dataset, source.version) != (parent.dataset, parent.version):
            continue
        # The figures on which the order of the mixture depends. The window is the mean
        # number of rows of a row group, rounded up.
        rows = 0
        tokens = 0
        row_groups = 0
        for shard in stored.files:
            if shard.split == source.split:
                rows += shard.rows
                tokens += shard.tokens
                row_groups += len(shard.row_groups)
        window = max(1, -(-rows // max(1, row_groups)))
        expected = {"rows": rows, "tokens": tokens, "window": window}
        got = {"rows": source.rows, "tokens": source.tokens, "window": source.window}
        if expected != got:
            problems.append(
                Problem(
                    MANIFEST, f"mixture source {source_name}", f"{expected}", f"{got}"
                )
            )
    return problems


def tag_problems(store: ReadStore, layout: Layout, manifest: Manifest) -> list[Problem]:
    """Compare the tags of a dataset with the version that they name.

    A damaged tag may be of any version, and a tag whose version is gone is of none:
    every version reports both.
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
    tag_name = tag_of(key)
    if tag_name is None:
        return Problem(path, "unlisted", "only tags", "a file that is not a tag")
    try:
        stored = stored_tag(store, layout.dataset, tag_name)
    except IntegrityError as error:
        return Problem(path, "damaged", "a sealed tag", str(error))
    except StoreError as error:
        return Problem(path, "unreadable", _READABLE, str(error))
    if stored is None:  # it was removed just now
        return None
    tag: Tag = stored[0]
    # The tag of another version is reported there, unless that version is gone.
    if tag.version != manifest.version:
        if store.exists(Layout(tag.dataset, tag.version).manifest):
            return None
        expected = f"version v{tag.version}, which it names"
        return Problem(path, "tag", expected, "no such version")
    if tag.manifest_sha256 != manifest.sha256:
        expected = f"the manifest {tag.manifest_sha256}"
        return Problem(path, "tag", expected, manifest.sha256)
    return None
