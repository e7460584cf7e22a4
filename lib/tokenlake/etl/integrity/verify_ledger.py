"""Verification of the ledger: the records of a version's units, and their sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from tokenlake.base.threads import Stop, in_order
from tokenlake.errors import AccountError, IntegrityError, StoreError
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import read_record
from tokenlake.runtime.store.file_check import Problem
from tokenlake.runtime.store.layout import (
    LEDGER,
    MANIFEST,
    Layout,
    ledger_path,
    ledger_unit,
)
from tokenlake.runtime.store.ledger import InputFileEntry, ShardEntry, UnitRecord
from tokenlake.runtime.store.manifest import Manifest


@final
@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of a version, as far as it can be read.

    Attributes:
        records: Records that can be read; None if it cannot be known which ones exist.
        intact_paths: Paths of the records whose bytes are those that the manifest
            lists.
        problems: Problems of the other records.
    """

    records: list[UnitRecord] | None
    intact_paths: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def read_ledger(
    store: ReadStore, layout: Layout, manifest: Manifest, *, threads: int, stop: Stop
) -> Ledger:
    """Read every ledger record that belongs to the version.

    If the manifest lists ledger records, it lists all of them: a record that is not
    listed is none of this version. Records that are not as they are listed are reported
    by the comparison of bytes, and not here.
    """
    # Paths of records: those of the manifest, or, for versions of older releases, those
    # that the store has.
    listed_paths: list[str] = []
    for path in sorted(manifest.other_files):
        if path.startswith(f"{LEDGER}/"):
            listed_paths.append(path)
    paths = listed_paths
    if not listed_paths:
        if not store.can_list:
            return Ledger(records=None)
        try:
            paths = [layout.path(info.key) for info in store.list(layout.key(LEDGER))]
        except StoreError as error:
            expected = "a folder that can be listed"
            problem = Problem(LEDGER, "unreadable", expected, str(error))
            return Ledger(records=None, problems=(problem,))

    def read(path: str) -> UnitRecord | Problem | None:
        unit = ledger_unit(path)
        if unit is None:
            return None
        try:
            return read_record(store, layout, unit, manifest)
        # A listed record is compared by its bytes, which reports the damage.
        except (IntegrityError, StoreError) as error:
            if listed_paths:
                return None
            return Problem(path, "damaged", "a sealed ledger record", str(error))

    records: list[UnitRecord] = []
    intact_paths: set[str] = set()
    problems: list[Problem] = []
    results = in_order(read, paths, threads, stop=stop)
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, Problem):
            problems.append(result)
        elif result is not None:
            records.append(result)
            if listed_paths:
                intact_paths.add(path)
    return Ledger(records, frozenset(intact_paths), tuple(problems))


def ledger_problems(
    manifest: Manifest, records: Sequence[UnitRecord], reported_paths: Collection[str]
) -> list[Problem]:
    """Compare ledger records with the manifest.

    Args:
        manifest: Manifest of the version.
        records: Records that could be read.
        reported_paths: Paths with problems that are reported already. Consequences of
            their absence are not repeated.
    """
    # 1. Each record by itself.
    problems: list[Problem] = []
    shards = {shard.path: shard for shard in manifest.files}
    inputs = frozenset(manifest.inputs)
    recorded_units: set[int] = set()
    recorded_shards: set[str] = set()
    for record in records:
        problems += _record_problems(record, shards, inputs, manifest.width)
        recorded_units.add(record.unit)
        recorded_shards.update(part.path for part in record.parts)

    # 2. Units without a record.
    has_missing_record = False
    unrecorded_units = {shard.unit for shard in manifest.files} - recorded_units
    for unit in sorted(unrecorded_units):
        path = ledger_path(unit)
        if path not in reported_paths:
            expected = "a ledger record of the unit"
            problems.append(Problem(path, "missing", expected, "no file"))
            has_missing_record = True
    has_reported_record = any(path.startswith(f"{LEDGER}/") for path in reported_paths)
    if has_missing_record or has_reported_record:
        return problems

    # 3. The ledger is complete: all shards and all sums must agree.
    for shard in manifest.files:
        if shard.path not in recorded_shards:
            expected = "named by its unit's ledger record"
            problems.append(Problem(shard.path, "parts", expected, "not named"))
    problems += _account_problems(manifest, records)
    return problems


def _record_problems(
    record: UnitRecord,
    shards: Mapping[str, ShardEntry],
    inputs: Collection[InputFileEntry],
    width: int | None,
) -> list[Problem]:
    """Compare one record with the manifest, and check that its accounts balance.

    Args:
        record: Record of a unit.
        shards: Path -> entry of every shard of the manifest.
        inputs: Input files of the manifest.
        width: Tokens of a packed row.
    """
    path = ledger_path(record.unit)
    problems: list[Problem] = []
    # A part of a record is the entry of the manifest, field by field.
    for part in record.parts:
        listed = shards.get(part.path)
        if listed != part:
            problems.append(Problem(path, "parts", f"{listed}", f"{part}"))
    if any(entry.file not in inputs for entry in record.inputs):
        expected = "files of the manifest's inputs"
        problems.append(Problem(path, "inputs", expected, "others"))
    try:
        record.account.check(width, where=path)
        for source, share in record.shares.items():
            share.check(where=f"{path}: share of {source!r}")
    except AccountError as error:
        problems.append(Problem(path, "account", "an audit that balances", str(error)))
    return problems


def _account_problems(
    manifest: Manifest, records: Sequence[UnitRecord]
) -> list[Problem]:
    """Compare the accounts of the manifest with the sums of the ledger's."""
    problems: list[Problem] = []
    # Accounts of a source are summed over all units, also of units that do not name it:
    # a source without rows has an empty account.
    accounts_by_source: dict[str, list[Account]] = {}
    for source in manifest.accounts:
        accounts_by_source[source] = []
    for record in records:
        for source, account in record.by_source().items():
            accounts_by_source.setdefault(source, []).append(account)
    for source in sorted(accounts_by_source):
        expected = Account.total(accounts_by_source[source])
        problems += _differing_account(
            f"account of {source}", expected, manifest.accounts.get(source)
        )
    if manifest.mixture is not None:
        # Rows of mixed units belong to no single source.
        rows = Account.total(record.account for record in records).of_rows
        problems += _differing_account(
            "rows of the mixture", rows, manifest.mixture.rows
        )
    return problems


def _differing_account(
    problem: str, expected: Account, got: Account | None
) -> list[Problem]:
    """Return a problem if an account of the manifest is not the ledger's sum."""
    # A mixed unit may name a source that has no weight in it, and that is none of the
    # version.
    got_accounts: list[Account] = []
    if got is not None:
        got_accounts.append(got)
    if Account.total([expected]) == Account.total(got_accounts):
        return []
    return [Problem(MANIFEST, problem, f"the ledger's sum {expected}", f"{got}")]
