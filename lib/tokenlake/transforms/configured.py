"""The steps that a configuration asks for: callback, then renames, then transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from tokenlake.config.resolved_texts import ResolvedTexts
from tokenlake.errors import ConfigError
from tokenlake.transforms.adding import AddField
from tokenlake.transforms.base import ChainedTransform, Step
from tokenlake.transforms.callables import Function, RowCallable, open_callable
from tokenlake.transforms.chat.chatml import ConvertInputOutputToChatML, ConvertToChatML
from tokenlake.transforms.combining import CombineFields
from tokenlake.transforms.extraction import ExtractField
from tokenlake.transforms.fields import DropFields, RenameFields, SelectFields
from tokenlake.transforms.filters import FilterByField, FilterNonEmpty, FilterTransform
from tokenlake.transforms.mapping import MapField
from tokenlake.transforms.where import Where


def open_chain(texts: ResolvedTexts) -> ChainedTransform:
    """Return the steps before the text is made, maybe none.

    Raises:
        ConfigError: a step does not exist, or its arguments are wrong; a function cannot be imported, or its code is
            not what was planned.
    """
    steps: list[Step] = []
    if texts.format_callback:
        steps.append(_row_callable(texts.format_callback, texts, "format_callback"))
    if texts.format_fields:
        steps.append(RenameFields(dict(texts.format_fields)))
    for place, step in enumerate(texts.transforms):
        for name, arguments in step.items():
            try:
                steps.append(_STEPS[name](arguments, texts))
            except ConfigError as error:
                raise ConfigError(f"transforms.{place}.{name}: {error}", **error.details) from error
    return ChainedTransform(steps)


def _row_callable(name: str, texts: ResolvedTexts, reason: str) -> RowCallable:
    return RowCallable(name, open_callable(name, texts), reason)


def _function(arguments: Mapping[str, Any], key: str, texts: ResolvedTexts) -> Function | None:
    name = arguments.get(key)
    return None if name is None else open_callable(name, texts)


def _add(arguments: Mapping[str, Any], texts: ResolvedTexts) -> Step:
    return ChainedTransform([AddField(field, value) for field, value in arguments.items()])


def _map(arguments: Mapping[str, Any], texts: ResolvedTexts) -> Step:
    function = open_callable(arguments["function"], texts)
    return MapField(arguments["field"], function, arguments.get("output_field"))


def _combine(arguments: Mapping[str, Any], texts: ResolvedTexts) -> Step:
    given: dict[str, Any] = {**arguments, "combiner": _function(arguments, "combiner", texts)}
    return CombineFields(**given)


def _filter_by(arguments: Mapping[str, Any], texts: ResolvedTexts) -> Step:
    allowed = OneOf(arguments["one_of"] if arguments.get("one_of") is not None else [arguments.get("equals")])
    return FilterByField(arguments["field"], _function(arguments, "function", texts) or allowed)


@final
class OneOf:
    """Whether a value is one of some; true is not 1."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __call__(self, value: Any) -> bool:
        return any(
            isinstance(value, bool) is isinstance(allowed, bool) and value == allowed
            for allowed in self._values
        )


_STEPS: Final[Mapping[str, Callable[[Any, ResolvedTexts], Step]]] = {
    "select": lambda fields, _: SelectFields(fields),
    "drop": lambda fields, _: DropFields(fields),
    "rename": lambda names, _: RenameFields(names),
    "add": _add,
    "map": _map,
    "extract": lambda arguments, _: ExtractField(**arguments),
    "combine": _combine,
    "filter_non_empty": lambda fields, _: FilterNonEmpty(fields),
    "filter_by": _filter_by,
    "filter": lambda name, texts: FilterTransform(open_callable(name, texts)),
    "convert_to_chatml": lambda arguments, _: ConvertToChatML(**arguments),
    "convert_input_output_to_chatml": lambda arguments, _: ConvertInputOutputToChatML(**arguments),
    "where": lambda sql, _: Where(sql),
    "apply": lambda name, texts: _row_callable(name, texts, "apply"),
}
