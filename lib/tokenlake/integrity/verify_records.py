"""What a version's other records say against its manifest: ledger, parents and tags."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from tokenlake.errors import AccountError, IntegrityError, NotFoundError, StoreError
from tokenlake.integrity.findings import Problem
from tokenlake.store.account import Account
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog, read_record
from tokenlake.store.layout import LEDGER, MANIFEST, Layout, ledger_path, ledger_unit, tag_of, tags_prefix
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.store.tags import Tag, stored_tag
from tokenlake.threads import Stop, in_order


@final
@dataclass(frozen=True, slots=True)
class LedgerRead:
    """The ledger of a version, as it was read.

    Attributes:
        records: that belong to the version and can be read; None where it cannot be known which ones there are.
        intact: paths of files whose bytes are those that the manifest lists.
        problems: what is wrong with others.
    """

    records: list[UnitRecord] | None
    intact: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def read_ledger(
    store: ReadStore, layout: Layout, manifest: Manifest, *, threads: int, stop: Stop
) -> LedgerRead:
    """Read every ledger record that belongs to the version and can be read.

    Where the manifest lists ledger records, it lists all of them: one that is not listed is no record of this version,
    and one that is not as it is listed is left to whoever compares bytes, and says so.
    """
    listed = sorted(path for path in manifest.other_files if path.startswith(f"{LEDGER}/"))
    if not listed and not store.can_list:
        return LedgerRead(None)
    try:
        paths = listed or [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
    except StoreError as error:
        problem = Problem(LEDGER, "unreadable", "a folder that can be listed", str(error))
        return LedgerRead(None, problems=(problem,))

    def read(path: str) -> UnitRecord | Problem | None:
        unit = ledger_unit(path)
        try:
            return None if unit is None else read_record(store, layout, unit, manifest)
        except (IntegrityError, StoreError) as error:
            return None if listed else Problem(path, "damaged", "a sealed ledger record", str(error))

    found = dict(zip(paths, in_order(read, paths, threads, stop=stop), strict=True))
    records = {path: record for path, record in found.items() if isinstance(record, UnitRecord)}
    problems = tuple(problem for problem in found.values() if isinstance(problem, Problem))
    return LedgerRead(list(records.values()), frozenset(records if listed else ()), problems)


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
        record.account.check(manifest.width, where=path)
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
        rows = Account.total(record.account for record in records).of_rows
        found += _differ("rows of the mixture", rows, manifest.mixture.rows)
    return found


def _differ(problem: str, expected: Account, got: Account | None) -> list[Problem]:
    # A mixed unit may name a source that has no weight in it, and is none of the version.
    if Account.total([expected]) == Account.total([] if got is None else [got]):
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
            expected = _split(parent, source.split)
            got = {key: getattr(source, key) for key in expected}
            if expected != got:
                found.append(Problem(MANIFEST, f"mixture source {name}", f"{expected}", f"{got}"))
    return found


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
    return [Problem(path, "tag", f"version v{tag.version}, which it names", "no such version")]
