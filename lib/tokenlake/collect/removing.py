"""Removing what was judged: first the swap after which nobody can need it, then the files.

Every step may be the last one: a collection that dies leaves a store in which all versions are whole, and the next one
goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tokenlake.catalog import Claim
from tokenlake.catalog.closing import closing_note
from tokenlake.collect.finding import Abandoned
from tokenlake.collect.report import Kept, Removed
from tokenlake.errors import NotFoundError, StoreError, VersionConflictError
from tokenlake.storage.base import Leftover, Store
from tokenlake.storage.layout import Layout

_Thing = TypeVar("_Thing")
_NOBODY: Final = "0" * 64  # the fingerprint of a claim that could not be read any more


def sweep(store: Store, found: Abandoned) -> Kept | None:
    """Make sure that an abandoned version never becomes one; say why not where its build woke up."""
    layout = found.layout
    try:
        # From "building" a commit has to swap the claim as well. In any other state it may have done so before it fell
        # asleep, and only the manifest's own name can keep it from waking up to publish.
        if found.was in ("committing", "damaged"):
            store.put_new(layout.manifest, closing_note(layout))
        if found.claim is not None and (found.ours is None or found.ours.state != "swept"):
            store.swap(layout.claim, _swept_claim(found), found.claim)
    except VersionConflictError:
        return Kept(layout.prefix, "its build went on just now")
    return None


def _swept_claim(found: Abandoned) -> bytes:
    layout = found.layout
    claim = found.ours or Claim(dataset=layout.dataset, version=layout.version, fingerprint=_NOBODY, meta={})
    return claim.turned("swept").to_bytes()


def delete_all(store: Store, files: Iterable[Removed], workers: int) -> tuple[list[Removed], list[Kept]]:
    """Delete objects; return those that we deleted, and those that we could not."""
    return _each(files, lambda file: _deleted(store, file), workers)


def remove_all(
    store: Store, leftovers: Iterable[Leftover], workers: int
) -> tuple[list[Leftover], list[Kept]]:
    """Remove unpublished things; return those that we removed, and those that we could not."""
    return _each(leftovers, lambda leftover: _dropped(store, leftover), workers)


def prune(store: Store, layout: Layout, *, whole: bool) -> None:
    """Remove the empty folders of a version, deepest first; its own too, where `whole`."""
    _prune(store, layout.prefix)
    if whole:
        store.remove_folder(layout.prefix)


def _prune(store: Store, folder: str) -> None:
    for name in store.list_dirs(folder):
        _prune(store, f"{folder}/{name}")
        store.remove_folder(f"{folder}/{name}")


def _deleted(store: Store, file: Removed) -> bool | Kept:
    try:
        store.delete(file.name)
    except NotFoundError:  # another collection was faster
        return False
    except StoreError as error:
        return Kept(file.name, f"it could not be removed: {error}", failed=True)
    return True


def _dropped(store: Store, leftover: Leftover) -> bool | Kept:
    try:
        return store.remove_leftover(leftover)
    except StoreError as error:
        return Kept(leftover.name, f"it could not be removed: {error}", failed=True)


def _each(
    things: Iterable[_Thing], remove: Callable[[_Thing], bool | Kept], workers: int
) -> tuple[list[_Thing], list[Kept]]:
    asked = list(things)
    if workers == 1 or len(asked) < 2:
        answers = list(map(remove, asked))
    else:
        with ThreadPoolExecutor(min(workers, len(asked)), thread_name_prefix="gc") as pool:
            answers = list(pool.map(remove, asked))
    done = [thing for thing, answer in zip(asked, answers, strict=True) if answer is True]
    return done, [answer for answer in answers if isinstance(answer, Kept)]
