"""What a tokenizer is: its files, and what it does.

Equal files are not enough: a changed backend once dropped BOS in 26 TB of somebody's caches. So the ids of a
fixed set of texts, as the reference gives them today, belong to the identity too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from tokenlake.base.arrays import offsets_of, text_over
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.engines import ReferenceEngine
from tokenlake.etl.tokenizers.files import TokenizerFiles

# Part of every dataset's identity through the behavioural fingerprint: never change it, add a new set.
FINGERPRINT_TEXTS: Final = (
    "",
    " ",
    "Hello world",
    " Hello,  world!\n",
    "It's they're we'll I've I'd I'M CAN'T",
    "def f(x):\n\treturn {x: x ** 2}\r\n",
    "3.14159 1,234,567 0x1F 10000000",
    "na\u00efve caf\u00e9 cafe\u0301 \u00dcber stra\u00dfe",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd "
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2603\ufe0f \U0001f1eb\U0001f1f7",
    "<s> </s> <unk> <|endoftext|> <pad> [CLS] [SEP] [INST] <|im_start|>",
    "\u2581under \u2581\u2581 score",
    "tabs\t\tand\u00a0no-break\u2003em\u3000ideographic \x00\x01\x7f",
    "   leading and trailing   ",
    "a" * 40 + " " * 40 + "=" * 40 + "\n" * 5,
    "https://example.org/a/b?c=d&e=%20f#g user@example.org",
    "\ufeffbom \ufffd \u2028 \u0085 end",
)
_WORDS: Final = "a|Ab|the|don't|I'LL|x's|\u017f|\u01c5|\u02b0|\u0661\u0662|\xb2|12|1234".split("|")  # noqa: SIM905
_GAPS: Final = "| |  |   |\n|\r\n| \n|\n |\t| \t |\xa0|\u3000|\x00|\u200b|\u2581".split("|")  # noqa: SIM905
_SIGNS: Final = ".|'|''|\u2019s|-|--|/|//\n|!?\r\n|$|_|\u3002|\u0301|\u20ac|\U0001f600|<|</s>".split("|")  # noqa: SIM905


def adversarial_texts() -> list[str]:
    """Return about 500 short texts around the borders where pre-tokenizers decide differently."""
    pairs = [left + gap + right for left in _WORDS for gap in _GAPS for right in _WORDS[::3]]
    signs = [f"x{gap}{sign}{gap}y" for sign in _SIGNS for gap in _GAPS] + [
        sign * n for sign in _SIGNS for n in (1, 2, 5, 33)
    ]
    runs = [
        unit * n
        for unit in ("a", "ab", " ", "\n", "0", "=-", "\u4e00", "\u2581", "\t")
        for n in (2, 3, 15, 16, 17, 63, 64, 65, 257)
    ]
    return [*FINGERPRINT_TEXTS, *pairs, *signs, *runs, " ".join(pairs), "".join(signs), "\n".join(runs)]


_SHOWN: Final = 16


def describe(files: TokenizerFiles) -> dict[str, Any]:
    """Return the JSON-able description of a tokenizer; everything but ``name`` and ``revision`` is identity.

    Returns:
        ``name``, ``revision``, ``files`` (name -> sha256), ``probe`` (sha256 of the ids of
        :data:`FINGERPRINT_TEXTS`, literal and with control ids, and of what goes around a document),
        ``probe_ids`` (the first ids, for people), ``prefix`` and ``suffix`` (null when the post-processor
        is not a wrapper), ``vocab_size``, ``bos_id``, ``eos_id``, ``pad_id``.
    """
    reference = ReferenceEngine(files)
    prefix: list[int] | None = None
    suffix: list[int] | None = None
    with suppress(TokenizerError):  # its post-processor is no wrapper
        prefix, suffix = map(list, reference.affixes())
    _require_same_ids(files, reference)
    literal = _probe(reference)
    encode = _probe(reference.with_mode(literal=False))
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


def _probe(reference: ReferenceEngine) -> list[list[int]]:
    # `pa.array` imports pandas (0.25 CPU seconds), for which nothing else of a plan or of `verify` asks.
    texts = [text.encode() for text in FINGERPRINT_TEXTS]
    array = text_over(offsets_of([len(text) for text in texts]), pa.py_buffer(b"".join(texts)))
    return [ids.tolist() for ids in reference.encode(array).rows()]


def _require_same_ids(files: TokenizerFiles, reference: ReferenceEngine) -> None:
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
