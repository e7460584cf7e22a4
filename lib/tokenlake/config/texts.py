"""Sections of a dataset about its rows: transforms, then the form of the text.

The form of the text is a chat, a prompt or a preference.

A transform is one step of a list: one name with its arguments. A function is named
``package.module:function``, which every process can find.
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
    """Return whether a value has the form ``package.module:function``."""
    return isinstance(value, str) and re.fullmatch(_FUNCTION, value) is not None


def callable_name(function: object) -> str:
    """Return the ``module:function`` under which another process finds a function.

    Args:
        function: Function, or its name.

    Raises:
        ConfigError: No import finds it: a lambda, a function inside a function, one of
            ``__main__``, an object.
    """
    # A name was checked when the configuration was read; workers import it.
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
    """Return why a name does not lead back to its function; empty if it does."""
    if "<lambda>" in path:
        return "a lambda has no name to import it by"
    if "<locals>" in path:
        return "it is defined inside another function, so it cannot be imported"
    if module == "__main__":
        return "it is defined in the running script or notebook, which workers do not execute"
    # Follow the name as an import in another process would.
    imported: Any = sys.modules.get(module)
    for attribute in path.split("."):
        imported = getattr(imported, attribute, None)
    # Methods of classes are new objects at every access, but compare equal.
    if not path or imported is None or imported != function:
        return "importing its name gives another object"
    return ""


def _home(function: object) -> tuple[str, str]:
    """Return the module and the qualified name of a function, empty without one."""
    # A method of a built-in class, such as `str.lower`, has no module; its class has.
    owner = getattr(function, "__objclass__", function)
    module = getattr(owner, "__module__", None) or ""
    return str(module), str(getattr(function, "__qualname__", ""))


def _function(value: object) -> object:
    """Accept a function, or the name of one."""
    if callable(value) or is_callable_name(value):
        return value
    raise problem(
        f"got {shown(value)}, must be 'package.module:function', or a function (in Python)"
    )


def _json_name(value: object) -> str:
    """Return the name of a function for a dump.

    A function without a name gets one that is not read back.
    """
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
        raise problem(
            "got a list that contains a name twice, must be different names of fields"
        )
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
    WithJsonSchema(
        {
            "anyOf": [
                _ONE_NAME,
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
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
    """Field whose value is passed to the function."""

    function: Function
    """Function of the value, 'package.module:function'."""

    output_field: Text | None = None
    """Field for the result; null: the same field."""


class ExtractArguments(Section):
    """A value from inside a field."""

    source_path: Text
    """Path of the value, such as 'meta.authors[0].name'."""

    target_field: Text
    """Field for the value."""

    default: Json = None
    """Value of the field if the path is missing or null."""


class CombineArguments(Section):
    """Several fields as one.

    `fields` and `output_field` may also be called `source_fields` and `target_field`.
    """

    fields: Names | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - pydantic's is a deprecated one
    """Fields whose texts are joined, in this order."""

    output_field: Text | None = None
    """Field for the joined text."""

    source_fields: Names | None = None
    """Another name of `fields`."""

    target_field: Text | None = None
    """Another name of `output_field`."""

    separator: str = " "
    """Text between two of the joined texts."""

    combiner: Function | None = None
    """Function that combines the list of values, 'package.module:function'; null:
    texts are joined.
    """

    drop_sources: Switch = False
    """Drop the joined fields."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        """Require each option under one of its two names."""
        for name, other_name in (
            ("fields", "source_fields"),
            ("output_field", "target_field"),
        ):
            has_name = getattr(self, name) is not None
            has_other_name = getattr(self, other_name) is not None
            if has_name and has_other_name:
                raise problem(
                    f"got both {name} and {other_name}, two names of the same option"
                )
            if not has_name and not has_other_name:
                raise problem(f"{name} is missing")
        return self


class FilterByArguments(Section):
    """A condition on one field; exactly one of `equals`, `one_of` and `function`."""

    field: Text
    """Field whose value is tested; a row without the field is left out."""

    equals: Json = None
    """Required value."""

    one_of: tuple[Json, ...] | None = None
    """Allowed values."""

    function: Function | None = None
    """Function of the value that returns true for rows to keep,
    'package.module:function'.
    """

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
            raise problem(
                f"got {listed}, must be exactly one of equals, one_of and function"
            )
        return self


class QualityArguments(Section):
    """Published filters that a text must pass."""

    filters: Quality
    """gopher_repetition, gopher_quality, c4, fineweb; applied in this order."""

    field: Text = "text"
    """Field of the text."""


class ChatMLArguments(Section):
    """Conversion of conversations into messages."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}."""

    use_default_mapping: Switch = True
    """Also recognize common other names (human, gpt, ...)."""


