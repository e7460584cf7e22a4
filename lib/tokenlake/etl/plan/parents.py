"""The versions that a build takes rows from, and what they must have in common to become rows of one version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

from tokenlake.base.arrays import Int64, lengths_between
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError
from tokenlake.etl.job import ParentVersion, RowsOut
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer, packing_ids
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.mixing.lane_count import SourceSize
from tokenlake.runtime.store.base import Store, read_files
from tokenlake.runtime.store.catalog import Catalog
from tokenlake.runtime.store.layout import TOKENIZER, Layout, tokenizer_path
from tokenlake.runtime.store.ledger import InputFileEntry, Parent, ShardEntry, Totals
from tokenlake.runtime.store.manifest import Manifest
from tokenlake.runtime.store.mixture import Level


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
        return lengths_between(
            [shard.row_groups for shard in self.shards], [shard.rows for shard in self.shards]
        )

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
            width=self.manifest.width,
        )

    @property
    def width(self) -> int | None:
        """Ids of a packed row."""
        return self.manifest.width or None

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
        return ParentVersion(name=self.name, split=self.split, **self._named)

    @cached_property
    def lineage(self) -> Parent:
        """What a manifest says of it."""
        return Parent(**self._named)

    @cached_property
    def _named(self) -> dict[str, Any]:
        return {name: getattr(self.manifest, name) for name in ("dataset", "version", "sha256")}

    def wrong(self, problem: str, setting: str = "", **details: Any) -> ConfigError:
        """Return the error of a setting of the source that this is."""
        return ConfigError(f"datasets.{self.name}{setting}: {problem}", **details)


def find_parents(catalog: Catalog, parents: tuple[DatasetConfig, ...], name: str) -> tuple[FoundParent, ...]:
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
        reference = parent.dataset or ""
        if reference == name:
            raise ConfigError(
                f"datasets.{parent.name}.dataset: {name!r} is the name of this build too, so that every run would be "
                f"made of the one before; name the version that is meant, {name}@v1, or set another `name`"
            )
        try:
            key = catalog.resolve(reference)
            if key not in read:
                read[key] = catalog.manifest(*key)
        except NotFoundError as error:
            raise ConfigError(f"datasets.{parent.name}.dataset: {error}", **error.details) from error
        found.append(FoundParent(parent.name or "", read[key], parent.split))
    return tuple(found)


def require_split(parent: FoundParent) -> None:
    """Raise ConfigError unless the parent has the split, with rows in it."""
    splits = {name: totals.rows for name, totals in parent.manifest.splits.items()}
    if not splits.get(parent.split):
        there = ", ".join(f"{name} ({rows} rows)" for name, rows in splits.items()) or "no rows at all"
        raise parent.wrong(
            f"{parent.reference} has no rows in a split {parent.split!r}; it has {there}. Set split to one of them",
            ".split",
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
                raise parent.wrong(
                    f"{parent.reference} and {first.reference} both hold documents of {entry.path!r} of a source "
                    f"{entry.source!r}, but of different files (size {other.size}, {other.token} and size "
                    f"{entry.size}, {entry.token}); rows would name one id for both. Build one of them again with "
                    "another name for that source",
                    file=entry.path,
                )
    return tuple(entry for entry, _ in found.values())


def lineage(parents: tuple[FoundParent, ...]) -> tuple[Parent, ...]:
    """Return the versions that rows come from, each once."""
    return tuple({parent.reference: parent.lineage for parent in parents}.values())


def read_tokenizer(store: Store, parent: FoundParent, source: str) -> PlannedTokenizer:
    """Return a source's tokenizer as the parent has it, its files compared with the parent's manifest.

    Raises:
        IntegrityError: a file is missing or changed; names it.
    """
    layout = Layout(parent.manifest.dataset, parent.manifest.version)
    facts = parent.manifest.tokenizer[source]
    try:
        found = read_files(store, layout.key(tokenizer_path(facts.get("folder", ""))), facts["files"])
    except (NotFoundError, IntegrityError) as error:
        raise IntegrityError(
            f"{parent.reference}: {error}. Run `tokenlake verify {parent.reference}` to see all that is damaged",
            **error.details,
        ) from error
    files = TokenizerFiles(name=str(facts.get("name")), files=found)
    return PlannedTokenizer(files, facts, facts["eos_id"], facts["pad_id"], facts["append_eos"])


_OWN_COLUMNS: Final = {"attention_mask", "segment_ids"}
_RENDERED: Final = ("chat", "prompt", "preference")


def level_of(parents: Sequence[FoundParent], pack: ResolvedPack | None) -> Level:
    """Return what is mixed; the parents must all be of one kind, and packed ones of one length.

    Raises:
        ConfigError: they are not, or they are preferences, or packed rows are to be packed, or padded rows mixed.
    """
    for parent in parents:
        if parent.manifest.kind == "preference":
            raise parent.wrong(
                f"{parent.reference} holds preferences, which are neither packed nor mixed; expected a dataset of kind "
                "tokens or packed",
                ".dataset",
            )
    kinds = {parent.manifest.kind: parent for parent in reversed(parents)}
    if len(kinds) > 1:
        tokens, packed = kinds["tokens"].reference, kinds["packed"].reference
        raise ConfigError(
            f"datasets: {tokens} holds documents, {packed} holds packed rows; expected one kind. Name the tokens that "
            f"{packed} could be packed of, or build it again with pack.enabled: false"
        )
    if "tokens" in kinds:
        for parent in parents:
            sources = parent.sources.items()
            padded = [name for name, source in sources if "padding" in source.get("tokenizer", {})]
            if padded and "attention_mask" in parent.columns:
                raise parent.wrong(
                    f"the rows of {parent.reference} are padded (source {padded[0]!r}), and padding would become part "
                    "of the new rows; expected rows as they are. Build it again without padding"
                )
        return "documents"
    if pack is not None:
        raise ConfigError(
            f"pack.enabled: true, but the rows of {parents[0].reference} are packed already, "
            f"{parents[0].width} ids each; write pack.enabled: false to pass them on as they are, or "
            "name datasets of kind tokens, which can be packed again"
        )
    if len({parent.width for parent in parents}) > 1:
        each = ", ".join(f"{parent.reference} {parent.width}" for parent in parents)
        raise ConfigError(
            f"datasets: rows of different lengths cannot be rows of one dataset ({each} ids); expected one length. "
            "Pack the tokens of each with one length"
        )
    return "sequences"


def require_one_tokenizer(parents: Sequence[FoundParent], level: Level) -> dict[str, Any]:
    """Return what manifests say of the tokenizer, which must mean the same by every id.

    Names, revisions and templates may differ: ids mean what ``tokenizer.json`` and its backend make of them.

    Raises:
        ConfigError: two sources have different tokenizers, or different ids for EOS or padding in packed rows.
    """
    described = [
        (parent, source, facts) for parent in parents for source, facts in parent.manifest.tokenizer.items()
    ]
    if not described:
        raise ConfigError(
            f"datasets.{parents[0].name}: {parents[0].reference} does not say which tokenizer made it"
        )
    first_parent, first_source, first = described[0]
    for parent, source, facts in described[1:]:
        if _meaning(facts, level) != _meaning(first, level):
            raise ConfigError(
                f"datasets.{parent.name}: the source {source!r} of {parent.reference} has another tokenizer "
                f"({_shown(facts)}) than {first_source!r} of {first_parent.reference} ({_shown(first)}); in one "
                "dataset an id must mean one thing. Tokenize both with one tokenizer",
                source=parent.name,
            )
    return first


def _meaning(facts: dict[str, Any], level: Level) -> list[Any]:
    special = ("eos_id", "pad_id") if level == "sequences" else ("bos_id",)
    values = [facts.get(name) for name in ("probe", "vocab_size", *special)]
    return [facts.get("files", {}).get("tokenizer.json"), *values]


def _shown(facts: dict[str, Any]) -> str:
    digest = str(facts.get("files", {}).get("tokenizer.json"))[:12]
    ids = ", ".join(f"{name} {facts.get(f'{name}_id')}" for name in ("bos", "eos", "pad"))
    return f"{facts.get('name')}: {TOKENIZER}.json {digest}, {ids}"


def _affixes(parent: FoundParent) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Return what lies around the documents of a parent.

    Returns:
        what the post-processor put before each, and behind it; whether a template, which spells some of that itself,
        rendered some.

    Raises:
        ConfigError: its sources differ in that.
    """
    stated = parent.manifest.config.get("build", {}).get("around")
    if stated is not None:  # a mixture itself, whose sources may be called alike
        return tuple(stated["prefix"]), tuple(stated["suffix"]), stated["whole"]
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    for name, facts in parent.manifest.tokenizer.items():
        adds = parent.sources.get(name, {}).get("tokenizer", {}).get("add_special_tokens", True)
        prefix, suffix = (tuple(facts.get(end) or ()) if adds else () for end in ("prefix", "suffix"))
        found[prefix, suffix] = name
    if len(found) > 1:
        one, other = list(found.values())[:2]
        raise parent.wrong(
            f"the sources {one!r} and {other!r} of {parent.reference} differ in add_special_tokens, so that nobody "
            "could say what begins and ends a document; build them with one setting"
        )
    whole = any(set(_RENDERED) & set(source.get("texts", {})) for source in parent.sources.values())
    return (*next(iter(found)), whole)


