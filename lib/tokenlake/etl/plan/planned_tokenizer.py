"""Tokenizer of each source of a plan, with its ids for packing and padding."""

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
    """Tokenizer as the plan has it.

    Attributes:
        files: Content of its files, which are copied into the version.
        facts: Description for the manifest, in values of JSON, see
            :func:`tokenlake.etl.tokenizers.fingerprint.describe`.
        eos_id: Id of EOS for packing, -1 for none.
        pad_id: Id of padding, -1 for none.
        append_eos: Whether packing adds EOS, because the post-processor does not.
    """

    files: TokenizerFiles
    facts: dict[str, Any]
    eos_id: int
    pad_id: int
    append_eos: bool

    @property
    def digest(self) -> str:
        """Hash of the hashes of all files."""
        file_hashes = sorted(self.facts["files"].items())
        return hashlib.sha256(repr(file_hashes).encode()).hexdigest()


def plan_tokenizers(build: ResolvedBuild) -> dict[str, PlannedTokenizer]:
    """Load and describe the tokenizer of each source.

    Loading takes up to two seconds, so a tokenizer of several sources is loaded once.

    Raises:
        ConfigError: Packed rows would hold ids of different tokenizers.
    """
    loaded: dict[Any, tuple[TokenizerFiles, dict[str, Any]]] = {}
    planned: dict[str, PlannedTokenizer] = {}
    for source in build.sources:
        name_or_path = source.tokenizer.name_or_path
        special_tokens = source.tokenizer.special_tokens
        tokenizer_key = (name_or_path, special_tokens)
        if tokenizer_key not in loaded:
            files = load_tokenizer(name_or_path).with_special_tokens(
                dict(special_tokens)
            )
            loaded[tokenizer_key] = (files, describe(files))

        # One tokenizer may add EOS itself for one source, and not for another.
        files, facts = loaded[tokenizer_key]
        suffix = None
        if source.tokenizer.add_special_tokens:
            suffix = facts["suffix"]
        ids = packing_ids(build.pack, files, suffix, f"tokenizer {files.name!r}")
        planned[source.name] = PlannedTokenizer(files, facts, **ids)
    # Without packing, the file of a row identifies its tokenizer.
    if build.pack is not None:
        _require_one_tokenizer(build, planned)
    return planned


def _require_one_tokenizer(
    build: ResolvedBuild, planned: dict[str, PlannedTokenizer]
) -> None:
    """Check that all sources have the tokenizer and the special ids of the first one.

    Raises:
        ConfigError: A source has others.
    """
    first_source = build.sources[0]
    first_tokenizer = planned[first_source.name]
    for source in build.sources[1:]:
        tokenizer = planned[source.name]
        has_same_ids = (
            tokenizer.files.json_bytes == first_tokenizer.files.json_bytes
            and tokenizer.eos_id == first_tokenizer.eos_id
            and tokenizer.pad_id == first_tokenizer.pad_id
        )
        if not has_same_ids:
            raise ConfigError(
                f"datasets.{source.name}.tokenizer: {source.tokenizer.name_or_path!r} differs from the tokenizer "
                f"{first_source.tokenizer.name_or_path!r} of datasets.{first_source.name}; packed rows of one dataset "
                "need one tokenizer. Use the same tokenizer, build a dataset for each, or write pack.enabled: false, "
                "for which `file` identifies the source of a row",
                source=source.name,
            )


def packing_ids(
    pack: ResolvedPack | None,
    files: TokenizerFiles,
    suffix: Sequence[int] | None,
    tokenizer: str,
) -> dict[str, Any]:
    """Return `eos_id`, `pad_id` and `append_eos` of a build.

    Ids of the configuration come before those of the tokenizer. A tokenizer without
    padding is padded with EOS.

    Args:
        pack: Packing of the build; None without packing.
        files: Tokenizer.
        suffix: Ids that the post-processor puts after a document; None for none.
        tokenizer: Name of the tokenizer in messages.

    Raises:
        ConfigError: Packing has no EOS, or an id is not in the vocabulary.
    """
    # Without packing nothing needs EOS or padding.
    if pack is None:
        return special_ids(files, suffix, None, None)
    ids = special_ids(files, suffix, pack.eos_token_id, pack.pad_token_id)
    if pack.eos_token_id is None and ids["eos_id"] < 0:
        raise ConfigError(
            f"{tokenizer} names no EOS token and pack.eos_token_id is not set; packing needs one to mark where "
            "documents end: set pack.eos_token_id",
            tokenizer=files.name,
        )
    # Both ids are written into rows, so the vocabulary must have them.
    for name in ("eos", "pad"):
        if not 0 <= ids[f"{name}_id"] < files.vocab_size:
            raise ConfigError(
                f"pack.{name}_token_id is {ids[f'{name}_id']}, but {tokenizer} has ids 0 to {files.vocab_size - 1}",
                tokenizer=files.name,
            )
    return ids


def padded(source: ResolvedSource, planned: PlannedTokenizer) -> ResolvedSource:
    """Return a source with the side of its padding.

    The configuration comes before tokenizer_config.json; the default is right.

    Raises:
        ConfigError: The tokenizer has no id to pad with.
    """
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
    # The side of the tokenizer is read only without one in the configuration.
    side = settings.padding_side
    if not side:
        side = "right"
        if planned.files.config.get("padding_side") == "left":
            side = "left"
    return replace(source, tokenizer=replace(settings, padding_side=side))


def check_room(source: ResolvedSource, tokenizer: PlannedTokenizer) -> None:
    """Check, before any work, that `max_length` leaves room beside special tokens.

    Raises:
        ConfigError: Special tokens fill `max_length`.
    """
    settings = source.tokenizer
    prefix = tokenizer.facts["prefix"] or ()
    suffix = tokenizer.facts["suffix"] or ()
    special_count = len(prefix) + len(suffix)
    # Documents that are kept whole have no largest length.
    is_limited = settings.long_documents != "keep" and settings.add_special_tokens
    if is_limited and settings.max_length <= special_count:
        raise ConfigError(
            f"datasets.{source.name}: max_length is {settings.max_length}, but tokenizer {tokenizer.files.name!r} puts "
            f"{special_count} special tokens around every document; expected at least {special_count + 1}"
        )
