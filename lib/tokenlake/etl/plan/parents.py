"""Stored versions whose rows a build reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from tokenlake.base.arrays import Int64, lengths_between
from tokenlake.config.dataset import DatasetConfig
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl.job.messages import ParentVersion
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.mixing.lane_count import SourceSize
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.damage import repair_advice
from tokenlake.runtime.store.layout import Layout, tokenizer_path
from tokenlake.runtime.store.ledger import InputFileEntry, Parent, ShardEntry, Totals
from tokenlake.runtime.store.manifest import Manifest


@final
@dataclass(frozen=True)
class FoundParent:
    """Committed version whose rows are read.

    Attributes:
        name: Name of the source in the configuration.
        manifest: Manifest of the version.
        split: Name of the split that is mixed.
    """

    name: str
    manifest: Manifest
    split: str

    @property
    def reference(self) -> str:
        """Dataset and version, as ``code@v3``."""
        return f"{self.manifest.dataset}@v{self.manifest.version}"

    @cached_property
    def shards(self) -> tuple[ShardEntry, ...]:
        """Shards of the split, in the manifest's order."""
        files = self.manifest.files
        return tuple(shard for shard in files if shard.split == self.split)

    @cached_property
    def totals(self) -> Totals:
        """Sums over the split."""
        return Totals.of(self.shards)

    @property
    def rows(self) -> int:
        """Number of rows of the split."""
        return self.totals.rows

    @property
    def tokens(self) -> int:
        """Number of ids of the split that are not padding."""
        return self.totals.tokens

    @cached_property
    def group_rows(self) -> Int64:
        """Number of rows of each row group of the split, int64[groups]."""
        # The manifest has the first row of each row group; the last one ends with the
        # shard.
        first_rows = [shard.row_groups for shard in self.shards]
        return lengths_between(first_rows, [shard.rows for shard in self.shards])

    @property
    def window(self) -> int:
        """Number of rows inside which the order of an epoch shuffles.

        It is the mean of a row group, at least 1.
        """
        return max(1, -(-self.rows // max(1, len(self.group_rows))))

    @cached_property
    def size(self) -> SourceSize:
        """Size of the split, for the choice of lanes and units."""
        return SourceSize.of(
            rows=self.rows,
            groups=len(self.group_rows),
            tokens=self.tokens,
            documents=self.totals.documents,
            width=self.manifest.width,
        )

    @property
    def width(self) -> int | None:
        """Number of ids of a packed row; None for documents."""
        return self.manifest.width or None

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that at least one shard of the split has."""
        columns: set[str] = set()
        for shard in self.shards:
            columns.update(shard.logical)
        return frozenset(columns)

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        """The parent's record of the sources of its texts, by name."""
        return self.manifest.config.get("sources", {})

    @property
    def version(self) -> ParentVersion:
        """The version, as jobs name it."""
        return ParentVersion(
            name=self.name,
            dataset=self.manifest.dataset,
            version=self.manifest.version,
            sha256=self.manifest.sha256,
            split=self.split,
        )

    @cached_property
    def lineage(self) -> Parent:
        """The version, as manifests name it."""
        manifest = self.manifest
        return Parent(
            dataset=manifest.dataset, version=manifest.version, sha256=manifest.sha256
        )

    def wrong(self, problem: str, setting: str = "", **details: Any) -> ConfigError:
        """Return the error of an option of this source.

        Args:
            problem: Message of the error.
            setting: Path of the option below the dataset, such as ``.split``.
            details: Fields of the error.
        """
        return ConfigError(f"datasets.{self.name}{setting}: {problem}", **details)


def find_parents(
    catalog: Catalog, parents: tuple[DatasetConfig, ...], name: str
) -> tuple[FoundParent, ...]:
    """Return the versions that a configuration names.

    A name without a number means the newest committed version.

    Args:
        catalog: Catalog of the store.
        parents: Datasets of the configuration, each of which names a stored one.
        name: Name of the dataset that is built.

    Raises:
        ConfigError: A dataset or a committed version does not exist, or is the dataset
            that is built.
        IntegrityError: A manifest is damaged.
    """
    # Several sources may be splits of one version, whose manifest is read once.
    manifests: dict[tuple[str, int], Manifest] = {}
    versions: list[FoundParent] = []
    for parent in parents:
        # A build that read its own newest version would change with every run.
        reference = parent.dataset or ""
        if reference == name:
            raise ConfigError(
                f"datasets.{parent.name}.dataset: {name!r} is also the name of this build, so every run would read "
                f"the result of the previous one; name a version, {name}@v1, or set another `name`"
            )
        try:
            version_key = catalog.resolve(reference)
            if version_key not in manifests:
                manifests[version_key] = catalog.manifest(*version_key)
        except NotFoundError as error:
            raise ConfigError(
                f"datasets.{parent.name}.dataset: {error}", **error.details
            ) from error
        versions.append(
            FoundParent(parent.name or "", manifests[version_key], parent.split)
        )
    return tuple(versions)


def require_split(parent: FoundParent) -> None:
    """Check that the parent has the split, with rows in it.

    Raises:
        ConfigError: It has not.
    """
    row_counts: dict[str, int] = {}
    for split, totals in parent.manifest.splits.items():
        row_counts[split] = totals.rows
    if row_counts.get(parent.split):
        return

    # The message shows the splits that can be named.
    descriptions = [f"{split} ({rows} rows)" for split, rows in row_counts.items()]
    rows_of_splits = ", ".join(descriptions) or "no rows at all"
    raise parent.wrong(
        f"{parent.reference} has no rows in a split {parent.split!r}; it has {rows_of_splits}. Set split to one of "
        "them",
        ".split",
        got=parent.split,
        expected=sorted(row_counts),
    )


def joined_inputs(parents: tuple[FoundParent, ...]) -> tuple[InputFileEntry, ...]:
    """Return the input files of all parents, each once.

    Raises:
        ConfigError: One id means two different files, so that the input of a row would
            be unknown.
    """
    # The first entry of each id, with the parent that has it.
    entries: dict[int, tuple[InputFileEntry, FoundParent]] = {}
    for parent in parents:
        for entry in parent.manifest.inputs:
            first_entry, first_parent = entries.setdefault(
                entry.file_id, (entry, parent)
            )
            if first_entry != entry:
                raise parent.wrong(
                    f"{parent.reference} and {first_parent.reference} both hold documents of {entry.path!r} of a "
                    f"source {entry.source!r}, but of different files (size {first_entry.size}, "
                    f"{first_entry.token} and size {entry.size}, {entry.token}); both would have the same id in the "
                    "rows. Build one of them again "
                    "with another name for that source",
                    file=entry.path,
                )
    return tuple(entry for entry, _ in entries.values())


def lineage(parents: tuple[FoundParent, ...]) -> tuple[Parent, ...]:
    """Return the versions of all parents, each once."""
    # Several sources may be splits of one version.
    versions = {parent.reference: parent.lineage for parent in parents}
    return tuple(versions.values())


def read_tokenizer(store: Store, parent: FoundParent, source: str) -> PlannedTokenizer:
    """Return a source's tokenizer as the parent has it.

    Its files are checked against the parent's manifest.

    Args:
        store: Store of the parent.
        parent: Version that has the tokenizer.
        source: Name of the source in the parent.

    Raises:
        IntegrityError: A file is missing or was changed; the message names it.
    """
    layout = Layout(parent.manifest.dataset, parent.manifest.version)
    facts = parent.manifest.tokenizer[source]
    # The files are compared with the hashes of the manifest.
    try:
        folder = layout.key(tokenizer_path(facts.get("folder", "")))
        contents = read_files(store, folder, facts["files"])
    except (NotFoundError, IntegrityError) as error:
        raise IntegrityError(
            f"{parent.reference}: {error}. {repair_advice(parent.reference)}",
            **error.details,
        ) from error
    files = TokenizerFiles(name=str(facts.get("name")), files=contents)
    return PlannedTokenizer(
        files, facts, facts["eos_id"], facts["pad_id"], facts["append_eos"]
    )
