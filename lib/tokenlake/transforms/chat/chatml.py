"""Row-wise: conversations of any known shape become messages of ChatML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tokenlake.config.resolved_texts import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.rows import Row
from tokenlake.transforms.base import Transform
from tokenlake.transforms.chat.turns import Turns

OUTPUT: Final = "messages"


@final
class ConvertToChatML(Transform):
    """Makes ``messages``, a list of ``{"role", "content", ...}``, of a row's conversation.

    The conversation is the first of the fields messages, conversations and conversation that the row has; it is taken
    out. ``human`` becomes ``user``, ``gpt``, ``bot`` and ``model`` become ``assistant``, ``function`` becomes ``tool``.

    Args:
        role_mapping: further names, {their name: role}; they come before those.
        use_default_mapping: whether those are known.
    """

    def __init__(
        self, role_mapping: Mapping[str, str] | None = None, use_default_mapping: bool = True
    ) -> None:
        self._turns = Turns(role_mapping, use_default_mapping=use_default_mapping)

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages; BadRecordError where it has no conversation."""
        field = conversation_field(example)
        if field is None:
            raise BadRecordError(
                f"the row has none of the fields {', '.join(MESSAGES_FIELDS)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        return _with_messages(example, field, self._turns)


@final
class ConvertInputOutputToChatML(Transform):
    """Makes ``messages`` of a row's input and output: a user's turn and an assistant's.

    They are texts in two fields of the row, or a conversation whose turns are ``{"input", "output"}``. Where there is
    a system message, beside them or in a turn, it comes first. The fields are taken out.
    """

    def __init__(
        self, input_field: str = "input", output_field: str = "output", system_field: str | None = "system"
    ) -> None:
        self._input, self._output, self._system = input_field, output_field, system_field
        self._turns = Turns()

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages; BadRecordError where it has no input or output."""
        if example.get(self._input) is None and (field := conversation_field(example)) is not None:
            return _with_messages(example, field, self._turns)
        names = {self._input: "input", self._output: "output"}
        if self._system is not None:
            names[self._system] = "system"
        if example.get(self._input) is None:
            raise BadRecordError(f"the field {self._input!r} is missing or null", reason="no_messages")
        messages = self._turns.read([{role: example.get(name) for name, role in names.items()}])
        rest = {key: value for key, value in example.items() if key not in names}
        return {**rest, OUTPUT: messages}


def conversation_field(row: Row) -> str | None:
    """Return the field of a row that holds its conversation."""
    return next((name for name in MESSAGES_FIELDS if row.get(name) is not None), None)


def _with_messages(row: Row, field: str, turns: Turns) -> Row:
    try:
        messages = turns.read(row[field])
    except BadRecordError as error:
        raise BadRecordError(f"the field {field!r}: {error}", **error.details) from error
    return {**{key: value for key, value in row.items() if key != field}, OUTPUT: messages}
