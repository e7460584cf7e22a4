"""The units of a build from stored versions, and their identity: content, order, and the rows that are made.

Versions are what they hold: numbers of versions, names of datasets, clocks and writers are not identity, so that tokens
that were built again, to the same rows, mix to the same version.

A unit is its rows: where a mixture that begins anew for ever is only made longer, or its schedule goes on to further
points, perhaps with further sources, the units before that keep their fingerprints, and a new version reuses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, final

from tokenlake.config.identity import pack_identity
from tokenlake.errors import ConfigError
from tokenlake.etl.job import Level, RowsOut
from tokenlake.etl.mixture import MixtureSpec
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.plan import MixUnit, RepackUnit
from tokenlake.fingerprint import fingerprint
from tokenlake.mixing.mixture import SourceMixture
from tokenlake.schema import FORMAT_VERSION
from tokenlake.store.catalog import Catalog
from tokenlake.store.entries import ShardEntry
from tokenlake.store.layout import MAX_UNIT
from tokenlake.store.ledger import MIXED, UnitRecord
from tokenlake.store.mixture import FIRST_ORDER, SourceDraw
from tokenlake.tokenizers.fingerprint import identity as tokenizer_identity

_LATER: Final = 16
"""Rows of a lane by which the time of a count may be later, for up to 28 sources."""

_OF_ITS_PLACE: Final = ("folder", "append_eos")
"""What a manifest says of a tokenizer that is not about what its ids mean."""


def content_identity(parent: FoundParent) -> str:
    """Return the hash of all rows of a parent's mixed split, in their order, and of the tokenizers that made them."""
    return fingerprint(
        {
            "split": parent.split,
            "seq_length": parent.manifest.seq_length,
            "shards": [[shard.path, *_rows(shard)] for shard in parent.shards],
            "tokenizers": tokenizers_identity(parent),
        }
    )


def unit_content(parent: FoundParent, parts: Sequence[ShardEntry]) -> str:
    """Return the hash of the rows of one unit of a parent, wherever it stands there."""
    return fingerprint(
        {
            "shards": [[part.split, part.part, *_rows(part)] for part in parts],
            "tokenizers": tokenizers_identity(parent),
        }
    )


def tokenizers_identity(parent: FoundParent) -> dict[str, Any]:
    """Return the identity of the tokenizer of each source."""
    return {
        source: tokenizer_identity({key: value for key, value in facts.items() if key not in _OF_ITS_PLACE})
        for source, facts in parent.manifest.tokenizer.items()
    }


def rows_identity(out: RowsOut) -> dict[str, Any]:
    """Return the identity of what is made of the rows."""
    return {
        "pack": None if out.pack is None else pack_identity(out.pack),
        "seq_length": out.seq_length,
        "prefix": list(out.prefix),
        "suffix": list(out.suffix),
        "eos_id": out.eos_id,
        "pad_id": out.pad_id,
        "append_eos": out.append_eos,
        "whole": list(out.whole),
        "max_shard_size": out.max_shard_size,
        "compression": "zstd",
        **({"loss_mask": True} if out.loss_mask else {}),
    }


def order_identity(spec: MixtureSpec) -> dict[str, Any]:
    """Return the identity of an order but for its end; the lengths of the sources are those of the content."""
    names = list(spec.lengths)
    return {
        "names": names,  # their order counts, and canonical JSON sorts keys
        "lanes": spec.lanes,
        "batch_size": spec.batch_size,
        "block_size": spec.block_size,
        "step_rows": spec.step_rows,
        "seed": spec.seed,
        "stop": spec.stop,
        "points": [[step, [weights[name] for name in names]] for step, weights in spec.points],
        "interpolation": spec.interpolation,
        **({} if spec.order == FIRST_ORDER else {"version": spec.order}),
    }


