"""The plan of a mixture, or of a build of stored datasets, for `tokenlake plan`.

A mixture of text takes two steps: each source becomes a dataset of tokens, and the
mixture draws rows of these. Rows can be planned only once the tokens exist. Until then
the first step is planned, and the second one is estimated:

    1. rows and tokens of a source   ~ the estimates of its build x the share of its split
    2. rows that the mixture draws   = those of a mixture in one lane over these sizes

With web (~1,000 rows, weight 0.75), code (~500 rows, weight 0.25) and `total_rows: 400`
the guess is 300 rows of web (0.30 epochs) and 100 of code (0.20 epochs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.cli.text_plan import (
    SOURCE_COLUMNS,
    TextPlan,
    approximately,
    committed_version,
    free_disk,
    notes_on_disk,
    plan_text,
    rows_on_work,
    work_record,
)
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.resolve import first_steps, last_step
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.errors import ConfigError
from tokenlake.etl import planner
from tokenlake.etl.commit.foreseen_units import ForeseenUnits, foresee_units
from tokenlake.etl.observability.build import RunProgress
from tokenlake.etl.plan.estimates import total
from tokenlake.etl.plan.mix_forecast import MixForecast
from tokenlake.etl.plan.mixed_rows import packed_forecast
from tokenlake.etl.plan.mixture import epoch_rows, missing, rows_of, spec_of
from tokenlake.etl.plan.plan import Plan
from tokenlake.etl.plan.stored import foresee, how_to_read_others
from tokenlake.etl.reports import Column, Table, facts, label, number
from tokenlake.etl.reports.dataset import STOPS, share, weights_in_words
from tokenlake.etl.same_tokens import under_their_name
from tokenlake.runtime.store.draws import open_mixture


def plan_mixture(config: PipelineConfig, progress: RunProgress) -> MixturePlan:
    """Plan the builds of tokens of a mixture, and the mixture if these tokens exist.

    Args:
        config: Configuration that mixes sources, or packs or copies stored datasets.
        progress: Display of the steps.

    Raises:
        ConfigError: Any of the builds is wrong, the last one too.
    """
    steps = first_steps(config)
    # Errors of the last step are found before inputs are read for the first ones.
    build = foresee(config)

    # 1. The tokens of each source of text. Those that exist already are named with
    # their version.
    text_plans: list[TextPlan] = []
    existing: dict[str, str] = {}  # source -> version that holds its tokens
    for source, step in steps.items():
        text_plan = plan_text(source, under_their_name(step, source), progress)
        text_plans.append(text_plan)
        if text_plan.version is not None:
            existing[source] = f"{text_plan.plan.dataset}@v{text_plan.version}"

    # 2. The mixture. Its rows are those of its parents, which must all exist.
    last_plan: Plan | None = None
    forecast: MixForecast | None = None
    foreseen: ForeseenUnits | None = None
    if len(existing) == len(steps):
        progress.doing("planning the mixture")
        last_plan = planner.plan(last_step(config, existing), progress)
        forecast = packed_forecast(last_plan)
        foreseen = foresee_units(last_plan)
    return MixturePlan(build, text_plans, last_plan, forecast, foreseen)


@final
@dataclass(frozen=True, slots=True)
class MixturePlan:
    """The plans of all builds of a mixture, as far as they can be known.

    Attributes:
        build: Resolved configuration of the last build. Its parents may not exist yet.
        text_plans: Plan of the tokens of each source that is text.
        last_plan: Plan of the last build; None while some tokens do not exist.
        forecast: Expected size of the mixture; None while some tokens do not exist, and
            where nothing is mixed.
        foreseen: Units that a run of the last build resumes, reuses and builds; None
            where that is not known.
    """

    build: ResolvedBuild
    text_plans: list[TextPlan]
    last_plan: Plan | None
    forecast: MixForecast | None
    foreseen: ForeseenUnits | None

    def to_json(self) -> dict[str, Any]:
        """Return the record that ``--json`` prints."""
        steps: list[dict[str, Any]] = []
        for text_plan in self.text_plans:
            step = {"source": text_plan.source, "version": text_plan.version}
            steps.append(step | text_plan.to_json())
        record: dict[str, Any] = {
            "name": self.build.name,
            "store": self.build.store,
            "steps": steps,
        }
        plan = self.last_plan
        if plan is None:
            return record | {
                "mixture": None,
                "guess": self._guess(),
                "notes": list(self.build.notes),
            }
        # A build of stored datasets without a mixture has no forecast.
        estimate: dict[str, Any] | None = None
        if self.forecast is not None:
            estimate = self.forecast.to_json()
        record["mixture"] = {
            "version": committed_version(plan),
            "fingerprint": plan.fingerprint,
            "units": len(plan.units),
            "work": work_record(self.foreseen),
            "input_bytes": plan.input_bytes,
            "estimate": estimate,
            "notes": list(plan.notes),
        }
        return record

    def notes(self) -> list[str]:
        """Return the notes on the builds of tokens and on the mixture, a line each."""
        lines: list[str] = []
        for text_plan in self.text_plans:
            lines += text_plan.notes()
        output_bytes = sum(self._expected_bytes())
        notes = notes_on_disk(self.build.store, output_bytes)
        if self.last_plan is not None:
            notes += self.last_plan.notes
            return lines + [f"note: {note}" for note in notes]

        # Before the tokens exist the notes are those of the configuration, and of a
        # guess.
        notes += self.build.notes
        notes += self._notes_on_splits()
        lines += [f"note: {note}" for note in notes]
        lines += [f"note (estimate): {note}" for note in self._notes_on_repetition()]
        absent_sources: list[str] = []
        for text_plan in self.text_plans:
            if text_plan.version is None:
                absent_sources.append(text_plan.source)
        absent = ", ".join(absent_sources)
        lines.append(
            f"The mixture is planned row by row once the tokens of {absent} exist; a run builds them."
        )
        return lines

    def tables(self) -> list[Table]:
        """Return the table of the builds of tokens, and those of the mixture."""
        # The builds of tokens share a table, with a row for each source.
        tables: list[Table] = []
        records: list[dict[str, Any]] = []
        for text_plan in self.text_plans:
            records += text_plan.table_records()
        if records:
            columns = [
                label("source"),
                label("dataset"),
                label("state"),
                *SOURCE_COLUMNS,
            ]
            tables.append(Table.of(columns, records, "Tokens first"))
        if self.last_plan is not None:
            return tables + self._tables_of_plan(self.last_plan)
        return tables + self._tables_of_guess()

    def _tables_of_guess(self) -> list[Table]:
        """Return the tables about a mixture whose parents do not exist yet."""
        mixture = self.build.mixture
        if mixture is None:
            return []
        # Estimates of tokens give a guess of the draws, but not of the exact rows.
        tables: list[Table] = []
        guess = self._guess()
        if guess:
            tables.append(_guess_table(guess))
        rows = [
            ("weights", _weights_in_words(mixture)),
            ("end", _end_in_words(mixture)),
        ]
        if self.build.pack:
            rows.append(("packed", _packing(self.build)))
        rows += self._output()
        tables.append(facts(rows, "Expected"))
        return tables

    def _tables_of_plan(self, plan: Plan) -> list[Table]:
        """Return the tables about a last build that is planned."""
        version = committed_version(plan)
        rows_of_version = rows_on_work(version, self.foreseen)
        if version is None:
            rows_of_version.insert(0, ("version", "to be built"))
        units = numbers.plural(len(plan.units), "unit")
        about_units = [
            ("units", f"{units}, {numbers.size(plan.input_bytes)} to read"),
            *rows_of_version,
            ("fingerprint", plan.fingerprint),
        ]
        mixture = self.build.mixture
        forecast = self.forecast
        if forecast is None or mixture is None:
            # Stored datasets that are packed, or tokenized again, without a mixture.
            outcome = [("from", ", ".join(parent.reference for parent in plan.parents))]
            if self.build.pack:
                outcome.append(("rows", _packing(self.build)))
            return [facts([*outcome, *about_units], "Expected")]

        # Packing decides how many sequences there are, so that their number is an
        # estimate.
        if self.build.pack:
            rows = f"{approximately(forecast.sequences)} {_packing(self.build)}"
        else:
            rows = f"{numbers.count(forecast.sequences)} {forecast.level}"
        end = f"after {numbers.count(forecast.rows)} {forecast.level}; {STOPS[mixture.stop_strategy]}"
        lanes = numbers.plural(forecast.lanes, "lane")
        outcome = [
            ("tokens", approximately(forecast.tokens)),
            ("rows", rows),
            ("weights", _weights_in_words(mixture)),
            ("end", end),
            ("order", f"{lanes}, batches of {numbers.count(forecast.batch_size)}"),
            *self._output(),
        ]
        records: list[dict[str, Any]] = []
        for source, draw in forecast.to_json()["sources"].items():
            # Weights are configured by rows or by tokens.
            weight = draw["asked"]
            if draw["asked_tokens"] is not None:
                weight = draw["asked_tokens"]
            records.append(draw | {"source": source, "asked": weight})
        draws = _draws_table(records, mixture.weights_by)
        return [draws, facts([*outcome, *about_units], "Expected")]

    def _output(self) -> list[tuple[str, str]]:
        """Return the rows of a table about the bytes of a run, and the disk."""
        token_bytes, mixture_bytes = self._expected_bytes()
        parts: list[str] = []
        if token_bytes:
            parts.append(f"~{numbers.size(token_bytes)} of tokens")
        if mixture_bytes:
            parts.append(f"~{numbers.size(mixture_bytes)} of the mixture")
        if not parts:
            return []
        return [("output", ", ".join(parts)), *free_disk(self.build.store)]

    def _expected_bytes(self) -> tuple[int, int]:
        """Return about how many bytes a run writes: of tokens, and of the mixture.

        They are 0 where nothing can be said. A row of the mixture takes as many bytes
        per token as the source that it is drawn from.
        """
        # 1. Builds of tokens that do not exist yet.
        token_bytes = 0
        bytes_per_token: dict[str, float] = {}
        for text_plan in self.text_plans:
            expected = total(text_plan.estimates)
            expected_tokens = max(1, expected.tokens)
            bytes_per_token[text_plan.source] = expected.output_bytes / expected_tokens
            if text_plan.version is None:
                token_bytes += expected.output_bytes

        # 2. Tokens that the mixture draws: planned, or guessed.
        drawn_tokens: dict[str, int] = {}
        plan = self.last_plan
        if plan is None:
            for record in self._guess():
                drawn_tokens[record["source"]] = record["drawn_tokens"]
        else:
            # Nothing is written of a version that exists.
            if self.forecast is None or committed_version(plan) is not None:
                return token_bytes, 0
            for source_name, source in self.forecast.sources.items():
                drawn_tokens[source_name] = source.drawn_tokens
            for parent in plan.parents:
                parent_tokens = max(1, parent.totals.tokens)
                bytes_per_token[parent.name] = parent.totals.bytes / parent_tokens

        # 3. Their bytes.
        mixture_bytes = 0.0
        for source_name, tokens in drawn_tokens.items():
            mixture_bytes += tokens * bytes_per_token.get(source_name, 0.0)
        return token_bytes, round(mixture_bytes)

    def _notes_on_splits(self) -> list[str]:
        """Return notes on splits of token datasets that the mixture does not read."""
        if self.build.mixture is None:
            return []
        mixed_splits = {parent.name: parent.split for parent in self.build.parents}
        notes: list[str] = []
        for text_plan in self.text_plans:
            mixed_split = mixed_splits[text_plan.source]
            dataset = text_plan.plan.build.name
            unread: dict[str, float] = {}  # split -> its share of the documents
            for source in text_plan.plan.build.sources:
                unread.update(source.splits)
            unread.pop(mixed_split, None)
            if not unread:
                continue
            shares: list[str] = []
            for split, split_share in unread.items():
                percentage = numbers.percent(split_share, 1.0)
                shares.append(f"{split} ({percentage} of its documents)")
            remedy = how_to_read_others(self.build.store, dataset, next(iter(unread)))
            notes.append(
                f"{text_plan.source}: of {dataset} only {mixed_split} is mixed, not {', '.join(shares)}; {remedy}"
            )
        return notes

    def _notes_on_repetition(self) -> list[str]:
        """Return a note for each source that the mixture probably repeats too often."""
        mixture = self.build.mixture
        guess = self._guess()
        if mixture is None or not guess:
            return []
        available: dict[str, tuple[int, int]] = {}
        drawn_rows: dict[str, int] = {}
        for record in guess:
            available[record["source"]] = (record["rows"], record["tokens"])
            drawn_rows[record["source"]] = record["drawn_rows"]
        return missing(mixture, available, drawn_rows)

    def _guess(self) -> list[dict[str, Any]]:
        """Return about how many rows the mixture draws of each source, a record each.

        The list is empty if some sources are stored already, or are too small for an
        estimate.
        """
        mixture = self.build.mixture
        sizes = self._estimated_sizes()
        is_estimated = all(rows > 0 and tokens > 0 for rows, tokens in sizes.values())
        if mixture is None or not is_estimated:
            return []
        try:
            drawn_rows = self._guessed_rows(mixture, sizes)
        except ConfigError:
            # Such as too few tokens for `total_tokens`: a guess alone must not refuse a
            # plan.
            return []
        # The draws, at the mean length of a source's rows.
        records: list[dict[str, Any]] = []
        for source, (rows, tokens) in sizes.items():
            row_count = drawn_rows[source]
            records.append(
                {
                    "source": source,
                    "rows": rows,
                    "tokens": tokens,
                    "drawn_rows": row_count,
                    "drawn_tokens": round(Fraction(row_count * tokens, rows)),
                    "epochs": row_count / rows,
                }
            )
        return records

    def _estimated_sizes(self) -> dict[str, tuple[int, int]]:
        """Return source -> its estimated rows and tokens in the split that is mixed.

        Both are 0 for a source that is stored already.
        """
        sizes: dict[str, tuple[int, int]] = {}
        splits: dict[str, str] = {}
        for parent in self.build.parents:
            sizes[parent.name or ""] = (0, 0)
            splits[parent.name or ""] = parent.split
        for text_plan in self.text_plans:
            split = splits[text_plan.source]
            rows = 0.0
            tokens = 0.0
            # A stored version that is tokenized again may have several sources.
            for source in text_plan.plan.build.sources:
                split_share = dict(source.splits).get(split, 0.0)
                expected = text_plan.estimates[source.name]
                rows += expected.documents * split_share
                tokens += expected.tokens * split_share
            sizes[text_plan.source] = (round(rows), round(tokens))
        return sizes

    def _guessed_rows(
        self, mixture: MixStageConfig, sizes: Mapping[str, tuple[int, int]]
    ) -> dict[str, int]:
        """Return source -> number of rows that a mixture in one lane draws.

        More lanes change it by a few rows.

        Raises:
            ConfigError: The sources end before the mixture does.
        """
        # Packing adds an end-of-sequence token to each document.
        added_tokens = 0
        if self.build.pack is not None:
            added_tokens = 1
        tokens_per_row: list[Fraction] = []
        for rows, tokens in sizes.values():
            tokens_per_row.append(Fraction(tokens, rows) + added_tokens)
        stream = open_mixture(spec_of(mixture, sizes), to_end=True)
        total_rows = rows_of(
            mixture, stream, epoch_rows(mixture, sizes), tokens_per_row, None
        )
        # A mixture ends before its limit if its sources do.
        if stream.rows is not None:
            total_rows = min(total_rows, stream.rows)
        counts = stream.drawn_before(total_rows)
        return {source: int(count) for source, count in zip(sizes, counts, strict=True)}


def _draws_table(records: list[dict[str, Any]], weights_by: str) -> Table:
    """Return the table of the rows that a planned mixture draws of each source.

    Args:
        records: Draws of each source, by name.
        weights_by: Unit of the weights: rows or tokens.
    """
    columns = [
        label("source"),
        label("parent", "from"),
        number("asked", f"weight by {weights_by}", share),
        number("epochs", "epochs", lambda epochs: f"{epochs:.2f}"),
        number("rows", "rows available", numbers.count),
        number("drawn_rows", "rows drawn", numbers.count),
        number("unread_rows", "never drawn"),
        number("tokens", "tokens available", numbers.count),
        number("drawn_tokens", "tokens drawn", approximately),
    ]
    return Table.of(columns, records, "Mixture")


def _guess_table(records: list[dict[str, Any]]) -> Table:
    """Return the table of the rows that a mixture will probably draw of each source."""
    columns: list[Column] = [
        label("source"),
        number("epochs", "epochs", lambda epochs: f"~{epochs:.2f}"),
        number("rows", "rows available", approximately),
        number("drawn_rows", "rows drawn", approximately),
        number("tokens", "tokens available", approximately),
        number("drawn_tokens", "tokens drawn", approximately),
    ]
    return Table.of(columns, records, "Mixture")


def _weights_in_words(mixture: MixStageConfig) -> str:
    """Return the weights of a mixture, or their schedule, as text."""
    if isinstance(mixture.epochs, Mapping):
        return "determined by the epochs of each source"
    step_rows = mixture.step_rows or mixture.batch_size
    return weights_in_words(
        mixture.points, mixture.weight_schedule_type, step_rows, mixture.weights_by
    )


def _end_in_words(mixture: MixStageConfig) -> str:
    """Return the end of a mixture, and the effect of a source that ends before it."""
    # One of three options limits a mixture; without any, its sources do.
    stop = STOPS[mixture.stop_strategy]
    if mixture.total_rows is not None:
        return f"after {numbers.count(mixture.total_rows)} rows; {stop}"
    if mixture.total_tokens is not None:
        return f"after about {numbers.short(mixture.total_tokens)} tokens; {stop}"
    if isinstance(mixture.epochs, Mapping):
        ends: list[str] = []
        for source, epochs in mixture.epochs.items():
            noun = "epochs"
            if epochs == 1:
                noun = "epoch"
            ends.append(f"{epochs:g} {noun} of {source}")
        return f"after {', '.join(ends)}; {stop}"
    if mixture.epochs is not None:
        factor = ""
        if mixture.epochs != 1:
            factor = f"{mixture.epochs:g} times "
        return f"after {factor}as many rows as all sources have; {stop}"
    return stop


def _packing(build: ResolvedBuild) -> str:
    """Return the width and strategy of packed rows: ``of 2,048 tokens, greedy``."""
    assert build.pack is not None
    return f"of {numbers.count(build.width)} tokens, {build.pack.strategy}"
