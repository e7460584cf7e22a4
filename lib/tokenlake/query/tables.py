"""What a query can name: the versions of a store, and tables about it: plain facts from manifests, as Arrow.

Only what a query mentions is verified and made: a store may hold terabytes, a question is about little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, final

import msgspec
import pyarrow as pa

from tokenlake.store.account import Account
from tokenlake.store.catalog import Catalog
from tokenlake.store.ledger import MIXED, UnitRecord
from tokenlake.store.manifest import Manifest

Rows = Iterator[dict[str, Any]]

_COUNTS: Final = Account().to_json()
_BY_REASON: Final = frozenset(name for name, value in _COUNTS.items() if isinstance(value, dict))
_TYPES: Final = {
    "": pa.int64(),
    "text": pa.string(),
    "yes": pa.bool_(),
    "share": pa.float64(),
    "reasons": pa.map_(pa.string(), pa.int64()),
}


def _schema(columns: str) -> pa.Schema:
    """Return the schema of ``name:type`` words, behind the dataset and the version; plain names are of integers."""
    pairs = (word.partition(":") for word in ("dataset:text version " + columns).split())
    return pa.schema([(name, _TYPES[kind]) for name, _, kind in pairs])


_TOTALS: Final = "rows tokens documents files bytes"
SCHEMAS: Final = {
    "datasets": _schema(f"committed:yes kind:text seq_length {_TOTALS} fingerprint:text"),
    "splits": _schema(f"split:text {_TOTALS}"),
    "shards": _schema("split:text path:text unit part rows tokens documents bytes row_groups sha256:text"),
    "inputs": _schema("source:text path:text size token:text file"),
    "accounts": _schema(
        "source:text unit engine:text "
        + " ".join(f"{name}:reasons" if name in _BY_REASON else name for name in _COUNTS)
    ),
    "mixture": _schema(
        "source:text parent:text parent_version split:text rows tokens drawn_rows drawn_tokens full_epochs "
        "partial_rows partial_tokens unread_rows asked:share asked_tokens:share achieved_rows:share "
        "achieved_tokens:share level:text"
    ),
}
"""Columns of each table."""


def build(catalog: Catalog, name: str) -> pa.Table:
    """Return one of :data:`SCHEMAS`' tables, over every version of the store."""
    rows = _datasets(catalog) if name == "datasets" else _of_manifests(catalog, _ROWS[name])
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[name])


def _datasets(catalog: Catalog) -> Rows:
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            row: dict[str, Any] = {"dataset": dataset, "version": info.version, "committed": info.committed}
            if info.committed:
                manifest = catalog.manifest(dataset, info.version)
                facts = {name: getattr(manifest, name) for name in ("kind", "seq_length", "fingerprint")}
                row |= facts | asdict(manifest.totals)
            yield row


def _of_manifests(catalog: Catalog, rows_of: Callable[[Catalog, Manifest], Rows]) -> Rows:
    for layout in catalog.committed_versions():
        own = {"dataset": layout.dataset, "version": layout.version}
        for row in rows_of(catalog, catalog.manifest(layout.dataset, layout.version)):
            yield own | row


def _splits(_: Catalog, manifest: Manifest) -> Rows:
    for split, totals in manifest.splits.items():
        yield {"split": split} | asdict(totals)


def _shards(_: Catalog, manifest: Manifest) -> Rows:
    for shard in manifest.files:
        yield msgspec.to_builtins(shard) | {"row_groups": len(shard.row_groups)}


def _inputs(_: Catalog, manifest: Manifest) -> Rows:
    for entry in manifest.inputs:
        yield asdict(entry) | {"file": entry.file_id}


def _accounts(catalog: Catalog, manifest: Manifest) -> Rows:
    for unit, record in catalog.ledger(manifest.dataset, manifest.version, manifest=manifest).items():
        for source, account in _by_source(record).items():
            counts = account.to_json()
            counts |= {name: list(counts[name].items()) for name in _BY_REASON}
            yield {"source": source, "unit": unit, "engine": record.engine} | counts


def _by_source(record: UnitRecord) -> dict[str, Account]:
    """The accounts of a unit, which add up to its whole: those of its sources, and of a mixed unit that of its rows."""
    if record.source != MIXED:
        return record.by_source()
    return record.by_source() | {MIXED: record.account.of_rows}


def _mixture(_: Catalog, manifest: Manifest) -> Rows:
    if manifest.mixture is None:
        return
    for name, source in manifest.mixture.sources.items():
        facts = source.to_json()
        parent = {"parent": facts.pop("dataset"), "parent_version": facts.pop("version")}
        yield {"source": name, "level": manifest.mixture.level} | parent | facts


_ROWS: Final = {
    "splits": _splits,
    "shards": _shards,
    "inputs": _inputs,
    "accounts": _accounts,
    "mixture": _mixture,
}


Kind = Literal["rows", "documents", "quarantine", "table"]

TABLES: Final = {
    "datasets": "every version, committed or in progress",
    "splits": "rows, tokens and documents by split",
    "shards": "the Parquet files with their hashes",
    "inputs": "the input files with their version tokens",
    "accounts": "the account of each unit, by source; rows that several sources share are under source *",
    "mixture": "shares of a mixture, as asked for and as achieved, one row for each source",
    "documents": "provenance of every piece of a document, all datasets",
}

_PARTS: Final[dict[Kind, str]] = {"documents": "provenance of", "quarantine": "bad records of"}


@final
@dataclass(frozen=True, slots=True)
class Relation:
    """A name that a query can use.

    Attributes:
        name: as written in SQL, to be quoted when it is no plain identifier.
        kind: ``rows`` of a version, its ``documents`` or ``quarantine``, or a ``table`` about the store.
        dataset, version: of which version; empty and 0 for tables about the store.
        about: one line for people.
    """

    name: str
    kind: Kind
    dataset: str = ""
    version: int = 0
    about: str = ""


def relations(catalog: Catalog) -> dict[str, Relation]:
    """Everything that can be asked, by name; tables about the store win over datasets of the same name."""
    found: dict[str, Relation] = {}
    for dataset in catalog.datasets():
        committed = [info.version for info in catalog.versions(dataset) if info.committed]
        for name, version in [(f"{dataset}@v{v}", v) for v in committed] + [
            (dataset, v) for v in committed[-1:]
        ]:
            found[name] = Relation(name, "rows", dataset, version, f"rows of {dataset} v{version}")
            for kind, about in _PARTS.items():
                full = f"{name}/{kind}"
                found[full] = Relation(full, kind, dataset, version, f"{about} {dataset} v{version}")
    for name, about in TABLES.items():
        found[name] = Relation(name, "table", about=about)
    return found


def mentioned(words: Iterable[str], known: dict[str, Relation]) -> list[Relation]:
    """The relations among ``words``, in the order of ``known``."""
    wanted = {word.lower() for word in words}
    return [relation for name, relation in known.items() if name in wanted]
