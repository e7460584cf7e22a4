"""The choices of a source that only its inputs and its tokenizer can decide.

These are: whether its rows are conversations, the chat template that renders them, whether a prompt fits its columns,
and the sentinels of fill-in-the-middle. The types of kept fields are decided in :mod:`tokenlake.etl.plan.kept_types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import (
    MESSAGES_FIELDS,
    ResolvedChat,
    ResolvedFim,
    ResolvedPrompt,
    ResolvedSource,
    ResolvedTexts,
)
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.etl.sources.first_records import columns_of_files, first_rows
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.steps import open_chain
from tokenlake.etl.tokenizers.files import TokenizerFiles


def _check_prompt(
    source: ResolvedSource,
    prompt: ResolvedPrompt,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None,
) -> None:
    """Require a template that fits its columns, columns that the rows have, and an end of answers.

    Raises:
        ConfigError: one of them is not so.
    """
    from tokenlake.etl.text.prompt_renderer import check_end, open_prompt

    check_end(prompt, tokenizer, eos_id)
    renderer = open_prompt(prompt, tokenizer, source.tokenizer.special_tokens_in_text)
    if source.on_bad_record != "fail":
        return  # rows without a column are set aside, even if they come first
    rows = _stepped(source, first_rows(source, files))
    names = [] if rows is None else field_names(rows)  # else the build will say of which record
    for column in getattr(renderer, "needed", ()):
        if names and column not in names and column.partition(".")[0] not in names:
            path = f"prompt.{'label_column' if column == prompt.label_column else 'input_columns'}"
            has = ", ".join(map(repr, names))
            raise ConfigError(
                f"{path}: the first rows have no column {column!r}; they have {has}{did_you_mean(column, names)}",
                field_path=path,
                expected=has,
                got=column,
            )


def field_names(rows: Rows) -> list[str]:
    """Return the names of the fields of rows."""
    if rows.has_objects:
        return list(dict.fromkeys(chain.from_iterable(rows.objects)))
    return rows.columns.schema.names if len(rows) else []


def _stepped(source: ResolvedSource, rows: Rows) -> Rows | None:
    """Return rows after the configured steps; None where a step fails, which the build will report."""
    try:
        return open_chain(source.texts).on_rows(rows).rows
    except TokenlakeError:
        return None


_FILES: Final = 8  # files whose first records are looked at
RECORDS_LOOKED_AT: Final = 1000  # records of each file: those that `where` leaves out may come first
FIELDS_SHOWN: Final = 20  # names of fields in a message


def settle(
    source: ResolvedSource,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None = None,
    rows: Rows | None = None,
) -> tuple[ResolvedSource, list[str]]:
    """Return the source with all choices made, and notes for the plan.

    Args:
        source: Source of a configuration.
        files: Its input files.
        tokenizer: Its tokenizer.
        eos_id: Id that ends a document; None where neither tokenizer nor configuration names one.
        rows: First rows, where there are no files to look at.

    Raises:
        ConfigError: the configuration does not fit these inputs or this tokenizer.
    """
    texts = source.texts
    notes: list[str] = []
    if texts.chat is None and not (texts.prompt or texts.preference):
        field = _found_messages(source, files, rows)
        if field is not None:
            texts = replace(texts, chat=ResolvedChat(messages_field=field))
            notes.append(
                f"{source.name}: rows are conversations (field {field}); rendered by the tokenizer's chat template"
            )
    try:
        if texts.fim is not None and (texts.masked or texts.preference):
            raise ConfigError(
                "fim: only plain texts can be infilled, and these rows are conversations; leave it out, or name the "
                "field of a text: content_field"
            )
        if texts.chat is not None:
            source, more = _settle_chat(replace(source, texts=texts), texts.chat, files, tokenizer, rows)
            notes += [f"{source.name}: {note}" for note in more]
        else:
            source = replace(source, texts=_with_template(texts, tokenizer))
        if source.texts.fim is not None:
            source = replace(source, texts=_with_sentinels(source.texts, source.texts.fim, tokenizer))
        if source.texts.prompt is not None:
            _check_prompt(source, source.texts.prompt, files, tokenizer, eos_id)
        _require_text(source, files)
    except ConfigError as error:
        raise ConfigError(f"datasets.{source.name}: {error}", **error.details) from error
    return replace(source, texts=replace(source.texts, left_open=())), notes


def _settle_chat(
    source: ResolvedSource,
    chat: ResolvedChat,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    rows: Rows | None,
) -> tuple[ResolvedSource, list[str]]:
    """Take the template, find the fields, and make sure that rows can be rendered with them."""
    from tokenlake.etl.text.chat_renderer import ChatRenderer
    from tokenlake.etl.text.template_choice import chosen_template, templates_of

    settings = source.tokenizer
    if "special_tokens_in_text" in source.texts.left_open:
        settings = replace(settings, special_tokens_in_text="fail")
    field = chat.messages_field or _messages_field(_first(source, files, rows))
    chat = replace(
        chat,
        template=chosen_template(chat.template, tokenizer),
        messages_field=field,
        tools_field=_tools_field(source, chat.tools_field, files),
    )
    renderer = ChatRenderer(chat, tokenizer, settings.special_tokens_in_text)
    source = replace(source, tokenizer=settings, texts=replace(source.texts, chat=chat))
    notes: list[str] = []
    if chat.loss == "assistant" and not renderer.template.marked:
        notes.append(
            "the chat template has no generation marks; what the assistant says is found, and verified, by rendering "
            "conversations again with marks in the place of its words"
        )
    others = [name for name, text in templates_of(tokenizer).items() if text != chat.template]
    if others:
        notes.append(
            f"the tokenizer has other chat templates, too: {', '.join(others)} (chat.template names one)"
        )
    return source, notes


def _with_template(texts: ResolvedTexts, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Put the tokenizer's template where prompts and preferences may need it."""
    if texts.prompt is not None and texts.prompt.format_type == "chat":
        from tokenlake.etl.text.template_choice import chosen_template

        template = chosen_template(texts.prompt.chat_template, tokenizer)
        return replace(texts, prompt=replace(texts.prompt, chat_template=template))
    if texts.preference is not None:
        from tokenlake.etl.text.preference_renderer import settled_preference

        return replace(texts, preference=settled_preference(texts.preference, tokenizer))
    return texts


