"""The tokenizer of each source of a plan, and what packing and padding need of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from tokenlake.config.resolved import ResolvedBuild, ResolvedPack, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.tokenizers.files import TokenizerFiles, load_tokenizer
from tokenlake.etl.tokenizers.fingerprint import describe, special_ids


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
        return hashlib.sha256(
            repr(sorted(self.facts["files"].items())).encode()
        ).hexdigest()


def plan_tokenizers(build: ResolvedBuild) -> dict[str, PlannedTokenizer]:
    """Load and describe each source's tokenizer, each distinct one once.

    Raises:
        ConfigError: packed rows would hold ids of different tokenizers.
    """
    loaded: dict[Any, tuple[TokenizerFiles, dict[str, Any]]] = {}
    planned: dict[str, PlannedTokenizer] = {}
    for source in build.sources:
        name = source.tokenizer.name_or_path, source.tokenizer.special_tokens
        if name not in loaded:
            files = load_tokenizer(name[0]).with_special_tokens(dict(name[1]))
            loaded[name] = files, describe(files)
        # The same tokenizer may put EOS itself for one source, and be told not to for
        # another.
        files, facts = loaded[name]
        suffix = facts["suffix"] if source.tokenizer.add_special_tokens else None
        ids = packing_ids(build.pack, files, suffix, f"tokenizer {files.name!r}")
        planned[source.name] = PlannedTokenizer(files, facts, **ids)
    first = build.sources[0]
    for source in build.sources[1:] if build.pack is not None else ():
        ours, theirs = planned[first.name], planned[source.name]
        same_ids = ours.files.json_bytes == theirs.files.json_bytes
        if not same_ids or (ours.eos_id, ours.pad_id) != (theirs.eos_id, theirs.pad_id):
            raise ConfigError(
                f"datasets.{source.name}.tokenizer: {source.tokenizer.name_or_path!r} differs from the tokenizer "
                f"{first.tokenizer.name_or_path!r} of datasets.{first.name}; packed rows of one dataset need one "
                "tokenizer. Use the same tokenizer, build a dataset for each, or write pack.enabled: false, for "
                "which `file` identifies the source of a row",
                source=source.name,
            )
    return planned


def packing_ids(
    pack: ResolvedPack | None,
    files: TokenizerFiles,
    suffix: Sequence[int] | None,
    tokenizer: str,
) -> dict[str, Any]:
    """Return eos_id, pad_id and append_eos: of the configuration, else the tokenizer's;
    without padding it is EOS.

    Args:
        suffix: what the post-processor puts behind a document.
        tokenizer: what messages call it.
    """
    eos, pad = (pack.eos_token_id, pack.pad_token_id) if pack else (None, None)
    ids = special_ids(files, suffix, eos, pad)
    if pack is None:
        return ids
    if eos is None and ids["eos_id"] < 0:
        raise ConfigError(
            f"{tokenizer} names no EOS token and pack.eos_token_id is not set; packing needs one to mark where "
            "documents end: set pack.eos_token_id",
            tokenizer=files.name,
        )
    for name in ("eos", "pad"):
        if not 0 <= ids[f"{name}_id"] < files.vocab_size:
            raise ConfigError(
                f"pack.{name}_token_id is {ids[f'{name}_id']}, but {tokenizer} has ids 0 to {files.vocab_size - 1}",
                tokenizer=files.name,
            )
    return ids


def padded(source: ResolvedSource, planned: PlannedTokenizer) -> ResolvedSource:
    """The source with the side of its padding, which may be the tokenizer's to say."""
    settings = source.tokenizer
    if settings.padding == "none":
        return source
    if planned.pad_id < 0:
        raise ConfigError(
            f"datasets.{source.name}.tokenizer.padding: {settings.padding!r}, but tokenizer {planned.files.name!r} "
            "names neither a padding token nor an EOS token; name one in its tokenizer_config.json, or write "
            "padding: false",
            tokenizer=planned.files.name,
        )
    own = planned.files.config.get("padding_side")
    side = settings.padding_side or ("left" if own == "left" else "right")
    return replace(source, tokenizer=replace(settings, padding_side=side))


def check_room(source: ResolvedSource, tokenizer: PlannedTokenizer) -> None:
    """A `max_length` that special tokens fill is an error before any work."""
    settings = source.tokenizer
    around = [*(tokenizer.facts["prefix"] or ()), *(tokenizer.facts["suffix"] or ())]
    limited = settings.long_documents != "keep" and settings.add_special_tokens
    if limited and settings.max_length <= len(around):
        raise ConfigError(
            f"datasets.{source.name}: max_length is {settings.max_length}, but tokenizer {tokenizer.files.name!r} puts "
            f"{len(around)} special tokens around every document; expected at least {len(around) + 1}"
        )
