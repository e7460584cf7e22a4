"""Decision whether a tokenizer may run in this process.

All its parts must have a known harmless form.

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
"""Bytes that the stages of a text may give for one byte.

Those of Llama 2 give 3, byte-level ones 2, those of T5 18.
"""
MAX_ADDED_BYTES: Final = 1024
"""Bytes that the stages may add to a text."""
MAX_PARTS: Final = 32
"""Parts of a stage."""
MAX_PIECE: Final = 1024
"""Characters of a piece of the vocabulary.

The longest of Llama 3, of spaces, has 128.
"""
MAX_ADDED_TOKEN: Final = 512
"""Characters of an added token."""
MAX_ADDED_CHARACTERS: Final = 1 << 20
"""Characters of all added tokens together."""
MAX_AFFIX: Final = 64
"""Characters of the prefix or suffix that a model gives a piece of a word."""
MAX_WORD: Final = 1000
"""Characters of the longest word that WordPiece looks up.

The time grows with its square.
"""
MAX_AROUND: Final = 256
"""Ids that a post-processor puts around a text."""
_MODELS: Final = frozenset(("BPE", "WordPiece", "WordLevel", "Unigram"))
_PROCESSORS: Final = frozenset(
    ("ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing")
)


def reason_for_caution(spec: Mapping[str, Any]) -> str | None:
    """Return the reason why a tokenizer must not be loaded into this process.

    The result is None if all its parts are harmless.

    Args:
        spec: Parsed tokenizer.json, whose shape has been checked.
    """
    for reasons in (_model_reasons(spec), _stage_reasons(spec)):
        for reason in reasons:
            return reason
    return None


def model_caution(spec: Mapping[str, Any]) -> str | None:
    """Return the reason why a vocabulary is unusual; None if it is not.

    Every backend loads the vocabulary, the added tokens and their ids.
    """
    return next(_model_reasons(spec), None)


def _model_reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for caution in the vocabulary and the model."""
    model: Mapping[str, Any] = spec.get("model", {})
    if model.get("type", "BPE") not in _MODELS:
        yield f"its model is {str(model.get('type'))[:MAX_AFFIX]!r}"
    # Lengths of pieces and added tokens: the time of a search for them grows with both.
    vocab: Any = model.get("vocab") or {}
    longest_piece = _longest_piece(vocab)
    if longest_piece > MAX_PIECE:
        yield f"its vocabulary has a piece of {longest_piece:,} characters"
    added_tokens: list[Mapping[str, Any]] = spec.get("added_tokens") or []
    token_lengths = [len(token["content"]) for token in added_tokens]
    if max(token_lengths, default=0) > MAX_ADDED_TOKEN:
        yield f"it has an added token of {max(token_lengths):,} characters"
    if sum(token_lengths) > MAX_ADDED_CHARACTERS:
        yield f"its added tokens have {sum(token_lengths):,} characters together"
    token_count = len(vocab) + len(added_tokens)
    highest_id = largest_id(spec)
    # Tables by id have an entry for each id up to the largest.
    if highest_id > 4 * token_count + (1 << 20):
        yield f"its largest id is {highest_id:,}, with {token_count:,} tokens"
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        affix = model.get(option)
        if affix is None:
            continue
        is_short_text = isinstance(affix, str) and len(affix) <= MAX_AFFIX
        if not is_short_text:
            yield f"its model.{option} is not a text of at most {MAX_AFFIX} characters"
    # The time of WordPiece grows with the square of the longest word.
    word_limit = model.get("max_input_chars_per_word", 0)
    if not (type(word_limit) is int and word_limit <= MAX_WORD):
        yield f"its model.max_input_chars_per_word is more than {MAX_WORD:,}"


def _longest_piece(vocab: Any) -> int:
    """Return the characters of the longest piece, of a dictionary or a Unigram list."""
    if isinstance(vocab, dict):
        return max(map(len, cast("dict[str, int]", vocab)), default=0)
    return max((len(entry[0]) for entry in vocab), default=0)


def _stage_reasons(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for caution in the stages."""
    # Each stage on its own: the number of its parts, and its regular expressions.
    for stage in STAGES:
        stage_parts: list[Mapping[str, Any]] = []
        if spec.get(stage):
            stage_parts = parts_of(spec[stage])
        if len(stage_parts) > MAX_PARTS:
            yield f"its {stage} has {len(stage_parts):,} parts"
        for key, expression, _ in walk(spec.get(stage)):
            if key != "Regex":
                continue
            if not isinstance(expression, str) or not is_plain(expression):
                yield f"its {stage} has a regular expression that may backtrack: {str(expression)[:MAX_AFFIX]!r}"
    # Stages that follow each other multiply their growth.
    yield from _growth_reasons(
        "normalizer or pre_tokenizer", spec, ("normalizer", "pre_tokenizer")
    )
    yield from _growth_reasons("decoder", spec, ("decoder",))
    if not _is_wrapper(spec.get("post_processor")):
        yield "its post_processor does more than add a few ids to a text"


def _growth_reasons(
    stage_names: str, spec: Mapping[str, Any], stages: tuple[str, ...]
) -> Iterator[str]:
    """Yield the reason for caution in the growth of stages that follow each other."""
    growth = total_of([growth_of(spec.get(stage)) for stage in stages])
    if growth is None:
        yield f"its {stage_names} has a part that is not known"
    elif growth.factor > MAX_FACTOR:
        yield f"its {stage_names} may make {growth.factor:,.0f} bytes of one"
    elif growth.added > MAX_ADDED_BYTES:
        yield f"its {stage_names} may add {growth.added:,.0f} bytes to a text"


def _is_wrapper(stage: Mapping[str, Any] | None) -> bool:
    """Return whether a post-processor only puts a few ids around a text."""
    if stage is None:
        return True
    # Sequences may hold sequences. The loop is bounded, because a file may nest them
    # without end.
    pending: list[Mapping[str, Any]] = [stage]
    part_count = 0
    while pending:
        stage_part = pending.pop()
        part_count += 1
        if part_count > MAX_PARTS:
            return False
        processors: Any = stage_part.get("processors")
        if stage_part.get("type") == "Sequence" and isinstance(processors, list):
            members = cast("list[Any]", processors)
            if not all(isinstance(member, dict) for member in members):
                return False
            pending += members
            continue
        if stage_part.get("type") not in _PROCESSORS:
            return False
        if stage_part["type"] == "TemplateProcessing" and not _is_short_template(
            stage_part
        ):
            return False
    return True


def _is_short_template(part: Mapping[str, Any]) -> bool:
    """Return whether a template adds few ids.

    It names each text at most once, and few tokens with few ids.
    """
    for template in ("single", "pair"):
        pieces: Any = part.get(template)
        # A template may be a text, in which $A and $B stand for the two texts.
        if isinstance(pieces, str):
            if len(pieces) > MAX_AROUND or pieces.count("$") > 2:
                return False
            continue
        if not isinstance(pieces, list):
            return False
        members = cast("list[Any]", pieces)
        if len(members) > MAX_AROUND:
            return False
        # A text that is named twice doubles the ids.
        sequences = [str(member) for member in members if "Sequence" in member]
        if len(set(sequences)) != len(sequences):
            return False
    # A special token of a template may stand for several ids.
    tokens: Any = part.get("special_tokens") or {}
    if not isinstance(tokens, dict):
        return False
    id_count = 0
    for token in cast("dict[str, Any]", tokens).values():
        if not isinstance(token, dict):
            return False
        id_count += len(cast("dict[str, Any]", token).get("ids", ()))
    return id_count <= MAX_AROUND
