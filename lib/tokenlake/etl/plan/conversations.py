"""Conversations: whether the rows of a source are some, and the chat template and
fields that render them.

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
    """Return the field of conversations; None where the rows of a source are texts, or
    a field of texts is named.

    Args:
        source: Source of the rows.
        files: Its input files.
        rows: First rows, where there are no files to read.
    """
    if "content_field" not in source.texts.left_open:
        return None
    fields = MESSAGES_FIELDS
    if rows is not None:
        fields = (source.content_field, *MESSAGES_FIELDS)
    elif not _may_hold_conversations(source, files):
        return None
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
    """Return False where the formats or the columns of files rule conversations out,
    without reading rows.
    """
    if not any(file.facts.nested for file in files):
        return False
    if source.texts.rows_change:
        # The steps give the rows other fields than the columns of the files.
        return True
    columns = columns_of_files(source, files[:1])
    if not columns:
        return True
    return source.content_field not in columns[0] and not columns[0].isdisjoint(
        MESSAGES_FIELDS
    )


def _are_mostly_lists(values: Sequence[Any]) -> bool:
    present = 0
    lists = 0
    for value in values:
        if value is not None:
            present += 1
        if isinstance(value, list):
            lists += 1
    return 2 * lists > present


def settle_chat(
    source: ResolvedSource,
    chat: ResolvedChat,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    rows: Rows | None,
) -> tuple[ResolvedSource, list[str]]:
    """Return a source of conversations with its template and its fields, and notes on
    them.

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

    settings = source.tokenizer
    if "special_tokens_in_text" in source.texts.left_open:
        settings = replace(settings, special_tokens_in_text="fail")
    messages_field = chat.messages_field
    if not messages_field:
        messages_field = _require_messages_field(first_rows_of(source, files, rows))
    chat = replace(
        chat,
        template=chosen_template(chat.template, tokenizer),
        messages_field=messages_field,
        tools_field=_tools_field(source, chat.tools_field, files),
    )
    renderer = ChatRenderer(chat, tokenizer, settings.special_tokens_in_text)
    source = replace(source, tokenizer=settings, texts=replace(source.texts, chat=chat))

    notes: list[str] = []
    if chat.loss == "assistant" and not renderer.template.marked:
        notes.append(
            "the chat template has no generation marks; the assistant's turns are located, and verified, by "
            "rendering conversations again with markers in their place"
        )
    other_templates = [
        name for name, text in templates_of(tokenizer).items() if text != chat.template
    ]
    if other_templates:
        names = ", ".join(other_templates)
        notes.append(
            f"the tokenizer has further chat templates: {names} (chat.template names one)"
        )
    return source, notes


def _require_messages_field(rows: Rows) -> str:
    """Return the first usual field of conversations that has a value in the rows;
    ConfigError where none has.
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
    """Return the field of tools; None where no file has it.

    A column can only be read where it is, so that a field that only some of the files
    have is an error.
    """
    if source.texts.rows_change or field is None:
        return field
    columns = columns_of_files(source, files)
    if not columns:
        return field
    files_with_field = sum(1 for names in columns if field in names)
    if files_with_field == 0:
        return None
    if files_with_field < len(columns):
        raise ConfigError(
            f"chat.tools_field: {files_with_field} of {len(columns)} files have the column {field!r}, the others "
            "lack it; set it to null to render no tools, or use a separate dataset for them"
        )
    return field
