"""Requirements on rows of several stored versions, and the format of the new rows.

Rows become those of one version only if their ids have one meaning, and if documents
begin and end alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import ConfigError
from tokenlake.etl.job.messages import RowsOut
from tokenlake.etl.plan.parents import FoundParent
from tokenlake.etl.plan.planned_tokenizer import PlannedTokenizer, packing_ids
from tokenlake.runtime.store.layout import TOKENIZER
from tokenlake.runtime.store.mixture import Level

_COLUMNS_LEFT_OUT: Final = ("attention_mask", "segment_ids")
"""Columns of stored rows, beside kept fields, that new rows do not have."""

_RENDERED_TEXTS: Final = ("chat", "prompt", "preference")
"""Kinds of texts that a template renders, with all special tokens around them."""


def level_of(parents: Sequence[FoundParent], pack: ResolvedPack | None) -> Level:
    """Return the kind of row that is mixed.

    All parents have the same kind, and packed rows have one length.

    Args:
        parents: Versions whose rows are read.
        pack: Packing of the build; None without packing.

    Raises:
        ConfigError: Parents have different kinds of rows, hold preferences or padded
            rows, or rows that are packed already are to be packed.
    """
    # 1. One kind of rows, which must not be preferences.
    for parent in parents:
        if parent.manifest.kind == "preference":
            raise parent.wrong(
                f"{parent.reference} contains preferences, which can be neither packed nor mixed; expected a dataset "
                "of kind tokens or packed",
                ".dataset",
            )
    first_of_kind: dict[str, FoundParent] = {}
    for parent in parents:
        first_of_kind.setdefault(parent.manifest.kind, parent)
    if len(first_of_kind) > 1:
        tokens = first_of_kind["tokens"].reference
        packed = first_of_kind["packed"].reference
        raise ConfigError(
            f"datasets: {tokens} contains documents, {packed} contains packed rows; expected one kind. Name the "
            f"dataset of tokens that {packed} was packed from, or build it again with pack.enabled: false"
        )

    # 2. Documents, stored without padding.
    if "tokens" in first_of_kind:
        for parent in parents:
            _require_unpadded(parent)
        return "documents"

    # 3. Packed rows, all of one length, which are not packed again.
    if pack is not None:
        raise ConfigError(
            f"pack.enabled: true, but the rows of {parents[0].reference} are packed already, {parents[0].width} ids "
            "each; write pack.enabled: false to keep them unchanged, or name datasets of kind tokens, which can be "
            "packed"
        )
    if len({parent.width for parent in parents}) > 1:
        lengths = ", ".join(f"{parent.reference} {parent.width}" for parent in parents)
        raise ConfigError(
            f"datasets: rows of different lengths cannot be in one dataset ({lengths} ids); expected one length. "
            "Pack the tokens of each with one length"
        )
    return "sequences"


def _require_unpadded(parent: FoundParent) -> None:
    """Check that the documents of a parent are stored without padding.

    Raises:
        ConfigError: They are padded.
    """
    # A mask may also be stored without padding, so the sources decide.
    if "attention_mask" not in parent.columns:
        return
    for name, source in parent.sources.items():
        if "padding" in source.get("tokenizer", {}):
            raise parent.wrong(
                f"the rows of {parent.reference} are padded (source {name!r}), and padding would become part of the "
                "new rows; expected rows without padding. Build it again without padding"
            )


def require_one_tokenizer(
    parents: Sequence[FoundParent], level: Level
) -> dict[str, Any]:
    """Return a manifest's facts about the tokenizer that all sources share.

    Names, revisions and templates may differ: the meaning of ids is that of
    ``tokenizer.json`` and its backend.

    Args:
        parents: Versions whose rows are read.
        level: Kind of their rows.

    Raises:
        ConfigError: Two sources have different tokenizers, or different ids for EOS or
            padding in packed rows.
    """
    # Each source is compared with the first one.
    first: tuple[FoundParent, str, dict[str, Any]] | None = None
    for parent in parents:
        for source, facts in parent.manifest.tokenizer.items():
            if first is None:
                first = (parent, source, facts)
                continue
            first_parent, first_source, first_facts = first
            if _meaning(facts, level) != _meaning(first_facts, level):
                raise ConfigError(
                    f"datasets.{parent.name}: the source {source!r} of {parent.reference} has another tokenizer "
                    f"({_description(facts)}) than {first_source!r} of {first_parent.reference} "
                    f"({_description(first_facts)}); the ids of one dataset need one tokenizer. Tokenize both with "
                    "the same one",
                    source=parent.name,
                )
    if first is None:
        raise ConfigError(
            f"datasets.{parents[0].name}: {parents[0].reference} does not record its tokenizer"
        )
    return first[2]


def _meaning(facts: dict[str, Any], level: Level) -> list[Any]:
    """Return the facts about a tokenizer that decide the meaning of ids."""
    special_tokens = ("bos_id",)
    if level == "sequences":
        special_tokens = ("eos_id", "pad_id")
    meanings = [facts.get(name) for name in ("probe", "vocab_size", *special_tokens)]
    return [facts.get("files", {}).get("tokenizer.json"), *meanings]


def _description(facts: dict[str, Any]) -> str:
    """Return a phrase about a tokenizer, for messages: its name, hash and ids."""
    digest = str(facts.get("files", {}).get("tokenizer.json"))[:12]
    named_ids = [f"{name} {facts.get(f'{name}_id')}" for name in ("bos", "eos", "pad")]
    ids = ", ".join(named_ids)
    return f"{facts.get('name')}: {TOKENIZER}.json {digest}, {ids}"


@final
@dataclass(frozen=True, slots=True)
class _Affixes:
    """Special tokens around the documents of a parent.

    Attributes:
        prefix: Ids that the post-processor put before each document.
        suffix: Ids that it put after each document.
        whole: Whether some of the documents have special tokens of their own: a
            template, which writes some of them itself, rendered them, or their ids were
            imported.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    whole: bool


