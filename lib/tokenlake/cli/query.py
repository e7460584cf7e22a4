"""``tokenlake peek`` and ``tokenlake sql``: what rows hold."""

from __future__ import annotations

import csv
import json as jsonlib
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import pyarrow as pa
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from tokenlake.cli.console import AsJson, Data, Name, StoreUrl, note, print_json, print_tables
from tokenlake.cli.progress import counting
from tokenlake.config.stores import default_store
from tokenlake.query.sequences import (
    Place,
    Segment,
    Sequence,
    decoders_of,
    mixed_as,
    read_sequences,
    shortened,
)
from tokenlake.query.session import query
from tokenlake.query.tables import Relation, relations
from tokenlake.report.numbers import count, plural
from tokenlake.report.printable import printable
from tokenlake.report.table import Column, Table, label
from tokenlake.report.terminal import stdout
from tokenlake.store.address import open_store
from tokenlake.store.base import Store
from tokenlake.store.catalog import Catalog
from tokenlake.tokenizers.decode import Decoder


def peek(
    name: Name,
    /,
    *,
    number: Annotated[int, Parameter(name=["-n", "--number"])] = 3,
    row: int = 0,
    split: str | None = None,
    full: bool = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Decode a few rows of a dataset, and show the boundaries of their documents and where each document came from.

    Where only some tokens count for the loss, ▸ marks them.

    The version's own copy of its tokenizer decodes the rows; special tokens stay visible.

    Args:
        number: How many rows. Default: 3.
        row: The first row; negative numbers count from the end. Default: 0.
        split: Which split. Default: train.
        full: Print whole texts.
    """
    catalog = Catalog(open_store(store or default_store()))
    manifest = catalog.manifest(*catalog.resolve(name))
    decoders = decoders_of(catalog.store, manifest)
    names = mixed_as(catalog, manifest)
    sequences = list(read_sequences(catalog.store, manifest, split, row, number))
    if json:
        print_json([_as_json(sequence, decoders, names) for sequence in sequences])
        return 0
    console = stdout()
    for index, sequence in enumerate(sequences):
        if index:
            console.print()
        _print_sequence(console, sequence, decoders, names, full)
    return 0


def _as_json(sequence: Sequence, decoders: dict[str, Decoder], names: dict[Place, str]) -> dict[str, Any]:
    found = asdict(sequence)
    if sequence.label is None:
        del found["label"]
    for segment, shown in zip(sequence.segments, found["segments"], strict=True):
        for name in ("part", "learned"):
            if getattr(segment, name) is None:
                del shown[name]
        if (mixed := names.get((segment.source, segment.path))) is not None:
            shown["mixed_as"] = mixed
        shown["ids"] = list(segment.ids)
        shown["text"] = decoders[segment.source].text(segment.ids)
    return found


def _print_sequence(
    console: Console,
    sequence: Sequence,
    decoders: dict[str, Decoder],
    names: dict[Place, str],
    full: bool,
) -> None:
    console.print(
        Text(f"{sequence.split} row {count(sequence.row)}", style="bold"),
        Text(f"  {sequence.content()}", style="dim"),
        sep="",
    )
    begin = 0
    for segment in sequence.segments:
        console.print(_heading(segment, begin, names))
        for in_loss, run in segment.runs():
            mark = ("▸ " if segment.learned is not None and in_loss else "", "bold green")
            console.print(Text.assemble(mark, _body(decoders[segment.source].text(run), full)))
        begin += len(segment.ids)
    for name, value in sequence.kept.items():
        shown = printable(orjson.dumps(value, default=str).decode())
        console.print(Text.assemble((f"   {printable(name)}: ", "dim"), _body(shown, full)))


def _heading(segment: Segment, begin: int, names: dict[Place, str]) -> Text:
    """``-- code  asyncio/events.py:0  ids 0-511``, or ``-- chosen  pairs/a.jsonl:0  12 tokens`` of a preference."""
    part = (f"{segment.part}  " if segment.part else "", "bold")
    where = (printable(segment.origin(names)), "cyan")
    return Text.assemble(("── ", "dim"), part, where, (f"  {segment.place(begin)}", "dim"))


def _body(text: str, full: bool) -> Text:
    """The text, its middle left out where it is long; control characters made visible."""
    head, hidden, tail = (text.rstrip("\n"), 0, "") if full else shortened(text)
    gap = (f" ... {count(hidden)} characters ... " if hidden else "", "dim italic")
    return Text.assemble(printable(head), gap, printable(tail))


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

    Args:
        statement: One statement that reads. Default: list the tables and views.
        csv: Print CSV.
    """
    opened = open_store(store or default_store())
    if statement is None:
        return _print_relations(opened, json)
    with counting("hashing before querying") as counter:
        result = query(opened, statement, on_verified=counter.add)
    if json:
        print_json(result.to_pylist())
    elif csv:
        _print_csv(result)
    else:
        _print_result(result)
    return 0


def _print_relations(store: Store, json: bool) -> int:
    catalog = Catalog(store)
    known = [
        each for each in relations(catalog).values() if each.kind != "quarantine" or _has_bad(catalog, each)
    ]
    lines = [{"name": each.name, "about": each.about} for each in sorted(known, key=_order)]
    if json:
        print_json(lines)
        return 0
    shown = [line | {"name": _as_written(line["name"])} for line in lines]
    print_tables([Table.of([label("name"), label("about")], shown)])
    return 0


def _has_bad(catalog: Catalog, relation: Relation) -> bool:
    return bool(sum(catalog.manifest(relation.dataset, relation.version).account.quarantined.values()))


def _order(relation: Relation) -> tuple[bool, str]:
    return relation.kind == "table", relation.name


def _as_written(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def _print_csv(result: pa.Table) -> None:
    writer = csv.writer(Data(), lineterminator="\n")
    writer.writerow(result.column_names)
    for batch in result.to_batches():
        for row in batch.to_pylist():
            writer.writerow([_plain(value) for value in row.values()])


def _plain(value: object) -> object:
    """Lists, structs and maps as JSON text; the rest as it is."""
    return jsonlib.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else value


def _print_result(result: pa.Table) -> None:
    """The first rows as a table; what is left out is said on stderr."""
    columns = tuple(_column(field) for field in result.schema)
    rows = tuple(tuple(row.values()) for row in result.slice(0, _SHOWN_ROWS).to_pylist())
    print_tables([Table(columns, rows)])
    if result.num_rows > _SHOWN_ROWS:
        note(f"the first {_SHOWN_ROWS} of {plural(result.num_rows, 'row')}: --json or --csv prints them all")


def _column(field: pa.Field[Any]) -> Column:
    figures = (
        pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
    )
    return Column(field.name, field.name, _cell, "right" if figures else "left")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    written = str(_plain(value))
    return written if len(written) <= _SHOWN_CELL else written[:_SHOWN_CELL] + "..."
