"""The manifest: a version exists if and only if its ``manifest.json`` does."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self, final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenlake.base import numbers
from tokenlake.base.columns import METHODS, TRAINERS, Method, Trainer
from tokenlake.base.markup import named_facts
from tokenlake.errors import IntegrityError
from tokenlake.runtime.store import ledger
from tokenlake.runtime.store.account import Account, require_equal
from tokenlake.runtime.store.layout import CLAIM, DATA, MANIFEST, RUNS, key_problem
from tokenlake.runtime.store.mixture import MixtureRecord
from tokenlake.runtime.store.sealed import (
    FORMAT_VERSION,
    Count,
    DatasetName,
    Positive,
    Sealed,
    SealedDocument,
    Sha256,
    Signed,
    seal_of,
)

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
    files: tuple[ledger.ShardEntry, ...]
    other_files: dict[str, ledger.FileEntry]
    inputs: tuple[ledger.InputFileEntry, ...]
    accounts: dict[str, Account]
    produced_by: dict[str, str]
    parents: tuple[ledger.Parent, ...] = ()
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
    def totals(self) -> ledger.Totals:
        """Sums over all shards."""
        return ledger.Totals.of(self.files)

    @cached_property
    def splits(self) -> dict[str, ledger.Totals]:
        """Sums per split, by name."""
        found: dict[str, list[ledger.ShardEntry]] = {}
        for shard in self.files:
            found.setdefault(shard.split, []).append(shard)
        if len(found) == 1:
            return dict.fromkeys(found, self.totals)
        return {name: ledger.Totals.of(found[name]) for name in sorted(found)}

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
    def lineage(self) -> ledger.Lineage:
        """Parents and the hash over the inputs."""
        return ledger.Lineage(parents=self.parents, inputs_fingerprint=ledger.inputs_fingerprint(self.inputs))

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
        lineage: ledger.Lineage = document.get("lineage", ledger.Lineage)
        found = cls(
            **document.values(cls, "parents", "mixture"),
            parents=lineage.parents,
            mixture=MixtureRecord.read(document, "mixture") if "mixture" in document else None,
        )
        found._check(document)
        document.end(found)
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
            from tokenlake.runtime.store.draws import check_mixture

            check_mixture(
                self.mixture,
                packed=self.kind == "packed",
                settings=self.config.get("mix"),
                accounts=self.accounts,
                parents={(parent.dataset, parent.version) for parent in self.parents},
                where=where,
            )

    def _check(self, document: SealedDocument) -> None:
        ledger.check_entries(document, "files", self.files)
        ledger.check_entries(document, "inputs", self.inputs)
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
        from tokenlake.runtime.column_types import arrow_type

        try:
            arrow_type(kind)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            document.fail(f"config.build.kept[{index}]", "a name and a type", kind)
