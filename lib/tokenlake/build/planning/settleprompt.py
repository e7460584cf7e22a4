"""What inputs and tokenizer say against a prompt, before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

from tokenlake.config.near import did_you_mean
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.resolved_texts import ResolvedPrompt
from tokenlake.errors import ConfigError, TokenlakeError
from tokenlake.rows import Rows
from tokenlake.sources.firstrows import first_rows
from tokenlake.sources.inputs import InputFile
from tokenlake.tokenizers import TokenizerFiles
from tokenlake.transforms.configured import open_chain
from tokenlake.transforms.prompt.opening import open_prompt
from tokenlake.transforms.prompt.settling import check_end


def check_prompt(
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
    check_end(prompt, tokenizer, eos_id)
    renderer = open_prompt(prompt, tokenizer, source.tokenizer.special_tokens_in_text)
    if source.on_bad_record == "fail":  # else rows without a column are set aside, even if they come first
        _check_columns(source, renderer.needed, prompt.label_column, files)


def _check_columns(
    source: ResolvedSource, needed: Sequence[str], label: str | None, files: Sequence[InputFile]
) -> None:
    try:
        rows = open_chain(source.texts).on_rows(first_rows(source, files)).rows
    except TokenlakeError:
        return  # the build will say of which record
    names = _names(rows)
    for column in needed:
        if names and column not in names and column.partition(".")[0] not in names:
            path = f"prompt.{'label_column' if column == label else 'input_columns'}"
            has = ", ".join(map(repr, names))
            raise ConfigError(
                f"{path}: the first rows have no column {column!r}; they have {has}{did_you_mean(column, names)}",
                field_path=path,
                expected=has,
                got=column,
            )


def _names(rows: Rows) -> list[str]:
    if not len(rows):
        return []
    if rows.has_objects:
        return list(dict.fromkeys(name for row in rows.objects for name in row))
    return rows.columns.schema.names
