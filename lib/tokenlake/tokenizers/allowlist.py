"""Which tokenizer.json files gigatoken really supports.

gigatoken also loads files whose features it ignores (a null pre-tokenizer, extra stages, dropout, single_word
...) and is then silently wrong. So this is a list of what was verified equal, stricter than its loader: every
key of every part must have a known value. What is not on it goes to the reference, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tokenlake.tokenizers.files import TokenizerFiles

_SPACE: Final = "\u2581"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

SPLIT_REGEXES: Final = {
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_TAIL}",
    "qwen-2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_TAIL}",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
BYTE_LEVEL_ALPHABET: Final = frozenset(
    [chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))]
    + [chr(256 + n) for n in range(68)]
)
_TOP_KEYS: Final = frozenset(
    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor"}
    | {"decoder", "model"}
)
_MODEL_KEYS: Final = frozenset(
    {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"}
    | {"byte_fallback", "ignore_merges", "vocab", "merges"}
)
_ADDED_TOKEN_KEYS: Final = frozenset(
    ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
)
_BRACKETED: Final = re.compile(r"<.*[A-Za-z0-9].*>", re.DOTALL)
_BYTE_LEVEL_KEYS: Final = frozenset({"type", "add_prefix_space", "trim_offsets", "use_regex"})
BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def objection(files: TokenizerFiles, *, literal: bool) -> str | None:
    """Return why gigatoken cannot be trusted with a tokenizer, or None.

    Args:
        files: the tokenizer.
        literal: special tokens' strings are plain text, so their entries are not given to gigatoken.
    """
    return next(_objections(files, literal), None)


def _objections(files: TokenizerFiles, literal: bool) -> Iterator[str]:
    """Yield everything that is not on the list; tokenizer.json's shape itself was checked by `tokenizers`."""
    spec, model = files.spec, files.spec["model"]
    if model.get("type", "BPE") != "BPE":
        yield f"the model is {model['type']}, only BPE is supported"
        return
    yield from _unknown_keys(spec)
    yield from _model_objections(model)
    if model.get("byte_fallback"):
        yield from _sentencepiece_objections(spec)
    else:
        yield from _byte_level_objections(spec)
    yield from _added_token_objections(files, literal)
    if not only_wraps(spec.get("post_processor")):
        yield f"the post_processor is {_kind(spec.get('post_processor'))} and does more than wrap a document"


def _unknown_keys(spec: dict[str, Any]) -> Iterator[str]:
    """Yield keys that this release has not heard of: they may mean something."""
    added: list[dict[str, Any]] = spec.get("added_tokens") or []
    parts = [("tokenizer.json", spec, _TOP_KEYS), ("model", spec["model"], _MODEL_KEYS)]
    parts += [("an added token", token, _ADDED_TOKEN_KEYS) for token in added]
    for where, part, known in parts:
        if not part.keys() <= known:
            yield f"{where} has the unknown keys {sorted(part.keys() - known)}"


def _model_objections(model: dict[str, Any]) -> Iterator[str]:
    if "unk_id" in model or "max_input_chars_per_word" in model:
        yield "the model has no type and does not look like BPE"
    if model.get("dropout"):
        yield f"model.dropout is {model['dropout']}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            yield f"model.{key} is {model[key]!r}"
    merges = model["merges"]
    if not all(isinstance(merge, str) for merge in merges):
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    if len(set(merges)) != len(merges):
        yield "model.merges holds a pair twice"
    ids = list(model["vocab"].values())
    if len(set(ids)) != len(ids):
        yield "model.vocab gives an id to two tokens"


def _byte_level_objections(spec: dict[str, Any]) -> Iterator[str]:
    missing = BYTE_LEVEL_ALPHABET - spec["model"]["vocab"].keys()
    if missing:
        yield f"the vocabulary lacks {len(missing)} of the 256 byte tokens"
    merges = spec["model"]["merges"]
    letters = set("".join(merge if isinstance(merge, str) else "".join(merge) for merge in merges))
    if not BYTE_LEVEL_ALPHABET.issuperset(letters - {" "}) or any(
        " " in part for merge in merges if not isinstance(merge, str) for part in merge
    ):
        foreign = next(
            token for token in _merged_tokens(spec["model"]) if not BYTE_LEVEL_ALPHABET.issuperset(token)
        )
        yield f"a merge makes {foreign!r}, which is not byte-level text"
    normalizer = spec.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        yield f"the normalizer is {_kind(normalizer)}, expected none or NFC"
    if not _is_known_split(spec.get("pre_tokenizer")):
        yield f"the pre_tokenizer is {_kind(spec.get('pre_tokenizer'))}, not a form known to be equal"


def _is_known_split(stage: dict[str, Any] | None) -> bool:
    if stage is None:
        return False
    if stage.get("type") == "ByteLevel":
        return _is_byte_level(stage, use_regex=True)
    if stage.keys() != {"type", "pretokenizers"} or len(stage["pretokenizers"]) != 2:
        return False
    split, byte_level = stage["pretokenizers"]
    return (
        split.get("type") == "Split"
        and split.keys() <= {"type", "pattern", "behavior", "invert"}
        and split.get("pattern") in [{"Regex": regex} for regex in SPLIT_REGEXES.values()]
        and split.get("behavior") == "Isolated"
        and split.get("invert", False) is False
        and _is_byte_level(byte_level, use_regex=False)
    )


