"""The difference of two versions, by their manifests alone. The first is called `a`, the second `b`."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias, cast, final

from tokenlake.base.fingerprint import canonical_text
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog, parted
from tokenlake.runtime.store.layout import CARD, CONFIG, LEDGER
from tokenlake.runtime.store.ledger import InputFileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest

_IDS: Final = "input_ids"
_NOTHING: Final = object()
#: Files that hold the name, the number or the time of a build: they differ between any two versions.
_OWN: Final = (CARD, CONFIG, LEDGER)

Side: TypeAlias = Literal["both", "a", "b"]
Kinship: TypeAlias = Literal["same_bytes", "same_tokens", "different", "only_a", "only_b"]

#: From alike to unlike.
KINSHIPS: Final[tuple[Kinship, ...]] = ("same_bytes", "same_tokens", "different", "only_a", "only_b")


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A value that is another one in `b`, or is in one of them alone.

    Attributes:
        key: dotted, such as ``build.pack.seq_length``.
        a, b: the values; None also where there is none.
        there: which of them has the key.
    """

    key: str
    a: Any
    b: Any
    there: Side = "both"


@final
@dataclass(frozen=True, slots=True)
class Count:
    """A figure of both versions."""

    name: str
    a: int
    b: int

    @property
    def more(self) -> int:
        """How much more `b` has."""
        return self.b - self.a


@final
@dataclass(frozen=True, slots=True)
class InputPair:
    """An input file that is not the same in both: other bytes, or in one of them alone (the other is None)."""

    a: InputFileEntry | None
    b: InputFileEntry | None

    @property
    def change(self) -> Literal["added", "removed", "changed"]:
        return "added" if self.a is None else "removed" if self.b is None else "changed"

    @property
    def file(self) -> InputFileEntry:
        """The file as it is in `b`, or was in `a`."""
        found = self.b or self.a
        assert found is not None
        return found

    def to_json(self) -> dict[str, Any]:
        sides = {"a": _some(self.a, ("size", "token")), "b": _some(self.b, ("size", "token"))}
        return {"change": self.change, "source": self.file.source, "path": self.file.path, **sides}


@final
@dataclass(frozen=True, slots=True)
class FilePair:
    """A shard of `a` and what it is in `b`; a file of equal bytes or tokens under another name is the same file.

    Attributes:
        kinship: ``same_bytes`` (sha256), ``same_tokens`` (logical hashes of the ids), ``different``, ``only_a`` or
            ``only_b``.
        columns: of a pair that is not ``same_bytes``, the columns whose logical hashes differ; none where the same
            values are only written otherwise.
    """

    kinship: Kinship
    a: ShardEntry | None
    b: ShardEntry | None
    columns: tuple[str, ...] = ()

    @property
    def renamed(self) -> bool:
        return self.a is not None and self.b is not None and self.a.path != self.b.path

    def to_json(self) -> dict[str, Any]:
        sides = {"a": _some(self.a, _SHARD), "b": _some(self.b, _SHARD)}
        return {"kinship": self.kinship, **sides, "columns": list(self.columns)}

    @property
    def same(self) -> bool:
        """Whether it is the same file under the same name."""
        return self.kinship == "same_bytes" and not self.renamed


_SHARD: Final = ("path", "unit", "bytes", "rows", "tokens", "sha256")


def _some(entry: ShardEntry | InputFileEntry | None, names: Iterable[str]) -> dict[str, Any] | None:
    return None if entry is None else {name: getattr(entry, name) for name in names}


