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
    """Settings of the texts of a source, of which only preference pairs are read."""

    preference: dict[str, Any] = {}


class _ConfigSource(msgspec.Struct):
    """Source in a configuration."""

    texts: _Texts | UnsetType = UNSET
    tokenizer: _Texts | UnsetType = UNSET


class _Build(msgspec.Struct):
    """Build of a configuration: packing, and kept fields as (name, type)."""

    pack: dict[str, Any] | None = None
    around: dict[str, Any] | None = None
    kept: tuple[tuple[str, Any], ...] = ()


class _Config(msgspec.Struct):
    """Parts of a configuration that readers rely on."""

    build: _Build | UnsetType = UNSET
    sources: dict[str, _ConfigSource] = {}


class _Tokenizer(msgspec.Struct):
    """Facts about a tokenizer that readers rely on."""

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
    """Complete description of a version: its files with their hashes, origin and audit.

    The file is sealed canonical JSON without clock, host, user or run id: equal work
    gives equal bytes. Totals, splits, account, lineage and sha256 follow from the
    fields. They are written too, and compared on reading.

    Attributes:
        kind: ``packed`` (fixed-length sequences), ``tokens`` (a row per document) or
            ``preference`` (a row per judged prompt, in the columns of
            :attr:`preference`).
        dataset: Name of the dataset.
        version: Number of the version.
        fingerprint: Fingerprint of the whole build.
        seq_length: Ids per row of a packed dataset; None for the other kinds.
        config: Resolved configuration, as identity sees it.
        tokenizer: For each source the name, file hashes, probe and special ids of its
            tokenizer.
        files: Shards, in the order in which readers number their rows.
        other_files: All other files below the version except the manifest, the claim
            and ``runs/``, by path.
        inputs: Input files; provenance columns hold their ``file_id``.
        accounts: Audit of each source.
        parents: Versions that this one was made from.
        produced_by: Names and versions of the software that wrote it; not part of
            identity.
        mixture: Order and draws of a version whose rows are a mixture; None for the
            others.

    Example:
        >>> import tokenlake as tl
        >>> manifest = tl.open("artifacts/books@v3").manifest
        >>> manifest.kind, manifest.seq_length, sorted(manifest.splits)
        ('packed', 64, ['train', 'validation'])
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
        """Version of the file format."""
        return FORMAT_VERSION

    @cached_property
    def preference(self) -> tuple[Method, Trainer] | None:
        """Method and trainer that the columns of kind ``preference`` are for.

        It is None for the other kinds.
        """
        if self.kind != "preference":
            return None
        # All sources of a version have the same columns: the first method and trainer
        # are those of all.
        sources: dict[str, Any] = self.config.get("sources", {})
        for source in sources.values():
            settings = source.get("texts", {}).get("preference", {})
            has_method = settings.get("method") in METHODS
            if has_method and settings.get("trainer") in TRAINERS:
                return settings["method"], settings["trainer"]
        raise IntegrityError(
            f"{self.dataset}@v{self.version}: of kind preference, but its config names no method and trainer"
        )

    @cached_property
    def totals(self) -> ledger.Totals:
        """Sums over all shards."""
        return ledger.Totals.of(self.files)

    @cached_property
    def splits(self) -> dict[str, ledger.Totals]:
        """Sums over the shards of each split, by name."""
        shards: dict[str, list[ledger.ShardEntry]] = {}
        for shard in self.files:
            shards.setdefault(shard.split, []).append(shard)
        # Most versions have one split, whose sums are those of all shards.
        if len(shards) == 1:
            return dict.fromkeys(shards, self.totals)
        return {
            split_name: ledger.Totals.of(shards[split_name])
            for split_name in sorted(shards)
        }

    @cached_property
    def held_out(self) -> dict[str, str]:
        """Split of the held-out documents, by source.

        Splits without rows in this version are left out.
        """
        splits: dict[str, str] = {}
        sources: dict[str, Any] = self.config.get("sources", {})
        for source_name, source in sources.items():
            split = source["eval"]["split"] if "eval" in source else None
            if split in self.splits:
                splits[source_name] = split
        return splits

    @cached_property
    def account(self) -> Account:
        """Audit of the version.

        It is the sum of the sources' audits, and of the rows of a mixture that belong
        to several sources.
        """
        accounts = list(self.accounts.values())
        if self.mixture is not None:
            accounts.append(self.mixture.rows)
        return Account.total(accounts)

    @cached_property
    def lineage(self) -> ledger.Lineage:
        """Parents, and the hash over the inputs."""
        return ledger.Lineage(
            parents=self.parents,
            inputs_fingerprint=ledger.inputs_fingerprint(self.inputs),
        )

    @cached_property
    def sha256(self) -> str:
        """Seal of the manifest: the hash of its canonical form without this member."""
        return seal_of(self._canonical())

    @property
    def width(self) -> int:
        """Ids of a row of a packed dataset, padding included.

        It is 0 for rows that are documents.
        """
        return self.seq_length or 0

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return json.loads(self.to_bytes())

    def __repr__(self) -> str:
        rows = numbers.plural(self.totals.rows, "row")
        tokens = numbers.plural(self.totals.tokens, "token")
        shards = numbers.plural(self.totals.files, "shard")
        return f"Manifest({self.dataset}@v{self.version}: {self.kind}, {rows}, {tokens} in {shards})"

    def _repr_html_(self) -> str:
        # Facts of the whole version, then a table with a row for each split.
        parents: list[str] = []
        for parent in self.parents:
            parents.append(f"{parent.dataset}@v{parent.version}")
        facts = {
            "kind": self.kind,
            "ids of a row": self.seq_length,
            "documents": self.account.documents,
            "sources": ", ".join(self.accounts),
            "made of": ", ".join(parents),
            "sha256": self.sha256,
        }
        column_heads = ("split", "rows", "tokens", "documents", "shards", "bytes")
        table_rows: list[tuple[str, ...]] = []
        for split_name, totals in self.splits.items():
            counts = (
                totals.rows,
                totals.tokens,
                totals.documents,
                totals.files,
                totals.bytes,
            )
            table_rows.append((split_name, *(f"{count:,}" for count in counts)))
        return named_facts(
            f"Manifest {self.dataset}@v{self.version}", facts, column_heads, table_rows
        )

    def _members(self) -> dict[str, Any]:
        # The parents are written as part of the lineage, and not on their own. Sums
        # follow from the fields; they are written too, and compared on reading.
        members = super()._members()
        members.pop("parents", None)
        if self.mixture is not None:
            members["mixture"] = self.mixture.to_json()
        return members | {
            derived_name: getattr(self, derived_name)
            for derived_name in ("totals", "splits", "account", "lineage")
        }

    @classmethod
    def _read(cls, document: SealedDocument) -> Self:
        # Parts that other modules read later: a wrong type is found now.
        _check_config(document)
        document.get("tokenizer", dict[str, _Tokenizer])
        lineage: ledger.Lineage = document.get("lineage", ledger.Lineage)
        # The mixture is decoded by its own class, because the order of its sources
        # matters.
        mixture: MixtureRecord | None = None
        if "mixture" in document:
            mixture = MixtureRecord.read(document, "mixture")
        manifest = cls(
            **document.values(cls, "parents", "mixture"),
            parents=lineage.parents,
            mixture=mixture,
        )
        manifest._check(document)
        document.end(manifest)
        # Keep the seal that was checked: computing it again would take as long as all
        # the rest.
        vars(manifest)["sha256"] = document.get("sha256", Sha256)
        return manifest

    def check(self, where: str = MANIFEST) -> None:
        """Check that the audits balance, each of them and against the files.

        Those of a mixture are also compared with its order.

        Args:
            where: Name of the manifest, for messages.

        Raises:
            AccountError: An equation does not hold; the message names the source, the
                equation and both sides.
        """
        # Sources of a mixture share rows: only the whole has slots.
        width = self.seq_length if self.mixture is None else None
        for source, account in self.accounts.items():
            account.check(width, where=f"{where}: source {source!r}")
        self.account.check(self.seq_length, where=where)
        require_equal("the audit of all files", self._file_equations(), where)
        # The counts of a mixture follow from its order.
        if self.mixture is not None:
            # This imports numpy, which a list of the versions of a store should not
            # wait for.
            from tokenlake.runtime.store.draws import check_mixture

            check_mixture(
                self.mixture,
                packed=self.kind == "packed",
                settings=self.config.get("mix"),
                accounts=self.accounts,
                parents={(parent.dataset, parent.version) for parent in self.parents},
                where=where,
            )

    def _file_equations(self) -> tuple[tuple[str, int, int], ...]:
        """Return the equations between audit and files, each with both sides."""
        # Packed rows count as sequences, all others as documents.
        total = self.account
        files = self.totals
        count_name = "sequences" if self.kind == "packed" else "documents"
        counted_rows = total.count(count_name)
        # Rows that were packed elsewhere and are passed on count as one document each.
        passes_rows_on = self.mixture is not None and self.mixture.level == "sequences"
        document_name = "rows" if passes_rows_on else "documents"
        # Padding is no token of a file.
        ids = total.content_packed + total.bos + total.eos
        return (
            (f"account.{count_name} = rows of all files", counted_rows, files.rows),
            (
                f"account.documents = {document_name} of all files",
                total.documents,
                getattr(files, document_name),
            ),
            (
                "account.content_packed + bos + eos = tokens of all files",
                ids,
                files.tokens,
            ),
        )

    def _check(self, document: SealedDocument) -> None:
        # Each entry on its own.
        ledger.check_entries(document, "files", self.files)
        ledger.check_entries(document, "inputs", self.inputs)
        # Only packed rows have one length.
        if (self.kind == "packed") != (self.seq_length is not None):
            document.fail(
                "seq_length", "a length for kind packed, else null", self.seq_length
            )
        _ = self.preference  # raises now, and not when rows are read

        # Nothing is listed twice.
        paths = [shard.path for shard in self.files]
        if len(set(paths)) != len(paths):
            occurrences = Counter(paths)
            repeated = [path for path in occurrences if occurrences[path] > 1]
            document.fail("files", "each path once", repeated)
        file_ids = [entry.file_id for entry in self.inputs]
        if len(set(file_ids)) != len(file_ids):
            repetitions = len(file_ids) - len(set(file_ids))
            document.fail("inputs", "each file_id once", f"{repetitions} repeated")

        # Other files lie where readers do not look for shards, records or documents of
        # the version.
        for path in self.other_files:
            problem = key_problem(path)
            is_reserved = path.split("/")[0] in (DATA, RUNS, MANIFEST, CLAIM)
            if problem is not None or is_reserved:
                document.fail(
                    "other_files",
                    f"paths of other files below the version ({problem or 'reserved'})",
                    path,
                )


# Without these names each manifest with kept fields would import Arrow.
_PLAIN: Final = frozenset(
    (
        "bool",
        "double",
        "float",
        "int32",
        "int64",
        "json",
        "large_binary",
        "large_string",
    )
)
"""Types of kept fields that are known without Arrow.

Importing Arrow takes longer than listing a store.
"""


def _check_config(document: SealedDocument) -> None:
    """Check the parts of a configuration that readers rely on."""
    config: _Config = document.get("config", _Config)
    if config.build is UNSET:
        return
    # Kept fields: their types are read again when rows are.
    for index, (_, type_name) in enumerate(config.build.kept):
        is_known_type = isinstance(type_name, str) and type_name in _PLAIN
        if is_known_type:
            continue
        from tokenlake.runtime.column_types import arrow_type

        try:
            arrow_type(type_name)
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            document.fail(f"config.build.kept[{index}]", "a name and a type", type_name)
