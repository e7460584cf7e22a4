"""Describe a tokenizer by its files and by its behaviour.

Equal files are not enough: a changed backend once dropped BOS in 26 TB of somebody's
caches. So the ids that the reference gives to a fixed set of texts belong to the
identity as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Any, Final

import pyarrow as pa

from tokenlake.base.arrays import offsets_of, text_over
from tokenlake.errors import TokenizerError
from tokenlake.etl.tokenizers.backends import ReferenceBackend
from tokenlake.etl.tokenizers.files import TokenizerFiles

# Part of every dataset's identity through the behavioural fingerprint: never change it,
# add a new set.
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
# Words, white space and signs of many kinds: each list has one entry of a kind that a
# pre-tokenizer may treat in its own way.
_WORDS: Final = [
    "a",
    "Ab",
    "the",
    "don't",
    "I'LL",
    "x's",
    "ſ",
    "ǅ",
    "ʰ",
    "١٢",
    "²",
    "12",
    "1234",
]
_GAPS: Final = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    " \n",
    "\n ",
    "\t",
    " \t ",
    "\xa0",
    "\u3000",
    "\x00",
    "\u200b",
    "▁",
]
_SIGNS: Final = [
    ".",
    "'",
    "''",
    "’s",
    "-",
    "--",
    "/",
    "//\n",
    "!?\r\n",
    "$",
    "_",
    "。",
    "́",
    "€",
    "😀",
    "<",
    "</s>",
]
# Numbers of repetitions, around the sizes of blocks that implementations read.
_SIGN_COUNTS: Final = (1, 2, 5, 33)
_RUN_UNITS: Final = ("a", "ab", " ", "\n", "0", "=-", "\u4e00", "\u2581", "\t")
_RUN_COUNTS: Final = (2, 3, 15, 16, 17, 63, 64, 65, 257)


def adversarial_texts() -> list[str]:
    """Return about 500 short texts that pre-tokenizers split differently."""
    # 1. Two words around each kind of white space.
    word_pairs: list[str] = []
    for left_word, gap, right_word in product(_WORDS, _GAPS, _WORDS[::3]):
        word_pairs.append(left_word + gap + right_word)

    # 2. Signs between white space, and repeated.
    sign_texts: list[str] = []
    for sign, gap in product(_SIGNS, _GAPS):
        sign_texts.append(f"x{gap}{sign}{gap}y")
    for sign, repetitions in product(_SIGNS, _SIGN_COUNTS):
        sign_texts.append(sign * repetitions)

    # 3. Long runs of one character or two.
    long_runs: list[str] = []
    for unit, repetitions in product(_RUN_UNITS, _RUN_COUNTS):
        long_runs.append(unit * repetitions)

    # 4. All of these, and each kind as one long text.
    return [
        *FINGERPRINT_TEXTS,
        *word_pairs,
        *sign_texts,
        *long_runs,
        " ".join(word_pairs),
        "".join(sign_texts),
        "\n".join(long_runs),
    ]


# Number of ids in `probe_ids`.
_PROBE_IDS: Final = 16


def describe(files: TokenizerFiles) -> dict[str, Any]:
    """Describe a tokenizer in values of JSON.

    Everything but ``name`` and ``revision`` is its identity.

    Returns:
        A dict with these keys:

        - ``name``, ``revision``: as in :class:`TokenizerFiles`;
        - ``files``: name -> sha256;
        - ``probe``: sha256 of the ids of :data:`FINGERPRINT_TEXTS`, literal and with
          control ids, and of the ids around a document;
        - ``probe_ids``: the first of these ids, for people;
        - ``prefix``, ``suffix``: ids around a document, None if the post-processor does
          more than put ids around it;
        - ``vocab_size``, ``bos_id``, ``eos_id``, ``pad_id``.

    Raises:
        TokenizerError: The tokenizer does not load, or a named token has another id in
            its files than in the backend.
    """
    # 1. The ids around a document.
    reference = ReferenceBackend(files)
    prefix: list[int] | None = None
    suffix: list[int] | None = None
    # A post-processor that does more than put ids around a document has no affixes.
    with suppress(TokenizerError):
        prefix_ids, suffix_ids = reference.affixes()
        prefix = list(prefix_ids)
        suffix = list(suffix_ids)
    _require_same_ids(files, reference)

    # 2. The ids of fixed texts. The JSON form is hashed, so it must never change.
    literal_ids = _probe(reference)
    behaviour = {
        "literal": literal_ids,
        "encode": _probe(reference.with_mode(literal=False)),
        "prefix": prefix,
        "suffix": suffix,
    }
    behaviour_json = json.dumps(behaviour, separators=(",", ":")).encode()

    # 3. The files.
    file_hashes: dict[str, str] = {}
    for file_name, content in files.files.items():
        file_hashes[file_name] = hashlib.sha256(content).hexdigest()
    return {
        "name": files.name,
        "revision": files.revision,
        "files": file_hashes,
        "probe": hashlib.sha256(behaviour_json).hexdigest(),
        "probe_ids": list(chain.from_iterable(literal_ids))[:_PROBE_IDS],
        "prefix": prefix,
        "suffix": suffix,
        "vocab_size": files.vocab_size,
        "bos_id": files.bos_id,
        "eos_id": files.eos_id,
        "pad_id": files.pad_id,
    }


def identity(description: dict[str, Any]) -> dict[str, Any]:
    """Return the part of :func:`describe` that is identity."""
    parts = dict(description)
    # The name that a user gave, and the commit of equal files.
    parts.pop("name", None)
    parts.pop("revision", None)
    return parts


def special_ids(
    files: TokenizerFiles,
    suffix: Sequence[int] | None,
    eos: int | None,
    pad: int | None,
) -> dict[str, Any]:
    """Return the ids of EOS and padding in a build, and whether packing appends EOS.

    Args:
        files: Tokenizer.
        suffix: Ids that the post-processor puts after a document; None if it adds none.
        eos: Id of EOS that the configuration requests. Default: that of the tokenizer.
        pad: Id of padding that the configuration requests. Default: that of the
            tokenizer, otherwise that of EOS.

    Returns:
        ``eos_id``, -1 for none; ``pad_id``; and ``append_eos``, a bool: False if the
        post-processor ends a document with EOS already.
    """
    # The configuration, the tokenizer, and for padding EOS, in this order.
    if eos is None:
        eos = files.eos_id
    if eos is None:
        eos = -1
    if pad is None:
        pad = files.pad_id
    if pad is None:
        pad = eos
    return {"eos_id": eos, "pad_id": pad, "append_eos": not suffix or suffix[-1] != eos}


def _probe(reference: ReferenceBackend) -> list[list[int]]:
    """Return the ids of each of :data:`FINGERPRINT_TEXTS`."""
    # `pa.array` imports pandas (0.25 CPU seconds), which nothing else of a plan or of
    # `verify` needs.
    contents = [text.encode() for text in FINGERPRINT_TEXTS]
    offsets = offsets_of([len(content) for content in contents])
    array = text_over(offsets, pa.py_buffer(b"".join(contents)))
    return [ids.tolist() for ids in reference.encode(array).rows()]


def _require_same_ids(files: TokenizerFiles, reference: ReferenceBackend) -> None:
    """Check that the backend gives the named tokens the ids of the files.

    Packing takes EOS and padding from the files.

    Raises:
        TokenizerError: An id differs.
    """
    for token in (files.bos_token, files.eos_token, files.pad_token):
        if token is None:
            continue
        expected = reference.library.token_to_id(token)
        if files.token_id(token) != expected:
            raise TokenizerError(
                f"tokenizer {files.name!r}: {token!r} has id {files.token_id(token)} by its files "
                f"and {expected} by its backend; expected the same. Save it again with transformers: "
                "save_pretrained(directory)",
                tokenizer=files.name,
            )