@final
class UnitIdentity:
    """Fingerprints of the units of one mixture.

    Args:
        content: source -> :func:`content_identity` of its parent.
    """

    def __init__(
        self,
        level: Level,
        content: Mapping[str, str],
        spec: MixtureSpec,
        mixture: SourceMixture,
        out: RowsOut,
    ) -> None:
        self._spec, self._mixture, self._content, self._out = spec, mixture, content, out
        self._base = {"format_version": FORMAT_VERSION, "order_version": spec.order, "level": level}

    def of(self, start: int, stop: int) -> str:
        """Return the fingerprint of the rows at positions ``start .. stop``."""
        spec = self._until(stop)
        out = replace(self._out, whole=tuple(name for name in self._out.whole if name in spec.lengths))
        return fingerprint(
            {
                **self._base,
                "content": [self._content[name] for name in spec.lengths],
                "order": order_identity(spec),
                "out": rows_identity(out),
                "start": start,
                "stop": stop,
            }
        )

    def _until(self, stop: int) -> MixtureSpec:
        """The mixture as far as positions before `stop` depend on it: the schedule up to there, and its sources.

        A source without weight takes no slot from the others. Only where sources begin anew does a lane's end not
        depend on all that comes.
        """
        spec = self._spec
        if spec.stop != "restart":
            return spec
        points = points_until(spec, self._last_step(stop))
        names = [name for name in spec.lengths if any(weights[name] for _, weights in points)]
        return replace(
            spec,
            lengths={name: spec.lengths[name] for name in names},
            points=tuple((step, {name: weights[name] for name in names}) for step, weights in points),
            interpolation=spec.interpolation if len(points) > 1 else "step",
        )

    def _last_step(self, stop: int) -> int:
        """A step whose weights, and those of later ones, put no row before position `stop`.

        In a lane, the groups that hold the places before it are decided by counts at their ends. A count of n rows is
        that of a time at most half a row for each source later than n (see :mod:`tokenlake.mixing.counts`); rounded up,
        so that a source more changes nothing here.
        """
        spec = self._spec
        places = int(self._mixture.layout.places_before(stop).max())
        slots = -(-places // self._mixture.group_slots) * self._mixture.group_slots
        rows = (slots + max(_LATER, len(spec.lengths) // 2 + 2)) * spec.lanes
        return -(-rows // spec.step_rows)


def points_until(spec: MixtureSpec, step: int) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """Return the points of a schedule that decide the weights before `step`.

    Those up to there, and where weights move towards the next point that one too.
    """
    before = [point for point in spec.points if point[0] < step]
    if not before:
        return spec.points[:1]
    after = spec.points[len(before) : len(before) + 1]
    return (*before, *(() if spec.interpolation == "step" else after))


def _rows(shard: ShardEntry) -> tuple[int, list[int], dict[str, str]]:
    return shard.rows, list(shard.row_groups), shard.logical


_LEAST_REST: Final = Fraction(2, 3)
"""Of a unit: what is less decodes much more than it takes, see :mod:`tokenlake.etl.plan.mixture`."""


def range_units(
    rows: int, unit_rows: int, row_bytes: Fraction, identity: UnitIdentity, *, join_rest: bool
) -> tuple[MixUnit, ...]:
    """Return the units of a mixture.

    Args:
        rows: of the mixture.
        unit_rows: of a unit.
        row_bytes: stored bytes of a row, in the mean.
        identity: of units.
        join_rest: whether rows that are too few for a unit go to the last one, instead of being one.

    Raises:
        ConfigError: there are more units than a version can have.
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
            fingerprint=identity.of(start, stop),
            start=start,
            stop=stop,
        )
        for index, (start, stop) in enumerate(pairwise(bounds))
    )


def mean_row_bytes(parents: Sequence[FoundParent], drawn: Mapping[str, SourceDraw]) -> Fraction:
    """Return about how many stored bytes of the parents a row of the mixture stands for."""
    total = sum(
        (Fraction(drawn[parent.name].rows * parent.totals.bytes, parent.rows) for parent in parents),
        Fraction(0),
    )
    return total / max(1, sum(outcome.rows for outcome in drawn.values()))


def require_packing(parents: Sequence[FoundParent], out: RowsOut) -> None:
    """Raise ConfigError where a build would write its parents' rows as they are."""
    if out.pack is None:
        names = ", ".join(parent.reference for parent in parents)
        raise ConfigError(
            f"pack.enabled: false, and there is no section mix: the rows of {names} would only be copied; write "
            "pack.enabled: true to pack them, or a section mix to mix them"
        )


def repacked_units(catalog: Catalog, parents: Sequence[FoundParent], out: RowsOut) -> tuple[RepackUnit, ...]:
    """Return the units: those of each parent, in its order; units without rows are left out."""
    found: list[RepackUnit] = []
    for parent in parents:
        records = _records(catalog, parent, out)
        for number, parts in sorted(_parts(parent).items()):
            source = _source(parent, records.get(number))
            found.append(
                RepackUnit(
                    index=len(found),
                    source=source,
                    bytes=sum(part.bytes for part in parts),
                    fingerprint=_fingerprint(parent, parts, source, out, records.get(number)),
                    parent=parent.version,
                    parent_unit=number,
                )
            )
    return tuple(found)


def _parts(parent: FoundParent) -> dict[int, list[ShardEntry]]:
    parts: dict[int, list[ShardEntry]] = {}
    for shard in parent.manifest.files:
        parts.setdefault(shard.unit, []).append(shard)
    return parts


def _records(catalog: Catalog, parent: FoundParent, out: RowsOut) -> Mapping[int, UnitRecord]:
    """The ledger, where the manifest alone does not say whose a unit is, or by which key its rows are shuffled."""
    shuffled = out.pack is not None and out.pack.shuffle_seed is not None
    if len(parent.manifest.accounts) == 1 and not shuffled:
        return {}
    manifest = parent.manifest
    return catalog.ledger(manifest.dataset, manifest.version, manifest=manifest)


def _source(parent: FoundParent, record: UnitRecord | None) -> str:
    """The source whose rows a unit has; of a mixture, which has those of several, it is the mixture as a whole."""
    if parent.manifest.mixture is not None:
        return parent.name
    if record is not None and record.source != MIXED:
        return record.source
    return next(iter(parent.manifest.accounts))


def _fingerprint(
    parent: FoundParent,
    parts: Sequence[ShardEntry],
    source: str,
    out: RowsOut,
    record: UnitRecord | None,
) -> str:
    shuffled = out.pack is not None and out.pack.shuffle_seed is not None
    return fingerprint(
        {
            "format_version": FORMAT_VERSION,
            "repack": unit_content(parent, parts),
            "source": source,
            "whole": parent.name in out.whole,
            "out": {key: value for key, value in rows_identity(out).items() if key != "whole"},
            **({"began": _began(record)} if shuffled else {}),
        }
    )


def _began(record: UnitRecord | None) -> list[Any]:
    """Where in its inputs the parent's unit began, of which the key of its shuffle is made."""
    first = record.inputs[:1] if record is not None else ()
    return [[entry.file_id, entry.start] for entry in first]
