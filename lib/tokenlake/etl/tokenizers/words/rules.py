"""Read from a tokenizer.json how a text is split into independent words.

There are two kinds of tokenizers:

**Split by expressions** (GPT-2, Llama 3 and 4, Qwen, gpt-oss, DeepSeek, Mistral's
tekken). The pre-tokenizer is a sequence of splits, each of which splits the pieces of
the one before, and ends with ByteLevel. The model encodes each piece by itself, without
a look at its neighbours.

**SentencePiece's style** (Llama 2, Mistral, Gemma). There is no pre-tokenizer, or an
idle one, and the model merges neighbours in the whole text. A text can be cut between
two characters that no token of the vocabulary holds side by side:
:mod:`tokenlake.etl.tokenizers.segments` says why.

Everything else raises :class:`UnsupportedError` with the reason.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, Final, final

import orjson

from tokenlake.etl.tokenizers.allowlist import (
    BYTE_TOKENS,
    flat,
    kind_of,
    merge_pairs,
    model_type,
    only_wraps,
    unknown_keys,
)
from tokenlake.etl.tokenizers.files import TokenizerFiles
from tokenlake.etl.tokenizers.words.automaton import Splitter, classes_of, compile_tree
from tokenlake.etl.tokenizers.words.classes import stage_class, symbols_of
from tokenlake.etl.tokenizers.words.expressions import (
    CharacterClass,
    Node,
    Repeat,
    UnsupportedError,
    literal,
    parse,
)
from tokenlake.runtime.tokenizer_guard.caution import reason_for_caution

MARK: Final = "\u2581"
"""The character that SentencePiece writes for a space."""
# The expression of ByteLevel with `use_regex`.
_GPT2: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
_REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
_PUNCTUATION: Final = {"type": "Punctuation", "behavior": "Isolated"}
_PREPEND: Final = {"type": "Prepend", "prepend": MARK}
_BYTE_LEVEL_KEYS: Final = frozenset(
    ("type", "add_prefix_space", "trim_offsets", "use_regex")
)
_SPLIT_KEYS: Final = frozenset(("type", "pattern", "behavior", "invert"))
_METASPACE_KEYS: Final = frozenset(
    ("type", "replacement", "prepend_scheme", "split", "add_prefix_space")
)
# Bytes that occur in UTF-8 outside ASCII.
_WIDE_BYTES: Final = (*range(0x80, 0xC0), *range(0xC2, 0xF5))
_ASCII: Final = 128


@final
@dataclass(frozen=True, slots=True)
class SplitRules:
    """How the texts of a tokenizer are split.

    Attributes:
        splitters: The splits by expressions, in order; empty for a tokenizer of
            SentencePiece's style.
        is_sentencepiece: Whether texts are cut where no token of the vocabulary lies.
        starts_words: For SentencePiece's style: whether every space begins a word,
            whatever the vocabulary holds.
        prefix: Which parts of a text get a space in front: "never" any, "every" one,
            the "first" part of a text.
        only_if_missing: Whether only parts that do not begin with a space get one.
        composes: Whether texts are normalized to NFC.
    """

    splitters: tuple[Splitter, ...]
    is_sentencepiece: bool
    starts_words: bool
    prefix: str
    only_if_missing: bool
    composes: bool

    def model_alone(self, files: TokenizerFiles) -> bytes:
        """Return the tokenizer.json of the same model without any stage around it.

        It encodes one word.
        """
        spec = {
            **files.spec,
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": None,
        }
        # One stage stays: it writes the word in the characters of the vocabulary.
        if self.is_sentencepiece:
            spec["normalizer"] = _REPLACE
        else:
            byte_level = {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": False,
            }
            spec["pre_tokenizer"] = byte_level
            spec["decoder"] = byte_level
        return orjson.dumps(spec)


# Rules by tokenizer.json. A look at the merges of a large vocabulary takes a tenth of a
# second, and the gate, the plan and the engine of a process each need the rules.
_RULES: Final[dict[bytes, SplitRules]] = {}
_MOST_RULES: Final = 4


def objection_to_words(files: TokenizerFiles, *, literal: bool) -> str | None:
    """Return why the words of a tokenizer cannot be cached, or None.

    Args:
        files: The tokenizer.
        literal: Whether special tokens are plain text.
    """
    try:
        _require_known_tokens(files, literal)
        split_rules_of(files)
    except UnsupportedError as error:
        return str(error)
    return None


def split_rules_of(files: TokenizerFiles) -> SplitRules:
    """Return how the texts of a tokenizer are split.

    Raises:
        UnsupportedError: The tokenizer has a part that is not reproduced here.
    """
    rules = _RULES.get(files.json_bytes)
    if rules is None:
        rules = _read(files)
        if len(_RULES) >= _MOST_RULES:
            _RULES.clear()
        _RULES[files.json_bytes] = rules
    return rules


def _read(files: TokenizerFiles) -> SplitRules:
    """Read the rules of a tokenizer.

    Raises:
        UnsupportedError: The tokenizer has a part that is not reproduced here.
    """
    spec = files.spec
    # Such a tokenizer runs in a bounded process, which only encodes and decodes.
    caution = reason_for_caution(spec)
    if caution is not None:
        raise UnsupportedError(caution)
    if model_type(files) != "BPE":
        raise UnsupportedError(
            f"the model is {model_type(files)}, only BPE is supported"
        )
    for reason in unknown_keys(spec, "BPE"):
        raise UnsupportedError(reason)
    if spec["model"].get("dropout"):
        raise UnsupportedError(f"model.dropout is {spec['model']['dropout']}")
    if not only_wraps(spec.get("post_processor")):
        kind = kind_of(spec.get("post_processor"))
        raise UnsupportedError(
            f"the post_processor is {kind} and does more than add tokens around a document"
        )
    # SentencePiece spells unknown characters by tokens of their bytes. ByteLevel has no
    # unknown characters.
    if spec["model"].get("byte_fallback"):
        return _read_sentencepiece(files)
    return _read_splits(files)


def _require_known_tokens(files: TokenizerFiles, literal: bool) -> None:
    """Check that the added tokens are found in a text as `tokenizers` finds them."""
    contents = [token["content"] for token in files.added_tokens]
    if len(set(contents)) != len(contents) or "" in contents:
        raise UnsupportedError("an added token is empty or occurs twice")
    for token in files.added_tokens:
        content = token["content"]
        if files.token_id(content) != token["id"]:
            raise UnsupportedError(
                f"the added token {content!r} has id {token['id']}, `tokenizers` gives it {files.token_id(content)}"
            )
        if not token.get("normalized"):
            continue
        # A token that no text is searched for still keeps others from being found
        # inside it.
        parts = flat(files.spec.get("normalizer"), "normalizers")
        is_composed = unicodedata.is_normalized("NFC", content)
        has_other_parts = any(part["type"] != "NFC" for part in parts)
        is_changed = has_other_parts or (bool(parts) and not is_composed)
        if is_changed and files.matched_tokens(literal=literal):
            raise UnsupportedError(
                f"the added token {content!r} is matched in normalized text"
            )


def _read_splits(files: TokenizerFiles) -> SplitRules:
    """Read a tokenizer that splits by expressions."""
    spec = files.spec
    normalizers = flat(spec.get("normalizer"), "normalizers")
    if normalizers not in ([], [{"type": "NFC"}]):
        raise UnsupportedError(
            f"the normalizer is {kind_of(spec.get('normalizer'))}, expected none or NFC"
        )

    # 1. The last stage writes bytes as characters. Alone it may put a space in front.
    stages = flat(spec.get("pre_tokenizer"), "pretokenizers")
    if not stages or stages[-1].get("type") != "ByteLevel":
        raise UnsupportedError(
            f"the pre_tokenizer is {kind_of(spec.get('pre_tokenizer'))}, it must end with ByteLevel"
        )
    byte_level = stages[-1]
    if not byte_level.keys() <= _BYTE_LEVEL_KEYS:
        raise UnsupportedError("the pre_tokenizer's ByteLevel has unknown keys")
    has_prefix = byte_level.get("add_prefix_space", True)
    if has_prefix and len(stages) > 1:
        raise UnsupportedError("the pre_tokenizer puts a space in front of pieces")

    # 2. The stages before it, and ByteLevel's own expression, split.
    trees = [_tree_of(stage) for stage in stages[:-1]]
    if byte_level.get("use_regex", True):
        trees.append(parse(_GPT2))
    splitters: list[Splitter] = []
    for tree in trees:
        sources = classes_of(tree)
        splitters.append(compile_tree(tree, sources, symbols_of(sources)))
    for stage, splitter in zip(stages, splitters, strict=False):
        # Text between matches is dropped. That equals keeping it if there is none.
        if stage.get("behavior") == "Removed" and not splitter.covers_all:
            raise UnsupportedError("the pre_tokenizer's Split removes text")
    prefix = "never"
    if has_prefix:
        prefix = "every"
    return SplitRules(
        splitters=tuple(splitters),
        is_sentencepiece=False,
        starts_words=False,
        prefix=prefix,
        only_if_missing=True,
        composes=bool(normalizers),
    )


def _tree_of(stage: dict[str, Any]) -> Node:
    """Return the expression of a stage, at whose matches a text is split."""
    # 1. Stages with classes of their own, which are not written as expressions.
    stage_type = stage.get("type")
    if stage_type == "Digits" and stage.keys() <= {"type", "individual_digits"}:
        digit_stage = {"type": "Digits", "individual_digits": True}
        digit = CharacterClass(stage_class(digit_stage))
        if stage.get("individual_digits"):
            return digit
        return Repeat(digit, 1, None)
    if stage_type == "Punctuation" and stage in (
        {"type": "Punctuation"},
        _PUNCTUATION,
    ):
        return CharacterClass(stage_class(_PUNCTUATION))

    # 2. A Split, which must keep its matches as pieces.
    if stage_type != "Split" or not stage.keys() <= _SPLIT_KEYS:
        raise UnsupportedError(
            f"the pre_tokenizer holds {kind_of(stage)}, expected Split, Digits, Punctuation and ByteLevel"
        )
    behavior = stage.get("behavior")
    is_inverted = stage.get("invert", False)
    keeps_matches = behavior == "Isolated" or (behavior == "Removed" and is_inverted)
    if not keeps_matches:
        raise UnsupportedError(
            f"the pre_tokenizer's Split is {behavior}, expected Isolated"
        )
    pattern = stage["pattern"]
    pattern_text = pattern.get("String")
    if pattern_text == "":
        raise UnsupportedError("the pre_tokenizer splits at the empty text")
    if pattern_text is None:
        return parse(pattern["Regex"])
    return literal(pattern_text)


def _read_sentencepiece(files: TokenizerFiles) -> SplitRules:
    """Read a tokenizer that merges neighbours in the whole text."""
    spec = files.spec
    model = spec["model"]
    _require_byte_tokens(model)
    normalizer = flat(spec.get("normalizer"), "normalizers")
    stage = spec.get("pre_tokenizer")

    # 1. The normalizer writes spaces as the mark, and nothing splits: there is no
    #    pre-tokenizer, or one that splits at spaces, of which none is left.
    is_idle = (
        stage is not None
        and stage.get("type") == "Split"
        and stage.get("pattern") == {"String": " "}
    )
    if stage is None or (is_idle and _REPLACE in normalizer):
        if normalizer not in ([_PREPEND, _REPLACE], [_REPLACE]):
            raise UnsupportedError(
                f"the normalizer is {kind_of(spec.get('normalizer'))}, expected Replace"
            )
        prefix = "never"
        if _PREPEND in normalizer:
            prefix = "every"
        return SplitRules(
            splitters=(),
            is_sentencepiece=True,
            starts_words=False,
            prefix=prefix,
            only_if_missing=False,
            composes=False,
        )

    # 2. Metaspace writes the mark, and may split at it.
    if normalizer:
        raise UnsupportedError(
            f"the normalizer is {kind_of(spec.get('normalizer'))} beside a pre_tokenizer"
        )
    is_known = (
        stage.get("type") == "Metaspace"
        and stage.get("replacement") == MARK
        and stage.get("prepend_scheme") in ("first", "always", "never")
        and stage.get("split") in (True, False)
        and stage.keys() <= _METASPACE_KEYS - {"add_prefix_space"}
    )
    if not is_known:
        raise UnsupportedError(
            f"the pre_tokenizer is {kind_of(stage)}, expected none or Metaspace"
        )
    prefix = stage["prepend_scheme"]
    if prefix == "always":
        prefix = "every"
    return SplitRules(
        splitters=(),
        is_sentencepiece=True,
        starts_words=stage["split"],
        prefix=prefix,
        only_if_missing=True,
        composes=False,
    )


def _require_byte_tokens(model: dict[str, Any]) -> None:
    """Check that every character has ids, and that no merge joins bytes."""
    vocab = model["vocab"]
    # 1. ASCII characters are tokens or bytes. A space is written as the mark, for which
    #    no bytes would do.
    for point in range(_ASCII):
        has_token = chr(point) in vocab or f"<0x{point:02X}>" in vocab
        if not has_token and point != ord(" "):
            raise UnsupportedError(
                f"the vocabulary has no token for the character U+{point:04X}"
            )
    if MARK not in vocab:
        raise UnsupportedError("the vocabulary has no token for a space")

    # 2. All others are at least their bytes.
    for byte in _WIDE_BYTES:
        if f"<0x{byte:02X}>" not in vocab:
            raise UnsupportedError(
                f"the vocabulary has no token for the byte {byte:02X}"
            )

    # 3. A merge with the token of a byte would join neighbours across a cut.
    if model.get("ignore_merges"):
        raise UnsupportedError("model.ignore_merges with byte_fallback")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise UnsupportedError("the model marks where words begin or end")
    for pair in merge_pairs(model):
        if not BYTE_TOKENS.isdisjoint(pair):
            raise UnsupportedError("a merge uses a byte token")
        # Joining is only worth its time where the result can begin like a byte token.
        can_be_byte = pair[0][:1] in ("", "<")
        if can_be_byte and "".join(pair) in BYTE_TOKENS:
            raise UnsupportedError("a merge makes a byte token")
