"""A plan of texts, for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tokenlake.cli.output import near
from tokenlake.config.resolved import ResolvedSource
from tokenlake.etl.plan.estimate import Estimate, total
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.report import numbers, plan
from tokenlake.report.table import Table, facts, label, number


def about(value: float) -> str:
    """``~1.23 M``: a guess."""
    return f"~{numbers.short(value)}"


COLUMNS: Final = (
    number("files"),
    number("units"),
    number("bytes", "size", numbers.size),
    number("documents", "documents", about),
    number("tokens", "tokens", about),
    label("long", "long documents"),
    label("tokenizer"),
)
"""Of a source, after its name."""


def plan_tables(made: Plan, expected: dict[str, Estimate]) -> list[Table]:
    """What goes in, what becomes of long documents, what comes out."""
    outcome = facts(_expected(made, total(expected)), "Expected")
    return [_sources(made, expected), _policies(made, expected), outcome]


def plan_as_json(made: Plan, expected: dict[str, Estimate]) -> dict[str, Any]:
    """A plan of texts for programs."""
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
    return plan.expected(
        source.tokenizer,
        about.documents,
        about.long_documents,
        drawn,
        about.dropped_tokens,
        masked=source.texts.masked,
    )


def source_lines(made: Plan, expected: dict[str, Estimate]) -> list[dict[str, Any]]:
    """Return a record for each source, with the keys of :data:`COLUMNS` and more."""
    return [
        line
        | {
            "long": plan.policy(made.source(line["source"]).tokenizer),
            "tokenizer": near(line["tokenizer"]),
        }
        for line in _lines(made, expected)
    ]


def _sources(made: Plan, expected: dict[str, Estimate]) -> Table:
    return Table.of([label("source"), *COLUMNS], source_lines(made, expected), "Inputs")


def _expected(made: Plan, whole: Estimate) -> list[tuple[str, str]]:
    pack = made.build.pack
    splits = {name: part for source in made.build.sources for name, part in source.splits}
    exact = all(not isinstance(unit, TextUnit) or unit.files is not None for unit in made.units)
    files = numbers.plural(whole.files, "file")
    rows = f"{about(whole.sequences)} of {pack.seq_length:,} tokens" if pack else "one per document"
    if (preference := made.build.preference) is not None:
        rows = f"{about(whole.documents)} for {preference.method}, in the columns of {preference.trainer}"
    return [
        ("tokens", about(whole.tokens)),
        ("sequences" if pack else "rows", rows),
        ("splits", ", ".join(f"{name} {numbers.percent(part, 1)}" for name, part in splits.items())),
        ("output", f"~{numbers.size(whole.output_bytes)} in {'' if exact else 'at most '}{files}"),
        (
            "units",
            f"{numbers.plural(len(made.units), 'unit')} of {numbers.size(made.build.unit_size)} or less",
        ),
        ("fingerprint", made.fingerprint),
    ]
