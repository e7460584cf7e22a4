"""A prompt's template, parsed once into words and columns whose values are put between them.

There are two styles, and a template is of one of them:

- Python's: ``{column}``; a brace itself is written twice, ``{{`` and ``}}``;
- Jinja's: ``{{ column }}``; single braces are text, and a quoted text stands for itself, ``{{ '{{' }}``.

Both in one template are an error, since ``{{answer}}`` means one thing in the first and another in the second. Only
columns can stand in the braces: filters, conditions and loops make it a program
(:mod:`tokenlake.etl.text.prompt_renderer`). As in Jinja, one newline at the very end is dropped: YAML's
``|`` always adds one, and a newline after the answer would part it from its EOS.

| the value of a column | in the prompt |
|---|---|
| text | itself, also where it is empty |
| a boolean or a number | as JSON writes it: ``true``, ``12``, ``1.5`` |
| null, or no such column | a bad record (``null_column``); nothing at all where the column is optional |
| anything else (a list, an object, a date, NaN) | a bad record (``not_a_string``) |

What a value becomes depends on the value alone, never on the rows beside it. So JSON rows are read as the objects
they are: as columns, where a batch holds both ``1`` and ``1.5``, the former would become ``1.0``.
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
"""What the name of a column looks like."""
_PLAIN: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_boolean, pa.types.is_integer),
)
_WORD: Final = re.compile(r"\s*[^\W\d]")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_BRACES: Final = re.compile(
    rf"(\{{\{{\s*(?:{_QUOTED.pattern})\s*\}}\}}|\{{\{{[^{{}}]*\}}\}}|\{{\{{|\}}\}}|\{{[^{{}}]*\}}|[{{}}])"
)
_END: Final = re.compile(r"\r?\n\Z")
_SHOWN: Final = 40


@final
@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A piece of a prompt.

    Attributes:
        text: what it is, or what follows the column's value where that is not empty.
        column: whose value is put in; None for text that stays.
        loss: whether it bears loss.
    """

    text: str = ""
    column: str | None = None
    loss: bool = False


def parse_template(template: str, columns: Sequence[str] = ()) -> tuple[PromptPiece, ...]:
    """Return the pieces of `template`, no two texts side by side.

    Args:
        columns: those that may be used; none given: any.

    Raises:
        ConfigError: styles are mixed, braces hold more than a column, or an unknown column is used.
    """
    template = _END.sub("", template)
    parts = _BRACES.split(template)
    named = [part for part in parts[1::2] if _name_in(part, columns)]
    doubled = [part for part in named if part.startswith("{{")]
    if 0 < len(doubled) < len(named):
        single = next(part for part in named if part not in doubled)
        told = (
            f"mixes two styles, {doubled[0]!r} and {single!r}: write {{column}} throughout, where {{{{ and "
        )
        raise problem(
            "template", f"{told}}}}} are braces, or {{{{ column }}}}, where {{{{ '{{' }}}} is one", template
        )
    pieces: list[PromptPiece] = []
    for at, part in enumerate(parts):
        piece = _in_braces(part, columns, double=bool(doubled)) if at % 2 else PromptPiece(part)
        if piece.column is None and pieces and pieces[-1].column is None:
            pieces[-1] = PromptPiece(pieces[-1].text + piece.text)
        elif piece.column or piece.text:
            pieces.append(piece)
    if not named:
        raise problem("template", "uses no column, so every text would be the same", template)
    return tuple(pieces)


def _name_in(braces: str, columns: Sequence[str]) -> str:
    """Return the column that stands in braces, "" for none."""
    inside = braces[2:-2].strip() if braces.startswith("{{") else braces[1:-1]
    return inside if inside in columns or NAME.fullmatch(inside) else ""


def _in_braces(braces: str, columns: Sequence[str], *, double: bool) -> PromptPiece:
    name, is_double = _name_in(braces, columns), len(braces) > 3 and braces.startswith("{{")
    if name and is_double == double:
        check_known(name, columns)
        return PromptPiece(column=name)
    if double and not is_double and braces not in ("{{", "}}"):
        return PromptPiece(braces)
    if double and _QUOTED.fullmatch(braces[2:-2].strip()):
        return PromptPiece(braces[2:-2].strip()[1:-1])
    if not double and braces in ("{{", "}}"):
        return PromptPiece(braces[0])
    if not double and is_double and not (_WORD.match(braces[2:-2]) or set("{}") & set(braces[2:-2])):
        return PromptPiece(braces[1:-1])
    shown = braces if len(braces) <= _SHOWN else f"{braces[:_SHOWN]}..."
    raise problem(
        "template",
        f"has {shown!r}, but only the name of a column can stand in braces; a brace that is text is doubled in the "
        "style {column}, and {{ '{' }} in the other",
        braces,
    )


