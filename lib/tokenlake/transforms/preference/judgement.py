"""What a row of preferences holds: a prompt, and answers that were compared or judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tokenlake.faults import Fault
from tokenlake.preferences import Method
from tokenlake.transforms.preference.sharedprompt import shared_text, shared_turns
from tokenlake.transforms.preference.turns import Turn, Value, is_empty

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
