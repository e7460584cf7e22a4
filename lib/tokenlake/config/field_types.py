"""Types that a configuration declares for kept fields.

A type is written as Arrow and Hugging Face `datasets` write it: ``int64``, ``float64``,
``string``, ``list<float64>``, ``struct<score: float64, votes: int64>``, ``decimal(38,
0)``, or ``json`` for values of several types, each of which is stored as JSON text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from pydantic import AfterValidator, Strict, WithJsonSchema

from tokenlake.base.columns import JSON, ColumnType
from tokenlake.base.section import problem

# Name in a configuration -> type of the column. Texts are always large, because an
# Arrow array of `string` holds at most 2 GiB.
_NAMES: Final[dict[str, ColumnType]] = {
    "bool": "bool",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float32": "float",
    "float64": "double",
    "double": "double",
    "string": "large_string",
    "json": JSON,
}
# decimal(1..38, 0): the digits of Arrow's decimal128, without a fraction.
_DECIMAL: Final = re.compile(r"decimal\(\s*([1-9]|[12][0-9]|3[0-8])\s*,\s*0\s*\)")
_TOKEN: Final = re.compile(r"\s*(decimal\([^)]*\)|[A-Za-z_][A-Za-z0-9_]*|[<>:,])\s*")
_MOST_CHARACTERS: Final = 1000
FIELD_TYPE_WORDS: Final = (
    "one of bool, int8 to int64, uint8 to uint64, float32, float64, string, json, decimal(DIGITS, 0), list<TYPE> and "
    "struct<NAME: TYPE, ...>"
)


def parse_field_type(text: str) -> ColumnType:
    """Return the column type that a configuration writes as `text`.

    Raises:
        ValueError: The text is no such type.
    """
    return _TypeParser(text).parse()


@final
class _TypeParser:
    """Reads one type from left to right.

    The grammar has one function per rule::

        type    NAME | decimal(DIGITS, 0) | list<type> | struct<field, ...>
        field   NAME: type
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(f"a type of more than {_MOST_CHARACTERS} characters")
        # Cut the text into names and signs, which `_take` removes one by one.
        self._tokens: list[str] = []
        offset = 0
        while offset < len(text):
            token = _TOKEN.match(text, offset)
            if token is None:
                raise ValueError(f"unexpected {text[offset:]!r}")
            self._tokens.append(token[1])
            offset = token.end()

    def parse(self) -> ColumnType:
        """Return the type; nothing may follow it."""
        kind = self._type()
        if self._tokens:
            raise ValueError(f"unexpected {self._tokens[0]!r}")
        return kind

    def _take(self, expected: str | None = None) -> str:
        """Remove and return the next token.

        Args:
            expected: Token that must come next; None for any.

        Raises:
            ValueError: Another token comes next, or none.
        """
        if not self._tokens:
            raise ValueError(f"expected {expected or 'a name'}, got the end")
        if expected is not None and self._tokens[0] != expected:
            raise ValueError(f"expected {expected}, got {self._tokens[0]!r}")
        return self._tokens.pop(0)

    def _type(self) -> ColumnType:
        """Read a type."""
        name = self._take()
        # A list of values of several types is stored as JSON text as a whole.
        if name == "list":
            self._take("<")
            items = self._type()
            self._take(">")
            if items == JSON:
                return JSON
            return {"list": items}
        if name == "struct":
            return self._struct()
        decimal = _DECIMAL.fullmatch(name)
        if decimal is not None:
            return f"decimal128({decimal[1]}, 0)"
        if name not in _NAMES:
            raise ValueError(f"no type {name!r}")
        return _NAMES[name]

    def _struct(self) -> ColumnType:
        """Read the fields of a struct, from `<` to `>`."""
        fields: dict[str, ColumnType] = {}
        self._take("<")
        while True:
            name = self._take()
            self._take(":")
            if name in fields:
                raise ValueError(f"the field {name!r} twice")
            fields[name] = self._type()
            separator = self._take()
            if separator not in (",", ">"):
                raise ValueError(f"expected `,` or `>`, got {separator!r}")
            if separator == ">":
                break
        # As for a list: one field of JSON makes JSON of the whole struct.
        if JSON in fields.values():
            return JSON
        return {"struct": [[name, kind] for name, kind in fields.items()]}


def _check(text: str) -> str:
    """Return the text of a type; a problem unless it is one."""
    # Each bracket is a call: deeply nested ones end in a RecursionError.
    try:
        parse_field_type(text)
    except (ValueError, RecursionError) as error:
        raise problem(f"got {text!r} ({error}), must be {FIELD_TYPE_WORDS}") from error
    return text


if TYPE_CHECKING:
    FieldType = str
else:
    _SCHEMA: Final[dict[str, Any]] = {"type": "string"}
    FieldType = Annotated[
        str, Strict(), AfterValidator(_check), WithJsonSchema(_SCHEMA)
    ]
