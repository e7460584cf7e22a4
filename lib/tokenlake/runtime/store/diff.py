"""Difference of two versions, from their manifests alone.

The first version is called `a`, the second `b`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias, cast, final

from tokenlake.base.fingerprint import canonical_text
from tokenlake.runtime.store.account import Account
from tokenlake.runtime.store.address import open_read_store
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import CARD, CONFIG, LEDGER
from tokenlake.runtime.store.ledger import InputFileEntry, ShardEntry
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.references import parted

Side: TypeAlias = Literal["both", "a", "b"]
Kinship: TypeAlias = Literal[
    "same_bytes", "same_tokens", "different", "only_a", "only_b"
]

KINSHIPS: Final[tuple[Kinship, ...]] = (
    "same_bytes",
    "same_tokens",
    "different",
    "only_a",
    "only_b",
)
"""Kinships of two files, from alike to unlike."""

# Columns of ids have this name, or end with it (`chosen_input_ids`).
_IDS: Final = "input_ids"
_MISSING: Final = object()
"""Stands for the value of a key that an object does not have."""
_OWN: Final = (CARD, CONFIG, LEDGER)
"""Files that hold the name, the number or the time of a build.

They differ between any two versions.
"""


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs, or that only one of the two versions has.

    Attributes:
        key: Dotted key, such as ``build.pack.seq_length``.
        a: Value in `a`; None also if `a` has no such key.
        b: Value in `b`; None also if `b` has no such key.
        there: Which versions have the key: ``both``, ``a`` alone or ``b`` alone.
    """

    key: str
    a: Any
    b: Any
    there: Side = "both"

    @property
    def is_in_a(self) -> bool:
        """Whether `a` has the key."""
        return self.there != "b"

    @property
    def is_in_b(self) -> bool:
        """Whether `b` has the key."""
        return self.there != "a"


@final
@dataclass(frozen=True, slots=True)
class Count:
    """A count of both versions.

    Attributes:
        name: Name of the count, such as ``filtered.empty``.
        a: Count of `a`.
        b: Count of `b`.
    """

    name: str
    a: int
    b: int

    @property
    def more(self) -> int:
        """The count of `b` minus that of `a`."""
        return self.b - self.a


@final
@dataclass(frozen=True, slots=True)
class InputPair:
    """An input file with other bytes in `b`, or in one of the versions alone.

    Attributes:
        a: The file in `a`; None if `a` does not have it.
        b: The file in `b`; None if `b` does not have it.
    """

    a: InputFileEntry | None
    b: InputFileEntry | None

    @property
    def change(self) -> Literal["added", "removed", "changed"]:
        """Change of the file from `a` to `b`, as the JSON form names it."""
        if self.a is None:
            return "added"
        if self.b is None:
            return "removed"
        return "changed"

    @property
    def file(self) -> InputFileEntry:
        """The file as it is in `b`, or was in `a`."""
        entry = self.b or self.a
        assert entry is not None
        return entry

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return {
            "change": self.change,
            "source": self.file.source,
            "path": self.file.path,
            "a": _selected(self.a, ("size", "token")),
            "b": _selected(self.b, ("size", "token")),
        }


