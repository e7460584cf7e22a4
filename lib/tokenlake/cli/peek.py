"""``tokenlake peek``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from tokenlake.cli.options import AsJson, Name, StoreUrl, store_url
from tokenlake.cli.output import print_json, printable, stdout
from tokenlake.query.sequences import Place, Segment, Sequence, mixed_as, read_sequences
from tokenlake.report.numbers import count, plural
from tokenlake.store.address import open_store
from tokenlake.store.base import ReadStore
from tokenlake.store.catalog import Catalog
from tokenlake.store.manifest import Manifest
from tokenlake.tokenizers.decode import Decoder

_HEAD, _TAIL = 360, 120


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
    catalog = Catalog(open_store(store_url(store)))
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


def decoders_of(store: ReadStore, manifest: Manifest) -> dict[str, Decoder]:
    """A decoder for each source that rows name; the sources of a mixture have one tokenizer."""
    found = {name: Decoder.of(store, manifest, name) for name in manifest.tokenizer}
    if manifest.mixture is not None and found:
        # Rows name the sources that their texts came from, whatever these were called in the mixture.
        shared = next(iter(found.values()))
        found |= {entry.source: shared for entry in manifest.inputs if entry.source not in found}
    return found


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
    tokens = sum(len(segment.ids) for segment in sequence.segments)
    padding = f", {count(sequence.padding)} padding" if sequence.padding else ""
    judged = "" if sequence.label is None else f", labelled {'good' if sequence.label else 'bad'}"
    console.print(
        Text(f"{sequence.split} row {count(sequence.row)}", style="bold"),
        Text(
            f"  {plural(tokens, 'token')} in {plural(len(sequence.segments), 'segment')}{padding}{judged}",
            style="dim",
        ),
        sep="",
    )
    begin = 0
    for segment in sequence.segments:
        console.print(_part_heading(segment) if segment.part else _heading(segment, begin, names))
        for learned, run in segment.runs():
            body = _body(decoders[segment.source].text(run), full)
            console.print(body if segment.learned is None or not learned else _learned(body))
        begin += len(segment.ids)
    for name, value in sequence.kept.items():
        shown = printable(orjson.dumps(value, default=str).decode())
        console.print(Text.assemble((f"   {printable(name)}: ", "dim"), _body(shown, full)))


def _heading(segment: Segment, begin: int, names: dict[Place, str]) -> Text:
    """``-- code  asyncio/events.py:0  ids 0-511 of the row, 1024- of the document``."""
    source = names.get((segment.source, segment.path), segment.source)
    # In a mixture that calls it otherwise both names are shown: the one of the mixture first.
    source += "" if source == segment.source else f" ({segment.source})"
    where = printable(f"{source}  {segment.path}:{segment.position}")
    place = f"ids {begin}-{begin + len(segment.ids) - 1}"
    if segment.start:
        place += f", from token {count(segment.start)} of its document"
    if segment.learned is not None:
        place += f", {count(sum(segment.learned))} in the loss"
    return Text.assemble(("── ", "dim"), (where, "cyan"), (f"  {place}", "dim"))


def _learned(body: Text) -> Text:
    """Mark what bears loss."""
    return Text.assemble(("▸ ", "bold green"), body)


def _part_heading(segment: Segment) -> Text:
    """``-- chosen  pairs/a.jsonl:0  12 tokens``."""
    where = printable(f"{segment.source}  {segment.path}:{segment.position}")
    tokens = f"  {plural(len(segment.ids), 'token')}"
    return Text.assemble(("── ", "dim"), (f"{segment.part}  ", "bold"), (where, "cyan"), (tokens, "dim"))


def _body(text: str, full: bool) -> Text:
    """The text, its middle left out where it is long; control characters made visible."""
    hidden = len(text) - _HEAD - _TAIL
    if full or hidden <= _HEAD // 4:
        return Text(printable(text).rstrip("\n"))
    head, tail = printable(text[:_HEAD]), printable(text[-_TAIL:])
    return Text.assemble(head, (f" ... {count(hidden)} characters ... ", "dim italic"), tail.rstrip("\n"))
