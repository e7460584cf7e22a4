"""``tokenlake plan``: what a run would do, for one build of texts and for a mixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from rich.text import Text

from tokenlake.cli.options import AsJson, Config, Overrides, StoreUrl, with_store
from tokenlake.cli.output import near, note, print_json, print_tables, stdout
from tokenlake.cli.progress import RunProgress
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolved import ResolvedBuild, ResolvedMixture, ResolvedSource
from tokenlake.config.steps import first_steps, foreseen, last_step
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.estimate import Estimate, estimate, total
from tokenlake.etl.plan.mixture import MixForecast, rows_of
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.planner import plan_build
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.mixing.schedule import WeightScheduler, row_weights
from tokenlake.report import numbers
from tokenlake.report.mixture import STOPS, share, weights_in_words
from tokenlake.report.plan import expected as expected_lengths
from tokenlake.report.plan import policy as length_policy
from tokenlake.report.table import Column, Table, facts, label, number
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog


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
    outcome = facts(_outcome(made, total(expected)), "Expected")
    return [_source_table(made, expected), _policies(made, expected), outcome]


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
    return expected_lengths(
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
            "long": length_policy(made.source(line["source"]).tokenizer),
            "tokenizer": near(line["tokenizer"]),
        }
        for line in _lines(made, expected)
    ]


def _source_table(made: Plan, expected: dict[str, Estimate]) -> Table:
    return Table.of([label("source"), *COLUMNS], source_lines(made, expected), "Inputs")


def _outcome(made: Plan, whole: Estimate) -> list[tuple[str, str]]:
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


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is of a source, or is drawn of it."""

    rows: int
    tokens: int


def guess_drawn(asked: ResolvedMixture, there: Mapping[str, Amount], append_eos: bool) -> dict[str, Amount]:
    """Return what a mixture of documents would draw of each source.

    The counts are those of one lane; more lanes change them by a few rows.

    Args:
        there: about how much of each source there is, at least a row and a token, in configuration order.
        append_eos: whether packing adds a token to each document.

    Raises:
        ConfigError: there is no such mixture of so much.
    """
    mixture = SourceMixture(
        {name: amount.rows for name, amount in there.items()},
        WeightScheduler(_points(asked, there), asked.interpolation),
        batch_size=asked.batch_size,
        block_size=asked.block_size,
        step_rows=asked.step_rows,
        seed=asked.seed,
        stop=asked.stop,
    )
    per_row = [Fraction(amount.tokens, amount.rows) + append_eos for amount in there.values()]
    rows = rows_of(asked, mixture, sum(amount.rows for amount in there.values()), per_row, None)
    drawn = map(int, mixture.drawn_before(rows if mixture.rows is None else min(rows, mixture.rows)))
    return {
        name: Amount(many, round(Fraction(many * amount.tokens, amount.rows)))
        for many, (name, amount) in zip(drawn, there.items(), strict=True)
    }


def _points(asked: ResolvedMixture, there: Mapping[str, Amount]) -> list[dict[str, object]]:
    means = {name: amount.tokens / amount.rows for name, amount in there.items()}
    points = [
        (step, {name: float(weights.get(name, 0.0)) for name in there}) for step, weights in asked.points
    ]
    if asked.weights_by == "tokens":
        points = [(step, row_weights(weights, means)) for step, weights in points]
    return [{"step": step, "weights": weights} for step, weights in points]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of a source that is text: a plan, and the version that it would end on where that is there."""

    source: str
    version: int | None
    plan: Plan
    expected: dict[str, Estimate]


def plan_steps(config: PipelineConfig, json: bool) -> int:
    """Print the plans of all builds that `config` is, the last one's as far as it can be known."""
    steps = first_steps(config)
    # What is wrong with the last step is said before inputs are read for the first.
    asked = foreseen(config)
    with RunProgress("planning") as progress:
        tokens = [_tokens(source, step, progress) for source, step in steps.items()]
        there = {each.source: each.version for each in tokens if each.version is not None}
        mixed = None
        if len(there) == len(steps):
            progress.say_now("planning the mixture")
            mixed = plan_build(last_step(config, there), progress)
    if json:
        print_json(_as_json(asked, tokens, mixed))
        return 0
    stdout().print(Text.assemble((asked.name, "bold"), f" into {near(asked.store)}\n"))
    tables = [_tokens_table(tokens)] if tokens else []
    print_tables(tables + (_waiting(asked, tokens) if mixed is None else _mixed(asked, mixed)))
    for line in _notes(tokens, mixed):
        note(line)
    return 0


