"""Plan of a build from stored versions: rows of parents, units, and expected size.

Planning reads manifests, the parents' tokenizers and, where nothing is mixed, their
ledgers. It reads no shard, and writes nothing.

The identity of a version is its content. Numbers of versions, names of datasets, clocks
and writers are no part of it: tokens that are built again, to the same rows, mix to the
same version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, final

from tokenlake.base import numbers
from tokenlake.base.fingerprint import fingerprint
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import MixStageConfig, PipelineConfig
from tokenlake.config.resolve import card_identity, first_steps, foreseen
from tokenlake.config.resolved import ResolvedBuild, ResolvedPack
from tokenlake.errors import ConfigError
from tokenlake.etl.build_store import address_of_build
from tokenlake.etl.events import Listed, Watcher
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.mix_forecast import MixForecast, forecast_of, notes_on
from tokenlake.etl.plan.mix_units import (
    choose_unit_rows,
    content_identity,
    range_units,
    rows_identity,
    unit_identity,
)
from tokenlake.etl.plan.mixture import check_caps, settled, weighed
from tokenlake.etl.plan.parent_rows import (
    level_of,
    notes_on_columns,
    require_one_tokenizer,
    rows_out,
)
from tokenlake.etl.plan.parents import (
    FoundParent,
    find_parents,
    joined_inputs,
    read_tokenizer,
    require_split,
)
from tokenlake.etl.plan.plan import MixUnit, Plan, RepackUnit
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer
from tokenlake.etl.plan.repack_units import repack_units
from tokenlake.etl.unit.mix import SPLIT
from tokenlake.runtime.schema import FORMAT_VERSION
from tokenlake.runtime.store.address import open_store
from tokenlake.runtime.store.base import Store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.draws import SourceDraw, outcomes
from tokenlake.runtime.store.mixture import Level, MixtureOrder, MixtureSpec


def foresee(config: PipelineConfig) -> ResolvedBuild:
    """Return the last step of a configuration before the first ones are done.

    See :func:`foreseen`.

    Raises:
        ConfigError: That step is wrong, or a stored dataset whose rows it takes does
            not exist.
    """
    build = foreseen(config)
    # The versions that the first steps will build do not exist yet; all others must.
    first_builds = first_steps(config)
    stored_parents: list[DatasetConfig] = []
    for parent in build.parents:
        if parent.name not in first_builds:
            stored_parents.append(parent)
    catalog = Catalog(open_store(address_of_build(build)))
    find_parents(catalog, tuple(stored_parents), build.name)
    return build


def plan_stored(build: ResolvedBuild, on_event: Watcher) -> Plan:
    """Return the plan of a build from stored versions.

    Args:
        build: Build whose datasets are stored versions.
        on_event: Function that receives the size of each parent.

    Raises:
        ConfigError: A parent or its split does not exist, parents do not fit each
            other, or the mixture cannot be.
        IntegrityError: The manifest or the tokenizer of a parent is damaged.
    """
    # 1. The parents. One whose weight is always 0 is not read.
    store = open_store(address_of_build(build))
    catalog = Catalog(store)
    all_parents = find_parents(catalog, build.parents, build.name)
    parents = all_parents
    if build.mixture is not None:
        parents = weighed(all_parents, build.mixture)

    # 2. Their tokenizer, and the format of the new rows. Packed rows have the special
    #    ids of the packing.
    level = level_of(parents, build.pack)
    require_one_tokenizer(parents, level)
    tokenizers = _read_tokenizers(store, parents)
    out = rows_out(
        build.pack, build.max_shard_size, parents, next(iter(tokenizers.values()))
    )
    if build.pack is not None:
        tokenizers = _with_packing_ids(tokenizers, out)
    for parent in parents:
        on_event(Listed(parent.name, parent.totals.files, parent.totals.bytes))

    # 3. The units: of a mixture, or of packing.
    if build.mixture is not None:
        work = _mixing_work(build.mixture, parents, level, out, build.store)
    else:
        work = _packing_work(build.pack, catalog, parents, out)

    # 4. The plan, whose identity has no names and numbers of the parents.
    notes: list[str] = []
    for parent in all_parents:
        if parent not in parents:
            notes.append(
                f"{parent.name}: its weight is always 0; nothing of {parent.reference} is read"
            )
    identity = {
        "format_version": FORMAT_VERSION,
        "build": work.identity,
        "units": [unit.fingerprint for unit in work.units],
        **card_identity(build),
    }
    return Plan(
        build=build,
        inputs=joined_inputs(parents),
        units=tuple(work.units),
        tokenizers=tokenizers,
        fingerprint=fingerprint(identity),
        notes=(*notes, *work.notes),
        left_out=tuple(work.left_out),
        config=_manifest_config(build, parents, out, work),
        parents=parents,
        level=level,
        out=out,
        spec=work.spec,
        forecast=work.forecast,
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Part of a plan in which mixing and packing differ.

    Attributes:
        identity: Identity of the build, except its units.
        units: Units of the plan.
        notes: Notes for the user.
        left_out: Those of the notes that name splits of which nothing is taken.
        mix: Section `mix` of the manifest's configuration; None without a mixture.
        spec: Order of the mixture; None without one.
        forecast: Expected size of the mixture; None without one.
    """

    identity: dict[str, Any]
    units: Sequence[MixUnit | RepackUnit]
    notes: list[str]
    left_out: list[str]
    mix: dict[str, Any] | None = None
    spec: MixtureSpec | None = None
    forecast: MixForecast | None = None


