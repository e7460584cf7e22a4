"""DuckDB views and tables for the names that a query mentions.

Only mentioned names are verified and created: a store may hold terabytes, and a
question is about little. The number of rows of each shard is in the manifest, so a
query over rows is first tried without any file. The stored columns are then an
expression that raises an error. DuckDB leaves it out unless the query needs a value of
the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import pyarrow as pa
import pyarrow.parquet as pq

from tokenlake.base.columns import id_weights
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.sources.position_kinds import ROW, position_kinds_of
from tokenlake.query.relation_names import Relation
from tokenlake.query.store_tables import build_table
from tokenlake.query.verified_files import VerifiedFiles
from tokenlake.runtime.reading.stored_columns import stored_schema
from tokenlake.runtime.store.catalog import Catalog, OnUnreadable
from tokenlake.runtime.store.layout import QUARANTINE, Layout
from tokenlake.runtime.store.manifest import Manifest

# Columns of the table `documents`, which a store without committed versions has, too.
_NO_DOCUMENTS: Final = pa.schema(
    [
        ("dataset", pa.string()),
        ("version", pa.int32()),
        ("split", pa.string()),
        ("shard", pa.string()),
        ("row", pa.int64()),
        ("segment", pa.int64()),
        ("source", pa.string()),
        ("path", pa.string()),
        ("position", pa.int64()),
        ("position_is", pa.string()),
        ("start", pa.int32()),
        ("length", pa.int64()),
        ("file", pa.int64()),
    ]
).empty_table()

# Columns of the table with the input files of a version.
_INPUTS: Final = pa.schema(
    [
        ("file", pa.int64()),
        ("source", pa.string()),
        ("path", pa.string()),
        ("position_is", pa.string()),
    ]
)

# Place of a bad record `q` of an input file `i`, as `place_of` writes it.
_PLACE: Final = f"""\
case
when q.line is not null then q.path || ':' || q.line
when i.position_is = '{ROW}' then q.path || ':' || q.position
else q.path || ' at ' || coalesce(i.position_is, 'position') || ' ' || q.position
end"""

Manifests: TypeAlias = Callable[[str, int], Manifest]
"""Function that reads the manifest of a version."""


class FilesNeededError(Exception):
    """A query cannot be answered without the files of a version."""


def create_views(
    connection: Any,
    catalog: Catalog,
    manifests: Manifests,
    mentioned: Sequence[Relation],
    relation_of: dict[str, Relation],
    files: VerifiedFiles | Path,
    on_unreadable: OnUnreadable,
) -> list[str]:
    """Create the mentioned relations, and those that they use.

    Returns the paths of the files that DuckDB may read.

    Args:
        connection: DuckDB connection.
        catalog: Catalog of the store.
        manifests: Function that reads manifests.
        mentioned: Relations that the statement mentions.
        relation_of: Name -> relation, for everything in the store.
        files: Files of versions; or a folder for a file without rows, for views of rows
            without their files.
        on_unreadable: Function that is called for a version that a table about the
            store has to leave out.

    Raises:
        IntegrityError: A shard differs from its manifest.
    """
    views = _Views(connection, manifests, files)
    for relation in mentioned:
        if relation.kind != "table":
            views.add_version(relation)
        elif relation.name == "documents":
            _add_all_documents(views, relation_of, on_unreadable)
        else:
            table = build_table(catalog, relation.name, on_unreadable)
            views.add_table(relation.name, table)
    return views.readable


def _add_all_documents(
    views: _Views, relation_of: dict[str, Relation], on_unreadable: OnUnreadable
) -> None:
    """Create the view `documents`, over the newest version of every dataset."""
    selects: list[str] = []
    for relation in list(relation_of.values()):
        # A name without a version stands for the newest one.
        is_newest = "@" not in relation.name
        if relation.kind != "documents" or not is_newest:
            continue
        try:
            views.add_version(relation)
        except IntegrityError as error:
            on_unreadable(Layout(relation.dataset, relation.version), error)
            continue
        selects.append(
            f"select {literal(relation.dataset)} as dataset, {relation.version} as version, * "
            f"from {quoted(relation.name)}"
        )
    if selects:
        views.add_view("documents", " union all ".join(selects))
    else:
        views.add_table("documents", _NO_DOCUMENTS)


@final
class _Views:
    """Creates each view once, and collects the files of all views.

    Attributes:
        readable: Paths of the files that the views read.
    """

    def __init__(
        self, connection: Any, manifests: Manifests, files: VerifiedFiles | Path
    ) -> None:
        self._connection = connection
        self._manifest = manifests
        self._files = files
        self._created: set[str] = set()
        self.readable: list[str] = []

    def add_table(self, name: str, content: pa.Table) -> None:
        """Create a table in memory with the content of an Arrow table."""
        if name not in self._created:
            arrow_name = f"arrow:{name}"
            self._connection.register(arrow_name, content)
            self._connection.execute(
                f"create table {quoted(name)} as select * from {quoted(arrow_name)}"
            )
            self._created.add(name)

    def add_view(self, name: str, select: str) -> None:
        """Create a view of a query."""
        if name not in self._created:
            self._connection.execute(f"create view {quoted(name)} as {select}")
            self._created.add(name)

    def add_version(self, relation: Relation) -> None:
        """Create the view of a version's rows, documents or bad records.

        Its full name has a version; a shorter name that the statement mentions is a
        view of that view.
        """
        manifest = self._manifest(relation.dataset, relation.version)
        full_name = f"{relation.dataset}@v{relation.version}"
        if relation.kind == "rows":
            self._add_rows(full_name, manifest)
        elif relation.kind == "documents":
            full_name += "/documents"
            self._add_documents(full_name, manifest)
        else:
            full_name += "/quarantine"
            self._add_quarantine(full_name, manifest)
        if relation.name != full_name:
            self.add_view(relation.name, f"select * from {quoted(full_name)}")

    def _add_rows(self, name: str, manifest: Manifest) -> None:
        """Create the view of a version's rows, with split, shard and row index."""
        if name in self._created:
            return
        if not manifest.files:
            raise ConfigError(f"{name} has no rows: nothing was written in any split")
        if isinstance(self._files, Path):
            self._add_rows_without_files(name, manifest, self._files)
            return
        layout = Layout(manifest.dataset, manifest.version)
        hashes = {shard.path: shard.sha256 for shard in manifest.files}
        paths = self._files.paths(layout, hashes)

        # DuckDB names the file of each row; a small table has the shard and the split
        # of each file.
        file_rows: list[dict[str, str]] = []
        for shard in manifest.files:
            local_path = str(paths[shard.path])
            file_rows.append(
                {"filename": local_path, "shard": shard.path, "split": shard.split}
            )
        files_name = f"{name}/files"
        self.add_table(files_name, pa.Table.from_pylist(file_rows))
        rows = self._read_parquet([str(path) for path in paths.values()])
        self.add_view(
            name,
            "select f.split, f.shard, r.file_row_number as row, r.* exclude (filename, file_row_number) "
            f"from {rows} r join {quoted(files_name)} f using (filename)",
        )

    def _add_rows_without_files(
        self, name: str, manifest: Manifest, folder: Path
    ) -> None:
        """Create a view of rows without their files.

        Its columns have the types that DuckDB gives the columns of a file. Their values
        raise an error.
        """
        # 1. Columns and their types in DuckDB, by a file without rows. Fields that were
        #    kept have types that only the files know.
        schema = stored_schema(manifest)
        columns_of_files: set[str] = set()
        for shard in manifest.files:
            columns_of_files.update(shard.logical)
        if set(schema.names) != columns_of_files:
            raise FilesNeededError("only the files know the types of some columns")
        empty_path = folder / "empty.parquet"
        pq.write_table(schema.empty_table(), empty_path)
        described = self._connection.execute(
            f"describe from read_parquet({literal(str(empty_path))})"
        )

        # 2. An expression for each column. The error names the shard, so that DuckDB
        #    cannot take it for a constant and evaluate it beforehand.
        missing = "error('no file of ' || shard || ' was read')"
        columns = "split, shard, row"
        for column, type_name, *_ in described.fetchall():
            columns += f", {missing}::{type_name} as {quoted(column)}"

        # 3. The rows themselves: as many for each shard as the manifest says.
        splits: list[str] = []
        shards: list[str] = []
        row_counts: list[int] = []
        for shard in manifest.files:
            splits.append(shard.split)
            shards.append(shard.path)
            row_counts.append(shard.rows)
        counts = {"split": splits, "shard": shards, "rows": row_counts}
        counts_name = f"{name}/counts"
        self.add_table(counts_name, pa.table(counts))
        rows = f"select split, shard, unnest(range(rows)) as row from {quoted(counts_name)}"
        self.add_view(name, f"select {columns} from ({rows})")

    def _add_documents(self, name: str, manifest: Manifest) -> None:
        """Create the view of a version's provenance, with a row for each piece."""
        rows_name = name.removesuffix("/documents")
        self._add_rows(rows_name, manifest)
        # A file that is missing in the table of inputs keeps its pieces, without a name.
        inputs_name = self._add_inputs(rows_name, manifest)
        self.add_view(
            name,
            "select split, shard, row, segment, i.source, i.path, d.position, i.position_is, d.start, length, d.file "
            f"from ({_pieces_select(manifest)} from {quoted(rows_name)}) "
            f"left join {quoted(inputs_name)} i on i.file = d.file",
        )

    def _add_inputs(self, rows_name: str, manifest: Manifest) -> str:
        """Create the table of a version's input files, and return its name.

        Pieces and bad records name their input file by its id; this table has its
        source and path.
        """
        inputs_name = f"{rows_name}/inputs"
        if inputs_name in self._created:
            return inputs_name
        position_kinds = position_kinds_of(manifest)
        inputs: list[dict[str, Any]] = []
        for entry in manifest.inputs:
            inputs.append(
                {
                    "file": entry.file_id,
                    "source": entry.source,
                    "path": entry.path,
                    "position_is": position_kinds[entry.file_id] or None,
                }
            )
        self.add_table(inputs_name, pa.Table.from_pylist(inputs, schema=_INPUTS))
        return inputs_name

    def _add_quarantine(self, name: str, manifest: Manifest) -> None:
        """Create the view of a version's bad records."""
        hashes: dict[str, str] = {}
        for path, entry in manifest.other_files.items():
            if path.startswith(f"{QUARANTINE}/"):
                hashes[path] = entry.sha256
        assert isinstance(self._files, VerifiedFiles)
        paths = self._files.paths(Layout(manifest.dataset, manifest.version), hashes)
        version = name.removesuffix("/quarantine")
        if not paths:
            raise ConfigError(f"{version} has no bad records: nothing was quarantined")
        records = self._read_parquet([str(path) for path in paths.values()])
        inputs_name = self._add_inputs(version, manifest)
        self.add_view(
            name,
            f"select {_PLACE} as place, q.* exclude (filename) from {records} q "
            f"left join {quoted(inputs_name)} i on i.file = q.file",
        )

    def _read_parquet(self, paths: list[str]) -> str:
        """Return the SQL that reads Parquet files, and allow DuckDB to read them."""
        self.readable += paths
        listed = ", ".join(literal(path) for path in paths)
        return f"read_parquet([{listed}], filename = true, file_row_number = true, hive_partitioning = false)"


def _pieces_select(manifest: Manifest) -> str:
    """Return the select list for pieces of documents.

    These are their row, the document `d` and the number of tokens.
    """
    if manifest.kind == "packed":
        return (
            "select split, shard, row, generate_subscripts(segment_lengths, 1) as segment, "
            "unnest(documents) as d, unnest(segment_lengths)::bigint as length"
        )
    # A row is one document. Of a preference, the tokens of each part count once.
    weights = {"input_ids": 1}
    if manifest.preference is not None:
        weights = id_weights(*manifest.preference)
    terms = [f"{weight} * len({column})" for column, weight in weights.items()]
    length = " + ".join(terms)
    return (
        "select split, shard, row, 1::bigint as segment, "
        f"{{file: file, position: position, start: 0::integer}} as d, {length} as length"
    )


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
