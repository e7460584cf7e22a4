"""The plan of a build of text, for `tokenlake plan`.

It shows the inputs, the treatment of long documents, and the expected output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tokenlake.base import numbers
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.etl import planner
from tokenlake.etl.commit.foreseen_units import ForeseenUnits, foresee_units
from tokenlake.etl.observability.build import RunProgress
from tokenlake.etl.plan.estimates import Estimate, estimate, total
from tokenlake.etl.plan.plan import Plan, TextUnit
from tokenlake.etl.reports import Table, facts, label, number
from tokenlake.etl.reports.dataset import expected_lengths, length_policy
from tokenlake.etl.reports.terminal import near
from tokenlake.etl.sources.bad_reasons import bad_in_words, sufficient_fraction
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.free_space import free_bytes
from tokenlake.runtime.store.schemes import is_local

SOURCE_COLUMNS: Final = (
    number("files"),
    number("units"),
    number("about_bytes", "size", str),
    number("about_documents", "documents", str),
    number("about_tokens", "tokens", str),
    label("long", "long documents"),
    label("tokenizer"),
)
"""Columns of a table of sources, after the name of the source."""


def plan_text(source: str, config: PipelineConfig, progress: RunProgress) -> TextPlan:
    """Plan a build of text, and estimate its output from a sample.

    Args:
        source: Source of a mixture whose tokens the build makes; empty for a build by
            itself.
        config: Configuration of the build.
        progress: Display of the steps.
    """
    plan = planner.plan(config, progress)
    # A sample of each source is tokenized, which takes time, so that the source is
    # named.
    subject = "from a sample"
    if source:
        subject = f"{source} from a sample"
    progress.doing(f"estimating {subject}")
    estimates = estimate(plan)
    return TextPlan(
        source, committed_version(plan), plan, estimates, foresee_units(plan)
    )


def committed_version(plan: Plan) -> int | None:
    """Return the version with the fingerprint of a plan, None if there is none yet."""
    catalog = Catalog(open_store(plan.store))
    return catalog.committed(plan.build.name, plan.fingerprint)


def work_record(foreseen: ForeseenUnits | None) -> dict[str, Any] | None:
    """Return the units that a run resumes, reuses and builds, for JSON."""
    if foreseen is None:
        return None
    return foreseen.to_json()


def rows_on_work(
    version: int | None, foreseen: ForeseenUnits | None
) -> list[tuple[str, str]]:
    """Return the rows of a table about work that a run does not repeat.

    Args:
        version: Committed version that the run finds; None if it builds one.
        foreseen: Units that the run resumes, reuses and builds; None if unknown.
    """
    if version is not None:
        return [("version", f"v{version} exists, nothing to do")]
    if foreseen is None or not foreseen.in_words():
        return []
    return [("work", foreseen.in_words())]


def approximately(value: float, margin: float | None = None) -> str:
    """Return an estimate as text: ``~1.23 M``, or ``~1.23 M ±8%`` with its margin.

    Args:
        value: Estimate.
        margin: Half of the range that probably holds the true number; None if unknown.
    """
    return f"~{numbers.short(value)}{margin_in_percent(value, margin)}"


def margin_in_percent(value: float, margin: float | None) -> str:
    """Return the text `` ±8%`` of a margin; an empty text if it is unknown.

    Args:
        value: Estimate.
        margin: Half of the range around it.
    """
    if not margin or value <= 0:
        return ""
    percent = max(1, round(100 * margin / value))
    return f" ±{percent}%"


@final
@dataclass(frozen=True, slots=True)
class TextPlan:
    """The plan of one build of text, with its estimates.

    Attributes:
        source: Source of a mixture whose tokens the build makes; empty for a build by
            itself.
        version: Committed version that a run would find, None if it would build one.
        plan: Inputs and units of the build.
        estimates: Source -> its expected size.
        foreseen: Units that a run resumes, reuses and builds; None where that takes too
            long to find out.
    """

    source: str
    version: int | None
    plan: Plan
    estimates: dict[str, Estimate]
    foreseen: ForeseenUnits | None

    @property
    def build(self) -> ResolvedBuild:
        """The resolved configuration of the build."""
        return self.plan.build

    def to_json(self) -> dict[str, Any]:
        """Return the record that ``--json`` prints."""
        return {
            "name": self.build.name,
            "store": self.build.store,
            "fingerprint": self.plan.fingerprint,
            "version": self.version,
            "units": len(self.plan.units),
            "work": work_record(self.foreseen),
            "input_bytes": self.plan.input_bytes,
            "sources": self._source_records(),
            "estimate": total(self.estimates).to_json(),
            "notes": list(self.plan.notes),
        }

    def tables(self) -> list[Table]:
        """Return the tables of inputs, long documents, and the expected output."""
        # Each source has its own treatment of long documents, with its own cost.
        policies: list[tuple[str, str]] = []
        for source in self.build.sources:
            expected = self.estimates[source.name]
            policy = expected_lengths(
                source.tokenizer,
                expected.documents,
                expected.long_documents,
                expected.tokens + expected.dropped_tokens,
                expected.dropped_tokens,
                masked=source.texts.masked,
            )
            policies.append((source.name, policy))
        columns = [label("source"), *SOURCE_COLUMNS]
        return [
            Table.of(columns, self.table_records(), "Inputs"),
            facts(policies, "Long documents"),
            facts(self._expected_output(), "Expected"),
        ]

    def table_records(self) -> list[dict[str, Any]]:
        """Return a record for each source, with the keys of :data:`SOURCE_COLUMNS`.

        It has more keys, for the table of a mixture.
        """
        state = "to be built"
        if self.version is not None:
            state = f"v{self.version} exists"
        elif self.foreseen is not None and self.foreseen.in_words():
            state = self.foreseen.in_words()
        records: list[dict[str, Any]] = []
        source_records = self._source_records()
        for record, source in zip(source_records, self.build.sources, strict=True):
            # Figures as texts, with their margins; JSON has them as numbers.
            expected = self.estimates[source.name]
            as_text = {
                "long": length_policy(source.tokenizer),
                "tokenizer": near(record["tokenizer"]),
                "about_bytes": _bytes_in_words(record["bytes"], record["stored_bytes"]),
                "about_documents": _approximate_documents(expected),
                "about_tokens": approximately(expected.tokens, expected.tokens_margin),
                "dataset": self.build.name,
                "state": state,
            }
            records.append(record | as_text)
        return records

    def notes(self) -> list[str]:
        """Return the notes of the plan, with a warning if the disk is too small.

        A mixture warns of the disk once, for all of its builds.
        """
        lines = list(self.plan.notes)
        lines += self._notes_on_bad_records()
        if self.version is None and not self.source:
            lines += notes_on_disk(self.build.store, total(self.estimates).output_bytes)
        prefix = "note: "
        if self.source:
            prefix = f"note: {self.source}: "
        return [f"{prefix}{line}" for line in lines]

    def _notes_on_bad_records(self) -> list[str]:
        """Return a note for each source whose sample has bad records."""
        lines: list[str] = []
        for source in self.build.sources:
            expected = self.estimates[source.name]
            if not expected.bad_records:
                continue
            outcome = "a run ends at one of them (on_bad_record: fail)"
            if source.on_bad_record == "quarantine":
                outcome = _outcome_of_quarantine(expected, source.max_bad_fraction)
            bad_records = bad_in_words(expected.bad_reasons, expected.sampled_records)
            lines.append(f"{source.name}: {bad_records}; {outcome}")
        return lines

    def _source_records(self) -> list[dict[str, Any]]:
        """Return a record for each source: inputs, and expected sizes."""
        # Lists of documents, units and files of each source: a plan lists those of all
        # sources together.
        exclusions: dict[str, dict[str, Any]] = {}
        for exclusion in self.plan.exclusions:
            for source_name, exclusion_record in exclusion.records().items():
                exclusions[source_name] = {"path": exclusion.path, **exclusion_record}
        unit_counts = Counter(unit.source for unit in self.plan.units)
        file_counts: Counter[str] = Counter()
        stored_bytes: Counter[str] = Counter()
        for file in self.plan.inputs:
            file_counts[file.source] += 1
            stored_bytes[file.source] += file.size
        records: list[dict[str, Any]] = []
        for source in self.build.sources:
            expected = self.estimates[source.name]
            tokenizer = source.tokenizer
            # Options that the policy does not use are null.
            max_length: int | None = tokenizer.max_length
            strategy: str | None = None
            side: str | None = None
            if tokenizer.long_documents == "keep":
                max_length = None
            if tokenizer.long_documents == "truncate":
                strategy = tokenizer.truncation_strategy
                side = tokenizer.truncation_side
            long_documents = {
                "policy": tokenizer.long_documents,
                "max_length": max_length,
                "strategy": strategy,
                "side": side,
                "documents": expected.long_documents,
                "dropped_tokens": expected.dropped_tokens,
            }
            records.append(
                {
                    "source": source.name,
                    "files": file_counts[source.name],
                    "units": unit_counts[source.name],
                    "bytes": self.plan.source_bytes[source.name],
                    "stored_bytes": stored_bytes[source.name],
                    "documents": expected.documents,
                    "tokens": expected.tokens,
                    "long_documents": long_documents,
                    "exclude": exclusions.get(source.name),
                    "tokenizer": tokenizer.name_or_path,
                }
            )
        return records

    def _expected_output(self) -> list[tuple[str, str]]:
        """Return names and values about the whole version that the build makes."""
        build = self.build
        expected = total(self.estimates)
        units = numbers.plural(len(self.plan.units), "unit")
        output = f"~{numbers.size(expected.output_bytes)}"
        output += margin_in_percent(expected.output_bytes, expected.output_bytes_margin)
        rows = [("tokens", approximately(expected.tokens, expected.tokens_margin))]
        # Only datasets with a loss mask have this figure.
        if expected.loss_tokens is not None:
            loss_share = numbers.percent(expected.loss_tokens, expected.tokens, 0)
            rows.append(("loss", f"~{loss_share} of the tokens count toward the loss"))
        row_noun = "rows"
        if build.pack:
            row_noun = "sequences"
        rows += [
            (row_noun, self._expected_rows(expected)),
            ("splits", ", ".join(self._splits())),
            *self._excluded(),
            ("output", f"{output} in {self._expected_files(expected)}"),
        ]
        # The disk stands below the output, with which it is compared.
        rows += free_disk(build.store)
        rows += [
            ("units", f"{units} of {numbers.size(build.unit_size or 0)} or less"),
            *rows_on_work(self.version, self.foreseen),
            ("fingerprint", self.plan.fingerprint),
        ]
        return rows

    def _expected_rows(self, expected: Estimate) -> str:
        """Return the number and form of the rows: ``~12.3 k of 2,048 tokens``."""
        preference = self.build.preference
        if preference is not None:
            documents = approximately(expected.documents)
            return f"{documents} for {preference.method}, in the columns of {preference.trainer}"
        if self.build.width:
            return f"{approximately(expected.sequences)} of {self.build.width:,} tokens"
        return "one per document"

    def _splits(self) -> list[str]:
        """Return each split with its share, and the splits of held-out documents."""
        shares: dict[str, float] = {}
        held_out: list[str] = []
        for source in self.build.sources:
            shares.update(source.splits)
            if source.held_out:
                held_out.append(f"{source.held_out.split} (held out)")
        splits: list[str] = []
        for split, split_share in shares.items():
            splits.append(f"{split} {numbers.percent(split_share, 1)}")
        return splits + held_out

    def _excluded(self) -> list[tuple[str, str]]:
        """Return a row about the documents that lists leave out; none without lists."""
        lists: list[str] = []
        for exclusion in self.plan.exclusions:
            entry_count = 0
            for record in exclusion.records().values():
                entry_count += record["entries"]
            documents = numbers.plural(entry_count, "document")
            lists.append(f"{documents} listed in {near(exclusion.path)}")
        if not lists:
            return []
        return [("excluded", ", ".join(lists))]

    def _expected_files(self, expected: Estimate) -> str:
        """Return the number of files.

        It is a limit if the number is not fixed for each unit of text.
        """
        files = numbers.plural(expected.files, "file")
        for unit in self.plan.units:
            if isinstance(unit, TextUnit) and unit.files is None:
                return f"at most {files}"
        return files


def _bytes_in_words(read_bytes: int, stored_bytes: int) -> str:
    """Return the bytes of a source that a build reads, and those that are stored.

    They differ for Parquet, whose pages are compressed: ``26.6 MiB (4.39 MiB stored)``.
    """
    if read_bytes == stored_bytes:
        return numbers.size(read_bytes)
    return f"{numbers.size(read_bytes)} ({numbers.size(stored_bytes)} stored)"


def _outcome_of_quarantine(expected: Estimate, allowed_fraction: float) -> str:
    """Return the outcome of a run that sets bad records aside.

    Args:
        expected: Estimate of a source whose sample has bad records.
        allowed_fraction: Its max_bad_fraction.
    """
    share = expected.bad_records / expected.sampled_records
    if share <= allowed_fraction:
        return f"a run sets them aside, and ends above max_bad_fraction: {allowed_fraction:g} of the records"
    fraction = sufficient_fraction(
        expected.bad_records,
        expected.sampled_records,
        is_complete=expected.documents_margin == 0,
    )
    return (
        f"{numbers.percent(share, 1.0)} are more than max_bad_fraction allows ({allowed_fraction:g}), so that a run "
        f"ends; max_bad_fraction: {fraction:g} allows them"
    )


def _approximate_documents(expected: Estimate) -> str:
    """Return the number of documents; without a ``~`` if all of them were counted."""
    if expected.documents_margin == 0:
        return numbers.short(expected.documents)
    return approximately(expected.documents, expected.documents_margin)


def free_disk(store: str) -> list[tuple[str, str]]:
    """Return the row of a table with the free disk of a local store.

    There is none for other stores.
    """
    if not is_local(store):
        return []
    return [("free disk", f"{numbers.size(free_bytes(Path(store)))} at {near(store)}")]


def notes_on_disk(store: str, output_bytes: int) -> list[str]:
    """Return a note if a build is expected to write more than a local disk has free.

    Args:
        store: Path or URL of the store.
        output_bytes: Expected bytes of all that is written.
    """
    if not is_local(store):
        return []
    free = free_bytes(Path(store))
    if free >= output_bytes:
        return []
    return [
        f"{near(store)} is on a disk with {numbers.size(free)} free; the build is expected to write about "
        f"{numbers.size(output_bytes)}. Free some space, or name another store with --store"
    ]
