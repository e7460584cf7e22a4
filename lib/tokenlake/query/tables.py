"""What a query can name: the versions of a store as DuckDB views over verified shards, and tables about the store.

Tables hold plain facts from manifests, as Arrow. Only what a query mentions is verified and made: a store may hold
terabytes, a question is about little. How many rows each shard has is in the manifest. So a query over rows is tried
without any file first: the stored columns are an error there, which DuckDB raises as soon as the query needs a value of
them, and else leaves away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.columns import id_weights
from tokenlake.base.threads import in_order
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl.sources.position_kinds import position_kinds_of
from tokenlake.runtime.reading.file_hashes import REMEDY, require_same
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, OnUnreadable
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import MIXED, FileEntry
from tokenlake.runtime.store.local import LocalStore
from tokenlake.runtime.store.manifest import Manifest

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


def build(catalog: Catalog, name: str, on_unreadable: OnUnreadable) -> pa.Table:
    """Return one of :data:`SCHEMAS`' tables, over every version of the store.

    Args:
        on_unreadable: Called for a version whose manifest, or ledger, is damaged: it has no rows in the table, and of
            `datasets` a row without figures.
    """
    rows: list[dict[str, Any]] = []
    if name == "datasets":
        for dataset in catalog.datasets():
            for info in catalog.versions(dataset):
                row: dict[str, Any] = {
                    "dataset": dataset,
                    "version": info.version,
                    "committed": info.committed,
                }
                manifest = None
                if info.committed:
                    manifest = catalog.readable_manifest(Layout(dataset, info.version), on_unreadable)
                if manifest is not None:
                    facts = {key: getattr(manifest, key) for key in ("kind", "seq_length", "fingerprint")}
                    row |= facts | asdict(manifest.totals)
                rows.append(row)
    else:
        for layout in catalog.committed_versions():
            own = {"dataset": layout.dataset, "version": layout.version}
            manifest = catalog.readable_manifest(layout, on_unreadable)
            if manifest is None:
                continue
            try:
                rows += [own | row for row in _rows_of(name, catalog, manifest)]
            except IntegrityError as error:
                on_unreadable(layout, error)
    return pa.Table.from_pylist(rows, schema=SCHEMAS[name])


def _rows_of(name: str, catalog: Catalog, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that one version has."""
    match name:
        case "splits":
            yield from ({"split": split} | asdict(totals) for split, totals in manifest.splits.items())
        case "shards":
            for shard in manifest.files:
                yield msgspec.to_builtins(shard) | {"row_groups": len(shard.row_groups)}
        case "inputs":
            yield from (asdict(entry) | {"file": entry.file_id} for entry in manifest.inputs)
        case "accounts":
            for unit, record in catalog.ledger(manifest.dataset, manifest.version, manifest=manifest).items():
                # They add up to the unit's whole: those of its sources, and of a mixed unit that of its rows.
                accounts = record.by_source()
                accounts |= {MIXED: record.account.of_rows} if record.source == MIXED else {}
                for source, account in accounts.items():
                    counts = account.to_json()
                    counts |= {reason: list(counts[reason].items()) for reason in _BY_REASON}
                    yield {"source": source, "unit": unit, "engine": record.engine} | counts
        case _:
            if (mixture := manifest.mixture) is None:
                return
            for source, mixed in mixture.sources.items():
                facts = mixed.to_json()
                parent = {"parent": facts.pop("dataset"), "parent_version": facts.pop("version")}
                yield {"source": source, "level": mixture.level} | parent | facts


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