_SENTINELS: Final = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"),  # Code Llama
)


def _with_sentinels(texts: ResolvedTexts, fim: ResolvedFim, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Put in the sentinels of fill-in-the-middle; ConfigError where the tokenizer has none."""
    families = (fim.tokens,) if fim.tokens else _SENTINELS
    for names in families:
        if all(tokenizer.token_id(name) is not None for name in names):
            return replace(texts, fim=replace(fim, tokens=names))
    missing = next(name for name in families[0] if tokenizer.token_id(name) is None)
    if fim.tokens:
        more = did_you_mean(missing, tokenizer.special_tokens)
    else:
        more = f" and none of {', '.join(names[0] for names in families[1:])}"
    raise ConfigError(
        f"fim.tokens: tokenizer {tokenizer.name!r} has no token {missing!r}{more}; expected the names of its sentinels "
        "of prefix, suffix and middle. Add such tokens to its tokenizer.json, or name those that it has",
        tokenizer=tokenizer.name,
    )


def _found_messages(source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None) -> str | None:
    """Return the field of conversations, if the configuration names no text field and the rows have no text."""
    if "content_field" not in source.texts.left_open:
        return None
    fields = MESSAGES_FIELDS
    if rows is not None:
        fields = (source.content_field, *MESSAGES_FIELDS)
    elif not _may_hold_messages(source, files):
        return None
    first = _first(source, files, rows)
    if not len(first):
        return None
    for value in first.values(source.content_field):
        if isinstance(value, str):
            return None
    for field in fields:
        if _holds_turns(first.values(field)):
            return field
    return None


def _may_hold_messages(source: ResolvedSource, files: Sequence[InputFile]) -> bool:
    """Return False if formats or columns of the files say without their rows that they hold no conversations."""
    if not any(file.facts.nested for file in files):
        return False
    if source.texts.rows_change:  # the columns of the files are not those of the rows
        return True
    columns = columns_of_files(source, files[:1])
    if not columns:
        return True
    return source.content_field not in columns[0] and not columns[0].isdisjoint(MESSAGES_FIELDS)


def _first(source: ResolvedSource, files: Sequence[InputFile], rows: Rows | None) -> Rows:
    """Return the first rows of a source, after its steps where these succeed."""
    if rows is not None:
        return rows
    read_rows = first_rows(source, files)
    if not source.texts.rows_change:
        return read_rows
    changed_rows = _stepped(source, read_rows)
    return read_rows if changed_rows is None else changed_rows


def _require_text(source: ResolvedSource, files: Sequence[InputFile]) -> None:
    """Raise ConfigError where the text is a field that none of the first records has."""
    field = source.content_field
    if not source.texts.is_plain:
        return
    seen: dict[str, None] = {}
    for file in files[:_FILES]:
        if file.has_blocks:
            names = sorted(columns_of_files(source, [file])[0])
        else:
            names = field_names(first_rows(source, [file], RECORDS_LOOKED_AT))
        if field in names or field.split(".", 1)[0] in names:
            return
        seen.update(dict.fromkeys(names))
    if seen and all(file.format != "text" for file in files):
        raise ConfigError(
            f"content_field: got {field!r}, but none of the first records has it; their fields are "
            f"{', '.join(islice(seen, FIELDS_SHOWN))}{did_you_mean(field, seen)}",
            source=source.name,
            field=field,
        )


def _holds_turns(values: Sequence[Any]) -> bool:
    """Return whether most of the values are lists: a few of the first records may be bad."""
    present = 0
    lists = 0
    for value in values:
        if value is not None:
            present += 1
        if isinstance(value, list):
            lists += 1
    return 2 * lists > present


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
    if source.texts.rows_change or field is None:
        return field
    columns = columns_of_files(source, files)
    if not columns:
        return field
    with_field = sum(1 for names in columns if field in names)
    if 0 < with_field < len(columns):
        raise ConfigError(
            f"chat.tools_field: {with_field} of {len(columns)} files have the column {field!r}, the others lack it; "
            "set it to null to render no tools, or make two datasets of the files"
        )
    return field if with_field else None
