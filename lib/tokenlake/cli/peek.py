"""``tokenlake peek``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from tokenlake.catalog import Catalog
from tokenlake.cli.options import AsJson, Name, StoreUrl, store_url
from tokenlake.cli.output import print_json, printable, stdout
from tokenlake.query import Decoder, Segment, Sequence, read_sequences
from tokenlake.report.numbers import count, plural
from tokenlake.storage import open_store

_HEAD, _TAIL = 360, 120


def peek(
    name: Name,
    /,
    *,
    number: Annotated[int, Parameter(name=["-n", "--number"], help="How many rows.")] = 3,
    row: Annotated[int, Parameter(help="The first row; negative counts from the end.")] = 0,
    split: Annotated[str | None, Parameter(help="Which split. Default: train.", show_default=False)] = None,
    full: Annotated[bool, Parameter(negative="", show_default=False, help="Print texts whole.")] = False,
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """Decode a few rows of a dataset, with the boundaries of their documents and where each came from.

    Uses the version's own copy of its tokenizer; special tokens stay visible.
    """
    catalog = Catalog(open_store(store_url(store)))
    manifest = catalog.manifest(*catalog.resolve(name))
    decoders = {name: Decoder.of(catalog.store, manifest, name) for name in manifest.tokenizer}
    sequences = list(read_sequences(catalog.store, manifest, split, row, number))
    if json:
        print_json([_as_json(sequence, decoders) for sequence in sequences])
        return 0
    console = stdout()
    for index, sequence in enumerate(sequences):
        if index:
            console.print()
        _print_sequence(console, sequence, decoders, full)
    return 0


def _as_json(sequence: Sequence, decoders: dict[str, Decoder]) -> dict[str, Any]:
    found = asdict(sequence)
    for segment, shown in zip(sequence.segments, found["segments"], strict=True):
        shown["ids"] = list(segment.ids)
        shown["text"] = decoders[segment.source].text(segment.ids)
    return found


def _print_sequence(console: Console, sequence: Sequence, decoders: dict[str, Decoder], full: bool) -> None:
    tokens = sum(len(segment.ids) for segment in sequence.segments)
    padding = f", {count(sequence.padding)} padding" if sequence.padding else ""
    console.print(
        Text(f"{sequence.split} row {count(sequence.row)}", style="bold"),
        Text(
            f"  {plural(tokens, 'token')} in {plural(len(sequence.segments), 'segment')}{padding}",
            style="dim",
        ),
        sep="",
    )
    begin = 0
    for segment in sequence.segments:
        console.print(_heading(segment, begin))
        console.print(_body(decoders[segment.source].text(segment.ids), full))
        begin += len(segment.ids)
    for name, value in sequence.kept.items():
        shown = printable(orjson.dumps(value, default=str).decode())
        console.print(Text.assemble((f"   {printable(name)}: ", "dim"), _body(shown, full)))


def _heading(segment: Segment, begin: int) -> Text:
    """``-- code  asyncio/events.py:0  ids 0-511 of the row, 1024- of the document``."""
    where = printable(f"{segment.source}  {segment.path}:{segment.position}")
    place = f"ids {begin}-{begin + len(segment.ids) - 1}"
    if segment.start:
        place += f", from token {count(segment.start)} of its document"
    return Text.assemble(("── ", "dim"), (where, "cyan"), (f"  {place}", "dim"))


def _body(text: str, full: bool) -> Text:
    """The text, its middle left out where it is long; control characters made visible."""
    hidden = len(text) - _HEAD - _TAIL
    if full or hidden <= _HEAD // 4:
        return Text(printable(text).rstrip("\n"))
    head, tail = printable(text[:_HEAD]), printable(text[-_TAIL:])
    return Text.assemble(head, (f" ... {count(hidden)} characters ... ", "dim italic"), tail.rstrip("\n"))
