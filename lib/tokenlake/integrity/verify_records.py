"""Work for many threads, that ends at once when its caller is interrupted.

The ledger against the manifest: same parts, same account, nothing more and nothing less.

The versions that a version was made from, as far as they are still there.

The tags of a dataset, as far as they are this version's or nobody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, final

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.integrity.findings import Problem
from tokenlake.store.account import Account
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog, read_record
from tokenlake.store.layout import LEDGER, MANIFEST, Layout, ledger_path, ledger_unit, tag_of, tags_prefix
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import MixedSource
from tokenlake.store.tags import Tag, stored_tag
from tokenlake.threads import start_thread

_LOOK_SECONDS: Final = 0.5

Item = TypeVar("Item")
Made = TypeVar("Made")


class Stopped(Exception):
    """Nobody waits for the result any more."""


@final
class Stop:
    """Says whether work is still wanted."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Ask for an end; from any thread."""
        self._asked.set()

    def check(self) -> None:
        """Raise :class:`Stopped` if the work is not wanted any more."""
        if self._asked.is_set():
            raise Stopped


def each(items: Sequence[Item], work: Callable[[Item], Made], *, threads: int, stop: Stop) -> list[Made]:
    """Return ``work(item)`` for all items, in their order.

    An error of one is raised here at once, as is Ctrl-C: the threads are asked to stop, and not waited for, since one
    of them may wait for a network.

    Args:
        work: asks `stop` now and then whether to go on.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    crew = _Crew(items, work)
    try:
        for number in range(min(threads, len(items))):
            start_thread(crew.run, end=stop.ask, name=f"tokenlake-verify-{number}")
        return crew.wait()
    except BaseException:
        crew.leave()
        stop.ask()
        raise


@final
class _Crew(Generic[Item, Made]):
    def __init__(self, items: Sequence[Item], work: Callable[[Item], Made]) -> None:
        self._items, self._work = items, work
        self._changed = threading.Condition()
        self._next, self._made = 0, dict[int, Made]()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Take one item after the other."""
        while (number := self._take()) is not None:
            try:
                made = self._work(self._items[number])
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                self._made[number] = made
                if len(self._made) == len(self._items):
                    self._changed.notify_all()

    def wait(self) -> list[Made]:
        with self._changed:
            # Woken now and then: a signal that another thread got wakes nobody.
            while self._error is None and len(self._made) < len(self._items):
                self._changed.wait(_LOOK_SECONDS)
            if self._error is not None:
                raise self._error
            return [self._made[number] for number in range(len(self._items))]

    def leave(self) -> None:
        """Give out no more items."""
        with self._changed:
            self._next = len(self._items)

    def _take(self) -> int | None:
        with self._changed:
            if self._error is not None or self._next >= len(self._items):
                return None
            self._next += 1
            return self._next - 1