class InputOutputArguments(Section):
    """Fields that are the turns of a conversation."""

    input_field: Text = "input"
    """Field of the user's text."""

    output_field: Text = "output"
    """Field of the assistant's answer."""

    system_field: Text | None = "system"
    """Field of the system message, for rows that have it."""


class TransformStep(Section):
    """One step: exactly one of these keys."""

    select: Names | None = None
    """Keep only these fields, in this order."""

    drop: Names | None = None
    """Drop these fields."""

    rename: Annotated[Renames, AfterValidator(_filled)] | None = None
    """Rename fields, {old: new}; a new name that another field already has is an
    error.
    """

    add: Annotated[dict[Text, Json], AfterValidator(_filled)] | None = None
    """Add these fields to every row, {field: value}."""

    map: MapArguments | None = None
    """Apply a function to a field's value, and store the result in this or another
    field.
    """

    extract: ExtractArguments | None = None
    """Copy a nested value into a new field."""

    combine: CombineArguments | None = None
    """Join the texts of several fields."""

    filter_non_empty: Names | None = None
    """Keep rows in which none of these fields is missing, null or empty."""

    filter_by: FilterByArguments | None = None
    """Keep rows by the value of one field."""

    filter: Function | None = None
    """Keep rows for which a function of the row is true, 'package.module:function'."""

    quality: QualityArguments | None = None
    """Keep rows whose text passes published filters: gopher_repetition,
    gopher_quality, c4, fineweb.
    """

    convert_to_chatml: ChatMLArguments | None = None
    """Convert the conversation of a row into messages with role and content; {} for
    the usual names of roles.
    """

    convert_input_output_to_chatml: InputOutputArguments | None = None
    """Convert input and output fields into messages; {} for the usual names."""

    where: Text | None = None
    """Keep rows that meet an SQL predicate (DuckDB), such as "lang = 'en'"."""

    apply: Function | None = None
    """Apply a function to every row, 'package.module:function'; it returns a row, a
    list of rows, or None.
    """

    @model_validator(mode="after")
    def _one(self) -> Self:
        """Require exactly one step."""
        # Two keys in one entry would have no order.
        steps = [name for name, value in self if value is not None]
        if len(steps) != 1:
            listed = "no step"
            if steps:
                listed = f"{' and '.join(steps)}, which are {len(steps)} steps"
            names = ", ".join(type(self).model_fields)
            raise problem(
                f"got {listed}, must be a mapping of exactly one of {names} to its arguments"
            )
        return self

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump the keys that were written.

        An added `equals: null` would be a condition.
        """
        step_name, arguments = self._step
        dumped: Any = handler(self)[step_name]
        # Steps without a section of arguments, such as `drop`, are dumped as they are.
        if isinstance(arguments, Section):
            written: dict[str, Any] = {}
            for argument, value in dumped.items():
                if argument in arguments.model_fields_set:
                    written[argument] = value
            dumped = written
        return {step_name: dumped}

    @property
    def _step(self) -> tuple[str, Any]:
        """The name of the step, and its arguments."""
        return next((name, value) for name, value in self if value is not None)

    def resolved(self) -> dict[str, Any]:
        """Return ``{name: arguments}`` of plain values, functions by name.

        Raises:
            ConfigError: A function has no name by which other processes find it.
        """
        step_name, arguments = self._step
        # Arguments are sorted, because the result is a part of the build's identity.
        if isinstance(arguments, Section):
            section = arguments
            arguments = {
                argument: getattr(section, argument)
                for argument in sorted(section.model_fields_set)
            }

        def plain(value: Any) -> Any:
            if callable(value):
                return callable_name(value)
            return value

        return {step_name: mapped(arguments, plain)}


Transforms = tuple[TransformStep, ...]
"""The steps, in order."""


def _plain(value: Any) -> Any:
    """Return a value of plain data.

    A date, which YAML makes of 2025-01-31, is its text.
    """
    if isinstance(value, date):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float):
        return value
    raise problem(
        f"got {shown(value)}, must be plain data: texts, numbers, lists, objects"
    )


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse variables of a template that the rows or other options set."""
    # A template would get two values for one of these names.
    reserved = sorted(
        {"messages", "tools", "documents", "add_generation_prompt"} & value.keys()
    )
    if reserved:
        raise problem(
            f"{reserved[0]!r} cannot be set here: it comes from the rows or has its own option"
        )
    return value