def rows_out(
    pack: ResolvedPack | None,
    max_shard_size: int,
    parents: Sequence[FoundParent],
    tokenizer: PlannedTokenizer,
) -> RowsOut:
    """Return what the new rows are.

    Args:
        tokenizer: the one of all parents.

    Raises:
        ConfigError: the parents put different special tokens around documents, or packing has no EOS.
    """
    each = {parent.name: _affixes(parent) for parent in parents}
    plain = {(prefix, suffix): name for name, (prefix, suffix, whole) in each.items() if not whole}
    if len(plain) > 1:
        one, other = list(plain.values())[:2]
        raise ConfigError(
            f"datasets.{other}: its documents begin and end with other special tokens than those of datasets.{one} "
            "(add_special_tokens); expected the same around all. Build one of them again"
        )
    prefix, suffix = next(iter(plain)) if plain else next(iter(each.values()))[:2]
    # Of rows that are made here not as the parent says them: there, EOS may stand for padding that the tokenizer lacks.
    named = f"the tokenizer of {parents[0].reference}"
    ids: dict[str, Any] = packing_ids(pack, tokenizer.files, suffix, named)
    if pack is None:
        ids = {"eos_id": tokenizer.eos_id, "pad_id": tokenizer.pad_id, "append_eos": False}
    return RowsOut(
        pack=pack,
        width=pack.width if pack else parents[0].width,
        prefix=prefix,
        suffix=suffix,
        whole=tuple(name for name, (_, _, whole) in each.items() if whole),
        loss_mask=any("loss_mask" in parent.columns for parent in parents),
        max_shard_size=max_shard_size,
        tokenizer=tokenizer.facts["files"].get("tokenizer.json"),
        **ids,
    )


def notes_on_columns(parents: Sequence[FoundParent], out: RowsOut) -> list[str]:
    """Return notes on columns of the parents that the new rows do not have."""
    packed = "packed rows hold pieces of several documents"
    why = packed if out.pack else "rows of all sources have the same columns"
    notes: list[str] = []
    for parent in parents:
        names = [name for name, _ in parent.manifest.config.get("build", {}).get("kept", ())]
        if names := [*names, *sorted(_OWN_COLUMNS & parent.columns)]:
            notes.append(f"{parent.name}: {', '.join(names)} of {parent.reference} are left out; {why}")
    return notes
