"""``tokenlake peek``: what rows hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from tokenlake.cli.console import AsJson, Name, StoreUrl, catalog_of, print_json
from tokenlake.markup import printable
from tokenlake.numbers import count
from tokenlake.query.sequences import (
    Place,
    Segment,
    Sequence,
    decoders_of,
    mixed_as,
    read_sequences,
    shortened,
)
from tokenlake.reports.terminal import stdout
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
    catalog = catalog_of(store)
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
