"""Queries over a store, each in a DuckDB of its own with views of verified files.

1. Read the names that the statement mentions.
2. Verify the files behind these names and create views of them.
3. Lock the connection, so that it can read these files and nothing else.
4. Run the statement, and close.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError, IntegrityError, StoreError
from tokenlake.etl.sources.sql import CLOSED, draw_nothing
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.relation_names import Relation, mentioned, relations
from tokenlake.query.verified_files import OnVerified, VerifiedFiles
from tokenlake.query.views import FilesNeededError, Manifests, create_views, literal
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, OnUnreadable
from tokenlake.runtime.store.layout import QUARANTINE, Layout

MEMORY_VARIABLE: Final = "TOKENLAKE_SQL_MEMORY"
"""Environment variable with the largest memory of a query, as ``8GB``. Without it, a
third of the machine's memory.
"""

_MEMORY_DIVISOR: Final = 3  # of the machine's memory, which other programs need, too
_SMALLEST_MEMORY: Final = 64 << 20  # bytes; DuckDB is of no use with less


def memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return the largest memory of a query in bytes.

    Raises:
        ConfigError: The variable is not a size, or is below 64 MB.
    """
    configured_size = environ.get(MEMORY_VARIABLE)
    if not configured_size:
        machine_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return max(_SMALLEST_MEMORY, machine_memory // _MEMORY_DIVISOR)
    try:
        size = parse_size(configured_size)
    except ConfigError as error:
        raise ConfigError(f"{MEMORY_VARIABLE}: {error}") from error
    if size < _SMALLEST_MEMORY:
        raise ConfigError(
            f"{MEMORY_VARIABLE} is {configured_size!r}; expected 64MB or more"
        )
    return size


_SPILL_FACTOR: Final = 10  # largest size of the temporary folder / memory
_RESULT_ROWS: Final = 1 << 14  # of a result that DuckDB returns at a time

QUERY_THREAD: Final = "tokenlake-sql"
"""Name of the thread that a query runs in."""

_INTERRUPT_SECONDS: Final = 0.05  # between two interrupts
_EXPLAIN: Final = re.compile(r"\s*explain(\s+analyze)?\b", re.IGNORECASE)


def sql(
    store: ReadStore | StoreAddress | str | os.PathLike[str],
    statement: str,
    *,
    on_verified: OnVerified | None = None,
    on_unreadable: OnUnreadable | None = None,
) -> pa.Table:
    """Run one SELECT over a store.

    The query may read the tables about the store (``datasets``, ``shards``,
    ``accounts`` ...) and the rows of versions, by the name of the dataset. Shards that
    it mentions are hashed first and compared with their manifests. DuckDB may then read
    these files and nothing else, and nothing can be written. Shards of a remote store
    are copied to a temporary folder, which is removed when the query ends. A query that
    needs no column of the rows (counts by split or shard) is answered from the sealed
    manifest, and opens no shard.

    DuckDB may use a third of the memory of this machine, or the size in the variable
    ``TOKENLAKE_SQL_MEMORY`` (``8GB``). Larger intermediate results go to the temporary
    folder, up to ten times that size.

    Args:
        store: Store, its address, or its path or URL.
        statement: One statement that only reads (SELECT, FROM, DESCRIBE, SUMMARIZE,
            EXPLAIN).
        on_verified: Function that is called with the size in bytes of each verified
            file; None: none is called.
        on_unreadable: Function that is called once for each version that the tables
            about the store leave out, because one of its files is damaged; None: a
            :class:`UserWarning` is issued.

    Returns:
        The result, as ``pyarrow.Table``.

    Raises:
        ConfigError: The statement is wrong, does not only read, or needs more memory;
            the message is DuckDB's.
        IntegrityError: A file differs from its hash in the manifest.

    Example:
        >>> import tokenlake as tl
        >>> table = tl.sql("artifacts", "select dataset, version, documents from datasets where dataset = 'books'")
        >>> table.to_pylist()[-1]
        {'dataset': 'books', 'version': 3, 'documents': 120}
    """
    if not isinstance(store, ReadStore):
        store = open_store(store)
    catalog = Catalog(store)
    # The folder has copies of remote files, and intermediate results.
    with tempfile.TemporaryDirectory(prefix="tokenlake-sql-") as folder:
        query = _Query(catalog, statement, Path(folder))
        try:
            return query.answer(on_verified)
        except duckdb.Error as error:
            raise _explained(error, statement, query.relation_of, catalog) from error
        finally:
            for layout, error in query.unreadable.items():
                (on_unreadable or _warn)(layout, error)


class _Query:
    """One statement over a store.

    Attributes:
        relation_of: Name -> relation, for everything in the store.
        unreadable: Damaged versions that the tables about the store leave out, and
            their errors.
    """

    def __init__(self, catalog: Catalog, statement: str, folder: Path) -> None:
        self.relation_of = relations(catalog)
        self.unreadable: dict[Layout, IntegrityError] = {}
        self._catalog = catalog
        self._statement = statement
        self._folder = folder
        self._memory = memory_bytes()
        self._manifests: Manifests = cache(catalog.manifest)

    def answer(self, on_verified: OnVerified | None) -> pa.Table:
        """Run the statement, without the files of versions if it needs none."""
        _check_reads_only(self._statement)
        words = _words(self._statement)
        relations_used = mentioned(words, self.relation_of)
        # First without files. DuckDB reports the error that a column of rows raises, if
        # the query needs one.
        if _may_need_no_files(words, relations_used):
            with suppress(duckdb.InvalidInputException, FilesNeededError):
                return self._run(relations_used, self._folder)
        files = VerifiedFiles(self._catalog.store, self._folder / "copies", on_verified)
        return self._run(relations_used, files)

    def _run(
        self, relations_used: Sequence[Relation], files: VerifiedFiles | Path
    ) -> pa.Table:
        """Run the statement in a new DuckDB with the mentioned relations alone."""
        settings: dict[str, str | bool | int | float | list[str]] = {
            **CLOSED,
            "memory_limit": f"{self._memory} bytes",
            "temp_directory": str(self._folder),
            "max_temp_directory_size": f"{_SPILL_FACTOR * self._memory} bytes",
        }
        # The views are created before the connection is locked, because DuckDB reads
        # the footers of their files.
        with duckdb.connect(":memory:", config=settings) as connection:
            readable = create_views(
                connection,
                self._catalog,
                self._manifests,
                relations_used,
                self.relation_of,
                files,
                self.unreadable.setdefault,
            )
            _add_decode(connection, self._catalog, self._manifests)
            # From here on DuckDB can read these files, and no others: no network, no
            # extensions, no other settings.
            draw_nothing(connection)
            paths = ", ".join(literal(path) for path in readable)
            connection.execute(f"set allowed_paths = [{paths}]")
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
            work = partial(_result, connection, self._statement, self._memory)
            return _plain_integers(_interruptible(connection, work))


def _may_need_no_files(
    words: Sequence[str], relations_used: Sequence[Relation]
) -> bool:
    """Return True if the statement may be answered without the files of versions.

    That is so for rows of which no stored column is needed. It is not tried for a
    statement that could catch the error of a missing file (``try``), nor for one that
    asks how files would be read (``explain``).
    """
    has_rows = False
    for relation in relations_used:
        if relation.kind == "rows":
            has_rows = True
        elif relation.kind != "table" or relation.name == "documents":
            return False
    return has_rows and not any(
        word.lower().startswith(("try", "explain")) for word in words
    )


def _warn(layout: Layout, error: IntegrityError) -> None:
    """Warn of a version that a table leaves out, at the caller of :func:`sql`."""
    warnings.warn(f"{layout.prefix} is left out: {error}", stacklevel=4)


def _interruptible(connection: Any, work: Callable[[], pa.Table]) -> pa.Table:
    """Run a query, and end it when Ctrl-C is pressed.

    DuckDB looks for signals between its calls only, and a query is one call. Therefore
    it runs in a thread of its own, and this thread waits.

    Args:
        connection: Connection of the query.
        work: Function that runs the query.
    """
    answers: list[pa.Table] = []
    failures: list[BaseException] = []
    # Not `Thread.join`: some versions of Python take a thread for ended when Ctrl-C
    # interrupts its `join`.
    has_ended = threading.Event()
    # Ctrl-C may arrive while the thread starts: it may begin afterwards, and must not
    # run the query then.
    order = threading.Lock()
    has_begun = threading.Event()
    is_cancelled = threading.Event()

    def run() -> None:
        with order:
            if is_cancelled.is_set():
                return
            has_begun.set()
        try:
            answers.append(work())
        except BaseException as error:
            failures.append(error)
        finally:
            has_ended.set()

    # A daemon thread: a second Ctrl-C does not wait for it.
    thread = threading.Thread(target=run, name=QUERY_THREAD, daemon=True)
    try:
        thread.start()
        has_ended.wait()
    except BaseException:
        with order:
            is_cancelled.set()
        # Repeatedly, because DuckDB forgets an interrupt that arrives before the query
        # begins.
        while has_begun.is_set() and not has_ended.wait(_INTERRUPT_SECONDS):
            connection.interrupt()
        raise
    if failures:
        raise failures[0]
    return answers[0]


def _result(connection: Any, statement: str, memory: int) -> pa.Table:
    """Return the result of a statement.

    Its memory is counted here, because DuckDB does not count it.
    """
    with connection.sql(statement).to_arrow_reader(_RESULT_ROWS) as reader:
        batches: list[pa.RecordBatch] = []
        result_bytes = 0
        for batch in reader:
            result_bytes += batch.nbytes
            if result_bytes > memory:
                raise ConfigError(
                    f"the result takes more than {memory} bytes of memory; select less data, or set {MEMORY_VARIABLE}"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema)


def _plain_integers(result: pa.Table) -> pa.Table:
    """Return a result whose sums are int64, if all values fit.

    DuckDB's sums have 128 bits, which are decimals in Arrow.
    """
    for index, field in enumerate(result.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                values = result.column(index).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            result = result.set_column(index, field.name, values)
    return result


def _words(statement: str) -> list[str]:
    """Return the identifiers and string literals of a statement, without their quotes.

    All tables that the statement uses are among them, and other words.
    """
    statement_bytes = statement.encode()  # offsets of tokens are byte offsets
    offsets = [offset for offset, _ in duckdb.tokenize(statement)]
    words: list[str] = []
    # DuckDB names the beginning of each token: it ends where the next one begins. A
    # doubled quote inside of quotes is one.
    for begin, end in pairwise([*offsets, len(statement_bytes)]):
        word = statement_bytes[begin:end].decode().strip()
        is_quoted = len(word) > 1 and word[0] in "\"'" and word[0] == word[-1]
        if is_quoted:
            word = word[1:-1].replace(word[0] * 2, word[0])
        if word:
            words.append(word)
    return words


def _check_reads_only(statement: str) -> None:
    """Raise ConfigError unless the text is one statement that only reads."""
    with duckdb.connect(":memory:") as connection:
        statements = connection.extract_statements(statement)
    if len(statements) != 1:
        number = "none"
        if statements:
            number = f"{len(statements)}: run them one at a time"
        raise ConfigError(f"expected one SQL statement, got {number}")
    kind = statements[0].type
    # `explain analyze` runs its statement, which must only read, too.
    if kind == duckdb.StatementType.EXPLAIN:
        _check_reads_only(_EXPLAIN.sub("", statement, count=1))
    elif kind != duckdb.StatementType.SELECT:
        raise ConfigError(
            f"a query may only read, got {kind.name}: expected SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN"
        )


def _add_decode(connection: Any, catalog: Catalog, manifests: Manifests) -> None:
    """Add the SQL function ``decode(ids, dataset)``."""

    @cache
    def decoder_of(dataset: str) -> Decoder:
        return Decoder.of(catalog.store, manifests(*catalog.resolve(dataset)))

    def decode(ids: Any, datasets: Any) -> Any:
        texts: list[str] = []
        for tokens, dataset in zip(ids.to_pylist(), datasets.to_pylist(), strict=True):
            texts.append(decoder_of(dataset).text(tokens))
        return pa.array(texts, pa.string())

    connection.create_function(
        "decode", decode, ["INTEGER[]", "VARCHAR"], "VARCHAR", type="arrow"
    )


def _explained(
    error: duckdb.Error,
    statement: str,
    relation_of: dict[str, Relation],
    catalog: Catalog,
) -> Exception:
    """Return an error with DuckDB's message and a hint.

    The hint is for a name that lacks its quotes, or that does not exist.
    """
    message = str(error).strip().replace("\n\n", "\n")
    if isinstance(error, duckdb.OutOfMemoryException):
        first_line = message.partition("\n")[0]
        return ConfigError(
            f"the query needs more memory: {first_line}. Select less data, or set {MEMORY_VARIABLE} (8GB)"
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException):
        return IntegrityError(f"DuckDB could not read the store's files: {message}")

    # 1. A name that needs quotes and has none; the longest, because names begin with
    #    other names.
    unquoted: list[str] = []
    for name in relation_of:
        needs_quotes = re.search(r"[^a-z0-9_]", name)
        if needs_quotes and name in statement and f'"{name}"' not in statement:
            unquoted.append(name)
    if unquoted:
        name = max(unquoted, key=len)
        message += f'\n\nNames with characters other than letters, digits and _ need double quotes: "{name}"'
        return ConfigError(message)

    # 2. A name that does not exist. DuckDB suggests its own system tables.
    missing_name = re.search(r"Table with name (\S+) does not exist!", message)
    if missing_name:
        table_name = missing_name[1]
        similar_names = difflib.get_close_matches(table_name.lower(), relation_of, n=3)
        suggestion = "."
        if similar_names:
            suggestion = f"; did you mean {' or '.join(similar_names)}?"
        message = (
            f"there is no table or view {table_name!r}{suggestion} `tokenlake sql` without a statement lists all of "
            f"them.{_hint_on_unfinished(catalog, table_name)}"
        )
    return ConfigError(message)


def _hint_on_unfinished(catalog: Catalog, table_name: str) -> str:
    """Return where the bad records of an unfinished build are; "" without any.

    Args:
        catalog: Store of the query.
        table_name: Name of a view that does not exist.
    """
    version_name, _, kind = table_name.partition("/")
    if kind != QUARANTINE:
        return ""
    dataset, _, version_text = version_name.partition("@")
    try:
        versions = catalog.versions(dataset)
    except StoreError:
        return ""
    # The newest one first: it is the one that has just failed.
    for info in reversed(versions):
        is_wanted = version_text in ("", f"v{info.version}", str(info.version))
        if info.committed or not is_wanted:
            continue
        folder = Layout(dataset, info.version).key(QUARANTINE)
        if any(True for _ in catalog.store.list(folder)):
            return (
                f" {dataset}@v{info.version} is not committed: its bad records are in "
                f"{catalog.store.url}/{folder}/*.parquet."
            )
    return ""
