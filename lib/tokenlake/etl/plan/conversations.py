"""Conversations: whether rows are some, and the template and fields to render them.

A source whose configuration names no field of texts has conversations where these three
are so:

1. No first row has a text in the usual field of texts.
2. A field with a usual name (`messages`, `conversations` ...) has values.
3. At least half of these values are lists: a few of the first records may be bad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat, ResolvedSource
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.first_records import first_rows_of
from tokenlake.etl.sources.first_records import columns_of_files
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.tokenizers.files import TokenizerFiles


def find_messages_field(
    source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None
) -> str | None:
    """Return the field of conversations of a source, None if it has texts.

    A source whose configuration names a field of texts has texts.

    Args:
        source: Source of the rows.
        files: Its input files.
        rows: First rows, where there are no files to read.
    """
    # 1. The fields that may hold conversations.
    if "content_field" not in source.texts.left_open:
        return None
    fields = MESSAGES_FIELDS
    if rows is not None:
        fields = (source.content_field, *MESSAGES_FIELDS)
    elif not _may_hold_conversations(source, files):
        return None

    # 2. The values of these fields in the first rows.
    first_rows = first_rows_of(source, files, rows)
    if len(first_rows) == 0:
        return None
    for value in first_rows.values(source.content_field):
        if isinstance(value, str):
            return None
    for field in fields:
        if _are_mostly_lists(first_rows.values(field)):
            return field
    return None


def _may_hold_conversations(source: ResolvedSource, files: Sequence[InputFile]) -> bool:
    """Whether files may hold conversations, by their formats and columns.

    No rows are read.
    """
    if not any(file.facts.nested for file in files):
        return False
    if source.texts.rows_change:
        # The steps give the rows other fields than the columns of the files.
        return True
    columns = columns_of_files(source, files[:1])
    if not columns:
        return True
    has_texts = source.content_field in columns[0]
    has_conversations = not columns[0].isdisjoint(MESSAGES_FIELDS)
    return has_conversations and not has_texts


def _are_mostly_lists(values: Sequence[Any]) -> bool:
    """Whether at least half of some values are lists; missing ones do not count."""
    value_count = 0
    list_count = 0
    for value in values:
        if value is not None:
            value_count += 1
        if isinstance(value, list):
            list_count += 1
    return 2 * list_count > value_count


def settle_chat(
    source: ResolvedSource,
    chat: ResolvedChat,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    rows: Rows | None,
) -> tuple[ResolvedSource, list[str]]:
    """Return a source of conversations with its template and fields, and notes.

    Args:
        source: Source of the rows.
        chat: Its section `chat`, as far as the configuration has it.
        files: Its input files.
        tokenizer: Its tokenizer.
        rows: First rows, where there are no files to read.

    Raises:
        ConfigError: The rows have no conversations, or the template cannot render them.
    """
    # A build without conversations is planned without importing a template engine.
    from tokenlake.etl.text.chat_renderer import ChatRenderer
    from tokenlake.etl.text.template_choice import chosen_template, templates_of

    # 1. Options. A special token in a message would be mistaken for one of the
    #    template.
    settings = source.tokenizer
    if "special_tokens_in_text" in source.texts.left_open:
        settings = replace(settings, special_tokens_in_text="fail")
    messages_field = chat.messages_field
    if not messages_field:
        messages_field = _require_messages_field(first_rows_of(source, files, rows))

    # 2. The template, which is opened to find its errors before the build.
    chat = replace(
        chat,
        template=chosen_template(chat.template, tokenizer),
        messages_field=messages_field,
        tools_field=_tools_field(source, chat.tools_field, files),
    )
    renderer = ChatRenderer(chat, tokenizer, settings.special_tokens_in_text)
    source = replace(source, tokenizer=settings, texts=replace(source.texts, chat=chat))

    # 3. Notes.
    notes: list[str] = []
    if chat.loss == "assistant" and not renderer.template.marked:
        notes.append(
            "the chat template has no generation marks; the assistant's turns are located, and verified, by "
            "rendering conversations again with markers in their place"
        )
    other_templates: list[str] = []
    for template_name, template in templates_of(tokenizer).items():
        if template != chat.template:
            other_templates.append(template_name)
    if other_templates:
        names = ", ".join(other_templates)
        notes.append(
            f"the tokenizer has further chat templates: {names} (chat.template names one)"
        )
    return source, notes


def _require_messages_field(rows: Rows) -> str:
    """Return the first usual field of conversations that has a value in the rows.

    Raises:
        ConfigError: None has one.
    """
    for field in MESSAGES_FIELDS:
        if any(value is not None for value in rows.values(field)):
            return field
    names = "none: there are no rows"
    if len(rows):
        names = ", ".join(rows.objects[0])
    raise ConfigError(
        f"chat.messages_field: not set, and the first rows have none of {', '.join(MESSAGES_FIELDS)}; their fields "
        f"are {names}. Name the field that holds the conversation"
    )


def _tools_field(
    source: ResolvedSource, field: str | None, files: Sequence[InputFile]
) -> str | None:
    """Return the field of tools, None if no file has it.

    A column can only be read where it is. So a field that only some files have is an
    error.

    Raises:
        ConfigError: Only some of the files have the field.
    """
    if source.texts.rows_change or field is None:
        return field
    columns = columns_of_files(source, files)
    if not columns:
        return field
    files_with_field = 0
    for names in columns:
        if field in names:
            files_with_field += 1
    if files_with_field == 0:
        return None
    if files_with_field < len(columns):
        raise ConfigError(
            f"chat.tools_field: {files_with_field} of {len(columns)} files have the column {field!r}, the others "
            "lack it; set it to null to render no tools, or use a separate dataset for them"
        )
    return field
