"""Allow-list of tokenizer.json files for the fast backends, and guarded code points.

gigatoken also loads files whose features it ignores (a null pre-tokenizer, extra
stages, dropout, single_word ...) and is then silently wrong. So this list holds the
forms that were verified to be equal. It is stricter than the loader of gigatoken: every
key of every part must have a known value. Other files go to the reference, with the
reason.

gigatoken's Unicode tables are newer than those of `tokenizers`: a code point that one
of them takes for a letter and the other for nothing splits words differently. Documents
that hold such a code point are encoded by the reference.

How they were found: `benchmarks/unicode_sweep.py` puts every code point from U+0080 on,
assigned or not, into contexts at the borders of words, numbers, punctuation, white
space, contractions and combining marks, and encodes them with both backends and a
tokenizer whose merges show every split. Last run with gigatoken 0.10.0 and tokenizers
0.23.3:

- :data:`SPLITTING`: letters, digits and marks that Unicode 17 added and gigatoken's
  tables already know. The union over the forms of the allow-list; the SentencePiece
  forms do not use Unicode tables, and a sweep of Llama 2 found no difference.
- :data:`COMPOSING`, for tokenizers with NFC: marks younger than Unicode 9, where the
  normalization tables of `tokenizers` end, and the blocks that got new compositions
  since. With both lists guarded, three million random strings of marks and composable
  characters gave equal ids.

Run the sweep again with every new version of either backend, and extend the lists;
never shorten them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int64, taken, values
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters
from tokenlake.runtime.tokenizer_guard.caution import model_caution

# The character that SentencePiece writes for a space.
_SPACE: Final = "\u2581"
# Parts that several of the expressions share.
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
BYTE_LEVEL_ALPHABET: Final = frozenset(byte_characters())
_TOP_KEYS: Final = frozenset(
    {
        "version",
        "truncation",
        "padding",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
    }
    | {"decoder", "model"}
)
_MODEL_KEYS: Final = {
    "BPE": frozenset(
        {
            "type",
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "fuse_unk",
        }
        | {"byte_fallback", "ignore_merges", "vocab", "merges"}
    ),
    "WordPiece": frozenset(
        (
            "type",
            "unk_token",
            "continuing_subword_prefix",
            "max_input_chars_per_word",
            "vocab",
        )
    ),
    "Unigram": frozenset(("type", "unk_id", "vocab", "byte_fallback")),
}
# Normalizers that change a character, or one and the marks on it, whatever else is
# around.
_IN_WORDS: Final = frozenset(
    ("Precompiled", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")
)
# Keys that this release knows. Any other key may change ids.
_ADDED_TOKEN_KEYS: Final = frozenset(
    ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
)
# An added token that NFC cannot make of other text.
_BRACKETED: Final = re.compile(r"<.*[A-Za-z0-9].*>", re.DOTALL)
_BYTE_LEVEL_KEYS: Final = frozenset(
    {"type", "add_prefix_space", "trim_offsets", "use_regex"}
)
BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


# Results of `objection`: a look at 60,000 merges takes 0.1 CPU seconds, and a build
# needs the result several times.
_RESULTS: Final[dict[tuple[bytes, str, bool], str | None]] = {}
_MOST_RESULTS: Final = 8


def model_type(files: TokenizerFiles) -> str:
    """Return the type of the model, "BPE" if tokenizer.json does not name one."""
    return files.spec["model"].get("type", "BPE")


def objection(
    files: TokenizerFiles, backend: str = "gigatoken", *, literal: bool
) -> str | None:
    """Return why a fast backend cannot be trusted with a tokenizer, or None.

    Args:
        files: Tokenizer.
        backend: Name of the backend, "gigatoken" or "segments".
        literal: Whether strings of special tokens are plain text, so that the backend
            does not get their entries.
    """
    # The vocabulary is large, so the result is computed once per tokenizer and process.
    result_key = (files.json_bytes, backend, literal)
    # Another thread may clear the results at any time.
    with suppress(KeyError):
        return _RESULTS[result_key]
    if len(_RESULTS) >= _MOST_RESULTS:
        _RESULTS.clear()
    reason = next(_objections(files, backend, literal), None)
    _RESULTS[result_key] = reason
    return reason


def _objections(files: TokenizerFiles, backend: str, literal: bool) -> Iterator[str]:
    """Yield every reason against a tokenizer, everything that is not on the list.

    The shape of tokenizer.json was checked before.
    """
    spec = files.spec
    model = spec["model"]
    model_name = model_type(files)
    caution = model_caution(spec)
    if caution is not None:
        yield caution
        return
    if model_name != "BPE" and (
        backend == "gigatoken" or model_name not in _MODEL_KEYS
    ):
        yield f"the model is {model_name}, only BPE is supported"
        return

    # 1. The model, with its normalizer and pre-tokenizer.
    yield from unknown_keys(spec, model_name)
    if model_name == "WordPiece":
        yield from _word_piece_objections(spec)
    elif model_name == "Unigram":
        yield from _unigram_objections(spec, files.matched_tokens(literal=literal))
    else:
        yield from _model_objections(model)
        if model.get("byte_fallback"):
            yield from _sentencepiece_objections(spec)
        elif backend == "segments":
            yield "it is not in the style of SentencePiece (byte fallback, no pre-tokenizer)"
        else:
            yield from _byte_level_objections(spec)

    # 2. The stages that all models share.
    yield from _added_token_objections(files, literal)
    if not only_wraps(spec.get("post_processor")):
        yield (
            f"the post_processor is {kind_of(spec.get('post_processor'))} and does more than add tokens around a "
            "document"
        )


def _word_piece_objections(spec: dict[str, Any]) -> Iterator[str]:
    """Yield reasons against the stages around a WordPiece model."""
    normalizer = spec.get("normalizer")
    stage = spec.get("pre_tokenizer")
    if normalizer is not None and normalizer.get("type") != "BertNormalizer":
        yield f"the normalizer is {kind_of(normalizer)}, expected none or BertNormalizer"
    if stage != {"type": "BertPreTokenizer"}:
        yield f"the pre_tokenizer is {kind_of(stage)}, expected BertPreTokenizer"


def _unigram_objections(spec: dict[str, Any], added: list[str]) -> Iterator[str]:
    """Yield reasons against the stages around a Unigram model.

    Args:
        spec: Parsed tokenizer.json.
        added: Added tokens that a text is searched for.
    """
    for part in flat(spec.get("normalizer"), "normalizers"):
        is_harmless_replace = part["type"] == "Replace" and _keeps_spaces(part)
        if part["type"] not in _IN_WORDS and not is_harmless_replace:
            yield f"the normalizer holds {kind_of(part)}, not a known form that separates words"
    stages = flat(spec.get("pre_tokenizer"), "pretokenizers")
    *before, metaspace = stages or [{}]
    is_known_start = before in ([], [{"type": "WhitespaceSplit"}])
    if not is_known_start or not _is_splitting(metaspace):
        yield f"the pre_tokenizer is {kind_of(spec.get('pre_tokenizer'))}, expected Metaspace that splits"
    elif added and metaspace.get("prepend_scheme") == "first":
        yield "the pre_tokenizer puts a space before the first piece between added tokens"


def flat(stage: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the members of a stage of tokenizer.json.

    Args:
        stage: Stage, a sequence of others or one alone; None for no stage.
        key: Key of the members of a sequence.
    """
    if stage is None:
        return []
    if stage["type"] == "Sequence":
        return stage[key]
    return [stage]


