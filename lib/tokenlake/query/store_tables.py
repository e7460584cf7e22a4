"""Tables about a store that a query can name, such as its versions and audits.

The rows are plain facts of manifests and ledgers, as Arrow tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import msgspec
import pyarrow as pa

from tokenlake.errors import IntegrityError
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.catalog import Catalog, OnUnreadable
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import MIXED
from tokenlake.runtime.store.manifest import Manifest

# Types of columns.
_TEXT: Final = pa.string()
_COUNT: Final = pa.int64()
_SHARE: Final = pa.float64()
_COUNTS_BY_REASON: Final = pa.map_(pa.string(), pa.int64())

# The fields of an audit are those of an empty one. Fields with counts by reason are
# mappings.
_ACCOUNT_FIELDS: Final = Account().to_json()
_FIELDS_BY_REASON: Final = frozenset(
    name for name, value in _ACCOUNT_FIELDS.items() if isinstance(value, dict)
)


def _schema_of(columns: dict[str, pa.DataType]) -> pa.Schema:
    """Return the schema of a table: the dataset and the version, then these columns."""
    return pa.schema([("dataset", _TEXT), ("version", _COUNT), *columns.items()])


def _account_columns() -> dict[str, pa.DataType]:
    """Return the columns of an audit: a number, or numbers by reason."""
    columns: dict[str, pa.DataType] = {}
    for field_name in _ACCOUNT_FIELDS:
        columns[field_name] = _COUNT
        if field_name in _FIELDS_BY_REASON:
            columns[field_name] = _COUNTS_BY_REASON
    return columns


_TOTALS: Final[dict[str, pa.DataType]] = dict.fromkeys(
    ("rows", "tokens", "documents", "files", "bytes"), _COUNT
)
SCHEMAS: Final = {
    "datasets": _schema_of(
        {
            "committed": pa.bool_(),
            "kind": _TEXT,
            "seq_length": _COUNT,
            **_TOTALS,
            "fingerprint": _TEXT,
        }
    ),
    "splits": _schema_of({"split": _TEXT, **_TOTALS}),
    "shards": _schema_of(
        {
            "split": _TEXT,
            "path": _TEXT,
            "unit": _COUNT,
            "part": _COUNT,
            "rows": _COUNT,
            "tokens": _COUNT,
            "documents": _COUNT,
            "bytes": _COUNT,
            "row_groups": _COUNT,
            "sha256": _TEXT,
        }
    ),
    "inputs": _schema_of(
        {"source": _TEXT, "path": _TEXT, "size": _COUNT, "token": _TEXT, "file": _COUNT}
    ),
    "accounts": _schema_of(
        {"source": _TEXT, "unit": _COUNT, "engine": _TEXT, **_account_columns()}
    ),
    "mixture": _schema_of(
        {
            "source": _TEXT,
            "parent": _TEXT,
            "parent_version": _COUNT,
            "split": _TEXT,
            "rows": _COUNT,
            "tokens": _COUNT,
            "drawn_rows": _COUNT,
            "drawn_tokens": _COUNT,
            "full_epochs": _COUNT,
            "partial_rows": _COUNT,
            "partial_tokens": _COUNT,
            "unread_rows": _COUNT,
            "asked": _SHARE,
            "asked_tokens": _SHARE,
            "achieved_rows": _SHARE,
            "achieved_tokens": _SHARE,
            "level": _TEXT,
        }
    ),
}
"""Table -> its columns."""


def build_table(catalog: Catalog, name: str, on_unreadable: OnUnreadable) -> pa.Table:
    """Return a table over every version of the store.

    Args:
        catalog: Catalog of the store.
        name: Name of the table, a key of :data:`SCHEMAS`.
        on_unreadable: Function that is called for a version with a damaged manifest or
            ledger. The version has no rows in the table; in `datasets` it has a row
            without figures.
    """
    if name == "datasets":
        rows = list(_version_rows(catalog, on_unreadable))
    else:
        rows = _rows_of_all_versions(catalog, name, on_unreadable)
    return pa.Table.from_pylist(rows, schema=SCHEMAS[name])


def _version_rows(
    catalog: Catalog, on_unreadable: OnUnreadable
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table `datasets`."""
    for dataset in catalog.datasets():
        for info in catalog.versions(dataset):
            row: dict[str, Any] = {
                "dataset": dataset,
                "version": info.version,
                "committed": info.committed,
            }
            # Builds that are not committed have a row, too, without figures.
            manifest: Manifest | None = None
            if info.committed:
                layout = Layout(dataset, info.version)
                manifest = catalog.readable_manifest(layout, on_unreadable)
            if manifest is not None:
                row["kind"] = manifest.kind
                row["seq_length"] = manifest.seq_length
                row["fingerprint"] = manifest.fingerprint
                row |= asdict(manifest.totals)
            yield row


def _rows_of_all_versions(
    catalog: Catalog, name: str, on_unreadable: OnUnreadable
) -> list[dict[str, Any]]:
    """Return the rows of a table that is about committed versions."""
    rows: list[dict[str, Any]] = []
    for layout in catalog.committed_versions():
        manifest = catalog.readable_manifest(layout, on_unreadable)
        if manifest is None:
            continue
        version = {"dataset": layout.dataset, "version": layout.version}
        # The rows of a version come together or not at all: its ledger may be damaged
        # in the middle.
        version_rows: list[dict[str, Any]] = []
        try:
            for row in _rows_of(name, catalog, manifest):
                version_rows.append(version | row)
        except IntegrityError as error:
            on_unreadable(layout, error)
            continue
        rows += version_rows
    return rows


def _rows_of(
    name: str, catalog: Catalog, manifest: Manifest
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that one version has."""
    match name:
        case "splits":
            for split, totals in manifest.splits.items():
                yield {"split": split} | asdict(totals)
        case "shards":
            for shard in manifest.files:
                yield msgspec.to_builtins(shard) | {"row_groups": len(shard.row_groups)}
        case "inputs":
            for entry in manifest.inputs:
                yield asdict(entry) | {"file": entry.file_id}
        case "accounts":
            yield from _account_rows(catalog, manifest)
        case _:
            yield from _mixture_rows(manifest)


def _account_rows(catalog: Catalog, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the audit of each unit by source.

    The audits of a unit's sources add up to that of the whole unit. The rows of a mixed
    unit belong to several sources at once: their counts (`sequences`, `slots`, `pad`)
    are under the source ``*``, which has no tokens.
    """
    ledger = catalog.ledger(manifest.dataset, manifest.version, manifest=manifest)
    for unit, record in ledger.items():
        accounts = record.by_source()
        # Rows of several sources have counts of their own, beside those of the sources.
        if record.source == MIXED:
            accounts[MIXED] = record.account.of_rows
        for source, account in accounts.items():
            row: dict[str, Any] = {
                "source": source,
                "unit": unit,
                "engine": record.engine,
            }
            for field_name, value in account.to_json().items():
                row[field_name] = value
                # Arrow takes a map as a list of pairs.
                if field_name in _FIELDS_BY_REASON:
                    row[field_name] = list(value.items())
            yield row


def _mixture_rows(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the shares of each source of a mixture; nothing for other versions."""
    mixture = manifest.mixture
    if mixture is None:
        return
    for source, mixed_source in mixture.sources.items():
        row = {"source": source, "level": mixture.level, **mixed_source.to_json()}
        # `dataset` and `version` are those of the mixture, in every table.
        row["parent"] = row.pop("dataset")
        row["parent_version"] = row.pop("version")
        yield row
