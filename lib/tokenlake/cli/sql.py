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
from typing import Final

import duckdb
import pyarrow as pa

from tokenlake.base.cache.disk import default_folder
from tokenlake.base.numbers import plural
from tokenlake.base.termination import is_requested
from tokenlake.cli.console import AsJson, Data, StoreUrl, counting, note, note_unreadable, print_json
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.reports import Column, Table, label
from tokenlake.etl.reports.terminal import print_tables
from tokenlake.query.session import sql as answer_of
from tokenlake.query.tables import quoted, relations
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.schemes import default_store

_FIRST: Final = "sql> "
_MORE: Final = "...> "
_WELCOME: Final = (
    r"Statements end with a semicolon. \d lists what there is, \d NAME its columns. Ctrl-D ends."
)
_DESCRIBE: Final = re.compile(r"\\d(?:\s+(?P<name>.+?))?\s*;?\s*")


def converse(run: Callable[[str | None], None], read: Callable[[str], str] = input) -> None:
    """Read statements and run them, one after another, until the input ends.

    Args:
        run: one statement; None lists what there is. An error of Tokenlake is shown, and the next line is read.
        read: a line, after a prompt; EOFError ends, KeyboardInterrupt drops what was typed of a statement.
    """
    note(_WELCOME)
    typed = ""
    while True:
        try:
            line = read(_MORE if typed.strip() else _FIRST)
            found, typed = ([line], "") if described(line) and not typed.strip() else cut(f"{typed}{line}\n")
            for statement in found:
                run_command(statement, run)
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            if is_requested():  # SIGTERM ends the shell; Ctrl-C drops what was typed
                raise
            typed = ""
            note("cancelled")
        except TokenlakeError as error:
            note(f"error: {error}")


def run_command(statement: str, run: Callable[[str | None], None]) -> None:
    """Run a statement, or what a backslash stands for."""
    found = described(statement)
    name: str | None = None if found is None else found["name"]
    if name is not None:
        run(f"describe {name if name.startswith(chr(34)) else quoted(name)}")
    else:
        run(statement if found is None else None)


def described(line: str) -> re.Match[str] | None:
    return _DESCRIBE.fullmatch(line.strip())


def cut(text: str) -> tuple[list[str], str]:
    """Return the statements of a text that end with a semicolon, without it, and the rest.

    A semicolon in a string, a quoted name or a comment ends nothing. Nothing but comments is no statement.
    """
    raw, found, begin, blank = text.encode(), list[str](), 0, True
    for offset, kind in duckdb.tokenize(text):  # its offsets are of bytes
        if kind == duckdb.token_type.operator and raw[offset : offset + 1] == b";":
            found += [] if blank else [raw[begin:offset].decode().strip()]
            begin, blank = offset + 1, True
        elif kind != duckdb.token_type.comment:
            blank = False
    return found, "" if blank else raw[begin:].decode()


def with_history(action: Callable[[], None]) -> None:
    """Do something with the lines of earlier prompts at hand, and keep those of this one."""
    try:
        import readline  # not every Python has it
    except ImportError:
        action()
        return
    path = Path(default_folder()) / "sql_history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        action()
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)


_SHOWN_ROWS = 200
_SHOWN_CELL = 400


def sql(
    statement: str | None = None,
    /,
    *,
    store: StoreUrl = None,
    json: AsJson = False,
    csv: bool = False,
) -> int:
    """Query the datasets of a store with DuckDB.

    A dataset is a view of its newest version, "name@v1" is one version, and "name/documents" holds its provenance. The
    tables datasets, splits, shards, inputs, accounts and mixture describe the whole store, and decode(input_ids,
    'name') returns text. Files are hashed before they are read, and nothing can be written.

    Without a statement this is a prompt on a terminal, with a history; elsewhere the statements are read from standard
    input, and the first that fails is the last. Where there are none, the tables and views are listed.

    Args:
        statement: One statement that reads. Default: read statements from standard input.
        csv: Print CSV.
    """
    if json and csv:
        raise ConfigError("--json and --csv: a result has one form; give one of them")
    answer = partial(_answer, open_store(store or default_store()), json, csv)
    if statement is not None:
        answer(statement)
    elif sys.stdin and sys.stdin.isatty():
        with_history(lambda: converse(answer))
    else:
        piped = ""
        with suppress(OSError):  # it cannot be read
            piped = sys.stdin.read() if sys.stdin else ""
        found, rest = cut(piped)
        for each in [*found, *([rest] if rest else [])] or [r"\d"]:
            run_command(each, answer)
    return 0


def _answer(store: Store, as_json: bool, as_csv: bool, statement: str | None) -> None:
    """Run a statement and print its result; None lists what can be asked."""
    if statement is None:
        _print_relations(Catalog(store), as_json)
        return
    with counting("hashing before querying") as counter:
        result = answer_of(store, statement, on_verified=counter.add, on_unreadable=note_unreadable)
    if as_json:
        print_json(result.to_pylist())
    elif as_csv:
        writer = csv.writer(Data(), lineterminator="\n")
        writer.writerow(result.column_names)
        for batch in result.to_batches():
            writer.writerows([_plain(value) for value in row.values()] for row in batch.to_pylist())
    else:  # the first rows as a table; what is left out is said on stderr
        columns: list[Column] = []
        for field in result.schema:
            kind: pa.DataType = field.type
            figures = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
            columns.append(Column(field.name, field.name, _cell, "right" if figures else "left"))
        rows = tuple(tuple(row.values()) for row in result.slice(0, _SHOWN_ROWS).to_pylist())
        print_tables([Table(tuple(columns), rows)])
        if result.num_rows > _SHOWN_ROWS:
            many = plural(result.num_rows, "row")
            note(f"the first {_SHOWN_ROWS} of {many}: --json or --csv prints them all")


def _print_relations(catalog: Catalog, as_json: bool) -> None:
    lines: list[dict[str, str]] = []
    for each in sorted(relations(catalog).values(), key=lambda each: (each.kind == "table", each.name)):
        if each.kind == "quarantine":
            manifest = catalog.readable_manifest(Layout(each.dataset, each.version), note_unreadable)
            if manifest is None or not any(manifest.account.quarantined.values()):
                continue
        lines.append({"name": each.name, "about": each.about})
    if as_json:
        print_json(lines)
        return
    rows = ((name if name.isidentifier() else f'"{name}"', about) for name, about in map(dict.values, lines))
    print_tables([Table((label("name"), label("about")), tuple(rows))])


def _plain(value: object) -> object:
    """Lists, structs and maps as JSON text; the rest as it is."""
    return jsonlib.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else value


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    written = str(_plain(value))
    return written if len(written) <= _SHOWN_CELL else written[:_SHOWN_CELL] + "..."
