"""The tables about a store: plain facts from manifests and ledgers, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from tokenlake.account import Account
from tokenlake.catalog import Catalog
from tokenlake.manifest import Manifest

Rows = Iterator[dict[str, Any]]

_TEXT: Final = pa.string()
_INT: Final = pa.int64()
_REASONS: Final = pa.map_(pa.string(), pa.int64())
_ID: Final = [("dataset", _TEXT), ("version", _INT)]
_TOTALS: Final = [("rows", _INT), ("tokens", _INT), ("documents", _INT), ("files", _INT), ("bytes", _INT)]
_COUNTS: Final = tuple(Account().to_json())
_BY_REASON: Final = frozenset(name for name, value in Account().to_json().items() if isinstance(value, dict))

SCHEMAS: Final = {
    "datasets": pa.schema(
        [
            *_ID,
            ("committed", pa.bool_()),
            ("kind", _TEXT),
            ("seq_length", _INT),
            *_TOTALS,
            ("fingerprint", _TEXT),
        ]
    ),
    "splits": pa.schema([*_ID, ("split", _TEXT), *_TOTALS]),
    "shards": pa.schema(
        [
            *(*_ID, ("split", _TEXT), ("path", _TEXT), ("unit", _INT), ("part", _INT)),
            *(("rows", _INT), ("tokens", _INT), ("documents", _INT), ("bytes", _INT), ("row_groups", _INT)),
            ("sha256", _TEXT),
        ]
    ),
    "inputs": pa.schema(
        [*_ID, ("source", _TEXT), ("path", _TEXT), ("size", _INT), ("token", _TEXT), ("file", _INT)]
    ),
    "accounts": pa.schema(
        [
            *(*_ID, ("source", _TEXT), ("unit", _INT), ("engine", _TEXT)),
            *((name, _REASONS if name in _BY_REASON else _INT) for name in _COUNTS),
        ]
    ),
}
"""Columns of each table."""


def build(catalog: Catalog, name: str) -> pa.Table:
    """Return one of :data:`SCHEMAS`' tables, over every version of the store."""
    return pa.Table.from_pylist(list(_ROWS[name](catalog)), schema=SCHEMAS[name])


def manifests(catalog: Catalog) -> Iterator[Manifest]:
    """Yield the manifest of every committed version."""
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            if info.committed:
                yield catalog.manifest(dataset, info.version)


def _datasets(catalog: Catalog) -> Rows:
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            row: dict[str, Any] = {"dataset": dataset, "version": info.version, "committed": info.committed}
            if info.committed:
                manifest = catalog.manifest(dataset, info.version)
                facts = {
                    "kind": manifest.kind,
                    "seq_length": manifest.seq_length,
                    "fingerprint": manifest.fingerprint,
                }
                row |= facts | manifest.totals.to_json()
            yield row


def _splits(catalog: Catalog) -> Rows:
    for manifest in manifests(catalog):
        for split, totals in manifest.splits.items():
            yield _id(manifest) | {"split": split} | totals.to_json()


def _shards(catalog: Catalog) -> Rows:
    for manifest in manifests(catalog):
        for shard in manifest.files:
            yield _id(manifest) | shard.to_json() | {"row_groups": len(shard.row_groups)}


def _inputs(catalog: Catalog) -> Rows:
    for manifest in manifests(catalog):
        for entry in manifest.inputs:
            yield _id(manifest) | entry.to_json() | {"file": entry.file_id}


def _accounts(catalog: Catalog) -> Rows:
    for manifest in manifests(catalog):
        for unit, record in catalog.ledger(manifest.dataset, manifest.version).items():
            counts = record.account.to_json()
            counts |= {name: list(counts[name].items()) for name in _BY_REASON}
            yield _id(manifest) | {"source": record.source, "unit": unit, "engine": record.engine} | counts


def _id(manifest: Manifest) -> dict[str, Any]:
    return {"dataset": manifest.dataset, "version": manifest.version}


_ROWS: Final[dict[str, Callable[[Catalog], Rows]]] = {
    "datasets": _datasets,
    "splits": _splits,
    "shards": _shards,
    "inputs": _inputs,
    "accounts": _accounts,
}
