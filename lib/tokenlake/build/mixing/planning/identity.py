"""What a build from stored versions is, as fingerprints: the content it takes, the order, and the rows it makes.

Versions are what they hold: numbers of versions, names of datasets, clocks and writers are not identity, so that tokens
that were built again, to the same rows, mix to the same version.

A unit is its rows: where a mixture that begins anew for ever is only made longer, or its schedule goes on to further
points, perhaps with further sources, the units before that keep their fingerprints, and a new version takes them over
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from tokenlake.build.mixing.job import Level, RowsOut
from tokenlake.build.mixing.planning.parents import FoundParent
from tokenlake.build.mixing.spec import MixtureSpec
from tokenlake.config.identity import pack_identity
from tokenlake.fingerprint import fingerprint
from tokenlake.manifest import ShardEntry
from tokenlake.manifest.mixture import FIRST_ORDER
from tokenlake.mixing import Mixture
from tokenlake.schema import FORMAT_VERSION
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
        self, level: Level, content: Mapping[str, str], spec: MixtureSpec, mixture: Mixture, out: RowsOut
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