def _is_byte_level(stage: dict[str, Any], *, use_regex: bool) -> bool:
    return (
        stage.get("type") == "ByteLevel"
        and stage.keys() <= _BYTE_LEVEL_KEYS
        and stage.get("use_regex", True) is use_regex
        and stage.get("add_prefix_space") is False
    )


def _sentencepiece_objections(spec: dict[str, Any]) -> Iterator[str]:
    model = spec["model"]
    missing = BYTE_TOKENS - model["vocab"].keys()
    if missing:
        yield f"the vocabulary lacks {len(missing)} of the 256 byte tokens"
    if model.get("ignore_merges"):
        yield "model.ignore_merges with byte_fallback"
    if BYTE_TOKENS & {
        part for merge in model["merges"] for part in (merge.split(" ") if isinstance(merge, str) else merge)
    }:
        yield "a merge uses a byte token"
    if not BYTE_TOKENS.isdisjoint(_merged_tokens(model)):
        yield "a merge makes a byte token"
    normalizer, stage = spec.get("normalizer"), spec.get("pre_tokenizer")
    prepend = {"type": "Prepend", "prepend": _SPACE}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    if stage is None:
        if normalizer not in ({"type": "Sequence", "normalizers": [prepend, replace]}, replace):
            yield f"the normalizer is {_kind(normalizer)}, not a form known to be equal"
    elif normalizer is not None:
        yield f"the normalizer is {_kind(normalizer)} beside a pre_tokenizer"
    elif not _is_known_metaspace(stage):
        yield f"the pre_tokenizer is {_kind(stage)}, not a form known to be equal"


def _is_known_metaspace(stage: dict[str, Any]) -> bool:
    return (
        stage.get("type") == "Metaspace"
        and stage.get("replacement") == _SPACE
        and stage.get("prepend_scheme") in ("first", "always", "never")
        and stage.get("split") in (True, False)
        and stage.keys() <= {"type", "replacement", "prepend_scheme", "split"}
    )


def only_wraps(stage: dict[str, Any] | None) -> bool:
    """Whether a post-processor leaves a document's own ids alone (it acts on them even without specials)."""
    if stage is None or stage.get("type") in ("ByteLevel", "BertProcessing", "RobertaProcessing"):
        return True
    if stage.get("type") == "Sequence":
        return all(map(only_wraps, stage["processors"]))
    single = stage.get("single", ())
    return stage.get("type") == "TemplateProcessing" and sum("Sequence" in piece for piece in single) == 1


def _added_token_objections(files: TokenizerFiles, literal: bool) -> Iterator[str]:
    spec = files.spec
    added = files.added_tokens
    contents = [token["content"] for token in added]
    if len(set(contents)) != len(contents) or "" in contents:
        yield "an added token is empty or there twice"
    for token in added:
        given = files.token_id(token["content"])
        if given != token["id"]:
            yield f"the added token {token['content']!r} has id {token['id']}, `tokenizers` gives it {given}"
    kept = [token for token in added if not (literal and token.get("special"))]
    for token in kept:
        for flag in ("single_word", "lstrip", "rstrip"):
            if token.get(flag):
                yield f"the added token {token['content']!r} has {flag}"
        if token.get("normalized") and spec.get("normalizer") is not None:
            yield f"the added token {token['content']!r} is matched in normalized text"
        # gigatoken also takes a word equal to an added token for it; only NFC makes one that raw text lacks.
        if spec.get("normalizer") == {"type": "NFC"} and not _BRACKETED.fullmatch(token["content"]):
            yield f"the added token {token['content']!r} could be made by NFC"
    if kept:
        yield from _overlaps(contents)


def _overlaps(contents: list[str]) -> Iterator[str]:
    """Yield pairs of tokens that can overlap in a text: which one wins differs between the engines."""
    prefixes = {token[:length]: token for token in contents for length in range(1, len(token))}
    whole = set(contents)
    for token in contents:
        for start in range(len(token)):
            for length in range(1, len(token) - start + 1):
                part = token[start : start + length]
                inside = part != token and part in whole
                if inside or (start and start + length == len(token) and part in prefixes):
                    yield f"the added token {token!r} overlaps {part if inside else prefixes[part]!r}"
                    return


def _merged_tokens(model: dict[str, Any]) -> Iterator[str]:
    for merge in model["merges"]:
        yield "".join(merge.split(" ") if isinstance(merge, str) else merge)


def _kind(stage: dict[str, Any] | None) -> str:
    if stage is None:
        return "missing"
    inner = stage.get("normalizers") or stage.get("pretokenizers") or stage.get("processors")
    return f"{stage.get('type')}[{', '.join(map(_kind, inner))}]" if inner else str(stage.get("type"))
