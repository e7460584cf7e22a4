"""From the arguments of `tokenize_and_save` to the configuration of a build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenlake.config.pack_stage import PackStageConfig
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import ConfigError

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_DATASET: Final = "tokens"
_TOKENIZE: Final = ("engine", "special_tokens_in_text", "long_documents")
_SOURCE: Final = ("unit_size", "max_record_bytes", "max_expansion", "hash_threads")


def configuration(
    data_files: DataFiles,
    tokenizer: object,
    max_length: int | None,
    content_field: str,
    additional_fields: Sequence[str] | None,
    pack: object,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the configuration of the build; what is wrong with it the build will say."""
    rest = dict(options)
    chosen = _tokenizer(tokenizer, max_length, rest)
    tokenize = {name: rest.pop(name) for name in _TOKENIZE if name in rest}
    source = {name: rest.pop(name) for name in _SOURCE if name in rest}
    dataset = {
        "name": "files",
        "data_files": data_files,
        "tokenizer": chosen,
        "content_field": content_field,
        **rest,
    }
    if content_field == "text":
        del dataset["content_field"]  # so that messages are found by themselves
    if additional_fields is not None:
        dataset["additional_fields"] = tuple(additional_fields)
    packing = _packing(pack, max_length or chosen.get("max_length"))
    return {"name": _DATASET, "datasets": [dataset], "tokenize": tokenize, "source": source, "pack": packing}


def _tokenizer(tokenizer: object, max_length: int | None, rest: dict[str, Any]) -> dict[str, Any]:
    if isinstance(tokenizer, TokenizerConfig):
        chosen = tokenizer.model_dump(exclude_unset=True)
    elif isinstance(tokenizer, Mapping):
        chosen: dict[str, Any] = dict(tokenizer)
    elif isinstance(tokenizer, str | os.PathLike):
        chosen = {"name_or_path": os.fspath(tokenizer)}
    else:
        raise ConfigError(
            f"tokenizer: got a {type(tokenizer).__name__}, must be a Hub id, a directory, a tokenizer.json file or a "
            "TokenizerConfig: worker processes load it themselves. (save_pretrained(directory) makes a directory.)"
        )
    chosen |= {name: rest.pop(name) for name in TokenizerConfig.model_fields if name in rest}
    if max_length is not None:
        chosen["max_length"] = max_length
    chosen.setdefault("return_attention_mask", True)
    return chosen


def _packing(pack: object, max_length: int | None) -> dict[str, Any]:
    if pack is False or pack is None:
        return {}
    given: dict[str, Any] = {}
    if isinstance(pack, PackStageConfig):
        given = pack.model_dump(exclude_unset=True)
    elif isinstance(pack, Mapping):
        given = dict(pack)
    elif pack is not True:
        raise ConfigError(f"pack: got {pack!r}, must be True, False, or options of PackStageConfig")
    given = {"enabled": True, **given}
    if max_length is not None:
        given.setdefault("seq_length", max_length)
    # Nobody derives the column from a flat directory, so it is there where it is wanted.
    given.setdefault("store_segment_ids", given.get("include_segment_ids", True))
    return given
