"""The ledger against the manifest: same parts, same account, nothing more and nothing less."""

from __future__ import annotations

from collections.abc import Collection

from tokenlake.account import Account
from tokenlake.catalog import read_record
from tokenlake.errors import AccountError, IntegrityError, StoreError
from tokenlake.manifest import Manifest, UnitRecord
from tokenlake.storage.base import ReadStore
from tokenlake.storage.layout import LEDGER, MANIFEST, Layout, ledger_path, ledger_unit
from tokenlake.verify.report import Problem


def read_ledger(
    store: ReadStore, layout: Layout, manifest: Manifest
) -> tuple[list[UnitRecord] | None, list[Problem]]:
    """Read every ledger record that belongs to the version and can be read.

    Where the manifest lists ledger records, it lists all of them: damage to one is reported with its bytes, and one
    that is not listed is no record of this version.

    Returns:
        The records, and what is wrong. None: which ones there are cannot be known.
    """
    listed = sorted(path for path in manifest.other_files if path.startswith(f"{LEDGER}/"))
    if not listed and not store.can_list:
        return None, []
    try:
        paths = listed or [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
    except StoreError as error:
        return None, [Problem(LEDGER, "unreadable", "a folder that can be listed", str(error))]
    records: list[UnitRecord] = []
    problems: list[Problem] = []
    for path in paths:
        unit = ledger_unit(path)
        try:
            if unit is not None:
                records.append(read_record(store, layout, unit))
        except (IntegrityError, StoreError) as error:
            if path not in listed:
                problems.append(Problem(path, "damaged", "a sealed ledger record", str(error)))
    return records, problems


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
    for source in sorted(manifest.accounts.keys() | {name for each in shares for name in each}):
        expected = Account.total(each[source] for each in shares if source in each)
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
