"""The manifest: a version exists if and only if its ``manifest.json`` does.

Of a mixed version it records what that is a mixture of: the order of its rows, and what became of each source. The
order is a function, so that nobody needs to have seen the rows to know how many of them are of each source, and how
often each source was gone through: ``store/draws.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, Self, final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenlake import numbers
from tokenlake.errors import IntegrityError
from tokenlake.markup import named_facts
from tokenlake.preference_columns import METHODS, TRAINERS, Method, Trainer
from tokenlake.store.layout import CLAIM, DATA, MANIFEST, RUNS, key_problem
from tokenlake.store.ledger import (
    Account,
    FileEntry,
    InputFileEntry,
    Lineage,
    Parent,
    ShardEntry,
    Totals,
    check_entries,
    inputs_fingerprint,
    require_equal,
)
from tokenlake.store.sealed import (
    FORMAT_VERSION,
    Count,
    DatasetName,
    Positive,
    Sealed,
    SealedDocument,
    Sha256,
    Share,
    Signed,
    SplitName,
    seal_of,
)

Level = Literal["documents", "sequences"]
"""What was mixed: documents, which may be packed after they are mixed, or packed rows."""

Interpolation = Literal["step", "linear", "cosine"]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]
WeightsBy = Literal["rows", "tokens"]

#: More would cost a reader memory for nothing; a manifest that says so is damaged or hostile.
MOST_LANES: Final = 1 << 16
MOST_BLOCK: Final = 1 << 24

FIRST_ORDER: Final = 2


@final
@dataclass(frozen=True, slots=True)
class WeightPoint:
    """The weight per row of each source from a step on."""

    step: Count
    weights: Mapping[str, Share]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOrder:
    """The arguments of :class:`tokenlake.mixing.mixture.SourceMixture`, but for the lengths of the sources.

    Attributes:
        lanes, batch_size, block_size, step_rows, seed, stop: of the order.
        rows: of the whole stream.
        points: of the weights, steps ascending.
        interpolation: between points.
        version: of the order; manifests of the first ones, which are of version 2, do not name it.
        kept: how many rows are used of the sources of which not all are; named only where there are any.
    """

    lanes: Annotated[int, Meta(ge=1, le=MOST_LANES)]
    batch_size: Positive
    block_size: Annotated[int, Meta(ge=1, le=MOST_BLOCK)]
    step_rows: Positive
    seed: Signed
    stop: Stop
    rows: Count
    points: tuple[WeightPoint, ...]
    interpolation: Interpolation
    version: Annotated[int, Meta(ge=FIRST_ORDER)] = FIRST_ORDER
    kept: Mapping[str, Positive] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        data = msgspec.to_builtins(self)
        usual = (("version", FIRST_ORDER), ("kept", {}))
        return {key: value for key, value in data.items() if (key, value) not in usual}

    def identity(self, names: Iterable[str]) -> dict[str, Any]:
        """Return JSON of all but where it ends, for sources of these names: their order counts, and canonical JSON
        sorts keys."""
        listed = list(names)
        points = [[point.step, [point.weights[name] for name in listed]] for point in self.points]
        found = self.to_json() | {"names": listed, "points": points}
        return {key: value for key, value in found.items() if key != "rows"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """One source of a mixture: the split of a parent, and what was drawn of it.

    Rows of a source are dealt to lanes, whose epochs begin and end each for itself: where lanes have unequal numbers of
    rows, one may be an epoch ahead of another.

    Attributes:
        dataset, version, split: of the parent; its hash is in the manifest's lineage.
        window: rows inside which the order of an epoch shuffles, in the mean.
        rows, tokens: of the split, whatever share of it is used; tokens are ids that are not padding.
        drawn_rows: rows of the mixture that are of this source.
        drawn_tokens: ids of the parent that these rows hold, padding apart.
        full_epochs: how often each of its rows was drawn at least.
        unread_rows: rows that were never drawn.
        asked: share of the mixture's rows that the weights ask for, over the whole run.
        asked_tokens: the same of its tokens, where weights are per token; else None.
        achieved_rows, achieved_tokens: shares of the rows and of the ids that were drawn.
    """

    dataset: DatasetName
    version: Positive
    split: SplitName
    window: Positive
    rows: Count
    tokens: Count
    drawn_rows: Count
    drawn_tokens: Count
    full_epochs: Count
    unread_rows: Count
    asked: Share
    asked_tokens: Share | None
    achieved_rows: Share
    achieved_tokens: Share

    @property
    def partial_rows(self) -> int:
        """Rows drawn beyond the full epochs."""
        return self.drawn_rows - self.full_epochs * self.rows

    @property
    def partial_tokens(self) -> int:
        """Ids drawn beyond the full epochs."""
        return self.drawn_tokens - self.full_epochs * self.tokens

    def to_json(self) -> dict[str, Any]:
        partial = {"partial_rows": self.partial_rows, "partial_tokens": self.partial_tokens}
        return asdict(self) | partial


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureRecord:
    """The key ``mixture`` of a mixed version's manifest.

    Attributes:
        level: what was mixed.
        weights_by: what the weights of the configuration are shares of; those of `order` are per row.
        order: of the rows.
        rows: of the account, what belongs to no source: `sequences`, `slots` and `pad`.
        sources: by name, in the order of the mixture.
    """

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    sources: dict[str, MixedSource]

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "weights_by": self.weights_by,
            "order": self.order.to_json(),
            "rows": {"sequences": self.rows.sequences, "slots": self.rows.slots, "pad": self.rows.pad},
            # Names apart: their order counts, and canonical JSON sorts keys.
            "names": list(self.sources),
            "sources": {name: source.to_json() for name, source in self.sources.items()},
        }

    @classmethod
    def read(cls, document: SealedDocument, key: str) -> Self:
        """Read a member of a manifest; IntegrityError for what no writer of ours would write."""
        stored: _Stored = document.get(key, _Stored)
        order, names, sources = stored.order, stored.names, stored.sources
        if sorted(names) != sorted(sources):
            document.fail(f"{key}.names", f"each of {sorted(sources)} once", list(names))
        steps = [point.step for point in order.points]
        if not steps or any(after <= before for before, after in pairwise(steps)):
            document.fail(f"{key}.order.points", "at least one, steps ascending", steps)
        for point in order.points:
            if set(point.weights) != set(names):
                document.fail(f"{key}.order.points", f"weights of {sorted(names)}", dict(point.weights))
        for name, rows in order.kept.items():
            if name not in sources or rows >= sources[name].rows:
                document.fail(f"{key}.order.kept", "fewer rows of a source than it has", {name: rows})
        ordered = {name: sources[name] for name in names}
        return cls(
            level=stored.level, weights_by=stored.weights_by, order=order, rows=stored.rows, sources=ordered
        )


class _Stored(msgspec.Struct):
    """A record as it is stored: names apart, since their order counts and canonical JSON sorts keys."""

    level: Level
    weights_by: WeightsBy
    order: MixtureOrder
    rows: Account
    names: tuple[str, ...]
    sources: dict[str, MixedSource]


Kind = Literal["packed", "tokens", "preference"]


class _Texts(msgspec.Struct):
    preference: dict[str, Any] = {}


class _ConfigSource(msgspec.Struct):
    texts: _Texts | UnsetType = UNSET
    tokenizer: _Texts | UnsetType = UNSET


class _Build(msgspec.Struct):
    pack: dict[str, Any] | None = None
    around: dict[str, Any] | None = None
    kept: tuple[tuple[str, Any], ...] = ()


class _Config(msgspec.Struct):
    """What readers look for in a configuration, in the form that they rely on."""

    build: _Build | UnsetType = UNSET
    sources: dict[str, _ConfigSource] = {}


class _Tokenizer(msgspec.Struct):
    """What readers look for in what is said of a tokenizer."""

    files: dict[str, Sha256] = {}
    folder: Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?\Z")] = ""
    probe: str = ""
    prefix: tuple[Count, ...] | None = None
    suffix: tuple[Count, ...] | None = None
    vocab_size: Count = 0
    eos_id: Signed = 0
    pad_id: Signed = 0


@final
@dataclass(frozen=True, kw_only=True)
class Manifest(Sealed):
    """Everything a version is: its files and their hashes, what it was made from, its account.

    The file is sealed canonical JSON without clock, host, user or run id: equal work gives equal bytes.
    What follows from the fields (totals, splits, account, lineage, sha256) is computed, written too, and
    compared on reading.

    Attributes:
        kind: ``packed`` (fixed-length sequences) or ``tokens`` (a row per document) or ``preference`` (a row per judged
            prompt, in the columns of :attr:`preference`).
        dataset, version: the name in the store and the number of this version.
        fingerprint: of the whole build.
        seq_length: ids per row of a packed dataset, else None.
        config: the resolved config, as identity sees it.
        tokenizer: per source: name, file hashes, probe, special ids.
        files: the shards, in the order that readers number their rows by.
        other_files: every other file below the version except the manifest, the claim and ``runs/``.
        inputs: table of the input files; ``file_id`` is what provenance columns hold.
        accounts: per source.
        parents: versions that this one was made from.
        produced_by: names and versions of what wrote it; not identity.
        mixture: of a version whose rows are a mixture: the order, and what became of each source.
    """

    FREE: ClassVar = ("config", "tokenizer", "mixture")

    kind: Kind
    dataset: DatasetName
    version: Positive
    fingerprint: Sha256
    seq_length: Positive | None
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    files: tuple[ShardEntry, ...]
    other_files: dict[str, FileEntry]
    inputs: tuple[InputFileEntry, ...]
    accounts: dict[str, Account]
    produced_by: dict[str, str]
    parents: tuple[Parent, ...] = ()
    mixture: MixtureRecord | None = None

    @property
    def format_version(self) -> int:
        return FORMAT_VERSION

    @cached_property
    def preference(self) -> tuple[Method, Trainer] | None:
        """Which trainer's columns the rows of kind ``preference`` have; None for the other kinds."""
        if self.kind != "preference":
            return None
        sources: dict[str, Any] = self.config.get("sources", {})
        for source in sources.values():
            found = source.get("texts", {}).get("preference", {})
            if found.get("method") in METHODS and found.get("trainer") in TRAINERS:
                return found["method"], found["trainer"]
        raise IntegrityError(
            f"{self.dataset}@v{self.version}: of kind preference, but its config names no method and trainer"
        )

    @cached_property
    def totals(self) -> Totals:
        """Sums over all shards."""
        return Totals.of(self.files)

    @cached_property
    def splits(self) -> dict[str, Totals]:
        """Sums per split, by name."""
        found: dict[str, list[ShardEntry]] = {}
        for shard in self.files:
            found.setdefault(shard.split, []).append(shard)
        if len(found) == 1:
            return dict.fromkeys(found, self.totals)
        return {name: Totals.of(found[name]) for name in sorted(found)}

    @cached_property
    def held_out(self) -> dict[str, str]:
        """The split of the documents that are held out of training, by source; those of sets that have rows here."""
        sources: dict[str, Any] = self.config.get("sources", {})
        asked = {name: each["eval"]["split"] for name, each in sources.items() if "eval" in each}
        return {name: split for name, split in asked.items() if split in self.splits}

    @cached_property
    def account(self) -> Account:
        """The sum of the sources' accounts, and of a mixture the rows that are of no one source."""
        rows = () if self.mixture is None else (self.mixture.rows,)
        return Account.total([*self.accounts.values(), *rows])

    @cached_property
    def lineage(self) -> Lineage:
        """Parents and the hash over the inputs."""
        return Lineage(parents=self.parents, inputs_fingerprint=inputs_fingerprint(self.inputs))

    @cached_property
    def sha256(self) -> str:
        """The manifest's own hash: of the canonical form without this member."""
        return seal_of(self._canonical())

    @property
    def width(self) -> int:
        """Ids of a row of a packed dataset, padding included; 0 where a row is a document."""
        return self.seq_length or 0

    def to_json(self) -> dict[str, Any]:
        """Return what the file says."""
        return json.loads(self.to_bytes())

    def __repr__(self) -> str:
        totals = self.totals
        told = f"{numbers.plural(totals.rows, 'row')}, {numbers.plural(totals.tokens, 'token')}"
        name = f"{self.dataset}@v{self.version}"
        return f"Manifest({name}: {self.kind}, {told} in {numbers.plural(totals.files, 'shard')})"

    def _repr_html_(self) -> str:
        facts = {
            "kind": self.kind,
            "ids of a row": self.seq_length,
            "documents": self.account.documents,
            "sources": ", ".join(self.accounts),
            "made of": ", ".join(f"{parent.dataset}@v{parent.version}" for parent in self.parents),
            "sha256": self.sha256,
        }
        heads = ("split", "rows", "tokens", "documents", "shards", "bytes")
        figures = {name: (s.rows, s.tokens, s.documents, s.files, s.bytes) for name, s in self.splits.items()}
        rows = [(name, *(f"{each:,}" for each in of)) for name, of in figures.items()]
        return named_facts(f"Manifest {self.dataset}@v{self.version}", facts, heads, rows)

    def _members(self) -> dict[str, Any]:
        members = super()._members()
        members.pop("parents", None)
        if self.mixture is not None:
            members["mixture"] = self.mixture.to_json()
        return members | {name: getattr(self, name) for name in ("totals", "splits", "account", "lineage")}

    @classmethod
    def _read(cls, document: SealedDocument) -> Self:
        _check_config(document)
        document.get("tokenizer", dict[str, _Tokenizer])
        lineage: Lineage = document.get("lineage", Lineage)
        found = cls(
            **document.values(cls, "parents", "mixture"),
            parents=lineage.parents,
            mixture=MixtureRecord.read(document, "mixture") if "mixture" in document else None,
        )
        found._check(document)
        document.end(found._canonical())
        # What unsealing found; computing it again would take as long as all the rest.
        vars(found)["sha256"] = document.get("sha256", Sha256)
        return found

    def check(self, where: str = MANIFEST) -> None:
        """Check that the accounts close, one by one and against the files; of a mixture also against its order.

        Raises:
            AccountError: names the source, the equation and both sides.
        """
        own_rows = self.seq_length if self.mixture is None else None
        for source, account in self.accounts.items():
            account.check(own_rows, where=f"{where}: source {source!r}")
        total, files = self.account, self.totals
        total.check(self.seq_length, where=where)
        name = "sequences" if self.kind == "packed" else "documents"
        rows = total.count(name)
        # Rows that were packed elsewhere and are passed on count as one document each.
        whole_rows = self.mixture is not None and self.mixture.level == "sequences"
        documents = ("rows", files.rows) if whole_rows else ("documents", files.documents)
        ids = total.content_packed + total.bos + total.eos
        equations = (
            (f"account.{name} = rows of all files", rows, files.rows),
            (f"account.documents = {documents[0]} of all files", total.documents, documents[1]),
            ("account.content_packed + bos + eos = tokens of all files", ids, files.tokens),
        )
        require_equal("the account of all files", equations, where)
        if self.mixture is not None:
            # It imports numpy, which a list of the versions of a store does not wait for; nor for Arrow's types below.
            from tokenlake.store.draws import check_mixture

            check_mixture(
                self.mixture,
                packed=self.kind == "packed",
                settings=self.config.get("mix"),
                accounts=self.accounts,
                parents={(parent.dataset, parent.version) for parent in self.parents},
                where=where,
            )

    def _check(self, document: SealedDocument) -> None:
        check_entries(document, "files", self.files)
        check_entries(document, "inputs", self.inputs)
        if (self.kind == "packed") != (self.seq_length is not None):
            document.fail("seq_length", "a length for kind packed, else null", self.seq_length)
        _ = self.preference  # one that is none is an error here, and not when rows are read
        paths = [shard.path for shard in self.files]
        if len(set(paths)) != len(paths):
            repeated = [path for path, times in Counter(paths).items() if times > 1]
            document.fail("files", "each path once", repeated)
        ids = [entry.file_id for entry in self.inputs]
        if len(set(ids)) != len(ids):
            document.fail("inputs", "each file_id once", f"{len(ids) - len(set(ids))} repeated")
        for path in self.other_files:
            problem = key_problem(path)
            if problem is not None or path.split("/")[0] in (DATA, RUNS, MANIFEST, CLAIM):
                document.fail(
                    "other_files", f"paths of other files below the version ({problem or 'reserved'})", path
                )


_PLAIN: Final = frozenset(
    ("bool", "double", "float", "int32", "int64", "json", "large_binary", "large_string")
)
"""Types of kept fields that are known without Arrow, which takes longer to import than to list a store."""


def _check_config(document: SealedDocument) -> None:
    shape: _Config = document.get("config", _Config)
    for index, (_, kind) in enumerate(() if shape.build is UNSET else shape.build.kept):
        if isinstance(kind, str) and kind in _PLAIN:
            continue
        from tokenlake.column_types import arrow_type

        try:
            arrow_type(kind)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            document.fail(f"config.build.kept[{index}]", "a name and a type", kind)