def _keeps_spaces(part: dict[str, Any]) -> bool:
    """Whether a Replace does not move the borders of words.

    It must replace spaces by a space, or no space at all.
    """
    pattern = part["pattern"]
    content = part["content"]
    replaces_spaces = (
        pattern == {"Regex": " {2,}"} or pattern.get("String", "x").strip(" ") == ""
    )
    if replaces_spaces:
        return content in (" ", _SPACE)
    if "Regex" in pattern:
        return False
    characters = pattern["String"] + content
    return " " not in characters and _SPACE not in characters


def _is_splitting(stage: dict[str, Any]) -> bool:
    """Whether a stage is a Metaspace that splits at every mark."""
    known_keys = {"type", "replacement", "prepend_scheme", "split", "add_prefix_space"}
    return (
        stage.get("type") == "Metaspace"
        and stage.get("replacement") == _SPACE
        and stage.get("split", True) is True
        and stage.keys() <= known_keys
    )


def unknown_keys(spec: dict[str, Any], model_name: str) -> Iterator[str]:
    """Yield the keys that this release does not know: they may change ids."""
    added: list[dict[str, Any]] = spec.get("added_tokens") or []
    objects = [
        ("tokenizer.json", spec, _TOP_KEYS),
        ("model", spec["model"], _MODEL_KEYS[model_name]),
    ]
    for token in added:
        objects.append(("an added token", token, _ADDED_TOKEN_KEYS))
    for object_name, json_object, known_keys in objects:
        if not json_object.keys() <= known_keys:
            yield f"{object_name} has the unknown keys {sorted(json_object.keys() - known_keys)}"


