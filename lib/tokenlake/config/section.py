"""The base of every configuration model, and the kinds of values that sections share.

A section is frozen, closed to unknown keys, and its errors are in our own words. Pydantic says *that* ``parqet`` is no
``Literal``; a person wants to read ::

    save.format: got 'parqet', must be 'parquet', 'arrow' or 'jsonl'; did you mean 'parquet'?

Each section rewrites its own errors, so that a model which is built directly and a YAML file which is loaded give the
same sentences. Numbers and texts are strict: ``seq_length: yes`` or ``"2048"`` is a mistake to report, not one to guess
at.
"""

from __future__ import annotations

import ast
import inspect
import math
import operator
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self, cast

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    Strict,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError

from tokenlake.config.quality_constants import CONSTANTS, QualityFilters
from tokenlake.config.values import PATTERN, did_you_mean, parse_size
from tokenlake.errors import ConfigError

_OURS: Final = "tokenlake"
_SHOWN: Final = 80
_RULES: Final = {
    "model_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
}
_QUOTED: Final = re.compile(r"'([^']*)'")
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1

MAX_SPLIT_NAME: Final = 32
"""Letters of the name of a split, at most."""

DATASET_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
"""Names of datasets in a store."""


def problem(message: str) -> PydanticCustomError:
    """Return an error that a validator raises and that reaches the person word for word."""
    # No context is given, so braces in the message are never taken for placeholders.
    return PydanticCustomError(_OURS, cast("Any", message))


def shown(value: object) -> str:
    """Return `value` as a message quotes it: at most 80 characters; of a container only what it is.

    Somewhere in a container may be a secret.
    """
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if not isinstance(value, str | int | float | date | None):
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def path_of(location: tuple[int | str, ...]) -> str:
    """Return a location as the dotted key that overrides take too: ``datasets.0.tokenizer.max_length``."""
    return ".".join(str(part) for part in location)


def _sentence(details: ErrorDetails, known: Collection[str], hidden: Collection[str]) -> str:
    """Return the message of one error in our words.

    Args:
        known: the keys of the section.
        hidden: the keys whose values may be secrets and are never quoted.
    """
    kind, value, place = details["type"], details["input"], details["loc"]
    if kind == _OURS:
        return details["msg"]
    if kind == "extra_forbidden":
        # The value stays out: behind a mistyped `hub_token` it would be the token.
        return f"unknown key{did_you_mean(place[-1], known)} (known here: {', '.join(known)})"
    if kind == "missing":
        return "required, but missing"
    rule = _RULES.get(kind) or re.sub(r"^\w+ should", "must", details["msg"])
    if place and str(place[0]) in hidden:
        return f"{rule} (the value is not shown)"
    near = did_you_mean(value, _QUOTED.findall(rule)) if kind == "literal_error" else ""
    return f"got {shown(value)}, {rule}{near}"


class Section(BaseModel):
    """A frozen group of keys.

    The text under a field is its documentation and its description in the JSON Schema. Wrong keys
    and values raise pydantic's ``ValidationError``, a ``ValueError``, which ``load_config`` turns into a
    ``ConfigError``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    hidden_values: ClassVar[frozenset[str]] = frozenset()
    """Keys whose values may be secrets: messages never quote them."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(schema)
        properties = handler.resolve_ref_schema(found)["properties"]
        for name, text in field_texts(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return found

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            known = tuple(cls.model_fields)
            # The input is left out: nothing that prints an error can then print a secret.
            lines = [
                InitErrorDetails(
                    type=problem(_sentence(each, known, cls.hidden_values)), loc=each["loc"], input=None
                )
                for each in error.errors(include_url=False)
            ]
            raise ValidationError.from_exception_data(error.title, lines, hide_input=True) from None


def field_texts(section: type[Section]) -> dict[str, str]:
    """Return the texts under the fields of a section, those of its bases too.

    Pydantic would read them as well, but whenever a process begins: a fifth of what importing a configuration costs.
    """
    found: dict[str, str] = {}
    for each in section.__mro__[: section.__mro__.index(Section)]:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for field, text in pairwise(cast("ast.ClassDef", tree).body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as written)),
                ):
                    found.setdefault(name, inspect.cleandoc(written))
                case _:
                    pass
    return found


def _index(value: object) -> object:
    """Let NumPy integers in as the ints they are; bool stays bool and is refused by Strict."""
    if isinstance(value, bool | int) or not hasattr(value, "__index__"):
        return value
    return operator.index(cast("Any", value))


def _size(value: object) -> int:
    try:
        return parse_size(cast("Any", _index(value)))
    except ConfigError as error:
        raise problem(str(error)) from None


def as_text(value: object) -> object:
    """Return a path object as text, and anything else as it is."""
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value


# The validator stands last and so runs first, before the strict check; the JSON Schema needs this order too.
_Index = BeforeValidator(_index)
Count = Annotated[int, Strict(), Gt(0), Le(_INT64), _Index]
"""A number of things, at least one."""
Length = Annotated[int, Strict(), Gt(0), Le(_INT32), _Index]
"""A number of tokens, at least one."""
TokenId = Annotated[int, Strict(), Ge(0), Le(_INT32), _Index]
Seed = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
"""A seed; 0 is one like any other."""
Step = Annotated[int, Strict(), Ge(0), Le(_INT64), _Index]
Switch = Annotated[bool, Strict()]
Fraction = Annotated[float, Strict(), Ge(0.0), Le(1.0)]
Positive = Annotated[float, Strict(), Gt(0.0)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]


