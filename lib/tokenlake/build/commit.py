"""The one commit point: everything else is in place, then the manifest appears."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import yaml

from tokenlake.account import Account
from tokenlake.build.planning.plan import Plan
from tokenlake.build.produced import produced_by
from tokenlake.catalog import Catalog
from tokenlake.config.identity import identity, source_identity
from tokenlake.errors import StoreError
from tokenlake.fingerprint import sha256_file
from tokenlake.manifest import FileEntry, InputFileEntry, Manifest, UnitRecord
from tokenlake.report.card import render_card
from tokenlake.storage.base import Store
from tokenlake.storage.layout import DATA, LEDGER, QUARANTINE, TOKENIZER, Layout

_CONFIG_HEADER: Final = """\
# What this version was built with, every default worked out. Nothing of the machine is here, so that equal
# builds are equal bytes: the inputs are in manifest.json, the tokenizer is in tokenizer/, the configuration
# as it was written is in runs/.
"""


def config_yaml(plan: Plan) -> str:
    """``config.yaml``: the resolved configuration without paths of the machine."""
    return _CONFIG_HEADER + yaml.safe_dump(config_identity(plan), sort_keys=True, allow_unicode=True)


def config_identity(plan: Plan) -> dict[str, Any]:
    """What identity sees of the configuration."""
    return {
        "build": identity(plan.build),
        "sources": {source.name: source_identity(source) for source in plan.build.sources},
    }


def publish_preamble(store: Store, plan: Plan, layout: Layout) -> None:
    """Publish what workers and readers need besides the data: tokenizers and the resolved configuration."""
    for folder, files in tokenizer_folders(plan).values():
        for name, data in files.items():
            key = layout.tokenizer(f"{folder}/{name}" if folder else name)
            # Left by an interrupted run of another release, if unequal: the manifest decides what counts.
            store.put_new(key, data, replace_orphan=True)
    store.put_new(layout.config, config_yaml(plan).encode(), replace_orphan=True)


def tokenizer_folders(plan: Plan) -> dict[str, tuple[str, dict[str, bytes]]]:
    """Source name to (folder below ``tokenizer/``, files); the folder is "" when all sources share one.

    A single tokenizer lies directly in ``tokenizer/``, where every other tool looks for it.
    """
    digests = {name: tokenizer_digest(planned.facts) for name, planned in plan.tokenizers.items()}
    alone = len(set(digests.values())) == 1
    return {
        name: ("" if alone else digests[name][:16], dict(planned.files.files))
        for name, planned in plan.tokenizers.items()
    }


def tokenizer_digest(facts: dict[str, Any]) -> str:
    """One hash over the hashes of a tokenizer's files."""
    return hashlib.sha256(repr(sorted(facts["files"].items())).encode()).hexdigest()


def commit_version(store: Store, plan: Plan, layout: Layout, records: Sequence[UnitRecord]) -> Manifest:
    """Check the account and publish card and manifest.

    Raises:
        AccountError: the account does not close; nothing is visible.
        StoreError: the claim is gone.
        VersionConflictError: another writer committed something else.
    """
    claim = Catalog(store).read_claim(layout.dataset, layout.version)
    if claim is None or claim.fingerprint != plan.fingerprint:
        raise StoreError(
            f"{layout.claim} is gone or another build's: the version was swept while it was built; run the build again"
        )
    _remove_strays(store, layout, records)
    # Again: a worker whose parent was killed outlives it by a moment, perhaps past the sweep when we began.
    store.sweep_temp(layout.prefix)
    draft = _manifest(store, plan, layout, records)
    draft.check(layout.manifest)
    store.put_new(layout.card, render_card(draft).encode(), replace_orphan=True)
    manifest = _manifest(store, plan, layout, records)
    store.put_new(layout.manifest, manifest.to_bytes())
    return manifest


def _remove_strays(store: Store, layout: Layout, records: Sequence[UnitRecord]) -> None:
    """Delete what no record names: left where a unit was built again and wrote fewer files."""
    named = {layout.key(part.path) for record in records for part in record.parts}
    named |= {layout.key(record.quarantine.path) for record in records if record.quarantine is not None}
    for folder in (DATA, QUARANTINE):
        for info in list(store.list(layout.key(folder))):
            if info.key not in named:
                store.delete(info.key)


def _manifest(store: Store, plan: Plan, layout: Layout, records: Sequence[UnitRecord]) -> Manifest:
    packed = plan.build.pack
    return Manifest(
        kind=plan.build.kind,
        dataset=layout.dataset,
        version=layout.version,
        fingerprint=plan.fingerprint,
        seq_length=packed.seq_length if packed else None,
        config=config_identity(plan),
        tokenizer=_tokenizers(plan),
        files=tuple(part for record in records for part in record.parts),
        other_files=_other_files(store, layout),
        inputs=_inputs(plan),
        accounts=_accounts(plan, records),
        produced_by=produced_by(),
    )


def _tokenizers(plan: Plan) -> dict[str, Any]:
    folders = tokenizer_folders(plan)
    return {
        name: {
            **planned.facts,
            "folder": folders[name][0],
            "eos_id": planned.eos_id,
            "pad_id": planned.pad_id,
            "append_eos": planned.append_eos,
        }
        for name, planned in plan.tokenizers.items()
    }


def _inputs(plan: Plan) -> tuple[InputFileEntry, ...]:
    return tuple(
        InputFileEntry(
            source=file.source, path=file.path, size=file.size, token=file.token, file_id=file.file_id
        )
        for file in plan.inputs
    )


def _accounts(plan: Plan, records: Sequence[UnitRecord]) -> dict[str, Account]:
    return {
        source.name: Account.total(record.account for record in records if record.source == source.name)
        for source in plan.build.sources
    }


def _other_files(store: Store, layout: Layout) -> dict[str, FileEntry]:
    """Size and hash of every file that is not data: they are verified like the shards."""
    found: dict[str, FileEntry] = {}
    for folder in (TOKENIZER, LEDGER, QUARANTINE):
        for info in store.list(layout.key(folder)):
            found[layout.path(info.key)] = _entry(store, info.key)
    for key in (layout.config, layout.card):
        if store.exists(key):
            found[layout.path(key)] = _entry(store, key)
    return dict(sorted(found.items()))


def _entry(store: Store, key: str) -> FileEntry:
    path = store.local_path(key)
    return FileEntry(bytes=path.stat().st_size, sha256=sha256_file(path))