def check_known(name: str, columns: Sequence[str]) -> None:
    """Raise ConfigError for a column of a template that is none of those that may be used; none given: any may be."""
    if columns and name not in columns:
        listed = ", ".join(map(repr, columns))
        told = f"uses {name!r}, which is neither in input_columns nor the label_column ({listed})"
        raise problem("template", f"{told}{did_you_mean(name, columns)}", name, expected=listed)


def problem(field: str, what: str, got: str, *, expected: str = "") -> ConfigError:
    """Return the error for a wrong field of the section `prompt`."""
    path = f"prompt.{field}"
    return ConfigError(f"{path}: {what}", field_path=path, expected=expected or what, got=got[:200])


@final
@dataclass(frozen=True, slots=True)
class PromptColumns:
    """The columns that a prompt is made of.

    Attributes:
        names: in order.
        optional: those that may be null or missing.
        label: the answer's, which may not be empty; None where all bears loss.
    """

    names: tuple[str, ...]
    optional: tuple[str, ...]
    label: str | None

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The top-level fields to read, None for all."""
        return None if any("." in name for name in self.names) else self.names

    def values(self, rows: Rows, scan: SpecialScan) -> tuple[dict[str, Column], dict[int, Fault]]:
        """Return the columns' values as texts, and the first fault of every row that has one.

        Args:
            scan: of special tokens that a row may not spell.
        """
        values: dict[str, Column] = {}
        faults: dict[int, Fault] = {}
        for name in self.names:
            values[name], bad = _texts_of(rows, name, optional=name in self.optional)
            spelled = Fault(
                "special_token_in_text",
                f"the column {name!r} spells out a special token, which would become a control token; take it out, "
                "or set special_tokens_in_text: encode to allow it",
                column=name,
            )
            faults = bad | dict.fromkeys(scan.count(values[name])[0].tolist(), spelled) | faults
        if self.label is not None:
            empty = np.flatnonzero(byte_sizes(values[self.label]) == 0).tolist()
            told = f"the column {self.label!r} is empty: there is no answer to learn"
            faults = dict.fromkeys(empty, Fault("empty_label", told, self.label)) | faults
        return values, faults

    def examples(self, rows: Sequence[Mapping[str, Any]], scan: SpecialScan) -> dict[str, Column]:
        """Return the values of worked examples; ConfigError where one cannot stand in a prompt."""
        values, faults = self.values(Rows(objects=[dict(row) for row in rows]), scan)
        for index in sorted(faults):
            raise problem(f"examples.{index}", faults[index].detail, repr(dict(rows[index])))
        return values


def _texts_of(rows: Rows, column: str, *, optional: bool) -> tuple[Column, dict[int, Fault]]:
    """Return the texts of a column (or of a field inside one, ``a.b``), and why rows have none.

    Returns:
        large_string[n], no nulls, valid UTF-8, "" where there is a fault; faults by index.
    """
    named = not rows.has_objects and column in rows.columns.schema.names
    array: Any = rows.columns.column(column) if named else None
    if array is not None and pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array is not None and any(is_kind(array.type) for is_kind in _PLAIN):
        nulls = [] if optional or not array.null_count else np.flatnonzero(array.is_null()).tolist()
        return array.cast(_TEXT).fill_null(""), {row: null_fault(column, rows, row) for row in nulls}
    values, faults = rows.values(column), dict[int, Fault]()
    if set(map(type, values)) == {str}:
        with suppress(UnicodeEncodeError):  # half of a surrogate pair, which only a callback can make
            return text_of_strings(cast("list[str]", values)), faults
    texts: list[str] = []
    for row, value in enumerate(values):
        told: str | Fault = ""
        if value is not None or not optional:
            told = null_fault(column, rows, row) if value is None else _text_of(value, column)
        if isinstance(told, Fault):
            faults[row] = told
        texts.append("" if isinstance(told, Fault) else told)
    return text_of_strings(texts), faults


def _text_of(value: Any, column: str) -> str | Fault:
    """Return what one value is in a prompt, or why it cannot be there."""
    if isinstance(value, str):
        broken = Fault("invalid_utf8", f"the column {column!r} holds half of a surrogate pair", column)
        return value if is_encodable(value) else broken
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and isfinite(value):
        return repr(float(value))
    found = repr(value) if isinstance(value, float) else type(value).__name__
    told = f"the column {column!r} holds {found}, expected text, a number or a boolean"
    return Fault("not_a_string", told, column)


def null_fault(column: str, rows: Rows, row: int) -> Fault:
    """Return the fault of a row in which a column is null or missing."""
    names = list(rows.objects[row]) if rows.has_objects else rows.columns.schema.names
    if column in names or column.partition(".")[0] in names:
        told = f"the column {column!r} is missing or null; name it in optional_columns if its place may stay empty"
    else:
        has = ", ".join(map(repr, names)) or "none"
        told = f"there is no column {column!r}; there are {has}{did_you_mean(column, names)}"
    return Fault("null_column", told, column)


def join_prompt(
    pieces: Sequence[PromptPiece], values: Mapping[str, Column], rows: int
) -> tuple[Column, Spans]:
    """Return the prompts of n rows, and where they bear loss, by the values of their columns."""
    parts: list[str | Column] = []
    for piece in pieces:
        part: Any = piece.text if piece.column is None else values[piece.column]
        if piece.column is not None and piece.text:  # behind each value that is not empty
            behind, nothing = text_of_strings([piece.text, ""])
            followed = _COMPUTE.binary_join_element_wise(part, behind, nothing)
            part = _COMPUTE.if_else(_COMPUTE.equal(_COMPUTE.binary_length(part), 0), part, followed)
        parts.append(part)
    return join_pieces(parts, [piece.loss for piece in pieces], rows)


def body_of(prompt: ResolvedPrompt) -> tuple[PromptPiece, ...]:
    """Return the pieces that the columns make; ConfigError where the template does not fit its columns."""
    if prompt.format_type == "completion":
        inputs = [PromptPiece(text=prompt.separator, column=name) for name in prompt.input_columns]
        return (*inputs, PromptPiece(column=prompt.label_column))
    label = (prompt.label_column,) if prompt.label_column else ()
    body = parse_template(
        prompt.template or "", (*prompt.input_columns, *label) if prompt.input_columns else ()
    )
    used = [piece.column for piece in body if piece.column]
    check_used(prompt, used)
    times = used.count(prompt.label_column) if prompt.label_column else 1
    if times != 1:
        near = did_you_mean(prompt.label_column, used) if not times else ""
        told = f"{prompt.label_column!r} stands {times} times in the template, expected once{near}"
        raise problem("label_column", told, str(prompt.label_column))
    return body


def check_used(prompt: ResolvedPrompt, used: Sequence[str]) -> None:
    """Raise ConfigError unless the template uses every column that is named for it."""
    for field in ("input_columns", "optional_columns"):
        for name in getattr(prompt, field):
            if name not in used:
                raise problem(field, f"{name!r} is not used in the template{did_you_mean(name, used)}", name)


def with_loss(
    body: Sequence[PromptPiece], prompt: ResolvedPrompt, eos: str | None
) -> tuple[PromptPiece, ...]:
    """Mark what bears loss: all, or the label and the EOS that the template spells after it (None: it spells none)."""
    if learns_all(prompt):
        return tuple(replace(piece, loss=True) for piece in body)
    pieces: list[PromptPiece] = []
    after = False
    for piece in body:
        if piece.column == prompt.label_column:
            pieces.append(replace(piece, loss=True))
            after = True
        elif after and eos and piece.column is None and eos in piece.text:
            start, _, rest = piece.text.partition(eos)
            joined = not start.strip() and pieces[-1].loss
            pieces += [PromptPiece(start, loss=joined), PromptPiece(eos, loss=True), PromptPiece(rest)]
            after = False
        else:
            pieces.append(piece)
    return tuple(piece for piece in pieces if piece.column or piece.text)


def learns_all(prompt: ResolvedPrompt) -> bool:
    """Return whether all of a prompt bears loss."""
    return not prompt.mask_input or not prompt.label_column


def refuses_special_tokens(special_tokens_in_text: str, control_tokens: bool) -> bool:
    """Return whether a row may not spell a special token.

    Args:
        special_tokens_in_text: Setting of the dataset.
        control_tokens: Whether the template spells control tokens; an encoder cannot tell a row's own from them.
    """
    if special_tokens_in_text == "fail":
        return True
    return control_tokens and special_tokens_in_text != "encode"
