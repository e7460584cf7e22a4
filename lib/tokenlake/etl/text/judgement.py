"""A row of preferences as a prompt with its answers.

| method | fields of a row | judgements of a row |
|---|---|---|
| dpo, orpo, cpo | prompt, chosen, rejected | the prompt with both answers |
| reward | chosen, rejected, which may hold the prompt | the prompt, or none, with both answers |
| kto, bco | prompt, completion, label | the prompt with one answer |
| kto, bco | prompt, chosen, rejected | two: a good answer and a bad one |
| grpo | prompt, or a pair whose answers begin with it | the prompt alone |

A row without a prompt has one if both answers begin alike: as texts, the words that
they share; as conversations, the turns that they share.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, cast, final

from tokenlake.base.columns import Method
from tokenlake.errors import BadRecordError
from tokenlake.etl.text.chat_messages import ConversationReader, Turn, in_field
from tokenlake.etl.text.chat_weights import ASSISTANT, BAD_WEIGHT, is_learned
from tokenlake.etl.text.common_text import shared_length

Value = str | list[Turn]
"""A text, or the turns of a conversation (role, content)."""

READER: Final = ConversationReader()
_LAST_WORD: Final = re.compile(r"\s*\S+\s*\Z")
_PLAIN_TURN_FIELDS: Final = 2  # role and content


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """A prompt with its answers: all of them texts, or all of them conversations.

    Attributes:
        prompt: Prompt; None where an answer is a whole text without one (reward
            models).
        answers: (chosen, rejected), (completion,), or () for a prompt alone.
        label: True for a good answer; only read where answers are judged one by one.
    """

    prompt: Value | None
    answers: tuple[Value, ...] = ()
    label: bool = False

    @property
    def is_conversation(self) -> bool:
        """Whether prompt and answers are conversations."""
        return any(isinstance(value, list) for value in (self.prompt, *self.answers))


# ---- reading a row -------------------------------------------------------------------


def value_of(raw: object, field: str) -> Value | None:
    """Return the value of a field; None where it is missing or null.

    Raises:
        BadRecordError: The value is neither text nor a list of messages.
    """
    if raw is None or isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        refuse_row(
            "not_text_or_messages",
            f"the field {field!r} holds {type(raw).__name__}, expected a text or a list of messages",
        )
    if not raw:
        return []
    with in_field(field):
        return READER.read(cast("list[object]", raw))


def judgements(
    fields: Mapping[str, Value | None], label: object, method: Method
) -> tuple[Judgement, ...]:
    """Return the judgements of a row.

    It is one, or two of a pair whose answers are judged one by one.

    Args:
        fields: Values of prompt, chosen, rejected and completion; None where the row
            lacks one.
        label: Value of the row's label.
        method: Training method.

    Raises:
        BadRecordError: The row has nothing that the method can use.
    """
    # Answers that are judged one by one come with a label, or as a pair that has two.
    if method == "grpo":
        return (_prompt_alone(fields),)
    if method not in ("kto", "bco"):
        return (_pair(fields, needs_prompt=method != "reward"),)
    if fields["completion"] is not None:
        return (_judged_answer(fields["prompt"], fields["completion"], label),)
    pair = _pair(fields, needs_prompt=True)
    chosen, rejected = pair.answers
    good_judgement = Judgement(pair.prompt, (chosen,), label=True)
    bad_judgement = Judgement(pair.prompt, (rejected,), label=False)
    return good_judgement, bad_judgement


def _prompt_alone(fields: Mapping[str, Value | None]) -> Judgement:
    """Return the prompt of a row, or the beginning that a pair of answers shares."""
    # The model generates its answers in training, so that those of the row only show
    # where its prompt ends.
    prompt = fields["prompt"]
    if prompt is None:
        if fields["chosen"] is None or fields["rejected"] is None:
            refuse_row(
                "missing_field",
                "the row has no prompt, and no pair of answers from which one can be derived",
            )
        prompt = _pair(fields, needs_prompt=True).prompt
    if prompt is None or _is_empty(prompt):
        refuse_row("empty_prompt", "the prompt is empty")
    if isinstance(prompt, list) and prompt[-1]["role"] == ASSISTANT:
        refuse_row(
            "prompt_is_answered",
            "the prompt ends with a turn of the assistant, so no answer can follow",
        )
    return Judgement(prompt)


def _judged_answer(prompt: Value | None, completion: Value, label: object) -> Judgement:
    """Return a prompt with one answer.

    The last turn of a conversation without a prompt is the answer.
    """
    if prompt is None and isinstance(completion, list) and len(completion) > 1:
        prompt = completion[:-1]
        completion = completion[-1:]
    if prompt is None:
        refuse_row("no_prompt", "the row has an answer, but no prompt")
    if not isinstance(label, bool) and label not in (0, 1):
        refuse_row("bad_label", f"the label is {label!r}, expected true or false")
    return _in_one_form(prompt, (completion,), label=bool(label))


def _pair(fields: Mapping[str, Value | None], *, needs_prompt: bool) -> Judgement:
    """Return a prompt with the chosen and the rejected answer.

    Args:
        fields: Values of the row.
        needs_prompt: Whether a row without a prompt must have one at the beginning of
            both answers.
    """
    # 1. Both answers are there, alike in form, and different.
    prompt = fields["prompt"]
    chosen = fields["chosen"]
    rejected = fields["rejected"]
    if chosen is None or rejected is None:
        missing_fields: list[str] = []
        for name in ("chosen", "rejected"):
            if fields[name] is None:
                missing_fields.append(name)
        missing_names = " and ".join(missing_fields)
        refuse_row("missing_field", f"the row has no answer {missing_names}")
    if isinstance(chosen, str) != isinstance(rejected, str):
        refuse_row("unlike_answers", "one answer is a text, the other a conversation")
    if chosen == rejected:
        refuse_row("equal_answers", "the better answer equals the worse one")
    # 2. The prompt of the row, or none where the method needs none.
    if prompt is not None:
        return _in_one_form(prompt, (chosen, rejected))
    if not needs_prompt:
        return _require_content(Judgement(None, (chosen, rejected)))
    # 3. The prompt is the beginning that both answers share.
    if isinstance(chosen, str):
        prompt_size = shared_text(chosen, str(rejected))
    else:
        prompt_size = _shared_turns(chosen, cast("list[Turn]", rejected))
    if not prompt_size:
        refuse_row(
            "no_prompt",
            "the row has no prompt, and its answers have no common beginning",
        )
    answers = (chosen[prompt_size:], rejected[prompt_size:])
    return _require_content(Judgement(chosen[:prompt_size], answers))


def _in_one_form(
    prompt: Value, answers: tuple[Value, ...], *, label: bool = False
) -> Judgement:
    """Return a judgement of texts, or of conversations.

    It has conversations where the prompt or an answer is one. Answers that are
    conversations often hold their prompt too. It is taken off if all of them begin with
    it.
    """
    judgement = Judgement(prompt, answers, label)
    if not judgement.is_conversation:
        return _require_content(judgement)
    # An answer that is the prompt alone would be empty: its turns are its own.
    prompt_turns = _turns_of(prompt, "user")
    answer_turns = [_turns_of(answer, ASSISTANT) for answer in answers]
    prompt_size = len(prompt_turns)
    have_prompt = True
    for turns in answer_turns:
        is_longer = len(turns) > prompt_size
        have_prompt &= is_longer and turns[:prompt_size] == prompt_turns
    if have_prompt:
        answer_turns = [turns[prompt_size:] for turns in answer_turns]
    return _require_content(Judgement(prompt_turns, tuple(answer_turns), label))


def _turns_of(value: Value, role: str) -> list[Turn]:
    """Return a conversation as it is, and a text as the one turn of a role."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return value


