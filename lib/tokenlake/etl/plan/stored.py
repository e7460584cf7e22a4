"""From stored versions to a plan: which rows of which parents come where, in which units, and what to expect.

Planning reads manifests, the parents' tokenizer and, where nothing is mixed, their ledgers; it reads no shard, and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from tokenlake.config.resolved import ResolvedMix, ResolvedMixture
from tokenlake.etl.events import Listed, Watcher, ignore
from tokenlake.etl.job import Level, RowsOut, store_address
from tokenlake.etl.mixture import MixtureSpec
from tokenlake.etl.plan.mixture import MixForecast, choose_unit_rows, forecast_of, notes_on, settled, weighed
from tokenlake.etl.plan.parents import (
    FoundParent,
    find_parents,
    joined_inputs,
    level_of,
    notes_on_columns,
    read_tokenizer,
    require_one_tokenizer,
    require_split,
    require_unpadded,
    rows_out,
)
from tokenlake.etl.plan.stored_units import (
    MixUnits,
    UnitIdentity,
    content_identity,
    mean_row_bytes,
    order_identity,
    range_units,
    repacked_units,
    require_packing,
    rows_identity,
)
from tokenlake.fingerprint import fingerprint
from tokenlake.report import numbers
from tokenlake.schema import FORMAT_VERSION
from tokenlake.store.account import Account
from tokenlake.store.address import open_store
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import InputFileEntry
from tokenlake.store.mixture import outcomes
from tokenlake.tokenizers.files import TokenizerFiles


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixPlan:
    """All that a build from stored versions will do.

    Attributes:
        build: the resolved configuration.
        parents: that rows are taken from, in configuration order; those whose weight is always 0 are left out.
        level: what the parents' rows are.
        out: what the new rows are.
        spec: the order, with every choice made; None where nothing is mixed.
        inputs: the files of the original texts.
        units: the work, in the order of the dataset's rows.
        fingerprint: identity of the version.
        forecast: what the mixture comes to; None where nothing is mixed.
        notes: what a user should know before running.
    """

    build: ResolvedMix
    parents: tuple[FoundParent, ...]
    level: Level
    out: RowsOut
    spec: MixtureSpec | None
    inputs: tuple[InputFileEntry, ...]
    units: MixUnits
    fingerprint: str
    forecast: MixForecast | None
    notes: tuple[str, ...]

    @property
    def input_bytes(self) -> int:
        return sum(unit.bytes for unit in self.units)

    @property
    def source_bytes(self) -> dict[str, int]:
        """What progress is told by to bytes of its units, in plan order."""
        sums: dict[str, int] = {}
        for unit in self.units:
            sums[unit.source] = sums.get(unit.source, 0) + unit.bytes
        return sums

    def missed(self, accounts: Mapping[str, Account]) -> tuple[str, ...]:
        """Nothing is left out of versions."""
        return ()


def plan_mix(build: ResolvedMix, on_event: Watcher = ignore) -> MixPlan:
    """Plan a build from stored versions.

    Raises:
        ConfigError: a parent or its split is not there, parents do not fit each other, or the mixture cannot be.
        IntegrityError: the manifest or the tokenizer of a parent is damaged.
    """
    store = open_store(store_address(build))
    catalog = Catalog(store)
    everyone = find_parents(catalog, build.parents, build.name)
    parents = everyone if build.mixture is None else weighed(everyone, build.mixture)
    level = level_of(parents, build.pack)
    facts = require_one_tokenizer(parents, level)
    files = read_tokenizer(store, parents[0], next(iter(parents[0].manifest.tokenizer)))
    out = rows_out(build, parents, TokenizerFiles(name=str(facts.get("name")), files=files))
    if level == "documents":
        require_unpadded(parents)
    inputs = joined_inputs(parents)
    notes = [
        f"{parent.name}: its weight is always 0; nothing of {parent.reference} is read"
        for parent in everyone
        if parent not in parents
    ]
    for parent in parents:
        on_event(Listed(parent.name, parent.totals.files, parent.totals.bytes))
    if build.mixture is None:
        require_packing(parents, out)
        units = repacked_units(catalog, parents, out)
        digest = _version(rows_identity(out), [unit.fingerprint for unit in units])
        return MixPlan(
            build=build,
            parents=parents,
            level=level,
            out=out,
            spec=None,
            inputs=inputs,
            units=units,
            fingerprint=digest,
            forecast=None,
            notes=(*notes, *notes_on_columns(parents, out)),
        )
    return _mixed(build, build.mixture, parents, level, out, inputs, notes)


def _mixed(
    build: ResolvedMix,
    asked: ResolvedMixture,
    parents: tuple[FoundParent, ...],
    level: Level,
    out: RowsOut,
    inputs: tuple[InputFileEntry, ...],
    notes: list[str],
) -> MixPlan:
    for parent in parents:
        require_split(parent)
    spec, mixture = settled(asked, parents, out)
    drawn = outcomes(mixture, spec.lengths, spec.step_rows)
    unit_rows = asked.unit_rows or choose_unit_rows(
        {parent.name: parent.size for parent in parents},
        [weights for _, weights in spec.points],
        lanes=spec.lanes,
        batch_size=spec.batch_size,
    )
    content = {parent.name: content_identity(parent) for parent in parents}
    of_unit = UnitIdentity(level, content, spec, mixture, out)
    units = range_units(
        spec.rows or 0,
        unit_rows,
        mean_row_bytes(parents, drawn),
        of_unit,
        join_rest=asked.unit_rows is None,
    )
    forecast = forecast_of(
        level,
        parents,
        drawn,
        out,
        by_tokens=asked.weights_by == "tokens",
        lanes=spec.lanes,
        batch_size=spec.batch_size,
        units=len(units),
        unit_rows=unit_rows,
    )
    identity = {
        "content": [content[name] for name in spec.lengths],
        "order": order_identity(spec),
        "order_version": spec.order,
        "rows": spec.rows,
        "out": rows_identity(out),
    }
    return MixPlan(
        build=build,
        parents=parents,
        level=level,
        out=out,
        spec=spec,
        inputs=inputs,
        units=units,
        fingerprint=_version(identity, [unit.fingerprint for unit in units]),
        forecast=forecast,
        notes=(
            *notes,
            *_on_choices(asked, forecast),
            *_on_splits(parents),
            *notes_on_columns(parents, out),
            *notes_on(forecast),
        ),
    )


def _version(build: Mapping[str, object], units: Sequence[str]) -> str:
    return fingerprint({"format_version": FORMAT_VERSION, "build": build, "units": units})


def _on_choices(asked: ResolvedMixture, forecast: MixForecast) -> list[str]:
    """A note on what the configuration left open."""
    chosen = {
        "mix.lanes": (asked.lanes, forecast.lanes),
        "mix.unit_rows": (asked.unit_rows, forecast.unit_rows),
    }
    left = [f"{name}: {found}" for name, (given, found) in chosen.items() if given is None]
    if not left:
        return []
    return [
        f"{', '.join(left)}, chosen by the sources and by how long the mixture is "
        f"({numbers.plural(forecast.units, 'unit')}); write this into the configuration to keep what is built of it "
        "when it gets longer"
    ]


def _on_splits(parents: Sequence[FoundParent]) -> list[str]:
    """Notes on splits of which nothing is taken."""
    notes: list[str] = []
    for parent in parents:
        others = {
            name: totals.rows for name, totals in parent.manifest.splits.items() if name != parent.split
        }
        if others:
            each = ", ".join(f"{name} ({numbers.count(rows)} rows)" for name, rows in others.items())
            notes.append(f"{parent.name}: of {parent.reference} only {parent.split} is mixed, not {each}")
    return notes