def _read_tokenizers(
    store: Store, parents: Sequence[FoundParent]
) -> dict[str, PlannedTokenizer]:
    """Return the tokenizer of each source of the parents.

    Sources of one name have one tokenizer, which :func:`require_one_tokenizer` checked:
    that of the first is read.
    """
    # The files of a tokenizer are read from the store, so each is read once.
    tokenizers: dict[str, PlannedTokenizer] = {}
    for parent in parents:
        for source in parent.manifest.tokenizer:
            if source not in tokenizers:
                tokenizers[source] = read_tokenizer(store, parent, source)
    return tokenizers


def _with_packing_ids(
    tokenizers: Mapping[str, PlannedTokenizer], out: RowsOut
) -> dict[str, PlannedTokenizer]:
    """Return the tokenizers with the special ids of the new packed rows."""
    changed_tokenizers: dict[str, PlannedTokenizer] = {}
    for source, tokenizer in tokenizers.items():
        changed_tokenizers[source] = replace(
            tokenizer, eos_id=out.eos_id, pad_id=out.pad_id, append_eos=out.append_eos
        )
    return changed_tokenizers


def _packing_work(
    pack: ResolvedPack | None,
    catalog: Catalog,
    parents: Sequence[FoundParent],
    out: RowsOut,
) -> _Work:
    """Return the work of packing stored documents again.

    Args:
        pack: Packing of the build.
        catalog: Catalog of the parents' store.
        parents: Versions whose documents are packed.
        out: Format of the new rows.

    Raises:
        ConfigError: Nothing is packed, or a parent does not have the split that is
            named.
    """
    if pack is None:
        parent_references = ", ".join(parent.reference for parent in parents)
        raise ConfigError(
            f"pack.enabled: false, and there is no section mix: the rows of {parent_references} would only be copied; "
            "write pack.enabled: true to pack them, or a section mix to mix them"
        )
    # The usual split needs no rows, because all splits are packed.
    for parent in parents:
        if parent.split != SPLIT:
            require_split(parent)
    is_shuffled = pack.shuffle_seed is not None
    return _Work(
        identity=rows_identity(out),
        units=repack_units(catalog, parents, out, shuffled=is_shuffled),
        notes=notes_on_columns(parents, out) + _notes_on_ignored_splits(parents),
        left_out=[],
    )


