"""What a row of preferences holds: a prompt, and answers that were compared or judged."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast, final

from tokenlake.errors import BadRecordError
from tokenlake.preference_columns import Method
from tokenlake.text.chat.messages import ConversationReader, Turn
from tokenlake.text.chat.template import shared_length

Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

READER: Final = ConversationReader()
_LAST_WORD: Final = re.compile(r"\s*\S+\s*\Z")


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """A prompt with its answers: all of them texts, or all of them conversations.

    Attributes:
        prompt: None where a text stands for itself (reward models).
        answers: (chosen, rejected), (completion,), or none for prompts alone.
        label: whether a judged answer is good.
    """

    prompt: Value | None
    answers: tuple[Value, ...] = ()
    label: bool = False

    @property
    def is_conversation(self) -> bool:
        """Whether prompt and answers are conversations."""
        return any(isinstance(value, list) for value in (self.prompt, *self.answers))


def value_of(raw: object, field: str) -> Value | None:
    """Return a field's value; None where it is missing or null.

    Raises:
        BadRecordError: it is neither text nor turns.
    """
    if raw is None or isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        unusable(
            "not_text_or_messages",
            f"the field {field!r} holds {type(raw).__name__}, expected a text or a list of messages",
        )
    try:
        return READER.read(cast("list[Any]", raw)) if raw else []
    except BadRecordError as error:
        raise BadRecordError(f"the field {field!r}: {error}", **error.details) from error


def judgements(given: Mapping[str, Value | None], label: object, method: Method) -> tuple[Judgement, ...]:
    """Return what a row comes to: one, or two of a pair whose answers are wanted one by one.

    Args:
        given: prompt, chosen, rejected and completion, None where the row lacks them.

    Raises:
        BadRecordError: nothing that `method` can use.
    """
    if method == "grpo":
        return (_prompt_alone(given),)
    if method not in ("kto", "bco"):
        return (_pair(given, whole=method == "reward"),)
    if given["completion"] is not None:
        return (_judged(given["prompt"], given["completion"], label),)
    pair = _pair(given, whole=False)
    good, bad = pair.answers
    return Judgement(pair.prompt, (good,), True), Judgement(pair.prompt, (bad,), False)


def _prompt_alone(given: Mapping[str, Value | None]) -> Judgement:
    prompt = given["prompt"]
    if prompt is None:
        if given["chosen"] is None or given["rejected"] is None:
            unusable("missing_field", "the row has no prompt, and no pair of answers to take one from")
        prompt = _pair(given, whole=False).prompt
    if prompt is None or _is_empty(prompt):
        unusable("empty_prompt", "the prompt is empty")
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        unusable(
            "prompt_is_answered", "the prompt ends with an assistant's turn, so nothing is left to answer"
        )
    return Judgement(prompt)


def _judged(prompt: Value | None, completion: Value, label: object) -> Judgement:
    if prompt is None and not isinstance(completion, str) and len(completion) > 1:
        prompt, completion = completion[:-1], completion[-1:]
    if prompt is None:
        unusable("no_prompt", "the row has an answer, but no prompt")
    if not isinstance(label, bool) and label not in (0, 1):
        unusable("bad_label", f"the label is {label!r}, expected true or false")
    return _in_one_form(prompt, (completion,), label=bool(label))


def _pair(given: Mapping[str, Value | None], *, whole: bool) -> Judgement:
    """Read chosen and rejected; `whole`: a prompt that the answers hold already is not looked for."""
    prompt, chosen, rejected = given["prompt"], given["chosen"], given["rejected"]
    if chosen is None or rejected is None:
        lacking = " and ".join(name for name in ("chosen", "rejected") if given[name] is None)
        unusable("missing_field", f"the row has no answer {lacking}")
    if isinstance(chosen, str) != isinstance(rejected, str):
        unusable("unlike_answers", "one answer is a text, the other a conversation")
    if chosen == rejected:
        unusable("equal_answers", "the better answer equals the worse one")
    if prompt is None and not whole:
        size = _shared(chosen, rejected)
        if not size:
            unusable("no_prompt", "the row has no prompt, and its answers do not begin alike")
        return _filled(Judgement(chosen[:size], (chosen[size:], rejected[size:])))
    if prompt is None:
        return _filled(Judgement(None, (chosen, rejected)))
    return _in_one_form(prompt, (chosen, rejected))


def _in_one_form(prompt: Value, answers: tuple[Value, ...], *, label: bool = False) -> Judgement:
    """Bring prompt and answers into one form: conversations, where one of them is one.

    Answers that are conversations often hold their prompt too; it is taken off where all of them begin with it.
    """
    found = Judgement(prompt, answers, label)
    if found.is_conversation:
        turns = _turns(prompt, "user")
        said = tuple(_turns(answer, "assistant") for answer in answers)
        if all(len(answer) > len(turns) and answer[: len(turns)] == turns for answer in said):
            said = tuple(answer[len(turns) :] for answer in said)
        found = Judgement(turns, said, label)
    return _filled(found)


def _turns(value: Value, role: str) -> list[Turn]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _filled(judgement: Judgement) -> Judgement:
    if judgement.prompt is not None and _is_empty(judgement.prompt):
        unusable("empty_prompt", "the prompt is empty")
    if any(map(_is_empty, judgement.answers)):
        unusable("empty_answer", "an answer is empty")
    return judgement


def _is_empty(value: Value) -> bool:
    """Say whether a text is blank, or a conversation has no turn that says or calls anything."""
    if isinstance(value, str):
        return not value.strip()
    return not any(
        str(turn.get("content") or "").strip() or len(turn) > len(("role", "content")) for turn in value
    )


def _shared(chosen: Value, rejected: Value) -> int:
    """Return how much two answers begin with alike: characters of texts, turns of conversations."""
    if isinstance(chosen, str) and isinstance(rejected, str):
        return shared_text(chosen, rejected)
    most = max(min(len(chosen), len(rejected)) - 1, 0)  # at least one turn is left to each
    return next((at for at in range(most) if chosen[at] != rejected[at]), most)


def shared_turns(left: list[Turn], right: list[Turn]) -> int:
    """Return how many turns two conversations begin with alike, at least one left to each."""
    most = min(len(left), len(right)) - 1
    return next((at for at in range(most) if left[at] != right[at]), max(most, 0))


def shared_text(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike, up to the end of a word.

    The blanks after that word belong to the answers, and so does a word that only begins alike: tokenizers put a
    word's blank before it. Each text keeps at least one word. Scripts without blanks are cut between characters.
    """
    end = shared_length(left, right)
    shorter = min(len(left.rstrip()), len(right.rstrip()))
    if end >= shorter:
        found = _LAST_WORD.search(left[:shorter])
        end = found.start() if found else 0
    while end and (_inside_word(left, end) or _inside_word(right, end)):
        end -= 1
    return len(left[:end].rstrip())


def _inside_word(text: str, at: int) -> bool:
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    return bool(unicodedata.combining(after)) or (_bound(before) and _bound(after))


def _bound(character: str) -> bool:
    """Whether it stands in words that blanks separate: digits, and letters of scripts with capitals."""
    return character.isdigit() or character.lower() != character.upper()


def unusable(reason: str, why: str) -> NoReturn:
    """Raise the BadRecordError of a row that cannot be used."""
    raise BadRecordError(why, reason=reason)
