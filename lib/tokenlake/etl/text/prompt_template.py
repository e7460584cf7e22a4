"""A prompt's template, parsed once into words and columns.

The values of the columns are put between the words.

There are two styles, and a template is of one of them:

- Python's: ``{column}``; a brace itself is written twice, ``{{`` and ``}}``;
- Jinja's: ``{{ column }}``; single braces are text, and a quoted text stands for
  itself, ``{{ '{{' }}``.

Both in one template are an error, since ``{{answer}}`` means one thing in the first and
another in the second. Only columns can stand in the braces: filters, conditions and
loops make it a program (:mod:`tokenlake.etl.text.prompt_renderer`). As in Jinja, one
newline at the very end is dropped: YAML's ``|`` always adds one, and a newline after
the answer would part it from its EOS.

| the value of a column | in the prompt |
|---|---|
| text | itself, also where it is empty |
| a boolean or a number | as JSON writes it: ``true``, ``12``, ``1.5`` |
| null, or no such column | a bad record (``null_column``); nothing at all where the column is optional |
| anything else (a list, an object, a date, NaN) | a bad record (``not_a_string``) |

The text of a value depends on the value alone, never on other rows. So JSON rows are
read as the objects they are: as columns, where a batch holds both ``1`` and ``1.5``,
the former would become ``1.0``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import text_of_strings
from tokenlake.base.checks import did_you_mean
from tokenlake.base.markup import is_encodable
from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.errors import ConfigError
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.renderer import byte_sizes, join_pieces
from tokenlake.etl.text.transform import Column
from tokenlake.etl.tokenizers.encoder import SpecialScan
from tokenlake.etl.tokenizers.offsets import Spans

_COMPUTE: Final[Any] = pc
_TEXT: Final[Any] = pa.large_string()
NAME: Final = re.compile(r"[^\W\d][\w.-]*")
"""Names of columns that need not be named in the configuration."""
_PLAIN_TYPES: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_boolean,
    pa.types.is_integer,
)
"""Types of columns whose values Arrow writes as JSON does."""
# A letter after the blanks: braces that hold words are most often a mistyped column.
_WORD: Final = re.compile(r"\s*[^\W\d]")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
# Quoted text comes first, because it may hold braces. Then come doubled braces with
# their contents, doubled braces alone, single braces with theirs, and single braces
# alone.
_BRACES: Final = re.compile(
    rf"(\{{\{{\s*(?:{_QUOTED.pattern})\s*\}}\}}|\{{\{{[^{{}}]*\}}\}}|\{{\{{|\}}\}}|\{{[^{{}}]*\}}|[{{}}])"
)
_LAST_LINE_END: Final = re.compile(r"\r?\n\Z")
_SHOWN_CHARACTERS: Final = 40


@final
@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A piece of a prompt.

    Attributes:
        text: Words of the template; of a column: words after its value, where that is
            not empty.
        column: Name of the column whose value is put in; None for words of the
            template.
        loss: Whether the piece counts toward the loss.
    """

    text: str = ""
    column: str | None = None
    loss: bool = False


# ---- parsing -------------------------------------------------------------------------


def parse_template(
    template: str, columns: Sequence[str] = ()
) -> tuple[PromptPiece, ...]:
    """Return the pieces of a template, no two texts side by side.

    1. Split the template into words and braces; parts with odd indices are braces.
    2. Decide the style by the braces that hold columns.
    3. Make a piece of each part, and join neighbouring texts.

    Args:
        template: Template.
        columns: Names of the columns that may be used; empty: any.

    Raises:
        ConfigError: Styles are mixed, braces hold more than a column, or an unknown
            column is used.
    """
    # 1. Words have even indices, braces odd ones.
    template = _LAST_LINE_END.sub("", template)
    parts = _BRACES.split(template)
    all_braces = parts[1::2]
    named_braces = [braces for braces in all_braces if _name_in(braces, columns)]
    if not named_braces:
        # Braces that hold something else have an error of their own.
        for braces in all_braces:
            _piece_in_braces(braces, columns, is_jinja=False)
        raise problem(
            "template", "uses no column, so all texts would be equal", template
        )
    # 2. The style.
    is_jinja = _is_jinja_style(named_braces, template)
    # 3. Pieces.
    pieces: list[PromptPiece] = []
    for index, part in enumerate(parts):
        piece = PromptPiece(part)
        if index % 2:
            piece = _piece_in_braces(part, columns, is_jinja=is_jinja)
        if piece.column is None and pieces and pieces[-1].column is None:
            pieces[-1] = PromptPiece(pieces[-1].text + piece.text)
        elif piece.column or piece.text:
            pieces.append(piece)
    return tuple(pieces)


