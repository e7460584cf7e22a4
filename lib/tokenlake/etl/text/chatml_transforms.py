"""Transforms that make ``messages`` of a row's conversation, or of input and output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from tokenlake.config.resolved import MESSAGES_FIELDS
from tokenlake.errors import BadRecordError
from tokenlake.etl.sources.rows import Row
from tokenlake.etl.text.chat_messages import ConversationReader, in_field
from tokenlake.etl.text.transform import Transform

OUTPUT_FIELD: Final = "messages"


@final
class ConvertToChatML(Transform):
    """Makes ``messages`` of a row's conversation, a list of ``{"role", "content"}``.

    The conversation is the first of the fields messages, conversations and conversation
    that the row has; it is removed. ``human`` becomes ``user``, ``gpt``, ``bot`` and
    ``model`` become ``assistant``, ``function`` becomes ``tool``; so do the other names
    of :data:`tokenlake.etl.text.chat_messages.SYNONYMS`.

    Args:
        role_mapping: {role in the data: role}; these come before the known names.
        use_default_mapping: True to know the names above.

    Example:
        >>> import tokenlake
        >>> tokenlake.ConvertToChatML()({"conversations": [{"from": "human", "value": "Hello"}]})
        {'messages': [{'role': 'user', 'content': 'Hello'}]}
    """

    def __init__(
        self,
        role_mapping: Mapping[str, str] | None = None,
        use_default_mapping: bool = True,
    ) -> None:
        self._reader = ConversationReader(
            role_mapping, use_default_mapping=use_default_mapping
        )

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages.

        Raises:
            BadRecordError: The row has no conversation, or one that cannot be read.
        """
        field = conversation_field(example)
        if field is None:
            raise BadRecordError(
                f"the row has none of the fields {', '.join(MESSAGES_FIELDS)}; its fields are {', '.join(example)}",
                reason="no_messages",
            )
        return _with_messages(example, field, self._reader)


@final
class ConvertInputOutputToChatML(Transform):
    """Makes ``messages`` of a row's input and output: a user's turn and an assistant's.

    They are texts in two fields of the row, or a conversation whose turns are
    ``{"input", "output"}``. A system message, beside them or in a turn, comes first.
    The fields are removed.

    Args:
        input_field: Field of the user's text.
        output_field: Field of the assistant's text.
        system_field: Field of the system message; None: none.

    Example:
        >>> import tokenlake
        >>> tokenlake.ConvertInputOutputToChatML()({"input": "Hello", "output": "Hi"})["messages"]
        [{'role': 'user', 'content': 'Hello'}, {'role': 'assistant', 'content': 'Hi'}]
    """

    def __init__(
        self,
        input_field: str = "input",
        output_field: str = "output",
        system_field: str | None = "system",
    ) -> None:
        self._input_field = input_field
        self._names = {input_field: "input", output_field: "output"}
        if system_field is not None:
            self._names[system_field] = "system"
        self._reader = ConversationReader()

    def __call__(self, example: Row) -> Row:
        """Return the row with its messages.

        Raises:
            BadRecordError: The row has no input or output.
        """
        # Without an input, the row may hold a conversation of such pairs.
        if example.get(self._input_field) is None:
            field = conversation_field(example)
            if field is not None:
                return _with_messages(example, field, self._reader)
            raise BadRecordError(
                f"the field {self._input_field!r} is missing or null",
                reason="no_messages",
                field_path=self._input_field,
            )
        # The row is one turn, whose fields get the names that the reader knows.
        turn = {name: example.get(field) for field, name in self._names.items()}
        new_row = dict(example)
        for field in self._names:
            new_row.pop(field, None)
        new_row[OUTPUT_FIELD] = self._reader.read([turn])
        return new_row


def conversation_field(row: Row) -> str | None:
    """Return the field of a row that holds its conversation; None where it has none."""
    for field in MESSAGES_FIELDS:
        if row.get(field) is not None:
            return field
    return None


def _with_messages(row: Row, field: str, reader: ConversationReader) -> Row:
    """Return a row with messages in the place of the conversation in a field."""
    with in_field(field):
        messages = reader.read(row[field])
    new_row = dict(row)
    del new_row[field]
    new_row[OUTPUT_FIELD] = messages
    return new_row