@final
@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of a version, as it was read.

    Attributes:
        records: that belong to the version and can be read; None where it cannot be known which ones there are.
        whole: paths of files whose bytes are those that the manifest lists.
        problems: what is wrong with others.
    """

    records: list[UnitRecord] | None
    whole: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def read_ledger(store: ReadStore, layout: Layout, manifest: Manifest, *, threads: int, stop: Stop) -> Ledger:
    """Read every ledger record that belongs to the version and can be read.

    Where the manifest lists ledger records, it lists all of them: one that is not listed is no record of this version,
    and one that is not as it is listed is left to whoever compares bytes, and says so.
    """
    listed = sorted(path for path in manifest.other_files if path.startswith(f"{LEDGER}/"))
    if not listed and not store.can_list:
        return Ledger(None)
    try:
        paths = listed or [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
    except StoreError as error:
        problem = Problem(LEDGER, "unreadable", "a folder that can be listed", str(error))
        return Ledger(None, problems=(problem,))

    def read(path: str) -> UnitRecord | Problem | None:
        unit = ledger_unit(path)
        try:
            return None if unit is None else read_record(store, layout, unit, manifest)
        except (IntegrityError, StoreError) as error:
            return None if listed else Problem(path, "damaged", "a sealed ledger record", str(error))

    found = dict(zip(paths, each(paths, read, threads=threads, stop=stop), strict=True))
    records = {path: record for path, record in found.items() if isinstance(record, UnitRecord)}
    problems = tuple(problem for problem in found.values() if isinstance(problem, Problem))
    return Ledger(list(records.values()), frozenset(records if listed else ()), problems)


def ledger_problems(manifest: Manifest, records: list[UnitRecord], seen: Collection[str]) -> list[Problem]:
    """Compare the records with the manifest.

    Args:
        seen: paths that are reported already; what follows from their absence is not repeated.
    """
    found: list[Problem] = []
    shards = {shard.path: shard for shard in manifest.files}
    inputs = set(manifest.inputs)
    for record in records:
        path = ledger_path(record.unit)
        unlike = [part for part in record.parts if shards.get(part.path) != part]
        found += [Problem(path, "parts", f"{shards.get(part.path)}", f"{part}") for part in unlike]
        if any(entry.file not in inputs for entry in record.inputs):
            found.append(Problem(path, "inputs", "files of the manifest's inputs", "others"))
        found += _closes(manifest, record, path)
    return found + _coverage(manifest, records, seen)


def _closes(manifest: Manifest, record: UnitRecord, path: str) -> list[Problem]:
    try:
        record.account.check(manifest.seq_length, where=path)
        for source, share in record.shares.items():
            share.check(where=f"{path}: share of {source!r}")
    except AccountError as error:
        return [Problem(path, "account", "an account that closes", str(error))]
    return []


def _coverage(manifest: Manifest, records: list[UnitRecord], seen: Collection[str]) -> list[Problem]:
    units = {record.unit for record in records}
    absent = sorted({shard.unit for shard in manifest.files} - units)
    missing = [path for path in map(ledger_path, absent) if path not in seen]
    if missing:
        return [Problem(path, "missing", "a ledger record of the unit", "no file") for path in missing]
    if any(path.startswith(f"{LEDGER}/") for path in seen):
        return []
    held = {part.path for record in records for part in record.parts}
    strays = [shard.path for shard in manifest.files if shard.path not in held]
    found = [Problem(path, "parts", "named by its unit's ledger record", "not named") for path in strays]
    return found + _accounts(manifest, records)


def _accounts(manifest: Manifest, records: list[UnitRecord]) -> list[Problem]:
    shares = [record.by_source() for record in records]
    found: list[Problem] = []
    for source in sorted(manifest.accounts.keys() | {name for share in shares for name in share}):
        expected = Account.total(share[source] for share in shares if source in share)
        found += _differ(f"account of {source}", expected, manifest.accounts.get(source))
    if manifest.mixture is not None:  # the rows of mixed units, which are of no one source
        whole = Account.total(record.account for record in records)
        rows = Account(sequences=whole.sequences, slots=whole.slots, pad=whole.pad)
        found += _differ("rows of the mixture", rows, manifest.mixture.rows)
    return found


def _differ(problem: str, expected: Account, got: Account | None) -> list[Problem]:
    # A mixed unit may name a source that has no weight in it, and is none of the version.
    if expected + Account.zero() == Account.zero() + (got or Account.zero()):
        return []
    return [Problem(MANIFEST, problem, f"the ledger's sum {expected}", f"{got}")]


def parent_problems(store: ReadStore, manifest: Manifest) -> list[Problem]:
    """Compare what a manifest says of its parents with those that the store has; one that is gone is no problem."""
    catalog, found = Catalog(store), list[Problem]()
    for parent in manifest.parents:
        name = f"{parent.dataset}@v{parent.version}"
        try:
            there = catalog.manifest(parent.dataset, parent.version)
        except NotFoundError:
            continue
        except (IntegrityError, StoreError) as error:
            found.append(Problem(MANIFEST, f"parent {name}", "a sealed manifest", str(error)))
            continue
        if there.sha256 != parent.sha256:
            found.append(Problem(MANIFEST, f"parent {name}", parent.sha256, there.sha256))
            continue
        found += _sources(manifest, there)
    return found


def _sources(manifest: Manifest, parent: Manifest) -> list[Problem]:
    """What is wrong with the sources of a mixture that are a parent's."""
    if manifest.mixture is None:
        return []
    of_parent = (parent.dataset, parent.version)
    found: list[Problem] = []
    for name, source in manifest.mixture.sources.items():
        if (source.dataset, source.version) == of_parent:
            expected, got = _split(parent, source.split), _stated(source)
            if expected != got:
                found.append(Problem(MANIFEST, f"mixture source {name}", f"{expected}", f"{got}"))
    return found


def _stated(source: MixedSource) -> dict[str, int]:
    return {"rows": source.rows, "tokens": source.tokens, "window": source.window}


def _split(parent: Manifest, split: str) -> dict[str, int]:
    """Rows, tokens and window of a parent's split."""
    shards = [shard for shard in parent.files if shard.split == split]
    rows, groups = sum(shard.rows for shard in shards), sum(len(shard.row_groups) for shard in shards)
    window = max(1, -(-rows // max(1, groups)))
    return {"rows": rows, "tokens": sum(shard.tokens for shard in shards), "window": window}


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
