"""A prompt's template, parsed once into text that stays and columns whose values are put in.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Never, final

from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import ConfigError

_NAME: Final = re.compile(r"[^\W\d][\w.-]*")
_WORD: Final = re.compile(r"[^\W\d]")
_QUOTED: Final = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_BRACES: Final = re.compile(
    r"(?P<quoted>\{\{\s*(?:'[^']*'|\"[^\"]*\")\s*\}\})"
    r"|\{\{(?P<double>[^{}]*)\}\}|(?P<open>\{\{)|(?P<close>\}\})|\{(?P<single>[^{}]*)\}|(?P<lone>[{}])"
)
_END: Final = re.compile(r"\r?\n\Z")
_SHOWN: Final = 40


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a prompt.

    Attributes:
        text: what it is, or what follows the column's value where that is not empty.
        column: whose value is put in; None for text that stays.
        learned: whether a trainer learns from it.
    """

    text: str = ""
    column: str | None = None
    learned: bool = False


def parse_template(template: str, columns: Sequence[str] = ()) -> tuple[Piece, ...]:
    """Return the pieces of `template`, no two texts side by side.

    Args:
        columns: those that may be used; none given: any.

    Raises:
        ConfigError: styles are mixed, braces hold more than a column, or an unknown column is used.
    """
    template = _END.sub("", template)
    for mark in ("{%", "{#"):
        if mark in template:
            _refuse(f"has {mark!r} of Jinja; only columns can be put into a prompt", mark)
    matches = list(_BRACES.finditer(template))
    double = _is_double(template, matches, columns)
    pieces = _joined(_pieces(template, matches, columns, double=double))
    if not any(piece.column for piece in pieces):
        _refuse("uses no column, so every text would be the same", template)
    return pieces


def _pieces(
    template: str, matches: Sequence[re.Match[str]], columns: Sequence[str], *, double: bool
) -> Iterator[Piece]:
    at = 0
    for match in matches:
        yield Piece(template[at : match.start()])
        yield _in_double(match, columns) if double else _in_single(match, columns)
        at = match.end()
    yield Piece(template[at:])


def _joined(pieces: Iterator[Piece]) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for piece in pieces:
        if piece.column is None and found and found[-1].column is None:
            found[-1] = Piece(found[-1].text + piece.text)
        else:
            found.append(piece)
    return tuple(piece for piece in found if piece.column or piece.text)


def _is_double(template: str, matches: Sequence[re.Match[str]], columns: Sequence[str]) -> bool:
    """Say whether the template is of Jinja's style: whether doubled braces hold a column."""
    doubled = [match for match in matches if _is_column((match["double"] or "").strip(), columns)]
    single = [match for match in matches if _is_column(match["single"] or "", columns)]
    if doubled and single:
        _refuse(
            f"mixes two styles, {doubled[0][0]!r} and {single[0][0]!r}: write {{column}} throughout, where {{{{ and "
            "}} are braces, or {{ column }} throughout, where {{ '{' }} is one",
            template,
        )
    return bool(doubled)


def _in_double(match: re.Match[str], columns: Sequence[str]) -> Piece:
    if match["quoted"]:
        quoted = _QUOTED.search(match[0])
        return Piece(text=(quoted[1] or quoted[2] or "") if quoted else "")
    if match["double"] is not None:
        name = match["double"].strip()
        return _column(name, columns) if _is_column(name, columns) else _too_much(match[0])
    if match["open"] or match["close"]:
        _refuse(f"has {match[0]!r} without its other half; as text it is {{{{ '{match[0]}' }}}}", match[0])
    return Piece(match[0])


def _in_single(match: re.Match[str], columns: Sequence[str]) -> Piece:
    if match["open"] or match["close"]:
        return Piece(match[0][0])
    if match["single"] is not None:
        name = match["single"]
        return _column(name, columns) if _is_column(name, columns) else _too_much(match[0])
    if match["lone"]:
        _refuse(f"has a {match[0]!r} by itself; as text it is {match[0] * 2!r}", match[0])
    inside = match[0][2:-2]
    if _WORD.match(inside.strip()) or "{" in inside or "}" in inside:
        _too_much(match[0])
    return Piece(f"{{{inside}}}")


def _is_column(name: str, columns: Sequence[str]) -> bool:
    return name in columns or _NAME.fullmatch(name) is not None


def _column(name: str, columns: Sequence[str]) -> Piece:
    if columns and name not in columns:
        listed = ", ".join(map(repr, columns))
        _refuse(
            f"uses the column {name!r}, which is neither in input_columns nor the label_column ({listed})"
            f"{did_you_mean(name, columns)}",
            name,
            expected=listed,
        )
    return Piece(column=name)


def _too_much(braces: str) -> Never:
    shown = braces if len(braces) <= _SHOWN else f"{braces[:_SHOWN]}..."
    _refuse(
        f"has {shown!r}, but only the name of a column can stand in braces; a brace that is text is doubled in the "
        "style {column}, and filters and conditions belong in a chat template or a transform",
        braces,
    )


def _refuse(what: str, got: str, *, expected: str = "a template of text and columns") -> Never:
    raise ConfigError(
        f"prompt.template: {what}", field_path="prompt.template", expected=expected, got=got[:200]
    )
