"""``tokenlake sql``: one statement, a script, or a prompt."""

from __future__ import annotations

import csv
import json as jsonlib
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

import duckdb
import pyarrow as pa

from tokenlake.base.cache.disk import default_folder
from tokenlake.base.numbers import plural
from tokenlake.base.termination import is_requested
from tokenlake.cli.console import (
    AsJson,
    Data,
    StoreUrl,
    counting,
    note,
    note_unreadable,
    print_json,
)
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.reports import Column, Table, label
from tokenlake.etl.reports.terminal import print_tables
from tokenlake.query.relation_names import Relation, relations
from tokenlake.query.session import sql as answer_of
from tokenlake.query.views import quoted
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.schemes import default_store

# Prompts of a statement and of its further lines.
_FIRST: Final = "sql> "
_MORE: Final = "...> "
_WELCOME: Final = r"Statements end with a semicolon. \d lists what there is, \d NAME its columns. Ctrl-D ends."
_DESCRIBE: Final = re.compile(r"\\d(?:\s+(?P<name>.+?))?\s*;?\s*")


def converse(
    run: Callable[[str | None], None], read: Callable[[str], str] = input
) -> None:
    """Read statements and run them, one after another, until the input ends.

    Args:
        run: Function that runs one statement; None lists the tables. After an error of
            Tokenlake the next line is read.
        read: Function that returns a line after a prompt. EOFError ends the loop,
            KeyboardInterrupt drops the lines of an unfinished statement.
    """
    note(_WELCOME)
    unfinished = ""  # lines of a statement without its semicolon
    while True:
        try:
            is_first_line = not unfinished.strip()
            if is_first_line:
                line = read(_FIRST)
            else:
                line = read(_MORE)
            # Inside of a statement a backslash is a part of it.
            if is_first_line and _backslash_command(line):
                statements = [line]
                unfinished = ""
            else:
                statements, unfinished = split_statements(f"{unfinished}{line}\n")
            for statement in statements:
                run_command(statement, run)
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            # SIGTERM ends the shell; Ctrl-C drops the unfinished statement.
            if is_requested():
                raise
            unfinished = ""
            note("cancelled")
        except TokenlakeError as error:
            note(f"error: {error}")


def run_command(statement: str, run: Callable[[str | None], None]) -> None:
    """Run a statement, or the statement of a backslash command.

    Args:
        statement: SQL, ``\\d`` for the list of tables, or ``\\d NAME`` for the columns
            of one.
        run: Function that runs one statement; None lists the tables.
    """
    command = _backslash_command(statement)
    if command is None:
        run(statement)
        return
    name: str | None = command["name"]
    if name is None:
        run(None)
        return
    # Names with other characters need quotes, which nobody types at a prompt.
    if not name.startswith('"'):
        name = quoted(name)
    run(f"describe {name}")