def _model_objections(model: dict[str, Any]) -> Iterator[str]:
    """Yield reasons against a BPE model."""
    if "unk_id" in model or "max_input_chars_per_word" in model:
        yield "the model has no type and is not like BPE"
    if model.get("dropout"):
        yield f"model.dropout is {model['dropout']}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            yield f"model.{key} is {model[key]!r}"
    # Texts can be compared as they are, which saves splitting them.
    merges = model["merges"]
    if not all(isinstance(merge, str) for merge in merges):
        merges = [tuple(pair) for pair in merge_pairs(model)]
    if len(set(merges)) != len(merges):
        yield "model.merges holds a pair twice"
    ids = model["vocab"].values()
    if len(set(ids)) != len(ids):
        yield "model.vocab gives an id to two tokens"


def merge_pairs(model: dict[str, Any]) -> list[list[str]]:
    """Return the merges of a model as lists of tokens, in order of rank.

    A tokenizer.json holds each one as "left right" or as ["left", "right"].
    """
    pairs: list[list[str]] = []
    for merge in model["merges"]:
        if isinstance(merge, str):
            pairs.append(merge.split(" "))
        else:
            pairs.append(merge)
    return pairs


def _byte_level_objections(spec: dict[str, Any]) -> Iterator[str]:
    """Yield reasons against the vocabulary and the stages of byte-level BPE."""
    missing = BYTE_LEVEL_ALPHABET - spec["model"]["vocab"].keys()
    if missing:
        yield f"the vocabulary lacks {len(missing)} of the 256 byte tokens"
    foreign = _foreign_merge(spec["model"])
    if foreign is not None:
        yield f"a merge makes {foreign!r}, which is not byte-level text"
    normalizer = spec.get("normalizer")
    if normalizer not in (None, {"type": "NFC"}):
        yield f"the normalizer is {kind_of(normalizer)}, expected none or NFC"
    if not _is_known_split(spec.get("pre_tokenizer")):
        yield f"the pre_tokenizer is {kind_of(spec.get('pre_tokenizer'))}, not a form known to be equal"


def _foreign_merge(model: dict[str, Any]) -> str | None:
    """Return the first token made by a merge that is not byte-level text, or None."""
    # 1. All letters at once, because a loop over 60,000 merges takes 30 times as long.
    merges = model["merges"]
    texts = [merge for merge in merges if isinstance(merge, str)]
    pairs = [merge for merge in merges if not isinstance(merge, str)]
    letters = set("".join(texts)) - {" "}
    letters.update("".join(chain.from_iterable(pairs)))
    if BYTE_LEVEL_ALPHABET.issuperset(letters):
        return None

    # 2. Only for the message: the token with a foreign letter.
    for pair in merge_pairs(model):
        token = "".join(pair)
        if not BYTE_LEVEL_ALPHABET.issuperset(token):
            return token
    return None


