"""What a row of preferences holds: a prompt, and answers that were compared or judged.

What two answers begin with alike: their prompt, where a row does not say it.

Texts and conversations as rows hold them, in one form.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Final, cast, final

import orjson

from tokenlake.errors import BadRecordError
from tokenlake.preference_columns import Method
from tokenlake.sources.rows import Fault
from tokenlake.text.chat.messages import Message, Turns

Turn = Message
Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

_TURNS: Final = Turns()


def value_of(raw: object, field: str) -> Value | Fault | None:
    """Return a field's value; None where it is missing or null, a fault where it is neither text nor turns."""
    if raw is None or isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        return Fault(
            "not_text_or_messages",
            f"the field {field!r} holds {type(raw).__name__}, expected a text or a list of messages",
        )
    try:
        return _TURNS.read(cast("list[Any]", raw)) if raw else []
    except BadRecordError as error:
        return Fault(str(error.details["reason"]), f"the field {field!r}: {error}")


def tools_of(raw: object) -> list[Any] | Fault | None:
    """Return the tools that a conversation may call: a list, or JSON text of one."""
    if isinstance(raw, str):
        try:
            raw = orjson.loads(raw)
        except ValueError:
            return Fault("bad_tools", "the tools are text, but not JSON")
    if raw is None or raw == []:
        return None
    return cast("list[Any]", raw) if isinstance(raw, list) else Fault("bad_tools", "the tools are not a list")


def is_empty(value: Value) -> bool:
    """Say whether a text is blank, or a conversation has no turn that says or calls anything."""
    if isinstance(value, str):
        return not value.strip()
    return not any(
        str(turn.get("content") or "").strip() or len(turn) > len(("role", "content")) for turn in value
    )


_LAST_WORD: Final = re.compile(r"\s*\S+\s*\Z")


def shared_turns(left: list[Turn], right: list[Turn]) -> int:
    """Return how many turns two conversations begin with alike, at least one left to each."""
    most = min(len(left), len(right)) - 1
    return next((at for at in range(most) if left[at] != right[at]), max(most, 0))


def shared_text(left: str, right: str) -> int:
    """Return how many characters two texts begin with alike, up to the end of a word.

    The blanks after that word belong to the answers, and so does a word that only begins alike: tokenizers put a
    word's blank before it. Each text keeps at least one word. Scripts without blanks are cut between characters.
    """
    end = _sharedprompt_alike(left, right)
    shorter = min(len(left.rstrip()), len(right.rstrip()))
    if end >= shorter:
        found = _LAST_WORD.search(left[:shorter])
        end = found.start() if found else 0
    while end and (_inside_word(left, end) or _inside_word(right, end)):
        end -= 1
    return len(left[:end].rstrip())


def _sharedprompt_alike(left: str, right: str) -> int:
    """Return how many characters are equal from the beginning: by halving, for texts may be long."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def _inside_word(text: str, at: int) -> bool:
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    return bool(unicodedata.combining(after)) or (_bound(before) and _bound(after))


def _bound(character: str) -> bool:
    """Whether it stands in words that blanks separate: digits, and letters of scripts with capitals."""
    return character.isdigit() or character.lower() != character.upper()


_UNPAIRED = ("kto", "bco")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The fields of a row, None where it lacks them."""

    prompt: Value | None = None
    chosen: Value | None = None
    rejected: Value | None = None
    completion: Value | None = None
    label: object = None
    tools: Any = None


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
    label: bool | None = None


def judgements(given: Given, method: Method) -> tuple[Judgement, ...] | Fault:
    """Return what a row comes to: one, or two of a pair whose answers are wanted one by one."""
    if method == "grpo":
        return _prompt(given)
    if method not in _UNPAIRED:
        pair = _pair(given, whole=method == "reward")
        return pair if isinstance(pair, Fault) else (pair,)
    if given.completion is not None:
        return _judged(given)
    pair = _pair(given, whole=False)
    if isinstance(pair, Fault):
        return pair
    return tuple(
        Judgement(pair.prompt, (answer,), good)
        for answer, good in zip(pair.answers, (True, False), strict=True)
    )


