"""Planning a build from stored versions: which rows of which parents come where, in which units, and what to expect.

Planning reads manifests, the parents' tokenizers and, where nothing is mixed, their ledgers; it reads no shard, and
writes nothing.

Versions are what they hold: numbers of versions, names of datasets, clocks and writers are not identity, so that tokens
that were built again, to the same rows, mix to the same version. A unit is its rows: where a mixture that begins anew
for ever is only made longer, or its schedule goes on to further points, perhaps with further sources, the units before
that keep their fingerprints, and a new version reuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from tokenlake.base import numbers
from tokenlake.base.fingerprint import fingerprint
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.resolve import card_identity, first_steps, foreseen, pack_identity
from tokenlake.config.resolved import ResolvedBuild
from tokenlake.errors import ConfigError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Listed, Watcher
from tokenlake.etl.job import RowsOut
from tokenlake.etl.plan.mixture import (
    MixForecast,
    check_caps,
    choose_unit_rows,
    forecast_of,
    notes_on,
    settled,
    weighed,
)
from tokenlake.etl.plan.parents import (
    FoundParent,
    find_parents,
    joined_inputs,
    level_of,
    notes_on_columns,
    read_tokenizer,
    require_one_tokenizer,
    require_split,
    rows_out,
)
from tokenlake.etl.plan.plan import MixUnit, Plan, RepackUnit
from tokenlake.etl.tokenizers.fingerprint import identity as tokenizer_identity
from tokenlake.etl.unit.mix import SPLIT
from tokenlake.etl.unit.repack import repacked_shards
from tokenlake.runtime.mixing.mixture import SourceMixture
from tokenlake.runtime.schema import FORMAT_VERSION
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.draws import outcomes
from tokenlake.runtime.store.layout import MAX_UNIT
from tokenlake.runtime.store.ledger import MIXED, ShardEntry, UnitRecord
from tokenlake.runtime.store.mixture import Level, MixtureOrder, MixtureSpec, WeightPoint


def foresee(config: PipelineConfig) -> ResolvedBuild:
    """Return the last step of a configuration before the first ones are done, as :func:`foreseen` does.

    Raises:
        ConfigError: that step is wrong, or a stored dataset that it takes rows of is not there.
    """
    build, made = foreseen(config), first_steps(config)
    stored = tuple(parent for parent in build.parents if parent.name not in made)
    find_parents(Catalog(open_store(address_of_build(build))), stored, build.name)
    return build


def plan_stored(build: ResolvedBuild, on_event: Watcher) -> Plan:
    """Plan a build from stored versions.

    Raises:
        ConfigError: a parent or its split is not there, parents do not fit each other, or the mixture cannot be.
        IntegrityError: the manifest or the tokenizer of a parent is damaged.
    """
    store = open_store(address_of_build(build))
    catalog = Catalog(store)
    everyone = find_parents(catalog, build.parents, build.name)
    parents = everyone if build.mixture is None else weighed(everyone, build.mixture)
    level = level_of(parents, build.pack)
    require_one_tokenizer(parents, level)
    # Sources of one name have one tokenizer: their ids mean the same, or there would be no plan.
    first = {source: parent for parent in reversed(parents) for source in parent.manifest.tokenizer}
    names = dict.fromkeys(source for parent in parents for source in parent.manifest.tokenizer)
    tokenizers = {source: read_tokenizer(store, first[source], source) for source in names}
    out = rows_out(build.pack, build.max_shard_size, parents, next(iter(tokenizers.values())))
    if build.pack is not None:
        ids = {"eos_id": out.eos_id, "pad_id": out.pad_id, "append_eos": out.append_eos}
        tokenizers = {name: replace(planned, **ids) for name, planned in tokenizers.items()}
    for parent in parents:
        on_event(Listed(parent.name, parent.totals.files, parent.totals.bytes))

    rows, mix, mixed = rows_identity(out), dict[str, Any](), dict[str, Any]()
    left_out: list[str] = []
    units: Sequence[MixUnit | RepackUnit]
    if build.mixture is not None:
        identity, mix, units, notes, mixed = _mixed(build.mixture, parents, level, out)
        left_out = _on_splits(parents, build.store)
        notes = [*left_out, *notes]
    elif build.pack is None:
        listed = ", ".join(parent.reference for parent in parents)
        raise ConfigError(
            f"pack.enabled: false, and there is no section mix: the rows of {listed} would only be copied; write "
            "pack.enabled: true to pack them, or a section mix to mix them"
        )
    else:
        for parent in parents:
            if parent.split != SPLIT:
                require_split(parent)
        identity, notes = rows, notes_on_columns(parents, out)
        units = _repacked_units(catalog, parents, out, shuffled=build.pack.shuffle_seed is not None)
    unread = [
        f"{parent.name}: its weight is always 0; nothing of {parent.reference} is read"
        for parent in everyone
        if parent not in parents
    ]
    card, made = card_identity(build), [unit.fingerprint for unit in units]
    around = {"prefix": list(out.prefix), "suffix": list(out.suffix), "whole": bool(out.whole)}
    kind = "tokens" if out.width is None else "packed"
    return Plan(
        build=build,
        inputs=joined_inputs(parents),
        units=tuple(units),
        tokenizers=tokenizers,
        fingerprint=fingerprint({"format_version": FORMAT_VERSION, "build": identity, "units": made, **card}),
        notes=(*unread, *notes),
        left_out=tuple(left_out),
        config={
            "build": {"kind": kind, **rows, "around": around},
            **mix,
            "sources": _sources(parents),
            **card,
        },
        parents=parents,
        level=level,
        out=out,
        **mixed,
    )


def _mixed(
    asked: MixStageConfig, parents: Sequence[FoundParent], level: Level, out: RowsOut
) -> tuple[dict[str, Any], dict[str, Any], tuple[MixUnit, ...], list[str], dict[str, Any]]:
    """Return of a mixture its identity, what `config` says of it, its units, notes, and more fields of the plan."""
    for parent in parents:
        require_split(parent)
        if parent.split in parent.manifest.held_out.values():  # the rows of a mixture are trained on
            raise parent.wrong(
                f"the documents of {parent.split!r} were held out of training when {parent.reference} was built, and "
                "the rows of a mixture are trained on; expected another split. Evaluate on them where they are: "
                f"{parent.reference}, split {parent.split}",
                ".split",
                got=parent.split,
            )
    spec, mixture = settled(asked, parents, out)
    drawn, order = outcomes(mixture, spec), spec.order
    there = {parent.name: (parent.rows, parent.tokens) for parent in parents}
    check_caps(asked, there, {name: each.rows for name, each in drawn.items()})
    unit_rows = asked.unit_rows or choose_unit_rows(
        {parent.name: parent.size for parent in parents},
        [point.weights for point in order.points],
        lanes=order.lanes,
        batch_size=order.batch_size,
    )
    content = {parent.name: content_identity(parent) for parent in parents}
    of_unit = unit_identity(level, content, spec, mixture, out)
    # About how many stored bytes of the parents a row of the mixture stands for.
    size = sum(Fraction(drawn[each.name].rows * each.totals.bytes, each.rows) for each in parents)
    row_bytes = Fraction(size) / max(1, sum(draw.rows for draw in drawn.values()))
    units = _range_units(order.rows, unit_rows, row_bytes, of_unit, join_rest=asked.unit_rows is None)
    forecast = forecast_of(level, asked, parents, drawn, out, spec, units=len(units), unit_rows=unit_rows)

    described = order.identity(spec.lengths)
    identity = {
        "content": [content[name] for name in spec.lengths],
        "order": described,
        "order_version": order.version,
        "rows": order.rows,
        "out": rows_identity(out),
    }
    splits = {parent.name: parent.split for parent in parents}
    mix = {"level": level, "weights_by": asked.weights_by, "splits": splits, **described, "rows": order.rows}
    notes = [*_on_choices(asked, forecast), *notes_on_columns(parents, out), *notes_on(forecast)]
    return identity, {"mix": mix}, units, notes, {"spec": spec, "forecast": forecast}


def _sources(parents: Sequence[FoundParent]) -> dict[str, Any]:
    """What the parents say of the sources of the texts; two that are called alike and differ both stay."""
    found: dict[str, Any] = {}
    for parent in parents:
        for name, source in parent.sources.items():
            free = name if found.get(name, source) == source else f"{parent.name}/{name}"
            found[free] = source
    return found


def _on_choices(asked: MixStageConfig, forecast: MixForecast) -> list[str]:
    """A note on what the configuration left open."""
    left = [f"mix.lanes: {forecast.lanes}"] if asked.lanes is None else []
    left += [f"mix.unit_rows: {forecast.unit_rows}"] if asked.unit_rows is None else []
    if not left:
        return []
    return [
        f"{', '.join(left)}, chosen by the sources and by how long the mixture is "
        f"({numbers.plural(forecast.units, 'unit')}); write this into the configuration to keep what is built of it "
        "when it gets longer"
    ]


def how_to_read_others(store: str, dataset: str, split: str) -> str:
    """Return what to do with a split of a stored dataset that a mixture does not take."""
    path = f"{store.rstrip('/')}/{dataset}"
    return (
        f"it stays there: tl.open({path!r}, split={split!r}) reads it, and an entry {{dataset: {dataset}, split: "
        f"{split}}} of `datasets` makes a mixture of it"
    )


def _on_splits(parents: Sequence[FoundParent], store: str) -> list[str]:
    """Notes on splits of which nothing is taken."""
    notes: list[str] = []
    for parent in parents:
        others = {
            name: totals.rows for name, totals in parent.manifest.splits.items() if name != parent.split
        }
        if others:
            each = ", ".join(f"{name} ({numbers.count(rows)} rows)" for name, rows in others.items())
            notes.append(
                f"{parent.name}: of {parent.reference} only {parent.split} is mixed, not {each}; "
                f"{how_to_read_others(store, parent.manifest.dataset, next(iter(others)))}"
            )
    return notes


_LATER: Final = 16
"""Rows of a lane by which the time of a count may be later, for up to 28 sources."""

_OF_ITS_PLACE: Final = ("folder", "append_eos")
"""What a manifest says of a tokenizer that is not about what its ids mean."""


def content_identity(parent: FoundParent) -> str:
    """Return the hash of all rows of a parent's mixed split, in their order, and of the tokenizers that made them."""
    shards = [[shard.path, *_rows(shard)] for shard in parent.shards]
    facts = {"split": parent.split, "seq_length": parent.width, "shards": shards}
    return fingerprint({**facts, "tokenizers": _tokenizers_identity(parent)})


