"""DuckDB views over verified shards, or over what manifests say of them.

How many rows each shard has is in the manifest. So a query over rows is tried without any file first: the stored
columns are an error there, which DuckDB raises as soon as the query needs a value of them, and else leaves away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.preference_columns import id_weights
from tokenlake.query import tables
from tokenlake.query.tables import Relation
from tokenlake.reading.version import REMEDY, require_same, stored_schema
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import FileEntry
from tokenlake.store.layout import Layout
from tokenlake.store.local import LocalStore
from tokenlake.store.manifest import Manifest
from tokenlake.threads import in_order

_NO_DOCUMENTS: Final = pa.schema(
    [
        *(("dataset", pa.string()), ("version", pa.int32())),
        *(("split", pa.string()), ("shard", pa.string()), ("row", pa.int64()), ("segment", pa.int64())),
        *(("source", pa.string()), ("path", pa.string()), ("file", pa.int64()), ("position", pa.int64())),
        *(("start", pa.int32()), ("length", pa.int64())),
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
            key = layout.key(path)
            try:
                where, found = (
                    self._local(key) if isinstance(self.store, LocalStore) else self._copied(key, expected)
                )
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

    def _local(self, key: str) -> tuple[Path, FileEntry]:
        with self.store.open(key) as stream:
            sha256 = hashlib.file_digest(cast("Any", stream), "sha256").hexdigest()
            size = stream.tell()
        return cast("LocalStore", self.store).local_path(key), FileEntry(bytes=size, sha256=sha256)

    def _copied(self, key: str, expected: str) -> tuple[Path, FileEntry]:
        """Copy a file, once more where the first copy is not what it should be: it may have changed on its way."""
        path = self.copies / key
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self.store.download(key, path)
        if found.sha256 != expected:
            path.unlink()
            found = self.store.download(key, path)
        return path, found


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
) -> list[str]:
    """Make the wanted relations and what they rest on; return the files that DuckDB may read.

    Args:
        files: those of versions; or a folder for a file without rows, for views of rows without their files.

    Raises:
        IntegrityError: a shard is not what its manifest says.
    """
    maker = _Maker(connection, manifests, files)
    for relation in wanted:
        if relation.kind != "table":
            maker.make(relation)
        elif relation.name == "documents":
            maker.all_documents(
                [each for each in known.values() if each.kind == "documents" and "@" not in each.name]
            )
        else:
            maker.table(relation.name, tables.build(catalog, relation.name))
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
            self._view(relation.name, f"select * from {quoted(real)}")

    def all_documents(self, newest: Sequence[Relation]) -> None:
        """Make ``documents``: the provenance of the newest version of every dataset."""
        for relation in newest:
            self.make(relation)
        selects = [
            f"select {literal(each.dataset)} as dataset, {each.version} as version, * from {quoted(each.name)}"
            for each in newest
        ]
        if selects:
            self._view("documents", " union all ".join(selects))
        else:
            self.table("documents", _NO_DOCUMENTS)

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
        self._view(
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
        self._view(name, f"select split, shard, row{stored} from ({rows})")

    def _documents(self, name: str, manifest: Manifest) -> None:
        rows = name.removesuffix("/documents")
        self._rows(rows, manifest)
        self.table(f"{rows}/inputs", _inputs(manifest))
        pieces = (
            "select split, shard, row, generate_subscripts(segment_lengths, 1) as segment, "
            "unnest(documents) as d, unnest(segment_lengths)::bigint as length"
            if manifest.kind == "packed"
            else "select split, shard, row, 1::bigint as segment, "
            f"{{file: file, position: position, start: 0::integer}} as d, {_length(manifest)} as length"
        )
        self._view(
            name,
            "select split, shard, row, segment, i.source, i.path, d.file, d.position, d.start, length "
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
        self._view(name, f"select * exclude (filename) from {self._parquet(list(map(str, paths.values())))}")

    def _parquet(self, paths: list[str]) -> str:
        self.readable += paths
        listed = ", ".join(literal(path) for path in paths)
        return f"read_parquet([{listed}], filename = true, file_row_number = true, hive_partitioning = false)"

    def _view(self, name: str, select: str) -> None:
        if name not in self._made:
            self._connection.execute(f"create view {quoted(name)} as {select}")
            self._made.add(name)


def _length(manifest: Manifest) -> str:
    """The ids of a row that is a document; of preferences each part counts once."""
    if manifest.preference is None:
        return "len(input_ids)"
    return " + ".join(f"{weight} * len({name})" for name, weight in id_weights(*manifest.preference).items())


def _inputs(manifest: Manifest) -> pa.Table:
    rows = [{"file": entry.file_id, "source": entry.source, "path": entry.path} for entry in manifest.inputs]
    schema = pa.schema([("file", pa.int64()), ("source", pa.string()), ("path", pa.string())])
    return pa.Table.from_pylist(rows, schema=schema)


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL spells it."""
    return "'" + text.replace("'", "''") + "'"
