"""Which shard of one version is which of another: by name, by bytes, by tokens.

A file that was added to the inputs may move all units after it by one, so names are not enough: of what is not the same
under the same name, equal bytes are looked for under any name, then equal tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from tokenlake.difference.model import KINSHIPS, FilePair, Kinship
from tokenlake.manifest import ShardEntry

_IDS: Final = "input_ids"


def match_shards(a: Iterable[ShardEntry], b: Iterable[ShardEntry]) -> tuple[FilePair, ...]:
    """Pair the shards of two versions, each once; in the order of `a`, then those of `b` alone."""
    left, right = list(a), list(b)
    found: dict[str, FilePair] = {}
    for key, kinship in _ROUNDS:
        taken = _match(left, right, key, kinship)
        found |= {pair.a.path: pair for pair in taken if pair.a is not None}
        left = [shard for shard in left if shard.path not in found]
        gone = {pair.b.path for pair in taken if pair.b is not None}
        right = [shard for shard in right if shard.path not in gone]
    order = {shard.path: index for index, shard in enumerate(a)}
    found |= {shard.path: FilePair("only_a", shard, None) for shard in left}
    ordered = sorted(found, key=order.__getitem__)
    return (*(found[path] for path in ordered), *(FilePair("only_b", None, shard) for shard in right))


def unit_kinships(pairs: Iterable[FilePair]) -> dict[Kinship, int]:
    """Return how many units are of which kinship; a unit is as its least alike file is."""
    worst: dict[tuple[str, int], int] = {}
    for pair in pairs:
        shard, side = (pair.b, "b") if pair.b is not None else (pair.a, "a")
        assert shard is not None
        place = (side, shard.unit)
        worst[place] = max(worst.get(place, 0), KINSHIPS.index(pair.kinship))
    # A unit of `a` alone that `b` has with other files is not counted twice.
    units = {unit for side, unit in worst if side == "b"}
    counts = Counter(
        KINSHIPS[rank] for (side, unit), rank in worst.items() if side == "b" or unit not in units
    )
    return {kinship: counts[kinship] for kinship in KINSHIPS if counts[kinship]}


def _ids(shard: ShardEntry) -> tuple[tuple[str, str], ...]:
    """Return the hashes of the columns of ids, in the order of their names."""
    return tuple(sorted(item for item in shard.logical.items() if item[0].endswith(_IDS)))


def _match(
    a: list[ShardEntry], b: list[ShardEntry], key: Callable[[ShardEntry], Hashable], kinship: Kinship
) -> list[FilePair]:
    """Pair shards of an equal key, in their order."""
    waiting: defaultdict[Hashable, list[ShardEntry]] = defaultdict(list)
    for shard in reversed(b):
        waiting[key(shard)].append(shard)
    found: list[FilePair] = []
    for shard in a:
        if same := waiting.get(key(shard)):
            other = same.pop()
            columns = () if kinship == "same_bytes" else _unlike(shard, other)
            found.append(FilePair(kinship, shard, other, columns))
    return found


def _unlike(a: ShardEntry, b: ShardEntry) -> tuple[str, ...]:
    names = sorted(a.logical.keys() | b.logical.keys())
    return tuple(name for name in names if a.logical.get(name) != b.logical.get(name))


_ROUNDS: Final[tuple[tuple[Callable[[ShardEntry], Hashable], Kinship], ...]] = (
    (lambda shard: (shard.path, shard.sha256), "same_bytes"),
    (lambda shard: (shard.path, shard.rows, _ids(shard)), "same_tokens"),
    (lambda shard: shard.sha256, "same_bytes"),
    (lambda shard: (shard.split, shard.rows, _ids(shard)), "same_tokens"),
    (lambda shard: shard.path, "different"),
)
