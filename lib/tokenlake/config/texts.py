"""Sections of a dataset about its rows: transforms first, then the form of the text (chat, prompt, preference).

A transform is one step of a list: one name with its arguments. A function is named ``package.module:function``, which
every process can find.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Final, Literal, Self

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

from tokenlake.base.checks import did_you_mean, mapped
from tokenlake.base.columns import Method, Trainer
from tokenlake.base.section import Section, Switch, Text, problem, shown
from tokenlake.config.stages import Quality
from tokenlake.errors import ConfigError

_FUNCTION: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"


def is_callable_name(value: object) -> bool:
    """Return whether a value has the form of a function's name, ``package.module:function``."""
    return isinstance(value, str) and re.fullmatch(_FUNCTION, value) is not None


def callable_name(function: object) -> str:
    """Return the ``module:function`` under which another process finds the same function.

    Args:
        function: Function, or its name.

    Raises:
        ConfigError: No import finds it: a lambda, a function inside a function, one of ``__main__``, an object.
    """
    if isinstance(function, str):
        return function
    module, path = _home(function)
    fault = _fault_of_name(function, module, path)
    if fault:
        name = path or type(function).__name__
        raise ConfigError(
            f"the function {name} of {module or 'no module'} cannot run in worker processes: {fault}. Define it with "
            "`def` at the top of a module that workers can import, and give that function, or its name "
            "'package.module:function'",
            callable=f"{module}:{name}",
        )
    return f"{module}:{path}"


def _fault_of_name(function: object, module: str, path: str) -> str:
    """Return the reason why a name does not lead back to its function; empty if it does."""
    if "<lambda>" in path:
        return "a lambda has no name to import it by"
    if "<locals>" in path:
        return "it is defined inside another function, so that no import finds it"
    if module == "__main__":
        return "it is defined in the script or notebook that runs, which workers do not run again"
    imported: Any = sys.modules.get(module)
    for part in path.split("."):
        imported = getattr(imported, part, None)
    # Methods of classes are new objects at every access, but compare equal.
    if not path or imported is None or imported != function:
        return "the name it has does not import back to it"
    return ""


