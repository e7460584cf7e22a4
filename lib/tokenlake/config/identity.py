"""What is identity and what is not: the part of a configuration that decides output bytes.

Left out on purpose: paths and names of stores, worker and thread counts, the engine (its ids equal the
reference's or the build fails), names of tokenizers (their files and behaviour are hashed instead), and
`max_bad_fraction`, which decides whether a build may be committed but not a byte of it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tokenlake.config.resolved import ResolvedBuild, ResolvedPack, ResolvedSource, ResolvedTokenizer


def identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of a build, without that of its sources."""
    return {
        "kind": build.kind,
        "pack": None if build.pack is None else pack_identity(build.pack),
        "unit_size": build.unit_size,
        "max_shard_size": build.max_shard_size,
        "compression": build.compression,
        **({"loss_mask": True} if build.loss_mask else {}),
        **({"attention_mask": True} if build.attention_mask else {}),
        **({"kept": [[name, kind] for name, kind in build.kept]} if build.kept else {}),
        **({} if build.num_shards is None else {"num_shards": build.num_shards}),
    }


def card_identity(build: ResolvedBuild) -> dict[str, Any]:
    """Return the part of a version's identity that no unit has: what its card says, where it says anything."""
    return {"card": dict(build.card)} if build.card else {}


def source_identity(source: ResolvedSource) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of a source.

    The inputs (`data_files` listed and hashed), the content of `exclude` and the tokenizer's files are
    identity too; whoever reads them adds them.
    """
    # Options that most sources lack count only where they are set, so that a new one of them does not give
    # every older dataset another identity.
    options: dict[str, Any] = {
        "where": source.where,
        "delimiter": source.delimiter,
        "texts": source.texts.identity() or None,
        "additional_fields": [name for name, _ in source.kept] or None,
        "num_shards": source.num_shards,
        "eval": None if source.held_out is None else asdict(source.held_out),
    }
    return {
        "name": source.name,
        "type": source.type,
        "content_field": source.content_field,
        "text_mode": source.text_mode,
        "on_bad_record": source.on_bad_record,
        "max_record_bytes": source.max_record_bytes,
        "splits": [[name, part] for name, part in source.splits],
        **{name: value for name, value in options.items() if value is not None},
        "tokenizer": _tokenizer(source.tokenizer),
    }


def pack_identity(pack: ResolvedPack) -> dict[str, Any]:
    """Return the canonical, JSON-able identity of packing."""
    # `include_segment_ids` is about readers: the column is stored only with `store_segment_ids`.
    return {
        "seq_length": pack.seq_length,
        "eos_token_id": pack.eos_token_id,
        "pad_token_id": pack.pad_token_id,
        "strategy": pack.strategy,
        "window_tokens": pack.window_tokens,
        "store_segment_ids": pack.store_segment_ids,
        **({"num_packers": pack.num_packers} if pack.strategy == "pool" else {}),
        **({} if pack.max_segments is None else {"max_segments": pack.max_segments}),
        **({} if pack.shuffle_seed is None else {"shuffle_seed": pack.shuffle_seed}),
    }


def _tokenizer(tokenizer: ResolvedTokenizer) -> dict[str, Any]:
    policy, padding = tokenizer.long_documents, tokenizer.padding
    found: dict[str, Any] = {
        "add_special_tokens": tokenizer.add_special_tokens,
        # Where long documents are kept, `max_length` does nothing, so it must not make two equal results differ.
        "max_length": None if policy == "keep" and padding != "max_length" else tokenizer.max_length,
        "special_tokens_in_text": tokenizer.special_tokens_in_text,
    }
    if policy == "truncate":  # it says where it cuts: at first it cut through characters, and gave other ids
        found["truncation"] = [tokenizer.truncation_strategy, tokenizer.truncation_side]
    elif policy != "keep":
        found["long_documents"] = policy
    if padding != "none":
        found |= {"padding": padding, "padding_side": tokenizer.padding_side}
    return found