def _notes_on_ignored_splits(parents: Sequence[FoundParent]) -> list[str]:
    """Return a note for each parent whose split is named in vain.

    All splits are packed, except that a held-out split is packed by itself.
    """
    notes: list[str] = []
    for parent in parents:
        # A split of held-out documents is packed by itself.
        is_held_out = parent.split in parent.manifest.held_out.values()
        if parent.split != SPLIT and not is_held_out:
            split_names = ", ".join(parent.manifest.splits)
            notes.append(
                f"{parent.name}: without `mix` all splits of {parent.reference} are packed ({split_names}), not "
                f"{parent.split} alone; open the result with split={parent.split!r}"
            )
    return notes


def _mixing_work(
    mix_config: MixStageConfig,
    parents: Sequence[FoundParent],
    level: Level,
    out: RowsOut,
    store: str,
) -> _Work:
    """Return the work of mixing stored rows.

    Args:
        mix_config: Section `mix` of the configuration.
        parents: Versions that are mixed.
        level: Kind of row that is mixed.
        out: Format of the new rows.
        store: Place of the store, for notes.
    """
    _require_training_splits(parents)

    # 1. The order, and the rows that it draws from each source.
    spec, mixture = settled(mix_config, parents, out)
    order = spec.order
    source_draws = outcomes(mixture, spec)
    amounts = {parent.name: (parent.rows, parent.tokens) for parent in parents}
    drawn_rows = {name: draw.rows for name, draw in source_draws.items()}
    check_caps(mix_config, amounts, drawn_rows)

    # 2. The units.
    unit_rows = mix_config.unit_rows or _unit_rows_of(parents, order)
    content = {parent.name: content_identity(parent) for parent in parents}
    units = range_units(
        order.rows,
        unit_rows,
        _mean_row_bytes(parents, source_draws),
        unit_identity(level, content, spec, mixture, out),
        join_rest=mix_config.unit_rows is None,
    )

    # 3. The forecast, and notes for the user.
    forecast = forecast_of(
        level,
        mix_config,
        parents,
        source_draws,
        out,
        spec,
        units=len(units),
        unit_rows=unit_rows,
    )
    left_out = _notes_on_splits(parents, store)
    notes = (
        _notes_on_choices(mix_config, forecast)
        + notes_on_columns(parents, out)
        + notes_on(forecast)
    )
    return _Work(
        identity=_mixture_identity(spec, content, out),
        units=units,
        notes=left_out + notes,
        left_out=left_out,
        mix=_mixture_section(mix_config, parents, level, spec),
        spec=spec,
        forecast=forecast,
    )


def _mixture_identity(
    spec: MixtureSpec, content: Mapping[str, str], out: RowsOut
) -> dict[str, Any]:
    """Return the identity of a mixture: the rows of its parents, not their versions."""
    return {
        "content": [content[name] for name in spec.lengths],
        "order": spec.order.identity(spec.lengths),
        "order_version": spec.order.version,
        "rows": spec.order.rows,
        "out": rows_identity(out),
    }


def _mixture_section(
    mix_config: MixStageConfig,
    parents: Sequence[FoundParent],
    level: Level,
    spec: MixtureSpec,
) -> dict[str, Any]:
    """Return the section `mix` of the manifest's configuration."""
    return {
        "level": level,
        "weights_by": mix_config.weights_by,
        "splits": {parent.name: parent.split for parent in parents},
        **spec.order.identity(spec.lengths),
        "rows": spec.order.rows,
    }


def _unit_rows_of(parents: Sequence[FoundParent], order: MixtureOrder) -> int:
    """Return the number of rows of a unit, if the configuration leaves it open."""
    sizes = {parent.name: parent.size for parent in parents}
    weights = [point.weights for point in order.points]
    return choose_unit_rows(
        sizes,
        weights,
        lanes=order.lanes,
        batch_size=order.batch_size,
    )


def _mean_row_bytes(
    parents: Sequence[FoundParent], source_draws: Mapping[str, SourceDraw]
) -> Fraction:
    """Return the mean bytes of the drawn rows, as they are stored in the parents.

    It is the sum over the parents of (rows drawn) * (bytes of the parent) / (rows of
    the parent), divided by the rows that are drawn in total.
    """
    # Fractions, because a rounded mean would change the sizes of units.
    stored_bytes = Fraction(0)
    for parent in parents:
        stored_bytes += Fraction(
            source_draws[parent.name].rows * parent.totals.bytes, parent.rows
        )
    drawn_rows = sum(draw.rows for draw in source_draws.values())
    return stored_bytes / max(1, drawn_rows)


