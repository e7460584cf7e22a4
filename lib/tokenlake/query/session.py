"""One query, one DuckDB: verify, make views, lock, run, close; and how much memory a query may take."""

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
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from tokenlake.base.sizes import parse_size
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.etl.sources.sql import CLOSED, draw_nothing
from tokenlake.etl.tokenizers.manager import Decoder
from tokenlake.query.tables import (
    FilesNeededError,
    Manifests,
    OnVerified,
    Relation,
    VerifiedFiles,
    create,
    literal,
    mentioned,
    relations,
)
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.catalog import Catalog, OnUnreadable
from tokenlake.runtime.store.layout import Layout

MEMORY_VARIABLE: Final = "TOKENLAKE_SQL_MEMORY"
"""Environment variable: how much memory a query may take, as ``8GB``; without it, a third of the machine's."""

_SHARE: Final = 3
_LEAST: Final = 64 << 20  # DuckDB does nothing useful with less


def memory_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a query may take.

    Raises:
        ConfigError: the variable is not a size, or is below 64 MB.
    """
    text = environ.get(MEMORY_VARIABLE)
    if not text:
        return max(_LEAST, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE)
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"{MEMORY_VARIABLE}: {error}") from error
    if size < _LEAST:
        raise ConfigError(f"{MEMORY_VARIABLE} is {text!r}; expected 64MB or more")
    return size


_SPILLED: Final = 10  # times the memory, on the disk
_ROWS: Final = 1 << 14  # of a result that come at once
QUERY_THREAD: Final = "tokenlake-sql"
"""Name of the thread that a query runs in."""
_INTERRUPT_SECONDS: Final = 0.05
_EXPLAIN: Final = re.compile(r"\s*explain(\s+analyze)?\b", re.IGNORECASE)


def sql(
    store: ReadStore | StoreAddress | str | os.PathLike[str],
    statement: str,
    *,
    on_verified: OnVerified | None = None,
    on_unreadable: OnUnreadable | None = None,
) -> pa.Table:
    """Run one SELECT over a store.

    ::

        tl.sql("artifacts", "select dataset, version, tokens from datasets").to_pandas()

    The shards that the query mentions are hashed first and compared with their manifests; DuckDB may then
    read these files and nothing else, and nothing can be written. Those of a remote store are copied to this
    machine first, into a temporary folder that ends with the query. A query that needs no column of them (how many
    rows, in which split or shard) is answered from the manifest, which is sealed; no shard is opened.

    Args:
        store: a store, its address, or its path or URL.
        statement: one statement that only reads (SELECT, FROM, DESCRIBE, SUMMARIZE, EXPLAIN).
        on_verified: called with the size of each file found whole.
        on_unreadable: called once for each version that the tables about the store leave out, because a file of it is
            damaged; None: a warning (:class:`UserWarning`).

    DuckDB may take a third of this machine's memory, or what the variable ``TOKENLAKE_SQL_MEMORY`` says (``8GB``); what
    does not fit goes to the temporary folder, at most ten times as much.

    Raises:
        ConfigError: the statement is wrong, or not one that only reads, or needs more memory; the message is DuckDB's.
        IntegrityError: a file is not what its manifest says.
    """
    catalog = Catalog(store if isinstance(store, ReadStore) else open_store(store))
    known, memory, manifests = relations(catalog), memory_bytes(), cache(catalog.manifest)
    with tempfile.TemporaryDirectory(prefix="tokenlake-sql-") as folder:
        spill = Path(folder)
        settings: dict[str, str | bool | int | float | list[str]] = {
            **CLOSED,
            "memory_limit": f"{memory} bytes",
            "temp_directory": str(spill),
            "max_temp_directory_size": f"{_SPILLED * memory} bytes",
        }

        unreadable: dict[Layout, IntegrityError] = {}

        def run(wanted: Sequence[Relation], files: VerifiedFiles | Path) -> pa.Table:
            """Answer by a DuckDB of its own, which sees the wanted relations and their files alone."""
            with duckdb.connect(":memory:", config=settings) as connection:
                readable = create(connection, catalog, manifests, wanted, known, files, unreadable.setdefault)
                _add_decode(connection, catalog, manifests)
                # From here on: these files, no others, no network, no extensions, and no way to change that.
                draw_nothing(connection)
                connection.execute(f"set allowed_paths = [{', '.join(map(literal, readable))}]")
                connection.execute("set enable_external_access = false")
                connection.execute("set lock_configuration = true")
                answer = partial(_result, connection, statement, memory)
                return _plain_integers(_interruptible(connection, answer))

        try:
            _check_reads_only(statement)
            words = _words(statement)
            wanted = mentioned(words, known)
            # A query over rows may turn out to need none of the stored columns. That is not tried where an error could
            # be caught, nor where the question is how files would be read.
            if (
                any(relation.kind == "rows" for relation in wanted)
                and all(each.kind in ("rows", "table") and each.name != "documents" for each in wanted)
                and not any(word.lower().startswith(("try", "explain")) for word in words)
            ):
                with suppress(duckdb.InvalidInputException, FilesNeededError):
                    return run(wanted, spill)
            return run(wanted, VerifiedFiles(catalog.store, spill / "copies", on_verified))
        except duckdb.Error as error:
            raise _explained(error, statement, known) from error
        finally:
            for layout, error in unreadable.items():
                (on_unreadable or _warn)(layout, error)


def _warn(layout: Layout, error: IntegrityError) -> None:
    warnings.warn(f"{layout.prefix} is left out: {error}", stacklevel=4)


def _interruptible(connection: Any, work: Callable[[], pa.Table]) -> pa.Table:
    """Run a query, and end it when Ctrl-C is pressed.

    DuckDB looks for signals between its calls only, and a query is one call. Therefore it runs in a thread of its own,
    and this thread waits.

    Args:
        connection: Connection of the query.
        work: Function that runs the query.
    """
    answers: list[pa.Table] = []
    failures: list[BaseException] = []
    # Not `Thread.join`: some versions of Python take a thread for ended when Ctrl-C interrupts its `join`.
    has_ended = threading.Event()
    # Ctrl-C may arrive while the thread starts: it may begin afterwards, and must not run the query then.
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
        # Repeatedly, because DuckDB forgets an interrupt that arrives before the query begins.
        while has_begun.is_set() and not has_ended.wait(_INTERRUPT_SECONDS):
            connection.interrupt()
        raise
    if failures:
        raise failures[0]
    return answers[0]


def _result(connection: Any, statement: str, memory: int) -> pa.Table:
    """Return what a query gives, which DuckDB does not count as memory of its own."""
    with connection.sql(statement).to_arrow_reader(_ROWS) as reader:
        batches, taken = list[pa.RecordBatch](), 0
        for batch in reader:
            taken += batch.nbytes
            if taken > memory:
                raise ConfigError(
                    f"the result takes more than {memory} bytes of memory; select less data, or set {MEMORY_VARIABLE}"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema)


def _plain_integers(result: pa.Table) -> pa.Table:
    """DuckDB sums to 128 bits, which Arrow has as decimals: back to int64 where all values fit."""
    for index, field in enumerate(result.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                values = result.column(index).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
            result = result.set_column(index, field.name, values)
    return result


def _words(statement: str) -> list[str]:
    """Identifiers and string literals of a statement, unquoted: more than the tables it names, never fewer."""
    tokens, raw = duckdb.tokenize(statement), statement.encode()  # its offsets are of bytes
    ends = [offset for offset, _ in tokens[1:]] + [len(raw)]
    words: list[str] = []
    for (offset, _), end in zip(tokens, ends, strict=True):
        word = raw[offset:end].decode().strip()
        if len(word) > 1 and word[0] in "\"'" and word[0] == word[-1]:
            word = word[1:-1].replace(word[0] * 2, word[0])
        words += [word] if word else []
    return words


def _check_reads_only(statement: str) -> None:
    with duckdb.connect(":memory:") as connection:
        statements = connection.extract_statements(statement)
    if len(statements) != 1:
        got = f"{len(statements)}: run them one at a time" if statements else "none"
        raise ConfigError(f"expected one SQL statement, got {got}")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        _check_reads_only(_EXPLAIN.sub("", statement, count=1))
    elif kind != duckdb.StatementType.SELECT:
        raise ConfigError(
            f"a query may only read, got {kind.name}: expected SELECT, FROM, DESCRIBE, SUMMARIZE or EXPLAIN"
        )


def _add_decode(connection: Any, catalog: Catalog, manifests: Manifests) -> None:
    @cache
    def decoder(dataset: str) -> Decoder:
        return Decoder.of(catalog.store, manifests(*catalog.resolve(dataset)))

    def decode(ids: Any, datasets: Any) -> Any:
        pairs = zip(ids.to_pylist(), datasets.to_pylist(), strict=True)
        return pa.array([decoder(dataset).text(each) for each, dataset in pairs], pa.string())

    connection.create_function("decode", decode, ["INTEGER[]", "VARCHAR"], "VARCHAR", type="arrow")


def _explained(error: duckdb.Error, statement: str, known: dict[str, Relation]) -> Exception:
    """DuckDB's message, with a hint where a name lacks its quotes or does not exist."""
    message = str(error).strip().replace("\n\n", "\n")
    if isinstance(error, duckdb.OutOfMemoryException):
        what = message.partition("\n")[0]
        return ConfigError(
            f"the query needs more memory: {what}. Select less data, or set {MEMORY_VARIABLE} (8GB)"
        )
    if isinstance(error, duckdb.IOException | duckdb.FatalException):
        return IntegrityError(f"DuckDB could not read the store's files: {message}")
    unquoted = [
        name
        for name in known
        if re.search(r"[^a-z0-9_]", name) and name in statement and f'"{name}"' not in statement
    ]
    if unquoted:
        name = max(unquoted, key=len)
        message += f'\n\nNames with characters other than letters, digits and _ need double quotes: "{name}"'
    elif missing := re.search(r"Table with name (\S+) does not exist!", message):
        # DuckDB's own guesses are among its system tables
        close = difflib.get_close_matches(missing[1].lower(), known, n=3)
        guess = f"; did you mean {' or '.join(close)}?" if close else "."
        message = (
            f"there is no table or view {missing[1]!r}{guess} `tokenlake sql` without a statement lists all of "
            "them."
        )
    return ConfigError(message)