@final
@dataclass(frozen=True, slots=True)
class FilePair:
    """A shard of `a` and its counterpart in `b`, which may have another name.

    Attributes:
        kinship: ``same_bytes`` (sha256), ``same_tokens`` (logical hashes of the ids),
            ``different``, ``only_a`` or ``only_b``.
        a: The shard of `a`; None for ``only_b``.
        b: The shard of `b`; None for ``only_a``.
        columns: Columns of the pair whose logical hashes differ. Empty for
            ``same_bytes``, and where equal values are only encoded differently.
    """

    kinship: Kinship
    a: ShardEntry | None
    b: ShardEntry | None
    columns: tuple[str, ...] = ()

    @property
    def renamed(self) -> bool:
        """Whether both versions have the file, under different names."""
        return self.a is not None and self.b is not None and self.a.path != self.b.path

    @property
    def same(self) -> bool:
        """Whether it is the same file under the same name."""
        return self.kinship == "same_bytes" and not self.renamed

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form."""
        return {
            "kinship": self.kinship,
            "a": _selected(self.a, _SHARD),
            "b": _selected(self.b, _SHARD),
            "columns": list(self.columns),
        }


# Fields of a shard in the JSON form. Logical hashes are long and left out; `columns`
# names those that differ.
_SHARD: Final = ("path", "unit", "bytes", "rows", "tokens", "sha256")


def _selected(
    entry: ShardEntry | InputFileEntry | None, names: Iterable[str]
) -> dict[str, Any] | None:
    """Return some fields of an entry; None for no entry."""
    if entry is None:
        return None
    return {field_name: getattr(entry, field_name) for field_name in names}


# Members of `Difference` by their type: lists of changes, lists of counts, and all
# parts in the order in which a report shows them. `figures` covers both lists of
# counts.
_CHANGES: Final = (
    "identity",
    "config",
    "tokenizer",
    "others",
    "mixture",
    "parents",
    "produced_by",
)
_COUNTS: Final = ("totals", "account")
_PARTS: Final = (*_CHANGES[:3], "inputs", "files", "others", "figures", *_CHANGES[4:])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of two versions.

    Equal values are left out, except counts and files.

    Attributes:
        a: Reference of the first version, such as ``code@v1``.
        b: Reference of the second version.
        identity: Kind, sequence length, and hash of the build.
        config: Configuration of the build.
        tokenizer: Tokenizers; keys begin with the source.
        inputs: Input files that differ.
        inputs_same: Number of input files that are the same.
        files: All shards, in the order of `a`, then those of `b` alone.
        units: Number of units by kinship; a unit has the kinship of its least alike
            file.
        others: Files that are not shards, without the card, the ledger and other
            records of the build itself.
        totals: Rows, tokens, documents, bytes and files.
        account: Counts of the audit that are not 0 in both.
        mixture: Weights, order and draws of mixed versions.
        parents: Versions that they were made from.
        produced_by: Releases that made them.
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
        """Names of the parts that differ.

        They are empty if one version could replace the other.
        """
        differences: dict[str, Any] = {}
        for part_name in _PARTS:
            if part_name != "figures":
                differences[part_name] = getattr(self, part_name)
        # Shards and counts are listed even if they are equal: only those that differ
        # make a difference.
        differences["files"] = [pair for pair in self.files if not pair.same]
        counts = (*self.totals, *self.account)
        differences["figures"] = [count for count in counts if count.more]
        return tuple(name for name in _PARTS if differences[name])

    @property
    def equal(self) -> bool:
        """Whether nothing differs but names, numbers and the records of the builds."""
        return not self.parts

    @property
    def kinships(self) -> dict[Kinship, int]:
        """Number of shards by kinship; kinships without shards are left out."""
        return _by_kinship(pair.kinship for pair in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form; shards that are the same are only counted."""
        changes_json: dict[str, Any] = {}
        for part_name in _CHANGES:
            changes_json[part_name] = [
                asdict(change) for change in getattr(self, part_name)
            ]
        counts_json: dict[str, Any] = {}
        for part_name in _COUNTS:
            counts_json[part_name] = [
                asdict(count) | {"more": count.more}
                for count in getattr(self, part_name)
            ]
        # The order of the keys is that of the report.
        return {
            "a": self.a,
            "b": self.b,
            "equal": self.equal,
            "parts": list(self.parts),
            **changes_json,
            "inputs": {
                "same": self.inputs_same,
                "changes": [pair.to_json() for pair in self.inputs],
            },
            "files": {
                "count": self.kinships,
                "units": self.units,
                "changes": [pair.to_json() for pair in self.files if not pair.same],
            },
            **counts_json,
        }


