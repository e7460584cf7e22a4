"""What a tokenizer is: its files, and what it does.

Equal files are not enough: a changed backend once dropped BOS in 26 TB of somebody's caches. So the ids of a
fixed set of texts, as the reference gives them today, belong to the identity too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from tokenlake.errors import TokenizerError
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.probe import FINGERPRINT_TEXTS
from tokenlake.tokenizers.reference import Reference

_SHOWN: Final = 16


def describe(files: TokenizerFiles) -> dict[str, Any]:
    """Return the JSON-able description of a tokenizer; everything but ``name`` and ``revision`` is identity.

    Returns:
        ``name``, ``revision``, ``files`` (name -> sha256), ``probe`` (sha256 of the ids of
        :data:`FINGERPRINT_TEXTS`, literal and with control ids, and of what goes around a document),
        ``probe_ids`` (the first ids, for people), ``prefix`` and ``suffix`` (null when the post-processor
        is not a wrapper), ``vocab_size``, ``bos_id``, ``eos_id``, ``pad_id``.
    """
    reference = Reference(files)
    prefix, suffix = _affixes(reference)
    _require_same_ids(files, reference)
    literal = _probe(reference)
    reference.backend.encode_special_tokens = False  # loading it again would cost 0.15 s
    encode = _probe(reference)
    behaviour = {"literal": literal, "encode": encode, "prefix": prefix, "suffix": suffix}
    return {
        "name": files.name,
        "revision": files.revision,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.files.items()},
        "probe": hashlib.sha256(json.dumps(behaviour, separators=(",", ":")).encode()).hexdigest(),
        "probe_ids": [i for ids in literal for i in ids][:_SHOWN],
        "prefix": prefix,
        "suffix": suffix,
        "vocab_size": files.vocab_size,
        "bos_id": files.bos_id,
        "eos_id": files.eos_id,
        "pad_id": files.pad_id,
    }


def identity(description: dict[str, Any]) -> dict[str, Any]:
    """Return the part of :func:`describe` that is identity."""
    return {key: value for key, value in description.items() if key not in ("name", "revision")}


def special_ids(
    files: TokenizerFiles, suffix: Sequence[int] | None, eos: int | None, pad: int | None
) -> dict[str, Any]:
    """Return ``eos_id`` and ``pad_id`` of a build, -1 for none, and whether packing must ``append_eos``.

    Args:
        suffix: what the post-processor puts after a document; None where it is not to.
        eos, pad: what the configuration asks for; else they are the tokenizer's, and EOS is for padding, too.
    """
    eos = files.eos_id if eos is None else eos
    eos = -1 if eos is None else eos
    pad = files.pad_id if pad is None else pad
    return {
        "eos_id": eos,
        "pad_id": eos if pad is None else pad,
        "append_eos": not suffix or suffix[-1] != eos,
    }


def _probe(reference: Reference) -> list[list[int]]:
    return [ids.tolist() for ids in reference.encode(FINGERPRINT_TEXTS)]


def _require_same_ids(files: TokenizerFiles, reference: Reference) -> None:
    """Packing takes EOS and padding from the files: they must be what the backend means by them."""
    for token in (files.bos_token, files.eos_token, files.pad_token):
        expected = None if token is None else reference.backend.token_to_id(token)
        if token is not None and files.token_id(token) != expected:
            raise TokenizerError(
                f"tokenizer {files.name!r}: {token!r} has id {files.token_id(token)} by its files "
                f"and {expected} by its backend; expected the same. Save it again with transformers: "
                "save_pretrained(directory)",
                tokenizer=files.name,
            )


def _affixes(reference: Reference) -> tuple[list[int] | None, list[int] | None]:
    try:
        prefix, suffix = reference.affixes()
    except TokenizerError:
        return None, None
    return list(prefix), list(suffix)
