"""A prompt's template, parsed once into words and columns whose values are put between them.

There are two styles, and a template is of one of them:

- Python's: ``{column}``; a brace itself is written twice, ``{{`` and ``}}``;
- Jinja's: ``{{ column }}``; single braces are text, and a quoted text stands for itself, ``{{ '{{' }}``.

Both in one template are an error, since ``{{answer}}`` means one thing in the first and another in the second. Only
columns can stand in the braces: filters, conditions and loops are Jinja programs, which chat templates are for. As in
Jinja, one newline at the very end is dropped: YAML's ``|`` always adds one, and a newline after the answer would part
it from its EOS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Never, final

from tokenlake.config.resolved import ResolvedPrompt
from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError
from tokenlake.sources.rows import Fault, Row, Rows
from tokenlake.text.prompt.values import values_of
from tokenlake.tokenizers.encoder import SpecialScan
from tokenlake.tokenizers.files import TokenizerFiles

_NAME: Final = re.compile(r"[^\W\d][\w.-]*")
_WORD: Final = re.compile(r"[^\W\d]")
_QUOTED: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_BRACES: Final = re.compile(
    r"(?P<quoted>\{\{\s*(?:'[^']*'|\"[^\"]*\")\s*\}\})"
    r"|\{\{(?P<double>[^{}]*)\}\}|(?P<open>\{\{)|(?P<close>\}\})|\{(?P<single>[^{}]*)\}|(?P<lone>[{}])"
)
_END: Final = re.compile(r"\r?\n\Z")
_SHOWN: Final = 40
_PLAIN: Final = "expected a text that spells no special token of the tokenizer"


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
    for mark in ("{%", "{#"):
        if mark in template:
            _refuse_template(f"has {mark!r} of Jinja; only columns can be put into a prompt", mark)
    matches = list(_BRACES.finditer(template))
    double = _is_double(template, matches, columns)
    pieces = _joined(_pieces(template, matches, columns, double=double))
    if not any(piece.column for piece in pieces):
        _refuse_template("uses no column, so every text would be the same", template)
    return pieces


def _pieces(
    template: str, matches: Sequence[re.Match[str]], columns: Sequence[str], *, double: bool
) -> Iterator[PromptPiece]:
    at = 0
    for match in matches:
        yield PromptPiece(template[at : match.start()])
        yield _in_double(match, columns) if double else _in_single(match, columns)
        at = match.end()
    yield PromptPiece(template[at:])


def _joined(pieces: Iterator[PromptPiece]) -> tuple[PromptPiece, ...]:
    found: list[PromptPiece] = []
    for piece in pieces:
        if piece.column is None and found and found[-1].column is None:
            found[-1] = PromptPiece(found[-1].text + piece.text)
        else:
            found.append(piece)
    return tuple(piece for piece in found if piece.column or piece.text)


def _is_double(template: str, matches: Sequence[re.Match[str]], columns: Sequence[str]) -> bool:
    """Say whether the template is of Jinja's style: whether doubled braces hold a column."""
    doubled = [match for match in matches if _is_column((match["double"] or "").strip(), columns)]
    single = [match for match in matches if _is_column(match["single"] or "", columns)]
    if doubled and single:
        _refuse_template(
            f"mixes two styles, {doubled[0][0]!r} and {single[0][0]!r}: write {{column}} throughout, where {{{{ and "
            "}} are braces, or {{ column }} throughout, where {{ '{' }} is one",
            template,
        )
    return bool(doubled)


def _in_double(match: re.Match[str], columns: Sequence[str]) -> PromptPiece:
    if match["quoted"]:
        quoted = _QUOTED.search(match[0])
        return PromptPiece(text=(quoted[1] or quoted[2] or "") if quoted else "")
    if match["double"] is not None:
        name = match["double"].strip()
        return _column(name, columns) if _is_column(name, columns) else _too_much(match[0])
    if match["open"] or match["close"]:
        _refuse_template(
            f"has {match[0]!r} without its other half; as text it is {{{{ '{match[0]}' }}}}", match[0]
        )
    return PromptPiece(match[0])


def _in_single(match: re.Match[str], columns: Sequence[str]) -> PromptPiece:
    if match["open"] or match["close"]:
        return PromptPiece(match[0][0])
    if match["single"] is not None:
        name = match["single"]
        return _column(name, columns) if _is_column(name, columns) else _too_much(match[0])
    if match["lone"]:
        _refuse_template(f"has a {match[0]!r} by itself; as text it is {match[0] * 2!r}", match[0])
    inside = match[0][2:-2]
    if _WORD.match(inside.strip()) or "{" in inside or "}" in inside:
        _too_much(match[0])
    return PromptPiece(f"{{{inside}}}")


def _is_column(name: str, columns: Sequence[str]) -> bool:
    return name in columns or _NAME.fullmatch(name) is not None


