"""``tokenlake plan``, ``work`` and ``clean``: what a run would do, and work without Prefect."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final, final

from cyclopts import Parameter
from rich.text import Text

from tokenlake.base import numbers
from tokenlake.base.sizes import parse_duration
from tokenlake.cli.console import (
    AsJson,
    Config,
    Overrides,
    StoreUrl,
    Workers,
    counting,
    emit,
    note,
    print_json,
    with_store,
)
from tokenlake.config.load import load_config
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.resolve import first_steps, last_step
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.errors import CancelledError, ConfigError
from tokenlake.etl import planner
from tokenlake.etl.clean.cleaning import Cleaning, CleanResult
from tokenlake.etl.engines import local_pool, open_pool
from tokenlake.etl.export.plan import wanted_beside
from tokenlake.etl.observability.build import RunProgress
from tokenlake.etl.plan import Estimate, estimate, total
from tokenlake.etl.plan.mixture import epoch_rows, missing, rows_of, spec_of
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.plan.stored import foresee, how_to_read_others
from tokenlake.etl.reports import Table, facts, label, number
from tokenlake.etl.reports.dataset import STOPS, expected_lengths, length_policy, share, weights_in_words
from tokenlake.etl.reports.terminal import near, print_tables, stdout
from tokenlake.etl.same_tokens import under_their_name
from tokenlake.etl.store_engine import WorkDone, join_build, named_build, parse_share
from tokenlake.runtime.store.address import StoreAddress, open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.draws import open_mixture
from tokenlake.runtime.store.free_space import free_bytes
from tokenlake.runtime.store.ledger import UnitRecord
from tokenlake.runtime.store.schemes import is_local


def plan(config: Config, /, *, set_: Overrides = (), store: StoreUrl = None, json: AsJson = False) -> int:
    """Show what a run of this configuration would do, without writing anything.

    Inputs are listed and hashed (hashes are cached), and tokenizers are loaded. The numbers of tokens and the size of
    the output are estimates from a sample of each source.

    If the configuration mixes text, the tokens of each source are planned first. The mixture itself is planned once
    these tokens exist: how many rows of each source it reads, and how often.

    Exports and pushes to the Hub that would follow are listed with their places.
    """
    whole = load_config(config, with_store(set_, store))
    with RunProgress("planning") as progress:
        found = _plan_text("", whole, progress) if whole.is_text_build else _plan_mix(whole, progress)
    beside = wanted_beside(whole)
    if json:
        print_json(found.to_json() | {"exports": beside})
        return 0
    build = found.build
    stdout().print(Text.assemble((build.name, "bold"), f" into {near(build.store)}\n"))
    columns = (label("option"), label("dataset"), label("form"), label("place", "where"))
    exports = Table.of(columns, [line | {"place": near(line["place"])} for line in beside], "Exports")
    print_tables([*found.tables(), *([exports] if beside else [])])
    for line in found.notes():
        note(line)
    return 0


def _about(value: float, margin: float | None = None) -> str:
    """Return an estimate as text: ``~1.23 M``, or ``~1.23 M ±8%`` where its margin is known.

    Args:
        value: Estimate.
        margin: Half of the range that probably holds the true number; None where it is not known.
    """
    text = f"~{numbers.short(value)}"
    if not margin or value <= 0:
        return text
    return f"{text} ±{max(1, round(100 * margin / value))}%"


def _about_documents(expected: Estimate) -> str:
    """Return the number of documents as text: without a ``~`` where all of them were counted."""
    if expected.documents_margin == 0:
        return numbers.short(expected.documents)
    return _about(expected.documents, expected.documents_margin)


_COLUMNS: Final = (
    number("files"),
    number("units"),
    number("bytes", "size", numbers.size),
    number("about_documents", "documents", str),
    number("about_tokens", "tokens", str),
    label("long", "long documents"),
    label("tokenizer"),
)
"""Of a source, after its name."""


@final
@dataclass(frozen=True, slots=True)
class _TextPlan:
    """The plan of one build of texts.

    Attributes:
        source: of a mixture, whose tokens it makes; empty where it is all.
        version: that it would end on where that is there already.
        expected: of each source.
    """

    source: str
    version: int | None
    plan: Plan
    expected: dict[str, Estimate]

    @property
    def build(self) -> ResolvedBuild:
        return self.plan.build

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.build.name,
            "store": self.build.store,
            "fingerprint": self.plan.fingerprint,
            "units": len(self.plan.units),
            "input_bytes": self.plan.input_bytes,
            "sources": self._sources(),
            "estimate": total(self.expected).to_json(),
            "notes": list(self.plan.notes),
        }

    def lines(self) -> list[dict[str, Any]]:
        """Return a record for each source, with the keys of :data:`_COLUMNS` and more."""
        state = "to be built" if self.version is None else f"v{self.version} exists"
        found: list[dict[str, Any]] = []
        for line, source in zip(self._sources(), self.build.sources, strict=True):
            expected = self.expected[source.name]
            shown = {
                "long": length_policy(source.tokenizer),
                "tokenizer": near(line["tokenizer"]),
                "about_documents": _about_documents(expected),
                "about_tokens": _about(expected.tokens, expected.tokens_margin),
            }
            found.append(line | shown | {"dataset": self.build.name, "state": state})
        return found

    def tables(self) -> list[Table]:
        """What goes in, what becomes of long documents, what comes out."""
        policies: list[tuple[str, str]] = []
        for source in self.build.sources:
            about, masked = self.expected[source.name], source.texts.masked
            long, dropped = about.long_documents, about.dropped_tokens
            amounts = (about.documents, long, about.tokens + dropped, dropped)
            policies.append((source.name, expected_lengths(source.tokenizer, *amounts, masked=masked)))
        return [
            Table.of([label("source"), *_COLUMNS], self.lines(), "Inputs"),
            facts(policies, "Long documents"),
            facts(self._outcome(), "Expected"),
        ]

    def notes(self) -> list[str]:
        name = f"{self.source}: " if self.source else ""
        disk = _notes_on_disk(self.build.store, total(self.expected).output_bytes)
        return [f"note: {name}{line}" for line in [*self.plan.notes, *disk]]

    def _sources(self) -> list[dict[str, Any]]:
        units = Counter(unit.source for unit in self.plan.units)
        files = Counter(file.source for file in self.plan.inputs)
        found: list[dict[str, Any]] = []
        for source in self.build.sources:
            name, settings, expected = source.name, source.tokenizer, self.expected[source.name]
            truncates = settings.long_documents == "truncate"
            long_documents = {
                "policy": settings.long_documents,
                "max_length": None if settings.long_documents == "keep" else settings.max_length,
                "strategy": settings.truncation_strategy if truncates else None,
                "side": settings.truncation_side if truncates else None,
                "documents": expected.long_documents,
                "dropped_tokens": expected.dropped_tokens,
            }
            line = {"source": name, "files": files[name], "units": units[name]}
            line |= {"bytes": self.plan.source_bytes[name], "documents": expected.documents}
            more = {"long_documents": long_documents, "tokenizer": settings.name_or_path}
            found.append(line | {"tokens": expected.tokens} | more)
        return found

    def _outcome(self) -> list[tuple[str, str]]:
        build, pack, whole = self.build, self.build.pack, total(self.expected)
        splits = {name: part for source in build.sources for name, part in source.splits}
        shares = [f"{name} {numbers.percent(part, 1)}" for name, part in splits.items()]
        held = [f"{source.held_out.split} (held out)" for source in build.sources if source.held_out]
        exact = all(not isinstance(unit, TextUnit) or unit.files is not None for unit in self.plan.units)
        rows = f"{_about(whole.sequences)} of {build.width:,} tokens" if build.width else "one per document"
        if (preference := build.preference) is not None:
            rows = (
                f"{_about(whole.documents)} for {preference.method}, in the columns of {preference.trainer}"
            )
        files = f"{'' if exact else 'at most '}{numbers.plural(whole.files, 'file')}"
        units = numbers.plural(len(self.plan.units), "unit")
        return [
            ("tokens", _about(whole.tokens, whole.tokens_margin)),
            ("sequences" if pack else "rows", rows),
            ("splits", ", ".join([*shares, *held])),
            ("output", f"~{numbers.size(whole.output_bytes)} in {files}"),
            ("units", f"{units} of {numbers.size(build.unit_size or 0)} or less"),
            ("fingerprint", self.plan.fingerprint),
        ]


def _notes_on_disk(store: str, output_bytes: int) -> list[str]:
    """Return a note where the disk of a local store has less room than a build is expected to write."""
    if not is_local(store):
        return []
    free = free_bytes(Path(store))
    if free >= output_bytes:
        return []
    return [
        f"{near(store)} is on a disk with {numbers.size(free)} free; the build is expected to write about "
        f"{numbers.size(output_bytes)}. Free some space, or name another store with --store"
    ]


def _plan_text(source: str, config: PipelineConfig, progress: RunProgress) -> _TextPlan:
    made = planner.plan(config, progress)
    progress.doing(f"estimating {source} from a sample".replace("  ", " "))
    return _TextPlan(source, _committed(made), made, estimate(made))


def _plan_mix(config: PipelineConfig, progress: RunProgress) -> _MixPlan:
    # What is wrong with the last step is said before inputs are read for the first.
    steps, asked, mixed = first_steps(config), foresee(config), None
    tokens = [_plan_text(source, under_their_name(step, source), progress) for source, step in steps.items()]
    there = {
        each.source: f"{each.plan.dataset}@v{each.version}" for each in tokens if each.version is not None
    }
    if len(there) == len(steps):
        progress.doing("planning the mixture")
        mixed = planner.plan(last_step(config, there), progress)
    return _MixPlan(asked, tokens, mixed)


def _committed(made: Plan) -> int | None:
    """Return the version that a plan would end on, where it is there already."""
    return Catalog(open_store(made.store)).committed(made.build.name, made.fingerprint)


@final
@dataclass(frozen=True, slots=True)
class _MixPlan:
    """The plans of all builds that a mixture is, the last one's as far as it can be known.

    Attributes:
        build: the last one, as it is asked for.
        tokens: of each source that is text.
        mixed: None while some of these tokens are not there.
    """

    build: ResolvedBuild
    tokens: list[_TextPlan]
    mixed: Plan | None

    def to_json(self) -> dict[str, Any]:
        mixed = self.mixed
        steps = [{"source": each.source, "version": each.version} | each.to_json() for each in self.tokens]
        found: dict[str, Any] = {"name": self.build.name, "store": self.build.store, "steps": steps}
        if mixed is None:
            return found | {"mixture": None, "guess": self._guess(), "notes": list(self.build.notes)}
        mixture = {
            "version": _committed(mixed),
            "fingerprint": mixed.fingerprint,
            "units": len(mixed.units),
            "input_bytes": mixed.input_bytes,
            "estimate": None if mixed.forecast is None else mixed.forecast.to_json(),
            "notes": list(mixed.notes),
        }
        return found | {"mixture": mixture}

    def notes(self) -> list[str]:
        """Return the notes on the builds of tokens and on the mixture, a line each."""
        lines: list[str] = []
        for tokens in self.tokens:
            lines += tokens.notes()
        if self.mixed is not None:
            return lines + [f"note: {note}" for note in self.mixed.notes]
        lines += [f"note: {note}" for note in self.build.notes]
        lines += [f"note: {note}" for note in self._on_splits()]
        # Sources that the mixture repeats more often than it may.
        mixture = self.build.mixture
        guess = self._guess()
        if mixture is not None and guess:
            available = {line["source"]: (line["rows"], line["tokens"]) for line in guess}
            drawn = {line["source"]: line["drawn_rows"] for line in guess}
            lines += [f"note: about, {note}" for note in missing(mixture, available, drawn)]
        absent = ", ".join(tokens.source for tokens in self.tokens if tokens.version is None)
        return [
            *lines,
            f"The mixture is planned row by row once the tokens of {absent} exist; a run builds them.",
        ]

    def tables(self) -> list[Table]:
        columns = [label("source"), label("dataset"), label("state"), *_COLUMNS]
        lines = [line for each in self.tokens for line in each.lines()]
        first = [Table.of(columns, lines, "Tokens first")] if lines else []
        if self.mixed is not None:
            return first + self._mixed(self.mixed)
        if (mixture := self.build.mixture) is None:
            return first
        # What is known of a mixture before its parents are there.
        packed = [("packed", _packed(self.build))] if self.build.pack else []
        told = facts([("weights", _asked(mixture)), ("end", _end(mixture)), *packed], "Expected")
        guess = self._guess()
        return [*first, *([_mixture_table(guess)] if guess else []), told]

    def _mixed(self, mixed: Plan) -> list[Table]:
        version, mixture, forecast = _committed(mixed), self.build.mixture, mixed.forecast
        units = f"{numbers.plural(len(mixed.units), 'unit')}, {numbers.size(mixed.input_bytes)} to read"
        about_units = [
            ("units", units),
            ("version", "to be built" if version is None else f"v{version} exists, nothing to do"),
            ("fingerprint", mixed.fingerprint),
        ]
        if forecast is None or mixture is None:
            parents = ", ".join(parent.reference for parent in mixed.parents)
            rows = [("rows", _packed(self.build))] if self.build.pack else []
            return [facts([("from", parents), *rows, *about_units], "Expected")]
        level, rows = forecast.level, numbers.count(forecast.sequences)
        records = [
            one
            | {"source": name, "asked": one["asked"] if one["asked_tokens"] is None else one["asked_tokens"]}
            for name, one in forecast.to_json()["sources"].items()
        ]
        lanes = numbers.plural(forecast.lanes, "lane")
        packed = f"{_about(forecast.sequences)} {_packed(self.build)}" if self.build.pack else ""
        outcome = [
            ("tokens", _about(forecast.tokens)),
            ("rows", packed or f"{rows} {level}"),
            ("weights", _asked(mixture)),
            ("end", f"after {numbers.count(forecast.rows)} {level}; {STOPS[mixture.stop_strategy]}"),
            ("order", f"{lanes}, batches of {numbers.count(forecast.batch_size)}"),
        ]
        return [_mixture_table(records, mixture.weights_by), facts([*outcome, *about_units], "Expected")]

    def _on_splits(self) -> list[str]:
        """Notes on the splits of sources of which the mixture takes nothing, before their tokens are there."""
        if self.build.mixture is None:
            return []
        split_of = {parent.name: parent.split for parent in self.build.parents}
        notes: list[str] = []
        for tokens in self.tokens:
            split = split_of[tokens.source]
            dataset = tokens.plan.build.name
            others: dict[str, float] = {}  # split to its share of the documents
            for source in tokens.plan.build.sources:
                others.update(source.splits)
            others.pop(split, None)
            if others:
                shares = [
                    f"{name} ({numbers.percent(share, 1.0)} of its documents)"
                    for name, share in others.items()
                ]
                notes.append(
                    f"{tokens.source}: of {dataset} only {split} is mixed, not {', '.join(shares)}; "
                    f"{how_to_read_others(self.build.store, dataset, next(iter(others)))}"
                )
        return notes

    def _guess(self) -> list[dict[str, Any]]:
        """About how much is drawn of each source; nothing where some are stored already, or are too small to tell."""
        asked, there = self.build.mixture, {parent.name or "": (0, 0) for parent in self.build.parents}
        for each in self.tokens:
            split = next(parent.split for parent in self.build.parents if parent.name == each.source)
            rows = ids = 0.0
            for source in each.plan.build.sources:  # several, where a stored version is tokenized again
                part, expected = dict(source.splits).get(split, 0.0), each.expected[source.name]
                rows, ids = rows + expected.documents * part, ids + expected.tokens * part
            there[each.source] = round(rows), round(ids)
        if asked is None or not all(rows and tokens for rows, tokens in there.values()):
            return []

        append_eos = self.build.pack is not None
        per_row = [Fraction(tokens, rows) + append_eos for rows, tokens in there.values()]
        try:
            # In one lane: more of them change it by a few rows.
            mixture = open_mixture(spec_of(asked, there), to_end=True)
            wanted = rows_of(asked, mixture, epoch_rows(asked, there), per_row, None)
            drawn = mixture.drawn_before(wanted if mixture.rows is None else min(wanted, mixture.rows))
        except ConfigError:
            # Such as too few tokens for `total_tokens`: by a guess alone a plan must not be refused.
            return []
        return [
            {
                "source": name,
                "rows": rows,
                "tokens": tokens,
                "drawn_rows": int(many),
                "drawn_tokens": round(Fraction(int(many) * tokens, rows)),
                "epochs": int(many) / rows,
            }
            for many, (name, (rows, tokens)) in zip(drawn, there.items(), strict=True)
        ]


def _mixture_table(records: list[dict[str, Any]], weights_by: str | None = None) -> Table:
    """What is drawn of each source; without `weights_by` it is a guess."""
    parents = (
        [label("parent", "from"), number("asked", f"weight by {weights_by}", share)] if weights_by else []
    )
    unread = [number("unread_rows", "never drawn")] if weights_by else []
    counted, mark = (numbers.count, "") if weights_by else (_about, "~")
    columns = [
        label("source"),
        *parents,
        number("epochs", "epochs", lambda value: f"{mark}{value:.2f}"),
        number("rows", "rows available", counted),
        number("drawn_rows", "rows drawn", counted),
        *unread,
        number("tokens", "tokens available", counted),
        number("drawn_tokens", "tokens drawn", _about),
    ]
    return Table.of(columns, records, "Mixture")


def _asked(mixture: MixStageConfig) -> str:
    if isinstance(mixture.epochs, Mapping):
        return "as the epochs of each source say"
    return weights_in_words(
        mixture.points,
        mixture.weight_schedule_type,
        mixture.step_rows or mixture.batch_size,
        mixture.weights_by,
    )


def _end(mixture: MixStageConfig) -> str:
    if mixture.total_rows is not None:
        where = f"after {numbers.count(mixture.total_rows)} rows"
    elif mixture.total_tokens is not None:
        where = f"after about {numbers.short(mixture.total_tokens)} tokens"
    elif isinstance(mixture.epochs, Mapping):
        ends = (f"{n:g} epoch{'' if n == 1 else 's'} of {name}" for name, n in mixture.epochs.items())
        where = f"after {', '.join(ends)}"
    elif mixture.epochs is not None:
        times = "" if mixture.epochs == 1 else f"{mixture.epochs:g} times "
        where = f"after {times}as many rows as all sources have"
    else:
        return STOPS[mixture.stop_strategy]
    return f"{where}; {STOPS[mixture.stop_strategy]}"


def _packed(asked: ResolvedBuild) -> str:
    assert asked.pack is not None
    return f"of {numbers.count(asked.width)} tokens, {asked.pack.strategy}"


def work(
    store: str,
    /,
    *names: Annotated[
        str, Parameter(help="What is being built: NAME or NAME@v3; several, one after the other.")
    ],
    share: str = "0/1",
    workers: Workers = None,
    wait: str = "0",
    json: AsJson = False,
) -> int:
    """Build units of a build that `tokenlake run --engine store` has planned, until none is left.

    Any number of these may run, on any machines that reach the store and the inputs, and each may be killed: what is
    finished is kept, and what is not is built by another. A machine that would make other bytes is refused.

    Args:
        store: The store: a path, s3:// or gs://.
        share: I/N: take every Nth unit first, from the Ith on (from 0), then any that nobody builds.
        wait: How long to wait for each plan, such as 10m. Default: not at all.
    """
    if not names:
        raise ConfigError("no build is named; expected NAME or NAME@v3 after the store")
    where, part, patience = StoreAddress.of(store), parse_share(share), parse_duration(wait)
    done: list[WorkDone] = []
    try:
        with local_pool(workers, started=1) as pool:
            for name in names:
                layout = named_build(where, name, patience)
                one = join_build(where, layout, pool, share=part, patience=patience, on_unit=_tell)
                units = numbers.plural(one.built, "unit")
                note(f"{layout.prefix}: {units} built here, {one.found} by others")
                done.append(one)
    except (KeyboardInterrupt, CancelledError):
        note("cancelled: finished units are kept, and others build the rest")
        return CancelledError.exit_code
    if json:
        print_json({key: sum(getattr(one, key) for one in done) for key in ("built", "found")})
    return 0


def _tell(record: UnitRecord, seconds: float) -> None:
    rows, files = numbers.plural(record.account.rows_read, "row"), f"{len(record.parts)} files"
    sys.stderr.write(f"unit {record.unit:05d}: {rows}, {files}, {numbers.duration(seconds)}\n")


_REASONS = (label("reason"), number("rows"), number("share", write=lambda share: f"{share:.2%}"))


def clean(
    config: Config,
    /,
    *,
    workers: Workers = None,
    set_: Overrides = (),
    store: StoreUrl = None,
    json: AsJson = False,
) -> int:
    """List the documents that a build is to leave out: duplicates, poor text, parts of evaluation sets.

    The section `clean` of the configuration says what is looked for. The list is a Parquet file, which a build takes
    by `exclude` of a dataset. What is found out about each document is kept in the store, in `.clean`: a run that was
    stopped goes on, and another one reads new files alone.
    """
    cleaning = Cleaning(load_config(config, with_store(set_, store)))
    pending = cleaning.pending
    if pending:
        total = sum(unit.bytes for unit in pending)
        with counting("reading") as counter, open_pool(None, workers, cleaning.config.ray) as pool:
            counter.set(0, total)
            cleaning.sign(pool, on_progress=lambda fields: counter.add(int(fields.get("bytes", 0))))
    result = cleaning.settle()
    emit(result.to_json(), json, lambda: _print(result))
    if not json:
        _note_use_of_list(cleaning.config, result.output, config)
    return 0


def _note_use_of_list(config: PipelineConfig, output: str, config_file: str) -> None:
    """Say on stderr how a build leaves out the documents of a list that `tokenlake clean` wrote.

    Args:
        config: Configuration of the run.
        output: Path of the list.
        config_file: File that the configuration was read from.
    """
    list_file = Path(output).absolute()
    unaware = [
        dataset.name
        for dataset in config.datasets
        if dataset.exclude is None or Path(dataset.exclude).absolute() != list_file
    ]
    run = f"tokenlake run {near(config_file)}"
    if unaware:
        names = ", ".join(map(str, unaware))
        note(f"next: write `exclude: {near(output)}` under {names} of `datasets`, then `{run}`")
    else:
        note(f"next: `{run}` builds without these documents")


def _print(result: CleanResult) -> None:
    account = result.account
    out = account.rows_read - account.kept
    stdout().print(
        f"{near(result.output)}: {numbers.plural(sum(account.filtered.values()), 'document')} to leave out; "
        f"{account.kept:,} of {numbers.plural(account.rows_read, 'row')} kept"
    )
    if out:
        reasons = sorted(account.filtered.items(), key=lambda item: (-item[1], item[0]))
        reasons += ((f"bad record: {reason}", rows) for reason, rows in sorted(account.quarantined.items()))
        rows = tuple((reason, rows, rows / account.rows_read) for reason, rows in reasons)
        print_tables([Table(_REASONS, rows)])
    for line in result.notes:
        note(line)
