"""What only inputs and tokenizer can say of a source: whether its rows are conversations, and by which template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from tokenlake.build.planning.settleprompt import check_prompt
from tokenlake.config.near import did_you_mean
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.resolved_texts import MESSAGES_FIELDS, ResolvedChat, ResolvedTexts
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.rows import Rows
from tokenlake.sources.firstrows import columns_of_files, first_rows
from tokenlake.sources.inputs import InputFile
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.chat.renderer import ChatRenderer
from tokenlake.transforms.chat.sources import chosen_template, templates_of
from tokenlake.transforms.configured import open_chain
from tokenlake.transforms.preference.settling import settled_preference

_WITHOUT_MESSAGES: Final = ("text", "csv", "tsv")
"""Formats whose records hold no lists."""
_FILES: Final = 8  # whose first records are looked at
_RECORDS: Final = 1000  # of each: those that `where` leaves out may come first
_SHOWN: Final = 20  # names of fields in a message


def settle(
    source: ResolvedSource, files: Sequence[InputFile], tokenizer: TokenizerFiles, eos_id: int | None = None
) -> tuple[ResolvedSource, list[str]]:
    """Return the source with nothing left open, and notes for the plan on what was found.

    Args:
        eos_id: what ends a document; None where neither tokenizer nor configuration names one.

    Raises:
        ConfigError: what is asked for cannot be had from these inputs or this tokenizer.
    """
    texts, notes = source.texts, list[str]()
    if texts.chat is None and not (texts.prompt or texts.preference):
        field = _found_messages(source, files)
        if field is not None:
            texts = replace(texts, chat=ResolvedChat(messages_field=field))
            notes.append(
                f"{source.name}: rows are conversations (field {field}); rendered by the tokenizer's chat template"
            )
    try:
        if texts.chat is not None:
            source, more = _settle_chat(replace(source, texts=texts), texts.chat, files, tokenizer)
            notes += [f"{source.name}: {note}" for note in more]
        else:
            source = replace(source, texts=_with_template(texts, tokenizer))
        if source.texts.prompt is not None:
            check_prompt(source, source.texts.prompt, files, tokenizer, eos_id)
        _require_text(source, files)
    except ConfigError as error:
        raise ConfigError(f"datasets.{source.name}: {error}", **error.details) from error
    return replace(source, texts=replace(source.texts, left_open=())), notes


def _settle_chat(
    source: ResolvedSource, chat: ResolvedChat, files: Sequence[InputFile], tokenizer: TokenizerFiles
) -> tuple[ResolvedSource, list[str]]:
    """Take the template, find the fields, and make sure that rows can be rendered with them."""
    settings = source.tokenizer
    if "special_tokens_in_text" in source.texts.left_open:
        settings = replace(settings, special_tokens_in_text="fail")
    field = chat.messages_field or _messages_field(_changed(source, first_rows(source, files)))
    chat = replace(
        chat,
        template=chosen_template(chat.template, tokenizer),
        messages_field=field,
        tools_field=_tools_field(source, chat.tools_field, files),
    )
    renderer = ChatRenderer(chat, tokenizer, settings.special_tokens_in_text)
    source = replace(source, tokenizer=settings, texts=replace(source.texts, chat=chat))
    return source, _notes_on(chat, renderer, tokenizer)


def _notes_on(chat: ResolvedChat, renderer: ChatRenderer, tokenizer: TokenizerFiles) -> list[str]:
    notes: list[str] = []
    if chat.loss == "assistant" and not renderer.template.marked:
        notes.append(
            "the chat template has no generation marks; what the assistant says is found, and verified, by rendering "
            "each conversation up to each of its turns"
        )
    others = [name for name, text in templates_of(tokenizer).items() if text != chat.template]
    if others:
        notes.append(
            f"the tokenizer has other chat templates, too: {', '.join(others)} (chat.template names one)"
        )
    return notes


def _with_template(texts: ResolvedTexts, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Put the tokenizer's template where prompts and preferences may need it."""
    if texts.prompt is not None and texts.prompt.format_type == "chat":
        template = chosen_template(texts.prompt.chat_template, tokenizer)
        return replace(texts, prompt=replace(texts.prompt, chat_template=template))
    if texts.preference is not None:
        return replace(texts, preference=settled_preference(texts.preference, tokenizer))
    return texts