def _prompt(given: Given) -> tuple[Judgement, ...] | Fault:
    prompt = given.prompt
    if prompt is None:
        if given.chosen is None or given.rejected is None:
            return Fault("missing_field", "the row has no prompt, and no pair of answers to take one from")
        pair = _pair(given, whole=False)
        if isinstance(pair, Fault):
            return pair
        prompt = pair.prompt
    if prompt is None or is_empty(prompt):
        return Fault("empty_prompt", "the prompt is empty")
    if not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
        return Fault(
            "prompt_is_answered", "the prompt ends with an assistant's turn, so nothing is left to answer"
        )
    return (Judgement(prompt),)


def _judged(given: Given) -> tuple[Judgement, ...] | Fault:
    completion, prompt, label = given.completion, given.prompt, given.label
    assert completion is not None
    if prompt is None and not isinstance(completion, str) and len(completion) > 1:
        prompt, completion = completion[:-1], completion[-1:]
    if prompt is None:
        return Fault("no_prompt", "the row has an answer, but no prompt")
    if not isinstance(label, bool) and label not in (0, 1):
        return Fault("bad_label", f"the label is {label!r}, expected true or false")
    prompt, answers = _alike(prompt, (completion,))
    fault = _emptiness(prompt, answers)
    return fault or (Judgement(prompt, answers, bool(label)),)


def _pair(given: Given, *, whole: bool) -> Judgement | Fault:
    """Read chosen and rejected; `whole`: a prompt that the answers hold already is not looked for."""
    chosen, rejected, prompt = given.chosen, given.rejected, given.prompt
    if chosen is None or rejected is None:
        lacking = (
            "rejected" if chosen is not None else "chosen" if rejected is not None else "chosen and rejected"
        )
        return Fault("missing_field", f"the row has no answer {lacking}")
    if isinstance(chosen, str) != isinstance(rejected, str):
        return Fault("unlike_answers", "one answer is a text, the other a conversation")
    if chosen == rejected:
        return Fault("equal_answers", "the better answer equals the worse one")
    answers: tuple[Value, ...] = (chosen, rejected)
    if prompt is None and not whole:
        size = _shared(chosen, rejected)
        prompt, answers = chosen[:size], (chosen[size:], rejected[size:])
        if not size:
            return Fault("no_prompt", "the row has no prompt, and its answers do not begin alike")
    elif prompt is not None:
        prompt, answers = _alike(prompt, answers)
    return _emptiness(prompt, answers) or Judgement(prompt, answers)


def _shared(chosen: Value, rejected: Value) -> int:
    if isinstance(chosen, str) and isinstance(rejected, str):
        return shared_text(chosen, rejected)
    assert isinstance(chosen, list) and isinstance(rejected, list)
    return shared_turns(chosen, rejected)


def _alike(prompt: Value, answers: tuple[Value, ...]) -> tuple[Value, tuple[Value, ...]]:
    """Bring prompt and answers into one form: conversations, where one of them is one.

    Answers that are conversations often hold their prompt too; it is taken off where all of them begin with it.
    """
    if isinstance(prompt, str) and all(isinstance(answer, str) for answer in answers):
        return prompt, answers
    turns = _turns(prompt, "user")
    said = tuple(_turns(answer, "assistant") for answer in answers)
    if all(_begins(answer, turns) for answer in said):
        return turns, tuple(answer[len(turns) :] for answer in said)
    return turns, said


def _turns(value: Value, role: str) -> list[Turn]:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _begins(answer: list[Turn], prompt: list[Turn]) -> bool:
    return len(answer) > len(prompt) and answer[: len(prompt)] == prompt


def _emptiness(prompt: Value | None, answers: tuple[Value, ...]) -> Fault | None:
    if prompt is not None and is_empty(prompt):
        return Fault("empty_prompt", "the prompt is empty")
    if any(is_empty(answer) for answer in answers):
        return Fault("empty_answer", "an answer is empty")
    return None