def _is_jinja_style(named_braces: Sequence[str], template: str) -> bool:
    """Return whether columns stand in doubled braces.

    Raises:
        ConfigError: Some do, and others do not.
    """
    doubled_braces: list[str] = []
    single_braces: list[str] = []
    for braces in named_braces:
        if braces.startswith("{{"):
            doubled_braces.append(braces)
        else:
            single_braces.append(braces)
    if doubled_braces and single_braces:
        raise problem(
            "template",
            f"mixes two styles, {doubled_braces[0]!r} and {single_braces[0]!r}: write {{column}} throughout, where "
            "{{ and }} are braces, or {{ column }}, where {{ '{{' }} is one",
            template,
        )
    return bool(doubled_braces)


def _name_in(braces: str, columns: Sequence[str]) -> str:
    """Return the name of the column in braces, "" for none."""
    inside = braces[1:-1]
    if braces.startswith("{{"):
        inside = braces[2:-2].strip()
    if inside in columns or NAME.fullmatch(inside):
        return inside
    return ""


def _piece_in_braces(
    braces: str, columns: Sequence[str], *, is_jinja: bool
) -> PromptPiece:
    """Return the piece that braces stand for.

    | braces | Python's style | Jinja's style |
    |---|---|---|
    | ``{column}`` | the column | text |
    | ``{{ column }}`` | an error: words in doubled braces | the column |
    | ``{{``, ``}}`` | one brace | an error |
    | ``{{ 12 }}`` | text in braces | an error |
    | ``{{ '{' }}`` | an error | the quoted text |
    | ``{``, ``}`` | an error | text |
    """
    # "{{}" and "{{" alone are no pair of doubled braces.
    is_double = len(braces) > 3 and braces.startswith("{{")
    column = _name_in(braces, columns)
    if column and is_double == is_jinja:
        check_known(column, columns)
        return PromptPiece(column=column)
    # Text: braces of the other style, doubled or quoted braces. In Python's style words
    # or braces inside doubled braces are an error, since the other style was meant.
    if is_jinja:
        if not is_double and braces not in ("{{", "}}"):
            return PromptPiece(braces)
        quoted = braces[2:-2].strip()
        if _QUOTED.fullmatch(quoted):
            return PromptPiece(quoted[1:-1])
    elif braces in ("{{", "}}"):
        return PromptPiece(braces[0])
    elif is_double:
        inside = braces[2:-2]
        has_word = _WORD.match(inside) is not None
        has_brace = "{" in inside or "}" in inside
        if not has_word and not has_brace:
            return PromptPiece(braces[1:-1])
    # All else is an error, in which long braces are cut.
    quotation = braces
    if len(braces) > _SHOWN_CHARACTERS:
        quotation = f"{braces[:_SHOWN_CHARACTERS]}..."
    raise problem(
        "template",
        f"has {quotation!r}, but only the name of a column can stand in braces; a brace that is text is doubled in the "
        "style {column}, and {{ '{' }} in the other",
        braces,
    )


def check_known(name: str, columns: Sequence[str]) -> None:
    """Require that a column of a template is one of those that may be used.

    Without `columns` any may be.

    Raises:
        ConfigError: The column is unknown.
    """
    if columns and name not in columns:
        known_columns = ", ".join(map(repr, columns))
        suggestion = did_you_mean(name, columns)
        message = f"uses {name!r}, which is neither in input_columns nor the label_column ({known_columns}){suggestion}"
        raise problem("template", message, name, expected=known_columns)


def problem(field: str, message: str, got: str, *, expected: str = "") -> ConfigError:
    """Return the error of a wrong field of the section ``prompt``."""
    path = f"prompt.{field}"
    return ConfigError(
        f"{path}: {message}",
        field_path=path,
        expected=expected or message,
        got=got[:200],
    )