def _tokens(source: str, config: PipelineConfig, progress: RunProgress) -> _Tokens:
    made = plan_build(config, progress)
    version = Catalog(open_store(made.store)).committed(made.build.name, made.fingerprint)
    progress.say_now(f"estimating {source} from a sample")
    return _Tokens(source, version, made, estimate(made))


def _as_json(asked: ResolvedBuild, tokens: list[_Tokens], mixed: Plan | None) -> dict[str, Any]:
    steps = [
        {"source": each.source, "version": each.version} | plan_as_json(each.plan, each.expected)
        for each in tokens
    ]
    return {
        "name": asked.name,
        "store": asked.store,
        "steps": steps,
        "mixture": None if mixed is None else _mixture_as_json(mixed),
        **({"guess": _guess(asked, tokens)} if mixed is None else {}),
    }


def _mixture_as_json(mixed: Plan) -> dict[str, Any]:
    return {
        "version": _version(mixed),
        "fingerprint": mixed.fingerprint,
        "units": len(mixed.units),
        "input_bytes": mixed.input_bytes,
        "estimate": None if mixed.forecast is None else mixed.forecast.to_json(),
        "notes": list(mixed.notes),
    }


def _version(mixed: Plan) -> int | None:
    return Catalog(open_store(mixed.store)).committed(mixed.build.name, mixed.fingerprint)


def _notes(tokens: list[_Tokens], mixed: Plan | None) -> list[str]:
    notes = [f"note: {each.source}: {line}" for each in tokens for line in each.plan.notes]
    if mixed is not None:
        return notes + [f"note: {line}" for line in mixed.notes]
    absent = ", ".join(each.source for each in tokens if each.version is None)
    return [
        *notes,
        f"The mixture is planned row by row once the tokens of {absent} exist; a run builds them.",
    ]


def _tokens_table(tokens: list[_Tokens]) -> Table:
    columns = [label("source"), label("dataset"), label("state"), *COLUMNS]
    lines = [
        line | {"dataset": each.plan.build.name, "state": _state(each.version)}
        for each in tokens
        for line in source_lines(each.plan, each.expected)
    ]
    return Table.of(columns, lines, "Tokens first")


def _state(version: int | None) -> str:
    return "to be built" if version is None else f"v{version} exists"


def _waiting(asked: ResolvedBuild, tokens: list[_Tokens]) -> list[Table]:
    """What is known of a mixture before its parents are there."""
    if asked.mixture is None:
        return []
    packed = [("packed", _packed(asked))] if asked.pack else []
    told = facts([("weights", _asked(asked.mixture)), ("end", _end(asked.mixture)), *packed], "Expected")
    guess = _guess(asked, tokens)
    return [Table.of([label("source"), *_GUESSED], guess, "Mixture"), told] if guess else [told]


def _guess(asked: ResolvedBuild, tokens: list[_Tokens]) -> list[dict[str, Any]]:
    """About how much is drawn of each source; nothing where some are stored already, or are too small to tell."""
    amounts = {each.source: _amount(asked, each) for each in tokens}
    there = {parent.name: amounts.get(parent.name, Amount(0, 0)) for parent in asked.parents}
    if asked.mixture is None or not all(amount.rows and amount.tokens for amount in there.values()):
        return []
    try:
        drawn = guess_drawn(asked.mixture, there, append_eos=asked.pack is not None)
    except ConfigError:
        # Such as too few tokens for `total_tokens`: by a guess alone a plan must not be refused.
        return []
    return [
        {
            "source": name,
            "rows": amount.rows,
            "tokens": amount.tokens,
            "drawn_rows": drawn[name].rows,
            "drawn_tokens": drawn[name].tokens,
            "epochs": drawn[name].rows / amount.rows,
        }
        for name, amount in there.items()
    ]


def _amount(asked: ResolvedBuild, tokens: _Tokens) -> Amount:
    """About how much there will be in the split that is mixed."""
    split = next(parent.split for parent in asked.parents if parent.name == tokens.source)
    part = dict(tokens.plan.source(tokens.source).splits).get(split, 0.0)
    expected = tokens.expected[tokens.source]
    return Amount(round(expected.documents * part), round(expected.tokens * part))