Variables = Annotated[
    dict[Text, Any],
    BeforeValidator(lambda value: mapped(value, _plain)),
    AfterValidator(_variables),
    WithJsonSchema({"type": "object"}),
]


class ChatConfig(Section):
    """Section `chat` of a dataset: conversations, which a chat template renders."""

    template: Text | None = None
    """Jinja template, path of a template file, or name of a template of the tokenizer;
    null: the default template of the tokenizer.
    """

    messages_field: Text | None = None
    """Field of the messages; null: `content_field` if that is set, otherwise messages,
    conversations or conversation.
    """

    tools_field: Text | None = "tools"
    """Field of the tools that a conversation may call, for rows that have it."""

    role_mapping: dict[Text, Text] | None = None
    """Names of roles to rename, {theirs: user, assistant, system or tool}, in
    addition to the usual ones.
    """

    loss: Literal["assistant", "all"] = "assistant"
    """Tokens that count toward the loss: those of the assistant's turns, or all. A turn
    with `weight: 0` or `train: false` has none.
    """

    mask_reasoning: Switch = False
    """Exclude the reasoning of a turn from the loss; its answer and its tool calls
    still count.
    """

    learn_empty_reasoning: Switch = False
    """Include in the loss the empty reasoning block at the beginning of a turn without
    reasoning, which the prompt supplies at inference (enable_thinking: false).
    """

    template_kwargs: Variables | None = None
    """Further variables of the template; strftime_now is the date that the function
    of this name returns.
    """

    add_generation_prompt: Switch = False
    """End with the beginning of the assistant's next turn."""