# ---- values of columns ---------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class PromptColumns:
    """The columns of a prompt.

    Attributes:
        names: Names, in order.
        optional: Names of columns that may be null or missing.
        label: Name of the answer's column, which may not be empty; None where all
            counts toward the loss.
    """

    names: tuple[str, ...]
    optional: tuple[str, ...]
    label: str | None

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Top-level fields to read; None for all."""
        # A dotted name is a field inside another, which only whole rows show.
        if any("." in name for name in self.names):
            return None
        return self.names

    def values(
        self, rows: Rows, scan: SpecialScan
    ) -> tuple[dict[str, Column], dict[int, Fault]]:
        """Return the values of the columns as texts, and the first fault of bad rows.

        Args:
            rows: Rows.
            scan: Scan for the special tokens that a row may not spell.
        """
        values: dict[str, Column] = {}
        faults: dict[int, Fault] = {}
        # 1. Each column. A special token in it would become a control token.
        for name in self.names:
            texts, text_faults = _texts_of(
                rows, name, is_optional=name in self.optional
            )
            values[name] = texts
            spelled = Fault(
                "special_token_in_text",
                f"the column {name!r} contains a special token, which would become a control token; remove it, or "
                "set special_tokens_in_text: encode to allow it",
                column=name,
            )
            spelling_rows = scan.count(texts)[0].tolist()
            # The first fault of a row counts.
            faults = text_faults | dict.fromkeys(spelling_rows, spelled) | faults
        # 2. The answer, of which something must be learned.
        if self.label is not None:
            empty_rows = np.flatnonzero(byte_sizes(values[self.label]) == 0).tolist()
            detail = f"the column {self.label!r} is empty, so there is no answer"
            empty_label = Fault("empty_label", detail, self.label)
            faults = dict.fromkeys(empty_rows, empty_label) | faults
        return values, faults

    def examples(
        self, rows: Sequence[Mapping[str, Any]], scan: SpecialScan
    ) -> dict[str, Column]:
        """Return the values of worked examples.

        Raises:
            ConfigError: An example cannot stand in a prompt.
        """
        values, faults = self.values(Rows(objects=[dict(row) for row in rows]), scan)
        for index in sorted(faults):
            raise problem(
                f"examples.{index}", faults[index].detail, repr(dict(rows[index]))
            )
        return values


def _texts_of(
    rows: Rows, column: str, *, is_optional: bool
) -> tuple[Column, dict[int, Fault]]:
    """Return the texts of a column, and the faults of rows.

    The column may be a field inside another, ``a.b``.

    Returns:
        large_string[n], no nulls, valid UTF-8, "" where a row has a fault; faults by
        index.
    """
    # 1. A column of a type that Arrow writes as JSON does.
    if not rows.has_objects and column in rows.columns.schema.names:
        array: Any = rows.columns.column(column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        is_plain = any(is_type(array.type) for is_type in _PLAIN_TYPES)
        if is_plain:
            faults: dict[int, Fault] = {}
            if array.null_count and not is_optional:
                for row in np.flatnonzero(array.is_null()).tolist():
                    faults[row] = null_fault(column, rows, row)
            return array.cast(_TEXT).fill_null(""), faults
    # 2. Texts alone, the usual case of objects.
    values = rows.values(column)
    if set(map(type, values)) == {str}:
        # Half of a surrogate pair, which only a callback can make.
        with suppress(UnicodeEncodeError):
            return text_of_strings(cast("list[str]", values)), {}
    # 3. Values of several types, one by one.
    texts: list[str] = []
    faults = {}
    for row, value in enumerate(values):
        text: str | Fault
        if value is not None:
            text = _text_of(value, column)
        elif is_optional:
            text = ""
        else:
            text = null_fault(column, rows, row)
        if isinstance(text, Fault):
            faults[row] = text
            text = ""
        texts.append(text)
    return text_of_strings(texts), faults


def _text_of(value: Any, column: str) -> str | Fault:
    """Return the text of a value in a prompt, or the fault of one without a text."""
    if isinstance(value, str):
        if is_encodable(value):
            return value
        return Fault(
            "invalid_utf8",
            f"the column {column!r} holds half of a surrogate pair",
            column,
        )
    # A boolean is an int for Python, so that it comes first.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and isfinite(value):
        return repr(float(value))
    # NaN and infinity are no JSON; other types are named without their value.
    description = type(value).__name__
    if isinstance(value, float):
        description = repr(value)
    detail = f"the column {column!r} holds {description}, expected text, a number or a boolean"
    return Fault("not_a_string", detail, column)


def null_fault(column: str, rows: Rows, row: int) -> Fault:
    """Return the fault of a row in which a column is null or missing."""
    # Columns are made of objects only where all values fit one, which bytes do not.
    if rows.has_objects:
        names = list(rows.objects[row])
    else:
        names = rows.columns.schema.names
    # A dotted name is a field inside the first name.
    if column in names or column.partition(".")[0] in names:
        detail = f"the column {column!r} is missing or null; list it in optional_columns if it may be empty"
    else:
        existing_names = ", ".join(map(repr, names)) or "none"
        detail = f"there is no column {column!r}; there are {existing_names}{did_you_mean(column, names)}"
    return Fault("null_column", detail, column)


# ---- joining -------------------------------------------------------------------------


def join_prompt(
    pieces: Sequence[PromptPiece], values: Mapping[str, Column], rows: int
) -> tuple[Column, Spans]:
    """Return the prompts of n rows, and the spans that count toward the loss.

    Args:
        pieces: Pieces of the prompt.
        values: Values of its columns.
        rows: Number of rows.
    """
    parts: list[str | Column] = []
    are_learned: list[bool] = []
    for piece in pieces:
        are_learned.append(piece.loss)
        if piece.column is None:
            parts.append(piece.text)
            continue
        value: Any = values[piece.column]
        if piece.text:
            # Words after each value that is not empty.
            words, no_words = text_of_strings([piece.text, ""])
            followed = _COMPUTE.binary_join_element_wise(value, words, no_words)
            is_empty = _COMPUTE.equal(_COMPUTE.binary_length(value), 0)
            value = _COMPUTE.if_else(is_empty, value, followed)
        parts.append(value)
    return join_pieces(parts, are_learned, rows)


def body_of(prompt: ResolvedPrompt) -> tuple[PromptPiece, ...]:
    """Return the pieces of a row's own text.

    Raises:
        ConfigError: The template does not fit its columns.
    """
    # The format of completions is the inputs, each with a separator behind it, and the
    # answer.
    if prompt.format_type == "completion":
        body: list[PromptPiece] = []
        for column in prompt.input_columns:
            body.append(PromptPiece(text=prompt.separator, column=column))
        return (*body, PromptPiece(column=prompt.label_column))
    # Without input columns in the configuration any column may be used.
    columns = prompt.input_columns
    if columns and prompt.label_column:
        columns = (*columns, prompt.label_column)
    template_body = parse_template(prompt.template or "", columns)
    used_columns = [piece.column for piece in template_body if piece.column]
    check_used(prompt, used_columns)
    # The loss is on one place: a label that stands twice would have two.
    if prompt.label_column:
        label_count = used_columns.count(prompt.label_column)
        if label_count != 1:
            suggestion = ""
            if not label_count:
                suggestion = did_you_mean(prompt.label_column, used_columns)
            message = f"{prompt.label_column!r} stands {label_count} times in the template, expected once{suggestion}"
            raise problem("label_column", message, prompt.label_column)
    return template_body


def required_columns(names: Sequence[str], prompt: ResolvedPrompt) -> tuple[str, ...]:
    """Return the columns that every row must have: all but the optional ones."""
    required = [name for name in names if name not in prompt.optional_columns]
    return tuple(required)


def check_used(prompt: ResolvedPrompt, used: Sequence[str]) -> None:
    """Require that the template uses every column that is named for it.

    Raises:
        ConfigError: A column is not used.
    """
    # A column that is named and not used is most often a typing error.
    for field in ("input_columns", "optional_columns"):
        for name in getattr(prompt, field):
            if name not in used:
                raise problem(
                    field,
                    f"{name!r} is not used in the template{did_you_mean(name, used)}",
                    name,
                )


def with_loss(
    body: Sequence[PromptPiece], prompt: ResolvedPrompt, eos: str | None
) -> tuple[PromptPiece, ...]:
    """Return the pieces with those marked that count toward the loss.

    These are all, or the label and the first EOS that the template spells after it.

    Args:
        body: Pieces of a row's own text.
        prompt: Section ``prompt``.
        eos: Text of EOS; None where the template spells none.
    """
    if learns_all(prompt):
        return tuple([replace(piece, loss=True) for piece in body])
    pieces: list[PromptPiece] = []
    awaits_eos = False
    for piece in body:
        if piece.column == prompt.label_column:
            pieces.append(replace(piece, loss=True))
            awaits_eos = True
        elif awaits_eos and eos and piece.column is None and eos in piece.text:
            before, _, behind = piece.text.partition(eos)
            # Blanks between the label and EOS count, too; other words there do not.
            is_blank_after_label = not before.strip() and pieces[-1].loss
            pieces += [
                PromptPiece(before, loss=is_blank_after_label),
                PromptPiece(eos, loss=True),
                PromptPiece(behind),
            ]
            awaits_eos = False
        else:
            pieces.append(piece)
    # Empty pieces would be joined in every row.
    return tuple([piece for piece in pieces if piece.column or piece.text])


def learns_all(prompt: ResolvedPrompt) -> bool:
    """Return whether all of a prompt counts toward the loss."""
    return not prompt.mask_input or not prompt.label_column


def refuses_special_tokens(special_tokens_in_text: str, control_tokens: bool) -> bool:
    """Return whether a row may not spell a special token.

    Args:
        special_tokens_in_text: Setting of the dataset.
        control_tokens: Whether the template spells control tokens; an encoder cannot
            tell a row's own from them.
    """
    if special_tokens_in_text == "fail":
        return True
    return control_tokens and special_tokens_in_text != "encode"