def _spelled(pattern: str, words: str, *, quote: bool = True) -> Any:
    """Return the type of texts that match `pattern`, which a message describes by `words`."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise problem(f"got {shown(value)}, must be {words}" if quote else f"must be {words}")
        return value

    return Annotated[
        str, Strict(), AfterValidator(check), WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})
    ]


_NAME_WORDS: Final = "letters, digits, '.', '_' and '-', a letter or digit first, at most 64 in all"

if TYPE_CHECKING:
    Path = DatasetName = SourceName = SplitName = VariableName = Character = StoredName = str
else:
    Path = Annotated[_spelled(r"[^\x00]+", "a path or URL, not empty"), BeforeValidator(as_text)]
    DatasetName = _spelled(DATASET_NAME, f"a name of lower-case {_NAME_WORDS}")
    StoredName = _spelled(
        DATASET_NAME + r"(@v?[1-9][0-9]{0,8})?", "a dataset of the store: NAME, or NAME@v3 for one version"
    )
    SourceName = _spelled(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", f"a name of {_NAME_WORDS}")
    SplitName = _spelled(
        rf"[A-Za-z][A-Za-z0-9_]{{0,{MAX_SPLIT_NAME - 1}}}",
        "a split name of letters, digits and '_', a letter first",
    )
    # Somebody may write the secret itself where its name belongs.
    Character = _spelled(r"[^\x00\r\n\"]", "one character, no quote and no end of line")
    VariableName = _spelled(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", quote=False)

Size = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": PATTERN}]}),
]
"""A number of bytes, written as an int or as ``"500MB"`` (see :mod:`tokenlake.config.values`)."""


def _sum_is_one(name: str) -> Callable[[dict[str, float]], dict[str, float]]:
    """Return a check that numbers sum to 1 within 1e-6."""

    def check(value: dict[str, float]) -> dict[str, float]:
        total = math.fsum(value.values())
        if abs(total - 1.0) > 1e-6:
            # Twelve digits: enough to see what is missing, without the noise of binary fractions.
            raise problem(f"{name} must sum to 1.0, got {float(f'{total:.12g}')}")
        return value

    return check


Weights = Annotated[
    dict[SourceName, Annotated[float, Strict(), Ge(0.0)]], AfterValidator(_sum_is_one("Weights"))
]
"""Dataset name to weight; the weights sum to 1."""
Splits = Annotated[dict[SplitName, Annotated[Positive, Le(1.0)]], AfterValidator(_sum_is_one("Splits"))]
"""Split name to the fraction of documents it gets; the fractions sum to 1."""


def _data_files(value: object) -> object:
    files = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    texts = tuple(as_text(item) for item in files)
    for item in texts or ([],):
        if not isinstance(item, str) or not item or "\x00" in item:
            raise problem(f"got {shown(item)}, must be a path, glob, directory or URL, or a list of them")
    return texts if isinstance(value, list | tuple) else texts[0]


DataFiles = Annotated[str | tuple[str, ...], BeforeValidator(_data_files)]
"""One path, glob, directory or URL, or several; a list becomes a tuple."""


def _filters(value: object) -> object:
    """Return (name, constants) of each filter; a text alone is a filter as it was published."""
    found: dict[str, tuple[tuple[str, float], ...]] = {}
    for entry in cast("list[object]", value if isinstance(value, list | tuple) else [value]):
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and len(cast("Any", entry)) == 1):
            raise problem(
                f"got {shown(entry)}, must be the name of a filter, or a mapping of one to its constants"
            )
        ((name, constants),) = {entry: {}}.items() if isinstance(entry, str) else cast("Any", entry).items()
        if not isinstance(constants, Mapping):
            raise problem(f"{name}: got {shown(constants)}, must be a mapping of constants to numbers")
        _require_known("unknown filter", name, CONSTANTS)
        for key, number in cast("Mapping[str, Any]", constants).items():
            _require_known(f"{name}: unknown constant", key, CONSTANTS[name])
            if not isinstance(number, int | float) or not 0 <= number < float("inf"):
                raise problem(f"{name}.{key}: got {shown(number)}, must be a number, at least 0")
        if name in found:
            raise problem(f"the filter {name!r} is named twice")
        found[name] = tuple(sorted((key, float(number)) for key, number in constants.items()))
    return tuple(found.items())


def _require_known(what: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        raise problem(f"{what} {name!r}{did_you_mean(name, known)} (known here: {', '.join(known)})")


def _written_filters(value: QualityFilters) -> list[str | dict[str, dict[str, float]]]:
    """Return filters as a configuration has them."""
    return [{name: dict(constants)} if constants else name for name, constants in value]


_FILTER_NAMES: Final[dict[str, Any]] = {"type": "string", "enum": list(CONSTANTS)}
_OWN_CONSTANTS: Final[dict[str, Any]] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {
        name: {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: {"type": "number", "minimum": 0} for key in constants},
        }
        for name, constants in CONSTANTS.items()
    },
}

Quality = Annotated[
    QualityFilters,
    BeforeValidator(_filters),
    PlainSerializer(_written_filters),
    WithJsonSchema(
        {"anyOf": [_FILTER_NAMES, {"type": "array", "items": {"anyOf": [_FILTER_NAMES, _OWN_CONSTANTS]}}]}
    ),
]
"""One name of a filter, or a list of names and of {name: {constant: another value}}."""