def _mixed(asked: ResolvedBuild, mixed: Plan) -> list[Table]:
    version = _version(mixed)
    about_units = [
        (
            "units",
            f"{numbers.plural(len(mixed.units), 'unit')}, {numbers.size(mixed.input_bytes)} to read",
        ),
        ("version", "to be built" if version is None else f"v{version} exists, nothing to do"),
        ("fingerprint", mixed.fingerprint),
    ]
    if mixed.forecast is None or asked.mixture is None:
        parents = ", ".join(parent.reference for parent in mixed.parents)
        packed = [("rows", _packed(asked))] if asked.pack else []
        return [facts([("from", parents), *packed, *about_units], "Expected")]
    return [
        _forecast_table(mixed.forecast, asked.mixture.weights_by),
        facts([*_expected(asked, asked.mixture, mixed.forecast), *about_units], "Expected"),
    ]


def _expected(asked: ResolvedBuild, mixture: ResolvedMixture, forecast: MixForecast) -> list[tuple[str, str]]:
    sequences = numbers.count(forecast.sequences) if asked.pack is None else about(forecast.sequences)
    return [
        ("tokens", about(forecast.tokens)),
        ("rows", f"{sequences} {_packed(asked) if asked.pack else forecast.level}"),
        ("weights", _asked(mixture)),
        ("end", f"after {numbers.count(forecast.rows)} {forecast.level}; {STOPS[mixture.stop]}"),
        (
            "order",
            f"{numbers.plural(forecast.lanes, 'lane')}, batches of {numbers.count(forecast.batch_size)}",
        ),
    ]


def _forecast_table(forecast: MixForecast, weights_by: str) -> Table:
    asked = number("asked", f"weight by {weights_by}", share)
    records: list[Mapping[str, Any]] = [
        {
            **one,
            "source": name,
            "asked": one["asked"] if one["asked_tokens"] is None else one["asked_tokens"],
        }
        for name, one in forecast.to_json()["sources"].items()
    ]
    return Table.of([label("source"), label("parent", "from"), asked, *_FORECAST], records, "Mixture")


_FORECAST: Final[tuple[Column, ...]] = (
    number("epochs", "epochs", lambda value: f"{value:.2f}"),
    number("rows", "rows available"),
    number("drawn_rows", "rows drawn"),
    number("unread_rows", "never drawn"),
    number("tokens", "tokens available"),
    number("drawn_tokens", "tokens drawn", about),
)


_GUESSED: Final[tuple[Column, ...]] = (
    number("epochs", "epochs", lambda value: f"~{value:.2f}"),
    number("rows", "rows available", about),
    number("drawn_rows", "rows drawn", about),
    number("tokens", "tokens available", about),
    number("drawn_tokens", "tokens drawn", about),
)


def _asked(mixture: ResolvedMixture) -> str:
    return weights_in_words(mixture.points, mixture.interpolation, mixture.step_rows, mixture.weights_by)


def _end(mixture: ResolvedMixture) -> str:
    if mixture.total_rows is not None:
        where = f"after {numbers.count(mixture.total_rows)} rows"
    elif mixture.total_tokens is not None:
        where = f"after about {numbers.short(mixture.total_tokens)} tokens"
    elif mixture.epochs is not None:
        where = f"after {mixture.epochs:g} times the available rows"
    else:
        return STOPS[mixture.stop]
    return f"{where}; {STOPS[mixture.stop]}"


def _packed(asked: ResolvedBuild) -> str:
    assert asked.pack is not None
    return f"of {numbers.count(asked.pack.seq_length)} tokens, {asked.pack.strategy}"


def plan(config: Config, /, *, set_: Overrides = (), store: StoreUrl = None, json: AsJson = False) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached), and tokenizers are loaded. The numbers of tokens and the size of
    the output are estimates from a sample of each source.

    If the configuration mixes text, the tokens of each source are planned first. The mixture itself is planned once
    these tokens exist: how many rows of each source it reads, and how often.
    """
    whole = load_config(config, with_store(set_, store))
    if not whole.is_text_build:
        return plan_steps(whole, json)
    with RunProgress("planning") as progress:
        made = plan_build(whole, progress)
        progress.say_now("estimating from a sample")
        expected = estimate(made)
    if json:
        print_json(plan_as_json(made, expected))
        return 0
    stdout().print(Text.assemble((made.build.name, "bold"), f" into {near(made.build.store)}\n"))
    print_tables(plan_tables(made, expected))
    for line in made.notes:
        note(f"note: {line}")
    return 0
