"""The renderer of a source's conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_messages import (
    ConversationReader,
    in_field,
    tools_of,
    without_nulls,
)
from tokenlake.etl.text.chat_template import ChatTemplate
from tokenlake.etl.text.conversations import Chat, Conversations
from tokenlake.etl.text.renderer import Rendered
from tokenlake.etl.text.special_token_guard import SpecialTokenGuard
from tokenlake.etl.text.template_choice import check_mode, named_tokens, no_template
from tokenlake.etl.tokenizers.files import TokenizerFiles


@final
class ChatRenderer:
    """Renders conversations by a chat template.

    Args:
        chat: Section ``chat``, with its template, and usually the field of the
            messages.
        files: Files of the tokenizer.
        special_tokens_in_text: Treatment of rows that spell a special token, ``fail``
            or ``encode``.

    Raises:
        ConfigError: The template cannot be used, or special tokens of rows should stay
            plain text.
    """

    def __init__(
        self, chat: ResolvedChat, files: TokenizerFiles, special_tokens_in_text: str
    ) -> None:
        check_mode(special_tokens_in_text)
        if chat.template is None:
            raise ConfigError(no_template(files.name, []))
        self._chat = chat
        self._reader = ConversationReader(chat.role_mapping)
        # Variables of the configuration come before the tokenizer's tokens.
        variables = {**named_tokens(files), **chat.template_kwargs}
        variables["add_generation_prompt"] = chat.add_generation_prompt
        self.template: Final = ChatTemplate(
            chat.template,
            variables=variables,
            loss=chat.loss,
            special_tokens=files.special_tokens,
            guarded=special_tokens_in_text == "fail",
            learn_empty_reasoning=chat.learn_empty_reasoning,
            mask_reasoning=chat.mask_reasoning,
        )
        guard = SpecialTokenGuard.of(files, special_tokens_in_text)
        self._conversations = Conversations(self.template, self._reader.roles, guard)
        self.control_tokens: Final = True
        self.columns: Final = self._top_level_fields()

    def _top_level_fields(self) -> tuple[str, ...] | None:
        """Return the fields that are read; None for all."""
        # A field inside another, or one of several that may hold the messages, is known
        # only when the row is read.
        messages_field = self._chat.messages_field
        if messages_field is None or "." in messages_field:
            return None
        if self._chat.tools_field is None:
            return (messages_field,)
        return (messages_field, self._chat.tools_field)

    def render(self, rows: Rows) -> Rendered:
        """Return the texts; a row of which none can be made is bad."""
        fields, conversations = self._conversations_of(rows)
        tools: Sequence[Any] = [None] * len(rows)
        if self._chat.tools_field is not None:
            tools = rows.values(self._chat.tools_field)
        if not rows.has_objects:
            # In columns every object has every key; a null there says that the row has
            # none.
            conversations = list(map(without_nulls, conversations))
            tools = list(map(without_nulls, tools))

        def read(row: int) -> Chat:
            return self._read(fields[row], conversations[row], tools[row])

        return self._conversations.render(conversations, tools, read)

    def _conversations_of(self, rows: Rows) -> tuple[Sequence[str], Sequence[Any]]:
        """Return the field of each row's conversation, and its value.

        It is the first field that is not null.
        """
        fields = MESSAGES_FIELDS
        if self._chat.messages_field is not None:
            fields = (self._chat.messages_field,)
        # Rows without any of the fields keep the name of the first, for the error.
        first_field = fields[0]
        names = [first_field] * len(rows)
        conversations = list(rows.values(first_field))
        for field in fields[1:]:
            for row, value in enumerate(rows.values(field)):
                if conversations[row] is None and value is not None:
                    names[row] = field
                    conversations[row] = value
        return names, conversations

    def _read(self, field: str, conversation: Any, tools: Any) -> Chat:
        """Return a row's messages and tools; BadRecordError where they cannot be used."""
        with in_field(field):
            messages = self._reader.read(conversation)
        with in_field(str(self._chat.tools_field)):
            return messages, tools_of(tools)