_NO_DOCUMENTS: Final = pa.schema(
    [
        *(("dataset", pa.string()), ("version", pa.int32())),
        *(("split", pa.string()), ("shard", pa.string()), ("row", pa.int64()), ("segment", pa.int64())),
        *(("source", pa.string()), ("path", pa.string()), ("position", pa.int64())),
        *(("position_is", pa.string()), ("start", pa.int32()), ("length", pa.int64()), ("file", pa.int64())),
    ]
).empty_table()
OnVerified = Callable[[int], None]
"""Called with the size of each file that was found whole; from several threads."""
_THREADS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """Files of a store's versions, hashed, and on this machine.

    Attributes:
        store: they are read from; a folder's are hashed where they are, others are copied.
        copies: a folder for these copies, whose owner removes it.
        on_verified: told of each file.
    """

    store: ReadStore
    copies: Path
    on_verified: OnVerified | None = None

    def paths(self, layout: Layout, hashes: Mapping[str, str]) -> dict[str, Path]:
        """Return the local paths of files of a version.

        Args:
            hashes: path relative to the version -> sha256 (hex).

        Raises:
            IntegrityError: a file is missing or its bytes are not what was committed.
            StoreError: the store cannot be read.
        """

        def check(item: tuple[str, str]) -> tuple[str, Path]:
            path, expected = item
            key, store = layout.key(path), self.store
            try:
                if isinstance(store, LocalStore):
                    with store.open(key) as stream:
                        sha256 = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
                        size = stream.tell()
                    where, found = store.local_path(key), FileEntry(bytes=size, sha256=sha256)
                else:
                    where = self.copies / key
                    where.parent.mkdir(parents=True, exist_ok=True)
                    found = store.download(key, where)
                    if found.sha256 != expected:  # once more: it may have changed on its way
                        where.unlink()
                        found = store.download(key, where)
            except NotFoundError as error:
                raise IntegrityError(
                    f"{key}: the file is missing; the manifest lists it. {REMEDY}", file=key
                ) from error
            require_same(key, expected, found.sha256)
            if self.on_verified:
                self.on_verified(found.bytes)
            return path, where

        # hashlib releases the GIL: threads hash as fast as the disk reads
        return dict(in_order(check, list(hashes.items()), _THREADS))


class FilesNeededError(Exception):
    """A query cannot be answered without the files of a version."""


Manifests: TypeAlias = Callable[[str, int], Manifest]
"""Reads the manifest of a version."""


def create(
    connection: Any,
    catalog: Catalog,
    manifests: Manifests,
    wanted: Sequence[Relation],
    known: dict[str, Relation],
    files: VerifiedFiles | Path,
    on_unreadable: OnUnreadable,
) -> list[str]:
    """Make the wanted relations and what they rest on; return the files that DuckDB may read.

    Args:
        files: those of versions; or a folder for a file without rows, for views of rows without their files.
        on_unreadable: called for a version that a table about the whole store has to leave out.

    Raises:
        IntegrityError: a shard is not what its manifest says.
    """
    maker = _Maker(connection, manifests, files)
    for relation in wanted:
        if relation.kind != "table":
            maker.make(relation)
        elif relation.name != "documents":
            maker.table(relation.name, build(catalog, relation.name, on_unreadable))
        else:  # the provenance of the newest version of every dataset
            newest = [each for each in known.values() if each.kind == "documents" and "@" not in each.name]
            for each in list(newest):
                try:
                    maker.make(each)
                except IntegrityError as error:
                    on_unreadable(Layout(each.dataset, each.version), error)
                    newest.remove(each)
            selects = [
                f"select {literal(each.dataset)} as dataset, {each.version} as version, * from {quoted(each.name)}"
                for each in newest
            ]
            if selects:
                maker.view("documents", " union all ".join(selects))
            else:
                maker.table("documents", _NO_DOCUMENTS)
    return maker.readable