def _backslash_command(line: str) -> re.Match[str] | None:
    """Return the match of a line that is ``\\d`` or ``\\d NAME``, otherwise None."""
    return _DESCRIBE.fullmatch(line.strip())


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements of a text, and the unfinished rest.

    A statement ends with a semicolon, which is left out.

    A semicolon in a string, a quoted name or a comment ends nothing. Comments alone are
    no statement.
    """
    text_bytes = text.encode()
    statements: list[str] = []
    start = 0  # byte offset of the current statement
    is_blank = True  # as long as the current statement consists of comments
    for offset, kind in duckdb.tokenize(text):  # offsets are of bytes
        if (
            kind == duckdb.token_type.operator
            and text_bytes[offset : offset + 1] == b";"
        ):
            if not is_blank:
                statements.append(text_bytes[start:offset].decode().strip())
            start = offset + 1
            is_blank = True
        elif kind != duckdb.token_type.comment:
            is_blank = False
    unfinished = ""
    if not is_blank:
        unfinished = text_bytes[start:].decode()
    return statements, unfinished


def with_history(action: Callable[[], None]) -> None:
    """Run an action with the lines of earlier prompts, and save those of this one."""
    try:
        import readline  # not every Python has it
    except ImportError:
        action()
        return
    path = Path(default_folder()) / "sql_history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_SAVED_LINES)
    try:
        action()
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)


_SHOWN_ROWS = 200  # of a result on a terminal
_SHOWN_CELL = 400  # characters of a value: a row of tokens has thousands
_SAVED_LINES = 1000  # of the history


def sql(
    statement: str | None = None,
    /,
    *,
    store: StoreUrl = None,
    json: AsJson = False,
    csv: bool = False,
) -> int:
    """Query the datasets of a store with DuckDB.

    A dataset is a view of its newest version, "name@v1" is one version, and
    "name/documents" holds its provenance. The tables datasets, splits, shards, inputs,
    accounts and mixture describe the whole store, and decode(input_ids, 'name') returns
    text. Files are hashed before they are read, and nothing can be written.

    Without a statement this is a prompt on a terminal, with a history; elsewhere the
    statements are read from standard input, up to the first that fails. Without input,
    the tables and views are listed.

    Args:
        statement: Statement that reads. Default: read statements from standard input.
        csv: Print CSV.
    """
    if json and csv:
        raise ConfigError("--json and --csv: give one of them")
    # A statement, a prompt, or statements from a file.
    answer = partial(_answer, open_store(store or default_store()), json, csv)
    if statement is not None:
        answer(statement)
    elif sys.stdin and sys.stdin.isatty():
        with_history(lambda: converse(answer))
    else:
        for piped_statement in _piped_statements() or [r"\d"]:
            run_command(piped_statement, answer)
    return 0


def _piped_statements() -> list[str]:
    """Return the statements on standard input; the last one needs no semicolon."""
    text = ""
    # A closed input, or one that cannot be read, holds no statements.
    with suppress(OSError):
        if sys.stdin:
            text = sys.stdin.read()
    statements, unfinished = split_statements(text)
    if unfinished:
        statements.append(unfinished)
    return statements


def _answer(store: Store, as_json: bool, as_csv: bool, statement: str | None) -> None:
    """Run a statement and print its result; None lists the tables and views."""
    if statement is None:
        _print_relations(Catalog(store), as_json)
        return
    with counting("hashing before querying") as counter:
        result = answer_of(
            store, statement, on_verified=counter.add, on_unreadable=note_unreadable
        )
    if as_json:
        print_json(result.to_pylist())
    elif as_csv:
        _print_csv(result)
    else:
        _print_table(result)


def _print_csv(result: pa.Table) -> None:
    """Print a result as CSV; lists, structs and maps are JSON text."""
    writer = csv.writer(Data(), lineterminator="\n")
    writer.writerow(result.column_names)
    for batch in result.to_batches():
        for row in batch.to_pylist():
            plain_values = [_plain(value) for value in row.values()]
            writer.writerow(plain_values)


def _print_table(result: pa.Table) -> None:
    """Print the first rows of a result as a table, and the number of rows on stderr."""
    # Numbers stand on the right, as in all tables.
    columns: list[Column] = []
    for field in result.schema:
        align: Literal["left", "right"] = "left"
        if _is_number(field.type):
            align = "right"
        columns.append(Column(field.name, field.name, _cell, align))
    rows: list[tuple[object, ...]] = []
    for row in result.slice(0, _SHOWN_ROWS).to_pylist():
        rows.append(tuple(row.values()))
    print_tables([Table(tuple(columns), tuple(rows))])
    if result.num_rows > _SHOWN_ROWS:
        row_count = plural(result.num_rows, "row")
        note(f"the first {_SHOWN_ROWS} of {row_count}: --json or --csv prints them all")


def _is_number(column_type: pa.DataType) -> bool:
    """Return True for an Arrow type of numbers."""
    is_integer = pa.types.is_integer(column_type)
    is_float = pa.types.is_floating(column_type)
    return is_integer or is_float or pa.types.is_decimal(column_type)


def _print_relations(catalog: Catalog, as_json: bool) -> None:
    """Print the tables and views of a store.

    A view of quarantined records is listed only if there are any.
    """
    records: list[dict[str, str]] = []

    # Views of datasets come first, then the tables about the store.
    def kind_and_name(relation: Relation) -> tuple[bool, str]:
        return relation.kind == "table", relation.name

    views_first = sorted(relations(catalog).values(), key=kind_and_name)
    for relation in views_first:
        if relation.kind == "quarantine":
            layout = Layout(relation.dataset, relation.version)
            manifest = catalog.readable_manifest(layout, note_unreadable)
            if manifest is None or not any(manifest.account.quarantined.values()):
                continue
        records.append({"name": relation.name, "about": relation.about})
    if as_json:
        print_json(records)
        return
    rows: list[tuple[str, str]] = []
    for record in records:
        # Quoted where SQL needs it, so that a name can be copied.
        name = record["name"]
        if not name.isidentifier():
            name = f'"{name}"'
        rows.append((name, record["about"]))
    print_tables([Table((label("name"), label("about")), tuple(rows))])


def _plain(value: object) -> object:
    """Return lists, structs and maps as JSON text, and other values as they are."""
    if isinstance(value, list | dict):
        return jsonlib.dumps(value, default=str, ensure_ascii=False)
    return value


def _cell(value: object) -> str:
    """Return a value as the text of a cell, which is cut if it is long."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(_plain(value))
    if len(text) <= _SHOWN_CELL:
        return text
    return text[:_SHOWN_CELL] + "..."
