"""Files that tokenizers 1.0 encodes and decodes as the generation before it does.

tokenizers 1.0 recognizes the regular expressions of well-known models by their form,
and has code for each of them. It refuses some files. It loads others and then gives
other ids: ``\\p{N}{1,2}`` is taken for ``\\p{N}{1,3}``, and the prefix and the suffix
of BPE pieces are ignored. So a file is used only if its parts are of the forms that
were compared (`benchmarks/check_ids.py`, `tests/tokenizers/test_generations.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.runtime.tokenizer_guard.byte_alphabet import byte_characters
from tokenlake.runtime.tokenizer_guard.generation import GPT2_EXPRESSIONS
from tokenlake.runtime.tokenizer_guard.growth import parts_of
from tokenlake.runtime.tokenizer_guard.shape import shown, walk

# Parts of the expressions of published models.
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGN: Final = r"[^\r\n\p{L}\p{N}]?"

COMPARED_EXPRESSIONS: Final = frozenset(
    (
        *GPT2_EXPRESSIONS,
        # Llama 3 and 4, GLM 4
        rf"{_CONTRACTIONS}|{_SIGN}\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}",
        # Qwen 2 and 3
        rf"{_CONTRACTIONS}|{_SIGN}\p{{L}}+|\p{{N}}|{_TAIL}",
        # gpt-oss
        rf"{_SIGN}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_SIGN}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|"
        + _SLASH_TAIL,
        # Mistral's tekken
        rf"{_SIGN}{_UPPER}*{_LOWER}+|{_SIGN}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}",
        # DeepSeek V3 and V4: three stages
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        # T5 and XLM-RoBERTa, in their normalizers
        " {2,}",
    )
)
"""Regular expressions that were compared."""
_VERSION: Final = "1.0"
_BYTE_LETTERS: Final = frozenset(
    letter for letter in byte_characters() if not letter.isascii()
)
"""Letters outside ASCII that spell bytes in byte-level tokens."""


def why_not_fast(spec: Mapping[str, Any]) -> str | None:
    """Return the reason why tokenizers 1.0 must not run a tokenizer; None if it may.

    Args:
        spec: Parsed tokenizer.json, whose shape has been checked.
    """
    return next(_reasons(spec), None)


def _reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons against tokenizers 1.0, the cheapest checks first."""
    if spec.get("version", _VERSION) != _VERSION:
        yield f"its version is {shown(spec['version'])}, expected {_VERSION!r}"
    model: Mapping[str, Any] = spec.get("model", {})
    # tokenizers 1.0 ignores the affixes of BPE pieces.
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix) and model.get("type", "BPE") == "BPE":
            yield f"its model.{affix} is {shown(model[affix])}"
    # With two tokens of one id, decoding has two answers.
    vocab: Any = model.get("vocab")
    if isinstance(vocab, dict):
        ids = cast("dict[str, int]", vocab).values()
        if len(set(ids)) != len(ids):
            yield "its vocabulary gives an id to two tokens"
    # Expressions are recognized by their form, so that only compared forms are safe.
    for stage in ("normalizer", "pre_tokenizer", "post_processor"):
        for key, expression, _ in walk(spec.get(stage)):
            if key == "Regex" and expression not in COMPARED_EXPRESSIONS:
                yield f"its {stage} has the regular expression {shown(expression)}, which was not compared"
    if _is_byte_level(spec):
        yield from _byte_level_reasons(spec)


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    """Return whether the pre-tokenizer writes bytes as characters."""
    stage = spec.get("pre_tokenizer")
    if stage is None:
        return False
    return any(part.get("type") == "ByteLevel" for part in parts_of(stage))


def _byte_level_reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why ids would be decoded to another text."""
    decoder_type: Any = None
    if spec.get("decoder") is not None:
        decoder_type = spec["decoder"].get("type")
    if decoder_type != "ByteLevel":
        yield f"its decoder is {shown(decoder_type)}, expected ByteLevel after a ByteLevel pre_tokenizer"
    # An added token is text. If all of it could be spelled bytes, decoding turns it
    # into those bytes.
    added: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    for token in added:
        content = token["content"]
        has_byte_letter = not _BYTE_LETTERS.isdisjoint(content)
        could_be_bytes = all(
            letter in _BYTE_LETTERS or "!" <= letter <= "~" for letter in content
        )
        if has_byte_letter and could_be_bytes:
            yield f"its added token {shown(content)} could be spelled bytes"
