"""What stands where in the text of a prompt, worked out once for a source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Never, final

from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.prompt.template import Piece, parse_template
from tokenlake.text.prompt.values import values_of
from tokenlake.tokenizers.files import TokenizerFiles

_PLAIN: Final = "expected a text that spells no special token of the tokenizer"


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The pieces of a prompt of format ``custom`` or ``completion``.

    Attributes:
        pieces: in order; system message and examples are text among them.
        columns: those used, each once.
        optional: of these, the ones that may be null or missing.
        label: the answer's column, None where everything is learned alike.
        control: whether the text that stays spells special tokens, which are to become control ids.
        specials: how many of them it spells.
    """

    pieces: tuple[Piece, ...]
    columns: tuple[str, ...]
    optional: frozenset[str]
    label: str | None
    specials: int

    @property
    def control(self) -> bool:
        return self.specials > 0


def lay_out(prompt: ResolvedPrompt, files: TokenizerFiles) -> Layout:
    """Return the pieces of `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    body = _body(prompt)
    found = special_pattern(files)
    head = _head(body, prompt)
    control = any(_count(found, piece.text) for piece in (*head, *body))
    if control:
        _check_row_texts(prompt, body, found)
    pieces = (*head, *_learned(body, prompt, files.eos_token if control else None))
    return Layout(
        pieces=pieces,
        columns=tuple(dict.fromkeys(piece.column for piece in body if piece.column)),
        optional=frozenset(prompt.optional_columns),
        label=prompt.label_column,
        specials=sum(_count(found, piece.text) for piece in pieces if not piece.column),
    )


def special_pattern(files: TokenizerFiles) -> str:
    """Return a regular expression of all special tokens of a tokenizer, the longer first; "" for none."""
    tokens = sorted(
        {token for token in files.special_tokens if token}, key=lambda token: (-len(token), token)
    )
    return "|".join(map(re.escape, tokens))


def input_text(values: Iterable[str], separator: str) -> str:
    """Join the input columns of one row, leaving empty ones out."""
    return separator.join(value for value in values if value)


def _body(prompt: ResolvedPrompt) -> tuple[Piece, ...]:
    if prompt.format_type == "completion":
        inputs = [Piece(text=prompt.separator, column=name) for name in prompt.input_columns]
        return (*inputs, Piece(column=prompt.label_column))
    label = (prompt.label_column,) if prompt.label_column else ()
    body = parse_template(
        prompt.template or "", (*prompt.input_columns, *label) if prompt.input_columns else ()
    )
    _check_use(prompt, [piece.column for piece in body if piece.column])
    return body


def _check_use(prompt: ResolvedPrompt, used: Sequence[str]) -> None:
    unused = [name for name in prompt.input_columns if name not in used]
    if unused:
        _refuse("input_columns", f"{unused[0]!r} is not used in the template", unused[0])
    if prompt.label_column and used.count(prompt.label_column) != 1:
        times = used.count(prompt.label_column)
        near = did_you_mean(prompt.label_column, used) if not times else ""
        _refuse(
            "label_column",
            f"{prompt.label_column!r} stands {times} times in the template, expected once{near}",
            prompt.label_column,
        )
    for name in prompt.optional_columns:
        if name not in used:
            _refuse(
                "optional_columns", f"{name!r} is not used in the template{did_you_mean(name, used)}", name
            )


def example_text(body: Sequence[Piece], prompt: ResolvedPrompt, index: int) -> str:
    """Return a worked example as text.

    Raises:
        ConfigError: it lacks a column, or a value cannot stand in a prompt.
    """
    row: Row = dict(prompt.examples[index])
    parts: list[str] = []
    for piece in body:
        value = piece.text if piece.column is None else example_value(row, piece.column, prompt, index)
        parts.append(value + piece.text if piece.column and value else value)
    return "".join(parts)


def example_value(row: Row, column: str, prompt: ResolvedPrompt, index: int) -> str:
    """Return one value of a worked example as text.

    Raises:
        ConfigError: it is missing, or cannot stand in a prompt.
    """
    values = values_of(Rows(objects=[row]), column, optional=column in prompt.optional_columns)
    fault = values.faults.get(0)
    text = str(values.text[0].as_py())
    if fault is None and column == prompt.label_column and not text:
        fault = Fault("empty_label", "the answer is empty")
    if fault is not None:
        _refuse(f"examples.{index}", fault.detail, column)
    return text


def _check_row_texts(prompt: ResolvedPrompt, body: Sequence[Piece], pattern: str) -> None:
    """Where the template spells control tokens, neither the rows of the examples nor a separator may."""
    if prompt.format_type == "completion" and _count(pattern, prompt.separator):
        _refuse("separator", f"spells a special token; {_PLAIN}, or format_type 'custom'", prompt.separator)
    for index, row in enumerate(prompt.examples):
        for column in (piece.column for piece in body if piece.column):
            text = example_value(dict(row), column, prompt, index)
            if _count(pattern, text):
                _refuse(f"examples.{index}", f"the column {column!r} spells a special token; {_PLAIN}", text)


def _learned(body: Sequence[Piece], prompt: ResolvedPrompt, eos: str | None) -> tuple[Piece, ...]:
    """Mark what is learned: all, or the label and the EOS that the template spells after it."""
    if _learns_all(prompt):
        return tuple(replace(piece, learned=True) for piece in body)
    pieces: list[Piece] = []
    after = False
    for piece in body:
        if piece.column == prompt.label_column:
            pieces.append(replace(piece, learned=True))
            after = True
        elif after and eos and piece.column is None and eos in piece.text:
            start, _, rest = piece.text.partition(eos)
            joined = not start.strip() and pieces[-1].learned
            pieces += [Piece(start, learned=joined), Piece(eos, learned=True), Piece(rest)]
            after = False
        else:
            pieces.append(piece)
    return tuple(piece for piece in pieces if piece.column or piece.text)


def _head(body: Sequence[Piece], prompt: ResolvedPrompt) -> tuple[Piece, ...]:
    """System message and examples; the latter come before every prompt, so that nobody needs to learn them again."""
    apart = prompt.example_separator
    system = (
        [Piece(prompt.system_message + apart, learned=_learns_all(prompt))] if prompt.system_message else []
    )
    examples = "".join(example_text(body, prompt, index) + apart for index in range(len(prompt.examples)))
    return (*system, *([Piece(examples)] if examples else []))


def _learns_all(prompt: ResolvedPrompt) -> bool:
    return not prompt.mask_input or not prompt.label_column


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text)) if pattern else 0


def _refuse(field: str, what: str, got: str) -> Never:
    path = f"prompt.{field}"
    raise ConfigError(f"{path}: {what}", field_path=path, expected=what, got=got[:200])