class PromptConfig(Section):
    """Section `prompt` of a dataset: a template combines columns into a text.

    Only the label counts toward the loss.

    Text is inserted unchanged, numbers and booleans as JSON. A row with any other
    value, or a null or missing one, is a bad record.
    """

    format_type: Literal["custom", "chat", "completion"] = "custom"
    """custom: `template`. chat: input and label are turns of the chat template, or,
    without a label, the one input column holds the conversation (OpenAI's `messages`,
    ShareGPT's `conversations`). completion: input, label.
    """

    template: Text | None = None
    """Text with {column} or {{ column }} where values go, or a program of Jinja, with
    {% ... %} or expressions; needed by custom. One newline at its end is dropped.
    """

    input_columns: tuple[Text, ...] = ()
    """Columns of the prompt; for custom, empty means all columns that the template
    uses except the label.
    """

    label_column: Text | None = None
    """Column of the answer, which counts toward the loss; null: everything counts."""

    optional_columns: tuple[Text, ...] = ()
    """Input columns that may be null or missing; they are replaced by an empty text."""

    separator: str = "\n"
    """Separator between the input columns that are not empty, for chat and completion;
    for completion also before the label.
    """

    mask_input: Switch = True
    """Only the answer and its EOS count toward the loss; false: the prompt counts
    too, but examples never do.
    """

    add_bos: Switch = True
    """Begin with the BOS token, if the tokenizer adds one to texts."""

    add_eos: Switch = True
    """End with EOS, unless the template contains it. For chat, the chat template ends
    the answer, and packing ends the document.
    """

    system_message: Text | None = None
    """Text before the prompt; in chat, a separate turn."""

    examples: tuple[dict[Text, Any], ...] = ()
    """Few-shot examples: rows that are rendered by the same template before each
    prompt. They do not count toward the loss.
    """

    example_separator: str = "\n\n"
    """Separator between system message, examples and prompt; not for chat, in which
    they are turns.
    """

    @property
    def conversation(self) -> str | None:
        """The column of whole conversations; None where columns are turns or parts."""
        has_one_input = len(self.input_columns) == 1 and self.label_column is None
        if self.format_type == "chat" and has_one_input:
            return self.input_columns[0]
        return None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Raise the first fault of the section as a problem."""
        for fault in self._faults():
            raise problem(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield the contradictions between the options of the section."""
        kind = self.format_type
        inputs = self.input_columns
        label = self.label_column

        # 1. Each format needs some options, and has no use for others.
        if kind == "custom":
            if not self.template:
                yield "format_type: 'custom' requires a template, but template is missing"
        elif self.template:
            yield f"template: is for format_type 'custom', but format_type is {kind!r}"
        elif kind == "chat" and len(inputs) == 1 and not label:
            for name in ("system_message", "examples"):
                if getattr(self, name):
                    yield (
                        f"{name}: set, but the rows are conversations (no label_column); put it into the "
                        "conversations"
                    )
            for name in ("add_bos", "add_eos"):
                if not getattr(self, name):
                    yield f"{name}: false, but the chat template determines the beginning and end of conversations"
        elif not inputs:
            yield f"input_columns: missing, format_type {kind!r} needs it"
        elif not label:
            yield f"label_column: missing, format_type {kind!r} needs it"

        # 2. A column has one use.
        if label in inputs:
            yield f"label_column: {label!r} is one of input_columns; the prompt would contain the answer"
        if len(set(inputs)) < len(inputs):
            yield "input_columns: a column is named twice"
        if label in self.optional_columns:
            yield f"optional_columns: {label!r} is the label_column, which every row needs"
        for name in self.optional_columns:
            if inputs and name not in inputs:
                yield f"optional_columns: {name!r} is not one of input_columns{did_you_mean(name, inputs)}"

        # 3. Examples are rows of the template, so that they need its columns. A column
        #    "meta.title" is inside the column "meta".
        needed_columns: list[str] = []
        for name in (*inputs, label):
            if name and name not in self.optional_columns:
                needed_columns.append(name)
        for index, row in enumerate(self.examples):
            for name in needed_columns:
                if name not in row and name.partition(".")[0] not in row:
                    columns = ", ".join(map(repr, row)) or "none"
                    yield f"examples.{index}: has no column {name!r}; it has {columns}{did_you_mean(name, row)}"


class PreferenceConfig(Section):
    """Section `preference` of a dataset: rows with a better and a worse answer.

    The answers are texts or conversations.
    """

    method: Method
    """Trainer that the rows are for: pairs (dpo, orpo, cpo, reward), labelled
    answers (kto, bco) or prompts (grpo).
    """

    trainer: Trainer = "easydel"
    """Naming of the output columns: as in the trainers of EasyDeL or of TRL."""

    prompt_field: Text = "prompt"
    """Field of the prompt; for rows without it, the common beginning of `chosen` and
    `rejected`.
    """

    chosen_field: Text = "chosen"
    """Field of the better answer."""

    rejected_field: Text = "rejected"
    """Field of the worse answer."""

    completion_field: Text = "completion"
    """Field of an answer that is labelled by itself."""

    label_field: Text = "label"
    """Field of the label: true for a good answer, false for a bad one."""

    tools_field: Text = "tools"
    """Field of the tools that a conversation may call, for rows that have it."""
