"""``tokenlake plan``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tokenlake.build.planning.estimate import Estimate, estimate, total
from tokenlake.build.planning.plan import Plan, make_plan
from tokenlake.cli.options import AsJson, Config, Overrides, StoreUrl, with_store
from tokenlake.cli.output import near, note, print_json, print_tables, stdout
from tokenlake.cli.progress import RunProgress
from tokenlake.config import load_config
from tokenlake.config.resolve import resolve
from tokenlake.config.resolved import ResolvedSource
from tokenlake.report import lengths, numbers
from tokenlake.report.table import Table, facts, label, number


def plan(config: Config, /, *, set_: Overrides = (), store: StoreUrl = None, json: AsJson = False) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached) and tokenizers loaded. Tokens and output are estimates
    from a sample of each source.
    """
    build = resolve(load_config(config, with_store(set_, store)))
    with RunProgress("planning") as progress:
        made = make_plan(build, on_event=progress)
        progress.say_now("estimating from a sample")
        expected = estimate(made)
    if json:
        print_json(_as_json(made, expected))
        return 0
    stdout().print(f"[bold]{made.build.name}[/] into {near(made.build.store)}\n")
    about = facts(_expected(made, total(expected)), "Expected")
    print_tables([_sources(made, expected), _policies(made, expected), about])
    for line in made.notes:
        note(f"note: {line}")
    return 0


def _as_json(made: Plan, expected: dict[str, Estimate]) -> dict[str, Any]:
    return {
        "name": made.build.name,
        "store": made.build.store,
        "fingerprint": made.fingerprint,
        "units": len(made.units),
        "input_bytes": made.input_bytes,
        "sources": _lines(made, expected),
        "estimate": total(expected).to_json(),
        "notes": list(made.notes),
    }


def _lines(made: Plan, expected: dict[str, Estimate]) -> list[dict[str, Any]]:
    units = Counter(unit.source for unit in made.units)
    files = Counter(file.source for file in made.inputs)
    return [
        {
            "source": source.name,
            "files": files[source.name],
            "units": units[source.name],
            "bytes": made.source_bytes[source.name],
            "documents": expected[source.name].documents,
            "tokens": expected[source.name].tokens,
            "long_documents": _long_documents(source, expected[source.name]),
            "tokenizer": source.tokenizer.name_or_path,
        }
        for source in made.build.sources
    ]


def _long_documents(source: ResolvedSource, expected: Estimate) -> dict[str, Any]:
    settings = source.tokenizer
    truncates = settings.long_documents == "truncate"
    return {
        "policy": settings.long_documents,
        "max_length": None if settings.long_documents == "keep" else settings.max_length,
        "strategy": settings.truncation_strategy if truncates else None,
        "side": settings.truncation_side if truncates else None,
        "documents": expected.long_documents,
        "dropped_tokens": expected.dropped_tokens,
    }


def _policies(made: Plan, expected: dict[str, Estimate]) -> Table:
    pairs = [(source.name, _policy(source, expected[source.name])) for source in made.build.sources]
    return facts(pairs, "Long documents")


def _policy(source: ResolvedSource, about: Estimate) -> str:
    drawn = about.tokens + about.dropped_tokens
    return lengths.expected(
        source.tokenizer,
        about.documents,
        about.long_documents,
        drawn,
        about.dropped_tokens,
        masked=source.texts.masked,
    )


def _sources(made: Plan, expected: dict[str, Estimate]) -> Table:
    columns = [
        label("source"),
        number("files"),
        number("units"),
        number("bytes", "size", numbers.size),
        number("documents", "documents", _about),
        number("tokens", "tokens", _about),
        label("long", "long documents"),
        label("tokenizer"),
    ]
    lines = [
        line
        | {
            "long": lengths.policy(made.source(line["source"]).tokenizer),
            "tokenizer": near(line["tokenizer"]),
        }
        for line in _lines(made, expected)
    ]
    return Table.of(columns, lines, "Inputs")


def _about(value: int) -> str:
    return f"~{numbers.short(value)}"


def _expected(made: Plan, whole: Estimate) -> list[tuple[str, str]]:
    pack = made.build.pack
    splits = {name: part for source in made.build.sources for name, part in source.splits}
    exact = all(unit.files is not None for unit in made.units)
    files = numbers.plural(whole.files, "file")
    rows = f"{_about(whole.sequences)} of {pack.seq_length:,} tokens" if pack else "one per document"
    if (preference := made.build.preference) is not None:
        rows = f"{_about(whole.documents)} for {preference.method}, in the columns of {preference.trainer}"
    return [
        ("tokens", _about(whole.tokens)),
        ("sequences" if pack else "rows", rows),
        ("splits", ", ".join(f"{name} {numbers.percent(part, 1)}" for name, part in splits.items())),
        ("output", f"~{numbers.size(whole.output_bytes)} in {'' if exact else 'at most '}{files}"),
        (
            "units",
            f"{numbers.plural(len(made.units), 'unit')} of {numbers.size(made.build.unit_size)} or less",
        ),
        ("fingerprint", made.fingerprint),
    ]
