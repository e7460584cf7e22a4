"""The versions that a build takes rows from, as its plan finds them in the store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tokenlake.build.mixing.job import ParentVersion
from tokenlake.catalog import Catalog
from tokenlake.config.resolved_mix import ResolvedParent
from tokenlake.errors import ConfigError, NotFoundError
from tokenlake.manifest import InputFileEntry, Manifest, Parent, ShardEntry, Totals
from tokenlake.mixing.lanes import SourceSize

Int64 = npt.NDArray[np.int64]


@final
@dataclass(frozen=True)
class FoundParent:
    """A committed version, and the split of it that is taken.

    Attributes:
        name: of the source in the configuration.
        manifest: of the version.
        split: the split that is mixed.
    """

    name: str
    manifest: Manifest
    split: str

    @property
    def reference(self) -> str:
        """``code@v3``."""
        return f"{self.manifest.dataset}@v{self.manifest.version}"

    @cached_property
    def shards(self) -> tuple[ShardEntry, ...]:
        """The shards of the split, in the manifest's order."""
        return tuple(shard for shard in self.manifest.files if shard.split == self.split)

    @cached_property
    def totals(self) -> Totals:
        """Sums over the split."""
        return Totals.of(self.shards)

    @property
    def rows(self) -> int:
        return self.totals.rows

    @property
    def tokens(self) -> int:
        """Ids of the split that are not padding."""
        return self.totals.tokens

    @cached_property
    def group_rows(self) -> Int64:
        """Rows of each row group of the split, int64[G]."""
        sizes = [np.diff([*shard.row_groups, shard.rows]) for shard in self.shards]
        return np.concatenate([np.zeros(0, np.int64), *sizes]).astype(np.int64)

    @property
    def window(self) -> int:
        """Rows inside which an epoch's order shuffles: as many as a row group has in the mean, at least 1."""
        return max(1, -(-self.rows // max(1, len(self.group_rows))))

    @cached_property
    def size(self) -> SourceSize:
        """How large the split is."""
        return SourceSize.of(
            rows=self.rows,
            groups=len(self.group_rows),
            tokens=self.tokens,
            documents=self.totals.documents,
            seq_length=self.manifest.seq_length,
        )

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that some shard of the split has."""
        return frozenset(name for shard in self.shards for name in shard.logical)

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """What the parent's configuration says of the sources that its texts came from."""
        return self.manifest.config.get("sources", {})

    @property
    def version(self) -> ParentVersion:
        """What a job says of it."""
        return ParentVersion(
            name=self.name,
            dataset=self.manifest.dataset,
            version=self.manifest.version,
            sha256=self.manifest_sha256,
            split=self.split,
        )

    @cached_property
    def manifest_sha256(self) -> str:
        return self.manifest.sha256


def find_parents(catalog: Catalog, parents: tuple[ResolvedParent, ...], name: str) -> tuple[FoundParent, ...]:
    """Return the parents, the newest committed versions where none is named; each manifest is read once.

    Args:
        name: of the dataset that is made of them.

    Raises:
        ConfigError: there is no such dataset or no such committed version, or the newest one is what is to be made.
        IntegrityError: a manifest is damaged.
    """
    read: dict[tuple[str, int], Manifest] = {}
    found: list[FoundParent] = []
    for parent in parents:
        if parent.dataset == name and parent.version is None:
            raise ConfigError(
                f"datasets.{parent.name}.dataset: {name!r} is the name of this build too, so that every run would be "
                f"made of the one before; name the version that is meant, {name}@v1, or set another `name`"
            )
        reference = parent.dataset if parent.version is None else f"{parent.dataset}@v{parent.version}"
        try:
            key = catalog.resolve(reference)
            if key not in read:
                read[key] = catalog.manifest(*key)
        except NotFoundError as error:
            raise ConfigError(f"datasets.{parent.name}.dataset: {error}", **error.details) from error
        found.append(FoundParent(parent.name, read[key], parent.split))
    return tuple(found)


def require_split(parent: FoundParent) -> None:
    """Raise ConfigError unless the parent has the split, with rows in it."""
    splits = {name: totals.rows for name, totals in parent.manifest.splits.items()}
    if splits.get(parent.split):
        return
    there = (
        ", ".join(f"{name} ({rows} rows)" for name, rows in splits.items()) or "no splits, for it has no rows"
    )
    raise ConfigError(
        f"datasets.{parent.name}.split: {parent.reference} has no rows in a split {parent.split!r}; it has {there}. "
        "Set split to one of them",
        got=parent.split,
        expected=sorted(splits),
    )


def joined_inputs(parents: tuple[FoundParent, ...]) -> tuple[InputFileEntry, ...]:
    """Return the input files that rows of the parents may come from, each once.

    Raises:
        ConfigError: one id stands for two different files, so that nobody could tell what a row was made of.
    """
    found: dict[int, tuple[InputFileEntry, FoundParent]] = {}
    for parent in parents:
        for entry in parent.manifest.inputs:
            other, first = found.setdefault(entry.file_id, (entry, parent))
            if other != entry:
                raise ConfigError(
                    f"datasets.{parent.name}: {parent.reference} and {first.reference} both hold documents of "
                    f"{entry.path!r} of a source {entry.source!r}, but of different files (size {other.size}, "
                    f"{other.token} and size {entry.size}, {entry.token}); rows would name the one id {entry.file_id} "
                    "for both. Build one of them again with another name for that source",
                    file=entry.path,
                )
    return tuple(entry for entry, _ in found.values())


def lineage(parents: tuple[FoundParent, ...]) -> tuple[Parent, ...]:
    """Return the versions that rows come from, each once."""
    found = {
        parent.reference: Parent(
            dataset=parent.manifest.dataset, version=parent.manifest.version, sha256=parent.manifest_sha256
        )
        for parent in parents
    }
    return tuple(found.values())