def _affixes_of(parent: FoundParent) -> _Affixes:
    """Return the special tokens around the documents of a parent.

    Raises:
        ConfigError: The sources of the parent differ in them.
    """
    # 1. A parent that was made of stored versions states them.
    stated = parent.manifest.config.get("build", {}).get("around")
    if stated is not None:
        # Its sources may have the names of sources of its own parents.
        prefix = tuple(stated["prefix"])
        suffix = tuple(stated["suffix"])
        return _Affixes(prefix, suffix, stated["whole"])

    # 2. Otherwise the post-processor of each source put them, if it was told to.
    source_of_affixes: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    for source_name, facts in parent.manifest.tokenizer.items():
        prefix: tuple[int, ...] = ()
        suffix: tuple[int, ...] = ()
        options = parent.sources.get(source_name, {}).get("tokenizer", {})
        if options.get("add_special_tokens", True):
            prefix = tuple(facts.get("prefix") or ())
            suffix = tuple(facts.get("suffix") or ())
        source_of_affixes[prefix, suffix] = source_name
    if len(source_of_affixes) > 1:
        first_source, second_source = list(source_of_affixes.values())[:2]
        raise parent.wrong(
            f"the sources {first_source!r} and {second_source!r} of {parent.reference} differ in add_special_tokens, "
            "so the beginning and end of a document would be ambiguous; build them with the same setting"
        )

    # 3. Documents with special tokens of their own.
    prefix, suffix = next(iter(source_of_affixes))
    has_rendered_texts = False
    for source in parent.sources.values():
        texts = source.get("texts", {})
        if "tokens" in source or any(kind in texts for kind in _RENDERED_TEXTS):
            has_rendered_texts = True
    return _Affixes(prefix, suffix, has_rendered_texts)


def rows_out(
    pack: ResolvedPack | None,
    max_shard_size: int,
    parents: Sequence[FoundParent],
    tokenizer: PlannedTokenizer,
) -> RowsOut:
    """Return the format of the new rows.

    Args:
        pack: Packing of the build; None without packing.
        max_shard_size: Number of bytes after which a part is closed.
        parents: Versions whose rows are read.
        tokenizer: Tokenizer of all parents.

    Raises:
        ConfigError: The parents put different special tokens around documents, or
            packing has no EOS.
    """
    # 1. Plain documents of all parents begin and end with the same tokens. Documents
    #    with tokens of their own may be anything.
    affixes: dict[str, _Affixes] = {}
    whole_parents: list[str] = []
    for parent in parents:
        affixes[parent.name] = _affixes_of(parent)
        if affixes[parent.name].whole:
            whole_parents.append(parent.name)
    plain_affixes: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    for parent_name, parent_affixes in affixes.items():
        if not parent_affixes.whole:
            plain_affixes[parent_affixes.prefix, parent_affixes.suffix] = parent_name
    if len(plain_affixes) > 1:
        first_name, second_name = list(plain_affixes.values())[:2]
        raise ConfigError(
            f"datasets.{second_name}: its documents begin and end with special tokens that differ from those of "
            f"datasets.{first_name} (add_special_tokens); expected the same ones. Build one of them again"
        )
    first_affixes = next(iter(affixes.values()))
    prefix, suffix = next(
        iter(plain_affixes), (first_affixes.prefix, first_affixes.suffix)
    )

    # 2. EOS and padding. New packed rows do not take the parents' ids: there, EOS may
    #    replace a padding token that the tokenizer lacks.
    owner = f"the tokenizer of {parents[0].reference}"
    ids: dict[str, Any] = packing_ids(pack, tokenizer.files, suffix, owner)
    width = parents[0].width
    if pack is None:
        ids = {
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
            "append_eos": False,
        }
    else:
        width = pack.width

    # 3. The format.
    return RowsOut(
        pack=pack,
        width=width,
        prefix=prefix,
        suffix=suffix,
        whole=tuple(whole_parents),
        loss_mask=any("loss_mask" in parent.columns for parent in parents),
        max_shard_size=max_shard_size,
        tokenizer=tokenizer.facts["files"].get("tokenizer.json"),
        **ids,
    )


def notes_on_columns(parents: Sequence[FoundParent], out: RowsOut) -> list[str]:
    """Return notes on columns of the parents that the new rows do not have."""
    reason = "rows of all sources have the same columns"
    if out.pack is not None:
        reason = "packed rows hold pieces of several documents"
    notes: list[str] = []
    for parent in parents:
        # Kept fields, and masks that a reader can make again.
        kept_fields = parent.manifest.config.get("build", {}).get("kept", ())
        names = [field for field, _ in kept_fields]
        for column in _COLUMNS_LEFT_OUT:
            if column in parent.columns:
                names.append(column)
        if names:
            notes.append(
                f"{parent.name}: {', '.join(names)} of {parent.reference} are left out; {reason}"
            )
    return notes