def _found_messages(source: ResolvedSource, files: Sequence[InputFile]) -> str | None:
    """Return the field of conversations where nobody said what the text is, and the rows have none."""
    if "content_field" not in source.texts.left_open or all(
        file.format in _WITHOUT_MESSAGES for file in files
    ):
        return None
    columns = [] if source.texts.rows_change else columns_of_files(source, files[:1])
    if columns and (source.content_field in columns[0] or not columns[0] & {*MESSAGES_FIELDS}):
        return None
    rows = _changed(source, first_rows(source, files))
    if not len(rows) or any(isinstance(value, str) for value in rows.values(source.content_field)):
        return None
    return next((field for field in MESSAGES_FIELDS if _holds_turns(rows.values(field))), None)


def _require_text(source: ResolvedSource, files: Sequence[InputFile]) -> None:
    """Raise ConfigError where the text is a field that none of the first records has."""
    field = source.content_field
    if not source.texts.is_plain or any(file.format == "text" for file in files):
        return
    seen: dict[str, None] = {}
    for file in files[:_FILES]:
        names = _field_names(source, file)
        if field in names or field.split(".", 1)[0] in names:
            return
        seen.update(dict.fromkeys(names))
    if seen:
        raise ConfigError(
            f"content_field: got {field!r}, but none of the first records has it; their fields are "
            f"{', '.join(islice(seen, _SHOWN))}{did_you_mean(field, seen)}",
            source=source.name,
            field=field,
        )


def _field_names(source: ResolvedSource, file: InputFile) -> Sequence[str]:
    if file.format in ("parquet", "arrow"):
        return sorted(columns_of_files(source, [file])[0])
    rows = first_rows(source, [file], _RECORDS)
    return (
        list(dict.fromkeys(chain.from_iterable(rows.objects)))
        if rows.has_objects
        else rows.columns.schema.names
    )


def _changed(source: ResolvedSource, rows: Rows) -> Rows:
    """Return rows as the configured steps leave them; what fails there is not our concern here."""
    if not source.texts.rows_change:
        return rows
    try:
        return open_chain(source.texts).on_rows(rows).rows
    except TokenlakeError:
        return rows


def _holds_turns(values: Sequence[Any]) -> bool:
    """Whether most of the values are lists; a record may be bad among the first ones, too."""
    given = [isinstance(value, list) for value in values if value is not None]
    return bool(given) and 2 * sum(given) > len(given)


def _messages_field(rows: Rows) -> str:
    for field in MESSAGES_FIELDS:
        if any(value is not None for value in rows.values(field)):
            return field
    names = ", ".join(rows.objects[0]) if len(rows) else "none: there are no rows"
    raise ConfigError(
        f"chat.messages_field: not set, and the first rows have none of {', '.join(MESSAGES_FIELDS)}; their fields "
        f"are {names}. Name the field that holds the conversation"
    )


def _tools_field(source: ResolvedSource, field: str | None, files: Sequence[InputFile]) -> str | None:
    """Return the field of tools, None where no file has it; a column can only be read where it is."""
    columns = [] if source.texts.rows_change or field is None else columns_of_files(source, files)
    if not columns:
        return field
    having = sum(field in names for names in columns)
    if 0 < having < len(columns):
        raise ConfigError(
            f"chat.tools_field: {having} of {len(columns)} files have the column {field!r}, the others lack it; "
            "set it to null to render no tools, or make two datasets of the files"
        )
    return field if having else None
