"""What a tokenizer is: its files, and what it does.

Equal files are not enough: a changed backend once dropped BOS in 26 TB of somebody's caches. So the ids of a
fixed set of texts, as the reference gives them today, belong to the identity too.
"""

from __future__ import annotations

import hashlib
import json
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
    literal, encode = (_probe(Reference(files, literal=mode)) for mode in (True, False))
    prefix, suffix = _affixes(files)
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


def _probe(reference: Reference) -> list[list[int]]:
    return [ids.tolist() for ids in reference.encode(FINGERPRINT_TEXTS)]


def _affixes(files: TokenizerFiles) -> tuple[list[int] | None, list[int] | None]:
    try:
        prefix, suffix = Reference(files).affixes()
    except TokenizerError:
        return None, None
    return list(prefix), list(suffix)
