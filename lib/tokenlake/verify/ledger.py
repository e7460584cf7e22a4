"""The ledger against the manifest: same parts, same account, nothing more and nothing less."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from tokenlake.account import Account
from tokenlake.catalog import read_record
from tokenlake.errors import AccountError, IntegrityError, StoreError
from tokenlake.manifest import Manifest, UnitRecord
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import LEDGER, MANIFEST, Layout, ledger_path, ledger_unit
from tokenlake.verify.crew import Stop, each
from tokenlake.verify.report import Problem


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
