"""Manifest of a build, from its plan and the records of its units."""

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
    # A mixture has the sources of its parents.
    names = [source.name for source in plan.build.sources]
    if plan.spec is not None:
        names = list(plan.spec.lengths)
    # The check of exclusions raises an error before anything is visible.
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
        inputs=tuple(_input_entry(file) for file in plan.inputs),
        accounts=accounts,
        parents=lineage(plan.parents),
        mixture=_mixture_record(plan, accounts, records),
        produced_by=produced_by(),
    )


def _tokenizer_facts(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the manifest's facts about the tokenizer of each source."""
    facts: dict[str, dict[str, Any]] = {}
    for source_name, tokenizer in plan.tokenizers.items():
        facts[source_name] = {
            **tokenizer.facts,
            "folder": plan.tokenizer_folders[source_name],
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
            "append_eos": tokenizer.append_eos,
        }
    return facts


def _input_entry(file: InputFile | InputFileEntry) -> InputFileEntry:
    """Return the manifest's entry of an input file."""
    # A build of stored versions has the entries of its parents.
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
    return {source: Account.total(parts) for source, parts in accounts.items()}


def _mixture_record(
    plan: Plan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture, None if nothing is mixed.

    The drawn rows and tokens are counted ones; the expected ones are in the plan. The
    manifest's check compares them.

    Args:
        plan: Plan of the build.
        accounts: Accounts of the sources, summed over all units.
        records: Records of all units.
    """
    if plan.spec is None or plan.forecast is None:
        return None
    if plan.build.mixture is None or plan.out is None:
        return None

    # 1. The rows and tokens that were drawn of each source.
    is_packed_here = plan.level == "documents" and plan.out.pack is not None
    drawn_tokens: dict[str, int] = {}
    drawn_rows: dict[str, int] = {}
    for source_name, account in accounts.items():
        drawn_tokens[source_name] = drawn_ids(account, packed_here=is_packed_here)
        drawn_rows[source_name] = account.rows_read
    all_tokens = sum(drawn_tokens.values())
    all_rows = sum(drawn_rows.values())

    # 2. Their shares, beside the expected ones of the plan.
    sources: dict[str, MixedSource] = {}
    for source_name, forecast in plan.forecast.sources.items():
        sources[source_name] = replace(
            forecast,
            drawn_rows=drawn_rows[source_name],
            drawn_tokens=drawn_tokens[source_name],
            achieved_rows=share(drawn_rows[source_name], all_rows),
            achieved_tokens=share(drawn_tokens[source_name], all_tokens),
        )
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=plan.spec.order,
        rows=Account.total(record.account for record in records).of_rows,
        sources=sources,
    )
