"""The tokenizer of each source as a plan finds it: its files, its special ids, and whether they fit what is asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, final

from tokenlake.config.resolved import ResolvedBuild, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.tokenizers.fingerprint import describe, special_ids


@final
@dataclass(frozen=True, slots=True)
class PlannedTokenizer:
    """A tokenizer as the plan found it.

    Attributes:
        files: its bytes; they are copied into the version.
        facts: fingerprint, probe ids, special ids (JSON-able).
        eos_id, pad_id: as resolved for packing.
        append_eos: whether packing adds EOS, which the post-processor does not.
    """

    files: TokenizerFiles
    facts: dict[str, Any]
    eos_id: int
    pad_id: int
    append_eos: bool

    @property
    def digest(self) -> str:
        """One hash over the hashes of its files."""
        return hashlib.sha256(repr(sorted(self.facts["files"].items())).encode()).hexdigest()


def plan_tokenizers(build: ResolvedBuild) -> dict[str, PlannedTokenizer]:
    """Load and describe each source's tokenizer, each distinct one once.

    Raises:
        ConfigError: packed rows would hold ids of different tokenizers.
    """
    loaded: dict[str, tuple[TokenizerFiles, dict[str, Any]]] = {}
    planned: dict[str, PlannedTokenizer] = {}
    for source in build.sources:
        name = source.tokenizer.name_or_path
        if name not in loaded:
            files = load_tokenizer(name)
            loaded[name] = files, describe(files)
        # The same tokenizer may put EOS itself for one source, and be told not to for another.
        planned[source.name] = _resolve_ids(build, *loaded[name], source.tokenizer.add_special_tokens)
    if build.pack is not None:
        _require_one_tokenizer(build, planned)
    return planned


def _require_one_tokenizer(build: ResolvedBuild, planned: dict[str, PlannedTokenizer]) -> None:
    """Packed rows are read as one stream of ids, in which an id must mean one thing."""
    first, *others = build.sources
    for source in others:
        ours, theirs = planned[first.name], planned[source.name]
        same_ids = ours.files.json_bytes == theirs.files.json_bytes
        if not same_ids or (ours.eos_id, ours.pad_id) != (theirs.eos_id, theirs.pad_id):
            raise ConfigError(
                f"datasets.{source.name}.tokenizer: {source.tokenizer.name_or_path!r} is another tokenizer than "
                f"{first.tokenizer.name_or_path!r} of datasets.{first.name}; packed rows of one dataset are read as "
                "one stream, in which an id must mean one thing. Use one tokenizer, build a dataset for each, or "
                "write pack.enabled: false, where `file` says which source a row is of",
                source=source.name,
            )


def _resolve_ids(
    build: ResolvedBuild, files: TokenizerFiles, facts: dict[str, Any], add_special_tokens: bool
) -> PlannedTokenizer:
    """EOS and pad as DESIGN rules: configuration, then tokenizer; pad falls back to EOS."""
    asked = build.pack
    suffix = facts["suffix"] if add_special_tokens else None
    ids = special_ids(
        files, suffix, asked.eos_token_id if asked else None, asked.pad_token_id if asked else None
    )
    eos, pad = ids["eos_id"], ids["pad_id"]
    if asked and asked.eos_token_id is None and eos < 0:
        raise ConfigError(
            f"tokenizer {files.name!r} names no EOS token and pack.eos_token_id is not set; packing needs one to "
            "mark where documents end: set pack.eos_token_id",
            tokenizer=files.name,
        )
    for name, value in (("eos_token_id", eos), ("pad_token_id", pad)):
        if asked and not 0 <= value < files.vocab_size:
            raise ConfigError(
                f"pack.{name} is {value}, but tokenizer {files.name!r} has ids 0 to {files.vocab_size - 1}",
                tokenizer=files.name,
            )
    return PlannedTokenizer(files, facts, **ids)


def padded(source: ResolvedSource, planned: PlannedTokenizer) -> ResolvedSource:
    """The source with the side of its padding, which may be the tokenizer's to say."""
    settings = source.tokenizer
    if settings.padding == "none":
        return source
    if planned.pad_id < 0:
        raise ConfigError(
            f"datasets.{source.name}.tokenizer.padding: {settings.padding!r}, but tokenizer {planned.files.name!r} "
            "names neither a padding token nor an EOS token; name one in its tokenizer_config.json, or do not pad",
            tokenizer=planned.files.name,
        )
    own = planned.files.config.get("padding_side")
    side = settings.padding_side or ("left" if own == "left" else "right")
    return replace(source, tokenizer=replace(settings, padding_side=side))


def check_room(source: ResolvedSource, tokenizer: PlannedTokenizer) -> None:
    """A `max_length` that special tokens fill is an error before any work."""
    settings = source.tokenizer
    around = [*(tokenizer.facts["prefix"] or ()), *(tokenizer.facts["suffix"] or ())]
    if (
        settings.long_documents != "keep"
        and settings.add_special_tokens
        and settings.max_length <= len(around)
    ):
        raise ConfigError(
            f"datasets.{source.name}: max_length is {settings.max_length}, but tokenizer {tokenizer.files.name!r} puts "
            f"{len(around)} special tokens around every document; expected at least {len(around) + 1}"
        )


_NAMED = 5  # files that are named one by one