def _column(name: str, columns: Sequence[str]) -> PromptPiece:
    if columns and name not in columns:
        listed = ", ".join(map(repr, columns))
        _refuse_template(
            f"uses the column {name!r}, which is neither in input_columns nor the label_column ({listed})"
            f"{did_you_mean(name, columns)}",
            name,
            expected=listed,
        )
    return PromptPiece(column=name)


def _too_much(braces: str) -> Never:
    shown = braces if len(braces) <= _SHOWN else f"{braces[:_SHOWN]}..."
    _refuse_template(
        f"has {shown!r}, but only the name of a column can stand in braces; a brace that is text is doubled in the "
        "style {column}, and filters and conditions belong in a chat template or a transform",
        braces,
    )


def _refuse_template(what: str, got: str, *, expected: str = "a template of text and columns") -> Never:
    _refuse("template", what, got, expected=expected)


def _refuse(field: str, what: str, got: str, *, expected: str = "") -> Never:
    path = f"prompt.{field}"
    raise ConfigError(f"{path}: {what}", field_path=path, expected=expected or what, got=got[:200])


@final
@dataclass(frozen=True, slots=True)
class PromptLayout:
    """The pieces of a prompt of format ``custom`` or ``completion``.

    Attributes:
        pieces: in order; system message and examples are text among them.
        columns: those used, each once.
        optional: of these, the ones that may be null or missing.
        label: the answer's column, None where all bears loss.
        control: whether the text that stays spells special tokens, which are to become control ids.
        specials: how many of them it spells.
    """

    pieces: tuple[PromptPiece, ...]
    columns: tuple[str, ...]
    optional: frozenset[str]
    label: str | None
    specials: int

    @property
    def control(self) -> bool:
        return self.specials > 0


def lay_out(prompt: ResolvedPrompt, files: TokenizerFiles) -> PromptLayout:
    """Return the pieces of `prompt` for a tokenizer.

    Raises:
        ConfigError: the template is wrong, does not fit its columns, or an example cannot be rendered.
    """
    body = _body(prompt)
    scan = SpecialScan(files.special_tokens)
    head = _head(body, prompt)
    control = any(scan.times(piece.text) for piece in (*head, *body))
    if control:
        _check_row_texts(prompt, body, scan)
    pieces = (*head, *_with_loss(body, prompt, files.eos_token if control else None))
    return PromptLayout(
        pieces=pieces,
        columns=tuple(dict.fromkeys(piece.column for piece in body if piece.column)),
        optional=frozenset(prompt.optional_columns),
        label=prompt.label_column,
        specials=sum(scan.times(piece.text) for piece in pieces if not piece.column),
    )


def input_text(values: Iterable[str], separator: str) -> str:
    """Join the input columns of one row, leaving empty ones out."""
    return separator.join(value for value in values if value)


def _body(prompt: ResolvedPrompt) -> tuple[PromptPiece, ...]:
    if prompt.format_type == "completion":
        inputs = [PromptPiece(text=prompt.separator, column=name) for name in prompt.input_columns]
        return (*inputs, PromptPiece(column=prompt.label_column))
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


def example_text(body: Sequence[PromptPiece], prompt: ResolvedPrompt, index: int) -> str:
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


def _check_row_texts(prompt: ResolvedPrompt, body: Sequence[PromptPiece], scan: SpecialScan) -> None:
    """Where the template spells control tokens, neither the rows of the examples nor a separator may."""
    if prompt.format_type == "completion" and scan.times(prompt.separator):
        _refuse("separator", f"spells a special token; {_PLAIN}, or format_type 'custom'", prompt.separator)
    for index, row in enumerate(prompt.examples):
        for column in (piece.column for piece in body if piece.column):
            text = example_value(dict(row), column, prompt, index)
            if scan.times(text):
                _refuse(f"examples.{index}", f"the column {column!r} spells a special token; {_PLAIN}", text)


def _with_loss(
    body: Sequence[PromptPiece], prompt: ResolvedPrompt, eos: str | None
) -> tuple[PromptPiece, ...]:
    """Mark what bears loss: all, or the label and the EOS that the template spells after it."""
    if _all_loss(prompt):
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


def _head(body: Sequence[PromptPiece], prompt: ResolvedPrompt) -> tuple[PromptPiece, ...]:
    """System message and examples; the latter come before every prompt, so that nobody needs to learn them again."""
    apart = prompt.example_separator
    system = (
        [PromptPiece(prompt.system_message + apart, loss=_all_loss(prompt))] if prompt.system_message else []
    )
    examples = "".join(example_text(body, prompt, index) + apart for index in range(len(prompt.examples)))
    return (*system, *([PromptPiece(examples)] if examples else []))


def _all_loss(prompt: ResolvedPrompt) -> bool:
    return not prompt.mask_input or not prompt.label_column
