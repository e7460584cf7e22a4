"""Planning a build from stored versions: which rows of which parents come where, in which units, and what to expect.

Planning reads manifests, the parents' tokenizers and, where nothing is mixed, their ledgers; it reads no shard, and
writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenlake.config.resolved import ResolvedBuild, ResolvedMixture
from tokenlake.etl.events import Listed, Watcher
from tokenlake.etl.job import RowsOut
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
from tokenlake.etl.plan.plan import Plan, store_address
from tokenlake.etl.plan.stored_units import (
    UnitIdentity,
    content_identity,
    mean_row_bytes,
    order_identity,
    range_units,
    repacked_units,
    require_packing,
    rows_identity,
)
from tokenlake.etl.plan.tokenizer import PlannedTokenizer
from tokenlake.fingerprint import fingerprint
from tokenlake.report import numbers
from tokenlake.schema import FORMAT_VERSION
from tokenlake.store.address import open_store
from tokenlake.store.base import Store
from tokenlake.store.catalog import Catalog
from tokenlake.store.mixture import outcomes


def plan_stored(build: ResolvedBuild, on_event: Watcher) -> Plan:
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
    require_one_tokenizer(parents, level)
    tokenizers = _tokenizers(store, parents)
    out = rows_out(build.pack, build.max_shard_size, parents, next(iter(tokenizers.values())))
    if build.pack is not None:
        ids = {"eos_id": out.eos_id, "pad_id": out.pad_id, "append_eos": out.append_eos}
        tokenizers = {name: replace(planned, **ids) for name, planned in tokenizers.items()}
    if level == "documents":
        require_unpadded(parents)
    for parent in parents:
        on_event(Listed(parent.name, parent.totals.files, parent.totals.bytes))
    found = Plan(
        build=build,
        inputs=joined_inputs(parents),
        units=(),
        tokenizers=tokenizers,
        fingerprint="",
        notes=tuple(
            f"{parent.name}: its weight is always 0; nothing of {parent.reference} is read"
            for parent in everyone
            if parent not in parents
        ),
        config={},
        parents=parents,
        level=level,
        out=out,
    )
    if build.mixture is not None:
        return _mixed(found, build.mixture, out)
    require_packing(parents, out)
    units = repacked_units(catalog, parents, out)
    return replace(
        found,
        units=units,
        fingerprint=_version(rows_identity(out), [unit.fingerprint for unit in units]),
        notes=(*found.notes, *notes_on_columns(parents, out)),
        config=_config(found, out, {}),
    )


def _mixed(found: Plan, asked: ResolvedMixture, out: RowsOut) -> Plan:
    parents, level = found.parents, found.level
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
    splits = {parent.name: parent.split for parent in parents}
    order = {**order_identity(spec), "rows": spec.rows}
    mix = {"level": level, "weights_by": asked.weights_by, "splits": splits, **order}
    return replace(
        found,
        units=units,
        fingerprint=_version(identity, [unit.fingerprint for unit in units]),
        notes=(
            *found.notes,
            *_on_choices(asked, forecast),
            *_on_splits(parents),
            *notes_on_columns(parents, out),
            *notes_on(forecast),
        ),
        config=_config(found, out, {"mix": mix}),
        spec=spec,
        forecast=forecast,
    )


def _config(found: Plan, out: RowsOut, mix: Mapping[str, Any]) -> dict[str, Any]:
    """What identity sees of the configuration, and what is known of the sources that the texts came from."""
    around = {"prefix": list(out.prefix), "suffix": list(out.suffix), "whole": bool(out.whole)}
    build = {"kind": found.kind, **rows_identity(out), "around": around}
    return {"build": build, **mix, "sources": _sources(found.parents)}


def _sources(parents: Sequence[FoundParent]) -> dict[str, Any]:
    """What the parents say of the sources of the texts; two that are called alike and differ both stay."""
    found: dict[str, Any] = {}
    for parent in parents:
        for name, source in parent.sources.items():
            free = name if found.get(name, source) == source else f"{parent.name}/{name}"
            found[free] = source
    return found


def _tokenizers(store: Store, parents: Sequence[FoundParent]) -> dict[str, PlannedTokenizer]:
    """Return the tokenizer of each source of the original texts, read from a parent that has it.

    Sources of one name have one tokenizer: their ids mean the same, or there would be no plan.
    """
    found: dict[str, PlannedTokenizer] = {}
    for parent in parents:
        for source in parent.manifest.tokenizer:
            if source not in found:
                found[source] = read_tokenizer(store, parent, source)
    return found


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
