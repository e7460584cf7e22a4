"""What is done to rows before their text is made: a list of steps, each one name with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from tokenlake.config.callables import PATTERN, callable_name, is_callable_name
from tokenlake.config.section import Section, problem, shown
from tokenlake.config.values import Switch, Text


def distinct(value: dict[str, str]) -> dict[str, str]:
    """Refuse two fields that would get the same new name."""
    if len(set(value.values())) < len(value):
        raise problem(f"got {shown(value)}: two fields would get the same new name")
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _different(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise problem("got an empty list, must be a name of a field or a list of them")
    if len(set(value)) < len(value):
        raise problem("got a list in which a name comes twice, must be different names of fields")
    return value


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise problem("got an empty mapping, must have at least one field")
    return value


def _function(value: object) -> object:
    if callable(value) or is_callable_name(value):
        return value
    raise problem(f"got {shown(value)}, must be 'package.module:function', or a function (in Python)")


def _json_name(value: object) -> str:
    """Return the name of a function for a dump, which is made of any configuration that can be."""
    owner = getattr(value, "__objclass__", value)
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return value if isinstance(value, str) else f"{getattr(owner, '__module__', '?')}:{name}"


Json = Annotated[JsonValue, WithJsonSchema({})]
"""Any value that JSON has."""
Names = Annotated[
    tuple[Text, ...],
    AfterValidator(_different),
    BeforeValidator(_listed),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]
"""One name of a field, or several different ones."""
Renames = Annotated[dict[Text, Text], AfterValidator(distinct)]
Function = Annotated[
    Any,
    BeforeValidator(_function),
    PlainSerializer(_json_name, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{PATTERN}$"}),
]


class MapArguments(Section):
    """A function of a field's value."""

    field: Text
    """Field whose value the function gets."""

    function: Function
    """Function of the value, 'package.module:function'."""

    output_field: Text | None = None
    """Field that gets the result; null: the same field."""


class ExtractArguments(Section):
    """A value from inside a field."""

    source_path: Text
    """Where it is, such as 'meta.authors[0].name'."""

    target_field: Text
    """Field that gets it."""

    default: Json = None
    """What the field gets where nothing, or null, is there."""


class CombineArguments(Section):
    """Several fields as one; `fields` and `output_field` may also be called `source_fields` and `target_field`."""

    fields: Names | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - pydantic's is a deprecated one
    """Fields whose texts are joined, in this order."""

    output_field: Text | None = None
    """Field that gets the joined text."""

    source_fields: Names | None = None
    """Another name of `fields`."""

    target_field: Text | None = None
    """Another name of `output_field`."""

    separator: str = " "
    """What stands between the texts."""

    combiner: Function | None = None
    """Function of the list of values that makes the result, 'package.module:function'; null joins texts."""

    drop_sources: Switch = False
    """Take the fields away that were joined."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        for first, second in (("fields", "source_fields"), ("output_field", "target_field")):
            given = [name for name in (first, second) if getattr(self, name) is not None]
            if len(given) != 1:
                told = (
                    f"got both {first} and {second}, which name the same thing"
                    if given
                    else f"{first} is missing"
                )
                raise problem(told)
        return self


class FilterByArguments(Section):
    """A condition on one field; exactly one of `equals`, `one_of` and `function`."""

    field: Text
    """Field whose value decides; a row without it is left out."""

    equals: Json = None
    """The value that rows must have."""

    one_of: tuple[Json, ...] | None = None
    """The values of which rows must have one."""

    function: Function | None = None
    """Function of the value that is true for rows that stay, 'package.module:function'."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        given = {name for name in ("one_of", "function") if getattr(self, name) is not None}
        given |= self.model_fields_set & {"equals"}  # null is a value, too
        if len(given) != 1:
            told = " and ".join(sorted(given)) or "none of them"
            raise problem(f"got {told}, must be exactly one of equals, one_of and function")
        return self


class ChatMLArguments(Section):
    """How conversations become messages."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}."""

    use_default_mapping: Switch = True
    """Know the usual other names, too (human, gpt, ...)."""


class InputOutputArguments(Section):
    """Which fields are the turns of a conversation."""

    input_field: Text = "input"
    """Field of what the user says."""

    output_field: Text = "output"
    """Field of what the assistant answers."""

    system_field: Text | None = "system"
    """Field of the system message, where rows have it."""


class TransformStep(Section):
    """One step: exactly one of these keys."""

    select: Names | None = None
    """Keep these fields alone, in this order."""

    drop: Names | None = None
    """Take these fields away."""

    rename: Annotated[Renames, AfterValidator(_filled)] | None = None
    """Rename fields, {old: new}; a new name that another field has is an error."""

    add: Annotated[dict[Text, Json], AfterValidator(_filled)] | None = None
    """Give every row these fields, {field: value}."""

    map: MapArguments | None = None
    """Put a function of a field's value in its place, or into another field."""

    extract: ExtractArguments | None = None
    """Copy a value from inside a field into a field of its own."""

    combine: CombineArguments | None = None
    """Join the texts of several fields."""

    filter_non_empty: Names | None = None
    """Keep rows where none of these fields is missing, null or empty."""

    filter_by: FilterByArguments | None = None
    """Keep rows by the value of one field."""

    filter: Function | None = None
    """Keep rows for which a function of the row is true, 'package.module:function'."""

    convert_to_chatml: ChatMLArguments | None = None
    """Make messages of role and content of whatever conversation a row holds; {} for the usual names of roles."""

    convert_input_output_to_chatml: InputOutputArguments | None = None
    """Make messages of fields with an input and an output; {} for the usual names."""

    where: Text | None = None
    """Keep rows that meet an SQL predicate (DuckDB), such as "lang = 'en'"."""

    apply: Function | None = None
    """Give every row to a function, 'package.module:function': it returns a row, a list of rows, or None."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in _STEPS if getattr(self, name) is not None]
        if len(given) != 1:
            got = f"{' and '.join(given)}, which are {len(given)} steps" if given else "no step"
            raise problem(
                f"got {got}, must be a mapping of exactly one of {', '.join(_STEPS)} to its arguments"
            )
        return self

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What was not written is no part of a step: `equals: null` would be a condition.
        (name,) = (name for name in _STEPS if getattr(self, name) is not None)
        value, data = getattr(self, name), handler(self)[name]
        if isinstance(value, Section):
            data = {key: item for key, item in data.items() if key in value.model_fields_set}
        return {name: data}

    def resolved(self) -> dict[str, Any]:
        """Return ``{name: arguments}`` of plain values, functions by name.

        Raises:
            ConfigError: a function cannot be found by a name in other processes.
        """
        (name,) = (name for name in _STEPS if getattr(self, name) is not None)
        value = getattr(self, name)
        if isinstance(value, Section):
            return {name: {key: _plain(getattr(value, key)) for key in sorted(value.model_fields_set)}}
        return {name: _plain(value)}


_STEPS: Final = tuple(TransformStep.model_fields)

Transforms = tuple[TransformStep, ...]
"""The steps, in order."""


def _plain(value: Any) -> Any:
    if callable(value):
        return callable_name(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