@final
class _Maker:
    """Creates each view once and collects the files behind them."""

    def __init__(self, connection: Any, manifests: Manifests, files: VerifiedFiles | Path) -> None:
        self._connection, self._manifest, self._files = connection, manifests, files
        self._made: set[str] = set()
        self.readable: list[str] = []

    def table(self, name: str, content: pa.Table) -> None:
        """Make an in-memory table of an Arrow one."""
        if name not in self._made:
            self._connection.register(f"arrow:{name}", content)
            self._connection.execute(
                f"create table {quoted(name)} as select * from {quoted(f'arrow:{name}')}"
            )
            self._made.add(name)

    def make(self, relation: Relation) -> None:
        """Make the view of one version, under the name it was asked by."""
        base = f"{relation.dataset}@v{relation.version}"
        manifest = self._manifest(relation.dataset, relation.version)
        real = base if relation.kind == "rows" else f"{base}/{relation.kind}"
        {"rows": self._rows, "documents": self._documents, "quarantine": self._quarantine}[relation.kind](
            real, manifest
        )
        if relation.name != real:
            self.view(relation.name, f"select * from {quoted(real)}")

    def _rows(self, name: str, manifest: Manifest) -> None:
        if name in self._made:
            return
        if not manifest.files:
            raise ConfigError(f"{name} has no rows: nothing was written in any split")
        if isinstance(self._files, Path):
            self._counted(name, manifest, self._files)
            return
        layout = Layout(manifest.dataset, manifest.version)
        hashes = {shard.path: shard.sha256 for shard in manifest.files}
        paths = self._files.paths(layout, hashes)
        files = [
            {"filename": str(paths[shard.path]), "shard": shard.path, "split": shard.split}
            for shard in manifest.files
        ]
        self.table(f"{name}/files", pa.Table.from_pylist(files))
        rows, places = self._parquet(list(map(str, paths.values()))), quoted(f"{name}/files")
        self.view(
            name,
            "select f.split, f.shard, r.file_row_number as row, r.* exclude (filename, file_row_number) "
            f"from {rows} r join {places} f using (filename)",
        )

    def _counted(self, name: str, manifest: Manifest, folder: Path) -> None:
        """Make the view of rows without their files; its columns have the types that DuckDB gives those of a file."""
        shards = {
            "split": [shard.split for shard in manifest.files],
            "shard": [shard.path for shard in manifest.files],
            "rows": [shard.rows for shard in manifest.files],
        }
        schema = stored_schema(manifest)
        if set(schema.names) != {column for shard in manifest.files for column in shard.logical}:
            raise FilesNeededError("there are columns of which only the files know the type")
        self.table(f"{name}/counts", pa.table(shards))
        empty = folder / "empty.parquet"
        pq.write_table(schema.empty_table(), empty)
        found = self._connection.execute(f"describe from read_parquet({literal(str(empty))})").fetchall()
        # Of the shard, so that it is no constant that could be worked out beforehand.
        missing = "error('no file of ' || shard || ' was read')"
        stored = "".join(f", {missing}::{kind} as {quoted(column)}" for column, kind, *_ in found)
        rows = f"select split, shard, unnest(range(rows)) as row from {quoted(f'{name}/counts')}"
        self.view(name, f"select split, shard, row{stored} from ({rows})")

    def _documents(self, name: str, manifest: Manifest) -> None:
        rows = name.removesuffix("/documents")
        self._rows(rows, manifest)
        kinds = position_kinds_of(manifest)
        inputs = [
            {
                "file": each.file_id,
                "source": each.source,
                "path": each.path,
                "position_is": kinds[each.file_id] or None,
            }
            for each in manifest.inputs
        ]
        schema = pa.schema(
            [
                ("file", pa.int64()),
                ("source", pa.string()),
                ("path", pa.string()),
                ("position_is", pa.string()),
            ]
        )
        self.table(f"{rows}/inputs", pa.Table.from_pylist(inputs, schema=schema))
        if manifest.kind == "packed":
            pieces = (
                "select split, shard, row, generate_subscripts(segment_lengths, 1) as segment, "
                "unnest(documents) as d, unnest(segment_lengths)::bigint as length"
            )
        else:  # a row is a document; of preferences each part counts once
            weights = {"input_ids": 1} if manifest.preference is None else id_weights(*manifest.preference)
            length = " + ".join(f"{weight} * len({column})" for column, weight in weights.items())
            pieces = (
                "select split, shard, row, 1::bigint as segment, "
                f"{{file: file, position: position, start: 0::integer}} as d, {length} as length"
            )
        self.view(
            name,
            "select split, shard, row, segment, i.source, i.path, d.position, i.position_is, d.start, length, d.file "
            f"from ({pieces} from {quoted(rows)}) left join {quoted(f'{rows}/inputs')} i on i.file = d.file",
        )

    def _quarantine(self, name: str, manifest: Manifest) -> None:
        layout = Layout(manifest.dataset, manifest.version)
        hashes = {p: entry.sha256 for p, entry in manifest.other_files.items() if p.startswith("quarantine/")}
        assert isinstance(self._files, VerifiedFiles)
        paths = self._files.paths(layout, hashes)
        if not paths:
            raise ConfigError(
                f"{name.removesuffix('/quarantine')} has no bad records: nothing was quarantined"
            )
        self.view(name, f"select * exclude (filename) from {self._parquet(list(map(str, paths.values())))}")

    def _parquet(self, paths: list[str]) -> str:
        self.readable += paths
        listed = ", ".join(literal(path) for path in paths)
        return f"read_parquet([{listed}], filename = true, file_row_number = true, hive_partitioning = false)"

    def view(self, name: str, select: str) -> None:
        """Make a view of a query."""
        if name not in self._made:
            self._connection.execute(f"create view {quoted(name)} as {select}")
            self._made.add(name)


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL spells it."""
    return "'" + text.replace("'", "''") + "'"