def _by_kinship(kinships: Iterable[Kinship]) -> dict[Kinship, int]:
    """Count kinships, from alike to unlike; those that do not occur are left out."""
    counts = Counter(kinships)
    return {kinship: counts[kinship] for kinship in KINSHIPS if counts[kinship]}


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Difference:
    """Compare two versions. Only their manifests are read.

    Args:
        a: First version, as :func:`tokenlake.open` takes it; a name alone with `store`.
        b: Second version, in the same form.
        store: Store of both versions; None: `a` and `b` are whole addresses.
        storage_options: Options of fsspec's file system; ``{"env": NAME}`` is replaced
            by an environment variable.

    Returns:
        Differences of configuration, inputs, tokenizer and contents.

    Raises:
        NotFoundError: A version does not exist; the message names near matches.
        IntegrityError: A manifest is damaged.

    Example:
        >>> import tokenlake as tl
        >>> difference = tl.diff("books@v2", "books@v3", store="artifacts")
        >>> difference.equal
        False
    """
    return compare(
        _manifest_at(a, store, storage_options), _manifest_at(b, store, storage_options)
    )


def _manifest_at(
    version_address: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Manifest:
    """Read the manifest of a version by its reference."""
    if store is None:
        # The address of the version begins with that of its store.
        store_address, reference = parted(os.fspath(version_address))
    else:
        store_address = os.fspath(store)
        reference = os.fspath(version_address)
    read_store = open_read_store(store_address, storage_options=storage_options)
    return Catalog(read_store).manifest_of(reference)


def compare(a: Manifest, b: Manifest) -> Difference:
    """Compare two versions by their manifests."""
    # Values that several parts of the result need.
    inputs = _input_pairs(a, b)
    changed_inputs_b = sum(pair.b is not None for pair in inputs)
    pairs = match_shards(a.files, b.files)
    totals_b = asdict(b.totals)
    totals: list[Count] = []
    for count_name, total_a in asdict(a.totals).items():
        totals.append(Count(count_name, total_a, totals_b[count_name]))
    # Versions that are not mixed have no such record: every value of the other one is
    # a change then.
    mixture_a = {} if a.mixture is None else a.mixture.to_json()
    mixture_b = {} if b.mixture is None else b.mixture.to_json()
    return Difference(
        a=f"{a.dataset}@v{a.version}",
        b=f"{b.dataset}@v{b.version}",
        identity=changes(_identity(a), _identity(b)),
        config=changes(a.config, b.config),
        tokenizer=changes(a.tokenizer, b.tokenizer),
        inputs=tuple(inputs),
        inputs_same=len(b.inputs) - changed_inputs_b,
        files=pairs,
        units=unit_kinships(pairs),
        others=changes(_other_files(a), _other_files(b)),
        totals=tuple(totals),
        account=tuple(_account_counts(a.account, b.account)),
        mixture=changes(mixture_a, mixture_b),
        parents=changes(_parents(a), _parents(b)),
        produced_by=changes(a.produced_by, b.produced_by),
    )


def _input_pairs(a: Manifest, b: Manifest) -> list[InputPair]:
    """Return the input files that differ, by source and path."""
    # A file is known by its source and path. Its token says whether its bytes are the
    # same.
    entries_a = {(entry.source, entry.path): entry for entry in a.inputs}
    entries_b = {(entry.source, entry.path): entry for entry in b.inputs}
    pairs: list[InputPair] = []
    for source_and_path in sorted(entries_a.keys() | entries_b.keys()):
        before = entries_a.get(source_and_path)
        after = entries_b.get(source_and_path)
        if before is not None and after is not None:
            is_same_size = before.size == after.size
            if is_same_size and before.token == after.token:
                continue
        pairs.append(InputPair(before, after))
    return pairs


def _account_counts(a: Account, b: Account) -> Iterator[Count]:
    """Yield the counts of two audits that are not 0 in both.

    The order is that of the fields of an audit, and reasons are sorted by name.
    """
    # Counts by reason may exist in one of the audits only, where the other has 0.
    figures_a = _figures(a)
    figures_b = _figures(b)
    field_order = [field.name for field in fields(Account)]

    def sort_key(count_name: str) -> tuple[int, str]:
        return field_order.index(count_name.partition(".")[0]), count_name

    for count_name in sorted(figures_a.keys() | figures_b.keys(), key=sort_key):
        count = Count(
            count_name, figures_a.get(count_name, 0), figures_b.get(count_name, 0)
        )
        if count.a or count.b:
            yield count


def _figures(account: Account) -> dict[str, int]:
    """Return the counts of an audit by name; those by reason as ``filtered.empty``."""
    figures: dict[str, int] = {}
    for field_name, count in account.to_json().items():
        if isinstance(count, int):
            figures[field_name] = count
            continue
        for reason, reason_count in count.items():
            figures[f"{field_name}.{reason}"] = reason_count
    return figures


def changes(a: object, b: object) -> tuple[Change, ...]:
    """Return the changes between two JSON values, by dotted keys in sorted order."""
    return tuple(changes_between("", a, b))


def changes_between(key: str, a: object, b: object) -> Iterator[Change]:
    """Yield the changes between two JSON values, with dotted keys below `key`.

    Objects are compared key by key, and lists of objects of equal length element by
    element. Everything else is one value.
    """
    # Values of the same shape are compared member by member, so that a change is named
    # by the deepest key that differs.
    children = _comparable_children(a, b)
    if children is not None:
        children_a, children_b = children
        separator = "." if key and isinstance(a, Mapping) else ""
        for child_key in sorted(children_a.keys() | children_b.keys()):
            child_a = children_a.get(child_key, _MISSING)
            child_b = children_b.get(child_key, _MISSING)
            yield from changes_between(f"{key}{separator}{child_key}", child_a, child_b)
        return
    # Everything else is one value.
    if a is _MISSING:
        yield Change(key, None, b, "b")
    elif b is _MISSING:
        yield Change(key, a, None, "a")
    elif canonical_text(a) != canonical_text(b):  # as JSON: 1 is not true
        yield Change(key, a, b)


def _comparable_children(
    a: object, b: object
) -> tuple[Mapping[str, object], Mapping[str, object]] | None:
    """Return the members of two JSON values of the same shape; None for other values.

    Two objects are of the same shape, and so are two lists of equal length.
    """
    children_a = _children(a)
    children_b = _children(b)
    is_object = isinstance(a, Mapping)
    if children_a is None or children_b is None or is_object != isinstance(b, Mapping):
        return None
    if not is_object and len(children_a) != len(children_b):
        return None
    return children_a, children_b


def _children(value: object) -> Mapping[str, object] | None:
    """Return the members of an object, or the elements of a list of objects by index.

    The result is None for any other value.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value)
    if isinstance(value, list):
        elements = cast("list[Any]", value)
        # A list of numbers or texts is one value: its elements have no keys to compare.
        if any(isinstance(element, dict) for element in elements):
            return {f"[{index}]": element for index, element in enumerate(elements)}
    return None


def _identity(manifest: Manifest) -> dict[str, Any]:
    """Return the values that identify the build of a version."""
    return {
        "kind": manifest.kind,
        "seq_length": manifest.seq_length,
        "build": manifest.fingerprint,
        "format_version": manifest.format_version,
    }


def _other_files(manifest: Manifest) -> dict[str, Any]:
    """Return path -> sha256 of the files that are neither shards nor build records."""
    hashes: dict[str, Any] = {}
    for path, entry in manifest.other_files.items():
        if path.partition("/")[0] not in _OWN:
            hashes[path] = entry.sha256
    return hashes


def _parents(manifest: Manifest) -> dict[str, Any]:
    """Return reference -> sha256 of the versions that a version was made from."""
    return {
        f"{parent.dataset}@v{parent.version}": parent.sha256
        for parent in manifest.parents
    }


def match_shards(
    a: Iterable[ShardEntry], b: Iterable[ShardEntry]
) -> tuple[FilePair, ...]:
    """Pair the shards of two versions, each once.

    The pairs are in the order of `a`, followed by the shards that only `b` has.

    An input file that was added may move all later units by one, so names are not
    enough. The rounds of ``_ROUNDS`` go from the strictest match to the loosest: the
    same bytes or tokens under the same name, then under any name, then the same name
    alone. A shard that is paired in one round takes no part in the next.
    """
    shards_a = list(a)
    # Each round pairs shards by its key, and leaves the others to the next one.
    unpaired_a = list(shards_a)
    unpaired_b = list(b)
    pairs: dict[str, FilePair] = {}
    for key, kinship in _ROUNDS:
        # Shards of `b` by key. The lists are reversed, so that `pop` takes the first
        # one.
        candidates: defaultdict[Hashable, list[ShardEntry]] = defaultdict(list)
        for shard in reversed(unpaired_b):
            candidates[key(shard)].append(shard)
        paired_b: set[str] = set()
        for shard in unpaired_a:
            same_key = candidates.get(key(shard))
            if same_key:
                other = same_key.pop()
                paired_b.add(other.path)
                pairs[shard.path] = FilePair(
                    kinship, shard, other, _unlike_columns(kinship, shard, other)
                )
        unpaired_a = [shard for shard in unpaired_a if shard.path not in pairs]
        unpaired_b = [shard for shard in unpaired_b if shard.path not in paired_b]
    # Shards that no round paired exist in one version only.
    for shard in unpaired_a:
        pairs[shard.path] = FilePair("only_a", shard, None)
    only_b = [FilePair("only_b", None, shard) for shard in unpaired_b]
    return (*(pairs[shard.path] for shard in shards_a), *only_b)


def _unlike_columns(
    kinship: Kinship, shard: ShardEntry, other: ShardEntry
) -> tuple[str, ...]:
    """Return the columns of a pair whose logical hashes differ, by name."""
    if kinship == "same_bytes":
        return ()
    column_names = sorted(shard.logical.keys() | other.logical.keys())
    return tuple(
        column_name
        for column_name in column_names
        if shard.logical.get(column_name) != other.logical.get(column_name)
    )


def _id_hashes(shard: ShardEntry) -> tuple[tuple[str, str], ...]:
    """Return the columns of ids and their logical hashes, by name."""
    return tuple(
        sorted(
            column_hash
            for column_hash in shard.logical.items()
            if column_hash[0].endswith(_IDS)
        )
    )


# The key of the fourth round has the split and no path: a shard is found again although
# the units before it moved.
_ROUNDS: Final[tuple[tuple[Callable[[ShardEntry], Hashable], Kinship], ...]] = (
    (lambda shard: (shard.path, shard.sha256), "same_bytes"),
    (lambda shard: (shard.path, shard.rows, _id_hashes(shard)), "same_tokens"),
    (lambda shard: shard.sha256, "same_bytes"),
    (lambda shard: (shard.split, shard.rows, _id_hashes(shard)), "same_tokens"),
    (lambda shard: shard.path, "different"),
)
"""Rounds of :func:`match_shards`: the common key of two shards, and their kinship."""


def unit_kinships(pairs: Iterable[FilePair]) -> dict[Kinship, int]:
    """Return the number of units by kinship.

    A unit has the kinship of its least alike file.

    Units are those of `b`, and those of `a` whose number `b` does not have.
    """
    # Kinships are ordered from alike to unlike, so that the largest index of a unit's
    # files is that of the least alike one.
    ranks_a: dict[int, int] = {}
    ranks_b: dict[int, int] = {}
    for pair in pairs:
        rank = KINSHIPS.index(pair.kinship)
        if pair.b is not None:
            ranks_b[pair.b.unit] = max(ranks_b.get(pair.b.unit, 0), rank)
        elif pair.a is not None:
            ranks_a[pair.a.unit] = max(ranks_a.get(pair.a.unit, 0), rank)
    # Of a number that both versions have, the unit of `b` counts.
    ranks = {**ranks_a, **ranks_b}
    return _by_kinship(KINSHIPS[rank] for rank in ranks.values())