def _require_training_splits(parents: Sequence[FoundParent]) -> None:
    """Check that each parent has the split that is mixed, and may train on it.

    Raises:
        ConfigError: The split has no rows, or was held out of training.
    """
    for parent in parents:
        require_split(parent)
        if parent.split in parent.manifest.held_out.values():
            raise parent.wrong(
                f"the documents of {parent.split!r} were held out of training when {parent.reference} was built, but "
                "the rows of a mixture are trained on; expected another split. Evaluate on them directly: "
                f"{parent.reference}, split {parent.split}",
                ".split",
                got=parent.split,
            )


def _manifest_config(
    build: ResolvedBuild, parents: Sequence[FoundParent], out: RowsOut, work: _Work
) -> dict[str, Any]:
    """Return the configuration as the manifest records it."""
    kind = "packed"
    if out.width is None:
        kind = "tokens"
    # The special tokens around documents, for a build that has this version as parent.
    around = {
        "prefix": list(out.prefix),
        "suffix": list(out.suffix),
        "whole": bool(out.whole),
    }
    config: dict[str, Any] = {
        "build": {"kind": kind, **rows_identity(out), "around": around}
    }
    if work.mix is not None:
        config["mix"] = work.mix
    config["sources"] = _sources_of_texts(parents)
    config.update(card_identity(build))
    return config


def _sources_of_texts(parents: Sequence[FoundParent]) -> dict[str, Any]:
    """Return the parents' records of the sources of their texts.

    Of two different sources of one name, the second gets the name of its parent too.
    """
    sources: dict[str, Any] = {}
    for parent in parents:
        for name, source in parent.sources.items():
            # Parents may share sources, which are recorded once.
            if sources.get(name, source) == source:
                sources[name] = source
            else:
                sources[f"{parent.name}/{name}"] = source
    return sources


def _notes_on_choices(mix_config: MixStageConfig, forecast: MixForecast) -> list[str]:
    """Return a note on options that the configuration leaves open, if there are any."""
    # A choice may be another one for a longer mixture, which would build all units
    # again.
    choices: list[str] = []
    if mix_config.lanes is None:
        choices.append(f"mix.lanes: {forecast.lanes}")
    if mix_config.unit_rows is None:
        choices.append(f"mix.unit_rows: {forecast.unit_rows}")
    if not choices:
        return []
    units = numbers.plural(forecast.units, "unit")
    return [
        f"{', '.join(choices)}, chosen by the sources and the length of the mixture ({units}); write this into the "
        "configuration, so that a longer mixture reuses the finished units"
    ]


def how_to_read_others(store: str, dataset: str, split: str) -> str:
    """Return advice on a split of a stored dataset that a mixture does not take."""
    # The names are those of the Python API and of the configuration.
    path = f"{store.rstrip('/')}/{dataset}"
    return (
        f"it is not lost: tl.open({path!r}, split={split!r}) reads it, and an entry {{dataset: {dataset}, split: "
        f"{split}}} of `datasets` makes a mixture of it"
    )


def _notes_on_splits(parents: Sequence[FoundParent], store: str) -> list[str]:
    """Return a note for each parent that has splits of which nothing is taken."""
    # A user may expect that all splits of a version are mixed.
    notes: list[str] = []
    for parent in parents:
        other_splits: list[str] = []
        descriptions: list[str] = []
        for split, totals in parent.manifest.splits.items():
            if split != parent.split:
                other_splits.append(split)
                descriptions.append(f"{split} ({numbers.count(totals.rows)} rows)")
        if not other_splits:
            continue
        advice = how_to_read_others(store, parent.manifest.dataset, other_splits[0])
        notes.append(
            f"{parent.name}: of {parent.reference} only {parent.split} is mixed, not {', '.join(descriptions)}; "
            f"{advice}"
        )
    return notes
