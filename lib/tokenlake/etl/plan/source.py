"""Choices of a source that only its inputs and its tokenizer can decide.

1. Are its rows conversations, and which chat template renders them? See
   :mod:`tokenlake.etl.plan.conversations`.
2. Which chat template do prompts and preferences use?
3. Which tokens are the sentinels of fill-in-the-middle? See
   :mod:`tokenlake.etl.plan.infilling_tokens`.
4. Do the rows have the fields of the prompt, or of the texts?

The types of kept fields are decided in :mod:`tokenlake.etl.plan.kept_types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from tokenlake.base.checks import did_you_mean
from tokenlake.config.resolved import (
    ResolvedChat,
    ResolvedPrompt,
    ResolvedSource,
    ResolvedTexts,
)
from tokenlake.errors import ConfigError
from tokenlake.etl.plan.conversations import find_messages_field, settle_chat
from tokenlake.etl.plan.first_records import (
    FIELDS_SHOWN,
    FILES_LOOKED_AT,
    RECORDS_LOOKED_AT,
    after_steps,
    field_names,
)
from tokenlake.etl.plan.infilling_tokens import with_sentinels
from tokenlake.etl.sources.first_records import columns_of_files, first_rows
from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.tokenizers.files import TokenizerFiles


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
        eos_id: Id that ends a document; None where neither tokenizer nor configuration
            names one.
        rows: First rows, where there are no files to read.

    Raises:
        ConfigError: The configuration does not fit these inputs or this tokenizer.
    """
    # 1. Rows may be conversations if the configuration names no kind of texts.
    notes: list[str] = []
    texts = source.texts
    has_kind = texts.chat is not None or texts.prompt or texts.preference
    if not has_kind:
        field = find_messages_field(source, files, rows)
        if field is not None:
            chat = ResolvedChat(messages_field=field)
            source = replace(source, texts=replace(texts, chat=chat))
            notes.append(
                f"{source.name}: rows are conversations (field {field}); rendered by the tokenizer's chat template"
            )

    # 2. The choices of that kind. Nothing is left open after them.
    try:
        source, notes_on_chat = _settle_texts(source, files, tokenizer, eos_id, rows)
    except ConfigError as error:
        raise ConfigError(
            f"datasets.{source.name}: {error}", **error.details
        ) from error
    notes.extend(f"{source.name}: {note}" for note in notes_on_chat)
    return replace(source, texts=replace(source.texts, left_open=())), notes


def _settle_texts(
    source: ResolvedSource,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None,
    rows: Rows | None,
) -> tuple[ResolvedSource, list[str]]:
    """Make the choices for the kind of texts that a source has.

    See :func:`settle` for the arguments.
    """
    texts = source.texts
    notes: list[str] = []
    if texts.fim is not None and (texts.masked or texts.preference):
        raise ConfigError(
            "fim: fill-in-the-middle needs plain texts, and these rows are conversations; leave it out, or name a "
            "text field with content_field"
        )

    # 1. The template.
    if texts.chat is not None:
        source, notes = settle_chat(source, texts.chat, files, tokenizer, rows)
    else:
        source = replace(source, texts=_with_template(texts, tokenizer))

    # 2. The special tokens, and the fields of the first records.
    if source.texts.fim is not None:
        texts = with_sentinels(source.texts, source.texts.fim, tokenizer)
        source = replace(source, texts=texts)
    if source.texts.prompt is not None:
        _check_prompt(source, source.texts.prompt, files, tokenizer, eos_id)
    if source.texts.is_plain:
        _require_text_field(source, files)
    return source, notes


def _with_template(texts: ResolvedTexts, tokenizer: TokenizerFiles) -> ResolvedTexts:
    """Return a section of texts with the tokenizer's chat template.

    Only prompts and preferences may need it.
    """
    # A build of plain texts is planned without importing a template engine.
    if texts.prompt is not None and texts.prompt.format_type == "chat":
        from tokenlake.etl.text.template_choice import chosen_template

        template = chosen_template(texts.prompt.chat_template, tokenizer)
        return replace(texts, prompt=replace(texts.prompt, chat_template=template))
    if texts.preference is not None:
        from tokenlake.etl.text.preference_renderer import settled_preference

        preference = settled_preference(texts.preference, tokenizer)
        return replace(texts, preference=preference)
    return texts


def _check_prompt(
    source: ResolvedSource,
    prompt: ResolvedPrompt,
    files: Sequence[InputFile],
    tokenizer: TokenizerFiles,
    eos_id: int | None,
) -> None:
    """Check the template and the columns of prompts, and the end of their answers.

    Raises:
        ConfigError: The template does not fit its columns, the rows lack a column, or
            nothing ends an answer.
    """
    # A build without prompts is planned without importing a template engine.
    from tokenlake.etl.text.prompt_renderer import check_end, open_prompt

    check_end(prompt, tokenizer, eos_id)
    renderer = open_prompt(prompt, tokenizer, source.tokenizer.special_tokens_in_text)
    if source.on_bad_record != "fail":
        # Rows without a column are set aside, even if they come first.
        return
    rows = after_steps(source, first_rows(source, files))
    if rows is None:
        # A step fails. The build will report the record.
        return
    names = field_names(rows)
    if not names:
        return

    # A column may be a field inside another one, "question.text".
    for column in getattr(renderer, "needed", ()):
        if column in names or column.partition(".")[0] in names:
            continue
        option = "prompt.input_columns"
        if column == prompt.label_column:
            option = "prompt.label_column"
        shown_names = ", ".join(repr(name) for name in names)
        raise ConfigError(
            f"{option}: the first rows have no column {column!r}; they have {shown_names}"
            f"{did_you_mean(column, names)}",
            field_path=option,
            expected=shown_names,
            got=column,
        )


def _require_text_field(source: ResolvedSource, files: Sequence[InputFile]) -> None:
    """Check that one of the first records has the field of the texts.

    Raises:
        ConfigError: None has it.
    """
    field = source.content_field
    # A file with columns states its fields; of others the first records are read.
    seen_names: dict[str, None] = {}
    for file in files[:FILES_LOOKED_AT]:
        if file.has_blocks:
            names = sorted(columns_of_files(source, [file])[0])
        else:
            names = field_names(first_rows(source, [file], RECORDS_LOOKED_AT))
        if field in names or field.split(".", 1)[0] in names:
            return
        seen_names.update(dict.fromkeys(names))
    if seen_names and all(file.format != "text" for file in files):
        shown_names = ", ".join(islice(seen_names, FIELDS_SHOWN))
        raise ConfigError(
            f"content_field: got {field!r}, but none of the first records has it; their fields are "
            f"{shown_names}{did_you_mean(field, seen_names)}",
            source=source.name,
            field=field,
        )