def _is_known_split(stage: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer is ByteLevel, alone or after a known expression."""
    if stage is None:
        return False
    if stage.get("type") == "ByteLevel":
        return _is_byte_level(stage, use_regex=True)
    if stage.keys() != {"type", "pretokenizers"} or len(stage["pretokenizers"]) != 2:
        return False
    split, byte_level = stage["pretokenizers"]
    known_patterns = [{"Regex": regex} for regex in SPLIT_REGEXES.values()]
    return (
        split.get("type") == "Split"
        and split.keys() <= {"type", "pattern", "behavior", "invert"}
        and split.get("pattern") in known_patterns
        and split.get("behavior") == "Isolated"
        and split.get("invert", False) is False
        and _is_byte_level(byte_level, use_regex=False)
    )


def _is_byte_level(stage: dict[str, Any], *, use_regex: bool) -> bool:
    """Whether a stage is ByteLevel that puts no space in front of a text."""
    return (
        stage.get("type") == "ByteLevel"
        and stage.keys() <= _BYTE_LEVEL_KEYS
        and stage.get("use_regex", True) is use_regex
        and stage.get("add_prefix_space") is False
    )


def _sentencepiece_objections(spec: dict[str, Any]) -> Iterator[str]:
    """Yield reasons against the vocabulary and the stages of SentencePiece's style."""
    # 1. The vocabulary: every byte is a token, which no merge joins.
    model = spec["model"]
    missing = BYTE_TOKENS - model["vocab"].keys()
    if missing:
        yield f"the vocabulary lacks {len(missing)} of the 256 byte tokens"
    if model.get("ignore_merges"):
        yield "model.ignore_merges with byte_fallback"
    pairs = merge_pairs(model)
    if not BYTE_TOKENS.isdisjoint(chain.from_iterable(pairs)):
        yield "a merge uses a byte token"
    # Joining is only worth its time where the result can begin like a byte token.
    candidates = ["".join(pair) for pair in pairs if pair[0][:1] in ("", "<")]
    if not BYTE_TOKENS.isdisjoint(candidates):
        yield "a merge makes a byte token"

    # 2. Spaces become marks: by the normalizer alone, or by Metaspace alone.
    normalizer = spec.get("normalizer")
    stage = spec.get("pre_tokenizer")
    prepend = {"type": "Prepend", "prepend": _SPACE}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    with_prefix = {"type": "Sequence", "normalizers": [prepend, replace]}
    if stage is None:
        if normalizer not in (with_prefix, replace):
            yield f"the normalizer is {kind_of(normalizer)}, not a form known to be equal"
    elif normalizer is not None:
        yield f"the normalizer is {kind_of(normalizer)} beside a pre_tokenizer"
    elif not _is_known_metaspace(stage):
        yield f"the pre_tokenizer is {kind_of(stage)}, not a form known to be equal"


def _is_known_metaspace(stage: dict[str, Any]) -> bool:
    """Whether a stage is a Metaspace whose options are known."""
    return (
        stage.get("type") == "Metaspace"
        and stage.get("replacement") == _SPACE
        and stage.get("prepend_scheme") in ("first", "always", "never")
        and stage.get("split") in (True, False)
        and stage.keys() <= {"type", "replacement", "prepend_scheme", "split"}
    )


def only_wraps(stage: dict[str, Any] | None) -> bool:
    """Whether a post-processor does not change the ids of a document.

    It acts even where no special tokens are added.
    """
    if stage is None or stage.get("type") in (
        "ByteLevel",
        "BertProcessing",
        "RobertaProcessing",
    ):
        return True
    if stage.get("type") == "Sequence":
        return all(only_wraps(member) for member in stage["processors"])
    if stage.get("type") != "TemplateProcessing":
        return False
    # The text occurs once among the pieces of a template.
    text_pieces = [piece for piece in stage.get("single", ()) if "Sequence" in piece]
    return len(text_pieces) == 1


def _added_token_objections(files: TokenizerFiles, literal: bool) -> Iterator[str]:
    """Yield reasons against the added tokens.

    Args:
        files: Tokenizer.
        literal: Whether special tokens are plain text, so that the backend does not get
            their entries.
    """
    spec = files.spec
    added = files.added_tokens
    contents = [token["content"] for token in added]
    if len(set(contents)) != len(contents) or "" in contents:
        yield "an added token is empty or occurs twice"
    for token in added:
        token_id = files.token_id(token["content"])
        if token_id != token["id"]:
            yield f"the added token {token['content']!r} has id {token['id']}, `tokenizers` gives it {token_id}"

    # The tokens that a text is searched for.
    matched = [token for token in added if not (literal and token.get("special"))]
    for token in matched:
        for flag in ("single_word", "lstrip", "rstrip"):
            if token.get(flag):
                yield f"the added token {token['content']!r} has {flag}"
        if token.get("normalized") and spec.get("normalizer") is not None:
            yield f"the added token {token['content']!r} is matched in normalized text"
        # gigatoken also finds an added token that is a whole word of normalized text;
        # only NFC can make one.
        is_composed = spec.get("normalizer") == {"type": "NFC"}
        if is_composed and not _BRACKETED.fullmatch(token["content"]):
            yield f"the added token {token['content']!r} could be made by NFC"
    if matched:
        yield from _overlaps(contents)


def _overlaps(contents: list[str]) -> Iterator[str]:
    """Yield the first pair of tokens that can overlap in a text.

    The backends differ in the token that wins. A token overlaps another one that lies
    inside it, or that begins with its end.
    """
    # Each proper beginning of a token, with the token: the end of another is looked up.
    prefixes: dict[str, str] = {}
    for token in contents:
        for length in range(1, len(token)):
            prefixes[token[:length]] = token
    tokens = set(contents)

    for token in contents:
        for start in range(len(token)):
            for stop in range(start + 1, len(token) + 1):
                part = token[start:stop]
                if part != token and part in tokens:
                    yield f"the added token {token!r} overlaps {part!r}"
                    return
                is_end = start > 0 and stop == len(token)
                if is_end and part in prefixes:
                    yield f"the added token {token!r} overlaps {prefixes[part]!r}"
                    return


def kind_of(stage: dict[str, Any] | None) -> str:
    """Return the type of a stage and of its members: "Sequence[NFC, Lowercase]"."""
    if stage is None:
        return "missing"
    members = (
        stage.get("normalizers")
        or stage.get("pretokenizers")
        or stage.get("processors")
    )
    if not members:
        return str(stage.get("type"))
    member_types = ", ".join(kind_of(member) for member in members)
    return f"{stage.get('type')}[{member_types}]"


Ranges = tuple[tuple[int, int], ...]


def _ranges(words: str) -> Ranges:
    """Read code points and ranges of them, in hexadecimal."""
    ranges: list[tuple[int, int]] = []
    for word in words.split():
        first_point, _, last_point = word.partition("-")
        ranges.append((int(first_point, 16), int(last_point or first_point, 16)))
    return tuple(ranges)


SPLITTING: Final = _ranges(
    "88F C5C CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB "
    "11B60-11B67 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E "
    "18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)

COMPOSING: Final = _ranges(
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ACE 1DF6-1DFA A82C 105C0-105FF 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11380-113FF 1145E "
    "11839-1183A 11900-1195F 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 16100-1613F "
    "16D40-16D7F 16FF0-16FF1 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF"
)


_NO_ROWS: Final = np.empty(0, np.int64)


@final
class UnicodeGuard:
    """Find the documents with a code point on which the backends disagree.

    Args:
        files: Tokenizer.
        backend: Name of the fast backend. "words" reads its character classes from
            `tokenizers`, so no code point is guarded.

    Attributes:
        ranges: First and last code point of each range that is guarded.
    """

    def __init__(self, files: TokenizerFiles, backend: str = "gigatoken") -> None:
        # SentencePiece forms do not use Unicode tables, and only NFC composes.
        has_byte_tokens = files.spec["model"].get("byte_fallback")
        is_byte_level = model_type(files) == "BPE" and not has_byte_tokens
        self.ranges: Ranges = ()
        if is_byte_level and backend != "words":
            self.ranges = SPLITTING
            if files.spec.get("normalizer") is not None:
                self.ranges = (*SPLITTING, *COMPOSING)
        class_ranges = ""
        for first_point, last_point in self.ranges:
            class_ranges += f"\\x{{{first_point:x}}}-\\x{{{last_point:x}}}"
        self._class = f"[{class_ranges}]"

    def rows(self, text: pa.LargeStringArray) -> Int64:
        """Return the rows that the fast backend must not see: int64[k], ascending.

        It reads 0.7 GB of text per second.
        """
        if not self.ranges:
            return _NO_ROWS
        non_ascii = np.flatnonzero(~values(pc.string_is_ascii(text)))
        if not non_ascii.size:
            return non_ascii
        # Taking rows copies them, which is not needed for all of them: a long document
        # is alone in its batch.
        if len(non_ascii) < len(text):
            text = taken(text, non_ascii)
        return non_ascii[values(pc.match_substring_regex(text, self._class))]


def is_sentencepiece(files: TokenizerFiles) -> bool:
    """Whether a tokenizer on the allow-list is BPE of SentencePiece's style."""
    return bool(files.spec["model"].get("byte_fallback"))