def _rows(shard: ShardEntry) -> tuple[int, list[int], dict[str, str]]:
    return shard.rows, list(shard.row_groups), shard.logical


def _tokenizers_identity(parent: FoundParent) -> dict[str, Any]:
    return {
        source: tokenizer_identity({key: value for key, value in facts.items() if key not in _OF_ITS_PLACE})
        for source, facts in parent.manifest.tokenizer.items()
    }


def rows_identity(out: RowsOut) -> dict[str, Any]:
    """Return the identity of what is made of the rows."""
    same = ("eos_id", "pad_id", "append_eos", "max_shard_size")
    return {
        "pack": None if out.pack is None else pack_identity(out.pack),
        "seq_length": out.width,
        **{name: list(getattr(out, name)) for name in ("prefix", "suffix", "whole")},
        **{name: getattr(out, name) for name in same},
        "compression": "zstd",
        **({"loss_mask": True} if out.loss_mask else {}),
    }


def unit_identity(
    level: Level, content: Mapping[str, str], spec: MixtureSpec, mixture: SourceMixture, out: RowsOut
) -> Callable[[int, int], str]:
    """Return what gives the fingerprint of the unit of a mixture at positions ``start .. stop``.

    Args:
        content: source -> :func:`content_identity` of its parent.
    """
    order = spec.order

    def until(stop: int) -> MixtureSpec:
        """The mixture as far as positions before `stop` depend on it: the schedule up to there, and its sources.

        A source without weight takes no slot from the others. Only where sources begin anew does a lane's end not
        depend on all that comes.
        """
        if order.stop != "restart":
            return spec
        # A step whose weights, and those of later ones, put no row before position `stop`. In a lane, the groups that
        # hold the places before it are decided by counts at their ends. A count of n rows is that of a time at most
        # half a row for each source later than n (see tokenlake.runtime.mixing.counts); rounded up, so that
        # a source more changes nothing here.
        places = int(mixture.layout.places_before(stop).max())
        slots = -(-places // mixture.group_slots) * mixture.group_slots
        rows = (slots + max(_LATER, len(spec.lengths) // 2 + 2)) * order.lanes
        points = _points_until(order, -(-rows // order.step_rows))
        names = [name for name in spec.lengths if any(point.weights[name] for point in points)]
        until_there = replace(
            order,
            kept={name: kept for name, kept in order.kept.items() if name in names},
            points=tuple(
                WeightPoint(point.step, {name: point.weights[name] for name in names}) for point in points
            ),
            interpolation=order.interpolation if len(points) > 1 else "step",
        )
        return MixtureSpec(lengths={name: spec.lengths[name] for name in names}, order=until_there)

    def of(start: int, stop: int) -> str:
        own = until(stop)
        whole = tuple(name for name in out.whole if name in own.lengths)
        return fingerprint(
            {
                "format_version": FORMAT_VERSION,
                "order_version": order.version,
                "level": level,
                "content": [content[name] for name in own.lengths],
                "order": own.order.identity(own.lengths),
                "out": rows_identity(replace(out, whole=whole)),
                "start": start,
                "stop": stop,
            }
        )

    return of


def _points_until(order: MixtureOrder, step: int) -> tuple[WeightPoint, ...]:
    """Return the points of a schedule that decide the weights before `step`.

    Those up to there, and where weights move towards the next point that one too.
    """
    before = sum(point.step < step for point in order.points)
    return order.points[: max(1, before + (before > 0 and order.interpolation != "step"))]


_LEAST_REST: Final = Fraction(2, 3)
"""Of a unit: what is less decodes much more than it takes, see :mod:`tokenlake.etl.plan.mixture`."""


def _range_units(
    rows: int, unit_rows: int, row_bytes: Fraction, identity: Callable[[int, int], str], *, join_rest: bool
) -> tuple[MixUnit, ...]:
    """Return the units of a mixture; ConfigError where a version cannot have so many.

    Args:
        rows: of the mixture.
        unit_rows: of a unit.
        row_bytes: stored bytes of a row, in the mean.
        join_rest: whether rows that are too few for a unit go to the last one, instead of being one.
    """
    count = -(-rows // unit_rows)
    if count > MAX_UNIT + 1:
        raise ConfigError(
            f"mix.unit_rows: {unit_rows} makes {count:,} units of {rows:,} rows; a version has at most "
            f"{MAX_UNIT + 1:,}. Set it to {-(-rows // (MAX_UNIT + 1))} or more"
        )
    if join_rest and count > 1 and rows - (count - 1) * unit_rows < _LEAST_REST * unit_rows:
        count -= 1
    bounds = [*(unit_rows * index for index in range(count)), rows]
    return tuple(
        MixUnit(
            index=index,
            source=MIXED,
            bytes=round(row_bytes * (stop - start)),
            fingerprint=identity(start, stop),
            start=start,
            stop=stop,
        )
        for index, (start, stop) in enumerate(pairwise(bounds))
    )


def _repacked_units(
    catalog: Catalog, parents: Sequence[FoundParent], out: RowsOut, *, shuffled: bool
) -> list[RepackUnit]:
    """Return the units: those of each parent, in its order; units without rows are left out."""
    found: list[RepackUnit] = []
    of_out = {key: value for key, value in rows_identity(out).items() if key != "whole"}
    for parent in parents:
        manifest = parent.manifest
        # The manifest alone does not always say whose a unit is, or by which key its rows are shuffled.
        records: Mapping[int, UnitRecord] = {}
        if shuffled or len(manifest.accounts) > 1:
            records = catalog.ledger(manifest.dataset, manifest.version, manifest=manifest)
        parts: dict[int, list[ShardEntry]] = {}
        for shard in repacked_shards(manifest, parent.split):
            parts.setdefault(shard.unit, []).append(shard)
        for number, own in sorted(parts.items()):
            record, source = records.get(number), next(iter(manifest.accounts))
            if manifest.mixture is not None:  # which has rows of several sources, and is one as a whole
                source = parent.name
            elif record is not None and record.source != MIXED:
                source = record.source
            content = {
                "shards": [[part.split, part.part, *_rows(part)] for part in own],
                "tokenizers": _tokenizers_identity(parent),
            }
            identity: dict[str, Any] = {
                "format_version": FORMAT_VERSION,
                "repack": fingerprint(content),
                "source": source,
                "whole": parent.name in out.whole,
                "out": of_out,
            }
            if (
                shuffled
            ):  # where in its inputs the parent's unit began, of which the key of its shuffle is made
                first = () if record is None else record.inputs[:1]
                identity["began"] = [[entry.file_id, entry.start] for entry in first]
            found.append(
                RepackUnit(
                    index=len(found),
                    source=source,
                    bytes=sum(part.bytes for part in own),
                    fingerprint=fingerprint(identity),
                    parent=parent.version,
                    parent_unit=number,
                )
            )
    return found
