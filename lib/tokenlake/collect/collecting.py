"""Collecting: judge everything, then remove what may go.

What goes, once it lay untouched for the grace period:

- temporary files and uploads in parts that were never published, at once where their process on this machine is dead;
- unfinished builds under whose version nothing changed: the claim is swept, then all but the claim is deleted. Numbers
  are never used again;
- files below a committed version that its manifest, which must be sound, does not name.

What stays, whatever its age: all that a manifest names, and with it what tags, mixtures and reused units need; tags;
``runs/`` of versions; whatever is not ours. Ages are by the storage's clock against this machine's: a clock that is
wrong by hours makes a grace period longer or shorter by as much, and nothing else. What guards a version is no clock
(see :mod:`tokenlake.build.holding`).
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenlake.collect.durations import parse_duration
from tokenlake.collect.finding import Abandoned, Clock, Empty, Finding, Strays, judge, old_leftovers
from tokenlake.collect.removing import delete_all, prune, remove_all, sweep
from tokenlake.collect.report import GcReport, Kept, Removed, Swept
from tokenlake.errors import NotFoundError
from tokenlake.storage import StoreAddress, open_store
from tokenlake.storage.base import Leftover, Store
from tokenlake.storage.keys import DATASET_NAME, TEMP_MARK, check_dataset_name
from tokenlake.storage.layout import TAGS, Layout, version_number

#: How long something must have lain untouched, where nobody says.
GRACE = "7d"


def gc(
    store: str | os.PathLike[str] | StoreAddress,
    names: Iterable[str] = (),
    *,
    grace: float | str = GRACE,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> GcReport:
    """Remove from a store what no version, no tag and no build that goes on needs.

    ::

        tl.gc("artifacts", dry_run=True).bytes  # what would be freed
        tl.gc("artifacts", ["llama2-2048"], grace="12h")

    Args:
        store: a path, a URL or an address.
        names: only these datasets; all where there are none.
        grace: seconds, or a text such as ``"7d"``, ``"12h"``, ``"30m"``, that something must have lain untouched. With
            0 also what a build is working on is removed: no version suffers, but the build has to begin again.
        dry_run: change nothing; the report says what would happen.
        storage_options: for the store's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        ConfigError: not such a span of time.
        NotFoundError: there is no such dataset.
        StoreError: the store cannot be listed.
    """
    chosen = open_store(store, storage_options=storage_options)
    return collect(chosen, list(names), grace=parse_duration(grace), dry_run=dry_run)


def collect(
    store: Store,
    names: Sequence[str] = (),
    *,
    grace: float,
    dry_run: bool = False,
    now: float | None = None,
    workers: int = 8,
) -> GcReport:
    """Collect in an open store; as :func:`gc`.

    Args:
        grace: in seconds.
        now: seconds since the epoch; None: by this machine's clock.
        workers: threads that delete.
    """
    clock = Clock(time.time() if now is None else now, grace)
    datasets = _datasets(store, names)
    leftovers = [each for prefix in names or ("",) for each in store.leftovers(prefix) if _is_ours(each.name)]
    findings = [
        finding
        for layout in _layouts(store, datasets)
        for finding in _judged(store, layout, leftovers, clock)
    ]
    kept = [finding for finding in findings if isinstance(finding, Kept)]
    doing = _Doing(store, dry_run, workers, kept)
    doing.leave(old_leftovers(leftovers, clock))
    for finding in findings:
        doing.act(finding)
    return GcReport(
        store=store.url,
        grace=grace,
        dry_run=dry_run,
        removed=tuple(sorted(doing.removed, key=lambda each: each.name)),
        swept=tuple(doing.swept),
        kept=tuple(sorted(kept, key=lambda each: each.name)),
    )


class _Doing:
    """Does what was found, or only notes it, and keeps the list of it."""

    def __init__(self, store: Store, dry_run: bool, workers: int, kept: list[Kept]) -> None:
        self._store, self._dry, self._workers, self._kept = store, dry_run, workers, kept
        self.removed: list[Removed] = []
        self.swept: list[Swept] = []

    def leave(self, leftovers: list[Leftover]) -> None:
        """Remove unpublished things."""
        done, failed = (leftovers, []) if self._dry else remove_all(self._store, leftovers, self._workers)
        self.removed += [Removed("temporary", each.name, each.bytes, each.modified) for each in done]
        self._kept += failed

    def act(self, finding: Finding) -> None:
        """Do what a finding asks for."""
        if isinstance(finding, Abandoned):
            self._sweep(finding)
        elif isinstance(finding, Strays):
            self._delete(finding.files)
            self._prune(finding.layout, whole=False)
        elif isinstance(finding, Empty):
            self._prune(finding.layout, whole=True)

    def _sweep(self, found: Abandoned) -> None:
        alive = None if self._dry else sweep(self._store, found)
        if alive is not None:
            self._kept.append(alive)
            return
        layout = found.layout
        self.swept.append(Swept(layout.dataset, layout.version, found.was, found.modified))
        self._delete(found.files)
        self._prune(layout, whole=False)

    def _delete(self, files: Sequence[Removed]) -> None:
        done, failed = (files, []) if self._dry else delete_all(self._store, files, self._workers)
        self.removed += done
        self._kept += failed

    def _prune(self, layout: Layout, *, whole: bool) -> None:
        if not self._dry:
            prune(self._store, layout, whole=whole)


def _datasets(store: Store, names: Sequence[str]) -> list[str]:
    there = [name for name in store.list_dirs("") if DATASET_NAME.fullmatch(name)]
    for name in map(check_dataset_name, names):
        if name not in there:
            near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(there) or 'none'}."
            )
            raise NotFoundError(f"no dataset {name!r} in {store.url}; {hint}", dataset=name, near=near)
    return sorted(set(names)) if names else there


def _layouts(store: Store, datasets: Iterable[str]) -> Iterator[Layout]:
    for dataset in datasets:
        numbers = filter(None, map(version_number, store.list_dirs(dataset)))
        yield from (Layout(dataset, version) for version in sorted(numbers))


def _judged(store: Store, layout: Layout, leftovers: Iterable[Leftover], clock: Clock) -> list[Finding]:
    below = f"{layout.prefix}/"
    return judge(store, layout, [each for each in leftovers if each.name.startswith(below)], clock)


def _is_ours(name: str) -> bool:
    """Say whether an unpublished thing lies where builds and tags put theirs, not in somebody else's folder."""
    first, _, rest = name.partition("/")
    if not rest:
        return True
    folder, _, deeper = rest.partition("/")
    if not DATASET_NAME.fullmatch(first):
        return False
    return folder.startswith(TEMP_MARK) or (
        bool(deeper) and (folder == TAGS or version_number(folder) is not None)
    )
