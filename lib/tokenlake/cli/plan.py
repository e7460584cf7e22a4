"""``tokenlake plan``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokenlake.build.estimate import estimate
from tokenlake.build.plan import Plan, make_plan
from tokenlake.cli.options import AsJson, Config, Overrides, StoreUrl, with_store
from tokenlake.cli.output import note, print_json, print_tables, stdout
from tokenlake.config import load_config
from tokenlake.config.resolve import resolve
from tokenlake.report import numbers
from tokenlake.report.table import Table, facts, label, number


def plan(config: Config, /, *, set_: Overrides = (), store: StoreUrl = None, json: AsJson = False) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached), tokenizers loaded; tokens and output are estimates.
    """
    made = make_plan(resolve(load_config(config, with_store(set_, store))))
    if json:
        print_json(_as_json(made))
        return 0
    stdout().print(f"[bold]{made.build.name}[/]  into {made.build.store}\n")
    print_tables(_sections(made))
    for line in made.notes:
        note(f"note: {line}")
    return 0


def _as_json(made: Plan) -> dict[str, Any]:
    return {
        "name": made.build.name,
        "store": made.build.store,
        "fingerprint": made.fingerprint,
        "units": len(made.units),
        "input_bytes": made.input_bytes,
        "sources": _sources(made),
        "estimate": estimate(made),
        "notes": list(made.notes),
    }


def _sources(made: Plan) -> list[dict[str, Any]]:
    units = Counter(unit.source for unit in made.units)
    files = Counter(file.source for file in made.inputs)
    return [
        {
            "source": source.name,
            "files": files[source.name],
            "units": units[source.name],
            "bytes": made.source_bytes[source.name],
            "tokenizer": source.tokenizer.name_or_path,
            "splits": dict(source.splits),
        }
        for source in made.build.sources
    ]


def _sections(made: Plan) -> list[Table]:
    columns = [
        label("source"),
        number("files"),
        number("units"),
        number("bytes", "size", numbers.size),
        label("tokenizer"),
        label("splits"),
    ]
    lines = [line | {"splits": _splits(line["splits"])} for line in _sources(made)]
    return [Table.of(columns, lines, "Inputs"), facts(_expected(made), "Expected")]


def _splits(splits: dict[str, float]) -> str:
    return ", ".join(f"{name} {part:g}" for name, part in splits.items())


def _expected(made: Plan) -> list[tuple[str, str]]:
    expected = estimate(made)
    pack = made.build.pack
    rows = (
        f"about {numbers.short(expected['sequences'])} of {pack.seq_length:,} tokens"
        if pack
        else "one per document"
    )
    return [
        ("tokens", f"about {numbers.short(expected['tokens'])}"),
        ("sequences", rows),
        (
            "output",
            f"about {numbers.size(expected['output_bytes'])} in {numbers.plural(expected['files'], 'file')}",
        ),
        (
            "units",
            f"{numbers.plural(len(made.units), 'unit')} of at most {numbers.size(made.build.unit_size)}",
        ),
        ("fingerprint", made.fingerprint),
    ]