_CHANGES: Final = ("identity", "config", "tokenizer", "others", "mixture", "parents", "produced_by")
_COUNTS: Final = ("totals", "account")
_PARTS: Final = (*_CHANGES[:3], "inputs", "files", "others", "figures", *_CHANGES[4:])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two versions; what is equal is left out, but for figures.

    Attributes:
        a, b: references, ``code@v1``.
        identity: kind, sequence length and the hashes that say what was to be built.
        config, tokenizer: of the build; keys of the tokenizer begin with the source.
        inputs: files that are not the same; `inputs_same` counts the others.
        files: shards in the order of `a`, then those of `b` alone; also the same ones.
        units: how many units are of which kinship: that of their least alike file.
        others: files that are no shards; the card, the ledger and other records of the build itself are left out.
        totals: rows, tokens, documents, bytes and files.
        account: figures of the account that are not 0 in both.
        mixture: of mixed versions: weights, order, and what became of each source.
        parents, produced_by: what they were made from, and by which releases.
    """

    a: str
    b: str
    identity: tuple[Change, ...]
    config: tuple[Change, ...]
    tokenizer: tuple[Change, ...]
    inputs: tuple[InputPair, ...]
    inputs_same: int
    files: tuple[FilePair, ...]
    units: dict[Kinship, int]
    others: tuple[Change, ...]
    totals: tuple[Count, ...]
    account: tuple[Count, ...]
    mixture: tuple[Change, ...]
    parents: tuple[Change, ...]
    produced_by: tuple[Change, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts in which they differ; none where one could stand for the other."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _PARTS if name != "figures"}
        found["files"] = [pair for pair in self.files if not pair.same]
        found["figures"] = [count for count in (*self.totals, *self.account) if count.more]
        return tuple(name for name in _PARTS if found[name])

    @property
    def equal(self) -> bool:
        """Whether nothing differs but names, numbers and the records of the builds."""
        return not self.parts

    @property
    def kinships(self) -> dict[Kinship, int]:
        """How many shards are of which kinship."""
        found = Counter(pair.kinship for pair in self.files)
        return {kinship: found[kinship] for kinship in KINSHIPS if found[kinship]}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; of shards that are the same only their number."""
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "parts": list(self.parts),
            **{name: [asdict(change) for change in getattr(self, name)] for name in _CHANGES},
            "inputs": {"same": self.inputs_same, "changes": [pair.to_json() for pair in self.inputs]},
            "files": {
                "count": self.kinships,
                "units": self.units,
                "changes": [pair.to_json() for pair in self.files if not pair.same],
            },
            **{
                name: [asdict(each) | {"more": each.more} for each in getattr(self, name)] for name in _COUNTS
            },
        }


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Difference:
    """Compare two versions; their manifests are read, and nothing else.

    ::

        tl.diff("code@v1", "code@prod", store="artifacts").config
        tl.diff("artifacts/code@v1", "s3://bucket/artifacts/code@v1").equal

    Args:
        a, b: as :func:`tokenlake.open` takes them; names alone where there is a `store`.
        store: where both are.
        storage_options: for fsspec's file system; ``{"env": NAME}`` stands for an environment variable.

    Raises:
        NotFoundError: there is no such version; near matches are named.
        IntegrityError: a manifest is damaged.
    """
    return compare(_manifest(a, store, storage_options), _manifest(b, store, storage_options))


