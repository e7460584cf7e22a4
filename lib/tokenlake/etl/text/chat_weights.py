"""Fields of a turn that include it in the loss or exclude it.

| field | values | who writes it |
|---|---|---|
| ``weight`` | 0 or 1 | OpenAI's fine-tuning format |
| ``train`` | true or false | axolotl |
| ``loss`` | true or false | ms-swift, XTuner |
| ``masked`` | true or false; true: not learned | torchtune |

A number between 0 and 1 would be a weight of the loss, which a mask cannot hold, so it
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenlake.errors import BadRecordError

ASSISTANT: Final = "assistant"
BAD_WEIGHT: Final = "bad_weight"
"""Reason of rows whose turns have a weight that cannot act."""

_LEARNED_FIELDS: Final = ("weight", "train", "loss")
_MASKED_FIELD: Final = "masked"
_DETAIL_FIELD: Final = "train_detail"
FIELDS: Final = frozenset((*_LEARNED_FIELDS, _MASKED_FIELD, _DETAIL_FIELD))
"""Fields of a turn that this module reads."""


def is_learned(turn: Mapping[str, Any]) -> bool | None:
    """Return whether a turn is to be learned by its own fields.

    None where it has none of these fields.

    Raises:
        BadRecordError: A field has another value than yes or no, or two fields
            contradict each other (``bad_weight``).
    """
    verdicts: dict[str, bool] = {}
    for field in (*_LEARNED_FIELDS, _MASKED_FIELD):
        value = turn.get(field)
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise BadRecordError(
                f"its {field} is {value!r}, expected 0 or 1 (or true, false): a loss mask is binary; leave out other "
                "weights, or round them",
                reason=BAD_WEIGHT,
            )
        # ``masked`` has the opposite meaning of the others.
        verdicts[field] = bool(value)
        if field == _MASKED_FIELD:
            verdicts[field] = not value
    if len(set(verdicts.values())) > 1:
        fields = " and ".join(f"{field}: {turn[field]!r}" for field in verdicts)
        raise BadRecordError(
            f"it has {fields}, which contradict each other; keep one", reason=BAD_WEIGHT
        )
    # All fields agree, so that any of them decides.
    return next(iter(verdicts.values()), None)


def check_weight(turn: Mapping[str, Any]) -> None:
    """Require that the fields of a turn about its loss can act.

    Raises:
        BadRecordError: A value is no yes or no, a turn of another role than the
            assistant is to be learned, or parts of a turn have weights of their own
            (``bad_weight``).
    """
    # Most turns have none of the fields.
    if FIELDS.isdisjoint(turn):
        return
    # Axolotl's field of that name gives weights to ranges of characters.
    if turn.get(_DETAIL_FIELD):
        raise BadRecordError(
            f"its {_DETAIL_FIELD} gives separate weights to parts of the turn, which is not supported; expected "
            "train: true or false for the whole turn",
            reason=BAD_WEIGHT,
        )
    # Other roles may be excluded from a loss on whole conversations, but not be learned
    # by themselves.
    if is_learned(turn) and turn.get("role") != ASSISTANT:
        settings: list[str] = []
        for field in sorted(FIELDS):
            if turn.get(field) is not None:
                settings.append(f"{field}: {turn[field]!r}")
        fields = ", ".join(settings)
        raise BadRecordError(
            f"it is a turn of {turn.get('role')} with {fields}, but only turns of the assistant can be selected; "
            "remove the field, or set chat.loss: all to include whole conversations",
            reason=BAD_WEIGHT,
        )
