"""Decide whether a tokenizer may run in this process: all its parts must have a known
harmless form.

The forms are those of published models, with generous bounds. A tokenizer of another
form is not refused. It runs in a bounded process
(:mod:`tokenlake.runtime.tokenizer_guard.process`), so a false alarm costs a process and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from tokenlake.runtime.tokenizer_guard.growth import growth_of, parts_of, total_of
from tokenlake.runtime.tokenizer_guard.patterns import is_plain
from tokenlake.runtime.tokenizer_guard.shape import STAGES, largest_id, walk

MAX_FACTOR: Final = 32.0
"""Bytes that the stages of a text may give for one byte. Those of Llama 2 give 3,
byte-level ones 2, those of T5 18.
"""
MAX_ADDED_BYTES: Final = 1024
"""Bytes that the stages may add to a text."""
MAX_PARTS: Final = 32
"""Parts of a stage."""
MAX_PIECE: Final = 1024
"""Characters of a piece of the vocabulary. The longest of Llama 3, of spaces, has
128.
"""
MAX_ADDED_TOKEN: Final = 512
"""Characters of an added token."""
MAX_ADDED_CHARACTERS: Final = 1 << 20
"""Characters of all added tokens together."""
MAX_AFFIX: Final = 64
"""Characters of the prefix or suffix that a model gives a piece of a word."""
MAX_WORD: Final = 1000
"""Characters of the longest word that WordPiece looks up; the time grows with its
square.
"""
MAX_AROUND: Final = 256
"""Ids that a post-processor puts around a text."""
_MODELS: Final = frozenset(("BPE", "WordPiece", "WordLevel", "Unigram"))
_PROCESSORS: Final = frozenset(
    ("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing")
)


def reason_for_caution(spec: Mapping[str, Any]) -> str | None:
    """Return why a tokenizer must not be loaded into this process, None if all its
    parts are harmless.

    Args:
        spec: Parsed tokenizer.json, whose shape has been checked.
    """
    for reasons in (_model_reasons(spec), _stage_reasons(spec)):
        for reason in reasons:
            return reason
    return None


def model_caution(spec: Mapping[str, Any]) -> str | None:
    """Return why the vocabulary, the added tokens or their ids, which every backend
    loads, are unusual, or None.
    """
    return next(_model_reasons(spec), None)


def _model_reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    model: Mapping[str, Any] = spec.get("model", {})
    if model.get("type", "BPE") not in _MODELS:
        yield f"its model is {str(model.get('type'))[:MAX_AFFIX]!r}"
    vocab: Any = model.get("vocab") or {}
    longest = _longest_piece(vocab)
    if longest > MAX_PIECE:
        yield f"its vocabulary has a piece of {longest:,} characters"
    added: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    lengths = [len(token["content"]) for token in added]
    if max(lengths, default=0) > MAX_ADDED_TOKEN:
        yield f"it has an added token of {max(lengths):,} characters"
    if sum(lengths) > MAX_ADDED_CHARACTERS:
        yield f"its added tokens have {sum(lengths):,} characters together"
    entries = len(vocab) + len(added)
    largest = largest_id(spec)
    # Tables by id have an entry for each id up to the largest.
    if largest > 4 * entries + (1 << 20):
        yield f"its largest id is {largest:,}, with {entries:,} tokens"
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        text = model.get(key)
        if text is not None and not (isinstance(text, str) and len(text) <= MAX_AFFIX):
            yield f"its model.{key} is not a text of at most {MAX_AFFIX} characters"
    word_limit = model.get("max_input_chars_per_word", 0)
    if not (type(word_limit) is int and word_limit <= MAX_WORD):
        yield f"its model.max_input_chars_per_word is more than {MAX_WORD:,}"


def _longest_piece(vocab: Any) -> int:
    if isinstance(vocab, dict):
        return max(map(len, cast("dict[str, int]", vocab)), default=0)
    return max((len(entry[0]) for entry in vocab), default=0)


def _stage_reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    for stage in STAGES:
        parts = parts_of(spec[stage]) if spec.get(stage) else []
        if len(parts) > MAX_PARTS:
            yield f"its {stage} has {len(parts):,} parts"
        for key, value, _ in walk(spec.get(stage)):
            if key == "Regex" and not (isinstance(value, str) and is_plain(value)):
                yield f"its {stage} has a regular expression that may backtrack: {str(value)[:MAX_AFFIX]!r}"
    yield from _growth_reasons(
        "normalizer or pre_tokenizer", spec, ("normalizer", "pre_tokenizer")
    )
    yield from _growth_reasons("decoder", spec, ("decoder",))
    if not _is_wrapper(spec.get("post_processor")):
        yield "its post_processor does more than add a few ids to a text"


def _growth_reasons(
    name: str, spec: Mapping[str, Any], stages: tuple[str, ...]
) -> Iterator[str]:
    growth = total_of([growth_of(spec.get(stage)) for stage in stages])
    if growth is None:
        yield f"its {name} has a part that is not known"
    elif growth.factor > MAX_FACTOR:
        yield f"its {name} may make {growth.factor:,.0f} bytes of one"
    elif growth.added > MAX_ADDED_BYTES:
        yield f"its {name} may add {growth.added:,.0f} bytes to a text"


def _is_wrapper(stage: Mapping[str, Any] | None) -> bool:
    """Return whether a post-processor only puts a few ids around a text."""
    if stage is None:
        return True
    pending: list[Mapping[str, Any]] = [stage]
    part_count = 0
    while pending:
        part = pending.pop()
        part_count += 1
        if part_count > MAX_PARTS:
            return False
        processors: Any = part.get("processors")
        if part.get("type") == "Sequence" and isinstance(processors, list):
            members = cast("list[Any]", processors)
            if not all(isinstance(member, dict) for member in members):
                return False
            pending += members
            continue
        if part.get("type") not in _PROCESSORS:
            return False
        if part["type"] == "TemplateProcessing" and not _is_short_template(part):
            return False
    return True


def _is_short_template(part: Mapping[str, Any]) -> bool:
    """Return whether a template names each text once at most, and few tokens with
    few ids.
    """
    for template in ("single", "pair"):
        pieces: Any = part.get(template)
        if isinstance(pieces, str):
            return len(pieces) <= MAX_AROUND and pieces.count("$") <= 2
        if not isinstance(pieces, list) or len(cast("list[Any]", pieces)) > MAX_AROUND:
            return False
        texts = [
            str(piece) for piece in cast("list[Any]", pieces) if "Sequence" in piece
        ]
        if len(set(texts)) != len(texts):
            return False
    tokens: Any = part.get("special_tokens") or {}
    if not isinstance(tokens, dict):
        return False
    id_count = 0
    for token in cast("dict[str, Any]", tokens).values():
        if not isinstance(token, dict):
            return False
        id_count += len(cast("dict[str, Any]", token).get("ids", ()))
    return id_count <= MAX_AROUND
