"""The manifest of a build, of its plan and the records of all its units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenlake.etl.mixture import MixtureSpec
from tokenlake.etl.plan.parents import lineage
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.produced_by import produced_by
from tokenlake.sources.inputs import InputFile
from tokenlake.store.account import Account
from tokenlake.store.entries import FileEntry
from tokenlake.store.inputs import InputFileEntry
from tokenlake.store.ledger import UnitRecord
from tokenlake.store.manifest import Manifest
from tokenlake.store.mixture import MixtureOrder, MixtureRecord, drawn_ids, share


def draft_manifest(
    plan: Plan, version: int, records: Sequence[UnitRecord], other_files: Mapping[str, FileEntry]
) -> Manifest:
    """Return the manifest of all units.

    Args:
        records: of all units, in plan order.
        other_files: of the version, beside the shards.

    Raises:
        ConfigError: a list of documents to leave out left nothing out.
    """
    names = plan.spec.lengths if plan.spec is not None else [source.name for source in plan.build.sources]
    accounts = _accounts_of(records, names)
    plan.missed(accounts)
    return Manifest(
        kind=plan.kind,
        dataset=plan.dataset,
        version=version,
        fingerprint=plan.fingerprint,
        seq_length=plan.seq_length,
        config=dict(plan.config),
        tokenizer=_tokenizers(plan),
        files=tuple(part for record in records for part in record.parts),
        other_files=dict(other_files),
        inputs=tuple(_input_entry(file) for file in plan.inputs),
        accounts=accounts,
        parents=lineage(plan.parents),
        mixture=_mixture_record(plan, accounts, records),
        produced_by=produced_by(),
    )


def _tokenizers(plan: Plan) -> dict[str, Any]:
    return {
        name: {
            **planned.facts,
            "folder": plan.tokenizer_folders[name],
            "eos_id": planned.eos_id,
            "pad_id": planned.pad_id,
            "append_eos": planned.append_eos,
        }
        for name, planned in plan.tokenizers.items()
    }


def _input_entry(file: InputFile | InputFileEntry) -> InputFileEntry:
    if isinstance(file, InputFileEntry):
        return file
    return InputFileEntry(
        source=file.source, path=file.path, size=file.size, token=file.token, file_id=file.file_id
    )


def _accounts_of(records: Iterable[UnitRecord], names: Iterable[str]) -> dict[str, Account]:
    """Return source -> account: those of `names` first, also where nothing came of them, then others of which did.

    A unit that was taken over from another version may name a source that had no weight there, and is not here.
    """
    found = {name: list[Account]() for name in names}
    for record in records:
        for source, account in record.by_source().items():
            if source in found or account.rows_read:
                found.setdefault(source, []).append(account)
    return {source: Account.total(accounts) for source, accounts in found.items()}


def _mixture_record(
    plan: Plan, accounts: Mapping[str, Account], records: Iterable[UnitRecord]
) -> MixtureRecord | None:
    """Return the record of a plan's mixture; None where nothing is mixed.

    What was drawn is what was counted, what should have been is in the plan: the manifest's check compares the two.

    Args:
        accounts: of the sources, summed over all units.
        records: of all units.
    """
    if plan.spec is None or plan.forecast is None or plan.build.mixture is None or plan.out is None:
        return None
    packed_here = plan.level == "documents" and plan.out.pack is not None
    ids = {name: drawn_ids(account, packed_here=packed_here) for name, account in accounts.items()}
    rows = {name: account.rows_read for name, account in accounts.items()}
    sources = {
        name: replace(
            planned,
            drawn_rows=rows[name],
            drawn_tokens=ids[name],
            achieved_rows=share(rows[name], sum(rows.values())),
            achieved_tokens=share(ids[name], sum(ids.values())),
        )
        for name, planned in plan.forecast.sources.items()
    }
    whole = Account.total(record.account for record in records)
    return MixtureRecord(
        level=plan.level,
        weights_by=plan.build.mixture.weights_by,
        order=_order(plan.spec),
        rows=Account(sequences=whole.sequences, slots=whole.slots, pad=whole.pad),
        sources=sources,
    )


def _order(spec: MixtureSpec) -> MixtureOrder:
    return MixtureOrder(
        lanes=spec.lanes,
        batch_size=spec.batch_size,
        block_size=spec.block_size,
        step_rows=spec.step_rows,
        seed=spec.seed,
        stop=spec.stop,
        rows=spec.rows or 0,
        points=spec.points,
        interpolation=spec.interpolation,
        version=spec.order,
    )