# ---- requirements --------------------------------------------------------------------


def _require_content(judgement: Judgement) -> Judgement:
    """Return the judgement; BadRecordError where its prompt or an answer is empty."""
    if judgement.prompt is not None and _is_empty(judgement.prompt):
        refuse_row("empty_prompt", "the prompt is empty")
    if any(map(_is_empty, judgement.answers)):
        refuse_row("empty_answer", "an answer is empty")
    return judgement


def _is_empty(value: Value) -> bool:
    """Return whether a text is blank, or no turn of a conversation says anything."""
    if isinstance(value, str):
        return not value.strip()
    return not any(map(_has_content, value))


def _has_content(turn: Turn) -> bool:
    """Return whether a turn has words, or a field beside its role and content."""
    if len(turn) > _PLAIN_TURN_FIELDS:
        return True
    return bool(str(turn.get("content") or "").strip())


def require_learned(judgement: Judgement) -> None:
    """Require that no turn of an answer is excluded from the loss.

    Answers are compared as a whole.

    Raises:
        BadRecordError: A turn is excluded (``bad_weight``).
    """
    for answer in judgement.answers:
        if isinstance(answer, str):
            continue
        for turn in answer:
            if is_learned(turn) is False:
                refuse_row(
                    BAD_WEIGHT,
                    "a turn of an answer is excluded from the loss (weight: 0, train: false, loss: false or masked: "
                    "true), but preferences compare whole answers; remove that field or the turn",
                )


def refuse_row(reason: str, problem: str) -> NoReturn:
    """Raise the BadRecordError of a row that cannot be used."""
    raise BadRecordError(problem, reason=reason)


# ---- the beginning that two answers share --------------------------------------------


def _shared_turns(left: list[Turn], right: list[Turn]) -> int:
    """Return the number of turns that two conversations begin with.

    Each conversation keeps at least one turn.
    """
    limit = max(min(len(left), len(right)) - 1, 0)
    for index in range(limit):
        if left[index] != right[index]:
            return index
    return limit


def shared_text(left: str, right: str) -> int:
    """Return the number of characters that two texts begin with, in whole words.

    The blanks after the last word belong to the answers, and so does a word of which
    only the beginning is shared: tokenizers put a word's blank before it. Each text
    keeps at least one word. Scripts without blanks are cut between characters. ::

        "A: yes"  "A: you"   3 characters are shared, "A: y" is cut back to "A:"
    """
    shared_end = shared_length(left, right)
    # One text may begin with the whole of the other: its last word stays an answer.
    shorter_size = min(len(left.rstrip()), len(right.rstrip()))
    if shared_end >= shorter_size:
        last_word = _LAST_WORD.search(left[:shorter_size])
        shared_end = last_word.start() if last_word else 0
    # A place inside a word of one text alone is no border either.
    while shared_end and _is_inside_word_of_one(left, right, shared_end):
        shared_end -= 1
    return len(left[:shared_end].rstrip())


def _is_inside_word_of_one(left: str, right: str, index: int) -> bool:
    """Return whether a place lies inside a word of at least one of two texts."""
    return _is_inside_word(left, index) or _is_inside_word(right, index)


def _is_inside_word(text: str, index: int) -> bool:
    """Return whether a place lies inside a word or a character.

    A word consists of digits, or of letters of a script with capitals.
    """
    if index >= len(text):
        return False
    if unicodedata.combining(text[index]):
        return True
    return _is_of_spaced_word(text[index - 1]) and _is_of_spaced_word(text[index])


def _is_of_spaced_word(character: str) -> bool:
    return character.isdigit() or character.lower() != character.upper()
