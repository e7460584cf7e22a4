"""The manifest: a version exists if and only if its ``manifest.json`` does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, Self, cast, final

from tokenlake.column_types import arrow_type
from tokenlake.errors import AccountError, IntegrityError
from tokenlake.preference_columns import METHODS, TRAINERS, Method, Trainer
from tokenlake.store.account import Account
from tokenlake.store.entries import FileEntry, ShardEntry, Totals
from tokenlake.store.inputs import InputFileEntry, Lineage, Parent, inputs_fingerprint
from tokenlake.store.layout import CLAIM, DATA, DATASET_NAME, MANIFEST, RUNS, key_problem
from tokenlake.store.mixture import MixtureRecord, check_mixture
from tokenlake.store.sealed import FORMAT_VERSION, SHA256, Fields, seal, seal_of, unseal

Kind = Literal["packed", "tokens", "preference"]
_KIND: Final = re.compile("packed|tokens|preference")
_FOLDER: Final = re.compile("([0-9a-f]{16})?")


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
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

    kind: Kind
    dataset: str
    version: int
    fingerprint: str
    seq_length: int | None
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
        names = sorted({shard.split for shard in self.files})
        return {name: Totals.of(shard for shard in self.files if shard.split == name) for name in names}

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
        """The manifest's own hash: of the canonical form without this field."""
        return seal_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-able form, without the seal."""
        derived = self._derived()
        lineage = derived.pop("lineage")
        return {
            "format_version": self.format_version,
            "kind": self.kind,
            "dataset": self.dataset,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "seq_length": self.seq_length,
            "config": self.config,
            "tokenizer": self.tokenizer,
            "files": [shard.to_json() for shard in self.files],
            "other_files": {path: entry.to_json() for path, entry in self.other_files.items()},
            "inputs": [entry.to_json() for entry in self.inputs],
            **derived,
            "accounts": {source: account.to_json() for source, account in self.accounts.items()},
            "lineage": lineage,
            # Left out elsewhere: manifests of other versions stay, byte for byte, what they were.
            **({} if self.mixture is None else {"mixture": self.mixture.to_json()}),
            "produced_by": self.produced_by,
        }

    def _derived(self) -> dict[str, Any]:
        return {
            "totals": self.totals.to_json(),
            "splits": {name: totals.to_json() for name, totals in self.splits.items()},
            "account": self.account.to_json(),
            "lineage": self.lineage.to_json(),
        }

    def to_bytes(self) -> bytes:
        """Return the file's bytes: sealed canonical JSON."""
        return seal(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST) -> Self:
        """Read a manifest; any change after it was written, or impossible value, is an IntegrityError."""
        fields = unseal(data, where)
        found = cls(
            kind=cast("Kind", fields.text("kind", _KIND)),
            dataset=fields.text("dataset", DATASET_NAME),
            version=fields.count("version", low=1),
            fingerprint=fields.text("fingerprint", SHA256),
            seq_length=fields.optional_count("seq_length", low=1),
            config=_config(fields),
            tokenizer=_tokenizers(fields),
            files=ShardEntry.read_all(fields, "files"),
            other_files=FileEntry.read_all(fields, "other_files"),
            inputs=InputFileEntry.read_all(fields, "inputs"),
            accounts={
                source: Account.read(item) for source, item in fields.named_children("accounts").items()
            },
            parents=tuple(Parent.read(entry) for entry in fields.child("lineage").children("parents")),
            produced_by=fields.texts("produced_by"),
            mixture=MixtureRecord.read(fields.child("mixture")) if "mixture" in fields.value else None,
        )
        found._check_shape(fields)
        # What unsealing found; computing it again would take as long as all the rest.
        vars(found)["sha256"] = fields.value["sha256"]
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
        rows, name = (
            (total.sequences, "sequences") if self.kind == "packed" else (total.documents, "documents")
        )
        # Rows that were packed elsewhere and are passed on count as one document each.
        whole_rows = self.mixture is not None and self.mixture.level == "sequences"
        documents = ("rows", files.rows) if whole_rows else ("documents", files.documents)
        for equation, left, right in (
            (f"account.{name} = rows of all files", rows, files.rows),
            (f"account.documents = {documents[0]} of all files", total.documents, documents[1]),
            (
                "account.content_packed + bos + eos = tokens of all files",
                total.content_packed + total.bos + total.eos,
                files.tokens,
            ),
        ):
            if left != right:
                raise AccountError(
                    f"{where}: account and files disagree: expected {equation}, got {left} and {right}. "
                    "Something was lost or counted twice; rebuild the version.",
                    equation=equation,
                    left=left,
                    right=right,
                    where=where,
                )
        if self.mixture is not None:
            check_mixture(self, self.mixture, where)

    def _check_shape(self, fields: Fields) -> None:
        if (self.kind == "packed") != (self.seq_length is not None):
            fields.fail("seq_length", "a length for kind packed, else null", self.seq_length)
        _ = self.preference  # one that is none is an error here, and not when rows are read
        repeated = [path for path, times in Counter(shard.path for shard in self.files).items() if times > 1]
        if repeated:
            fields.fail("files", "each path once", repeated)
        ids = [entry.file_id for entry in self.inputs]
        if len(set(ids)) != len(ids):
            fields.fail("inputs", "each file_id once", f"{len(ids) - len(set(ids))} repeated")
        for path in self.other_files:
            problem = key_problem(path)
            if problem is not None or path.split("/")[0] in (DATA, RUNS, MANIFEST, CLAIM):
                fields.fail(
                    "other_files", f"paths of other files below the version ({problem or 'reserved'})", path
                )
        for key, value in self._derived().items():
            fields.follows(key, value)
        fields.end()


def _config(fields: Fields) -> dict[str, Any]:
    """Read the configuration; what readers look for in it has the form that they rely on."""
    config = fields.child("config")
    if "build" in config.value:
        build = config.child("build")
        for key in ("pack", "around"):
            _ = build.optional_child(key) if key in build.value else None
        for index, pair in enumerate(build.plain_list("kept") if "kept" in build.value else ()):
            if not _is_kept_field(pair):
                build.fail(f"kept[{index}]", "a name and a type", pair)
    for source in config.named_children("sources").values() if "sources" in config.value else ():
        for key in ("texts", "tokenizer"):
            part = source.child(key) if key in source.value else None
            _ = part.child("preference") if part and "preference" in part.value else None
    return config.value


def _is_kept_field(pair: Any) -> bool:
    try:
        name, kind = pair
        arrow_type(kind)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        return False
    return isinstance(name, str)


def _tokenizers(fields: Fields) -> dict[str, Any]:
    """Read what is said of the tokenizers; a fact that readers use has its form."""
    for facts in fields.named_children("tokenizer").values():
        for key in facts.value.keys() & _FACTS.keys():
            _FACTS[key](facts, key)
    return fields.json_object("tokenizer")


def _optional_ids(facts: Fields, key: str) -> tuple[int, ...]:
    return () if facts.value[key] is None else facts.count_list(key)


_FACTS: Final[dict[str, Callable[[Fields, str], object]]] = {
    "files": lambda facts, key: facts.texts(key, SHA256),
    "folder": lambda facts, key: facts.text(key, _FOLDER),
    "probe": lambda facts, key: facts.text(key),
    "prefix": _optional_ids,
    "suffix": _optional_ids,
    "vocab_size": lambda facts, key: facts.count(key),
    "eos_id": lambda facts, key: facts.signed(key),
    "pad_id": lambda facts, key: facts.signed(key),
}