def _manifest(
    where: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Manifest:
    place, name = parted(os.fspath(where)) if store is None else (os.fspath(store), os.fspath(where))
    return Catalog(open_read_store(place, storage_options=storage_options)).manifest_of(name)


def compare(a: Manifest, b: Manifest) -> Difference:
    """Compare two versions by what their manifests say; no data is read."""
    left, right = ({(each.source, each.path): each for each in one.inputs} for one in (a, b))
    inputs: list[InputPair] = []
    for key in sorted(left.keys() | right.keys()):
        before, after = left.get(key), right.get(key)
        if before is None or after is None or (before.size, before.token) != (after.size, after.token):
            inputs.append(InputPair(before, after))
    pairs = match_shards(a.files, b.files)
    # Figures in the order of the account's fields, and of reasons by name.
    order, ours, theirs = [each.name for each in fields(Account)], _figures(a), _figures(b)
    names = sorted(ours.keys() | theirs.keys(), key=lambda name: (order.index(name.partition(".")[0]), name))
    counts = [Count(name, ours.get(name, 0), theirs.get(name, 0)) for name in names]
    return Difference(
        a=f"{a.dataset}@v{a.version}",
        b=f"{b.dataset}@v{b.version}",
        identity=changes(_identity(a), _identity(b)),
        config=changes(a.config, b.config),
        tokenizer=changes(a.tokenizer, b.tokenizer),
        inputs=tuple(inputs),
        inputs_same=len(b.inputs) - sum(pair.b is not None for pair in inputs),
        files=pairs,
        units=unit_kinships(pairs),
        others=changes(_others(a), _others(b)),
        totals=tuple(Count(name, n, getattr(b.totals, name)) for name, n in asdict(a.totals).items()),
        account=tuple(each for each in counts if each.a or each.b),
        mixture=changes(*({} if each.mixture is None else each.mixture.to_json() for each in (a, b))),
        parents=changes(_parents(a), _parents(b)),
        produced_by=changes(a.produced_by, b.produced_by),
    )


def changes(a: object, b: object) -> tuple[Change, ...]:
    """Return what differs between two JSON values, by dotted keys in the order of their names."""
    return tuple(changes_between("", a, b))


def changes_between(key: str, a: object, b: object) -> Iterator[Change]:
    """Yield what differs between two values as JSON has them, each with its dotted key below `key`."""
    left, right = _children(a), _children(b)
    # Lists of unequal lengths have no places to compare; a list and an object neither.
    mapping = isinstance(a, Mapping)
    alike = mapping == isinstance(b, Mapping)
    if left is not None and right is not None and alike and (mapping or len(left) == len(right)):
        for name in sorted(left.keys() | right.keys()):
            below = f"{key}.{name}" if key and mapping else f"{key}{name}"
            yield from changes_between(below, left.get(name, _NOTHING), right.get(name, _NOTHING))
    elif a is _NOTHING:
        yield Change(key, None, b, "b")
    elif b is _NOTHING:
        yield Change(key, a, None, "a")
    elif canonical_text(a) != canonical_text(b):  # as JSON: 1 is not true
        yield Change(key, a, b)


def _children(value: object) -> Mapping[str, object] | None:
    """Return what is below an object, or below a list of objects; None for any other value."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value)
    if isinstance(value, list) and any(isinstance(each, dict) for each in cast("list[Any]", value)):
        return {f"[{index}]": each for index, each in enumerate(cast("list[Any]", value))}
    return None


def _identity(manifest: Manifest) -> dict[str, Any]:
    return {
        "kind": manifest.kind,
        "seq_length": manifest.seq_length,
        "build": manifest.fingerprint,
        "format_version": manifest.format_version,
    }


def _others(manifest: Manifest) -> dict[str, Any]:
    found = manifest.other_files.items()
    return {path: entry.sha256 for path, entry in found if path.partition("/")[0] not in _OWN}


def _figures(manifest: Manifest) -> dict[str, int]:
    """Return the figures of an account, reasons spelled out: ``filtered.empty``."""
    found: dict[str, int] = {}
    for name, value in manifest.account.to_json().items():
        by_reason = {"": value} if isinstance(value, int) else {f".{each}": value[each] for each in value}
        found |= {name + reason: number for reason, number in by_reason.items()}
    return found


def _parents(manifest: Manifest) -> dict[str, Any]:
    return {f"{parent.dataset}@v{parent.version}": parent.sha256 for parent in manifest.parents}


def match_shards(a: Iterable[ShardEntry], b: Iterable[ShardEntry]) -> tuple[FilePair, ...]:
    """Pair the shards of two versions, each once; in the order of `a`, then those of `b` alone.

    A file that was added to the inputs may move all units after it by one, so names are not enough: of what is not the
    same under the same name, equal bytes are looked for under any name, then equal tokens.
    """
    left, right = list(a), list(b)
    found: dict[str, FilePair] = {}
    for key, kinship in _ROUNDS:
        # Those of an equal key, in their order.
        waiting: defaultdict[Hashable, list[ShardEntry]] = defaultdict(list)
        for shard in reversed(right):
            waiting[key(shard)].append(shard)
        gone: set[str] = set()
        for shard in left:
            if same := waiting.get(key(shard)):
                other = same.pop()
                gone.add(other.path)
                names = [] if kinship == "same_bytes" else sorted(shard.logical.keys() | other.logical.keys())
                unlike = (name for name in names if shard.logical.get(name) != other.logical.get(name))
                found[shard.path] = FilePair(kinship, shard, other, tuple(unlike))
        left = [shard for shard in left if shard.path not in found]
        right = [shard for shard in right if shard.path not in gone]
    found |= {shard.path: FilePair("only_a", shard, None) for shard in left}
    only_b = [FilePair("only_b", None, shard) for shard in right]
    return (*(found[shard.path] for shard in a), *only_b)


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


_ROUNDS: Final[tuple[tuple[Callable[[ShardEntry], Hashable], Kinship], ...]] = (
    (lambda shard: (shard.path, shard.sha256), "same_bytes"),
    (lambda shard: (shard.path, shard.rows, _ids(shard)), "same_tokens"),
    (lambda shard: shard.sha256, "same_bytes"),
    (lambda shard: (shard.split, shard.rows, _ids(shard)), "same_tokens"),
    (lambda shard: shard.path, "different"),
)
