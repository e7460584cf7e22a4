"""The manifest of a build, from its plan and the records of its units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenlake.etl.job.versions import produced_by
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.draws import drawn_ids, share
from tokenlake.runtime.store.ledger import (
    FileEntry,
    InputFileEntry,
    ShardEntry,
    UnitRecord,
)
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import MixedSource, MixtureRecord


def draft_manifest(
    plan: Plan,
    version: int,
    records: Sequence[UnitRecord],
    other_files: Mapping[str, FileEntry],
) -> Manifest:
    """Return the manifest of all units.

    Args:
        plan: Plan of the build.
        version: Number of the version.
        records: Records of all units, in plan order.
        other_files: Files of the version beside the shards, by path.

    Raises:
        ConfigError: A list of documents to leave out left nothing out.
    """
    names = [source.name for source in plan.build.sources]
    if plan.spec is not None:
        names = list(plan.spec.lengths)
    accounts = _accounts_of(records, names)
    plan.missed(accounts)
    shards: list[ShardEntry] = []
    for record in records:
        shards.extend(record.parts)
    return Manifest(
        kind=plan.kind,
        dataset=plan.dataset,
        version=version,
        fingerprint=plan.fingerprint,
        seq_length=plan.width or None,
        config=dict(plan.config),
        tokenizer=_tokenizer_facts(plan),
        files=tuple(shards),
        other_files=dict(other_files),
        inputs=tuple(map(_input_entry, plan.inputs)),
        accounts=accounts,
        parents=lineage(plan.parents),
        mixture=_mixture_record(plan, accounts, records),
        produced_by=produced_by(),
    )


def _tokenizer_facts(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the manifest's facts about the tokenizer of each source."""
    facts: dict[str, dict[str, Any]] = {}
    for name, tokenizer in plan.tokenizers.items():
        facts[name] = {
            **tokenizer.facts,
            "folder": plan.tokenizer_folders[name],
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
            "append_eos": tokenizer.append_eos,
        }
    return facts


def _input_entry(file: InputFile | InputFileEntry) -> InputFileEntry:
    if isinstance(file, InputFileEntry):
        return file
    return InputFileEntry(
        source=file.source,
        path=file.path,
        size=file.size,
        token=file.token,
        file_id=file.file_id,
    )


def _accounts_of(
    records: Iterable[UnitRecord], names: Iterable[str]
) -> dict[str, Account]:
    """Return the account of each source.

    The named sources come first, even those that nothing was read of, then others that
    something was read of. A unit that was taken over from another version may name a
    source that had no weight there, and does not exist here.
    """
    accounts: dict[str, list[Account]] = {name: [] for name in names}
    for record in records:
        for source, account in record.by_source().items():
            if source in accounts or account.rows_read:
                accounts.setdefault(source, []).append(account)
    return {
        source: Account.total(accounts_of_source)
        for source, accounts_of_source in accounts.items()
    }


def _mixture_record(
    plan: Plan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture; None where nothing is mixed.

    The drawn rows and tokens are counted ones; the expected ones are in the plan. The
    manifest's check compares them.

    Args:
        plan: Plan of the build.
        accounts: Accounts of the sources, summed over all units.
        records: Records of all units.
    """
    if (
        plan.spec is None
        or plan.forecast is None
        or plan.build.mixture is None
        or plan.out is None
    ):
        return None
    packed_here = plan.level == "documents" and plan.out.pack is not None
    ids: dict[str, int] = {}
    rows: dict[str, int] = {}
    for name, account in accounts.items():
        ids[name] = drawn_ids(account, packed_here=packed_here)
        rows[name] = account.rows_read
    all_ids = sum(ids.values())
    all_rows = sum(rows.values())
    sources: dict[str, MixedSource] = {}
    for name, forecast in plan.forecast.sources.items():
        sources[name] = replace(
            forecast,
            drawn_rows=rows[name],
            drawn_tokens=ids[name],
            achieved_rows=share(rows[name], all_rows),
            achieved_tokens=share(ids[name], all_ids),
        )
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=plan.spec.order,
        rows=Account.total(record.account for record in records).of_rows,
        sources=sources,
    )