def _home(function: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function, empty where it has none."""
    owner = getattr(function, "__objclass__", function)
    module = getattr(owner, "__module__", None) or ""
    return str(module), str(getattr(function, "__qualname__", ""))


def _function(value: object) -> object:
    """Accept a function, or the name of one."""
    if callable(value) or is_callable_name(value):
        return value
    raise problem(f"got {shown(value)}, must be 'package.module:function', or a function (in Python)")


def _json_name(value: object) -> str:
    """Return the name of a function for a dump; a function without one has a name that is not read back."""
    if isinstance(value, str):
        return value
    module, path = _home(value)
    return f"{module or '?'}:{path or type(value).__qualname__}"


def _new_names(value: dict[str, str]) -> dict[str, str]:
    """Refuse renames that give two fields the same name."""
    if len(set(value.values())) < len(value):
        raise problem(f"got {shown(value)}: two fields would get the same new name")
    return value


def _different(value: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty list of names, and one with a name twice."""
    if not value:
        raise problem("got an empty list, must be a name of a field or a list of them")
    if len(set(value)) < len(value):
        raise problem("got a list in which a name comes twice, must be different names of fields")
    return value


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse an empty mapping."""
    if not value:
        raise problem("got an empty mapping, must have at least one field")
    return value


Json = Annotated[JsonValue, WithJsonSchema({})]
"""Any value that JSON has."""
_ONE_NAME: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
Names = Annotated[
    tuple[Text, ...],
    AfterValidator(_different),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [_ONE_NAME, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
"""One name of a field, or several different ones."""
Renames = Annotated[dict[Text, Text], AfterValidator(_new_names)]
Function = Annotated[
    Any,
    BeforeValidator(_function),
    PlainSerializer(_json_name, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{_FUNCTION}$"}),
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
    """Place of the value, such as 'meta.authors[0].name'."""

    target_field: Text
    """Field that gets it."""

    default: Json = None
    """Value of the field where the place is missing or null."""


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
    """Text between two of the joined texts."""

    combiner: Function | None = None
    """Function of the list of values that makes the result, 'package.module:function'; null joins texts."""

    drop_sources: Switch = False
    """Take the fields away that were joined."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        """Require each option under one of its two names."""
        for name, other_name in (("fields", "source_fields"), ("output_field", "target_field")):
            has_name = getattr(self, name) is not None
            has_other_name = getattr(self, other_name) is not None
            if has_name and has_other_name:
                raise problem(f"got both {name} and {other_name}, which name the same thing")
            if not has_name and not has_other_name:
                raise problem(f"{name} is missing")
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
        """Require exactly one condition."""
        conditions: list[str] = []
        if "equals" in self.model_fields_set:  # null is a value, too
            conditions.append("equals")
        if self.function is not None:
            conditions.append("function")
        if self.one_of is not None:
            conditions.append("one_of")
        if len(conditions) != 1:
            listed = " and ".join(conditions) or "none of them"
            raise problem(f"got {listed}, must be exactly one of equals, one_of and function")
        return self


class QualityArguments(Section):
    """Published filters that a text must pass."""

    filters: Quality
    """gopher_repetition, gopher_quality, c4, fineweb: in the order in which they are asked."""

    field: Text = "text"
    """Field of the text."""


class ChatMLArguments(Section):
    """Conversion of conversations into messages."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}."""

    use_default_mapping: Switch = True
    """Know the usual other names, too (human, gpt, ...)."""


class InputOutputArguments(Section):
    """Fields that are the turns of a conversation."""

    input_field: Text = "input"
    """Field of the user's text."""

    output_field: Text = "output"
    """Field of the assistant's answer."""

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

    quality: QualityArguments | None = None
    """Keep rows whose text passes published filters: gopher_repetition, gopher_quality, c4, fineweb."""

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
        """Require exactly one step."""
        steps = [name for name, value in self if value is not None]
        if len(steps) != 1:
            listed = f"{' and '.join(steps)}, which are {len(steps)} steps" if steps else "no step"
            names = ", ".join(type(self).model_fields)
            raise problem(f"got {listed}, must be a mapping of exactly one of {names} to its arguments")
        return self

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump the keys that were written: an added `equals: null` would be a condition."""
        name, value = self._step
        data = handler(self)[name]
        if isinstance(value, Section):
            data = {key: item for key, item in data.items() if key in value.model_fields_set}
        return {name: data}

    @property
    def _step(self) -> tuple[str, Any]:
        return next((name, value) for name, value in self if value is not None)

    def resolved(self) -> dict[str, Any]:
        """Return ``{name: arguments}`` of plain values, functions by name.

        Raises:
            ConfigError: A function has no name by which other processes find it.
        """
        name, value = self._step
        if isinstance(value, Section):
            value = {key: getattr(value, key) for key in sorted(value.model_fields_set)}

        def plain(item: Any) -> Any:
            return callable_name(item) if callable(item) else item

        return {name: mapped(value, plain)}


Transforms = tuple[TransformStep, ...]
"""The steps, in order."""


def _plain(value: Any) -> Any:
    """Return a value of plain data; a date, which YAML makes of 2025-01-31, is its text."""
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    raise problem(f"got {shown(value)}, must be plain data: texts, numbers, lists, objects")


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse variables of a template that the rows or other options set."""
    reserved = sorted({"messages", "tools", "documents", "add_generation_prompt"} & value.keys())
    if reserved:
        raise problem(
            f"{reserved[0]!r} is not a variable to set here: it comes from the rows or has its own option"
        )
    return value


Variables = Annotated[
    dict[Text, Any],
    BeforeValidator(lambda value: mapped(value, _plain)),
    AfterValidator(_variables),
    WithJsonSchema({"type": "object"}),
]


class ChatConfig(Section):
    """Section `chat` of a dataset: its rows hold conversations, which a chat template renders."""

    template: Text | None = None
    """Jinja template, the path of a file with one, or the name of one of the tokenizer's; null: the tokenizer's own."""

    messages_field: Text | None = None
    """Field of the messages; null: `content_field` where that is set, else messages, conversations or conversation."""

    tools_field: Text | None = "tools"
    """Field of the tools that a conversation may call, where rows have it."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}; beside the usual ones."""

    loss: Literal["assistant", "all"] = "assistant"
    """Tokens that count toward the loss: those of the assistant's turns, or all. A turn with `weight: 0` or
    `train: false` has none."""

    mask_reasoning: Switch = False
    """Put no loss on the reasoning of a turn; its answer and its calls stay."""

    learn_empty_reasoning: Switch = False
    """Put loss on the empty block of reasoning that a turn without reasoning begins with, though at inference a prompt
    supplies it (enable_thinking: false)."""

    template_kwargs: Variables | None = None
    """Further variables of the template; strftime_now is the date that the function of this name says."""

    add_generation_prompt: Switch = False
    """End with the beginning of the assistant's next turn."""


class PromptConfig(Section):
    """Section `prompt` of a dataset: a template puts columns into a text, on whose label alone there is loss.

    Text goes in as it is; numbers and booleans as JSON writes them; a row whose value is null, missing or anything else
    is a bad record.
    """

    format_type: Literal["custom", "chat", "completion"] = "custom"
    """custom: `template`. chat: input and label are turns of the chat template, or, without a label, the one input
    column holds the conversation (OpenAI's `messages`, ShareGPT's `conversations`). completion: input, label."""

    template: Text | None = None
    """Text with {column} or {{ column }} where values go, or a program of Jinja, with {% ... %} or expressions; needed
    by custom. One newline at its end is dropped."""

    input_columns: tuple[Text, ...] = ()
    """Columns that make the prompt; for custom, none given: all that the template uses beside the label."""

    label_column: Text | None = None
    """Column of the answer, on which there is loss; null: on everything."""

    optional_columns: tuple[Text, ...] = ()
    """Input columns that may be null or missing; their place then stays empty."""

    separator: str = "\n"
    """For chat and completion: between the input columns that are not empty; for completion before the label too."""

    mask_input: Switch = True
    """Loss on the answer (and its EOS) alone; false: on the prompt too, but never on examples."""

    add_bos: Switch = True
    """Begin with the token that the tokenizer itself puts before a text (BOS), if it has one."""

    add_eos: Switch = True
    """End with EOS, packed or not, where the template does not spell it; for chat, the chat template ends the answer
    and packing the document."""

    system_message: Text | None = None
    """Text before the prompt; a turn of its own in chat."""

    examples: tuple[dict[Text, Any], ...] = ()
    """Worked examples (few-shot): rows put through the same template before each prompt; without loss."""

    example_separator: str = "\n\n"
    """Between system message, examples and prompt; not for chat, where they are turns."""

    @property
    def conversation(self) -> str | None:
        """The column of whole conversations; None where columns are turns or parts of a text."""
        chat = self.format_type == "chat" and len(self.input_columns) == 1 and self.label_column is None
        return self.input_columns[0] if chat else None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for fault in self._faults():
            raise problem(fault)
        return self

    def _faults(self) -> Iterator[str]:
        kind, inputs, label = self.format_type, self.input_columns, self.label_column
        if kind == "custom":
            if not self.template:
                yield "format_type: 'custom' needs a template, which is missing"
        elif self.template:
            yield f"template: is for format_type 'custom', but format_type is {kind!r}"
        elif kind == "chat" and len(inputs) == 1 and not label:
            for name in ("system_message", "examples"):
                if getattr(self, name):
                    yield f"{name}: set, but the rows are conversations (no label_column); put it into them"
            for name in ("add_bos", "add_eos"):
                if not getattr(self, name):
                    yield f"{name}: false, but of conversations the chat template says how they begin and end"
        elif not inputs or not label:
            yield f"{'label_column' if inputs else 'input_columns'}: missing, format_type {kind!r} needs it"
        if label in inputs:
            yield f"label_column: {label!r} is one of input_columns; the answer would stand in the prompt"
        if len(set(inputs)) < len(inputs):
            yield "input_columns: a column is named twice"
        if label in self.optional_columns:
            yield f"optional_columns: {label!r} is the label_column, which a row to learn from must have"
        for name in self.optional_columns:
            if inputs and name not in inputs:
                yield f"optional_columns: {name!r} is not one of input_columns{did_you_mean(name, inputs)}"
        needed = [name for name in (*inputs, label) if name and name not in self.optional_columns]
        for index, row in enumerate(self.examples):
            for name in needed:
                if name not in row and name.partition(".")[0] not in row:
                    has = ", ".join(map(repr, row)) or "none"
                    yield f"examples.{index}: has no column {name!r}; it has {has}{did_you_mean(name, row)}"


class PreferenceConfig(Section):
    """Section `preference` of a dataset: rows hold answers that are better and worse, texts or conversations."""

    method: Method
    """Trainer that the rows are for: pairs (dpo, orpo, cpo, reward), labelled answers (kto, bco) or prompts (grpo)."""

    trainer: Trainer = "easydel"
    """Whose column names the rows have: those of EasyDeL's trainers or of TRL's."""

    prompt_field: Text = "prompt"
    """Field of the prompt; where rows lack it, the common beginning of `chosen` and `rejected`."""

    chosen_field: Text = "chosen"
    """Field of the better answer."""

    rejected_field: Text = "rejected"
    """Field of the worse answer."""

    completion_field: Text = "completion"
    """Field of an answer that has a label of its own."""

    label_field: Text = "label"
    """Field that says whether it was good: true or false."""

    tools_field: Text = "tools"
    """Field of the tools that a conversation may call, where rows have it."""
